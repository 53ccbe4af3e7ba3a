#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# moved.sh DIR...: removes build folders that were made for a tree at another path (a copied or moved tree), which CMake refuses.
set -eu
cd "$(dirname "$0")/.."
for dir in "$@"; do
  [ -f "$dir/CMakeCache.txt" ] || continue
  home=$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "$dir/CMakeCache.txt")
  [ "$home" -ef "$PWD" ] && [ "$(sed -n 's/^CMAKE_CACHEFILE_DIR:INTERNAL=//p' "$dir/CMakeCache.txt")" -ef "$dir" ] || rm -rf "$dir"
done
