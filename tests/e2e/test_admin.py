# SPDX-License-Identifier: Apache-2.0
"""The admin port: workers at run time, loads, questions, metrics, the page, hostile input; and the replayer."""
import json
import os
import subprocess
import threading
import time

import pytest

from conftest import BINARY, SLOW, Mock, Serve, call, free_ports, local_hashes, read_sse, wait_for
from test_proxy import TEXT, raw


def worker(m, i, **more):
    return {"worker_id": i, "endpoint": f"http://127.0.0.1:{m.port}", "kv_events_endpoints": {"0": f"tcp://127.0.0.1:{m.events}"},
            "replay_endpoint": f"tcp://127.0.0.1:{m.replay}", "block_size": 16, **more}


def test_workers_come_and_go(start):
    a, b = start(Mock), start(Mock)
    s = start(Serve, [a])
    assert s.post("/workers", worker(b, 7, model_name="mock")).status == 201
    ws = s.get("/workers")
    assert [w["worker_id"] for w in ws] == [1, 7]
    assert {"worker_id", "model_name", "endpoint", "block_size", "data_parallel_start_rank", "data_parallel_size"} <= set(ws[1])
    wait_for("view", lambda: s.view(7).get("trusted"))
    assert s.complete("x", headers={"x-kvroute-worker": "7"}).status == 200
    assert s.post("/workers", worker(b, 7, data_parallel_size=1)).status == 201  # upsert
    assert call(s.admin, "PATCH", "/workers/7", {"total_kv_blocks": 99}).status == 200
    assert s.get("/workers")[1]["total_kv_blocks"] == 99
    assert call(s.admin, "DELETE", "/workers/7").status == 200
    assert call(s.admin, "DELETE", "/workers/7").status == 404
    assert call(s.admin, "PATCH", "/workers/7", {}).status == 404
    assert [w["worker_id"] for w in s.get("/workers")] == [1]
    assert not [w for w, _ in s.views() if w == 7]


def test_removed_worker_leaves_no_entries(fleet):
    s, mocks = fleet
    for w in ("1", "2"):
        s.complete(TEXT, headers={"x-kvroute-worker": w})
    wait_for("blocks", lambda: s.view(1)["blocks"] and s.view(2)["blocks"])
    call(s.admin, "DELETE", "/workers/1")
    wait_for("gone", lambda: s.metric("index_blocks") == s.view(2)["blocks"])
    assert s.post("/workers", worker(mocks[0], 1)).status == 201
    wait_for("restored", lambda: s.view(1).get("trusted") and s.view(1)["blocks"] > 0)


@pytest.mark.parametrize("body", [
    b"", b"{", b"[]", b"{}", b'{"worker_id": -1}', b'{"worker_id": 5}', b'{"worker_id": 5, "endpoint": "ftp://x"}',
    b'{"worker_id": 5, "endpoint": "http://x", "block_size": 0}', b'{"worker_id": 5, "endpoint": "http://x", "data_parallel_size": 0}',
    b'{"worker_id": 5, "endpoint": "http://x", "kv_events_endpoints": {"3": "tcp://a:1"}}',
    b'{"worker_id": 5, "endpoint": "http://x", "kv_events_endpoints": {"0": "nonsense"}}',
    b'{"worker_id": 5, "endpoint": 7}', b'{"worker_id": 5, "endpoint": "http://x", "role": "boss"}',
    b'{"worker_id": 5, "endpoint": "http://a b"}',
])
def test_bad_worker_objects(same_fleet, body):
    s, _ = same_fleet
    r = call(s.admin, "POST", "/workers", body)
    assert 400 <= r.status < 500 and r.json()["error"]
    assert len(s.get("/workers")) == 2


def test_block_size_must_agree_within_a_model(same_fleet):
    s, mocks = same_fleet
    r = s.post("/workers", worker(mocks[0], 9, block_size=32, force=True))
    assert r.status == 409 and "block_size" in r.json()["error"]


@pytest.mark.parametrize("path", ["/overlap_scores", "/potential_loads", "/query", "/query_by_hash"])
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"token_ids": "x"}', b'{"token_ids": [-1]}', b'{"token_ids": [1.5]}',
                                  b'{"block_hashes": ["a"]}', b'{"token_ids": [1], "model_name": 5}'])
def test_bad_questions(same_fleet, path, body):
    s, _ = same_fleet
    r = call(s.admin, "POST", path, body)
    assert 400 <= r.status < 500 and r.json()["error"]


def test_overlap_scores_and_queries(fleet):
    s, _ = fleet
    tokens = list(range(5000, 5080))
    s.complete(tokens, headers={"x-kvroute-worker": "2"})
    wait_for("blocks", lambda: s.overlap(tokens)[(2, 0)] == 5)
    r = s.post("/overlap_scores", {"token_ids": tokens + [1] * 30, "model_name": "mock"}).json()
    assert r["block_size"] == 16 and r["num_blocks"] == 6
    assert r["workers"][0] == {"worker_id": 1, "dp_rank": 0, "device_blocks": 0, "host_pinned_blocks": 0, "disk_blocks": 0,
                               "host_pinned_extension_blocks": 0, "disk_extension_blocks": 0, "router_credit_blocks": 0}
    assert r["workers"][1]["device_blocks"] == r["workers"][1]["disk_blocks"] == 5
    h = local_hashes(tokens, 16)
    signed = [x - 2 ** 64 if x >= 2 ** 63 else x for x in h]
    by_hash = s.post("/overlap_scores", {"block_hashes": signed, "sequence_hashes": signed, "isl_tokens": 80}).json()
    assert by_hash["workers"][1]["device_blocks"] == 5
    q = s.post("/query", {"token_ids": tokens, "model_name": "mock"}).json()
    assert q["scores"] == {"2": {"0": 80}} and q["frequencies"] == [1] * 5
    assert q["instances"] == {"2": {"longest_matched": 80, "gpu": 80, "dp": {"0": 80}, "cpu": 80, "disk": 80}}
    assert s.post("/query_by_hash", {"block_hashes": signed, "model_name": "mock"}).json() == q
    assert s.post("/query_by_hash", {"block_hashes": signed, "cache_salt": ""}).status == 400
    assert s.post("/query", {"token_ids": tokens, "model_name": "nobody"}).status == 404
    assert s.post("/overlap_scores", {"block_hashes": signed, "sequence_hashes": signed[:2]}).status == 400


def test_loads_and_potential_loads(start):
    m = start(Mock, speedup=0.5)
    s = start(Serve, [m])
    tokens = list(range(6000, 6100))
    c, r = read_sse(s.port, {"prompt": tokens, "max_tokens": 5000, "stream": True})
    r.read1(10)
    wait_for("prefill done", lambda: s.get("/loads")[0]["active_prefill_tokens"] == 0)
    l = s.get("/loads")[0]
    assert {"model_name", "routing_group", "worker_id", "dp_rank", "active_prefill_tokens", "active_decode_blocks"} <= set(l)
    assert l["active_decode_blocks"] == 6
    wait_for("events", lambda: s.overlap(tokens)[(1, 0)] == 6)
    p = s.post("/potential_loads", {"token_ids": tokens[:96] + [1] * 64}).json()[0]
    assert (p["potential_prefill_tokens"], p["potential_decode_blocks"], p["active_requests"]) == (64, 10, 1)
    c.sock.close()
    c.close()


def test_metrics_have_the_promised_names(fleet):
    s, _ = fleet
    s.complete(TEXT, stream=True, stream_options={"include_usage": True})
    text = call(s.admin, "GET", "/metrics").body.decode()
    for name in ("requests_total", "retries_total", "time_to_first_token_seconds_bucket", "worker_active_prefill_tokens", "worker_active_decode_blocks",
                 "predicted_cached_tokens_total", "actual_cached_tokens_total", "view_trusted", "router_overhead_block_hashing_ms_bucket",
                 "router_overhead_indexer_find_matches_ms_bucket", "router_overhead_seq_hashing_ms_bucket", "router_overhead_scheduling_ms_bucket",
                 "router_overhead_total_ms_bucket", "kv_hit_rate_bucket", "inter_token_latency_seconds_bucket", "input_sequence_tokens_bucket",
                 "kv_gaps_total", "kv_replays_total", "events_applied_total", "worker_registered"):
        assert f"kvroute_{name}" in text, name
    seen = set()
    for line in text.splitlines():
        if line.startswith("#"):
            kind, name = line.split()[1:3]
            assert (kind, name) not in seen, line
            seen.add((kind, name))
        else:
            float(line.split()[-1])


def test_status(fleet):
    s, _ = fleet
    s.complete(TEXT)
    st = wait_for("decision", lambda: s.get("/status")["decisions"] and s.get("/status"))
    assert st["decisions"][0]["reason"] in ("kv", "load") and len(st["loads"]) == 2
    assert len(s.get("/decisions")) == 1


def test_router_mode_can_be_changed(fleet):
    s, _ = fleet
    assert s.post("/router_mode", {"router_mode": "round-robin"}).status == 200
    assert [s.complete("x").headers["x-kvroute-reason"] for _ in range(2)] == ["round-robin"] * 2
    assert s.post("/router_mode", {"router_mode": "magic"}).status == 400


@pytest.mark.parametrize("method,path,status", [("GET", "/nope", 404), ("PUT", "/workers", 405), ("GET", "/overlap_scores", 405),
                                                ("GET", "/workers/1", 405), ("DELETE", "/workers/abc", 404)])
def test_admin_errors(same_fleet, method, path, status):
    s, _ = same_fleet
    r = call(s.admin, method, path)
    assert r.status == status and r.json()["error"]


# ---- hostile clients ------------------------------------------------------------------------------------

def test_hostile_clients_leave_it_alive_and_flat(start):
    s = start(Serve, [start(Mock)], "--max-body-size", "1MiB")
    s.complete("warm up")
    before = s.rss_kb()

    def big():
        try:
            c = call(s.port, "POST", "/v1/completions", b"x" * (100 << 20))
            assert c.status == 413
        except OSError:
            pass

    def half():
        for n in range(0, 60, 7):
            raw(s.port, b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n"[:n], 0.05)

    def nested():
        for b in (b"[" * 100000, b'{"a":' * 50000, b'{"prompt":[' + b"1," * 100000, b"\0" * 1000):
            assert call(s.port, "POST", "/v1/completions", b).status == 400
    threads = [threading.Thread(target=f) for f in (big, half, nested, half, big)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert s.complete("alive").status == 200
    assert s.rss_kb() - before < 80000  # quarantine of the address sanitizer included
    wait_for("idle", s.idle)


def test_slow_loris_is_cut_off(start):
    """10 s after its first byte, whether more bytes come or not, with 408; on both ports."""
    import socket
    s = start(Serve, [start(Mock)])
    began = time.monotonic()
    socks = [socket.create_connection(("127.0.0.1", port)) for port in [s.port] * 50 + [s.admin] * 5]
    for c in socks:
        c.sendall(b"GET /health HTTP/1.1\r\nHost:")
        c.setblocking(False)
    assert s.complete("x").status == 200
    answers = {c: b"" for c in socks}

    def all_closed():
        for i, c in enumerate(socks):
            try:
                if i % 2 and b"\r\n\r\n" not in answers[c]:
                    c.send(b"x")
                answers[c] += c.recv(1000)
            except (BlockingIOError, ConnectionError, BrokenPipeError):
                pass
        return all(b"\r\n\r\n" in a for a in answers.values())
    wait_for("cut off", all_closed, 20)
    assert all(a.startswith(b"HTTP/1.1 408 ") for a in answers.values()) and time.monotonic() - began > 9
    for c in socks:
        c.close()


# ---- replay ---------------------------------------------------------------------------------------------

def replay(*args):
    r = subprocess.run([BINARY, "replay", "--no-progress", *map(str, args)], capture_output=True, text=True, timeout=240)
    assert "Sanitizer" not in r.stderr, r.stderr
    return r


def write_trace(path, rows):
    with open(path, "w") as f:
        for i in range(rows):
            ids = [0, 1 + i % 3, 100 + i]
            f.write(json.dumps({"timestamp": i * 20, "input_length": 512 * 2 + 100, "output_length": 3, "hash_ids": ids}) + "\n")


def test_replay_of_a_trace(fleet, tmp_path):
    s, mocks = fleet
    write_trace(tmp_path / "t.jsonl", 40)
    r = replay("--trace", tmp_path / "t.jsonl", "--url", f"http://127.0.0.1:{s.port}", "--json", tmp_path / "out.json", "--limit", 30)
    assert r.returncode == 0, r.stdout + r.stderr
    out = json.loads((tmp_path / "out.json").read_text())[0]
    assert out["successes"] == 30 and out["errors"] == 0 and sum(out["workers"].values()) == 30
    hits = sum(m.metric("vllm:prefix_cache_hits_total") for m in mocks)
    queries = sum(m.metric("vllm:prefix_cache_queries_total") for m in mocks)
    assert abs(out["cached_token_ratio_pct"] - 100 * hits / queries) < 2 and hits > 0
    assert "TTFT p50" in r.stdout


def test_replay_compare(start, tmp_path):
    s = start(Serve, [start(Mock, speedup=0.3) for _ in range(2)])  # what is computed again takes longer than anything that happens beside it
    r = replay("--url", f"http://127.0.0.1:{s.port}", "--admin-url", f"http://127.0.0.1:{s.admin}", "--compare", "round-robin,kv", "--sessions", 7,
               "--concurrency", 1, "--turns", 4, "--system-tokens", 256, "--turn-tokens", 64, "--output-tokens", 4, "--json", tmp_path / "c.json")
    assert r.returncode == 0, r.stdout + r.stderr
    # An odd number of conversations one after the other: round-robin alternates each of them between the two workers.
    rr, kv = json.loads((tmp_path / "c.json").read_text())
    assert rr["successes"] == kv["successes"] == 28 and kv["cached_token_ratio_pct"] > rr["cached_token_ratio_pct"]


def test_replay_closed_loop_and_failures(start, tmp_path):
    m = start(Mock, "--num-gpu-blocks", "8")
    r = replay("--url", f"http://127.0.0.1:{m.port}", "--concurrency", 4, "--sessions", 4, "--turns", 1, "--system-tokens", 512)
    assert r.returncode == 1 and "first failure" in r.stdout
    assert replay("--trace", tmp_path / "none.jsonl").returncode == 2
    assert replay("--url", "nonsense").returncode == 2
    assert replay("--compare", "kv", "--admin-url", f"http://127.0.0.1:{free_ports()}").returncode == 2


TRACE = os.path.join(os.path.dirname(__file__), "../../../shared/traces/conversation_trace.jsonl")


@pytest.mark.skipif(not os.path.exists(TRACE), reason="the public trace is not here")
def test_public_trace(start, tmp_path):
    mocks = [start(Mock, speedup=50) for _ in range(4)]
    s = start(Serve, mocks)
    r = replay("--trace", TRACE, "--limit", 60, "--url", f"http://127.0.0.1:{s.port}", "--speedup", 5, "--max-output", 4, "--json", tmp_path / "o.json")
    assert r.returncode == 0, r.stdout + r.stderr
    out = json.loads((tmp_path / "o.json").read_text())[0]
    hits = sum(m.metric("vllm:prefix_cache_hits_total") for m in mocks)
    queries = sum(m.metric("vllm:prefix_cache_queries_total") for m in mocks)
    assert out["successes"] == 60 and abs(out["cached_token_ratio_pct"] - 100 * hits / queries) < 2
    wait_for("idle", s.idle)
