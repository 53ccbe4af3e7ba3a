#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Writes docs/reference/configuration.md from the program's own option tables.
set -eu
cd "$(dirname "$0")/.."
k=build/release/kvroute
{
  echo "# Options of serve, select and publish"
  echo
  echo "Written by \`make options-page\` from the program's tables; the tests compare. Flag beats environment beats YAML file"
  echo "(\`--config FILE\`) beats default. A boolean is \`--name\`, \`--no-name\` or \`--name=VALUE\`. Of two environment names the"
  echo "first beats the second, which is that of NVIDIA Dynamo's router. \`none\` and \`null\` stand for -1 where -1 means off."
  echo "[config.md](../guides/config.md) shows files, and how to check them."
  echo
  echo "## kvroute serve"
  echo
  $k serve --help=markdown
  echo
  echo "## kvroute select"
  echo
  $k select --help=markdown
  echo
  echo "## kvroute publish"
  echo
  $k publish --help=markdown
} >docs/reference/configuration.md
