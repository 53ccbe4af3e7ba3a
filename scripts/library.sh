#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the library alone, as a package of it would, into build/library. Two at once wait for each other.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build
exec 9> build/library.lock
flock 9
scripts/moved.sh build/library
cmake -S . -B build/library -G Ninja -DKVR_LIB_ONLY=ON > /dev/null
cmake --build build/library > /dev/null
