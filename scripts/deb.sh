#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Debian packages in build/deb, from what scripts/dist.sh packs, built without git; then lintian, where it is there, has a word. A library of
# token ids that is built (scripts/tokenizer.sh) goes into the package kvroute.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
tarball=$root/$(scripts/dist.sh)
rm -rf build/deb
mkdir -p build/deb
cd build/deb
mkdir kvroute && tar xf "$tarball" -C kvroute --strip-components 1
cd kvroute
library=build/tokenizer/target/release/libkvr_tokenizer.so
if [ -e "$root/$library" ]; then install -D "$root/$library" "$library"; fi
if [ -d "$root/build/llhttp" ]; then mkdir -p build && cp -r "$root/build/llhttp" build/; fi # where Debian has it inside another package only
dpkg-buildpackage -b -us -uc -d >../log 2>&1 || { tail -40 ../log >&2; exit 1; }
cd ..
rm -rf kvroute
if command -v lintian >/dev/null; then lintian --fail-on warning ./*.changes; fi
ls "$PWD"/*.deb
