#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Writes docs/reference/configuration.md from the program's own option tables ($KVROUTE: another program); with --check says whether it is that.
set -eu
cd "$(dirname "$0")/.."
k=${KVROUTE:-build/release/kvroute} out=docs/reference/configuration.md
page=$(mktemp)
trap 'rm -f "$page" "$page".*' EXIT
for c in serve select publish; do $k $c --help=markdown >"$page.$c"; done
{
  echo "# Options of serve, select and publish"
  echo
  echo "Written by \`make options-page\` from the program's tables; a test compares. Flag beats environment beats YAML file"
  echo "(\`--config FILE\`) beats default. The environment name of \`some-option\` is \`KVROUTE_SOME_OPTION\`; it beats the other"
  echo "ones, which are NVIDIA Dynamo's or OpenTelemetry's. A boolean is \`--name\`, \`--no-name\` or \`--name=VALUE\`. \`none\` and"
  echo "\`null\` stand for -1 where -1 means off. [config.md](../guides/config.md) shows files, and how to check them."
  echo
  echo "## kvroute serve"
  echo
  cat "$page.serve"
  echo
  echo "## kvroute select"
  echo
  echo "Options of serve that mean the same here:"
  echo
  grep -xFf "$page.serve" "$page.select" | sed -n 's/^| \(`[^`]*`\) .*/\1/p' | paste -sd' ' | sed 's/ /, /g' | fold -sw 118 | sed 's/ *$//'
  echo
  grep -m1 -A1 '^| flag ' "$page.select"
  grep '^| `' "$page.select" | grep -vxFf "$page.serve" || true
  echo
  echo "## kvroute publish"
  echo
  cat "$page.publish"
} >"$page"
[ "${1:-}" != --check ] || { cmp -s "$page" "$out" || { echo "$out is not what the program says: make options-page" >&2; exit 1; }; exit 0; }
cp "$page" "$out"
