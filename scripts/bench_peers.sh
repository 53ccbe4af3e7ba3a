#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The index and its peers, in turns, on the same workload files. Needs cargo and the network on the first run.
#   ROUNDS=5 WORKLOADS="w1 w2 w5 w7 trace" TRACE=file.jsonl scripts/bench_peers.sh
set -eu
cd "$(dirname "$0")/.."
rounds=${ROUNDS:-5}
trace=${TRACE:-../shared/traces/conversation_trace.jsonl}
workloads=${WORKLOADS:-w1 w2 w5 w7 trace}
out=build/peers
mkdir -p "$out"
command -v cargo >/dev/null || { echo "bench-peers needs cargo (Debian: apt-get install cargo, or a newer one)" >&2; exit 1; }
for peer in dynamo smg; do
    echo "building bench/peers/$peer" >&2
    (cd "bench/peers/$peer" && RUSTFLAGS="-C target-cpu=native" CARGO_TARGET_DIR="../../../$out/target" cargo build --release --locked -q)
done
files=()
for w in $workloads; do
    [ "$w" = trace ] && [ ! -f "$trace" ] && { echo "no trace at $trace: left out" >&2; continue; }
    [ -f "$out/$w" ] || build/release/bench/bench_index make "$w" "$out/$w" "$trace"
    files+=("$out/$w")
done
grep -m1 'model name' /proc/cpuinfo || true
echo "$(nproc) core(s), $(date -u +%F)"
build/release/bench/bench_index floor
python3 bench/index/table.py --rounds "$rounds" --peers "$out/target/release" --json "$out/result.json" "${files[@]}"
