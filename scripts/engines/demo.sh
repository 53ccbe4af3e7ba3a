#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The demo with two real engines (small caches) instead of mocks: one workload under round-robin and under kv, side by side. KEEP=1 leaves it running.
set -eu
cd "$(dirname "$0")/../.."
export ENGINES_DIR=${ENGINES_DIR:-$PWD/build/engines}
scripts/engines/setup.sh --check || { echo "no engine is set up in $ENGINES_DIR: run 'make engines' first (about 8 GB)" >&2; exit 2; }
kvroute=build/release/kvroute
python=$ENGINES_DIR/venv/bin/python
logs=$(mktemp -d)
serve_pid=""
stop() {
  exec 4>&- || true # the engines end with their standard input
  [ -z "$serve_pid" ] || kill "$serve_pid" 2>/dev/null || true
  wait 2>/dev/null || true
  rm -rf "$logs"
}
trap stop EXIT
trap 'exit 130' INT TERM

mkfifo "$logs/hold"
echo "starting 2 vLLM engines (cache: 400 blocks of 32 tokens each); half a minute or more"
"$python" scripts/engines/engine.py --count 2 --blocks 400 <"$logs/hold" >"$logs/specs" 2>"$logs/engines.log" &
engines_pid=$!
exec 4>"$logs/hold"
until [ "$(wc -l <"$logs/specs")" = 2 ]; do
  kill -0 "$engines_pid" 2>/dev/null || { echo "the engines did not start:"; tail -20 "$logs/engines.log"; exit 1; }
  sleep 0.5
done
workers=()
while read -r spec; do workers+=(--worker "$spec"); done <"$logs/specs"
read -r port admin < <("$python" scripts/ports.py 2)
$kvroute serve --host 127.0.0.1 --port "$port" --admin-port "$admin" --health-interval 1 "${workers[@]}" >"$logs/serve.log" 2>&1 4>&- &
serve_pid=$!
until curl -sf -o /dev/null "http://127.0.0.1:$port/ready"; do
  kill -0 "$serve_pid" 2>/dev/null || { echo "the router did not start:"; cat "$logs/serve.log"; exit 1; }
  sleep 0.1
done
echo "replaying 24 conversations of 4 turns (12 shared system prompts, more than one cache holds), first round-robin, then kv"
$kvroute replay --url "http://127.0.0.1:$port" --admin-url "http://127.0.0.1:$admin" --model tiny --compare round-robin,kv \
  --sessions 24 --turns 4 --groups 12 --system-tokens 768 --turn-tokens 72 --output-tokens 16 --vocab 2000
if [ "${KEEP:-0}" = 1 ]; then
  echo "left running: endpoint http://127.0.0.1:$port/v1, page http://127.0.0.1:$admin/ ; Ctrl-C stops it"
  wait "$serve_pid"
else
  echo "make demo-engines KEEP=1 leaves it running and says where the page is"
fi
