#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tests/engines against real engines; arguments go to pytest: files, -k, .... The last line counts. Nothing is installed here: `make engines` does that.
set -u
cd "$(dirname "$0")/../.."
export ENGINES_DIR=${ENGINES_DIR:-$PWD/build/engines} KVROUTE=${KVROUTE:-$PWD/build/release/kvroute}
export KVROUTE_SLOW=${KVROUTE_SLOW:-3} PYTHONDONTWRITEBYTECODE=1  # two engines share the machine with the router
if ! scripts/engines/setup.sh --check; then
  echo "no engine is set up in $ENGINES_DIR: run 'make engines' first (about 8 GB)" >&2
  exit 2
fi
# What answers the classes that judge our tiers (tests/engines/tiers).
cmake --preset release -DKVR_TESTS=ON >/dev/null && cmake --build --preset release --target test_tier_vectors >/dev/null || exit 2
case " $*" in *" tests/"*) where=() ;; *) where=(tests/engines) ;; esac # files that are named are the only ones
log=$(mktemp)
trap 'rm -f "$log"' EXIT
"$ENGINES_DIR/venv/bin/python" -m pytest -q -p no:cacheprovider -W ignore::DeprecationWarning --durations=8 "${where[@]}" "$@" 2>&1 | tee "$log"
status=${PIPESTATUS[0]}
count() { grep -oE "[0-9]+ $1" <(tail -1 "$log") | grep -oE '[0-9]+' || echo 0; }
passed=$(count passed) failed=$(($(count failed) + $(count error)))
if [ "$status" != 0 ] && [ "$failed" = 0 ]; then failed=1; fi
echo "$passed passed, $failed failed"
exit "$status"
