# SPDX-License-Identifier: Apache-2.0
"""The selection service with prefill and decode workers: a pair in one question, booked in one go, and what ends each of its bookings."""
import threading

import pytest
from conftest import Mock, Select, Serve, call, free_ports, wait_for  # noqa: F401

PROMPT = list(range(100, 117))  # 17 tokens, 4 blocks of 4 and a part of one
BODY = {"token_ids": PROMPT}


def two_and_two(start, *options, **more):
    s = start(Select, *options)
    for i, role in ((1, "prefill"), (2, "prefill"), (11, "decode"), (12, "decode")):
        s.worker(i, role=role, **more)
    return s


def reserve(s, name, status=200, **more):
    return s.ask("/select_and_reserve", {**BODY, "legs": 2, "selection_id": name, **more}, status)


def test_a_pair_is_chosen_and_nothing_is_booked(start, engine):
    e = engine()
    s = two_and_two(start)
    s.worker(2, role="prefill", kv_events_endpoints={"0": f"tcp://127.0.0.1:{e.events}"}, replay_endpoint=f"tcp://127.0.0.1:{e.replay_port}")
    e.until("subscribed", lambda: s.views()[(2, 0)]["trusted"])
    e.stored([11, 12, 13], PROMPT[:12])
    e.until("seen", lambda: s.ask("/select_pair", BODY)["prefill"]["overlap"]["gpu"] == 12)
    r = s.ask("/select_pair", BODY)
    d = r["decode"]["worker_id"]
    assert d in (11, 12)
    assert r == {"model_name": "default", "routing_group": "default", "treatment": "remote", "kv_protocol": "vllm-nixl", "bootstrap": None, "eff_isl": 5,
                 "prefill": {"worker_id": 2, "dp_rank": 0, "endpoint": "http://10.0.0.2:8000", "block_size": 4, "effective_prefill_tokens": 5,
                             "overlap": {"longest_matched": 12, "gpu": 12, "dp": {"0": 12}, "cpu": 12, "disk": 12}},
                 "decode": {"worker_id": d, "dp_rank": 0, "endpoint": f"http://10.0.0.{d}:8000", "block_size": 4, "effective_prefill_tokens": 0,
                            "overlap": {"longest_matched": 0, "gpu": 0, "dp": {"0": 0}, "cpu": 0, "disk": 0}}}
    assert s.idle()


def test_both_legs_are_booked_under_one_id_and_each_ends_when_it_is_over(start):
    s = two_and_two(start)
    r = reserve(s, "a")
    p, d = r["prefill"]["worker_id"], r["decode"]["worker_id"]
    assert r["treatment"] == "remote" and r["selection_id"] == "a" and r["isl_tokens"] == 17 and len(r["sequence_hashes"]) == 4
    assert s.loads()[(p, 0)] == (17, 0, 1) and s.loads()[(d, 0)] == (0, 5, 1)
    reserve(s, "a", 409)
    s.ask("/reservations/a/renew")
    s.ask("/reservations/a/prefill_complete")
    assert s.loads()[(p, 0)] == (0, 0, 0) and s.loads()[(d, 0)] == (0, 5, 1)
    s.ask("/reservations/a/prefill_complete")  # said twice
    s.ask("/reservations/a/output_block")
    assert s.loads()[(d, 0)] == (0, 6, 1)
    reserve(s, "a", 409)  # it goes on
    assert s.loads()[(p, 0)] == (0, 0, 0)
    s.ask("/reservations/a", method="DELETE")
    assert s.idle()
    s.ask("/reservations/a", status=404, method="DELETE")
    r = reserve(s, "b")
    s.ask("/reservations/b", method="DELETE")  # both at once: the client has left
    assert s.idle()
    s.ask("/reservations/b/prefill_complete", status=404)
    s.ask("/request", {"method": "mark_prefill", "request_id": reserve(s, "c")["selection_id"]})
    assert s.ask("/request", {"method": "mark_free", "request_id": "c"}) == {"method": "free_marked", "success": True}
    assert s.idle()


def test_equal_prompts_share_no_blocks_where_they_decode(start):
    s = two_and_two(start)
    for name in "ab":
        assert reserve(s, name, allowed_worker_ids=[1, 2, 11])["decode"]["worker_id"] == 11
    assert s.loads()[(11, 0)] == (0, 10, 2) and s.loads()[(12, 0)] == (0, 0, 0)
    for name in "ab":
        s.ask(f"/reservations/{name}", method="DELETE")
    assert s.idle()


@pytest.mark.parametrize("roles, treatment, chosen", [({1: "both", 2: "prefill"}, "aggregated", 1), ({11: "decode"}, "local", 11),
                                                      ({1: "both", 2: "both"}, "aggregated", None)])
def test_without_a_pair_one_worker_gets_all_of_it(start, roles, treatment, chosen):
    s = start(Select)
    for i, role in roles.items():
        s.worker(i, role=role)
    r = s.ask("/select_pair", BODY)
    assert (r["treatment"], r["prefill"], r["kv_protocol"]) == (treatment, None, None) and chosen in (None, r["decode"]["worker_id"])
    r = reserve(s, "a")
    assert s.loads()[(r["decode"]["worker_id"], 0)] == (17, 4, 1)
    s.ask("/reservations/a/prefill_complete")
    assert s.loads()[(r["decode"]["worker_id"], 0)] == (0, 4, 1)
    s.ask("/reservations/a", method="DELETE")
    assert s.idle()


def test_nothing_is_booked_where_nobody_could_decode(start):
    s = start(Select)
    s.worker(1, role="prefill")
    for question in ("/select_pair", "/select_and_reserve"):
        assert "no pair" in s.ask(question, {**BODY, "legs": 2}, 503)["error"]
    s.worker(11, role="decode", local_prefill=False)
    reserve(s, "a", 503, allowed_worker_ids=[1])
    reserve(s, "a", 503, allowed_worker_ids=[11])
    assert s.idle()
    s.worker(1, role="prefill", kv_protocol="trtllm")  # they do not understand each other
    reserve(s, "a", 503)
    assert s.idle()
    assert "no indexer" in s.ask("/select_pair", {**BODY, "model_name": "other"}, 404)["error"]


def test_a_phase_asks_for_one_worker_of_a_pair(start):
    s = two_and_two(start)
    s.worker(21, role="both")
    for phase, allowed in (("prefill", {1, 2}), ("decode", {11, 12})):
        for _ in range(3):
            assert s.ask("/select", {**BODY, "phase": phase})["worker_id"] in allowed
    assert s.ask("/select", {**BODY, "phase": "aggregated", "allowed_worker_ids": [1, 21]})["worker_id"] == 21
    r = s.ask("/select_and_reserve", {**BODY, "phase": "prefill", "selection_id": "p"})
    assert s.loads()[(r["worker_id"], 0)] == (17, 0, 1)
    r = s.ask("/select_and_reserve", {**BODY, "phase": "decode", "selection_id": "d"})
    d = r["worker_id"]
    assert s.loads()[(d, 0)] == (0, 5, 1) and r["effective_prefill_tokens"] == 0 and r["track_prefill_tokens"] is False
    assert s.ask("/select", {**BODY, "phase": "decode", "allowed_worker_ids": [d], "selection_id": "later"})["worker_id"] == d
    s.ask("/reservations", {"selection_id": "later"}, 201)
    assert s.loads()[(d, 0)] == (0, 10, 2)
    s.ask("/reservations", {"selection_id": "mine", "worker_id": 1, "token_ids": PROMPT}, 201)  # a prefill worker that the caller has chosen
    for name in ("p", "d", "later", "mine"):
        s.ask(f"/reservations/{name}/prefill_complete")
        s.ask(f"/reservations/{name}", method="DELETE")
    assert s.idle()


def test_pins_and_protocols_and_groups_narrow_a_pair(start):
    s = two_and_two(start)
    s.worker(3, role="prefill", kv_protocol="trtllm")
    s.worker(13, role="decode", kv_protocol="trtllm")
    s.worker(21, role="both")
    s.worker(4, role="prefill", routing_group="g")
    s.worker(14, role="decode", routing_group="g")

    def pair(**more):
        r = s.ask("/select_pair", {**BODY, **more})
        return r["prefill"] and r["prefill"]["worker_id"], r["decode"]["worker_id"]
    for pin in (1, 2):
        assert pair(pinned_worker={"worker_id": pin})[0] == pin
    for pin in (11, 12):
        assert pair(pinned_worker={"worker_id": pin})[1] == pin
    assert pair(pinned_worker={"worker_id": 21}) == (None, 21)
    assert pair(pinned_worker={"worker_id": 13}) == (3, 13)
    assert pair(kv_protocol="trtllm") == (3, 13)
    assert pair(routing_group="g") == (4, 14)
    s.ask("/select_pair", {**BODY, "pinned_worker": {"worker_id": 12}, "allowed_worker_ids": [1, 11]}, 400)
    assert s.ask("/select", {**BODY, "routing_group": "g"})["worker_id"] == 14  # a question of one worker is for one that answers
    s.ask("/workers/14", method="DELETE")
    assert s.ask("/select", {**BODY, "routing_group": "g", "phase": "prefill"})["worker_id"] == 4
    s.ask("/select", {**BODY, "routing_group": "g", "phase": "decode"}, 404)


@pytest.mark.parametrize("mode, found", [("preferred", {(1, 12), (2, 11)}), ("required", {(1, 12)})])
def test_a_pair_keeps_to_a_transfer_domain(start, mode, found):
    s = start(Select, "--kv-transfer-domain", mode)
    for i, role, domain in ((1, "prefill", "a"), (2, "prefill", "c"), (11, "decode", "b"), (12, "decode", "a")):
        s.worker(i, role=role, kv_domain=domain)
    s.ask("/select_and_reserve", {**BODY, "phase": "decode", "allowed_worker_ids": [12], "selection_id": "busy"})  # twice the price, not more

    def pair(n):
        r = reserve(s, f"r{n}")
        s.ask(f"/reservations/r{n}", method="DELETE")
        return r["prefill"]["worker_id"], r["decode"]["worker_id"]
    assert {pair(n) for n in range(6)} == found
    if mode == "required":
        s.worker(12, role="decode", kv_domain="d")
        r = s.ask("/select_pair", BODY)
        assert (r["treatment"], r["prefill"]) == ("local", None)


def test_the_rule_of_one_leg_or_two_is_that_of_requests(start, engine):
    e = engine()
    s = start(Select, "--router-conditional-disagg", "--router-conditional-disagg-eff-isl-threshold", 6)
    s.worker(1, role="prefill")
    s.worker(2, role="prefill", kv_protocol="trtllm")
    s.worker(11, role="decode", kv_events_endpoints={"0": f"tcp://127.0.0.1:{e.events}"}, replay_endpoint=f"tcp://127.0.0.1:{e.replay_port}")
    s.worker(12, role="decode")
    e.until("subscribed", lambda: s.views()[(11, 0)]["trusted"])
    assert s.ask("/select_pair", BODY)["treatment"] == "remote"
    e.stored([11, 12, 13], PROMPT[:12])  # 5 of 17 are left to compute
    e.until("seen", lambda: s.overlap(PROMPT)[(11, 0)] == 3)
    r = s.ask("/select_pair", BODY)
    assert (r["treatment"], r["prefill"], r["decode"]["worker_id"], r["eff_isl"]) == ("local", None, 11, 5)
    r = s.ask("/select_pair", {"token_ids": PROMPT + [1, 2]})  # 7
    assert (r["treatment"], r["eff_isl"]) == ("remote", 7)
    r = reserve(s, "a")
    assert r["treatment"] == "local" and s.loads()[(11, 0)] == (5, 4, 1) and s.loads()[(1, 0)] == (0, 0, 0)
    s.ask("/reservations/a", method="DELETE")
    assert s.ask("/select_pair", {**BODY, "pinned_worker": {"worker_id": 1}})["treatment"] == "remote"
    assert s.idle()


def test_each_leg_may_have_a_mode_of_its_own(start):
    s = two_and_two(start, "--decode-router-mode", "round-robin")
    s.ask("/select_and_reserve", {**BODY, "phase": "decode", "allowed_worker_ids": [11], "selection_id": "busy"})
    for more in ({}, {"phase": "decode"}):
        got = [s.ask("/select" if more else "/select_pair", {**BODY, **more}) for _ in range(4)]
        chosen = [r["worker_id"] if more else r["decode"]["worker_id"] for r in got]
        assert sorted(chosen) == [11, 11, 12, 12] and chosen[0] != chosen[1]
    s.worker(21)
    assert {s.ask("/select", {**BODY, "allowed_worker_ids": [11, 21]})["worker_id"] for _ in range(4)} == {21}  # of no leg: by load
    s.ask("/reservations/busy", method="DELETE")


def test_engines_that_meet_are_told_where_and_no_room_comes_twice(start):
    s = start(Select)
    s.worker(1, role="prefill", kv_protocol="sglang", bootstrap="10.0.0.9:9000", data_parallel_size=4, data_parallel_start_rank=4)
    s.worker(11, role="decode", kv_protocol="sglang")
    rooms = set()
    for rank in (4, 7):
        for _ in range(10):
            r = s.ask("/select_pair", {**BODY, "pinned_worker": {"worker_id": 1, "dp_rank": rank}})
            b = r["bootstrap"]
            assert (r["prefill"]["dp_rank"], b["host"], b["port"], b["room"] % 4) == (rank, "10.0.0.9", 9000, rank - 4) and 0 <= b["room"] < 2 ** 63
            rooms.add(b["room"])
    assert len(rooms) == 20
    r = reserve(s, "a")
    assert r["bootstrap"]["host"] == "10.0.0.9"
    s.ask("/reservations/a", method="DELETE")
    s.worker(2, role="prefill", kv_protocol="vllm-mooncake", routing_group="m")
    s.worker(12, role="decode", kv_protocol="vllm-mooncake", routing_group="m")
    assert s.ask("/select_pair", {**BODY, "routing_group": "m"})["bootstrap"] == {"host": "10.0.0.2", "port": 8998, "room": None}
    assert s.idle()


def test_pools_may_have_different_block_sizes(start):
    s = start(Select)
    s.worker(1, role="prefill", block_size=4)
    s.worker(11, role="decode", block_size=8)
    s.worker(2, role="prefill", block_size=8, status=409)
    s.worker(21, role="both", block_size=4, status=409)  # it could take the place of a decode worker
    r = reserve(s, "a")
    assert (r["prefill"]["block_size"], r["decode"]["block_size"]) == (4, 8)
    assert s.loads() == {(1, 0): (17, 0, 1), (11, 0): (0, 3, 1)}
    s.ask("/reservations/a", method="DELETE")
    hashes = {"block_hashes": [1, 2, 3, 4], "isl_tokens": 17, "legs": 2}
    assert "token_ids" in s.ask("/select_and_reserve", hashes, 400)["error"]
    assert s.idle()


def test_a_pair_waits_for_its_prefill_worker_and_takes_a_decode_worker_then(start):
    s = start(Select, "--router-queue-threshold", 1)
    for i, role in ((1, "prefill"), (11, "decode"), (12, "decode")):
        s.worker(i, role=role, max_num_batched_tokens=16)
    first = reserve(s, "a")
    results = []
    t = threading.Thread(target=lambda: results.append(reserve(s, "b")))
    t.start()
    wait_for("it waits", lambda: s.metric("router_queue_pending_requests") == 1)
    assert sum(load[2] for load in s.loads().values()) == 2
    s.ask("/reservations/a/prefill_complete")
    t.join(30)
    assert results[0]["queued_ms"] > 0 and results[0]["decode"]["worker_id"] != first["decode"]["worker_id"]
    # One that finds no decode worker when its turn comes books neither.
    t = threading.Thread(target=lambda: results.append(reserve(s, "c", 503)))
    t.start()
    wait_for("it waits", lambda: s.metric("router_queue_pending_requests") == 1)
    for i in (11, 12):
        s.ask(f"/workers/{i}", method="DELETE")
    s.ask("/reservations/b", method="DELETE")
    t.join(30)
    assert len(results) == 2 and s.loads() == {(1, 0): (0, 0, 0)}


def test_wrong_questions_name_the_member_and_what_is_allowed(start):
    s = two_and_two(start)
    for body, text in (({"phase": "both"}, "one of prefill, decode, aggregated"), ({"phase": "decode", "legs": 2}, "none of them where legs is 2"),
                       ({"legs": 3}, "1, or 2"), ({"legs": 0}, "1, or 2"), ({"legs": "2"}, "1, or 2"), ({"kv_protocol": "carrier"}, "one of vllm-nixl")):
        assert text in s.ask("/select_and_reserve", {**BODY, **body}, 400)["error"]
    assert "/select_pair" in s.ask("/select", {**BODY, "legs": 2}, 400)["error"]
    assert "legs" in s.ask("/request", {"method": "new", "tokens": PROMPT, "legs": 2}, 400)["error"]
    assert "token_ids" in s.ask("/select_pair", {}, 400)["error"]
    assert "isl_tokens" in s.ask("/select_pair", {"token_ids": []}, 400)["error"]
    assert s.idle()


def test_a_worker_that_changes_its_role_changes_the_pool(start):
    s = start(Select)
    s.worker(1, role="both")
    s.worker(2, role="decode")
    assert s.ask("/select_pair", BODY)["treatment"] in ("aggregated", "local")
    s.ask("/workers/1", {"role": "prefill"}, method="PATCH")
    r = reserve(s, "a")
    assert (r["prefill"]["worker_id"], r["decode"]["worker_id"]) == (1, 2)
    s.ask("/reservations/a", method="DELETE")
    s.ask("/workers/1", {"role": "both"}, method="PATCH")
    assert s.ask("/select", {**BODY, "allowed_worker_ids": [1]})["worker_id"] == 1
    assert s.idle()


def test_serve_has_the_same_questions(start):
    p, d = (start(Mock, with_events=False).port for _ in range(2))
    s = start(Serve, [f"http://127.0.0.1:{p},id=1,role=prefill,block-size=16", f"http://127.0.0.1:{d},id=2,role=decode,block-size=16"])
    wait_for("both are up", lambda: call(s.admin, "POST", "/select_pair", BODY).json().get("treatment") == "remote")
    r = call(s.admin, "POST", "/select_and_reserve", {**BODY, "legs": 2, "selection_id": "a"}).json()
    assert (r["prefill"]["worker_id"], r["decode"]["worker_id"]) == (1, 2)
    assert not s.idle()
    assert call(s.admin, "DELETE", "/reservations/a").status == 200
    assert s.idle()


def test_other_routers_hear_of_both_bookings(start):
    ports = free_ports(2)
    routers = [start(Select, "--replica-sync-port", ports + i, "--replica-sync-peers", f"tcp://127.0.0.1:{ports + 1 - i}") for i in range(2)]
    wait_for("peers", lambda: all(r.metric("replica_sync_live_peers") == 1 for r in routers))
    for r in routers:
        r.worker(1, role="prefill")
        r.worker(11, role="decode")
    reserve(routers[0], "a")
    wait_for("the other one knows", lambda: routers[1].loads() == {(1, 0): (17, 0, 1), (11, 0): (0, 5, 1)})
    routers[0].ask("/reservations/a/prefill_complete")
    wait_for("one leg is over", lambda: routers[1].loads() == {(1, 0): (0, 0, 0), (11, 0): (0, 5, 1)})
    routers[0].ask("/reservations/a", method="DELETE")
    wait_for("both are", routers[1].idle)
