# SPDX-License-Identifier: Apache-2.0
"""What the router is for, tried through the installed package: each test is one sentence of what it promises. What needs only the programs
is in tests/e2e/test_mission.py. (The router object, the local index in an engine's process, the package's names.)"""
import array
import asyncio
import itertools
import json
import struct
import threading
import time

import msgpack
import pytest
import zmq

import kvroute
from kvroute import (ApproxKvIndexer, KvEventPublisher, KvIndexer, KvRecorder, KvRouter, KvRouterConfig, LocalIndexer, OverlapScores,
                     RadixTree, compute_block_hash_for_seq, compute_seq_hash_for_block)
from test_engine_tee import BS, Engine, ask, engine_tee, name_of, tokens_of
from conftest import Indexer, ScriptedServer, Serve, free_ports, start, wait_for  # noqa: F401

PROMPT = list(range(64))  # 4 blocks of 16
OTHER = list(range(1000, 1064))
LOCALS = compute_block_hash_for_seq(PROMPT, 16)
NAMES = [101, 102, 103, 104]
IMAGE = [None, {"mm_objects": [{"mm_hash": 42}]}]
STAGES = ("block_hashing", "find_matches", "seq_hashing", "scheduling", "total")


def stored(locals_=LOCALS, names=NAMES, rank=0, parent=None):
    blocks = [{"block_hash": n, "tokens_hash": h} for n, h in zip(names, locals_)]
    return {"event_id": 1, "dp_rank": rank, "data": {"stored": {"parent_hash": parent, "blocks": blocks}}}


def router(workers=(1, 2), config=None, **options):
    r = KvRouter(None, 16, config, **options)
    for w in workers:
        r.add_worker(w, max_num_batched_tokens=100)
    return r


def load(r, worker, tokens=()):
    return next(l for l in r.get_potential_loads(list(tokens)) if l["worker_id"] == worker)


def booked(r):
    return {l["worker_id"]: l["active_requests"] for l in r.get_potential_loads([]) if l["active_requests"]}


# ---- the router object ----------------------------------------------------------------------------------------------------


def test_given_tokens_it_hashes_matches_projects_load_chooses_and_books():
    r = router()
    r.apply_event(2, stored())
    best = r.best_worker(PROMPT, request_id="a")
    assert best == (2, 0, 4) and best.cached_tokens == 64 and best.prefill_tokens == 0 and best.required_blocks == 4  # hashed, matched
    assert load(r, 2)["active_requests"] == 1 and load(r, 2)["potential_decode_blocks"] == 4                          # booked
    assert r.best_worker(OTHER) == (1, 0, 0)  # the load is projected: nobody holds it, and 2 has something to do


def test_find_best_match_without_booking_changes_nothing():
    r = router()
    before = r.get_potential_loads(PROMPT)
    for _ in range(5):
        assert r.best_worker(PROMPT).overlap_blocks == 0
    assert r.get_potential_loads(PROMPT) == before and booked(r) == {} and json.loads(r.dump_events()) == []


def test_find_best_match_with_booking_is_booked_under_the_request_id():
    r = router((1,))
    r.best_worker(PROMPT, request_id="a")
    assert booked(r) == {1: 1} and load(r, 1)["potential_prefill_tokens"] == 64
    with pytest.raises(kvroute.KvrouteError):  # the id is taken, and nothing changes
        r.best_worker(OTHER, request_id="a")
    assert booked(r) == {1: 1} and load(r, 1)["potential_prefill_tokens"] == 64
    r.free("a")
    assert r.best_worker(OTHER, request_id="a")[0] == 1


def test_booking_without_a_request_id_is_an_error():
    r = router()
    with pytest.raises((ValueError, kvroute.KvrouteError), match="id"):
        r.best_worker(PROMPT, request_id="")
    with pytest.raises(ValueError, match="request_id"):
        r.add_request("", PROMPT, 1)
    with pytest.raises(ValueError, match="request_id"):
        r.add_request(None, PROMPT, 1)
    for given in ({}, {"request_id": ""}, {"request_id": None}):
        with pytest.raises(ValueError, match="request_id"):
            r.handle_request({"method": "new", "tokens": PROMPT, **given})
    assert booked(r) == {}


def test_multimodal_infos_make_another_prompt():
    r = router()
    r.apply_event(2, stored(compute_block_hash_for_seq(PROMPT, 16, IMAGE)))
    assert r.best_worker(PROMPT, block_mm_infos=IMAGE) == (2, 0, 4)
    assert r.best_worker(PROMPT).overlap_blocks == 1  # up to the image
    assert r.best_worker(PROMPT, block_mm_infos=[None, {"mm_objects": [{"mm_hash": 43}]}]).overlap_blocks == 1


def test_an_override_is_of_one_request():
    r = router()
    r.apply_event(2, stored())
    r.add_request("busy", OTHER[:32], 2, cached_tokens=32)  # 2 holds the prompt, and has two other blocks to decode
    assert r.best_worker(PROMPT)[0] == 2
    assert r.best_worker(PROMPT, {"overlap_score_credit": 0.0})[0] == 1
    assert r.best_worker(PROMPT)[0] == 2 and r.config.overlap_score_credit == 1.0


def test_each_override_does_what_it_says():
    r = router((1,), KvRouterConfig(cost="linear"))
    plain = r.best_worker(PROMPT).cost
    assert r.best_worker(PROMPT, {"prefill_load_scale": 2.0}).cost == plain + 4.0  # four blocks to compute, twice
    r.best_worker(PROMPT, {"track_prefill_tokens": False}, "untracked")
    assert load(r, 1)["potential_prefill_tokens"] == 0 and booked(r) == {1: 1}
    r.free("untracked")
    for name in "ab":
        r.best_worker(PROMPT, None, name)
    assert load(r, 1)["potential_decode_blocks"] == 4  # shared
    r.best_worker(PROMPT, {"assume_kv_reuse": False}, "c")
    assert load(r, 1)["potential_decode_blocks"] == 8
    two = router((1, 2), KvRouterConfig(seed=7))
    two.apply_event(2, stored())
    assert {two.best_worker(PROMPT)[0] for _ in range(50)} == {2}
    assert {two.best_worker(PROMPT, {"router_temperature": 100.0})[0] for _ in range(200)} == {1, 2}
    for wrong in ({"overlap_score_credit": -1.0}, {"router_temperature": "hot"}, {"nonsense": 1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            two.best_worker(PROMPT, wrong)


def test_a_lora_name_is_part_of_the_prompt():
    r = router()
    r.apply_event(2, stored(compute_block_hash_for_seq(PROMPT, 16, lora_name="a")))
    assert r.best_worker(PROMPT, lora_name="a") == (2, 0, 4)
    assert r.best_worker(PROMPT).overlap_blocks == 0 == r.best_worker(PROMPT, lora_name="b").overlap_blocks
    r.best_worker(PROMPT, request_id="x", lora_name="a")
    assert load(r, 2, PROMPT)["potential_decode_blocks"] == 8  # active blocks of another adapter are not shared either


def test_a_priority_jump_goes_before_those_that_came_earlier():
    async def clients():
        r = router((1,), KvRouterConfig(router_queue_threshold=0.5))  # of 100 tokens
        await r.best_worker(PROMPT, request_id="first")
        order = []

        async def waits(name, jump):
            await r.best_worker(PROMPT, request_id=name, priority_jump=jump)
            order.append(name)
            r.free(name)
        tasks = []
        for n, (name, jump) in enumerate((("plain", 0), ("jumps", 1000), ("hangs back", -1000)), 1):
            tasks.append(asyncio.ensure_future(waits(name, jump)))
            while r.pending_count() < n:
                await asyncio.sleep(0)
        r.free("first")
        await asyncio.gather(*tasks)
        return order
    assert asyncio.run(clients()) == ["jumps", "plain", "hangs back"]


def test_only_an_allowed_worker_is_chosen():
    r = router((1, 2, 3))
    r.apply_event(2, stored())
    assert r.best_worker(PROMPT)[0] == 2
    assert {r.best_worker(PROMPT, allowed_worker_ids=[1, 3])[0] for _ in range(20)} <= {1, 3}
    assert r.best_worker(PROMPT, allowed_worker_ids=[1, 2, 99])[0] == 2
    for nobody in ([99], []):
        with pytest.raises(kvroute.NoEndpoints):
            r.best_worker(PROMPT, allowed_worker_ids=nobody)


def test_add_request_books_where_the_caller_says():
    r = router()
    r.apply_event(1, stored())  # where the router would have sent it
    r.add_request("a", PROMPT, 2, cached_tokens=16)
    assert booked(r) == {2: 1}
    assert (load(r, 2)["potential_prefill_tokens"], load(r, 2)["potential_decode_blocks"]) == (48, 4)
    r.free("a")
    assert booked(r) == {}


def test_mark_prefill_completed_leaves_the_blocks_and_takes_the_prefill():
    r = router((1,))
    r.best_worker(PROMPT, request_id="a")
    r.mark_prefill_complete("a")
    assert (load(r, 1)["potential_prefill_tokens"], load(r, 1)["potential_decode_blocks"], booked(r)) == (0, 4, {1: 1})
    with pytest.raises(kvroute.KvrouteError):
        r.mark_prefill_complete("nobody")


def test_free_gives_back_everything_once():
    r = router((1,))
    empty = r.get_potential_loads([])
    r.best_worker(PROMPT, request_id="a")
    r.add_output_block("a")
    r.free("a")
    assert r.get_potential_loads([]) == empty
    with pytest.raises(kvroute.KvrouteError):
        r.free("a")
    assert r.get_potential_loads([]) == empty


def test_an_output_block_is_counted_and_a_decay_fraction_weighs_what_the_request_holds_alone():
    r = router((1,))
    r.best_worker(PROMPT, request_id="a")
    r.add_output_block("a")
    assert load(r, 1)["potential_decode_blocks"] == 5
    r.add_output_block("a", decay_fraction=0.5)
    assert load(r, 1)["potential_decode_blocks"] == 3  # half of 4 + 2
    r.best_worker(PROMPT, request_id="b")
    r.free("a")
    assert load(r, 1)["potential_decode_blocks"] == 2  # what b shares keeps its weight
    r.best_worker(PROMPT, request_id="c")
    r.add_output_block("c", decay_fraction=0)
    assert load(r, 1)["potential_decode_blocks"] == 2  # b holds them too: only c's own block weighs nothing
    for wrong in (-0.1, 1.1, "x", float("nan")):
        with pytest.raises(ValueError, match="decay_fraction"):
            r.add_output_block("b", decay_fraction=wrong)


def test_get_overlap_blocks_is_of_one_rank():
    r = router(())
    r.add_worker(7, 0, 2)
    r.apply_event(7, stored(LOCALS[:3], NAMES[:3], rank=1))
    assert [r.get_overlap_blocks(PROMPT, 7, rank) for rank in (0, 1, 2)] == [0, 3, 0] and r.get_overlap_blocks(OTHER, 7, 1) == 0
    assert r.get_overlap_blocks(PROMPT, 8) == 0 and booked(r) == {}


def test_get_potential_loads_tells_what_each_rank_would_have_with_the_prompt():
    r = router(())
    r.add_worker(1, 0, 2)
    r.add_worker(2)
    r.apply_event(1, stored(LOCALS[:3], NAMES[:3], rank=1))
    r.add_request("a", PROMPT[:32], 2)
    loads = {(l["worker_id"], l["dp_rank"]): (l["potential_prefill_tokens"], l["potential_decode_blocks"], l["active_requests"])
             for l in r.get_potential_loads(PROMPT)}
    assert loads == {(1, 0): (64, 4, 0), (1, 1): (16, 4, 0), (2, 0): (96, 4, 1)}
    assert booked(r) == {2: 1}  # a question


def test_dump_events_gives_an_equal_index_to_whoever_applies_them():
    r = router(())
    r.add_worker(7, 0, 2)
    r.apply_event(7, stored())
    r.apply_event(7, stored(LOCALS[:2], NAMES[:2], rank=1))
    copy = RadixTree()
    for e in json.loads(r.dump_events()):
        copy.apply_router_event(e)
    assert copy.find_matches(LOCALS).scores == {(7, 0): 4, (7, 1): 2} and copy.current_size() == 6


def test_a_dump_without_an_index_is_a_clear_error_and_everything_else_works():
    r = router((1,), KvRouterConfig(overlap_score_credit=0))
    with pytest.raises(ValueError, match="overlap_score_credit is 0"):
        r.dump_events()
    assert r.best_worker(PROMPT, request_id="a") == (1, 0, 0)
    r.mark_prefill_complete("a")
    r.add_output_block("a")
    r.free("a")
    assert r.get_overlap_blocks(PROMPT, 1) == 0 and len(r.get_potential_loads(PROMPT)) == 1


def test_block_size_is_what_a_block_is_made_of():
    for size in (1, 16, 32, 64):
        r = KvRouter(None, size)
        r.add_worker(1)
        assert r.block_size() == size and r.best_worker(range(64)).required_blocks == 64 // size


def test_worker_types_count_what_such_workers_do():
    made = {kind: router((1, 2), worker_type=kind) for kind in ("both", "prefill", "decode")}
    assert {k: r.worker_type() for k, r in made.items()} == {k: k for k in made}
    for kind, blocks in (("both", 4), ("prefill", 0), ("decode", 4)):  # a prefill worker holds nothing on
        made[kind].add_request("a", PROMPT, 1)
        assert load(made[kind], 1)["potential_decode_blocks"] == blocks
    with pytest.raises(ValueError, match="worker_type"):
        router(worker_type="encode")


def test_the_times_of_each_stage_are_measured_and_exported():
    r = router()
    long = array.array("I", range(16 * 2000))
    made = [r.best_worker(long) for _ in range(3)]
    for best in made:
        assert tuple(best.times) == STAGES and all(t > 0 for t in best.times.values())
        assert best.times["total"] >= max(best.times[s] for s in STAGES[:4])
    sums = r.stage_times()
    assert sums == {"decisions": 3, **{s: sum(best.times[s] for best in made) for s in STAGES}}


def test_custom_selection_chooses_instead_of_the_cost():
    seen = []

    def last(candidates):
        seen.append([c["worker_id"] for c in candidates])
        return len(candidates) - 1
    r = router((1, 2, 3), select=last)
    r.apply_event(1, stored())
    assert r.best_worker(PROMPT, request_id="a") == (3, 0, 0) and booked(r) == {3: 1}
    assert r.best_worker(PROMPT, allowed_worker_ids=[1, 2])[0] == 2 and seen == [[1, 2, 3], [1, 2]]  # among the eligible ones
    with pytest.raises(kvroute.NoEndpoints):
        router(select=lambda candidates: None).best_worker(PROMPT)


def test_the_request_protocol_new_mark_prefill_mark_free_and_their_replies():
    r = router((1,))
    r.apply_event(1, stored(LOCALS[:3], NAMES[:3]))
    new = r.handle_request({"method": "new", "tokens": PROMPT, "request_id": "a"})
    assert new == {"method": "new", "worker_id": 1, "dp_rank": 0, "overlap_blocks": 3}
    assert booked(r) == {1: 1} and load(r, 1)["potential_prefill_tokens"] == 16
    assert r.handle_request({"method": "mark_prefill", "request_id": "a"}) == {"method": "prefill_marked", "success": True}
    assert load(r, 1)["potential_prefill_tokens"] == 0
    assert r.handle_request('{"method": "mark_free", "request_id": "a"}') == {"method": "free_marked", "success": True}
    assert booked(r) == {}
    assert r.handle_request({"method": "mark_free", "request_id": "a"}) == {"method": "free_marked", "success": False}
    assert r.handle_request({"method": "mark_prefill"}, "c") == {"method": "prefill_marked", "success": False}


@pytest.mark.parametrize("text", ["{", "[" * 100000, '{"a":' * 100000, b"\xff\xfe", ""])
def test_text_that_is_no_json_is_a_value_error_that_names_what_was_given(text, tmp_path):
    with KvRecorder(output_path=tmp_path / "r.jsonl") as recorder:
        for take, name in ((router().handle_request, "request"), (KvRouterConfig.from_json, "KvRouterConfig"),
                           (RadixTree().apply_router_event, "event"), (recorder.record, "event")):
            with pytest.raises(ValueError, match=f"^{name}: not JSON"):
                take(text)


def test_the_request_protocol_tells_potential_loads_and_what_waits():
    async def clients():
        r = router((1,), KvRouterConfig(router_queue_threshold=0.5))
        await r.best_worker(PROMPT, request_id="a")
        waits = r.best_worker(OTHER[:48], request_id="b")
        reply = r.handle_request({"method": "potential_loads", "tokens": PROMPT})
        assert reply == {"method": "potential_loads", "loads": r.get_potential_loads(PROMPT), "pending_count": 1, "pending_isl_tokens": 48}
        r.free("a")
        await waits
        reply = r.handle_request({"method": "potential_loads", "tokens": PROMPT})
        assert (reply["pending_count"], reply["pending_isl_tokens"]) == (0, 0)
    asyncio.run(clients())


def test_a_router_in_this_process_without_workers_says_so_at_once():
    r = KvRouter()  # who waits for the first one is the program: tests/e2e/test_mission.py
    with pytest.raises(kvroute.NoEndpoints):
        r.best_worker(PROMPT, request_id="a")
    r.add_worker(1)
    assert r.best_worker(PROMPT, request_id="a")[0] == 1  # nothing was booked before


# ---- the local index in the engine's process --------------------------------------------------------------------------------


def answer(text):
    """(tag, content) of an externally tagged object: one key and no more."""
    (pair,) = json.loads(text).items()
    return pair


def ids(events):
    return [e["event"]["event_id"] for e in events]


def full(max_events=1024, events=8):
    """A local index with a chain of blocks, one event each, ids 0 to events - 1."""
    li = LocalIndexer(7, 16, dp_rank=3, max_events=max_events)
    for i in range(events):
        assert li.apply_stored(i, [i] * 16, [100 + i], 99 + i if i else None)
    return li


def test_apply_stored_removed_and_cleared_are_what_is_held():
    def held():
        tree = RadixTree()
        for e in answer(li.get_events_json())[1]["events"]:
            tree.apply_router_event(e)
        return tree.find_matches(LOCALS).scores
    li = LocalIndexer(7, 16, dp_rank=3)
    assert li.apply_stored(0, PROMPT, NAMES) and held() == {(7, 3): 4}
    assert li.apply_removed(1, NAMES[2:]) and held() == {(7, 3): 2}
    assert li.apply_stored(2, PROMPT[32:48], NAMES[2:3], parent_hash=NAMES[1]) and held() == {(7, 3): 3}
    assert li.apply_cleared(3) and held() == {} and li.stats()["blocks"] == 0


def test_events_the_range_that_is_still_in_the_ring_buffer():
    li = full()
    for start_, end, want in ((0, None, range(8)), (3, None, range(3, 8)), (2, 4, range(2, 5)), (7, 7, [7]), (5, 100, range(5, 8))):
        tag, body = answer(li.get_events_json(start_, end))
        assert tag == "Events" and ids(body["events"]) == list(want), (start_, end)
        assert {(e["worker_id"], e["event"]["dp_rank"]) for e in body["events"]} == {(7, 3)}
        assert [e["event"]["data"]["stored"]["blocks"][0]["block_hash"] for e in body["events"]] == [100 + i for i in want]


@pytest.mark.parametrize("start_", [None, 0, 3])  # none given; evicted
def test_treedump_the_whole_tree_as_stored_events_with_synthetic_ids_from_0(start_):
    li = full(max_events=4)
    tag, body = answer(li.get_events_json(start_))
    assert tag == "TreeDump" and body["last_event_id"] == 7
    assert ids(body["events"]) == list(range(len(body["events"]))) and all("stored" in e["event"]["data"] for e in body["events"])
    assert [b["block_hash"] for e in body["events"] for b in e["event"]["data"]["stored"]["blocks"]] == [100 + i for i in range(8)]
    assert answer(li.get_events_json(4))[0] == "Events"  # the oldest that is there


def test_toonew_a_start_that_is_ahead_of_the_newest_event():
    li = full()
    for start_ in (8, 9, (1 << 64) - 1):
        tag, body = answer(li.get_events_json(start_))
        assert (tag, body["requested_start"], body["newest_available"]) == ("TooNew", start_, 7)


def test_shutdown_ends_it():
    li = full()
    li.shutdown()
    with pytest.raises(RuntimeError, match="shut down"):
        li.apply_cleared(9)
    assert "Indexer is offline" in li.get_events_json() and answer(li.get_events_json())[0] == "Error"  # never an empty tree


@pytest.fixture
def tee():
    """tee(max_events) makes an engine's tee with its HTTP server: (tee, HTTP port, port of the stream)."""
    made = []

    def make(max_events=1024):
        port, events = free_ports(), free_ports()
        t = engine_tee.Tee(f"tcp://127.0.0.1:{events}", BS, worker_id=1, max_events=max_events)
        made.append((t, engine_tee.serve(t, port)))
        return t, port, events
    yield make
    for t, server in made:
        server.shutdown()
        server.server_close()
        t.close()


@pytest.fixture
def follow(tee):
    """follow(tee, port) gives what a consumer of its stream reads: a function that waits for the next frames."""
    sockets = []

    def make(t, events):
        s = zmq.Context.instance().socket(zmq.SUB)
        s.linger = 0
        s.subscribe(b"")
        s.connect(f"tcp://127.0.0.1:{events}")
        sockets.append(s)

        def joined():
            t.publish([("cleared",)])
            return s.poll(20)
        wait_for("the stream", joined)

        def read(until):
            while True:
                assert s.poll(60000), "the stream ended"
                frames = s.recv_multipart()
                yield frames
                if struct.unpack(">Q", frames[1])[0] >= until:
                    return
        return read
    yield make
    for s in sockets:
        s.close()


def test_kv_recover_on_the_engines_http_server_answers_what_the_local_index_says(tee):
    t, port, _ = tee(max_events=4)
    for letter in range(8):
        t.publish([("stored", [letter + 1], letter or None, tokens_of([letter]))])
    for query, args in (("", ()), ("start=0", (0,)), ("start=5", (5,)), ("start=5&end=6", (5, 6)), ("start=8", (8,))):
        status, body = ask(port, query)
        assert status == 200 and body == json.loads(t.local.get_events_json(*args)), query
    assert [next(iter(ask(port, q)[1])) for q in ("", "start=0", "start=5", "start=8")] == ["TreeDump", "TreeDump", "Events", "TooNew"]


def test_the_event_id_is_the_sequence_of_the_zmq_batch(tee, follow):
    t, port, events = tee()
    read = follow(t, events)
    first = t.sequence
    for letter in range(5):
        t.publish([("stored", [10 * letter + 1], None, tokens_of([letter])), ("stored", [10 * letter + 2], 10 * letter + 1, tokens_of([letter]))])
    live = {}
    for _, seq, payload in read(t.sequence - 1):
        live[struct.unpack(">Q", seq)[0]] = [n for e in msgpack.unpackb(payload)[1] if e[0] == "BlockStored" for n in e[1]]
    kept = {}
    for e in ask(port, f"start={first}")[1]["Events"]["events"]:
        kept.setdefault(e["event"]["event_id"], []).extend(b["block_hash"] for b in e["event"]["data"]["stored"]["blocks"])
    assert len(kept) == 5 and all(live[i] == names == [10 * (i - first) + 1, 10 * (i - first) + 2] for i, names in kept.items())


def test_the_live_zmq_stream_is_unchanged(tee, follow):
    t, port, events = tee(max_events=2)
    read = follow(t, events)
    first = t.sequence
    batches = [[("stored", [1, 2], None, tokens_of([1, 2]))], [("removed", [2])],
               [("stored", [3], 1, tokens_of([3])), ("removed", [3])], [("cleared",)]]
    for batch in batches:
        t.publish(batch)
        for query in ("", f"start={first}", f"start={t.sequence + 5}"):  # nobody who asks is seen in the stream
            assert ask(port, query)[0] == 200
    frames = [f for f in read(t.sequence - 1) if struct.unpack(">Q", f[1])[0] >= first]
    assert all(len(f) == 3 and f[0] == b"" for f in frames) and [f[1] for f in frames] == [(first + i).to_bytes(8, "big") for i in range(4)]
    payloads = [msgpack.unpackb(f[2]) for f in frames]
    assert all(len(p) == 3 and isinstance(p[0], float) and p[2] == 0 for p in payloads)
    assert [p[1] for p in payloads] == [[["BlockStored", [1, 2], None, [1] * BS + [2] * BS, BS, None, "GPU", None]], [["BlockRemoved", [2], "GPU"]],
                                        [["BlockStored", [3], 1, [3] * BS, BS, None, "GPU", None], ["BlockRemoved", [3], "GPU"]],
                                        [["AllBlocksCleared"]]]


def test_the_live_zmq_stream_goes_on_past_what_the_local_index_cannot_take(tee, follow):
    t, port, events = tee()
    read = follow(t, events)
    first = t.sequence
    t.publish([("stored", [1], None, tokens_of([1])), ("stored", [2, 3], 1, tokens_of([2]))])  # two names for one block
    t.publish([("stored", [4], None, tokens_of([4]))])
    frames = [f for f in read(t.sequence - 1) if struct.unpack(">Q", f[1])[0] >= first]
    assert [[e[1] for e in msgpack.unpackb(f[2])[1]] for f in frames] == [[[1], [2, 3]], [[4]]]
    (error,) = ask(port, "")[1].items()
    assert error[0] == "Error" and f"batch {first}: block_hashes" in error[1]  # never a tree that is not whole
    t.publish([("cleared",)])
    assert ask(port, "")[1]["TreeDump"]["events"] == []


def test_it_is_off_by_default(start):  # noqa: F811
    sent = []
    p = KvEventPublisher(sent.append, 7, 16)
    p.publish_stored(PROMPT, [16] * 4, NAMES)
    assert len(sent) == 1  # published all the same
    with pytest.raises(RuntimeError, match="enable_local_indexer is False"):
        p.get_events_json()
    engine = ScriptedServer(lambda query: {"object": "list", "data": []})
    try:  # and a router asks only where it is told to
        s = start(Serve, [f"{engine.url},events=tcp://127.0.0.1:{free_ports()},block-size=16"], ready=False)
        wait_for("its health", lambda: len(engine.asked) > 3)
        # a question for events has a query; of those about the engine's configuration one has
        assert all(q in ({}, {"config_format": "json"}) for q in engine.asked) and s.metric("kv_questions_total") == 0
    finally:
        engine.close()


def test_applying_an_event_costs_microseconds():
    def cost(li, first, n=2000):
        tokens = array.array("I", PROMPT)
        began = time.thread_time()  # of this thread alone, whatever else the machine does
        for i in range(first, first + n):
            at = 4 * i + 1
            li.apply_stored(i, tokens, (at, at + 1, at + 2, at + 3))
        return (time.thread_time() - began) / n
    li = LocalIndexer(7, 16)
    small = min(cost(li, 2000 * i) for i in range(5))
    for i in range(5, 20):
        cost(li, 2000 * i)
    assert li.stats()["newest_id"] == 39999
    assert small < 100e-6 and min(cost(li, 2000 * i) for i in range(20, 25)) < 100e-6  # however much is held


def test_a_dump_never_blocks_the_publisher():
    li = LocalIndexer(1, 1, max_events=4096)
    n = 50000
    li.apply_stored(0, array.array("I", range(n)), range(1, n + 1))
    begun, go_on, pieces = threading.Event(), threading.Event(), []

    def write(piece):  # a reader that takes nothing for as long as the engine likes
        pieces.append(piece)
        begun.set()
        assert go_on.wait(60)
    t = threading.Thread(target=li.write_events_json, args=(write,))
    t.start()
    try:
        assert begun.wait(60)
        for i in range(1, 2001):  # the engine goes on, in the middle of the dump
            li.apply_stored(i, [n + i], [n + i], parent_hash=n + i - 1)
            assert answer(li.get_events_json(i))[0] == "Events"  # and others who ask are answered
        assert t.is_alive() and li.stats()["newest_id"] == 2000
    finally:
        go_on.set()
        t.join(60)
    tag, dump = answer(b"".join(pieces))
    assert tag == "TreeDump" and dump["last_event_id"] == 0
    tree = RadixTree()
    for e in dump["events"] + answer(li.get_events_json(1))[1]["events"]:  # what came meanwhile may be in it, or not
        tree.apply_router_event(e)
    assert tree.current_size() == n + 2000


class Consumer:
    """Follows a tee's stream by the rules, into a tree: a gap is asked for; a TreeDump drops what was there."""

    def __init__(self, port, cursor=None):
        self.port, self.cursor, self.tree, self.answers = port, cursor, RadixTree(), []

    def frame(self, frames):
        seq = struct.unpack(">Q", frames[1])[0]
        if self.cursor is None or seq > self.cursor + 1:
            self.ask()
        if seq <= self.cursor:
            return
        self.cursor = seq
        for e in msgpack.unpackb(frames[2])[1]:
            self.apply(e)

    def apply(self, e):
        if e[0] == "BlockStored":
            self.tree.apply_event(1, stored(compute_block_hash_for_seq(e[3], BS), e[1], parent=e[2]))
        elif e[0] == "BlockRemoved":
            self.tree.apply_event(1, {"event_id": 1, "data": {"removed": {"block_hashes": e[1]}}})
        else:
            self.tree.clear_all_blocks(1)

    def ask(self):
        ((tag, body),) = ask(self.port, "" if self.cursor is None else f"start={self.cursor + 1}")[1].items()
        self.answers.append(tag)
        if tag == "TooNew":
            return
        if tag == "TreeDump":
            self.tree.clear_all_blocks(1)
        for e in body["events"]:
            self.tree.apply_router_event(e)
        self.cursor = body["last_event_id"]

    def holds(self, engine):
        assert self.tree.current_size() == len(engine.held)
        for p in engine.held:
            assert self.tree.find_matches(compute_block_hash_for_seq(tokens_of(p), BS)).scores == {(1, 0): len(p)}


def test_a_consumer_that_joins_late_ends_with_exactly_the_engines_state(tee, follow):
    t, port, events = tee(max_events=16)
    e = Engine(t, 1)
    for _ in range(500):
        e.step()  # nobody has listened, and most of it has left the ring
    c = Consumer(port)
    c.ask()
    c.holds(e)
    read = follow(t, events)  # clears, to see that it is there
    e.held.clear()
    for _ in range(300):
        e.step()
    for frames in read(t.sequence - 1):
        c.frame(frames)
    c.holds(e)
    assert c.answers[0] == "TreeDump" and c.cursor == t.sequence - 1


@pytest.mark.parametrize("ring, tag", [(2048, "Events"), (16, "TreeDump")])
def test_a_consumer_after_a_large_gap_ends_with_exactly_the_engines_state(tee, follow, ring, tag):
    """Also where what is stored after the gap hangs below what was stored in it, and what was held before has gone in it."""
    t, port, events = tee(ring)
    read = follow(t, events)
    c, e = Consumer(port, t.sequence - 1), Engine(t, ring)
    for _ in range(50):
        e.step()
    for frames in read(t.sequence - 1):
        c.frame(frames)
    c.holds(e)
    t.publish([("cleared",)], send=False)  # roots go, and come back with others below them
    e.held.clear()
    for _ in range(500):
        e.step(lose=1)
    root = next(p for p in e.held if len(p) == 1)
    child = root + (9,)
    e.held.add(child)
    t.publish([("stored", [name_of(child)], name_of(root), tokens_of(child[-1:]))])  # seen; its parent never was
    for frames in read(t.sequence - 1):
        c.frame(frames)
    c.holds(e)
    assert c.answers == [tag]
    t.publish([], send=False)  # and it goes on to see gaps by the same sequence
    e.step()
    while t.sequence - 1 == c.cursor + 1:
        e.step()
    for frames in read(t.sequence - 1):
        c.frame(frames)
    c.holds(e)
    assert len(c.answers) == 2


def test_nothing_to_do_when_a_question_is_too_new(tee, follow):
    t, port, events = tee()
    e = Engine(t, 3)
    for _ in range(20):
        e.step()
    c = Consumer(port)
    c.ask()
    c.ask()
    assert c.answers == ["TreeDump", "TooNew"] and c.cursor == t.sequence - 1
    c.holds(e)


def names_of_dump(dump):
    return {b["block_hash"] for part in dump.values() for ev in part["events"] for b in ev["event"]["data"]["stored"]["blocks"]}


def equals(engine, told):
    """Whether what is told of the engine is what it holds. Only a next batch shows that one is missing, so it goes on now and then."""
    looks = itertools.count()

    def check():
        if next(looks) % 10 == 0:
            engine.step()
        return told() == {name_of(p) for p in engine.held}
    return check


@pytest.mark.parametrize("ring", [16, 1024])
def test_a_router_that_joins_late_and_loses_batches_ends_with_exactly_the_engines_state(start, tee, ring):  # noqa: F811
    t, port, events = tee(ring)
    e = Engine(t, ring + 1)
    for _ in range(200):
        e.step()
    s = start(Serve, [f"http://127.0.0.1:{port},events=tcp://127.0.0.1:{events},recover=http://127.0.0.1:{port}/kv_recover,block-size={BS}"])

    equal = equals(e, lambda: s.view()["trusted"] and names_of_dump(s.get("/dump")))
    wait_for("what was before it", equal, 20)
    for _ in range(3):
        for _ in range(60):
            e.step(lose=0.3)
        wait_for("equal", equal, 20)
    assert s.metric("kv_gaps_total") >= 1 and s.metric("kv_recovered_dumps_total") >= 1
    assert ring == 16 or s.metric("kv_recovered_events_total") >= 1


def test_an_indexer_that_joins_late_and_loses_batches_ends_with_exactly_the_engines_state(start, tee):  # noqa: F811
    t, port, events = tee(16)
    e = Engine(t, 5)
    for _ in range(200):
        e.step()
    ix = start(Indexer)
    ix.post("/register", {"instance_id": 1, "endpoint": f"tcp://127.0.0.1:{events}", "model_name": "m", "block_size": BS,
                          "recover_endpoint": f"http://127.0.0.1:{port}/kv_recover"}, 201)

    equal = equals(e, lambda: ix.trusted() and names_of_dump(ix.get("/dump")))
    wait_for("what was before it", equal, 20)
    for _ in range(60):
        e.step(lose=0.3)
    wait_for("equal", equal, 20)
    for p in list(e.held)[:5]:
        assert ix.scores(tokens_of(p)) == {(1, 0): len(p) * BS}


# ---- the names, each at work with the others ---------------------------------------------------------------------------------


def test_compute_block_hash_for_seq_names_what_the_indexes_match():
    chain = compute_seq_hash_for_block(LOCALS)
    assert len(LOCALS) == len(chain) == 4 and chain[0] == LOCALS[0]
    assert compute_block_hash_for_seq(PROMPT + [1], 16) == LOCALS  # full blocks only
    k = KvIndexer(None, 16)
    k.apply_event(7, stored(LOCALS, chain))
    assert k.find_matches(LOCALS) == k.find_matches_for_request(PROMPT) and k.find_matches(LOCALS).scores == {(7, 0): 4}


def test_radix_tree_and_kv_indexer_tell_the_same_overlap_scores():
    tree, k = RadixTree(), KvIndexer(None, 16)
    for index in (tree, k):
        index.apply_event(7, json.dumps(stored()).encode())
        index.apply_event(8, stored(LOCALS[:2], NAMES[:2], rank=1))
    scores = k.find_matches_for_request(PROMPT)
    assert isinstance(scores, OverlapScores) and scores == tree.find_matches(LOCALS) and scores.scores == {(7, 0): 4, (8, 1): 2}
    k.remove_worker(7)
    assert k.find_matches_for_request(PROMPT).scores == {(8, 1): 2}


def test_approx_kv_indexer_learns_from_what_kv_router_decides():
    r, approx = router((1, 2)), ApproxKvIndexer(None, 16, 60)
    worker, rank, _ = r.best_worker(PROMPT)
    approx.process_routing_decision_for_request(PROMPT, worker, rank)
    assert approx.find_matches_for_request(PROMPT).scores == {(worker, rank): 4} and approx.find_matches_for_request(OTHER).scores == {}


def test_kv_event_publisher_feeds_kv_router_kv_indexer_and_kv_recorder(tmp_path):
    r, k, path = router((7,)), KvIndexer(None, 16), tmp_path / "r.jsonl"
    with KvRecorder(output_path=path) as recorder:
        for to in (r, k, recorder):
            p = KvEventPublisher(to, 7, 16, enable_local_indexer=True)
            p.publish_stored(PROMPT, [16] * 4, NAMES)
            p.publish_removed(NAMES[3:])
    replayed = RadixTree()
    assert KvRecorder.replay_events(path, replayed) == 2
    assert r.best_worker(PROMPT) == (7, 0, 3)
    assert k.find_matches_for_request(PROMPT).scores == replayed.find_matches(LOCALS).scores == {(7, 0): 3}


def test_local_indexer_repairs_a_kv_router_that_has_lost_an_event():
    r, li = router((7,)), LocalIndexer(7, 16)
    li.apply_stored(1, PROMPT[:32], NAMES[:2])
    li.apply_stored(2, PROMPT[32:], NAMES[2:], parent_hash=NAMES[1])
    with pytest.raises(ValueError):  # the first was lost
        r.apply_event(7, stored(LOCALS[2:], NAMES[2:], parent=NAMES[1]))
    for e in answer(li.get_events_json(1))[1]["events"]:
        r.apply_router_event(e)
    assert r.best_worker(PROMPT) == (7, 0, 4)


def test_every_name_can_be_imported_and_says_what_it_is():
    for name in ("RadixTree", "KvIndexer", "ApproxKvIndexer", "OverlapScores", "KvRouter", "KvEventPublisher", "LocalIndexer", "KvRecorder",
                 "compute_block_hash_for_seq", "compute_seq_hash_for_block", "KvRouterConfig"):
        assert name in kvroute.__all__ and getattr(kvroute, name).__doc__


SERVE_AND_ASK = dict(serve_indexer=True, use_remote_indexer=True)
INVARIANTS = [(SERVE_AND_ASK, ("serve_indexer", "use_remote_indexer")),
              (dict(serve_indexer=True, overlap_score_credit=0), ("serve_indexer", "overlap_score_credit")),
              (dict(use_remote_indexer=True, overlap_score_credit=0), ("use_remote_indexer", "overlap_score_credit")),
              (dict(serve_indexer=True, overlap_score_weight=0), ("serve_indexer", "overlap_score_credit"))]


@pytest.mark.parametrize("options, names", INVARIANTS)
def test_serving_and_asking_exclude_each_other_and_need_a_credit_and_the_message_names_them(options, names):
    def set_one_by_one():
        config = KvRouterConfig()
        for name, value in options.items():
            setattr(config, name, value)  # alone each is allowed
        KvRouter(None, 16, config)
    for make in (lambda: KvRouterConfig(**options), lambda: KvRouterConfig.from_json(json.dumps(options)),
                 lambda: KvRouterConfig().with_overrides(**options), set_one_by_one):
        with pytest.raises(ValueError) as e:
            make()
        assert all(name in str(e.value) for name in names), e.value


def test_an_index_that_cannot_be_served_or_asked_for_here_is_refused_and_not_forgotten():
    for name in ("serve_indexer", "use_remote_indexer"):
        with pytest.raises(ValueError, match=f"^{name}: .*kvroute serve --{name.replace('_', '-')}"):
            KvRouter(None, 16, KvRouterConfig(**{name: True}))
