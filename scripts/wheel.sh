#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the Python wheel into build/wheel, with Debian's Python or the one PYTHON names: one wheel for every CPython from 3.9 on.
# KVROUTE_LIB: the static library to link in; else it is built here. KVROUTE_TOKENIZER: a libkvr_tokenizer.so that goes into the wheel;
# without one the package looks for it where it runs. Needs nothing of git, and no network.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD out=$PWD/build/wheel
if [ -z "${KVROUTE_LIB:-}" ]; then
  scripts/library.sh
  KVROUTE_LIB=$root/build/library/libkvroute.a
fi
work=$out/work
rm -rf "$out"
mkdir -p "$work"
cp -r bindings/python/. "$work"
if [ -n "${KVROUTE_TOKENIZER:-}" ]; then cp "$KVROUTE_TOKENIZER" "$work/kvroute/libkvr_tokenizer.so"; fi
export KVROUTE_LIB KVROUTE_INCLUDE=$root/include KVROUTE_ROOT=$root
(cd "$work" && "${PYTHON:-/usr/bin/python3}" setup.py -q bdist_wheel -d "$out" > "$out/log" 2>&1) || { cat "$out/log" >&2; exit 1; }
rm -rf "$work"
ls "$out"/*.whl
