# SPDX-License-Identifier: Apache-2.0
"""What the router is for, system by system, tried from the outside: each test is one sentence of what it promises, seen through sockets and files
only. What needs the Python package is in tests/python/test_mission.py. (Units of routing, a router without workers, approximate
mode, publisher, metrics.)"""
import json
import threading

import pytest
import zmq

from conftest import Mock, Publish, ScriptedServer, Serve, call, free_ports, local_hashes, wait_for
from test_proxy import Upstream

PROMPT = "one prompt that fills a number of blocks, so that a rank can be told by what it holds. " * 4
BLOCKS = len(PROMPT) // 16
RANKS = ((1, 0), (1, 1), (2, 0), (2, 1))
JSON = {"Content-Type": "application/json"}


# ---- the unit of routing is the pair (worker, rank), everywhere ------------------------------------------------------------


@pytest.fixture
def pairs(start, tmp_path):
    """Two engines with two ranks each, and a prompt that (2, 1) alone has computed."""
    mocks = [start(Mock, dp=2) for _ in range(2)]
    s = start(Serve, mocks, "--record-events", tmp_path / "events.jsonl")
    wait_for("views", lambda: set(s.views()) == set(RANKS) and all(v["trusted"] for v in s.views().values()))
    r = s.complete(PROMPT, headers={"x-kvroute-worker": "2", "x-kvroute-dp-rank": "1"})
    assert (r.status, r.headers["x-kvroute-worker"], r.headers["x-kvroute-dp-rank"]) == (200, "2", "1")
    wait_for("its blocks", lambda: s.view(2, 1)["blocks"] >= BLOCKS)
    return s, mocks, tmp_path / "events.jsonl"


def test_the_index_knows_pairs(pairs):
    s, _, _ = pairs
    assert {p: n for p, n in s.overlap(list(PROMPT.encode())).items() if n} == {(2, 1): BLOCKS}
    assert [s.view(*p)["blocks"] > 0 for p in RANKS] == [False, False, False, True]


def test_cost_and_choice_are_of_pairs(pairs):
    s, _, _ = pairs
    r = s.complete(PROMPT, headers={"x-kvroute-explain": "1"})
    assert (r.headers["x-kvroute-worker"], r.headers["x-kvroute-dp-rank"], r.headers["x-kvroute-reason"]) == ("2", "1", "kv")
    question = f"/decisions?id={r.headers['x-request-id']}"
    table = wait_for("its decision", lambda: call(s.admin, "GET", question).status == 200 and s.get(question))
    rows = {(c["worker_id"], c["dp_rank"]): c for c in table["candidates"]}
    assert set(rows) == set(RANKS)
    assert min(rows, key=lambda p: rows[p]["cost"]) == (2, 1)


def test_load_is_of_pairs(start):
    m = start(Mock, dp=2, speedup=1)
    s = start(Serve, [m])
    chosen = call(s.admin, "POST", "/select_and_reserve", {"model_name": "mock", "token_ids": list(range(64)), "selection_id": "a"}, JSON)
    assert chosen.status == 200, chosen.body
    rank = chosen.json()["dp_rank"]
    loads = {l["dp_rank"]: l["active_prefill_tokens"] for l in s.get("/loads")}
    assert loads[rank] == 64 and loads[1 - rank] == 0
    other = call(s.admin, "POST", "/select_and_reserve", {"model_name": "mock", "token_ids": list(range(500, 564)), "selection_id": "b"}, JSON)
    assert other.json()["dp_rank"] == 1 - rank


def test_metrics_are_of_pairs(pairs):
    s, _, _ = pairs
    for name in ("view_trusted", "worker_active_prefill_tokens", "worker_active_decode_blocks", "kv_events_total", "kv_gaps_total"):
        text = call(s.admin, "GET", "/metrics").body.decode()
        for worker, rank in RANKS:
            assert f'kvroute_{name}{{worker_id="{worker}",dp_rank="{rank}"' in text, name
    assert s.metric("kv_events_total", worker_id="2", dp_rank="1") >= 1 and s.metric("kv_events_total", worker_id="2", dp_rank="0") == 0


def test_events_recorder_and_wire_carry_pairs(pairs):
    s, _, path = pairs
    held = {(e["worker_id"], e["event"]["dp_rank"]) for p in call(s.admin, "GET", "/dump").json().values() for e in p["events"]}
    assert held == {(2, 1)}
    wait_for("the recording", lambda: path.exists() and any("stored" in l for l in path.read_text().splitlines(True) if l.endswith("\n")))
    lines = [json.loads(l)["event"] for l in path.read_text().splitlines(True) if l.endswith("\n")]
    assert {(l["worker_id"], l["event"]["dp_rank"]) for l in lines if "stored" in l["event"]["data"]} == {(2, 1)}


@pytest.mark.parametrize("path, body", [("/v1/completions", {"prompt": "x"}), ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
                                        ("/v1/embeddings", {"input": "x"}), ("/v1/responses", {"input": "x"}), ("/v1/messages", {"messages": []})])
def test_the_chosen_rank_reaches_the_engine(start, path, body):
    u = Upstream()
    try:
        s = start(Serve, [u.spec() + ",dp-size=4"], "--no-router-kv-events")
        r = call(s.port, "POST", path, {"model": "m", **body}, {"x-kvroute-worker": "1", "x-kvroute-dp-rank": "3", **JSON})
        assert (r.status, r.headers["x-kvroute-dp-rank"]) == (200, "3")
        head = next(h for h, b in u.requests if h.startswith(b"POST " + path.encode() + b" "))
        assert b"\r\nx-data-parallel-rank: 3" in head.lower()
    finally:
        u.close()


def test_a_worker_that_does_not_say_has_rank_0(start):
    m = start(Mock)
    s = start(Serve, [m])
    assert list(s.views()) == [(1, 0)] and [l["dp_rank"] for l in s.get("/loads")] == [0]
    assert s.complete("x").headers["x-kvroute-dp-rank"] == "0"


# ---- approximate mode: no events ------------------------------------------------------------------------------------------


def test_without_events_the_index_learns_from_decisions_only(start):
    """No subscription, no question to a recover endpoint, no gap detection, even where the worker names its sockets."""
    recover = ScriptedServer(lambda q: {"Error": "nobody should ask"}, path="/kv_recover")
    mocks = [start(Mock) for _ in range(2)]
    try:
        s = start(Serve, [m.spec(f",recover={recover.url}") for m in mocks], "--no-router-kv-events", "--tokenizer", "bytes")
        first = s.complete(PROMPT)
        assert first.headers["x-kvroute-reason"] == "load"
        again = s.complete(PROMPT)
        assert (again.headers["x-kvroute-reason"], again.headers["x-kvroute-worker"]) == ("kv", first.headers["x-kvroute-worker"])
        assert int(again.headers["x-kvroute-overlap-blocks"]) == BLOCKS
        # What an engine computes for others is not learnt: nobody listens.
        other = mocks[1 if first.headers["x-kvroute-worker"] == "1" else 0]
        assert call(other.port, "POST", "/v1/completions", {"prompt": "z" * 400, "max_tokens": 1}).status == 200
        assert s.complete("z" * 400).headers["x-kvroute-reason"] == "load"
        assert recover.asked == [] and s.views() == {}
        assert s.metric("kv_gaps_total") == 0 and s.metric("events_applied_total") == 0
    finally:
        recover.close()


def test_predicted_blocks_expire_and_are_pruned(start):
    m = start(Mock, with_events=False)
    s = start(Serve, [m], "--no-router-kv-events", "--tokenizer", "bytes", "--router-ttl-secs", 2)
    s.complete(PROMPT)
    assert s.metric("index_blocks") == BLOCKS
    wait_for("expiry", lambda: s.metric("index_blocks") == 0, 10)
    assert s.metric("index_expired_total") >= BLOCKS
    small = start(Serve, [m], "--no-router-kv-events", "--tokenizer", "bytes", "--router-max-tree-size", 50, "--router-prune-target-ratio", 0.5)
    for i in range(12):
        small.complete(f"{i} is a conversation of its own " * 6)
    wait_for("pruned", lambda: small.metric("index_pruned_total") > 0 and small.metric("index_blocks") <= 50)


# ---- the publisher -----------------------------------------------------------------------------------------------------------


def test_publisher_ids_are_monotonic_for_each_rank_and_its_index_is_the_engines(start, zctx):
    m = start(Mock, dp=2)
    p = start(Publish, m, dp=2, block_size=16)
    wait_for("whole", lambda: all(p.status(r)["trust"] == "trusted" for r in range(2)))
    s = zctx.socket(zmq.SUB)
    s.linger = 0
    s.subscribe(b"")
    for r in range(2):
        s.connect(f"tcp://127.0.0.1:{p.out + r}")
    for i in range(6):
        for rank in range(2):
            r = call(m.port, "POST", "/v1/completions", {"prompt": f"{i} {rank} {PROMPT}", "max_tokens": 1}, {"X-data-parallel-rank": str(rank), **JSON})
            assert r.status == 200
    wait_for("events", lambda: all(p.status(r)["newest_id"] >= 7 for r in range(2)))
    for rank in range(2):
        events = p.recover(start=1, dp_rank=rank)[1]["Events"]["events"]
        ids = [e["event"]["event_id"] for e in events]
        assert ids == list(range(1, len(ids) + 1)) and {e["event"]["dp_rank"] for e in events} == {rank}
        tree = p.recover(dp_rank=rank)[1]["TreeDump"]  # the local index
        held = {b["tokens_hash"] for e in tree["events"] for b in e["event"]["data"]["stored"]["blocks"]}
        for i in range(6):
            assert set(local_hashes(list(f"{i} {rank} {PROMPT}".encode()), 16)) <= held
        assert p.status(rank)["blocks"] == sum(len(e["event"]["data"]["stored"]["blocks"]) for e in tree["events"])
    s.close()


def test_publisher_feeds_a_router_and_answers_its_questions(start):
    m = start(Mock)
    p = start(Publish, m)
    assert call(m.port, "POST", "/v1/completions", {"prompt": PROMPT, "max_tokens": 1}, JSON).status == 200
    wait_for("known to the sidecar", lambda: p.status()["blocks"] >= BLOCKS)
    s = start(Serve, [f"http://127.0.0.1:{m.port}{p.source()}"])  # it comes late: what was before it must ask for
    wait_for("all of it", lambda: s.view().get("trusted") and s.view()["blocks"] == p.status()["blocks"])
    assert s.complete(PROMPT).headers["x-kvroute-reason"] == "kv"


# ---- metrics --------------------------------------------------------------------------------------------------------------------


def samples(port):
    out = {}
    for line in call(port, "GET", "/metrics").body.decode().splitlines():
        if line and not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            out.setdefault(name.split("{")[0], []).append(float(value))
    return {k: sum(v) for k, v in out.items()}


def test_metrics_of_every_family_move(start, engine):
    """Overhead for each stage, hit rates, load of each worker, requests, events applied and failed, gaps, recoveries."""
    m, e = start(Mock), engine()
    s = start(Serve, [m, f"http://127.0.0.1:{free_ports()},events=tcp://127.0.0.1:{e.events},replay=tcp://127.0.0.1:{e.replay_port},block-size=16"], ready=False)
    e.until("a view that follows", lambda: e.cleared() or s.metric("kv_batches_total", worker_id="2") > 3)
    before = samples(s.admin)
    for _ in range(2):
        assert s.complete(PROMPT).status == 200
        wait_for("events", lambda: s.view(1)["blocks"] >= BLOCKS)
    for i in range(100):  # one is lost on the way: a gap, and a recovery, unless a replay that was under way has brought it
        e.stored([2 * i + 1], [i] * 16, block_size=16, drop=True)
        e.stored([2 * i + 2], [i + 1000] * 16, block_size=16)
        e.until("recovered", lambda: s.view(2)["blocks"] == 2 * i + 2)
        if s.metric("kv_gaps_total"):
            break
    after = samples(s.admin)
    grew = {k for k in after if after[k] > before.get(k, 0)}
    for name in ("router_overhead_block_hashing_ms_count", "router_overhead_indexer_find_matches_ms_count", "router_overhead_seq_hashing_ms_count",
                 "router_overhead_scheduling_ms_count", "router_overhead_total_ms_count", "kv_hit_rate_count", "kv_hit_rate_sum", "requests_total",
                 "events_applied_total", "kv_gaps_total", "kv_replays_total", "predicted_cached_tokens_total", "actual_cached_tokens_total",
                 "input_sequence_tokens_count"):
        assert f"kvroute_{name}" in grew, name
    for name in ("worker_active_prefill_tokens", "worker_active_decode_blocks", "worker_active_requests", "events_failed_total"):
        assert f"kvroute_{name}" in after, name


def test_failed_events_are_counted(start, engine):
    e = engine()
    s = start(Serve, [f"http://127.0.0.1:{free_ports()},events=tcp://127.0.0.1:{e.events},replay=tcp://127.0.0.1:{e.replay_port},block-size=4"], ready=False)
    e.until("a view", lambda: s.view().get("trusted"))
    e.stored([5], [1, 2, 3, 4], parent=77)  # a parent that nobody knows
    e.send(b"\xc1")
    e.until("counted", lambda: s.metric("kv_parent_not_found_total") + s.metric("events_failed_total") >= 1 and s.metric("kv_decode_errors_total") >= 1)


# ---- the router object: starting without workers -----------------------------------------------------------------------------


class Asking(threading.Thread):
    """A client, from before there are workers."""

    def __init__(self, port, path, body):
        super().__init__(daemon=True)
        self.port, self.path, self.body, self.answer = port, path, body, None
        self.start()

    def run(self):
        self.answer = call(self.port, "POST", self.path, self.body, JSON, timeout=60)



def test_starting_without_workers_waits_for_the_first_one(start):
    s = start(Serve, [], "--queue-timeout", 600, ready=False)
    a = Asking(s.port, "/v1/completions", {"prompt": PROMPT, "max_tokens": 2})
    assert call(s.port, "GET", "/ready").status == 503
    wait_for("the request waits", lambda: s.metric("requests_without_worker") == 1)
    m = start(Mock)
    assert a.answer is None
    assert s.post("/workers", {"worker_id": 1, "endpoint": f"http://127.0.0.1:{m.port}", "kv_events_endpoints": f"tcp://127.0.0.1:{m.events}"}).status == 201
    wait_for("the answer", lambda: a.answer is not None, 30)
    assert (a.answer.status, a.answer.headers["x-kvroute-worker"]) == (200, "1"), a.answer.body
    wait_for("ready", lambda: call(s.port, "GET", "/ready").status == 200, 30)


def test_how_many_workers_to_wait_for_is_configurable(start):
    s = start(Serve, [], "--queue-timeout", 600, "--min-initial-workers", 2, "--no-router-kv-events", ready=False)
    mocks = [start(Mock, with_events=False) for _ in range(2)]
    a = Asking(s.admin, "/select", {"token_ids": list(range(64)), "model_name": "mock"})
    for i, m in enumerate(mocks):
        assert a.answer is None and call(s.port, "GET", "/ready").status == 503
        assert s.post("/workers", {"worker_id": i + 1, "endpoint": f"http://127.0.0.1:{m.port}"}).status == 201
        wait_for("it is well", lambda: s.get("/workers")[i]["schedulable"])
    wait_for("ready", lambda: call(s.port, "GET", "/ready").status == 200, 30)
    wait_for("the answer", lambda: a.answer is not None, 30)
    assert a.answer.status == 200 and a.answer.json()["worker_id"] in (1, 2), a.answer.body
