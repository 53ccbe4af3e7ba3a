#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Benchmarks. Absolute figures depend on the machine; the ratios within one run are what counts. The last two print tables beside what was
# recorded last (bench/history.jsonl); RECORD=1 appends to it. The index has peers beside it once `make bench-peers` has built them.
set -euo pipefail
cd "$(dirname "$0")/.."
build/release/bench/bench_decision
build/release/bench/bench_tee
/usr/bin/python3 bench/bench_disagg.py build/release/kvroute
if [ -x /usr/sbin/nats-server ] || command -v nats-server >/dev/null; then /usr/bin/python3 bench/bench_remote.py build/release/kvroute; fi
build/release/bench/bench_schedule
build/release/bench/bench_capacity
build/release/bench/bench_tiers
build/release/bench/bench_sim --seeds 2
/usr/bin/python3 bench/bench_serve.py build/release/kvroute --rounds "${ROUNDS:-5}"
[ -x build/peers/target/release/bench-dynamo ] || export PEERS=0
WORKLOADS="w1 w7" SIZES=one2 CHURN=0 scripts/bench_peers.sh
