#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Four mock engines, one router, one workload under round-robin and under KV routing. KEEP=1 leaves it running.
set -eu
cd "$(dirname "$0")/.."
kvroute=build/release/kvroute
logs=$(mktemp -d)
pids=""
stop() {
  for p in $pids; do kill "$p" 2>/dev/null || true; done
  for p in $pids; do wait "$p" 2>/dev/null || true; done
  rm -rf "$logs"
}
trap stop EXIT
trap 'exit 130' INT TERM
free_port() { /usr/bin/env python3 - "$1" <<'P' 2>/dev/null || echo "$1"
import socket, sys
port = int(sys.argv[1])
while True:
    s = socket.socket()
    try:
        s.bind(("127.0.0.1", port)); print(port); break
    except OSError:
        port += 1
    finally:
        s.close()
P
}
workers=()
next=18101
for i in 1 2 3 4; do
  http=$(free_port $next); events=$(free_port $((http + 1))); replay=$(free_port $((events + 1))); next=$((replay + 1))
  $kvroute mock --enable-prompt-tokens-details --port "$http" --kv-events "tcp://127.0.0.1:$events" --kv-replay "tcp://127.0.0.1:$replay" \
    --num-gpu-blocks 2560 --speedup-ratio 4 >"$logs/mock$i.log" 2>&1 &
  pids="$pids $!"
  workers+=(--worker "http://127.0.0.1:$http,events=tcp://127.0.0.1:$events,replay=tcp://127.0.0.1:$replay")
done
port=$(free_port 18080); admin=$(free_port 19090)
$kvroute serve --host 127.0.0.1 --port "$port" --admin-port "$admin" --health-interval 1 "${workers[@]}" >"$logs/serve.log" 2>&1 &
pids="$pids $!"
echo "started 4 mock engines (cache: 2560 blocks of 16 tokens each) and the router on port $port; waiting until it is ready"
for i in $(seq 100); do
  if $kvroute replay --url "http://127.0.0.1:$port" --sessions 1 --turns 1 --system-tokens 16 --turn-tokens 4 --output-tokens 1 --no-progress >/dev/null 2>&1; then break; fi
  [ "$i" -lt 100 ] || { echo "the router did not start:"; cat "$logs/serve.log"; exit 1; }
  sleep 0.1
done
echo "replaying 64 conversations of 6 turns (24 shared system prompts, more than one cache holds), first round-robin, then kv"
$kvroute replay --url "http://127.0.0.1:$port" --admin-url "http://127.0.0.1:$admin" --compare round-robin,kv \
  --sessions 64 --turns 6 --groups 24 --system-tokens 1536 --turn-tokens 256 --output-tokens 32
if [ "${KEEP:-0}" = 1 ]; then
  echo "left running: endpoint http://127.0.0.1:$port/v1, page http://127.0.0.1:$admin/ ; Ctrl-C stops it"
  wait
else
  echo "make demo KEEP=1 leaves it running and says where the page is"
fi
