#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Benchmarks. Absolute figures depend on the machine; the ratios within one run are what counts.
set -euo pipefail
cd "$(dirname "$0")/.."
grep -m1 'model name' /proc/cpuinfo || true
echo "$(nproc) core(s), $(date -u +%F)"
build/release/bench/bench_decision
build/release/bench/bench_ingest
build/release/bench/bench_tee
build/release/bench/bench_proxy build/release/kvroute
/usr/bin/python3 bench/bench_disagg.py build/release/kvroute
/usr/bin/python3 bench/bench_protected.py build/release/kvroute
if [ -x /usr/sbin/nats-server ] || command -v nats-server >/dev/null; then /usr/bin/python3 bench/bench_remote.py build/release/kvroute; fi
mkdir -p build/workloads
[ -f build/workloads/w1 ] || build/release/bench/bench_index make w1 build/workloads/w1
build/release/bench/bench_index run build/workloads/w1
build/release/bench/bench_index lanes build/workloads/w1
build/release/bench/bench_schedule
build/release/bench/bench_capacity
build/release/bench/bench_tiers
build/release/bench/bench_sim --seeds 2
