#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the tokenizer library (tokenizer/, Rust) into build/tokenizer. Optional: the program is whole without it.
#   tokenizer.sh           builds
#   tokenizer.sh test      builds and runs its own tests
#   tokenizer.sh licences  writes tokenizer/LICENCES.txt: the crates that are built in, from Cargo.lock; `test` compares
#   tokenizer.sh --check   says whether it can be built here: exit 0, or 1 with the reason
# Needs cargo 1.85 or newer (Debian 12: package cargo-web; CARGO names another) and, the first time, the crates of tokenizer/Cargo.lock.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
fail() { echo "tokenizer: $*" >&2; exit 1; }
command -v "$cargo" >/dev/null || fail "no cargo: install one of version 1.85 or newer (Debian 12: apt-get install cargo-web), or set CARGO"
version=$("$cargo" --version 2>/dev/null | awk '{print $2}')
[ "$(printf '1.85\n%s\n' "$version" | sort -V | head -1)" = 1.85 ] || fail "cargo $version is too old: 1.85 or newer is needed (Debian 12: cargo-web)"
command -v cc >/dev/null || fail "no cc: the regular expressions of tokenizers are C"
[ "${1:-}" != --check ] || exit 0
licences() {
  echo "# Crates that libkvr_tokenizer.so is built from, and their licences. Written by scripts/tokenizer.sh licences."
  "$cargo" tree --locked --edges normal --target x86_64-unknown-linux-gnu --format "{p} | {l}" --prefix none --manifest-path tokenizer/Cargo.toml |
    sed 's/ (proc-macro)//; s/ (\*)$//; /^kvr_tokenizer /d' | LC_ALL=C sort -u
}
if [ "${1:-}" = licences ]; then
  licences >tokenizer/LICENCES.txt
  exit
fi
mkdir -p build/tokenizer
options=(--release --locked --manifest-path tokenizer/Cargo.toml --target-dir build/tokenizer/target)
"$cargo" build "${options[@]}"
ln -sfn target/release/libkvr_tokenizer.so build/tokenizer/libkvr_tokenizer.so
if [ "${1:-}" = test ]; then
  licences | diff tokenizer/LICENCES.txt - || fail "tokenizer/LICENCES.txt is not what Cargo.lock says: scripts/tokenizer.sh licences"
  KVR_TOKENIZER_TEST=1 "$cargo" test "${options[@]}"
fi
