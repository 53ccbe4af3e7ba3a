#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs every fuzz target for a number of seconds (default 10), one on each core at a time. FUZZ_SEED: of libFuzzer's random numbers
# (0: another one each time).
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-10}
scripts/moved.sh build/fuzz
cmake --preset fuzz >/dev/null
cmake --build --preset fuzz | tail -1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for f in build/fuzz/fuzzers/fuzz_*; do
  name=$(basename "$f")
  mkdir -p "$work/$name"
  # Seeds: the wire vectors, so that the first inputs are already deep.
  if [ "$name" = fuzz_engine_events ]; then
    for h in 93cb3ff80000000000009198ab426c6f636b53746f726564910bc0920a0b02c0a3475055c000 \
             93cb40000000000000009293ac426c6f636b52656d6f766564910ba347505591b0416c6c426c6f636b73436c656172656400 \
             93cb3ff00000000000009196ab426c6f636b53746f726564920b0cc094920a0b920b0c920c0d920d0e02c000; do
      printf "$(echo "$h" | sed 's/../\\x&/g')" >"$work/$name/$h"
    done
  fi
  event='{"worker_id":1,"storage_tier":"device","residency_domain":"worker","event":{"event_id":3,"data":{"stored":{"parent_hash":5,"start_position":null,"blocks":[{"block_hash":1,"tokens_hash":2,"mm_extra_info":null}]}},"dp_rank":0}}'
  removed='{"worker_id":1,"event":{"event_id":4,"data":{"removed":{"block_hashes":[1,2]}},"dp_rank":0}}'
  if [ "$name" = fuzz_recover ]; then
    printf '9{"Events":{"epoch":1,"events":[%s,%s],"last_event_id":4}}' "$event" "$removed" >"$work/$name/a"
    printf '9{"Events":[%s,%s]}' "$event" "$removed" >"$work/$name/b"
    printf '9{"TreeDump":{"epoch":1,"events":[%s],"last_event_id":4,"end_event_id":9}}' "$event" >"$work/$name/c"
    printf '9{"TooNew":{"requested_start":7,"requested_end":null,"newest_available":6}}' >"$work/$name/d"
    printf '9{"TreeDumpFailed":{"last_event_id":7,"message":"no"}}' >"$work/$name/e"
  fi
  if [ "$name" = fuzz_kube ]; then
    pod='{"metadata":{"name":"a","uid":"1","resourceVersion":"7","labels":{"llm-d.ai/role":"both"},"annotations":{"kvroute.io/worker":"tp=2","inference.networking.k8s.io/active-ports":"80,81"}},"status":{"podIP":"10.0.0.1","phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}'
    printf '{"type":"ADDED","object":%s}' "$pod" >"$work/$name/a"
    printf '{"metadata":{"resourceVersion":"7","continue":"x"},"items":[%s]}' "$pod" >"$work/$name/b"
    printf '{"metadata":{"name":"a"},"spec":{"selector":{"matchLabels":{"a":"b"}},"targetPorts":[{"number":80}]},"addressType":"IPv6","endpoints":[{"addresses":["fd00::1"],"conditions":{"ready":true}}]}' >"$work/$name/c"
    printf '{"type":"ERROR","object":{"code":410,"message":"old"}}' >"$work/$name/d"
    printf '80,81' >"$work/$name/e"
  fi
  if [ "$name" = fuzz_record ]; then
    printf '{"timestamp":17,"event":%s}' "$event" >"$work/$name/a"
    printf '%s' "$removed" >"$work/$name/b"
  fi
  if [ "$name" = fuzz_publish ]; then # the wire vectors, each with its length before it
    h=2793cb3ff80000000000009198ab426c6f636b53746f726564910bc0920a0b02c0a3475055c000
    h=${h}3193cb40000000000000009293ac426c6f636b52656d6f766564910ba347505591b0416c6c426c6f636b73436c656172656400
    h=${h}2c93cb3ff00000000000009196ab426c6f636b53746f726564920b0cc094920a0b920b0c920c0d920d0e02c000
    printf "$(echo "$h" | sed 's/../\\x&/g')" >"$work/$name/a"
    # a salted chain that tells its salt once, a copy with other words, a removal
    h=5693cb3ff00000000000009299ab426c6f636b53746f7265649101c092010202c0a3475055c09191b364796e616d6f2d63616368652d73616c743a7898ab426c6f636b53746f72656491020192030402c0a3435055c0006093cb4000
    h=${h}0000000000009299ab426c6f636b53746f7265649101c092010202c0a3475055a46c6f72619192b364796e616d6f2d63616368652d73616c743a7892a861626162616261620093ac426c6f636b52656d6f766564920102a347505500
    printf "$(echo "$h" | sed 's/../\\x&/g')" >"$work/$name/b"
    # a store of a group beside the main one, which gives the rank up, and a removal after it
    h=5693cb3ff00000000000009299ab426c6f636b53746f7265649101c092010202c0a3475055c09191b364796e616d612d6f686363652d73616c743a7898ab426c6f636b53746f72656491020192030402c0a3435055c000
    h=${h}6093cb4000000000000000929bab426c6f636b53746f7265649101c092010202c0a3475055a46c6f72619192b364796e616d6f2d92616368652d73616c000000f7a861626162616261620093ac426c6f636b52656d6f766564920102a363707500
    printf "$(echo "$h" | sed 's/../\\x&/g')" >"$work/$name/c"
  fi
  if [ "$name" = fuzz_openai ]; then
    printf '{"model":"m","messages":[{"role":"user","content":"x"}],"prompt":[1],"usage":{"prompt_tokens":1}}' >"$work/$name/a"
    printf '{"messages":[{"role":"user","content":[{"type":"text","text":"x"},{"type":"image_url","image_url":{"url":"data:;base64,QUJD"},"uuid":"u"}]}],"tools":[1]}' >"$work/$name/b"
    printf '{"data_parallel_rank":3,"routed_dp_rank":null,"block_mm_infos":[null,{"mm_objects":[{"mm_hash":7,"offsets":[[0,1]]}]}]}' >"$work/$name/c"
  fi
  [ "$name" = fuzz_dump ] && printf '8{"m:g":{"block_size":4,"events":[{"worker_id":1,"storage_tier":"disk","event":{"event_id":0,"dp_rank":2,"data":{"stored":{"parent_hash":null,"start_position":null,"blocks":[{"block_hash":1,"tokens_hash":2,"mm_extra_info":null}]}}}}],"views":[{"worker_id":1,"dp_rank":0,"trusted":true,"next_sequence":3,"last_hash":4,"last_ts":1.5}]}}' >"$work/$name/a"
  if [ "$name" = fuzz_snapshot ]; then # a partition, a source, an event of one block, the end; checksums are made right by the target
    h=01$(printf KVRSNAP | od -An -tx1 | tr -d ' \n')000100000000000000
    h=${h}01000000000000000a00000000000000040000000100010061620000000000000000
    h=${h}0200000000000000280000000000000001000000000000000000000001000000030000000000000007000000000000000000000000000000
    h=${h}0000000000000000
    h=${h}030000000000000030000000000000000100000000000000000000000000000000000000000000000100000000000000090000000000000008000000000000000000000000000000
    h=${h}0400000000000000080000000000000001000000000000000000000000000000
    printf "$(echo "$h" | sed 's/../\\x&/g')" >"$work/$name/a"
  fi
  if [ "$name" = fuzz_windows ]; then # a chain, a window of two, a removal; a batch of the main group, one of a window's
    printf '\1\0\0\11\4\0\47\2\4\0' >"$work/$name/a"
    h=002793cb3ff80000000000009198ab426c6f636b53746f726564910bc0920a0b02c0a3475055c000
    printf "$(echo "$h" | sed 's/../\\x&/g')" >"$work/$name/b"
  fi
  [ "$name" = fuzz_view_file ] && printf '\0\60\0\120\0\0\1\0\0\1\7\3\5\0\2\1\0\1\2\1\4' >"$work/$name/a"
  [ "$name" = fuzz_view_file ] && printf '\1\140\0\177\0\4abcd\3xyz\0\2qq' >"$work/$name/b"
  if [ "$name" = fuzz_policy ]; then
    printf 'default_policy_family: std\nuncached_isl_buckets: [{min_tokens: 0, bucket: s}, {min_tokens: 9, bucket: l}]\npolicy_classes:\n- {name: a, policy_family: std, cache_bucket: s, queue_policy: wspt, quantum: 2, prefill_busy_threshold: 5, busy_worker_ratio: 0.9}\n- {name: b, policy_family: std, cache_bucket: l, request_queue_limit_per_worker: 1, queue_ageing_secs: 3}\nmodels:\n  m: {default_policy_family: c, policy_classes: [{name: c}]}\n' >"$work/$name/a"
  fi
  if [ "$name" = fuzz_models_file ]; then
    printf 'models:\n  chat: {alias_of: m}\n  m:\n    targets: [{model: m, weight: 95}, {model: n, weight: 5}]\n    fallback: [o, p]\n  n: {alias_of: q}\n' >"$work/$name/a"
  fi
  if [ "$name" = fuzz_options ]; then
    printf 'port: 1\nno-kv-events: true\nworker:\n- {url: "http://h:1", model: "a,b", taint: [x, y]}\n- http://h:2,k=\\,v\ntokenizer-dir: {m: /x}\ndiscovery-worker: {tp: 2}\nuse-remote-indexer: [http://h:1, http://h:2]\n' >"$work/$name/a"
  fi
  if [ "$name" = fuzz_ext_proc ]; then
    while read -r vector h; do printf "\\3$(echo "$h" | sed 's/../\\x&/g')" >"$work/$name/$vector"; done <tests/vectors/ext_proc/messages.txt
  fi
  if [ "$name" = fuzz_sync ]; then
    for h in 9d0000a16da16704a17801 9d0000a16da16704a1780100c41001000000000000000200000000000000000a05c002 930101a178 950201a17808cb3fe0000000000000 930301a178 93040105 950500a1730702; do
      printf "$(echo "$h" | sed 's/../\\x&/g')" >"$work/$name/$h"
    done
  fi
  if [ "$name" = fuzz_plane ]; then # an event, two, one alone, a beat
    for h in 87a776657273696f6e01a56265617473c3ac7075626c69736865725f696409a873657175656e636501ac7075626c69736865645f6174cf0000018bcfe56800a5746f706963a96b762d6576656e7473a77061796c6f6164c4ae84a9776f726b65725f696401ac73746f726167655f74696572a6646576696365b07265736964656e63795f646f6d61696ea6776f726b6572a56576656e7483a86576656e745f696403a46461746181a673746f72656483ab706172656e745f6861736805ae73746172745f706f736974696f6ec0a6626c6f636b739183aa626c6f636b5f6861736801ab746f6b656e735f6861736802ad6d6d5f65787472615f696e666fc0a764705f72616e6b00 86a776657273696f6e01ac7075626c69736865725f696409a873657175656e636501ac7075626c69736865645f6174cf0000018bcfe56800a5746f706963a96b762d6576656e7473a77061796c6f6164c4f49284a9776f726b65725f696401ac73746f726167655f74696572a6646576696365b07265736964656e63795f646f6d61696ea6776f726b6572a56576656e7483a86576656e745f696403a46461746181a673746f72656483ab706172656e745f6861736805ae73746172745f706f736974696f6ec0a6626c6f636b739183aa626c6f636b5f6861736801ab746f6b656e735f6861736802ad6d6d5f65787472615f696e666fc0a764705f72616e6b0082a9776f726b65725f696401a56576656e7483a86576656e745f696404a46461746181a772656d6f76656481ac626c6f636b5f686173686573920102a764705f72616e6b00 82a9776f726b65725f696401a56576656e7483a86576656e745f696404a46461746181a772656d6f76656481ac626c6f636b5f686173686573920102a764705f72616e6b00 86a776657273696f6e01ac7075626c69736865725f696409a873657175656e636501ac7075626c69736865645f6174cf0000018bcfe56800a5746f706963a86b762d6265617473a77061796c6f6164c42483a9776f726b65725f696401a764705f72616e6b00ad6c6173745f6576656e745f696404; do
      printf "$(echo "$h" | sed 's/../\\x&/g')" >"$work/$name/${#h}"
    done
  fi
  if [ "$name" = fuzz_plane_snapshot ]; then # a store, a cursor
    printf "$(echo "970001000005c0c4200101010101010101010101010101010101010101010101010101010101010101970101000709cb3ff8000000000000c3" | sed 's/../\\x&/g')" >"$work/$name/a"
  fi
  if [ "$name" = fuzz_service ]; then
    printf '{"TieredScores":{"device":{"scores":[[{"worker_id":1,"dp_rank":0},4]],"frequencies":[]},"lower_tier":[["disk",{"hits":[[{"worker_id":1},2],[{"worker_id":2},1]]}]]},"instance":5}' >"$work/$name/a"
    printf '{"instance":5,"mode":"predicted","ready":true,"why":"","registers":true}' >"$work/$name/b"
    printf '{"model_name":"m","block_hashes":[1,18446744073709551615],"device_only":true}' >"$work/$name/c"
    printf '{"model_name":"m","worker":{"worker_id":1,"dp_rank":2},"local_hashes":[1,2],"sequence_hashes":[3,4]}' >"$work/$name/d"
    printf '\203\252model_name\241m\254block_hashes\304\0101234abcd\253device_only\303' >"$work/$name/e"
    printf '\204\252model_name\241m\246worker\202\251worker_id\001\247dp_rank\002\254local_hashes\304\0101234abcd\257sequence_hashes\304\0101234abcd' >"$work/$name/f"
  fi
  if [ "$name" = fuzz_http_server ]; then # a length, chunks with trailers, pipelined, absolute, expectation, HEAD, junk between, strangers
    printf '1POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabcGET /c?q=1 HTTP/1.1\r\nHost: x\r\n\r\n' >"$work/$name/a"
    printf '2POST /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3;e\r\nabc\r\n0\r\nX: y\r\n\r\nHEAD / HTTP/1.0\r\n\r\n' >"$work/$name/b"
    printf '3GET http://x/a?b HTTP/1.1\r\nHost: x\r\nConnection: close, a\r\nA: b\r\n\r\n' >"$work/$name/c"
    printf '4PUT /a HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\nx\r\n\r\nOPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n' >"$work/$name/d"
    printf '5POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n3 x\r\nabcXX0\r\n\r\n' >"$work/$name/e"
    printf '6POST /s HTTP/1.1\r\nHost: x\r\nContent-Length: 60\r\nExpect: 100-continue\r\n\r\nGET /a HTTP/1.1\r\nHost: x\r\n\r\n' >"$work/$name/f"
    printf '7GET /s HTTP/1.1\r\nHost: x\r\n\r\nPOST /s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n' >"$work/$name/g"
  fi
  if [ "$name" = fuzz_http_client ]; then # a length, chunks with trailers, until the end, interim answers, HEAD, too much
    printf '\006HTTP/1.1 200 OK\r\nContent-Length: 3\r\nX: y\r\n\r\nabc' >"$work/$name/a"
    printf '\012HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;e\r\nabc\r\n0\r\nX: y\r\n\r\n' >"$work/$name/b"
    printf '\020HTTP/1.1 503 No\r\n\r\nabc' >"$work/$name/c"
    printf '\026HTTP/1.1 100 Go\r\n\r\nHTTP/1.1 103 Hint\r\nLink: x\r\n\r\nHTTP/1.0 204 OK\r\nConnection: keep-alive\r\n\r\n' >"$work/$name/d"
    printf '\007HTTP/1.1 200 OK\r\nContent-Length: 30\r\nConnection: a, b\r\n\r\n' >"$work/$name/e"
    printf '\006HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwrong' >"$work/$name/f"
    printf '\006HTTP/1.1 100 OK\r\nContent-Length: 5\r\n\r\nabc' >"$work/$name/g"
    printf '\002\r\n\r\nHTTP/1.1 200 OK\r\n: x\r\nContent-Length: 3\r\n\r\nabc' >"$work/$name/h"
  fi
  [ "$name" = fuzz_endpoint ] && printf 'http://h:1/p' >"$work/$name/a"
done
echo "$(ls "$work" | wc -l) targets, $seconds s each, $(nproc) at a time"
# One target; what it has found stands in files of its own.
run_one() {
  local name=$1 found=$work/$1.found
  mkdir -p "$found"
  build/fuzz/fuzzers/"$name" -seed="${FUZZ_SEED:-0}" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -verbosity=0 -print_final_stats=0 -artifact_prefix="$found/" \
    "$work/$name" 2>"$found/log" && return
  cat "$found/log"
  echo "$name: a finding; input in hex:"
  od -An -v -tx1 "$found"/crash-* "$found"/leak-* "$found"/timeout-* "$found"/oom-* 2>/dev/null | tr -d ' \n'
  return 1
}
export -f run_one
export work seconds
ls "$work" | xargs -P "$(nproc)" -I{} bash -c 'run_one {}'
if [ "${FUZZ_TOKENIZER:-yes}" = no ]; then
  echo "the fuzz targets of the tokenizer are left out (FUZZ_TOKENIZER=no): their library takes minutes to build"
elif [ ! -e build/tokenizer/libkvr_tokenizer.so ]; then
  echo "the tokenizer is not built (make tokenizer): its fuzz targets are left out"
elif ! scripts/fuzz_tokenizer.sh --check; then
  echo "the fuzz targets of the tokenizer cannot be built here: they are left out"
else
  scripts/fuzz_tokenizer.sh "$seconds"
fi
echo "no findings"
