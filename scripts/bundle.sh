#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# bundle.sh DIR: the program and all that it links in a folder that can lie anywhere: DIR/kvroute, DIR/lib/*.so, DIR/lib/licences/*,
# DIR/libkvr_tokenizer.so where scripts/tokenizer.sh has built it. Of the system it needs glibc and libgcc_s, and of the C++ library what
# scripts/portable.py allows. After `make build`.
set -euo pipefail
out=$(realpath -m "$1")
cd "$(dirname "$0")/.."
cmake --build build/release --target kvroute_portable >/dev/null
mkdir -p "$out/lib/licences"
cp build/release/portable/kvroute "$out/"
tokenizer=${KVROUTE_TOKENIZER:-build/tokenizer/libkvr_tokenizer.so}
if [ -e "$tokenizer" ]; then
  strip -o "$out/libkvr_tokenizer.so" "$tokenizer"
  cp tokenizer/LICENCES.txt "$out/lib/licences/tokenizer"
fi
# Each library's licence is that of the package it comes from; those of what is linked in are taken by name.
licence() {
  local package
  package=$(dpkg-query -S "$(realpath "$1")" 2>/dev/null || dpkg-query -S "$1")
  package=${package%%:*}
  cp "/usr/share/doc/$package/copyright" "$out/lib/licences/$package"
}
for linked in libzmq.a libstdc++.a libmsgpuck.a; do licence "$(realpath "$(c++ -print-file-name=$linked)")"; done
for llhttp in build/llhttp/copyright /usr/share/doc/node-llhttp/copyright /usr/share/doc/libllhttp-dev/copyright; do
  if [ -e "$llhttp" ]; then cp "$llhttp" "$out/lib/licences/llhttp"; break; fi
done
ldd build/release/portable/kvroute | awk '/=> \// { print $1, $3 }' | while read -r name path; do
  if scripts/portable.py --system "$name"; then continue; fi
  cp -L "$path" "$out/lib/$name"
  chmod 644 "$out/lib/$name"
  licence "$path"
done
