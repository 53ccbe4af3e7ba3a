#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Writes docs/reference/configuration.md from the program's own option tables ($KVROUTE: another program); with --check says whether it is that.
set -eu
cd "$(dirname "$0")/.."
k=${KVROUTE:-build/release/kvroute} out=docs/reference/configuration.md
page=$(mktemp)
trap 'rm -f "$page" "$page".*' EXIT

# One column less: the other environment name stands behind the option's, `DYN_` where the rest follows from it. Whole numbers are the rule.
tidy() {
  awk -F' [|] ' -v OFS=' | ' '
    /^\|---/ { print "|---|---|---|---|"; next }
    /^\| flag / { print "| flag and YAML key, environment | default | values | meaning |"; next }
    /^\| `/ {
      name = toupper($1); gsub(/[|` ]/, "", name); gsub(/-/, "_", name)
      if ($2 == "`DYN_" name "`") $2 = "`DYN_`"
      $1 = $1 ($2 == "" ? "" : ", " $2)
      sub(/^whole number, /, "", $4)
      if ($4 ~ /^number, .* to (3600|86400|864000|31536000)$/) { sub(/, /, ", from ", $4); sub(/ to .*/, "", $4) }
      sub(/, from 0$/, "", $4)
      for (i = 6; i <= NF; i++) $5 = $5 OFS $i
      print $1, $3, $4, $5; next
    }
    { print }' | sed 's/ |  | / | | /g'
}

# Of the options of serve those that another command has in the same words, by the groups of serve.
shared() {
  awk '
    function tell() {
      if (part != "") printf "* %s: %s\n", title, rest == "" ? "all" : length(rest) < length(part) ? "all but " rest : part
      part = rest = ""
    }
    function more(list, name) { return list (list == "" ? "" : ", ") name }
    NR == FNR { have[$0] = 1; next }
    /^### / { tell(); title = substr($0, 5); sub(/ \(.*/, "", title) }
    /^\| `/ { if ($0 in have) part = more(part, $2); else rest = more(rest, $2) }
    END { tell() }' "$page.$1" "$page.serve" | fold -sw 116 | sed 's/ *$//; s/^\([^*]\)/  \1/'
}

for c in serve select publish; do $k $c --help=markdown >"$page.$c"; done
{
  cat <<'END'
# Options of serve, select and publish

Flag beats environment beats YAML file (`--config FILE`) beats default. The environment name of `some-option` is
`KVROUTE_SOME_OPTION`; it beats the other one, NVIDIA Dynamo's or OpenTelemetry's, which stands behind the option:
`DYN_` alone for `DYN_SOME_OPTION`. A boolean is `--name`, `--no-name` or `--name=VALUE`. A range is one of whole
numbers where it does not say `number`, which alone is one from 0 on. `none` and `null` stand for -1 where -1 means off.
[config.md](../guides/config.md) shows files.

## kvroute serve

END
  tidy <"$page.serve"
  for c in select publish; do
    printf '\n## kvroute %s\n\nOptions of serve that mean the same here:\n\n' $c
    shared $c
    echo
    { grep -m1 -A1 '^| flag ' "$page.$c"; grep '^| `' "$page.$c" | grep -vxFf "$page.serve" || true; } | tidy
  done
} >"$page"
[ "${1:-}" != --check ] || { cmp -s "$page" "$out" || { echo "$out is not what the program says: make options-page" >&2; exit 1; }; exit 0; }
cp "$page" "$out"
