#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The index and its peers, in turns, on the same workload files; then kvroute alone at several sizes, with lanes, and
# for a while; events, the indexer, choosing. Needs cargo and the network on the first run (PEERS=0: kvroute alone,
# without them), and 16 GB of disk for the largest workloads.
#   PEERS=1 ROUNDS=5 WORKLOADS="w1 w7 trace" SIZES="one one2 one50 m05 m10 m50" CHURN=60 TRACE=file.jsonl scripts/bench_peers.sh
# An empty SIZES, or CHURN=0, leaves that part out.
set -eu
cd "$(dirname "$0")/.."
rounds=${ROUNDS:-5}
trace=${TRACE:-../shared/traces/conversation_trace.jsonl}
workloads=${WORKLOADS-w1 w7 trace}
sizes=${SIZES-one one2 one50 m05 m10 m50}
churn=${CHURN:-60}
bench=build/release/bench/bench_index
out=build/peers
mkdir -p "$out"
peers=()
[ "${PEERS:-1}" = 0 ] || peers=(--peers "$out/target/release")
[ "${#peers[@]}" = 0 ] || command -v cargo >/dev/null || { echo "bench-peers needs cargo (Debian: apt-get install cargo, or a newer one)" >&2; exit 1; }
for peer in ${peers:+dynamo smg}; do
    echo "building bench/peers/$peer" >&2
    (cd "bench/peers/$peer" && RUSTFLAGS="-C target-cpu=native" CARGO_TARGET_DIR="../../../$out/target" cargo build --release --locked -q)
done

# file NAME: the workload's file, made when it is not there.
file() {
    [ -f "$out/$1" ] || { "$bench" make "$1" "$out/$1.part" "$trace" >&2 && mv "$out/$1.part" "$out/$1"; } || exit 1
    echo "$out/$1"
}

args=()
for w in $workloads; do
    [ "$w" = trace ] && [ ! -f "$trace" ] && { echo "no trace at $trace: left out" >&2; continue; }
    args+=("$(file "$w")")
done
if [ -n "$sizes" ]; then
    args+=(--sizes)
    for w in $sizes; do args+=("$(file "$w")"); done
    args+=(--lanes "$(file w1)")
fi
[ "$churn" = 0 ] || args+=(--churn "$(file w1)" "$churn")
python3 bench/bench_index.py --rounds "$rounds" "${peers[@]}" --json "$out/result.json" "${args[@]}"
