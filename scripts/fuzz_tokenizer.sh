#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the fuzz targets of the tokenizer library (tests/fuzz/tokenizer) for a number of seconds each (default 10).
#   fuzz_tokenizer.sh [SECONDS]
#   fuzz_tokenizer.sh --build     builds them only
#   fuzz_tokenizer.sh --check     says whether they can be built here: exit 0, or 1 with the reason
# The library is built apart, in build/fuzz-tokenizer, with the instrumentation that libFuzzer reads: the compiler's own passes, of stable
# Rust, too; its crates are there since the library itself was built. KVR_TOK_CORPUS names a folder to keep what was found from one run to the next.
set -euo pipefail
cd "$(dirname "$0")/.."
out=build/fuzz-tokenizer
target=x86_64-unknown-linux-gnu
clang=clang-14
fail() { echo "tokenizer fuzzing: $*" >&2; exit 1; }

check() {
  scripts/tokenizer.sh --check
  command -v $clang >/dev/null || fail "no $clang"
  [ "$("${CARGO:-cargo}" -vV | sed -n 's/^host: //p')" = $target ] || fail "the host is not $target"
}

# Of dependencies, too: most of what a question runs through is theirs. C parts are instrumented by clang.
build_library() {
  local flags="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4" kind
  for kind in inline-8bit-counters pc-table trace-compares; do flags+=" -Cllvm-args=-sanitizer-coverage-$kind"; done
  RUSTFLAGS="$flags" CC=$clang CFLAGS="-fsanitize=fuzzer-no-link,address" CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
    "${CARGO:-cargo}" rustc --quiet --lib --crate-type staticlib --release --locked --offline --target $target --manifest-path tokenizer/Cargo.toml \
    --target-dir $out/target --config 'profile.release.package.kvr_tokenizer.overflow-checks=true'
}

build() {
  mkdir -p $out
  build_library
  local name
  for name in questions folders; do
    $clang -std=gnu11 -D_GNU_SOURCE -g -O1 -Wall -Wextra -fsanitize=fuzzer,address,undefined -Itokenizer/include tests/fuzz/tokenizer/fuzz_tok_$name.c \
      tests/fuzz/tokenizer/tok_fuzz.c $out/target/$target/release/libkvr_tokenizer.a -lpthread -ldl -lm -o $out/fuzz_tok_$name
  done
}

run() {
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  /usr/bin/python3 tests/fuzz/tokenizer/prepare.py "$work"
  local name corpus
  for name in questions folders; do
    echo "fuzz_tok_$name: $1 s"
    corpus=${KVR_TOK_CORPUS:-$work/corpus}/$name
    mkdir -p "$corpus"
    # without entropic: its book-keeping over so many counters takes longer than the runs
    KVR_TOK_FUZZ=$work ASAN_OPTIONS=malloc_context_size=4:quarantine_size_mb=32 $out/fuzz_tok_$name -entropic=0 -max_total_time="$1" -timeout=20 -rss_limit_mb=4096 -max_len=8192 -dict="$work/$name.dict" -print_final_stats=1 \
      -artifact_prefix="$work/" "$corpus" "$work/seeds/$name" 2>"$work/log" || {
      tail -60 "$work/log"
      echo "fuzz_tok_$name: a finding; input in base64:"
      cat "$work"/crash-* "$work"/leak-* "$work"/timeout-* "$work"/oom-* 2>/dev/null | base64 -w 0
      exit 1
    }
    sed -n 's/^stat::number_of_executed_units: /  executions: /p' "$work/log"
    sed -n 's/.*DONE.*\(cov: [0-9]* ft: [0-9]*\).*/  \1/p' "$work/log"
  done
}

case ${1:-10} in
  --check) check ;;
  --build) check && build ;;
  *) check && build && run "${1:-10}" ;;
esac
