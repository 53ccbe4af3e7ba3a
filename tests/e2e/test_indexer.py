# SPDX-License-Identifier: Apache-2.0
"""`kvroute indexer`: every route and status code, events with faults, restarts, peers, protection."""
import json
import os
import random
import signal
import struct
import subprocess
import time

import msgpack
import pytest

from conftest import BINARY, SLOW, Indexer, ScriptedServer, call, free_ports, local_hashes, wait_for
from openapi_parts import SEEN, document_of
from fleet_model import BS, Fleet

TOKENS = list(range(100, 132))  # 8 blocks of 4


@pytest.fixture
def fleet_of():
    made = []

    def make(*a, **kw):
        made.append(Fleet(*a, **kw))
        return made[-1]
    yield make
    for f in made:
        f.close()


@pytest.fixture
def one(start, engine):
    """An indexer that follows one engine, which has stored two blocks."""
    ix, e = start(Indexer, "--test-endpoints"), engine()
    ix.register(7, e)
    e.until("trusted", ix.trusted)
    e.stored([1, 2], TOKENS[:8])
    wait_for("stored", lambda: ix.scores(TOKENS) == {(7, 0): 8})
    return ix, e


# ---- registration ----------------------------------------------------------------------------------------------

def test_an_endpoint_that_cannot_be_connected_to_is_a_failed_listener(start, engine):
    """As in the original the answer does not wait for the socket: the registration stands, and its listener says what is wrong."""
    ix, e = start(Indexer), engine()
    for i, endpoint in enumerate(["tcp://127.0.0.1:0", "inproc://wake", "inproc://monitor-0"]):
        assert ix.post("/register", {"instance_id": i, "endpoint": endpoint, "model_name": "m", "block_size": 4}, 201) == {"status": "ok"}
    ix.register(3, e, replay=False, replay_endpoint="inproc://x")
    wait_for("the listeners", lambda: all(ix.listeners()[(i, 0)]["status"] == "failed" and ix.listeners()[(i, 0)]["last_error"] for i in range(4)))
    ix.register(4, e)
    e.until("trusted", lambda: ix.listeners()[(4, 0)]["trusted"])
    for i in range(4):
        ix.post("/unregister", {"instance_id": i, "model_name": "m"})
    assert [w["instance_id"] for w in ix.get("/workers")] == [4]
    r = ix.post("/register", {"instance_id": 5, "endpoint": "tcp://h:1", "model_name": "m", "block_size": 4, "replay_endpoint": ""}, 400)
    assert r["error"].startswith("invalid replay endpoint ``: ")


def test_registration_and_its_conflicts(start, engine):
    ix, e = start(Indexer), engine()
    assert ix.get("/workers") == []
    assert ix.register(7, e) == {"status": "ok"}
    assert ix.register(7, e, status=409) == {"error": "instance 7 dp_rank 0 already registered"}
    assert ix.register(7, e, model="other", status=409) == {"error": "instance 7 is already registered for model=m routing_group=default"}
    assert ix.register(8, e, block_size=16, status=409) == {
        "error": "block_size mismatch for model=m routing_group=default: existing=4, requested=16"}
    ix.register(7, e, rank=1)
    ix.register(9, e, routing_group="g2", block_size=16)
    w = {x["instance_id"]: x for x in ix.get("/workers")}
    assert w[7]["endpoints"].keys() == {"0", "1"} and w[9]["routing_group"] == "g2" and w[9]["source"] == "zmq"
    assert [x["instance_id"] for x in ix.get("/workers?routing_group=g2&model_name=m")] == [9]
    assert ix.get("/workers?model_name=nobody") == []


def test_unregister(start, engine):
    ix, e = start(Indexer), engine()
    for rank in (0, 1):
        ix.register(7, e, rank=rank)
    un = lambda status, **b: ix.post("/unregister", {"instance_id": 7, "model_name": "m", **b}, status)
    assert un(404, instance_id=8) == {"error": "instance 8 not found"}
    assert un(404, routing_group="default", dp_rank=5) == {"error": "instance 7 dp_rank 5 not found"}
    assert un(404, routing_group="g2") == {"error": "instance 7 is registered for model=m routing_group=default"}
    assert un(200, routing_group="default", dp_rank=1) == {"status": "ok"}
    assert ix.get("/workers")[0]["endpoints"].keys() == {"0"}
    assert ix.post("/query", {"token_ids": [1], "model_name": "m"})["scores"] == {}
    un(200, dp_rank=9)  # without a group the whole instance goes, whatever rank is named
    assert ix.get("/workers") == []
    assert ix.post("/query", {"token_ids": [1], "model_name": "m"}, 404) == {"error": "no indexer for model=m routing_group=default"}


@pytest.mark.parametrize("endpoint,status", [("tcp://h:1", 201), ("tcp://*:5558", 201), ("ipc:///tmp/kvroute-no-such", 201),
                                             ("tcp://h", 400), ("tcp://:5", 400), ("http://h:1", 400), ("h:1", 400), ("tcp://h:99999", 400)])
def test_endpoints_are_checked(start, endpoint, status):
    ix = start(Indexer)
    body = {"instance_id": 1, "model_name": "m", "block_size": 4}
    # what cannot be connected to from here, like a star, is refused when it is tried
    assert ix.call("POST", "/register", {**body, "endpoint": endpoint}).status in ((201, 400) if "*" in endpoint else (status,))
    if status == 400:
        r = ix.call("POST", "/register", {**body, "endpoint": "tcp://127.0.0.1:5", "replay_endpoint": endpoint})
        assert r.status == 400 and r.json()["error"].startswith(f"invalid replay endpoint `{endpoint}`")


# ---- bad requests ----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("path", ["/register", "/unregister", "/query", "/query_by_hash", "/register_peer", "/deregister_peer",
                                  "/test/pause_listener"])
def test_bad_bodies(start, path):
    ix = start(Indexer, "--test-endpoints")
    json_type = {"Content-Type": "application/json"}
    big = 9 << 20 if path.startswith("/query") else 3 << 20
    for method, body, headers, status in [("POST", b"{", json_type, 400), ("POST", b"[]", json_type, 422), ("POST", b"{}", json_type, 422),
                                          ("POST", b"{}", {"Content-Type": "text/plain"}, 415), ("GET", None, {}, 405),
                                          ("POST", b" " * big, json_type, 413)]:
        r = call(ix.port, method, path, body, headers)
        assert r.status == status
    assert call(ix.port, "POST", "/no/such", b"{}", json_type).status == 404
    for r in (call(ix.port, "POST", path, b"{", json_type), call(ix.port, "GET", "/nowhere")):
        assert set(r.json()) == {"error"}
    assert ix.metric("dynamo_kvindexer_errors_total") > 0


def test_bad_values(start, engine):
    ix, e = start(Indexer), engine()
    ix.register(1, e)
    bad = [("/query", {"token_ids": [-1], "model_name": "m"}), ("/query", {"token_ids": ["a"], "model_name": "m"}),
           ("/query", {"token_ids": 5, "model_name": "m"}), ("/query", {"token_ids": [1], "model_name": 5}),
           ("/query", {"token_ids": [1 << 32], "model_name": "m"}), ("/query_by_hash", {"block_hashes": [1.5], "model_name": "m"}),
           ("/register", {"instance_id": -1, "endpoint": "tcp://a:1", "model_name": "m", "block_size": 4})]
    for path, body in bad:
        ix.post(path, body, 422)
    ix.post("/register", {"instance_id": 2, "endpoint": "tcp://a:1", "model_name": "m", "block_size": 0}, 400)
    assert "already include the salt" in ix.post("/query_by_hash", {"block_hashes": [1], "model_name": "m", "cache_salt": ""}, 400)["error"]
    assert ix.post("/query_by_hash", {"block_hashes": [1], "model_name": "m", "cache_salt": None})["scores"] == {}


# ---- queries ---------------------------------------------------------------------------------------------------

def test_both_queries_give_tokens(one):
    ix, e = one
    want = {"scores": {"7": {"0": 8}}, "frequencies": [1, 1],
            "instances": {"7": {"longest_matched": 8, "gpu": 8, "dp": {"0": 8}, "cpu": 8, "disk": 8}}}
    assert ix.post("/query", {"token_ids": TOKENS, "model_name": "m"}) == want
    signed = [h - (1 << 64) if h >> 63 else h for h in local_hashes(TOKENS, 4)]
    assert ix.post("/query_by_hash", {"block_hashes": signed, "model_name": "m"}) == want
    assert ix.post("/query_by_hash", {"block_hashes": local_hashes(TOKENS, 4), "model_name": "m"}) == want
    assert ix.post("/query", {"token_ids": TOKENS[:7], "model_name": "m"})["scores"] == {"7": {"0": 4}}  # a partial tail is dropped
    assert ix.post("/query", {"token_ids": [], "model_name": "m"})["scores"] == {}
    assert ix.scores(TOKENS, cache_salt="x") == {} and ix.scores(TOKENS, lora_name="x") == {}
    assert "untrusted" not in ix.post("/query", {"token_ids": TOKENS, "model_name": "m"})
    assert ix.post("/query?detail=1", {"token_ids": TOKENS, "model_name": "m"})["untrusted"] == []
    assert "untrusted" not in ix.post("/query?nodetail=1", {"token_ids": TOKENS, "model_name": "m"})


def test_a_prompt_that_ends_with_a_block_is_found_whole_in_a_window(one):
    """The engine computes the last token of a prompt, so it looks for a state before the last block; there the groups may have far less."""
    ix, e = one
    names, tokens = [11, 12, 13, 14], list(range(100, 116))
    full = {"type": "BlockStored", "block_hashes": names, "parent_block_hash": None, "token_ids": tokens, "block_size": 4, "lora_id": None,
            "medium": "GPU", "lora_name": None, "group_idx": 0, "kv_cache_spec_kind": "full_attention"}
    e.send(e.batch(full, {**full, "block_hashes": [11, 14], "group_idx": 1, "kv_cache_spec_kind": "mamba"}))
    wait_for("stored", lambda: ix.scores(tokens + [1]) == {(7, 0): 16})
    assert ix.scores(tokens) == {(7, 0): 4}
    hashes = local_hashes(tokens, 4)
    ask = lambda **more: {"model_name": "m", "block_hashes": hashes, **more}
    by_hash = lambda **more: ix.post("/query_by_hash", ask(**more))["scores"]["7"]["0"]
    assert by_hash() == by_hash(isl_tokens=16) == 4 and by_hash(isl_tokens=17) == 16
    served = lambda **more: ix.post("/kv_indexer_query", ask(**more))["TieredScores"]["device"]["scores"][0][1]
    assert served() == 1 and served(isl_tokens=17) == 4
    packed = msgpack.packb({**ask(isl_tokens=17), "block_hashes": struct.pack(f"<{len(hashes)}Q", *hashes)})
    r = call(ix.port, "POST", "/kv_indexer_query", packed, {"Content-Type": "application/msgpack"})
    assert r.json()["TieredScores"]["device"]["scores"][0][1] == 4
    assert "isl_tokens" in ix.post("/query_by_hash", ask(isl_tokens="many"), 422)["error"]


def test_the_words_of_a_served_index(one):
    """What a router asks that spreads its workers over several indexers."""
    ix, _ = one
    hashes = local_hashes(TOKENS, 4)
    info = ix.post("/kv_indexer_info", {})
    assert info["mode"] == "events" and info["ready"] and info["registers"] and info["packed"] and info["instance"] > 0
    answer = ix.post("/kv_indexer_query", {"model_name": "m", "block_hashes": hashes})
    assert answer == {"TieredScores": {"device": {"scores": [[{"worker_id": 7, "dp_rank": 0}, 2]], "frequencies": []}, "lower_tier": []},
                      "instance": info["instance"]}
    assert "no" in ix.post("/kv_indexer_query", {"model_name": "no", "block_hashes": hashes}, 404)["Error"]
    for bad in ({"model_name": "m", "block_hashes": ["x"]}, {"model_name": "m"}, {"block_hashes": hashes}):
        assert "block_hashes" in ix.post("/kv_indexer_query", bad, 400)["Error"]
    assert ix.post("/kv_indexer_query", [], 422)["error"]

    def packed(data):
        return call(ix.port, "POST", "/kv_indexer_query", data, {"Content-Type": "application/msgpack"})
    question = msgpack.packb({"model_name": "m", "block_hashes": struct.pack(f"<{len(hashes)}Q", *hashes)})
    assert packed(question).json() == answer
    assert packed(question.replace(b"\xa1m", b"\xa1n")).status == 404
    for bad in (b"", question[:-1], question + b"x", b"\x80", b"\xdf\xff\xff\xff\xff", msgpack.packb({"model_name": "m", "block_hashes": b"odd"})):
        assert packed(bad).status == 400
    bad_json = call(ix.port, "POST", "/kv_indexer_query", b"{", {"Content-Type": "application/json"})
    assert bad_json.status == 400


def test_lower_tiers_add_up(one):
    ix, e = one
    store = lambda names, frm, to, parent, medium: e.send(e.batch(["BlockStored", names, parent, TOKENS[frm * 4:to * 4], 4, None, medium, None]))
    store([3, 4], 2, 4, 2, "CPU")
    store([5], 4, 5, 4, "DISK")
    store([6], 5, 6, 5, "EXTERNAL")
    want = {"longest_matched": 24, "gpu": 8, "dp": {"0": 8}, "cpu": 16, "disk": 24}
    wait_for("tiers", lambda: ix.post("/query", {"token_ids": TOKENS, "model_name": "m"})["instances"] == {"7": want})
    assert ix.scores(TOKENS) == {(7, 0): 8}
    e.send(e.batch(["BlockRemoved", [6], "EXTERNAL"]))
    wait_for("removed", lambda: ix.post("/query", {"token_ids": TOKENS, "model_name": "m"})["instances"]["7"]["disk"] == 20)
    tiers = {ev["storage_tier"] for ev in ix.get("/dump")["m:default"]["events"]}
    assert tiers == {"device", "host_pinned", "disk"}


def test_ranks_are_multiplexed(one):
    """A batch's own rank counts; only the whole instance can be unregistered with it."""
    ix, e = one
    e.send(e.batch(["BlockStored", [1, 2, 3], None, TOKENS[:12], 4, None, "GPU", None], rank=3))
    wait_for("rank 3", lambda: ix.scores(TOKENS) == {(7, 0): 8, (7, 3): 12})
    r = ix.post("/query", {"token_ids": TOKENS, "model_name": "m"})
    assert r["frequencies"] == [2, 2, 1] and r["instances"]["7"]["gpu"] == 12 and r["instances"]["7"]["dp"] == {"0": 8, "3": 12}
    ix.post("/unregister", {"instance_id": 7, "model_name": "m", "routing_group": "default", "dp_rank": 3}, 404)
    ix.post("/unregister", {"instance_id": 7, "model_name": "m"})
    ix.post("/query", {"token_ids": TOKENS, "model_name": "m"}, 404)


def test_tree_sizes_and_tenants(start, engine):
    ix, e = start(Indexer, "--tree-sizes", "--tenant-as-group"), engine()
    ix.register(1, e, tenant_id="t1")
    e.until("trusted", ix.trusted)
    e.stored([1, 2], TOKENS[:8])
    ask = lambda **b: ix.call("POST", "/query", {"token_ids": TOKENS[:4], "model_name": "m", **b})
    wait_for("stored", lambda: ask(tenant_id="t1").json()["scores"])
    assert ask(tenant_id="t1").json()["tree_sizes"] == {"1": {"0": 2}}
    assert ask().status == 404 and ask(tenant_id="t2").status == 404
    assert ask(tenant_id="t2", routing_group="t1").status == 200  # the group wins
    plain = start(Indexer)
    plain.register(1, e, tenant_id="t1")
    assert plain.get("/workers")[0]["routing_group"] == "default"


def test_a_wrong_block_size_is_a_warning(one):
    ix, e = one
    e.stored([11], TOKENS[:16], block_size=16)
    l = wait_for("warning", lambda: (x := ix.listeners()[(7, 0)]).get("warning") and x)
    assert "block_size" in l["warning"] and l["block_size_mismatches"] == 1 and not l["trusted"]
    assert ix.post("/query?detail=1", {"token_ids": TOKENS, "model_name": "m"})["untrusted"][0]["instance_id"] == 7


# ---- listeners -------------------------------------------------------------------------------------------------

def test_pause_and_resume(one):
    ix, e = one
    who = {"instance_id": 7}
    assert ix.post("/test/resume_listener", who, 409) == {"error": "instance 7 dp_rank 0 cannot be resumed from status active"}
    ix.post("/test/pause_listener", who)
    assert ix.get("/workers")[0]["status"] == "paused"
    assert ix.post("/test/pause_listener", who, 409) == {"error": "instance 7 dp_rank 0 cannot be paused from status paused"}
    e.stored([3], TOKENS[8:12], parent=2)  # nobody hears it
    ix.post("/test/resume_listener", who)
    e.until("replayed", lambda: ix.scores(TOKENS) == {(7, 0): 12})
    e.until("trusted", ix.trusted)
    ix.post("/test/pause_listener", {"instance_id": 9}, 404)
    ix.post("/test/pause_listener", {"instance_id": 7, "dp_rank": 4}, 404)


def test_test_routes_are_behind_a_switch(start):
    assert start(Indexer).call("POST", "/test/pause_listener", {"instance_id": 1}).status == 404
    by_env = start(Indexer, env={"DYN_KV_INDEXER_TEST_ENDPOINTS": "yes"})
    assert by_env.call("POST", "/test/pause_listener", {"instance_id": 1}).json() == {"error": "instance 1 not found"}


def test_ready_waits_for_workers(start, engine):
    ix = start(Indexer, "--min-initial-workers", 1, ready=False)
    wait_for("reason", lambda: "0 of 1" in ix.get("/ready", 503)["error"])
    assert ix.call("GET", "/health").body == b"" and ix.call("GET", "/workers").headers["x-kvroute-recovering"] == "1"
    e = engine()
    ix.register(1, e)
    e.until("ready", lambda: ix.call("GET", "/ready").status == 200)
    assert "x-kvroute-recovering" not in ix.call("GET", "/workers").headers


def test_initial_workers(start, engine):
    e = engine()
    ix = start(Indexer, "--block-size", 4, "--workers", f"5:2=tcp://127.0.0.1:{e.events}, ,", "--model-name", "mm", "--routing-group", "gg",
               "--tenant-id", "ignored")
    w = ix.get("/workers")[0]
    assert (w["instance_id"], w["model_name"], w["routing_group"], list(w["endpoints"])) == (5, "mm", "gg", ["2"])


@pytest.mark.parametrize("args,text", [
    (["--workers", "5=tcp://a:1"], "--block-size is required when --workers is specified"),
    (["--block-size", 4, "--workers", "5"], "invalid worker entry `5`; expected worker_id[:dp_rank]=endpoint"),
    (["--block-size", 4, "--workers", "x=tcp://a:1"], "invalid worker id in `x=tcp://a:1`"),
    (["--block-size", 4, "--workers", "5:y=tcp://a:1"], "invalid dp_rank in `5:y=tcp://a:1`"),
    (["--block-size", 4, "--workers", "5=tcp://" + "a" * 240], "--workers: `tcp://" + "a" * 58 + "...` is too long; allowed: at most 239 bytes"),
    (["--block-size", 4, "--workers", "5=tcp://a:1", "--model", "m" * 256], "is too long; allowed: at most 255 bytes"),
    (["--peers", "ftp://x"], "--peers: bad value 'ftp://x'"),
    (["--api-key-file", "/no/such"], "no key in '/no/such'"),
    (["--access-log", "/no/such/file"], "--access-log: cannot write '/no/such/file'"),
    (["--data-dir", "/proc/none"], "cannot make '/proc/none'"),
])
def test_start_up_errors(args, text):
    p = subprocess.run([BINARY, "indexer", "--port", str(free_ports()), *map(str, args)], capture_output=True, text=True, timeout=30 * SLOW)
    assert p.returncode != 0 and text in p.stderr, p.stderr


# ---- protection, logs ------------------------------------------------------------------------------------------

def test_keys(start, tmp_path):
    f = tmp_path / "keys"
    f.write_text("# two of them\nalpha-key\nbeta-key\n")
    ix = start(Indexer, "--api-key-file", f)
    for path in ("/workers", "/metrics", "/dump", "/peers", "/nowhere"):
        r = call(ix.port, "GET", path)
        assert r.status == 401
        for wrong in ("Bearer alpha-ke", "Bearer alpha-keyy", "Bearer ", "alpha-key", "Basic alpha-key"):
            r = call(ix.port, "GET", path, headers={"Authorization": wrong})
            assert r.status == 401 and r.headers["www-authenticate"] == "Bearer" and b"workers" not in r.body
    for key in ("alpha-key", "beta-key"):
        assert call(ix.port, "GET", "/workers", headers={"Authorization": f"Bearer {key}"}).status == 200
    assert call(ix.port, "GET", "/health").status == 200 and call(ix.port, "GET", "/ready").status == 200
    ix.key = "beta-key"
    assert ix.metric("kvroute_refused_keys_total") == 30


def test_access_log(start, tmp_path):
    log = tmp_path / "access.log"
    ix = start(Indexer, "--access-log", log)
    ix.call("POST", "/query", {"token_ids": [1], "model_name": "mo"}, {"x-trace-id": "abc"})
    lines = lambda f=log: [json.loads(l) for l in f.read_text().splitlines()] if f.exists() else []
    line = wait_for("a line", lambda: [l for l in lines() if l["path"] == "/query"])[0]
    assert log.stat().st_mode & 0o7 == 0
    assert line["ts"].endswith("Z") and isinstance(line.pop("duration_ms"), float) and line.pop("ts")
    assert line == {"trace_id": "abc", "method": "POST", "path": "/query", "model": "mo", "status": 404}
    log.rename(tmp_path / "old.log")
    assert ix.post("/reopen_logs") == {"status": "ok"}
    wait_for("the new file", log.exists)
    ix.get("/peers")
    wait_for("the line in it", lambda: [l["path"] for l in lines()][-1:] == ["/peers"])
    assert {"/query", "/reopen_logs"} <= {l["path"] for l in lines(tmp_path / "old.log") + lines()}
    assert ix.metric("kvroute_access_log_lines_total") >= 3 and ix.metric("kvroute_access_log_reopened_total") == 1


def test_lines_that_a_full_disk_does_not_take_are_counted(start):
    ix = start(Indexer, "--access-log", "/dev/full")
    ix.get("/peers")
    wait_for("a failed write", lambda: ix.metric("kvroute_access_log_write_errors_total"))


def test_metrics_names(one):
    ix, e = one
    text = ix.call("GET", "/metrics").body.decode()
    for want in ('dynamo_kvindexer_requests_total{endpoint="/query",method="POST"}', "dynamo_kvindexer_models 1", "dynamo_kvindexer_workers 1",
                 'dynamo_kvindexer_listeners{status="active"} 1', 'dynamo_kvindexer_listeners{status="failed"} 0',
                 'dynamo_kvindexer_request_duration_seconds_bucket{endpoint="/query",le="0.0001"}',
                 'dynamo_kvrouter_kv_cache_events_applied{event_type="stored",status="ok"} 1', 'kvroute_view_trusted{worker_id="7",dp_rank="0"} 1'):
        assert want in text, want
    assert 'endpoint="/metrics"' not in text
    assert ix.post("/debug/validate") == {"status": "ok"}


# ---- events with faults ----------------------------------------------------------------------------------------

@pytest.mark.parametrize("seed", [int(s) for s in os.environ.get("KVROUTE_SEEDS", "1,2").split(",")])
def test_many_publishers_equal_the_model(start, fleet_of, seed):
    publishers, batches = int(os.environ.get("KVROUTE_PUBLISHERS", "12")), int(os.environ.get("KVROUTE_BATCHES", "60"))
    ix, f = start(Indexer), fleet_of(seed, publishers)
    for p in f.list:
        ix.register(p.worker, p, block_size=BS)
    wait_for("trusted", lambda: (f.answer_replays(), ix.trusted())[1], 60)
    f.run(batches)
    wait_for(f"drained (seed {seed})", lambda: f.drained(ix), 120)
    f.check(ix)
    assert ix.post("/debug/validate") == {"status": "ok"}


# ---- restarts ----------------------------------------------------------------------------------------------------

def follow(ix, fleet, **kw):
    before = [p.subscriptions() for p in fleet.list]
    for p in fleet.list:
        ix.register(p.worker, p, block_size=BS, **kw)
    wait_for("subscriptions", lambda: all(p.subscriptions() > n for p, n in zip(fleet.list, before)))


def following(fleet, make):
    """make() starts an indexer that knows the fleet: from the return on, what that sends reaches it."""
    before = [p.subscriptions() for p in fleet.list]
    ix = make()
    wait_for("subscriptions", lambda: all(p.subscriptions() > n for p, n in zip(fleet.list, before)))
    return ix


def all_trusted(ix, fleet):
    wait_for("trusted", lambda: (fleet.answer_replays(), ix.trusted())[1], 60)


def snapshots_of(ix):
    return ix.metric("kvroute_snapshots_total")


def keeper(start, tmp_path, *extra, interval=3600, **kw):
    return start(Indexer, "--data-dir", tmp_path / "data", "--snapshot-interval", interval, "--restore-timeout", 2, *extra, **kw)


def on_disk(tmp_path, fleet):
    """Waits until all registrations are written: a 201 does not wait for the disk, and whoever is killed before has lost one."""
    path = tmp_path / "data" / "workers.json"
    wait_for("registrations on disk", lambda: os.path.exists(path) and len(json.loads(path.read_text())["workers"]) == len(fleet.list))


def test_a_restart_goes_on_from_the_disk(start, fleet_of, tmp_path):
    """Engines that do not replay: the content is back at once, not trusted, and trusted again with the next batch in sequence."""
    f = fleet_of(3, 4)
    ix = keeper(start, tmp_path)
    follow(ix, f, replay=False)
    wait_for("connected", lambda: ix.get("/workers") and all(l["status"] == "active" for l in ix.listeners().values()))
    f.run(30, faults=False)
    wait_for("drained", lambda: f.drained(ix))
    f.check(ix)
    ix.stop()
    ix = following(f, lambda: keeper(start, tmp_path))
    f.check(ix)
    assert len(ix.post("/query?detail=1", {"token_ids": f.prompts[0], "model_name": "m"})["untrusted"]) == 4
    wait_for("connected", lambda: all(l["status"] == "active" for l in ix.listeners().values()))
    assert not ix.trusted()
    f.run(3, faults=False)
    wait_for("drained and trusted", lambda: f.drained(ix))
    f.check(ix)


def test_a_restart_is_confirmed_by_replay(start, fleet_of, tmp_path):
    """The engine is asked for its last batch: if it is the one we know, only what came since is replayed."""
    f = fleet_of(4, 3)
    ix = keeper(start, tmp_path)
    follow(ix, f)
    all_trusted(ix, f)
    f.run(20)
    wait_for("drained", lambda: f.drained(ix), 60)
    ix.stop()
    f.run(10)  # nobody hears it
    for p in f.list:
        p.buffer = p.buffer[-40:]  # what is older is gone; enough is there
    f.list[0].restart()
    f.list[0].batch(faults=False)
    ix = keeper(start, tmp_path)
    wait_for("drained", lambda: f.drained(ix), 60)
    f.check(ix)


def test_blocks_after_a_restart_have_the_salt_and_the_group_of_those_before(start, engine, tmp_path):
    """What a stream remembers is written beside its content: later blocks of a salted chain do not name the salt again, and events of a
    cache group not what kind it is of."""
    ix, e = keeper(start, tmp_path), engine()
    ix.register(7, e, replay=False)
    e.heard_by(1)
    store = lambda names, parent, tokens, *more: e.send(e.batch(["BlockStored", names, parent, tokens, 4, None, "GPU", *more]))
    store([1], None, TOKENS[:4], None, [["dynamo-cache-salt:tenant"]])
    store([51], None, TOKENS[:4], None, None, 1, "full_attention")  # group 1 is the main one
    scores = lambda **kw: ix.scores(TOKENS[:12], **kw)
    wait_for("stored", lambda: scores(cache_salt="tenant") == {(7, 0): 4} and scores() == {(7, 0): 4})
    ix.stop()
    ix = keeper(start, tmp_path)
    e.heard_by(2)
    store([2, 3], 1, TOKENS[4:12], None, [[], []])
    store([52], 51, TOKENS[4:8], None, None, 1)
    wait_for("all of it", lambda: scores(cache_salt="tenant") == {(7, 0): 12} and scores() == {(7, 0): 8})


def test_content_of_the_disk_that_is_not_confirmed_is_dropped(start, fleet_of, tmp_path):
    """The engine's buffer no longer reaches back to our place."""
    f = fleet_of(5, 2)
    ix = keeper(start, tmp_path)
    follow(ix, f)
    all_trusted(ix, f)
    f.run(10, faults=False)
    wait_for("drained", lambda: f.drained(ix), 60)
    ix.stop()
    f.run(10, faults=False)
    for p in f.list:
        p.buffer = p.buffer[-3:]
    ix = keeper(start, tmp_path)
    seen = lambda: {(l["view"], l.get("view_reason")) for l in ix.listeners().values()}
    wait_for("partial", lambda: (f.answer_replays(), seen() == {("partial", "the engine's replay buffer no longer holds the whole history")})[1])
    for p in f.list:  # never a block that is not held
        for (w, r), n in ix.scores(f.prompts[0]).items():
            assert n <= f.list[w - 1].held.depth(f.prompts[0]) * BS


@pytest.mark.parametrize("damage", ["truncated", "flipped", "foreign", "empty", "version", "workers"])
def test_damaged_files_are_set_aside(start, fleet_of, tmp_path, damage):
    f = fleet_of(6, 2)
    ix = keeper(start, tmp_path)
    follow(ix, f, replay=False)
    wait_for("connected", lambda: all(l["status"] == "active" for l in ix.listeners().values()))
    f.run(5, faults=False)
    wait_for("drained", lambda: f.drained(ix))
    ix.stop()
    path = tmp_path / "data" / ("workers.json" if damage == "workers" else "index.kvr")
    good = path.read_bytes()
    at = random.Random(1).randrange(200, len(good) - 50) if len(good) > 300 else len(good) // 2
    path.write_bytes({"truncated": good[:at], "flipped": good[:at] + bytes([good[at] ^ 4]) + good[at + 1:], "foreign": b"#!/bin/sh\n" * 9,
                      "empty": b"", "version": good[:8] + b"\x07" + good[9:], "workers": good.replace(b"instance_id\":1", b"instance_id\":3")}[damage])
    ix = keeper(start, tmp_path)
    assert "is not used: " in ix.text() and (path.parent / (path.name + ".bad-1")).exists()
    assert len(ix.get("/workers")) == (0 if damage == "workers" else 2)
    assert ix.scores(f.prompts[0]) == {} if damage != "workers" else True


def test_content_without_registrations_is_kept(start, fleet_of, tmp_path):
    """workers.json is lost: the content stays, through further snapshots, until the workers are registered again."""
    f = fleet_of(13, 2)
    ix = keeper(start, tmp_path)
    follow(ix, f, replay=False)
    active = lambda: all(l["status"] == "active" for l in ix.listeners().values())
    wait_for("connected", active)
    f.run(5, faults=False)
    wait_for("drained", lambda: f.drained(ix))
    ix.stop()
    (tmp_path / "data" / "workers.json").unlink()
    for _ in range(2):
        ix = keeper(start, tmp_path)
        assert ix.get("/workers") == []
        f.check(ix)
        ix.stop()
    ix = keeper(start, tmp_path)
    follow(ix, f, replay=False)
    wait_for("connected", active)
    f.run(1, faults=False)
    wait_for("drained and trusted", lambda: f.drained(ix))
    f.check(ix)


def test_every_flipped_byte_is_noticed(start, fleet_of, tmp_path):
    f = fleet_of(7, 1, prompts=3, blocks=4)
    ix = keeper(start, tmp_path)
    follow(ix, f, replay=False)
    wait_for("connected", lambda: all(l["status"] == "active" for l in ix.listeners().values()))
    f.run(2, faults=False)
    wait_for("drained", lambda: f.drained(ix))
    ix.stop()
    path = tmp_path / "data" / "index.kvr"
    good = path.read_bytes()
    for at in random.Random(7).sample(range(len(good)), 12):
        path.write_bytes(good[:at] + bytes([good[at] ^ 16]) + good[at + 1:])
        ix = keeper(start, tmp_path)
        bad = "is not used: " in ix.text()
        ix.stop()
        assert bad or 12 <= at < 16, at  # four reserved bytes of the head
    path.write_bytes(good)


def test_a_full_disk_and_a_read_only_directory(start, fleet_of, tmp_path):
    f = fleet_of(8, 2)
    ix = keeper(start, tmp_path, interval=0.1)
    follow(ix, f)
    all_trusted(ix, f)
    f.run(5, faults=False)
    wait_for("drained", lambda: f.drained(ix))
    n = snapshots_of(ix)
    wait_for("a snapshot with it", lambda: snapshots_of(ix) > n + 1)
    good = (tmp_path / "data" / "index.kvr").read_bytes()
    (tmp_path / "data" / "index.kvr.tmp").mkdir()  # nothing can be written there any more
    wait_for("failures", lambda: ix.metric("kvroute_snapshot_failures_total") > 2)
    assert ix.text().count("cannot write") == 1 and (tmp_path / "data" / "index.kvr").read_bytes() == good
    f.check(ix)
    (tmp_path / "data" / "index.kvr.tmp").rmdir()
    n = snapshots_of(ix)
    wait_for("written again", lambda: snapshots_of(ix) > n)


# ---- peers -------------------------------------------------------------------------------------------------------

def test_a_new_replica_takes_over_from_a_peer(start, fleet_of):
    """Engines without replay: a replica that joins late knows all, exactly, from its peer, and goes on from its place."""
    f = fleet_of(9, 4)
    a = start(Indexer)
    follow(a, f, replay=False)
    wait_for("connected", lambda: all(l["status"] == "active" for l in a.listeners().values()))
    f.run(20, faults=False)
    wait_for("drained", lambda: f.drained(a))
    b = start(Indexer, "--peers", f"http://127.0.0.1:{a.port}")
    f.check(b)  # of workers that are not registered here yet
    follow(b, f, replay=False)
    wait_for("connected", lambda: all(l["status"] == "active" for l in b.listeners().values()))
    f.run(5, faults=False)
    wait_for("both drained", lambda: f.drained(a) and f.drained(b))
    f.check(a)
    f.check(b)


def test_a_lost_view_comes_back_from_a_peer(start, fleet_of):
    f = fleet_of(10, 2)
    a, b = start(Indexer), start(Indexer, "--test-endpoints")
    for ix in (a, b):
        follow(ix, f, replay=False)
        wait_for("connected", lambda: all(l["status"] == "active" for l in ix.listeners().values()))
    assert b.post("/register_peer", {"url": f"http://127.0.0.1:{a.port}"}, 201) == {"status": "ok"}
    assert b.get("/peers") == [f"http://127.0.0.1:{a.port}"]
    f.run(10, faults=False)
    wait_for("both drained", lambda: f.drained(a) and f.drained(b))
    b.post("/test/pause_listener", {"instance_id": 1})
    f.run(5, faults=False)  # b misses those of 1
    before = f.list[0].subscriptions()
    b.post("/test/resume_listener", {"instance_id": 1})
    wait_for("connected", lambda: b.listeners()[(1, 0)]["status"] == "active" and f.list[0].subscriptions() > before)
    f.run(2, faults=False)
    wait_for("b is whole again", lambda: f.drained(a) and f.drained(b), 20)
    f.check(b)
    assert b.metric("kvroute_peer_recoveries_total") >= 1
    b.post("/deregister_peer", {"url": f"http://127.0.0.1:{a.port}"})
    assert b.post("/deregister_peer", {"url": "http://x"}, 404) == {"error": "peer not found"}


def test_two_cold_replicas_do_not_wait_for_each_other(start):
    ports = free_ports(2)
    a = start(Indexer, "--peers", f"http://127.0.0.1:{ports + 1}", port=ports, ready=False)
    b = start(Indexer, "--peers", f"http://127.0.0.1:{ports}", port=ports + 1, ready=False)
    for ix in (a, b):
        wait_for("ready", lambda: ix.call("GET", "/ready").status == 200, 5)
    silent = start(Indexer, "--peers", f"http://127.0.0.1:{free_ports()}", ready=False)
    wait_for("ready", lambda: silent.call("GET", "/ready").status == 200, 5)


def test_a_stamp_that_is_no_number_makes_the_dump_no_json(start, engine):
    e, ix = engine(), start(Indexer, ready=False)
    ix.register(7, e, replay=False)
    e.heard_by(1)
    e.send(msgpack.packb([float("nan"), [["BlockStored", [1, 2], None, list(range(8)), 4]], 0]))
    wait_for("whole", ix.trusted)
    (part,) = json.loads(ix.call("GET", "/dump?views=1").body).values()
    assert part["views"][0]["last_ts"] == 0


def test_model_names_with_colons(start, engine):
    a, e = start(Indexer), engine()
    a.register(1, e, model="org:model%1")
    e.until("trusted", a.trusted)
    e.stored([1, 2], TOKENS[:8])
    wait_for("stored", lambda: a.scores(TOKENS, model="org:model%1"))
    assert list(a.get("/dump")) == ["org%3Amodel%251:default"]
    b = start(Indexer, "--peers", f"http://127.0.0.1:{a.port}")
    assert b.scores(TOKENS, model="org:model%1") == {(1, 0): 8}


@pytest.fixture
def canned():
    made = []

    def make(answer):
        """`answer`: bytes or a status."""
        made.append(ScriptedServer(lambda q: answer))
        return made[-1]
    yield make
    for c in made:
        c.close()


def router_event(worker, names, tokens, parent=None, **more):
    blocks = [{"block_hash": n, "tokens_hash": h, "mm_extra_info": None} for n, h in zip(names, local_hashes(tokens, 4))]
    return {"worker_id": worker, **more, "event": {"event_id": 1, "data": {"stored": {"parent_hash": parent, "blocks": blocks}}, "dp_rank": 0}}


def test_dumps_of_other_indexers_are_understood(start, canned):
    """Old and new forms, and a model name with a bare colon."""
    old = router_event(4, [1, 2], TOKENS[:8])
    new = router_event(5, [1], TOKENS[:4], storage_tier="device", residency_domain="worker")
    tier = router_event(5, [2], TOKENS[4:8], parent=1, storage_tier="host_pinned")
    dump = {"m:default": {"block_size": 4, "events": [old, new, tier]}, "a:b": {"block_size": 4, "events": []}}
    ix = start(Indexer, "--peers", canned(json.dumps(dump).encode()).url)
    r = ix.post("/query", {"token_ids": TOKENS, "model_name": "m"})
    assert r["scores"] == {"4": {"0": 8}, "5": {"0": 4}} and r["instances"]["5"]["cpu"] == 8
    assert ix.post("/query", {"token_ids": TOKENS, "model_name": "a", "routing_group": "b"})["scores"] == {}


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"m:default":{"error":"no"}}', b'{"m:default":{"events":[]}}', b'{"m:default":5}',
                                  b'{"m:default":{"block_size":4,"events":[{"worker_id":1}]}}', b'{"m":{"block_size":4,"events":[]}}',
                                  b'{"m:default":{"block_size":4,"events":[]}', b'{"m:default":{"block_size":4,"events":[{{]}}', b"}" * 9, b"\xff\xfe"])
def test_bad_dumps_fail_that_peer_only(start, canned, body):
    good = json.dumps({"m:default": {"block_size": 4, "events": [router_event(4, [1, 2], TOKENS[:8])]}}).encode()
    ix = start(Indexer, "--peers", f"{canned(body).url},{canned(500).url},{canned(good).url}")
    assert ix.scores(TOKENS) == {(4, 0): 8} and ix.metric("kvroute_peer_failures_total") == 2


def test_an_engines_snapshot_comes_before_the_peers(start, engine, canned):
    """A view whose history the engine's replay has lost is whole again by its recover_endpoint."""
    e = engine()
    e.seq = 10  # ten batches are not in the replay buffer any more
    tree = {"TreeDump": {"events": [router_event(0, [1, 2, 3], TOKENS[:12])], "last_event_id": 9}}
    ix = start(Indexer)
    ix.register(7, e, recover_endpoint=canned(json.dumps(tree).encode()).url + "/kv_recover")
    e.until("connected", lambda: ix.listeners()[(7, 0)]["status"] == "active" and e.subscribed())
    e.stored([4], TOKENS[12:16], parent=3)
    e.until("trusted", lambda: ix.trusted() and ix.scores(TOKENS) == {(7, 0): 16}, 15)
    assert ix.metric("kvroute_ingest_recovered_dumps_total") == 1


def test_events_of_a_recording_are_taken_when_allowed(start, engine):
    """POST /events applies stored, removed and cleared events of workers that nobody follows here."""
    ix = start(Indexer, "--accept-events")
    body = {"model_name": "m", "block_size": 4, "events": [router_event(4, [1, 2, 3], TOKENS[:12]), router_event(4, [9], TOKENS[:4], parent=77)]}
    assert ix.post("/events", body) == {"applied": 1, "failed": 1} and ix.scores(TOKENS) == {(4, 0): 12}
    removed = {"worker_id": 4, "event": {"event_id": 2, "data": {"removed": {"block_hashes": [3, 55]}}, "dp_rank": 0}}
    assert ix.post("/events", {**body, "events": [removed]}) == {"applied": 1, "failed": 0} and ix.scores(TOKENS) == {(4, 0): 8}
    cleared = {"worker_id": 4, "event": {"event_id": 3, "data": "cleared", "dp_rank": 0}}
    assert ix.post("/events", {**body, "events": [cleared]})["applied"] == 1 and ix.scores(TOKENS) == {}
    assert "block_size mismatch" in ix.post("/events", {**body, "block_size": 8}, 409)["error"]
    for wrong in ({"events": 5}, {"events": [5]}, {"events": [{}]}, {"block_size": 0}, {"block_size": "x"}, {"model_name": 5}):
        ix.post("/events", {**body, **wrong}, 422)
    for i in range(1023):  # with "m" as many as there may be
        ix.post("/events", {**body, "model_name": f"m{i}"})
    assert ix.post("/events", {**body, "model_name": "one more"}, 409)["error"] == "no room for another model and routing group: at most 1024"
    ix.register(4, engine())
    assert "registered here" in ix.post("/events", body, 409)["error"]
    start(Indexer).post("/events", body, 404)


# ---- kills -------------------------------------------------------------------------------------------------------

def test_kill_9_at_any_moment(start, fleet_of, tmp_path):
    """With replay available every restart is right again within seconds; seeds are printed."""
    seed, rounds = int(os.environ.get("KVROUTE_KILL_SEED", "11")), int(os.environ.get("KVROUTE_KILLS", "4"))
    rng, f = random.Random(seed), fleet_of(seed, 6)
    ix = keeper(start, tmp_path, interval=0.05)
    follow(ix, f)
    on_disk(tmp_path, f)
    for i in range(rounds):
        for _ in range(rng.randrange(1, 12)):
            f.run(1)
            f.answer_replays()
        ix.kill()
        f.run(2)
        ix = keeper(start, tmp_path, interval=0.05, ready=False)
        wait_for(f"right again (seed {seed}, round {i})", lambda: f.drained(ix), 5)
        f.check(ix)
        assert "is not used" not in ix.text()
    assert ix.post("/debug/validate") == {"status": "ok"}


def test_kill_9_with_only_a_peer(start, fleet_of):
    """Engines that replay nothing, no disk: what the peer knows is there again, exactly and trusted."""
    seed, rounds = int(os.environ.get("KVROUTE_KILL_SEED", "21")), int(os.environ.get("KVROUTE_KILLS", "3"))
    rng, f = random.Random(seed), fleet_of(seed, 4)
    workers = ",".join(f"{p.worker}=tcp://127.0.0.1:{p.events}" for p in f.list)
    peer = start(Indexer)
    follow(peer, f, replay=False)
    connected = lambda ix: all(l["status"] == "active" for l in ix.listeners().values())
    args = ["--peers", f"http://127.0.0.1:{peer.port}", "--block-size", BS, "--workers", workers, "--model-name", "m", "--restore-timeout", 2]
    ix = following(f, lambda: start(Indexer, *args))
    wait_for("connected", lambda: connected(peer) and connected(ix))
    for i in range(rounds):
        for _ in range(rng.randrange(1, 6)):
            f.run(1, faults=False)
        ix.kill()
        f.run(2, faults=False)
        wait_for("the peer has all", lambda: f.drained(peer))
        ix = start(Indexer, *args, ready=False)
        wait_for(f"right again (seed {seed}, round {i})", lambda: f.drained(ix), 5)
        f.check(ix)


def test_kill_9_with_only_the_disk(start, fleet_of, tmp_path):
    """Then the content is what the last snapshot had, and is not trusted until something confirms it."""
    seed, rounds = int(os.environ.get("KVROUTE_KILL_SEED", "31")), int(os.environ.get("KVROUTE_KILLS", "3"))
    rng, f = random.Random(seed), fleet_of(seed, 4)
    ix = keeper(start, tmp_path)
    follow(ix, f, replay=False)
    connected = lambda: all(l["status"] == "active" for l in ix.listeners().values())
    wait_for("connected", connected)
    f.run(5, faults=False)
    wait_for("drained", lambda: f.drained(ix))
    ix.stop()  # writes a snapshot
    then = {tuple(p): f.expected(p) for p in f.prompts}
    for i in range(rounds):
        ix = following(f, lambda: keeper(start, tmp_path))
        wait_for("connected", connected)
        for p in f.prompts:
            assert ix.scores(p) == then[tuple(p)], (seed, i)
        assert not any(l["trusted"] for l in ix.listeners().values())
        assert len(ix.post("/query?detail=1", {"token_ids": f.prompts[0], "model_name": "m"})["untrusted"]) == len(f.list)
        f.run(rng.randrange(1, 4), faults=False)  # seen, but in no snapshot
        ix.kill()


def test_a_byte_cap_makes_answers_shorter_never_wrong(start, fleet_of):
    f = fleet_of(12, 8, prompts=120, blocks=60)
    free = start(Indexer)
    follow(free, f)
    all_trusted(free, f)
    f.run(80, faults=False)
    wait_for("drained", lambda: f.drained(free), 60)
    f.check(free)
    cap = int(free.metric("kvroute_index_bytes")) // 3  # without a cap, memory that is not in use yet counts, too
    ix = start(Indexer, "--max-bytes", cap, "--threads", 1)
    follow(ix, f)
    all_trusted(ix, f)
    wait_for("drained", lambda: f.drained(ix), 60)
    assert ix.metric("kvroute_index_evicted_blocks_total") > 0 and ix.metric("kvroute_index_bytes") <= cap
    some = 0
    for p in f.prompts:
        want = f.expected(p)
        for k, n in ix.scores(p).items():
            some += 1
            assert n <= want.get(k, 0), (k, n, want)
    assert some and ix.post("/debug/validate") == {"status": "ok"}


def test_a_batch_sent_twice_changes_nothing(one):
    ix, e = one
    e.stored([3], TOKENS[8:12], parent=2)
    for seq, payload in list(e.sent) * 3:
        e.send(payload, seq=seq, keep=False)
    e.stored([4], TOKENS[12:16], parent=3)
    wait_for("all", lambda: ix.scores(TOKENS) == {(7, 0): 16})
    l = ix.listeners()[(7, 0)]
    assert (l["restarts"], l["gaps"], l["trusted"]) == (0, 0, True) and ix.metric("kvroute_ingest_stale_batches_total") == 6


# ---- TLS, schema, memory -----------------------------------------------------------------------------------------

def test_tls(start, tmp_path):
    import socket
    import ssl
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj",
                    "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert], check=True, capture_output=True)
    for args in (["--tls-cert", cert], ["--tls-cert", cert, "--tls-key", cert]):
        p = subprocess.run([BINARY, "indexer", "--port", str(free_ports()), *map(str, args)], capture_output=True, text=True, timeout=30 * SLOW)
        assert p.returncode != 0 and "--tls-cert" in p.stderr
    port = free_ports()
    p = start(Indexer, "--tls-cert", cert, "--tls-key", key, port=port, plain=False)
    ctx = ssl.create_default_context(cafile=cert)

    def ask(method, path, body=None):
        import http.client
        c = http.client.HTTPSConnection("127.0.0.1", port, context=ctx, timeout=30 * SLOW)
        c.request(method, path, body, {"Content-Type": "application/json"})
        r = c.getresponse()
        out = r.status, r.read()
        c.close()
        return out
    wait_for("https", lambda: ask("GET", "/health")[0] == 200)
    assert ask("POST", "/query", json.dumps({"token_ids": list(range(100000)), "model_name": "m"}))[0] == 404
    assert len(ask("GET", "/metrics")[1]) > 3000
    with socket.create_connection(("127.0.0.1", port)) as s:  # plain HTTP on the TLS port
        s.sendall(b"GET /workers HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = s.recv(4000)
        assert answer.startswith(b"HTTP/1.1 400 ") and b"https://" in answer and b"worker" not in answer
    with socket.create_connection(("127.0.0.1", port)) as s:
        s.sendall(os.urandom(3000))
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(OSError), socket.create_connection(("127.0.0.1", port)) as s:
        old.wrap_socket(s)
    text = lambda: ask("GET", "/metrics")[1].decode()
    wait_for("counted", lambda: 'kvroute_http_tls_handshakes_failed_total{port="data"} 3' in text() or 'kvroute_http_tls_handshakes_failed_total{port="data"} 2' in text())
    assert p.p.poll() is None


def test_the_examples_of_the_manual(start, tmp_path):
    """The curl lines of docs/guides/indexer.md, one after the other, against a mock engine."""
    import re
    from conftest import Mock
    root = os.path.join(os.path.dirname(__file__), "../..")
    with open(os.path.join(root, "docs/guides/indexer.md"), encoding="utf-8") as f:
        text = f.read()
    mock, ix = start(Mock, "--block-size", 16), start(Indexer, "--data-dir", tmp_path / "d")
    block = re.search(r"```sh\n(.*?)```", text, re.S)[1]
    for a, b in {"8001": mock.port, "5557": mock.events, "5558": mock.replay, "8090": ix.port}.items():
        block = block.replace(f"127.0.0.1:{a}", f"127.0.0.1:{b}")
    commands = re.split(r"\n(?=curl)", block.strip())
    model = call(mock.port, "GET", "/v1/models").json()["data"][0]["id"]
    out = []
    for c in commands:
        c = c.replace('"model": "mock"', f'"model": "{model}"')
        if "/query" in c:  # the events take a moment
            wait_for("blocks", lambda: "\"0\":16" in subprocess.run(["bash", "-c", c], capture_output=True, text=True, check=True).stdout)
        out.append(subprocess.run(["bash", "-c", c], capture_output=True, text=True, check=True).stdout)
    assert len(out) == 8
    want = re.search(r"answer to the query:\n\n```json\n(.*?)\n```", text)[1]
    assert json.loads(out[2]) == json.loads(want)


def test_the_document_is_seen_whole():
    """Last of all: the tests above have met what the OpenAPI document promises, but for what needs a failing machine."""
    seen = {(p, m, status) for kind, p, m, status in SEEN if kind == "indexer"}
    if len(seen) < 40:
        pytest.skip("only with the whole file")
    doc = document_of("indexer")
    promised = {(p, m, int(s)) for p in doc.paths for m, o in doc.methods(p).items() for s in o["responses"] if p != "/openapi.json"}
    unseen = promised - seen
    assert not [x for x in unseen if x[2] in (200, 201, 409) and x != ("/register_peer", "post", 409)], unseen
    assert {s for _, _, s in seen} >= {200, 201, 400, 401, 404, 405, 409, 413, 415, 422, 503}


SALT = ["tenant-a"]


@pytest.mark.parametrize("kept", ["nothing", "copies", "salts", "windows"])
def test_a_peers_content_is_not_called_whole_without_what_its_stream_remembers(start, engine, kept):
    """A dump has no copies, no salts and no window groups: who goes on from it lacks blocks soon, or would claim too much at once."""
    e, tail = engine(), ["GPU", None, None]
    a = start(Indexer)
    a.register(7, e, replay=False)
    e.heard_by(1)
    e.send(e.batch(["AllBlocksCleared"]))

    def store(name, tokens, parent=None, extra=None, group=0, kind="full_attention"):
        e.send(e.batch(["BlockStored", [name], parent, tokens, 4, *tail, extra, group, kind, 8 if group else None, "LOCAL"]))
    store(1, TOKENS[:4], extra=[SALT] if kept == "salts" else None)
    store(2, TOKENS[4:8], parent=1)
    if kept == "copies":
        store(2, TOKENS[4:8], parent=1)
    if kept == "windows":
        store(2, TOKENS[4:8], group=1, kind="sliding_window")
        store(1, TOKENS[:4], group=1, kind="sliding_window")
    wait_for("whole there", lambda: a.trusted() and a.listeners()[(7, 0)]["next_sequence"] == e.seq)
    b = start(Indexer, "--peers", f"http://127.0.0.1:{a.port}")
    b.register(7, e, replay=False)
    wait_for("active", lambda: b.listeners()[(7, 0)]["status"] == "active")
    e.heard_by(2)
    store(3, TOKENS[8:12], parent=2, extra=[SALT] if kept == "salts" else None)
    wait_for("heard", lambda: all(ix.listeners()[(7, 0)]["next_sequence"] == e.seq for ix in (a, b)))
    view = a.get("/dump?views=1")["m:default"]["views"][0]
    expected = {"nothing": "whole", "windows": "unknown"}.get(kept, "partial")
    assert (view["view"], view["trusted"]) == (expected, expected != "unknown")
    assert b.listeners()[(7, 0)]["view"] == ("whole" if kept == "nothing" else "partial"), b.listeners()
    if kept == "windows":
        assert b.scores(TOKENS) == {}
    elif kept != "salts":
        assert b.scores(TOKENS) == a.scores(TOKENS) == {(7, 0): 12}
