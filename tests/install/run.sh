#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What was built is installed and used in bare systems: an old one, that of the build, newer ones. `run.sh wheel jammy` does one of them. Each
# leaves build/roots/SUITE-WHAT.log. After `make wheel deb`.
set -uo pipefail
cd "$(dirname "$0")/../.."
only=$* passed=0 failed=0
try() {
  if [ -n "$only" ] && [ "$only" != "$1 $2" ]; then return; fi
  local log=build/roots/$2-$1.log rc=0
  tests/install/root.sh "$2" "$1.sh" "${@:3}" >"$log" 2>&1 || rc=$?
  case "$rc" in
    0) passed=$((passed + 1)); echo "ok   $1 in $2" ;;
    77) tail -1 "$log" ;;
    *) failed=$((failed + 1)); echo "FAIL $1 in $2"; tail -40 "$log" ;;
  esac
}
# check NAME COMMAND...: where the program is there.
check() {
  if [ -n "$only" ] && [ "$only" != "$1" ]; then return; fi
  if ! command -v "$2" >/dev/null; then
    echo "$1: left out: no $2"
  elif "${@:2}" >build/roots/"$1".log 2>&1; then
    passed=$((passed + 1)); echo "ok   $1"
  else
    failed=$((failed + 1)); echo "FAIL $1"; tail -40 build/roots/"$1".log
  fi
}
mkdir -p build/roots
check unit systemd-analyze security --offline=true --threshold=20 deploy/systemd/kvroute.service
check compose docker-compose -f deploy/compose/compose.yaml config
check gateway docker-compose -f deploy/compose/gateway.yaml config
check lintian lintian --fail-on warning build/deb/*.changes
for suite in jammy bookworm trixie noble; do try wheel "$suite" build/wheel/kvroute-*.whl; done
hour=(tests/e2e/pages.py docs/guides/operators-hour.md)
try hour bookworm build/wheel/kvroute-*.whl "${hour[@]}"
try deb bookworm "${hour[@]}" $(find build/deb -name '*.deb' -not -name '*dbgsym*') tests/consumer/consumer.c
try systemd bookworm build/deb/kvroute_*.deb
tools=$(scripts/prometheus.sh --check)
if /usr/bin/python3 -c 'import json, yaml; json.dump(yaml.safe_load(open("deploy/compose/compose.yaml")), open("build/roots/compose.json", "w"))'; then
  try compose bookworm build/wheel/kvroute-*.whl build/roots/compose.json deploy/compose/prometheus.yml deploy/prometheus/kvroute.rules.yml \
    ${tools:+"$tools/prometheus"}
else
  echo "the services of the Compose file: left out: no python3-yaml"
fi
try container bookworm build/dist/kvroute-*.tar.gz
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
