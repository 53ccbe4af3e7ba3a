# SPDX-License-Identifier: Apache-2.0
"""KvRouter and its configuration: options, expiry, the life of a request, waiting, choices by a function, what blocks hold besides tokens."""
import asyncio
import faulthandler
import gc
import json
import threading
import time
import weakref

import pytest

import kvroute
from kvroute import KvIndexer, KvRouter, KvRouterConfig

TOKENS = list(range(64))
MM = [None, {"mm_objects": [{"mm_hash": 42, "offsets": [[0, 4]]}]}]


def stored(names, locals_, rank=0):
    return {"event_id": 1, "dp_rank": rank, "data": {"stored": {"parent_hash": None, "blocks": [
        {"block_hash": n, "tokens_hash": h} for n, h in zip(names, locals_)]}}}


def router(workers=(1, 2), config=None, **options):
    r = KvRouter(None, 16, config, **options)
    for w in workers:
        r.add_worker(w, max_num_batched_tokens=100)
    return r


def until(what, condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


# ---- options

WRONG = dict(
    overlap_score_credit=(-1, "x", None, float("nan"), float("inf"), True), overlap_score_credit_decay=(-0.5, "0"), prefill_load_scale=(-1, []),
    host_cache_hit_weight=(-0.1, 1.1, "half"), disk_cache_hit_weight=(2, None), router_temperature=(-1.0, "hot", float("nan")),
    use_kv_events=("yes", 1, None), durable_kv_events=(0, "true"), router_replica_sync=("on",), router_track_active_blocks=(None, 1),
    router_track_output_blocks=("no",), router_assume_kv_reuse=(2,), router_track_prefill_tokens=("",), router_prefill_load_model=("zzz", None, 1),
    router_snapshot_threshold=(0, -1, 1.5, "many"), router_reset_states=("x", 0), router_ttl_secs=(0, -1, "120", None, float("inf"), 1e300),
    router_queue_threshold=(-1, "x", float("nan"), True), router_policy_config=(5, "", {}), router_event_threads=(0, -1, 1.5, "4"),
    router_queue_policy=("zzz", "FCFS", None, 0), use_remote_indexer=("x",), serve_indexer=(1,), shared_cache_multiplier=(-1, 1.5, "x"),
    shared_cache_type=("zzz", None), router_predicted_ttl_secs=(0, -1, "x"), router_max_tree_size=(0, -1, 1.5, "x", 1 << 64),
    router_prune_target_ratio=(0, 1.1, -1, "x"), cost=("x", None, 1), seed=(-1, 1.5, "x", 1 << 64), overlap_score_weight=(-1, "x"),
    mode=("zzz", None, 0), request_weight=(-1, "x"), learn_from_reports=(1, None), active_decode_blocks_threshold=(-1, 1.5, "x"),
    active_prefill_tokens_threshold=(-1, "x"), active_prefill_tokens_threshold_frac=(-1, True))


@pytest.mark.parametrize("name", sorted(WRONG))
def test_a_wrong_option_value_is_refused_by_an_error_that_names_it_and_what_is_allowed(name):
    known = name.replace("overlap_score_weight", "overlap_score_credit")
    for value in WRONG[name]:
        with pytest.raises(ValueError, match=rf"^{known}: bad value .*; allowed: .+"):
            KvRouterConfig(**{name: value})
        config = KvRouterConfig()
        with pytest.raises(ValueError, match=rf"^{known}: "):
            setattr(config, name, value)
        with pytest.raises(ValueError, match=rf"^{known}: "):
            config.with_overrides(**{name: value})


def test_every_option_is_checked():
    options = set(vars(KvRouterConfig()))
    assert options <= set(WRONG), options - set(WRONG)
    with pytest.raises(AttributeError, match="nonsense"):
        KvRouterConfig().nonsense = 1
    good = KvRouterConfig(router_queue_policy="wspt", router_queue_threshold=0, router_ttl_secs=1, seed=(1 << 64) - 1, cost="linear")
    assert good.with_overrides(overlap_score_weight=2).overlap_score_credit == 2 and good.copy().router_queue_policy == "wspt"
    for options in (dict(router_track_output_blocks=True, router_track_active_blocks=False), dict(router_predicted_ttl_secs=5, use_kv_events=False),
                    dict(durable_kv_events=True, use_kv_events=False), dict(router_prefill_load_model="aic", router_track_prefill_tokens=False),
                    dict(serve_indexer=True, use_remote_indexer=True), dict(use_remote_indexer=True, overlap_score_credit=0)):
        with pytest.raises(ValueError, match=next(iter(options))):
            KvRouterConfig(**options)


def test_what_needs_sockets_is_refused_and_never_ignored():
    for name, value in dict(serve_indexer=True, use_remote_indexer=True, durable_kv_events=True, router_replica_sync=True,
                            router_policy_config="/x.yaml", router_prefill_load_model="aic", shared_cache_type="hicache").items():
        with pytest.raises(ValueError, match=rf"^{name}: .*allowed: "):
            KvRouter(None, 16, KvRouterConfig(**{name: value}))
    for name, value in dict(worker_type="other", select=5, queue_timeout_secs=-1, block_size=0, aic_perf_config={}, kv_router_config={}).items():
        with pytest.raises(ValueError, match=rf"^{name}: .*allowed: "):
            KvRouter(**{"block_size": 16, name: value})
    for value in ("16", 1.5, -1, None, 65537):
        with pytest.raises(ValueError, match="^block_size: "):
            KvRouter(None, value)
        with pytest.raises(ValueError, match="^block_size: "):
            KvIndexer(None, value)


# ---- expiry

def test_without_events_a_decision_expires_after_router_ttl_secs():
    r = KvRouter(None, 16, KvRouterConfig(use_kv_events=False, router_ttl_secs=0.3))
    r.add_worker(1)
    r.best_worker(TOKENS, update_indexer=True)
    assert r.best_worker(TOKENS)[2] == 4
    until("the decision expires", lambda: r.best_worker(TOKENS)[2] == 0)
    assert r.get_overlap_scores(TOKENS)["workers"] == [] and json.loads(r.dump_events()) == []


def test_memory_of_expired_decisions_can_be_given_back_without_a_question():
    r = router(config=KvRouterConfig(use_kv_events=False, router_ttl_secs=0.3))
    r.best_worker(TOKENS, update_indexer=True)
    gone = []
    until("expire() says what went", lambda: gone.append(r.expire()[0]) or sum(gone) == 4)
    assert r.expire() == (0, 0)
    r.best_worker(TOKENS, request_id="a")
    until("the booking is old", lambda: r.expire(requests_older_than_secs=0.05) == (0, 1))
    with pytest.raises(kvroute.KvrouteError):
        r.free("a")


def test_predicted_blocks_beside_events_expire_too():
    r = router(config=KvRouterConfig(router_predicted_ttl_secs=0.3))
    w = r.best_worker(TOKENS, request_id="a")[0]
    assert r.get_overlap_blocks(TOKENS, w) == 4  # until the engine says so itself
    until("the prediction expires", lambda: r.get_overlap_blocks(TOKENS, w) == 0)
    r.free("a")


# ---- the life of a request

def test_add_request_books_on_the_callers_choice():
    r = router()
    r.add_request("a", TOKENS, 2, cached_tokens=16)
    loads = {l["worker_id"]: l for l in r.get_potential_loads([])}
    assert loads[2]["active_requests"] == 1 and loads[2]["potential_prefill_tokens"] == 48 and loads[1]["active_requests"] == 0
    for args in (("a", TOKENS, 2), ("b", TOKENS, 9), ("b", TOKENS, 2, 5)):
        with pytest.raises(kvroute.KvrouteError):
            r.add_request(*args)
    for args in (("", TOKENS, 2), ("b", TOKENS, -1), ("b", TOKENS, 2, -1), ("b", TOKENS, 2, 0, -1)):
        with pytest.raises(ValueError):
            r.add_request(*args)
    asyncio.run(_lives(r))
    assert all(l["active_requests"] == 0 for l in r.get_potential_loads([]))


async def _lives(r):
    await r.mark_prefill_complete("a")
    await r.add_output_block("a", decay_fraction=0.5)
    await r.free("a")


def test_overlap_blocks_of_one_rank():
    r = router((1, 2))
    locals_ = kvroute.compute_block_hash_for_seq(TOKENS, 16)
    r.apply_event(2, stored([1, 2, 3], locals_))
    assert r.get_overlap_blocks(TOKENS, 2) == 3 and r.get_overlap_blocks(TOKENS, 1) == 0
    assert r.get_overlap_blocks(TOKENS, 2, 7) == 0 and r.get_overlap_blocks(TOKENS, 99) == 0
    assert r.get_overlap_blocks(TOKENS, 2, lora_name="a") == 0
    with pytest.raises(ValueError, match="router_config_override"):
        r.get_overlap_scores(TOKENS, {"overlap_score_credit": 2.0})
    r.apply_router_event({"worker_id": 2, "storage_tier": "host_pinned", "event": stored([1, 2, 3, 4], locals_)})


def test_the_request_protocol_and_its_replies():
    r = router((1,), KvRouterConfig(use_kv_events=False))
    new = r.handle_request({"method": "new", "tokens": TOKENS, "priority_jump": 0.0}, context_id="c1")
    assert set(new) == {"method", "worker_id", "dp_rank", "overlap_blocks"} and new["method"] == "new" and new["overlap_blocks"] == 0
    again = r.handle_request(json.dumps({"method": "new", "tokens": TOKENS, "request_id": "c2"}))
    assert again["overlap_blocks"] == 4  # the decision was remembered
    loads = r.handle_request({"method": "potential_loads", "tokens": TOKENS})
    assert loads["pending_count"] == 0 and sum(l["active_requests"] for l in loads["loads"]) == 2
    assert r.handle_request({"method": "mark_prefill", "request_id": ""}, "c1") == {"method": "prefill_marked", "success": True}
    assert asyncio.run(_awaited(r.handle_request({"method": "mark_free"}, "c1"))) == {"method": "free_marked", "success": True}
    assert r.handle_request({"method": "mark_free", "request_id": "c1"}) == {"method": "free_marked", "success": False}
    assert r.handle_request({"method": "mark_prefill", "request_id": "nobody"}) == {"method": "prefill_marked", "success": False}
    for bad, name in (({"method": "x"}, "method"), ({}, "method"), (5, "request"), ("[]", "request"), ({"method": "new", "request_id": "d"}, "tokens"),
                      ({"method": "new", "tokens": TOKENS}, "request_id"), ({"method": "mark_free", "request_id": 5}, "request_id"),
                      ({"method": "mark_free", "request_id": "d", "x": 1}, "x"), ({"method": "new", "tokens": [1.5], "request_id": "d"}, ""),
                      ({"method": "new", "tokens": TOKENS, "request_id": "d", "strict_priority": -1}, "strict_priority")):
        with pytest.raises((ValueError, TypeError), match=name):
            r.handle_request(bad)
    assert sum(l["active_requests"] for l in r.get_potential_loads(TOKENS)) == 1


async def _awaited(value):
    return await value


def test_a_decision_tells_its_times_and_figures():
    r = router()
    r.apply_event(2, stored([1, 2], kvroute.compute_block_hash_for_seq(TOKENS, 16)))
    best = r.best_worker(TOKENS)
    assert tuple(best) == (2, 0, 2) == (best.worker_id, best.dp_rank, best.overlap_blocks)
    assert (best.cached_tokens, best.prefill_tokens, best.required_blocks, best.best_blocks, best.candidates) == (32, 32, 4, 2, 2)
    stages = ("block_hashing", "find_matches", "seq_hashing", "scheduling", "total")
    assert tuple(best.times) == stages and best.times["total"] >= best.times["scheduling"] > 0 and best.waited_secs == 0
    before = r.stage_times()
    assert before["decisions"] == 1 and before["total"] == best.times["total"]
    assert r.stage_times()["total"] == before["total"] and r.best_worker(TOKENS) and r.stage_times()["decisions"] == 2


def test_worker_types():
    assert [KvRouter(None, 16, worker_type=t).worker_type() for t in ("both", "prefill", "decode")] == ["both", "prefill", "decode"]
    for kind, blocks in (("both", 8), ("prefill", 0)):
        r = router((1,), worker_type=kind)
        r.add_request("a", TOKENS, 1)
        assert r.get_potential_loads(range(1000, 1064))[0]["potential_decode_blocks"] == blocks
    decode = router((1, 2), KvRouterConfig(router_track_prefill_tokens=False), worker_type="decode")
    decode.apply_event(2, stored([1, 2, 3], kvroute.compute_block_hash_for_seq(TOKENS, 16)))
    assert decode.best_worker(TOKENS).cost == pytest.approx(1.16)  # one request, and a little for the 16 tokens that are transferred


def test_routing_constraints_are_taints():
    r = router(())
    r.add_worker(1, taints=["slow"])
    r.add_worker(2, taints=("fast", "big"))
    assert r.best_worker(TOKENS, routing_constraints={"required_taints": ["fast", "big"]})[0] == 2
    assert r.best_worker(TOKENS, routing_constraints={"preferred_taints": {"slow": 5.0}})[0] == 1
    with pytest.raises(kvroute.NoEndpoints):
        r.best_worker(TOKENS, routing_constraints={"required_taints": ["none has it"]})
    for bad in ({"required_taints": "fast"}, {"preferred_taints": {"a": "x"}}, {"preferred_taints": ["a"]}, {"x": 1}, [], {"required_taints": [1]}):
        with pytest.raises(ValueError, match="routing_constraints"):
            r.best_worker(TOKENS, routing_constraints=bad)
    with pytest.raises(ValueError, match="taints"):
        r.add_worker(1, taints="fast")


# ---- a function that chooses

def test_a_python_function_chooses():
    seen = []

    def second(candidates):
        seen.append(candidates)
        return 1
    r = router((5, 6, 7), select=second)
    r.apply_event(6, stored([1, 2], kvroute.compute_block_hash_for_seq(TOKENS, 16)))
    assert r.best_worker(TOKENS, request_id="a") == (6, 0, 2)
    assert [c["worker_id"] for c in seen[0]] == [5, 6, 7] and [c["device_blocks"] for c in seen[0]] == [0, 2, 0]
    assert set(seen[0][0]) == {"worker_id", "dp_rank", "device_blocks", "host_blocks", "disk_blocks", "external_blocks", "shared_blocks", "effective_blocks",
                               "cached_tokens", "cost", "active_prefill_tokens", "decode_blocks", "active_requests"}
    assert {l["worker_id"]: l["active_requests"] for l in r.get_potential_loads(TOKENS)} == {5: 0, 6: 1, 7: 0}


@pytest.mark.parametrize("said, error", [(None, kvroute.NoEndpoints), (9, ValueError), (-1, ValueError), ("x", TypeError), (1 << 80, ValueError)])
def test_a_function_that_chooses_nobody_or_wrongly(said, error):
    r = router(select=lambda candidates: said)
    with pytest.raises(error):
        r.best_worker(TOKENS, request_id="a")
    assert all(l["active_requests"] == 0 for l in r.get_potential_loads(TOKENS))


def test_an_exception_of_the_function_is_the_callers():
    r = router(select=lambda candidates: 1 // 0)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            r.best_worker(TOKENS)
    r.select = None
    assert r.best_worker(TOKENS, worker_id=1, dp_rank=0)[0] == 1  # a pinned request needs no choice


def test_a_function_that_calls_its_router_is_told_so_and_nothing_hangs():
    calls = []

    def calls_back(candidates):
        calls.append(1)
        r.free("x")
    r = router(select=calls_back)
    with pytest.raises(RuntimeError, match="must not call the router"):
        r.best_worker(TOKENS)
    assert calls and router((3,)).best_worker(TOKENS)[0] == 3


def test_who_asks_for_the_mode_waits_for_nobody_that_waits_for_him():
    inside, asking, asked = threading.Event(), threading.Event(), []

    def choose(candidates):
        inside.set()
        assert asking.wait(30)  # without the interpreter lock: whoever asks meanwhile waits for the router's
        asked.append(pytest.raises(RuntimeError, r.mode))
        return 0
    r = router(select=choose)
    faulthandler.dump_traceback_later(60, exit=True)  # who hangs has the interpreter lock
    t = threading.Thread(target=r.best_worker, args=(TOKENS,))
    t.start()
    assert inside.wait(30)
    asking.set()
    assert r.mode() == "kv"
    t.join()
    faulthandler.cancel_dump_traceback_later()
    assert "must not call the router" in str(asked[0].value)


def test_what_can_be_gone_through_once_counts_as_a_whole():
    r = router((), KvRouterConfig(use_kv_events=False))
    r.add_worker(1, taints=iter(["gpu"]))
    r.add_worker(2)
    assert r.best_worker(iter(TOKENS), routing_constraints={"required_taints": ["gpu"]}, update_indexer=True)[0] == 1
    assert r.get_overlap_blocks(TOKENS, 1) == 4


def test_a_router_and_the_function_that_holds_it_are_collected():
    class Policy:
        def choose(self, candidates):
            return 0
    policy = Policy()
    policy.router = router(select=policy.choose)
    policy.router.best_worker(TOKENS)
    gone = weakref.ref(policy)
    del policy
    gc.collect()
    assert gone() is None


def test_functions_choose_in_many_threads_at_once():
    r = router(range(1, 5), select=lambda candidates: min(range(len(candidates)), key=lambda i: candidates[i]["active_requests"]))
    failures = []

    def live(name):
        for i in range(60):
            try:
                r.best_worker(TOKENS, request_id=f"{name}-{i}")
                r.mark_prefill_complete(f"{name}-{i}")
                r.free(f"{name}-{i}")
            except Exception as e:  # noqa: BLE001
                failures.append(e)
    threads = [threading.Thread(target=live, args=(n,)) for n in "abcd"]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not failures and not any(t.is_alive() for t in threads)
    assert all(l["active_requests"] == 0 for l in r.get_potential_loads(TOKENS))


# ---- waiting

BUSY = KvRouterConfig(router_queue_threshold=0.5)  # of 100 tokens: one prompt of 64 makes a rank busy


def test_a_request_that_books_waits_while_every_worker_is_busy():
    r = router((1,), BUSY)
    assert r.best_worker(TOKENS, request_id="a").waited_ns == 0
    got = []
    t = threading.Thread(target=lambda: got.append(r.best_worker(TOKENS, request_id="b")))
    t.start()
    until("it waits", lambda: r.pending_count() == 1)
    assert r.best_worker(TOKENS)[0] == 1 and not got  # a question does not wait
    r.mark_prefill_complete("a")
    t.join(60)
    assert got[0][0] == 1 and got[0].waited_secs > 0 and r.pending_count() == 0
    r.free("a")
    r.free("b")


def test_a_priority_jump_goes_first():
    r = router((1,), BUSY)
    r.best_worker(TOKENS, request_id="first")
    order = []

    def wait(name, jump, strict):
        own = [10_000 * (jump + 2 * strict + 1) + i for i in range(len(TOKENS))]  # one that computes the other's prompt would let it go along
        r.best_worker(own, request_id=name, priority_jump=jump, strict_priority=strict)
        order.append(name)
        r.mark_prefill_complete(name)
    threads = []
    for n, (name, jump, strict) in enumerate((("plain", 0, 0), ("jumps", 1000, 0), ("strict", 0, 1)), 1):
        threads.append(threading.Thread(target=wait, args=(name, jump, strict)))
        threads[-1].start()
        until(f"{name} waits", lambda n=n: r.pending_count() == n)
    r.free("first")
    for t in threads:
        t.join(60)
    assert order == ["strict", "jumps", "plain"]


def test_waiting_ends_by_itself_and_leaves_nothing():
    r = router((1,), BUSY, queue_timeout_secs=0.05)
    r.best_worker(TOKENS, request_id="a")
    with pytest.raises(kvroute.QueueTimeout) as e:
        r.best_worker(TOKENS, request_id="b")
    assert isinstance(e.value, TimeoutError) and r.pending_count() == 0
    r.free("a")
    assert r.best_worker(TOKENS, request_id="b")[0] == 1


def test_an_event_loop_goes_on_while_a_request_waits():
    async def clients():
        r = router((1,), BUSY)
        await r.best_worker(TOKENS, request_id="a")
        later = r.best_worker(TOKENS, request_id="b")
        reply = r.handle_request({"method": "new", "tokens": TOKENS, "request_id": "c"})
        given_up = r.best_worker(TOKENS, request_id="d")
        assert r.pending_count() == 3
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        assert r.pending_count() == 2
        reply_of = r.handle_request({"method": "new", "tokens": TOKENS, "request_id": "e"})
        reply_of.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reply_of
        running = r.best_worker(TOKENS, request_id="f")
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert r.pending_count() == 2
        r.free("a")
        best = await later
        assert best[0] == 1 and best.waited_secs > 0
        r.free("b")
        assert (await reply)["method"] == "new"
        quick = router((1,), BUSY, queue_timeout_secs=0.05)
        await quick.best_worker(TOKENS, request_id="a")
        with pytest.raises(kvroute.QueueTimeout):
            await quick.best_worker(TOKENS, request_id="b")
        assert quick.pending_count() == 0
    asyncio.run(clients())


def test_a_function_that_fails_for_one_that_waits_fails_that_one():
    fail = []

    def choose(candidates):
        if fail:
            raise KeyError("mine")
        return 0
    r = router((1, 2), BUSY, select=choose)

    async def clients():
        r.best_worker(TOKENS, request_id="a")
        r.add_request("b", TOKENS, 2)
        waits = r.best_worker(TOKENS, request_id="c")
        fail.append(1)
        r.free("a")  # is not the one that failed
        with pytest.raises(KeyError, match="mine"):
            await waits
    asyncio.run(clients())
    r.free("b")


# ---- what blocks hold besides tokens

def test_the_same_tokens_with_another_image_are_another_prompt():
    with_image = kvroute.compute_block_hash_for_seq(TOKENS, 16, MM)
    plain = kvroute.compute_block_hash_for_seq(TOKENS, 16)
    assert with_image[0] == plain[0] and with_image[1] != plain[1] and with_image[2:] == plain[2:]
    r = router((1, 2))
    r.apply_event(2, stored([1, 2, 3, 4], with_image))
    other = [None, {"mm_objects": [{"mm_hash": 43}]}]
    for mm, blocks in ((MM, 4), (None, 1), (other, 1), ([], 1), ([None, {"mm_objects": []}], 1)):
        assert r.best_worker(TOKENS, block_mm_infos=mm) == (2, 0, blocks)
        assert r.get_overlap_blocks(TOKENS, 2, block_mm_infos=mm) == blocks
        assert r.get_overlap_scores(TOKENS, block_mm_infos=mm)["workers"][0]["device_blocks"] == blocks
        assert {l["worker_id"]: l["potential_prefill_tokens"] for l in r.get_potential_loads(TOKENS, mm)}[2] == 64 - 16 * blocks
        assert r.handle_request({"method": "new", "tokens": TOKENS, "block_mm_infos": mm, "request_id": "n"})["overlap_blocks"] == blocks
        r.handle_request({"method": "mark_free", "request_id": "n"})
    approx = router((1,), KvRouterConfig(use_kv_events=False))
    approx.best_worker(TOKENS, update_indexer=True, block_mm_infos=MM)
    assert approx.best_worker(TOKENS, block_mm_infos=MM)[2] == 4 and approx.best_worker(TOKENS)[2] == 1


def test_multimodal_infos_of_another_block_size_are_refused():
    infos = [{"mm_objects": [{"mm_hash": 42}]}] * 16  # of blocks of 4
    li, r = kvroute.LocalIndexer(1, 16), router()
    for call in (lambda: kvroute.compute_block_hash_for_seq(TOKENS, 16, infos), lambda: r.best_worker(TOKENS, block_mm_infos=infos),
                 lambda: r.get_potential_loads(TOKENS, infos), lambda: KvIndexer(None, 16).find_matches_for_request(TOKENS, block_mm_infos=infos),
                 lambda: li.apply_stored(1, TOKENS, [1, 2, 3, 4], block_mm_infos=infos),
                 lambda: kvroute.KvEventPublisher(None, 1, 16).publish_stored(TOKENS, [16] * 4, [1, 2, 3, 4], None, infos)):
        with pytest.raises(ValueError, match="^block_mm_infos: 16 entries; allowed: at most 4"):
            call()
    assert li.stats()["events"] == 0
    assert len(kvroute.compute_block_hash_for_seq(TOKENS[:50], 16, infos[:4])) == 3  # the fourth is of the block that is not full


@pytest.mark.parametrize("bad", [[5], ["x"], [{"mm_objects": 5}], [{"mm_objects": [5]}], [{"mm_objects": [{}]}], {"mm_objects": []}, "x", 5,
                                 [{"mm_objects": [{"mm_hash": -1}]}], [{"mm_objects": [{"mm_hash": 1 << 64}]}],
                                 [{"mm_objects": [{"mm_hash": "12"}]}], [{"mm_objects": [{"mm_hash": 1}] * 65}]])
def test_bad_multimodal_infos_are_refused_by_name(bad):
    with pytest.raises(ValueError, match=r"^block_mm_infos.*allowed: "):
        kvroute.compute_block_hash_for_seq(TOKENS, 16, bad)
    with pytest.raises(ValueError, match="^block_mm_infos"):
        router().best_worker(TOKENS, block_mm_infos=bad)
