#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the library alone into a scratch prefix and uses it from outside: find_package and pkg-config.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
lib=$root/build/library # the library alone, as scripts/library.sh builds it
"$root/scripts/library.sh"
"$root/scripts/check_symbols.py" "$lib/libkvroute.so"
cmake --install "$lib" --prefix "$tmp/prefix" >/dev/null
# Staged as packagers do: once below DESTDIR, whether it comes as make's variable or from the environment, and nowhere else.
(cd "$root" && make -s -o build install INSTALL_FROM="$lib" DESTDIR="$tmp/stage" PREFIX=/opt/kvr >/dev/null)
(cd "$root" && DESTDIR="$tmp/stage2" make -s -o build install INSTALL_FROM="$lib" PREFIX=/opt/kvr >/dev/null)
for stage in stage stage2; do
  if ! diff <(cd "$tmp/prefix" && find . | sort) <(cd "$tmp/$stage/opt/kvr" && find . | sort); then echo "not staged whole"; exit 1; fi
  if [ "$(cd "$tmp/$stage" && find . -maxdepth 2 | sort | tr '\n' ' ')" != ". ./opt ./opt/kvr " ]; then
    find "$tmp/$stage"
    echo "staged elsewhere"
    exit 1
  fi
done
test -f "$tmp/prefix/share/doc/kvroute/LICENSE"
mv "$tmp/prefix" "$tmp/moved" # the installed files must not depend on where they were put
cmake -S "$root/tests/consumer" -B "$tmp/use" -G Ninja -DCMAKE_PREFIX_PATH="$tmp/moved" >/dev/null
cmake --build "$tmp/use" >/dev/null
"$tmp/use/consumer_shared"
"$tmp/use/consumer_static"
pc=$(dirname "$(find "$tmp/moved" -name kvroute.pc)")
cc "$root/tests/consumer/consumer.c" -o "$tmp/pc" $(PKG_CONFIG_PATH=$pc pkg-config --cflags --libs kvroute)
LD_LIBRARY_PATH=$(PKG_CONFIG_PATH=$pc pkg-config --variable=libdir kvroute) "$tmp/pc"
# Only what is marked leaves the shared library, and it needs libc and libm only.
so=$(find "$tmp/moved" -name 'libkvroute.so')
if nm -D --defined-only "$so" | awk '{print $3}' | grep -v '^kvr_'; then echo "stray symbols"; exit 1; fi
if objdump -p "$so" | awk '/NEEDED/{print $2}' | grep -vE '^(libc|libm|libpthread)\.so'; then echo "stray dependencies"; exit 1; fi
