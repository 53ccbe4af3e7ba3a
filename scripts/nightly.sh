#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What takes hours: random tests with many seeds, in a release build, and every fuzz target for $1 seconds. Ends with the first that fails.
# SEEDS: of each mode of the view simulation; KVR_SEED: the first one, by default another each day.
set -eu
cd "$(dirname "$0")/.."
seeds=${SEEDS:-1000000}
modes=12
export KVR_SEED=${KVR_SEED:-$(($(date +%s) / 86400 * seeds * modes % 4000000000000 + 1))}
echo "seeds from $KVR_SEED on"
cmake --preset release -DKVR_TESTS=ON > /dev/null
cmake --build --preset release | tail -n 1
KVR_OPS=$((seeds * modes * 100)) build/release/unit/test_view_sim
for t in index_random index_readers index_modes local_index load queue; do
  echo "$t"
  KVR_OPS=20000000 "build/release/unit/test_$t"
done
scripts/fuzz.sh "$1"
