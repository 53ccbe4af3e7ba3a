# SPDX-License-Identifier: Apache-2.0
"""The selection service and the slot tracker's routes: shapes, codes, life of a reservation, hostile bodies."""
import http.client
import json
import random
import threading
import urllib.parse

import pytest
from conftest import BINARY, Select, Serve, Mock, call, free_ports, local_hashes, stays, wait_for  # noqa: F401


def seqs_of(tokens, bs=4):
    import struct
    import xxhash
    out = []
    for h in local_hashes(tokens, bs):
        out.append(h if not out else xxhash.xxh3_64_intdigest(struct.pack("<QQ", out[-1], h), 1337))
    return out


def signed(values):
    return [v - 2 ** 64 if v >= 2 ** 63 else v for v in values]


def test_ready_is_honest(start):
    s = start(Select)
    r = call(s.port, "GET", "/ready")
    assert r.status == 503 and r.json()["workers"] == 0 and "error" in r.json()
    s.worker(7)
    assert call(s.port, "GET", "/ready").status == 200
    s.ask("/workers/7", method="DELETE")
    assert call(s.port, "GET", "/ready").status == 503


def test_select_books_nothing_and_reserve_does(start, engine):
    e = engine()
    s = start(Select)
    s.worker(1, kv_events_endpoints={"0": f"tcp://127.0.0.1:{e.events}"}, replay_endpoint=f"tcp://127.0.0.1:{e.replay_port}")
    s.worker(2)
    tokens = list(range(100, 117))
    e.until("subscribed", lambda: s.views()[(1, 0)]["trusted"])
    e.stored([11, 12, 13], tokens[:12])
    e.until("seen", lambda: s.overlap(tokens)[(1, 0)] == 3)
    r = s.ask("/select", {"token_ids": tokens})
    assert r == {"model_name": "default", "routing_group": "default", "worker_id": 1, "dp_rank": 0, "endpoint": "http://10.0.0.1:8000",
                 "block_size": 4, "overlap": {"longest_matched": 12, "gpu": 12, "dp": {"0": 12}, "cpu": 12, "disk": 12},
                 "effective_prefill_tokens": 5}
    assert s.idle()
    r = s.ask("/select_and_reserve", {"token_ids": tokens, "selection_id": "a"})
    assert r["selection_id"] == "a" and r["isl_tokens"] == 17 and r["track_prefill_tokens"] is True
    assert r["sequence_hashes"] == signed(seqs_of(tokens)) and r["effective_prefill_tokens"] == 5
    assert s.loads()[(1, 0)] == (5, 4, 1)
    # the same from hashes
    by_hash = s.ask("/select", {"block_hashes": signed(local_hashes(tokens, 4)), "sequence_hashes": signed(seqs_of(tokens)), "isl_tokens": 17})
    assert by_hash["worker_id"] == 1 and by_hash["effective_prefill_tokens"] == 1  # the rest is booked there already: it will be cached
    s.ask("/select_and_reserve", {"token_ids": tokens, "selection_id": "a"}, 409)
    s.ask("/reservations/a/prefill_complete")
    s.ask("/reservations/a/prefill_complete")  # once more: nothing happens
    assert s.loads()[(1, 0)] == (0, 4, 1)
    s.ask("/reservations/a/output_block")
    s.ask("/reservations/a/output_block", {"decay_fraction": 0.5})
    assert s.loads()[(1, 0)] == (0, 3, 1)  # (4 + 2) / 2
    s.ask("/reservations/a/renew")
    s.ask("/reservations/a", method="DELETE")
    s.ask("/reservations/a", status=404, method="DELETE")
    s.ask("/reservations/a/prefill_complete", status=404)
    assert s.idle()
    generated = s.ask("/select_and_reserve", {"token_ids": tokens})["selection_id"]
    s.ask(f"/reservations/{generated}", method="DELETE")
    assert s.idle()


def test_pending_selections_are_booked_once(start):
    s = start(Select)
    s.worker(1)
    tokens = list(range(20))
    r = s.ask("/select", {"token_ids": tokens, "selection_id": "x"})
    assert r["selection_id"] == "x" and s.idle()
    r = s.ask("/reservations", {"selection_id": "x"}, 201)
    assert r == {"selection_id": "x", "worker_id": 1, "dp_rank": 0, "effective_prefill_tokens": 20}
    assert s.loads()[(1, 0)] == (20, 5, 1)
    assert "no pending selection" in s.ask("/reservations", {"selection_id": "x"}, 404)["error"]
    assert "no pending selection" in s.ask("/reservations", {"selection_id": "never"}, 404)["error"]
    s.ask("/reservations/x", method="DELETE")
    # explicit: worker_id present
    body = {"selection_id": "y", "worker_id": 1, "dp_rank": 0, "sequence_hashes": signed(seqs_of(tokens)), "isl_tokens": 20}
    s.ask("/reservations", {**body, "effective_prefill_tokens": 21}, 400)
    s.ask("/reservations", {**body, "worker_id": 9}, 404)
    s.ask("/reservations", {**body, "dp_rank": 3}, 404)
    s.ask("/reservations", {**body, "effective_prefill_tokens": 7}, 201)
    assert s.loads()[(1, 0)] == (7, 5, 1)
    s.ask("/reservations", {**body, "effective_prefill_tokens": 7}, 409)
    s.ask("/reservations", {**body, "selection_id": "z", "track_prefill_tokens": False}, 201)
    assert s.loads()[(1, 0)] == (7, 5, 2)
    for i in "yz":
        s.ask(f"/reservations/{i}", method="DELETE")
    assert s.idle()


@pytest.mark.parametrize("name", ["a b", "a/b", "50%", "ä", "a?b#c", "x" * 200])
def test_a_reservation_whose_id_has_to_be_escaped_in_a_path_could_not_be_ended(start, name):
    s = start(Select)
    s.worker(1)
    s.ask("/select_and_reserve", {"token_ids": [1, 2, 3], "selection_id": name})
    at = "/reservations/" + urllib.parse.quote(name, safe="")
    for verb in ("/prefill_complete", "/output_block", "/renew"):
        s.ask(at + verb)
    s.ask(at, method="DELETE")
    s.ask(at, status=404, method="DELETE")


def test_pending_selections_are_bounded(start):
    s = start(Select, "--selection-cache-max-entries", 2)
    s.worker(1)
    for i in "abc":
        s.ask("/select", {"token_ids": [1] * 8, "selection_id": i})
    s.ask("/reservations", {"selection_id": "a"}, 404)  # the oldest went
    s.ask("/reservations", {"selection_id": "b"}, 201)
    s.ask("/reservations/b", method="DELETE")
    s2 = start(Select, "--selection-cache-ttl-secs", 0)
    s2.worker(1)
    s2.ask("/select", {"token_ids": [1] * 8, "selection_id": "a"})
    s2.ask("/reservations", {"selection_id": "a"}, 404)


def test_groups_are_apart(start):
    s = start(Select)
    s.worker(1, routing_group="a")
    s.worker(2, routing_group="b")
    s.worker(3, model_name="other")
    for group, worker in (("a", 1), ("b", 2)):
        assert s.ask("/select", {"token_ids": [1] * 8, "routing_group": group})["worker_id"] == worker
    assert s.ask("/select", {"token_ids": [1] * 8, "model_name": "other"})["worker_id"] == 3
    assert "no indexer" in s.ask("/select", {"token_ids": [1] * 8, "model_name": "none"}, 404)["error"]
    assert [w["worker_id"] for w in s.get("/workers?routing_group=a")] == [1]
    assert [w["worker_id"] for w in s.get("/loads?model_name=other")] == [3]


def test_a_worker_with_another_taint_each_time_is_never_refused(start):
    s = start(Select)
    s.worker(2, taints=["kept"])
    for i in range(1, 301):
        s.worker(1, taints=[f"canary-{i}"], kv_domain=f"rack-{i}")
    for taint, worker in (("canary-300", 1), ("kv-domain=rack-300", 1), ("kept", 2)):
        assert s.ask("/select", {"token_ids": [1] * 8, "routing_constraints": {"required_taints": [taint]}})["worker_id"] == worker
    s.ask("/select", {"token_ids": [1] * 8, "routing_constraints": {"required_taints": ["canary-1"]}}, 503)
    assert {w["worker_id"]: w["taints"] for w in s.get("/workers")} == {1: ["canary-300"], 2: ["kept"]}


@pytest.mark.parametrize("moves", [{}, {"routing_group": "full"}])
def test_a_worker_whose_taints_do_not_fit_stays_as_it_was(start, moves):
    def workers():
        return [{k: v for k, v in w.items() if k != "since_s"} for w in s.get("/workers")]

    s = start(Select)
    for i in range(1, 17):
        s.worker(i, taints=[f"t{i}-{k}" for k in range(16)], routing_group=moves.get("routing_group", "default"))
    s.worker(20)
    body = {"token_ids": [1] * 8, "pinned_worker": {"worker_id": 20, "dp_rank": 0}}
    s.ask("/select_and_reserve", {**body, "selection_id": "a"})
    before, loads = workers(), s.loads()
    for _ in range(2):
        assert "taints" in s.worker(20, taints=["one more"], status=409, **moves)["error"]
        assert workers() == before and s.loads() == loads and loads[(20, 0)][2] == 1
        assert s.ask("/select", body)["worker_id"] == 20
    s.ask("/workers/1", method="DELETE")
    s.worker(20, taints=["one more"], **moves)
    assert next(w["taints"] for w in workers() if w["worker_id"] == 20) == ["one more"]


def test_groups_and_models_that_come_and_go_are_never_refused(start):
    s = start(Select)
    s.worker(1, routing_group="kept")
    for i in range(300):
        s.worker(20, **({"routing_group": f"g{i}"} if i % 2 else {"model_name": f"m{i}"}))
        s.ask("/workers/20", method="DELETE")
    s.worker(20, routing_group="last")
    for group, worker in (("kept", 1), ("last", 20)):
        assert s.ask("/select", {"token_ids": [1] * 8, "routing_group": group})["worker_id"] == worker
    s.ask("/select", {"token_ids": [1] * 8, "routing_group": "g299"}, 404)
    assert call(s.port, "GET", "/metrics").body.count(b"\nkvroute_index_blocks{") == 256


def test_a_group_with_a_selection_that_may_be_booked_is_not_given_up(start):
    s = start(Select)
    s.worker(2, routing_group="chosen from")
    s.ask("/select", {"token_ids": [1] * 8, "routing_group": "chosen from", "selection_id": "a"})
    for i in range(260):
        s.worker(2, routing_group=f"g{i}")
    assert "worker or rank" in s.ask("/reservations", {"selection_id": "a"}, 404)["error"]
    assert s.idle()


def test_groups_that_all_have_workers_are_not_given_up(start):
    s = start(Select)
    for i in range(256):
        s.worker(i, endpoint=f"http://10.0.1.{i}:8000", routing_group=f"g{i}")
    assert "256 partitions" in s.worker(1000, endpoint="http://10.0.2.1:8000", routing_group="more", status=409)["error"]
    s.ask("/workers/77", method="DELETE")
    s.worker(1000, endpoint="http://10.0.2.1:8000", routing_group="more")
    assert s.ask("/select", {"token_ids": [1] * 8, "routing_group": "more"})["worker_id"] == 1000
    s.ask("/select", {"token_ids": [1] * 8, "routing_group": "g77"}, 404)


def test_constraints_narrow_the_choice(start):
    s = start(Select)
    for i in (1, 2, 3):
        s.worker(i, taints=["zone=a"] if i == 2 else [])
    body = {"token_ids": [5] * 16}
    assert s.ask("/select", {**body, "allowed_worker_ids": [3]})["worker_id"] == 3
    assert s.ask("/select", {**body, "routing_constraints": {"required_taints": ["zone=a"]}})["worker_id"] == 2
    s.ask("/select", {**body, "routing_constraints": {"required_taints": ["zone=b"]}}, 503)
    for _ in range(5):
        assert s.ask("/select", {**body, "routing_constraints": {"preferred_taints": {"zone=a": 1.5}}})["worker_id"] == 2
    assert s.ask("/select", {**body, "pinned_worker": {"worker_id": 1, "dp_rank": 0}})["worker_id"] == 1
    s.ask("/select", {**body, "pinned_worker": {"worker_id": 1, "dp_rank": 4}}, 400)
    s.ask("/select", {**body, "pinned_worker": {"worker_id": 8, "dp_rank": 0}}, 404)
    s.ask("/select", {**body, "pinned_worker": {"worker_id": 1, "dp_rank": 0}, "allowed_worker_ids": [2]}, 400)
    assert "allowed_worker_ids" in s.ask("/select", {**body, "allowed_worker_ids": [1] * 8193}, 400)["error"]
    assert s.get("/workers")[1]["taints"] == ["zone=a"]


def test_shared_cache_hits_lower_the_cost_of_all(start):
    s = start(Select, "--shared-cache-multiplier", 0.5)
    s.worker(1)
    body = {"token_ids": list(range(40)), "shared_cache_ranges": [[0, 10]]}
    assert s.ask("/select", body)["worker_id"] == 1
    s.ask("/select", {**body, "shared_cache_ranges": [[5, 2]]}, 400)


def test_a_full_queue_answers_529_and_a_busy_fleet_makes_wait(start, tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text("policy_classes:\n- name: default\n  prefill_busy_threshold: 0\n  request_queue_limit_per_worker: 1\n"
                      "default_policy_family: default\n")
    s = start(Select, "--router-policy-config", policy, "--queue-timeout", 20)
    s.worker(1)
    s.ask("/select_and_reserve", {"token_ids": [1] * 16, "selection_id": "first"})
    answers = []
    t = threading.Thread(target=lambda: answers.append(s.ask("/select_and_reserve", {"token_ids": [2] * 16, "selection_id": "second"})))
    t.start()
    wait_for("queued", lambda: s.metric("router_queue_pending_requests") == 1)
    r = s.ask("/select_and_reserve", {"token_ids": [3] * 16, "selection_id": "third"}, 529)
    assert r["limit_kind"] == "requests" and r["policy_class"] == "default" and r["current"] == r["limit"] == 1
    assert s.metric("router_queue_backpressure_total", reason="request_limit") == 1
    s.ask("/reservations/first/prefill_complete")
    t.join()
    assert answers[0]["worker_id"] == 1 and answers[0]["queued_ms"] > 0
    # a client that goes away while it waits leaves nothing behind
    c = http.client.HTTPConnection("127.0.0.1", s.port)
    c.request("POST", "/select_and_reserve", json.dumps({"token_ids": [4] * 16}), {"Content-Type": "application/json"})
    wait_for("queued", lambda: s.metric("router_queue_pending_requests") == 1)
    c.close()
    wait_for("left", lambda: s.metric("router_queue_pending_requests") == 0)
    for i in ("first", "second"):
        s.ask(f"/reservations/{i}", method="DELETE")
    assert s.idle()


def test_waiting_ends_after_the_queue_timeout(start):
    s = start(Select, "--router-queue-threshold", 0, "--queue-timeout", 0.2)
    s.worker(1, max_num_batched_tokens=100)
    s.ask("/select_and_reserve", {"token_ids": [1] * 16, "selection_id": "first"})
    assert "in time" in s.ask("/select_and_reserve", {"token_ids": [2] * 16}, 503)["error"]
    s.ask("/reservations/first", method="DELETE")
    assert s.idle()


def test_leases_end_when_nothing_is_heard(start):
    s = start(Select, "--router-active-request-expiry-secs", 4)  # a renewal has to come within that
    s.worker(1)
    s.ask("/select_and_reserve", {"token_ids": [1] * 16, "selection_id": "quiet"})
    s.ask("/select_and_reserve", {"token_ids": [1] * 16, "selection_id": "alive"})
    alive = lambda: s.ask("/reservations/alive/renew")["status"] == "ok"
    wait_for("expiry", lambda: alive() and s.loads()[(1, 0)][2] == 1)
    stays("the renewed one", alive, 0.3)
    s.ask("/reservations/alive", method="DELETE")
    assert s.idle()


def test_overrides(start):
    s = start(Select)
    s.worker(1)
    for bad in ({"router_temperature": -1}, {"overlap_score_credit": "x"}, {"unknown_key": 1}, {"assume_kv_reuse": 3}, {"shared_cache_multiplier": 2},
                {"overlap_score_weight": -1, "prefill_load_scale": 1}, {"overlap_score_credit": -1, "overlap_score_weight": 0}, 5):
        r = s.ask("/select", {"token_ids": [1] * 8, "router_config_override": bad}, 400)
        key = next(iter(bad)) if isinstance(bad, dict) else "router_config_override"
        assert key.replace("router_", "").replace("shared_cache_", "shared_").replace("overlap_score_", "overlap_") in r["error"] or key in r["error"], r
    s.ask("/select_and_reserve", {"token_ids": [1] * 8, "selection_id": "a", "router_config_override": {"track_prefill_tokens": False}})
    assert s.loads()[(1, 0)] == (0, 2, 1)
    s.ask("/select_and_reserve", {"token_ids": [1] * 8, "selection_id": "b", "router_config_override": {"assume_kv_reuse": False}})
    assert s.loads()[(1, 0)] == (8, 4, 2)
    for i in "ab":
        s.ask(f"/reservations/{i}", method="DELETE")
    assert s.idle()


def test_request_protocol(start):
    s = start(Select)
    s.worker(1)
    r = s.ask("/request", {"method": "new", "tokens": [1] * 16, "request_id": "q"})
    assert r == {"method": "new", "worker_id": 1, "dp_rank": 0, "overlap_blocks": 0}
    assert s.ask("/request", {"method": "mark_prefill", "request_id": "q"}) == {"method": "prefill_marked", "success": True}
    assert s.loads()[(1, 0)] == (0, 4, 1)
    r = s.ask("/request", {"method": "potential_loads", "tokens": [2] * 16})
    assert r == {"method": "potential_loads", "pending_count": 0, "pending_isl_tokens": 0,
                 "loads": [{"worker_id": 1, "dp_rank": 0, "potential_prefill_tokens": 16, "potential_decode_blocks": 8, "active_requests": 1}]}
    assert s.ask("/request", {"method": "mark_free", "request_id": "q"}) == {"method": "free_marked", "success": True}
    assert s.ask("/request", {"method": "mark_free", "request_id": "q"})["success"] is False
    s.ask("/request", {"method": "new", "tokens": [1] * 16, "request_id": ""}, headers={"x-request-id": "from-context"})
    assert s.ask("/request", {"method": "mark_free"}, headers={"x-request-id": "from-context"})["success"] is True
    made = s.ask("/request", {"method": "new", "tokens": [1] * 16})  # nobody named it
    assert s.ask("/request", {"method": "mark_free", "request_id": made["request_id"]})["success"] is True
    s.ask("/request", {"method": "new", "tokens": [1] * 16}, 400, headers={"x-request-id": "x" * 201})
    s.ask("/request", {"method": "dance"}, 400)
    s.ask("/request", {"method": "mark_free"}, 400)
    assert s.idle()


def test_slot_tracker(start):
    s = start(Select)
    reg = {"worker_id": 4, "model_name": "m", "block_size": 4, "dp_start": 2, "dp_size": 2}
    s.ask("/register", reg, 201)
    s.ask("/register", {**reg, "worker_id": 5, "block_size": 8}, 409)
    s.ask("/register", {**reg, "dp_size": 1}, 409)
    for key in ("worker_id", "model_name", "block_size", "dp_size"):
        assert key in s.ask("/register", {k: v for k, v in reg.items() if k != key}, 400)["error"]
    add = {"model_name": "m", "request_id": "r", "worker_id": 4, "dp_rank": 3, "sequence_hashes": [1, -2, 3], "new_isl_tokens": 40}
    s.ask("/add", add, 201)
    s.ask("/add", add, 409)
    s.ask("/register", reg, 201)  # said again: what is booked stays
    s.ask("/add", {**add, "request_id": "s", "sequence_hashes": [1, -2, 9], "new_isl_tokens": 0}, 201)
    s.ask("/add", {**add, "request_id": "t", "dp_rank": 9}, 404)
    s.ask("/add", {**add, "request_id": "t", "model_name": "other"}, 404)
    s.ask("/add", {**add, "request_id": "t", "sequence_hashes": None}, 400)
    assert s.loads() == {(4, 2): (0, 0, 0), (4, 3): (40, 4, 2)}
    row = s.get("/loads?model_name=m&routing_group=default")[1]
    assert {k: row[k] for k in ("model_name", "routing_group", "worker_id", "dp_rank", "active_prefill_tokens", "active_decode_blocks")} == {
        "model_name": "m", "routing_group": "default", "worker_id": 4, "dp_rank": 3, "active_prefill_tokens": 40, "active_decode_blocks": 4}
    p = {(l["worker_id"], l["dp_rank"]): l for l in
         s.ask("/potential_loads", {"model_name": "m", "sequence_hashes": [1, -2, 7, 8], "new_isl_tokens": 16})}
    assert p[(4, 3)] == {"worker_id": 4, "dp_rank": 3, "potential_prefill_tokens": 56, "potential_decode_blocks": 6, "active_requests": 2}
    assert p[(4, 2)]["potential_decode_blocks"] == 4 and p[(4, 2)]["potential_prefill_tokens"] == 16
    scope = {"model_name": "m", "request_id": "r"}
    s.ask("/prefill_complete", scope)
    s.ask("/prefill_complete", scope)
    s.ask("/prefill_complete", {**scope, "request_id": "zz"}, 404)
    assert s.loads()[(4, 3)] == (0, 4, 2)
    s.ask("/free", scope)
    s.ask("/free", scope)  # free already
    s.ask("/free", {**scope, "model_name": "other"}, 404)
    s.ask("/free", {**scope, "request_id": "s"})
    assert s.idle()
    s.ask("/unregister", {"worker_id": 4, "model_name": "other"}, 404)
    s.ask("/unregister", {"worker_id": 4, "model_name": "m"})
    s.ask("/unregister", {"worker_id": 4, "model_name": "m"}, 404)
    assert s.get("/workers") == []


def test_names_are_escaped_in_labels(start):
    s = start(Select)
    s.ask("/register", {"worker_id": 4, "model_name": 'a"b\\c\nd', "routing_group": "g", "block_size": 4, "dp_start": 0, "dp_size": 1}, 201)
    want = r'kvroute_router_queue_pending_requests{model="a\"b\\c\nd",routing_group="g",policy_class="default",block_size="4"} 0'
    assert want in call(s.admin, "GET", "/metrics").body.decode().splitlines()


def test_serve_has_the_same_routes(fleet):
    s, _ = fleet
    tokens = list(range(64))
    r = s.post("/select_and_reserve", {"token_ids": tokens, "selection_id": "mine"}).json()
    assert r["endpoint"].startswith("http://127.0.0.1:")
    assert sum(l["active_requests"] for l in s.get("/loads")) == 1
    assert s.complete(tokens).status == 200  # beside it
    assert call(s.admin, "DELETE", "/reservations/mine").status == 200
    wait_for("idle", s.idle)
    # book-keeping only: never sent to
    assert s.post("/register", {"worker_id": 50, "model_name": "default", "block_size": 16, "dp_start": 0, "dp_size": 1}).status == 201
    assert {s.complete([i] * 20).headers["x-kvroute-worker"] for i in range(6)} <= {"1", "2"}


def test_serve_keeps_models_apart_in_one_partition(start):
    a, b = start(Mock), start(Mock)
    s = start(Serve, [a.spec(",model=mock,group=x"), b.spec(",model=other,group=y")], ready=False)
    wait_for("up", lambda: call(s.port, "GET", "/ready").status == 200)
    for _ in range(4):
        assert s.post("/select", {"token_ids": [1] * 32, "model_name": "other"}).json()["worker_id"] == 2
        assert s.post("/select", {"token_ids": [1] * 32, "routing_group": "x"}).json()["worker_id"] == 1
    assert s.post("/select", {"token_ids": [1] * 32, "model_name": "other", "allowed_worker_ids": [1]}).status == 503
    assert s.post("/select", {"token_ids": [1] * 32, "model_name": "nobody's"}).status == 404


BODIES = ["", "{", "[]", "null", "7", '"x"', "{}", '{"token_ids":7}', '{"token_ids":[-1]}', '{"token_ids":["a"]}', '{"token_ids":[4294967296]}',
          '{"token_ids":[1],"model_name":5}', '{"block_hashes":[1],"sequence_hashes":[1,2]}', '{"sequence_hashes":[1]}',
          '{"token_ids":[1],"allowed_worker_ids":"x"}', '{"token_ids":[1],"routing_constraints":[1]}',
          '{"token_ids":[1],"routing_constraints":{"required_taints":[1]}}', '{"token_ids":[1],"routing_constraints":{"preferred_taints":{"a":"b"}}}',
          '{"token_ids":[1],"pinned_worker":{}}', '{"token_ids":[1],"selection_id":7}', '{"token_ids":[1],"selection_id":"' + "x" * 300 + '"}',
          '{"token_ids":[1],"priority_jump":"now"}', '{"token_ids":[1],"strict_priority":-1}', '{"token_ids":[1],"isl_tokens":1e30}',
          '{"worker_id":"a"}', '{"worker_id":1,"dp_rank":-1,"sequence_hashes":[],"isl_tokens":1}', '{"method":1}', '{"method":"new"}']
ROUTES = ["/select", "/select_and_reserve", "/reservations", "/request", "/register", "/unregister", "/add", "/prefill_complete", "/free",
          "/potential_loads", "/overlap_scores", "/busy_threshold", "/workers"]


def test_bad_bodies_are_named_and_book_nothing(start):
    s = start(Select)
    s.worker(1)
    for route in ROUTES:
        for body in BODIES:
            r = call(s.port, "POST", route, body)
            assert r.status < 500 or r.status == 503, (route, body, r.status, r.body)
            assert r.status >= 400 or (route, body) in (("/busy_threshold", "{}"),) or route in ("/potential_loads", "/overlap_scores", "/busy_threshold", "/workers"), (route, body, r.body)
            if r.status >= 400:
                assert r.json()["error"], (route, body)
    assert s.idle()


def test_a_negative_id_among_those_allowed_was_taken_for_a_large_one(start):
    s = start(Select)
    s.worker(2 ** 64 - 1, endpoint="http://10.0.0.1:8000")
    for bad in ([-1], [2 ** 64 - 1, -1], ["1"], [1.5], {}, "x"):
        assert "allowed_worker_ids" in s.ask("/select", {"token_ids": [1, 2, 3], "allowed_worker_ids": bad}, 400)["error"]
    assert s.ask("/select", {"token_ids": [1, 2, 3], "allowed_worker_ids": [1, 2 ** 64 - 1]})["worker_id"] == 2 ** 64 - 1


def test_a_range_of_three_blocks_was_taken_for_one_of_two(start):
    s = start(Select)
    s.worker(1)
    for bad in ([[0, 1, 2]], [[0]], [{}], [[2, 1]]):
        assert "shared_cache_ranges" in s.ask("/select", {"token_ids": [1, 2, 3], "shared_cache_ranges": bad}, 400)["error"]
    s.ask("/select", {"token_ids": [1, 2, 3], "shared_cache_ranges": [[0, 1]]})


def test_random_bodies(start):
    """Mutated bodies: no crash, and whatever was booked can be found and freed."""
    s = start(Select)
    s.worker(1)
    s.worker(2, data_parallel_size=2)
    rng = random.Random(5)
    base = [{"token_ids": [1, 2, 3, 4, 5], "selection_id": "a", "model_name": "default", "router_config_override": {"router_temperature": 0.5}},
            {"block_hashes": [1], "sequence_hashes": [1], "isl_tokens": 4, "routing_constraints": {"preferred_taints": {"x": 1}}},
            {"worker_id": 1, "dp_rank": 0, "sequence_hashes": [1, 2], "isl_tokens": 8, "selection_id": "b"},
            {"model_name": "default", "request_id": "c", "worker_id": 2, "dp_rank": 1, "sequence_hashes": [3], "new_isl_tokens": 1}]
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60)
    booked = []
    for i in range(1500):
        body = bytearray(json.dumps(rng.choice(base)).encode())
        for _ in range(rng.randrange(4)):
            at = rng.randrange(len(body))
            body[at:at + rng.randrange(3)] = bytes(rng.choice(b'{}[]",:0123456789ean-.\\ ') for _ in range(rng.randrange(3)))
        route = rng.choice(["/select", "/select_and_reserve", "/reservations", "/add", "/potential_loads"])
        c.request("POST", route, bytes(body), {"Content-Type": "application/json"})
        r = c.getresponse()
        answer = r.read()
        assert r.status in (200, 201, 400, 404, 409, 503), (route, body, r.status, answer)
        if r.status in (200, 201) and route in ("/select_and_reserve", "/reservations"):
            booked.append(json.loads(answer)["selection_id"])
        if r.status == 201 and route == "/add":
            o = json.loads(body)
            call(s.port, "POST", "/free", {k: o[k] for k in ("model_name", "routing_group", "request_id") if k in o})
    assert len(booked) > 3
    from urllib.parse import quote
    for b in booked:
        if all(32 < ord(ch) < 127 and ch not in '/?#%"\\' for ch in b):
            assert call(s.port, "DELETE", f"/reservations/{quote(b)}").status == 200
    for l in s.get("/loads"):
        assert l["active_requests"] <= sum(1 for b in booked if not all(32 < ord(ch) < 127 and ch not in '/?#%"\\' for ch in b))


@pytest.mark.parametrize("method", ["reservations", "request"])
def test_what_callers_report_teaches_the_times(start, method):
    """Nothing passes through the service: without the reports its times would be guesses for ever."""
    s = start(Select)
    s.worker(1)
    error = [s.metric("ttft_model_error_ms")]
    for i in range(2):
        s.ask("/select_and_reserve", {"token_ids": list(range(1000 * i, 1000 * i + 64)), "selection_id": f"a{i}"})
        assert s.metric("ttft_model_error_ms") == error[-1]
        if method == "request":
            assert s.ask("/request", {"method": "mark_prefill", "request_id": f"a{i}"})["success"]
        else:
            s.ask(f"/reservations/a{i}/prefill_complete")
        error.append(s.metric("ttft_model_error_ms"))
    assert error[0] == 0 and len(set(error)) == 3
    for _ in range(3):
        s.ask("/reservations/a0/output_block")
    s.ask("/reservations/a0", method="DELETE")
    s.ask("/reservations/a1", method="DELETE")  # no output was told of it
    assert s.metric("generation_model_tokens") == 8 and s.metric("generation_model_base_ms") > 0
