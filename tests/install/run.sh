#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What was built is installed and used in bare systems: an old one, that of the build, newer ones. `run.sh wheel jammy` does one of them.
set -uo pipefail
cd "$(dirname "$0")/../.."
passed=0 failed=0
try() {
  if [ -n "${only:-}" ] && [ "$only" != "$1 $2" ]; then return; fi
  local log=build/roots/$2-$1.log rc=0
  mkdir -p build/roots
  tests/install/root.sh "$2" "$1.sh" "${@:3}" >"$log" 2>&1 || rc=$?
  case "$rc" in
    0) passed=$((passed + 1)); echo "ok   $1 in $2" ;;
    77) tail -1 "$log" ;;
    *) failed=$((failed + 1)); echo "FAIL $1 in $2"; tail -40 "$log" ;;
  esac
}
only=$*
for suite in jammy bookworm trixie noble; do try wheel "$suite" build/wheel/kvroute-*.whl; done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
