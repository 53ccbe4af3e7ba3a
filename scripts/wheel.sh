#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the Python wheel into build/wheel with Debian's Python. KVROUTE_LIB: the static library to link in.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$PWD/build/wheel
work=$out/work
rm -rf "$out"
mkdir -p "$work"
cp -r bindings/python/. "$work"
sed -i "s|^ROOT = .*|ROOT = '$PWD'|" "$work/build_kvroute.py"
export KVROUTE_LIB=${KVROUTE_LIB:-$PWD/build/release/libkvroute.a}
(cd "$work" && /usr/bin/python3 setup.py -q bdist_wheel -d "$out" > "$out/log" 2>&1) || { cat "$out/log" >&2; exit 1; }
rm -rf "$work"
ls "$out"/*.whl
