# SPDX-License-Identifier: Apache-2.0
"""What a router is told of its workers and of how to choose, and what it says of itself."""
import threading
import time

import kvroute
import pytest

PROMPT = list(range(64))


def router(workers=(1, 2), config=None, **kw):
    r = kvroute.KvRouter(block_size=16, kv_router_config=kvroute.KvRouterConfig(**(config or {})), **kw)
    for w in workers:
        r.add_worker(w, max_num_batched_tokens=100, total_kv_blocks=10)
    return r


def until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def stored(worker, tier, first=100, prompt=PROMPT):
    blocks = [{"block_hash": first + i, "tokens_hash": h} for i, h in enumerate(kvroute.compute_block_hash_for_seq(prompt, 16))]
    return {"worker_id": worker, "storage_tier": tier, "event": {"event_id": 1, "dp_rank": 0,
                                                                 "data": {"stored": {"parent_hash": None, "blocks": blocks}}}}


def test_blocks_in_host_memory_count_for_a_choice():
    r = router()
    r.apply_router_event(stored(2, "device"))
    r.apply_router_event(stored(2, "host_pinned"))
    r.apply_event(2, {"event_id": 2, "data": {"removed": {"block_hashes": [100, 101, 102, 103]}}, "dp_rank": 0})
    assert r.get_overlap_scores(PROMPT)["workers"][0]["host_pinned_blocks"] == 4
    best = r.best_worker(PROMPT)
    assert (best.worker_id, best.overlap_blocks) == (2, 3)  # 4 x 0.75


def test_classes_are_set_while_requests_wait():
    one = {"default_policy_family": "a", "policy_classes": [{"name": "a", "request_busy_threshold": 1}]}
    r = router((1,), policy=one, queue_timeout_secs=30)
    r.best_worker(PROMPT, request_id="r1")
    waiting = threading.Thread(target=r.best_worker, args=(PROMPT,), kwargs={"request_id": "r2"})
    waiting.start()
    until(lambda: r.pending_count() == 1)
    assert [c["name"] for c in r.class_stats()] == ["a"] and r.class_stats()[0]["isl_tokens"] == 64
    r.set_policy({"default_policy_family": "b", "policy_classes": [{"name": "b"}]})  # never busy
    waiting.join(30)
    assert r.where("r2") == (1, 0) and [c["name"] for c in r.class_stats()] == ["b"]
    with pytest.raises(ValueError, match="policy_classes: unknown key 'x'"):
        r.set_policy({"policy_classes": [{"name": "b", "x": 1}]})
    with pytest.raises(ValueError, match="policy: "):
        r.set_policy({"policy_classes": [{"name": "not a name"}]})
    with pytest.raises(ValueError, match="one of policy and router_queue_threshold"):
        router(policy=one, config={"router_queue_threshold": 0.5})


def test_tenants_take_turns():
    r = router((1,), policy={"default_policy_family": "a", "policy_classes": [{"name": "a", "request_busy_threshold": 1}]})
    r.best_worker(PROMPT, request_id="first")
    order, threads = [], []

    def ask(name, tenant):
        r.best_worker(PROMPT, request_id=name, tenant=tenant)
        order.append(name)
        r.free(name)
    for i, (name, tenant) in enumerate([("a1", 1), ("a2", 1), ("a3", 1), ("b1", 2)]):
        threads.append(threading.Thread(target=ask, args=(name, tenant)))
        threads[-1].start()
        until(lambda: r.pending_count() == i + 1)
    assert r.class_stats()[0]["tenants"] == 2
    r.free("first")
    for t in threads:
        t.join(30)
    assert order.index("b1") < order.index("a3")


def test_reports_teach_what_a_request_takes():
    r = router((1,), {"learn_from_reports": True})
    for i in range(30):
        r.best_worker([i * 64 + k for k in range(64)], request_id="r")
        r.mark_prefill_complete("r")
        r.free("r")
    assert r.models()["ttft"]["observations"] == 30 and r.models(1)["worker"]["observations"] > 0
    assert router((1,)).models()["ttft"]["observations"] == 0
    with pytest.raises(kvroute.KvrouteError):
        r.models(9)


def test_modes_and_who_may_be_chosen():
    r = router((1, 2, 3), {"mode": "round_robin", "overlap_score_credit": 0})
    assert r.mode() == "round_robin" and {r.best_worker(PROMPT)[0] for _ in range(3)} == {1, 2, 3}
    r.set_mode("least_loaded")
    assert r.best_worker(PROMPT, excluded_worker_ids=[1, 2])[0] == 3
    assert r.best_worker(PROMPT, worker_id=2, prefer=True)[0] == 2
    r.set_schedulable(2, False)
    assert r.best_worker(PROMPT, worker_id=2, prefer=True)[0] != 2
    with pytest.raises(kvroute.KvrouteError):
        r.best_worker(PROMPT, worker_id=2)
    r.set_mode("direct")
    assert r.best_worker(PROMPT, worker_id=1)[0] == 1
    with pytest.raises(ValueError, match="mode: bad value"):
        r.best_worker(PROMPT, mode="direct")


def test_overload_trust_and_what_engines_say():
    r = router((1, 2), {"active_decode_blocks_threshold": 0.5})
    assert r.busy()["active_decode_blocks_threshold"] == 0.5 and r.busy()["active_prefill_tokens_threshold"] is None
    r.set_kv_used(1, 9)
    assert {r.best_worker(PROMPT)[0] for _ in range(4)} == {2}
    r.set_kv_used(2, 9)
    assert r.is_overloaded(64) and r.best_worker(PROMPT, overloads=True)[0] in (1, 2)
    with pytest.raises(kvroute.KvrouteError, match="overloaded"):
        r.best_worker(PROMPT)
    r.set_busy(active_decode_blocks_threshold=1)
    for w in (1, 2):
        r.set_kv_used(w, 0)
    assert not r.is_overloaded(64)
    r.apply_router_event(stored(2, "device"))
    assert r.best_worker(PROMPT)[2] == 4
    r.set_trusted(2, False)
    assert r.best_worker(PROMPT, worker_id=2)[2] == 0


def test_a_decision_is_explained_and_the_book_is_read():
    r = router()
    r.apply_router_event(stored(2, "device"))
    r.best_worker(PROMPT, request_id="r", guarded=True)
    rows = r.get_candidates(PROMPT, allowed_worker_ids=[2])
    assert [(c["worker_id"], c["device_blocks"]) for c in rows] == [(2, 4.0)]
    with pytest.raises(ValueError, match="isl"):
        r.get_candidates(range(0), isl=2**64)
    assert sum(rows[0]["delay_ms"].values()) == pytest.approx(rows[0]["cost"])
    assert r.get_loads()[1]["active_requests"] == 1 and r.where("r") == (2, 0) and r.where("x") is None
    r.touch("r")
    assert r.expire(0) == (0, 0)  # guarded
    r.poll()
    assert r.validate() is None
    r.shutdown()


def test_an_index_says_what_a_rank_holds():
    tree = kvroute.RadixTree(rank_capacity=100)
    tree.apply_router_event(stored(7, "device"))
    tree.apply_router_event(stored(7, "host_pinned"))
    assert tree.holds(7, 100) and tree.holds(7, 100, medium="CPU_PINNED") and not tree.holds(7, 999)
    stats = tree.rank_stats(7)
    assert (stats["blocks"], stats["stored"], stats["tiers"]["host_pinned"]["blocks"]) == (4, 4, 4)
    tree.set_capacity(7, 2)
    assert tree.rank_stats(7)["blocks"] <= 2 and tree.validate() is None
    with pytest.raises(kvroute.KvrouteError):
        kvroute.RadixTree().set_capacity(7, 2)
