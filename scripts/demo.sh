#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Four mock engines, one router, one workload under round-robin and under KV routing. KEEP=1 leaves it running, PROMETHEUS=1 beside a
# Prometheus.
set -eu
export KVROUTE_LAME_DUCK_TIME=0 # no balancer watches
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
# The first port from $1 on at which nobody answers.
free_port() {
  local p=$1
  while (exec 3<>"/dev/tcp/127.0.0.1/$p") 2>/dev/null; do p=$((p + 1)); done
  echo "$p"
}
# Where the library that makes token ids is built (make tokenizer), engines and router have a small model's folder, and texts show it.
folder=()
library=build/tokenizer/libkvr_tokenizer.so
if [ -e "$library" ]; then folder=(--tokenizer-lib "$PWD/$library" --tokenizer-dir "$PWD/scripts/demo-model"); fi
# talk N: a trace of chats, eight conversations of five turns about what system prompt N mod 2 says.
talk() {
  awk -v seed="$1" 'BEGIN {
    for (t = 0; t < 5; t++) for (c = 0; c < 8; c++) {
      m = "{\"role\":\"system\",\"content\":\"System prompt " c % 2 " of " seed "."
      for (i = 0; i < 60; i++) m = m " Rule " i " of the house."
      m = m "\"}"
      for (i = 0; i <= t; i++) {
        m = m ",{\"role\":\"user\",\"content\":\"Question " i " of conversation " c "\"}"
        if (i < t) m = m ",{\"role\":\"assistant\",\"content\":\"Answer " i "\"}"
      }
      printf "{\"timestamp\":%d,\"messages\":[%s],\"output_length\":4}\n", (t * 8 + c) * 25, m
    }
  }'
}
# Which way tokens came, of the router's metrics.
ways() {
  exec 3<>"/dev/tcp/127.0.0.1/$admin"
  printf 'GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n' >&3
  tr -d '\r' <&3 | awk -F'[{}" ]+' '/^kvroute_tokens_total/ && $NF > 0 { printf "%s%s %d", n++ ? ", " : "", $3, $NF }'
  exec 3>&-
}
workers=()
next=18101
for i in 1 2 3 4; do
  http=$(free_port $next); events=$(free_port $((http + 1))); replay=$(free_port $((events + 1))); next=$((replay + 1))
  $kvroute mock --enable-prompt-tokens-details --port "$http" --events "tcp://127.0.0.1:$events" --replay "tcp://127.0.0.1:$replay" \
    --num-gpu-blocks 2560 --speedup 4 "${folder[@]}" >"$logs/mock$i.log" 2>&1 &
  pids="$pids $!"
  workers+=(--worker "http://127.0.0.1:$http,events=tcp://127.0.0.1:$events,replay=tcp://127.0.0.1:$replay,metrics=http://127.0.0.1:$http/metrics")
done
port=$(free_port 18080); admin=$(free_port 19090)
$kvroute serve --host 127.0.0.1 --port "$port" --admin-port "$admin" --health-interval 1 "${folder[@]}" "${workers[@]}" >"$logs/serve.log" 2>&1 &
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
if [ ${#folder[@]} -gt 0 ]; then
  echo "40 chats as text; the router makes their tokens itself once it has agreed with an engine on the built-in questions and 8 requests"
  talk 1 >"$logs/talk"
  $kvroute replay --url "http://127.0.0.1:$port" --trace "$logs/talk" --no-progress >"$logs/talk.log" 2>&1 || { cat "$logs/talk.log"; exit 1; }
  echo "tokens: $(ways)"
else
  echo "make tokenizer builds the library with which the router makes the token ids of texts itself; then this demo shows it"
fi
if [ "${KEEP:-0}" = 1 ] && [ "${PROMETHEUS:-0}" = 1 ]; then
  tools=$(scripts/prometheus.sh) || exit 1
  web=$(free_port 19190)
  sed "s/10\.0\.0\.10:9090, 10\.0\.0\.11:9090/127.0.0.1:$admin/; s/: 15s/: 1s/" deploy/prometheus/prometheus.yml >"$logs/prometheus.yml"
  cp deploy/prometheus/kvroute.rules.yml "$logs/"
  "$tools/prometheus" --config.file="$logs/prometheus.yml" --storage.tsdb.path="$logs/prometheus" --web.listen-address="127.0.0.1:$web" \
    --log.level=error >"$logs/prometheus.log" 2>&1 &
  pids="$pids $!"
  echo "Prometheus, with the alerts of deploy/prometheus: http://127.0.0.1:$web/alerts ; the dashboard is deploy/grafana/kvroute.json"
fi
if [ "${KEEP:-0}" = 1 ]; then
  echo "left running: endpoint http://127.0.0.1:$port/v1, page http://127.0.0.1:$admin/ ; Ctrl-C stops it"
  wait
else
  echo "make demo KEEP=1 leaves it running and says where the page is"
fi
