#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the Python wheel into build/wheel, with Debian's Python or the one PYTHON names: one wheel for every CPython from 3.9 on, with the
# library, the program (scripts/bundle.sh) and, where it is built, the library of token ids. Needs nothing of git, and no network.
#   wheel.sh           after `make build`
#   wheel.sh library   into build/wheel-library, without the program
# The platform tag is the lowest true one (scripts/portable.py).
# KVROUTE_LIB: the static library to link in; else it is built here. KVROUTE_TOKENIZER: the libkvr_tokenizer.so.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD out=$PWD/build/wheel${1:+-$1}
if [ -z "${KVROUTE_LIB:-}" ]; then
  scripts/library.sh
  KVROUTE_LIB=$root/build/library/libkvroute.a
fi
work=$out/work
rm -rf "$out"
mkdir -p "$work"
cp -r bindings/python/. "$work"
cp LICENSE "$work"
export KVROUTE_LIB KVROUTE_INCLUDE=$root/include KVROUTE_ROOT=$root
setup() { (cd "$work" && "${PYTHON:-/usr/bin/python3}" setup.py -q "$@" >>"$out/log" 2>&1) || { cat "$out/log" >&2; exit 1; }; }
if [ "${1:-}" != library ]; then
  scripts/bundle.sh "$work/kvroute"
  cmake --install build/release --prefix "$work/installed" >/dev/null
  mv "$work/installed/share" "$work/share"
  rm -rf "$work/share/doc"
fi
setup build --build-lib lib
strip --strip-unneeded "$work"/lib/kvroute/_kvroute*.so
tag=$(scripts/portable.py "$work/lib")
setup build --build-lib lib bdist_wheel -d "$out" --plat-name "$tag"
rm -rf "$work"
ls "$out"/*.whl
