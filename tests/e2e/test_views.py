# SPDX-License-Identifier: Apache-2.0
"""KV events to views: late join, gaps, restarts, replay forms, garbage, trust."""
import os
import random
import struct
import time

import msgpack
import pytest
import zmq

from conftest import SLOW, Mock, Serve, call, free_ports, local_hashes, wait_for

T = list(range(100, 140))  # ten blocks of four


@pytest.fixture
def rig(start, engine):
    """rig(replay=True, **engine args): a mock for HTTP, a hand-driven engine for events, a router."""
    def make(replay=True, serve_args=(), ready=False, before=None, patience=20, **kw):
        m = start(Mock, with_events=False)
        e = engine(**kw)
        if before:
            before(e)
        spec = f"http://127.0.0.1:{m.port},block-size=4,events=tcp://127.0.0.1:{e.events}"
        if replay:
            spec += f",replay=tcp://127.0.0.1:{e.replay_port}"
        # a test answers replays when it comes to it: under a sanitizer that takes longer
        return e, start(Serve, [spec], "--restore-timeout", patience, *serve_args, ready=ready)
    return make


def trusted(s):
    return s.view().get("trusted")


def depth(s, tokens=T):
    return s.overlap(tokens).get((1, 0))


def test_late_join_is_restored_by_replay(rig):
    e, s = rig(before=lambda e: (e.stored([1, 2], T[:8]), e.stored([3], T[8:12], parent=2), e.removed([3])))
    e.until("trusted", lambda: trusted(s))
    assert depth(s) == 2 and s.view()["next_sequence"] == 3
    wait_for("ready", lambda: call(s.port, "GET", "/ready").status == 200)


def test_replay_asks_from_zero_with_an_empty_frame(rig):
    e, s = rig()
    starts = []
    wait_for("request", lambda: starts.extend(e.serve_replay()) or starts)
    assert starts[0] == 0


def test_live_events(rig):
    e, s = rig()
    e.until("trusted", lambda: trusted(s))
    e.stored([1, 2, 3], T[:12])
    wait_for("stored", lambda: depth(s) == 3)
    e.removed([3])
    wait_for("removed", lambda: depth(s) == 2)
    e.stored([4], T[8:12], parent=2)
    wait_for("stored again", lambda: depth(s) == 3)
    e.cleared()
    wait_for("cleared", lambda: depth(s) == 0)


def test_replay_with_topic_frame(rig):
    e, s = rig(topic=True, before=lambda e: e.stored([1, 2], T[:8]))
    e.until("trusted", lambda: trusted(s))
    assert depth(s) == 2


def test_gap_is_repaired_by_replay(rig):
    e, s = rig()
    e.until("trusted", lambda: trusted(s))
    e.stored([1], T[:4])
    e.stored([2], T[4:8], parent=1, drop=True)
    e.stored([3], T[8:12], parent=2)
    e.until("repaired", lambda: depth(s) == 3 and trusted(s) and s.view()["gaps"] == 1)


def test_lost_tail_is_repaired_with_the_next_batch(rig):
    e, s = rig()
    e.until("trusted", lambda: trusted(s))
    for i in range(5):
        e.stored([i + 1], T[4 * i:4 * i + 4], parent=i or None, drop=i in (1, 3))
        e.serve_replay()
    e.until("repaired", lambda: depth(s) == 5)


def test_gap_without_replay_leaves_a_partial_view_of_what_came_since(rig):
    e, s = rig(replay=False)
    wait_for("followed", lambda: s.view())
    wait_for("seen from 0", lambda: e.send(e.batch(), seq=0, keep=False) == 0 and trusted(s))
    e.seq = 1
    e.stored([1, 2], T[:8])
    wait_for("stored", lambda: depth(s) == 2)
    e.stored([3], T[8:12], parent=2, drop=True)
    e.stored([4], T[12:16], parent=3)
    wait_for("partial", lambda: s.view()["view"] == "partial")
    assert depth(s) == 0 and "lost" in s.view()["reason"] and trusted(s) and s.metric("view_trusted") == 1
    assert {k: s.metric("view_knowledge", state=k) for k in ("whole", "partial", "unknown")} == {"whole": 0, "partial": 1, "unknown": 0}
    e.stored([5, 6], T[:8])
    wait_for("what came since is true", lambda: depth(s) == 2)
    r = s.complete(T)
    assert r.status == 200 and r.headers["x-kvroute-reason"] == "kv" and r.headers["x-kvroute-view"] == "partial"
    e.removed([6])
    wait_for("removed", lambda: depth(s) == 1)
    e.cleared()  # an empty view is a complete one
    wait_for("whole again", lambda: s.view()["view"] == "whole")


def test_without_replay_a_late_join_is_partial(rig):
    e, s = rig(replay=False)
    e.seq = 7
    wait_for("gap", lambda: e.stored([1], T[:4]) or s.view().get("gaps", 0) > 0)
    assert s.view()["view"] == "partial" and trusted(s) and depth(s) == 1
    wait_for("ready", lambda: call(s.port, "GET", "/ready").status == 200)


def test_sequence_backwards_is_a_restart(rig):
    e, s = rig()
    e.until("trusted", lambda: trusted(s))
    for i in range(4):
        e.stored([i + 1], T[4 * i:4 * i + 4], parent=i or None)
    wait_for("stored", lambda: depth(s) == 4)
    e.seq, e.sent = 0, []
    e.stored([50], T[:4])
    e.until("restarted", lambda: depth(s) == 1 and s.view()["restarts"] == 1 and trusted(s))


def test_restart_in_the_middle_is_rebuilt_from_replay(rig):
    e, s = rig()
    e.until("trusted", lambda: trusted(s))
    for i in range(6):
        e.stored([i + 1], T[4 * i:4 * i + 4], parent=i or None)
    wait_for("stored", lambda: depth(s) == 6)
    e.seq, e.sent = 0, []
    e.stored([50], T[:4], drop=True)
    e.stored([51], T[4:8], parent=50)
    e.until("rebuilt", lambda: depth(s) == 2)
    e.until("trusted", lambda: trusted(s))


def test_history_that_the_buffer_has_lost_makes_a_partial_view(rig):
    def before(e):
        for i in range(4):
            e.stored([i + 1], T[4 * i:4 * i + 4], parent=i or None)
        e.sent = e.sent[2:]
    e, s = rig(before=before)
    e.until("settled", lambda: s.view().get("state") == "live")
    assert s.view()["view"] == "partial" and "history" in s.view()["reason"]
    wait_for("ready", lambda: call(s.port, "GET", "/ready").status == 200)
    e.stored([9, 10, 11], T[:12])
    wait_for("later blocks are used", lambda: depth(s) == 3)
    assert s.complete(T).headers["x-kvroute-view"] == "partial"


def test_blocks_of_before_a_hole_do_not_outlive_it(rig):
    """The replay begins after what the view has: a removal may be in the hole, so what was known before it must go."""
    e, s = rig()
    e.until("whole", lambda: trusted(s))
    e.stored([1, 2], T[:8])
    wait_for("stored", lambda: depth(s) == 2)
    e.removed([1, 2], drop=True, keep=False)
    e.stored([7], list(range(500, 504)), drop=True)
    e.stored([8], list(range(504, 508)), parent=7)
    e.until("partial", lambda: s.view()["view"] == "partial")
    assert depth(s) == 0 and depth(s, list(range(500, 508))) == 2 and "history" in s.view()["reason"]


def test_a_view_that_nobody_confirms_after_a_reconnect_does_not_stay(rig):
    """The line was down, so removals may have been missed; the replay endpoint is silent: the next batch that shows a hole finds the view
    emptied, and begins a partial one."""
    e, s = rig(patience=min(SLOW, 3))
    e.until("whole", lambda: trusted(s))
    e.stored([1, 2], T[:8])
    wait_for("stored", lambda: depth(s) == 2)
    before = e.subscribed()
    e.pub.close()
    wait_for("down", lambda: s.view()["view"] == "unknown")
    e.pub = zmq.Context.instance().socket(zmq.XPUB)
    e.pub.linger = 0
    wait_for("bound", lambda: not e.pub.bind(f"tcp://127.0.0.1:{e.events}") or True)
    e.heard_by(before + 1)
    wait_for("given up", lambda: "answer" in s.view()["reason"], 20)
    assert depth(s) == 0 and s.view()["view"] == "unknown"
    e.seq = 9
    e.stored([3], T[:4])
    wait_for("partial", lambda: s.view()["view"] == "partial" and depth(s) == 1)


def test_dead_replay_endpoint_is_declared_untrusted(rig):
    e, s = rig(patience=1)  # nobody answers the replay
    wait_for("ready", lambda: call(s.port, "GET", "/ready").status == 200)
    assert not trusted(s) and s.view()["view"] == "unknown" and "answer" in s.view()["reason"]
    e.stored([1], T[:4], drop=True)
    e.until("recovered when it answers", lambda: s.view()["view"] == "whole" and depth(s) == 1, 20)


def test_reconnect_without_replay_is_trusted_after_the_next_batch(rig):
    e, s = rig(replay=False)
    wait_for("seen from 0", lambda: e.send(e.batch(), seq=0, keep=False) == 0 and trusted(s))
    e.seq = 1
    e.stored([1], T[:4])
    wait_for("stored", lambda: depth(s) == 1)
    before = e.subscribed()
    e.pub.close()
    wait_for("down", lambda: not trusted(s))
    e.pub = zmq.Context.instance().socket(zmq.XPUB)  # tells when the subscription stands
    e.pub.linger = 0
    wait_for("bound", lambda: not e.pub.bind(f"tcp://127.0.0.1:{e.events}") or True)
    e.heard_by(before + 1)
    assert not trusted(s)
    e.stored([2], T[4:8], parent=1)
    wait_for("trusted", lambda: trusted(s) and depth(s) == 2)
    e.pub.close()


def test_dead_events_endpoint(start):
    m = start(Mock, with_events=False)
    p = free_ports(2)
    s = start(Serve, [f"http://127.0.0.1:{m.port},events=tcp://127.0.0.1:{p},replay=tcp://127.0.0.1:{p + 1}"], "--restore-timeout", "0.5")
    assert not s.view()["trusted"]
    assert s.complete("hello").status == 200


def test_wrong_block_size_is_noticed(start):
    m = start(Mock, "--fault-block-size", "32")
    s = start(Serve, [m])
    s.complete("x" * 100)
    wait_for("noticed", lambda: not s.view()["trusted"])
    assert "block size" in s.view()["reason"]
    assert s.metric("kv_events_filtered_total", reason="block_size_mismatch") >= 1
    assert s.complete("x" * 100).headers["x-kvroute-reason"] != "kv"


def test_map_batches_and_byte_hashes(rig):
    e, s = rig()
    e.until("trusted", lambda: trusted(s))
    e.send(msgpack.packb({"ts": time.time(), "events": [{"type": "BlockStored", "block_hashes": [b"\x01" * 32, -5], "parent_block_hash": None,
                                                        "token_ids": T[:8], "block_size": 4, "lora_id": None}], "data_parallel_rank": 0}))
    wait_for("stored", lambda: depth(s) == 2)
    e.send(msgpack.packb([time.time(), [{"type": "BlockRemoved", "block_hashes": [2 ** 64 - 5]}]]))
    wait_for("removed", lambda: depth(s) == 1)


def test_lora_and_salt_events(rig):
    e, s = rig()
    e.until("trusted", lambda: trusted(s))
    e.send(e.batch(["BlockStored", [1], None, T[:4], 4, 1, "GPU", "my-lora"]))
    e.send(e.batch({"type": "BlockStored", "block_hashes": [2], "parent_block_hash": None, "token_ids": T[:4], "block_size": 4, "cache_salt": "t"}))
    wait_for("stored", lambda: s.metric("index_blocks") == 2)
    assert depth(s) == 0
    assert s.overlap(T, lora_name="my-lora")[(1, 0)] == 1
    assert s.overlap(T, cache_salt="t")[(1, 0)] == 1
    assert s.overlap(T, cache_salt="u")[(1, 0)] == 0


def test_hybrid_cache_groups_are_filtered(rig):
    e, s = rig()
    e.until("trusted", lambda: trusted(s))
    tail = [None, "GPU", None, None]
    e.send(e.batch(["BlockStored", [1], None, T[:4], 4, *tail, 1, "sliding_window", 128, "LOCAL"]))
    e.send(e.batch(["BlockStored", [2], None, T[4:8], 4, *tail, 0, "full_attention", None, "LOCAL"]))
    wait_for("stored", lambda: s.metric("index_blocks") == 1)
    assert depth(s) == 0 and s.overlap(T[4:])[(1, 0)] == 0  # the engine reuses nothing of it without the window's block
    e.send(e.batch(["BlockStored", [2], None, T[4:8], 4, *tail, 1, "sliding_window", 128, "LOCAL"]))
    wait_for("both groups have it", lambda: s.overlap(T[4:])[(1, 0)] == 1)
    assert depth(s) == 0


def test_a_group_that_is_not_understood_makes_a_lower_bound(rig):
    e, s = rig()
    e.until("trusted", lambda: trusted(s))
    tail = [None, "GPU", None, None]
    e.send(e.batch(["BlockStored", [2], None, T[:4], 4, *tail, 0, "full_attention", None, "LOCAL"]))
    e.until("stored", lambda: depth(s) == 1)
    assert s.view()["view"] == "whole"
    e.send(e.batch(["BlockStored", [3], None, T[4:8], 4, *tail, 1, "chunked_local_attention", None, "LOCAL"]))
    e.until("noticed", lambda: s.view()["view"] == "partial")
    assert "lower bound" in s.view()["reason"] and trusted(s) and depth(s) == 0


def test_other_rank_on_the_port_is_noticed(rig):
    e, s = rig()
    e.until("trusted", lambda: trusted(s))
    e.send(e.batch(["BlockStored", [1], None, T[:4], 4], rank=3))
    wait_for("noticed", lambda: not trusted(s))
    assert depth(s) == 0


def test_an_unknown_parent_never_becomes_position_0(rig):
    e, s = rig()
    e.until("trusted", lambda: trusted(s))
    e.stored([5], T[:4], parent=4711, keep=False)
    wait_for("counted", lambda: s.metric("kv_parent_not_found_total") >= 1)
    assert depth(s) == 0


def test_garbage_on_the_socket(rig):
    e, s = rig()
    e.until("trusted", lambda: trusted(s))
    e.stored([1, 2], T[:8])
    wait_for("stored", lambda: depth(s) == 2)
    for frames in ([b"x"], [b"a", b"b"], [b"", b"short", b"x"], [b""] * 9, [b"", b"\0" * 9, b"x"], [b"", b"", b""]):
        e.pub.send_multipart(frames)
    wait_for("counted", lambda: s.metric("kv_bad_frames_total") == 6)
    e.send(b"\xc1 not msgpack", keep=False, seq=e.seq)
    e.send(b"", keep=False, seq=e.seq)
    wait_for("counted", lambda: s.metric("kv_decode_errors_total") == 2)
    e.stored([3], T[8:12], parent=2)
    e.until("goes on", lambda: depth(s) == 3)
    assert trusted(s)


def test_ten_thousand_mutated_batches(rig):
    e, s = rig(replay=False)
    wait_for("seen from 0", lambda: e.send(e.batch(), seq=0, keep=False) == 0 and trusted(s))
    rng = random.Random(7)
    bodies = [e.batch(["BlockStored", list(range(i, i + 4)), None, T[:16], 4, None, "GPU", None], ["BlockRemoved", [i], "GPU"]) for i in range(50)]
    bodies += [msgpack.packb({"ts": 1.0, "events": [{"type": "BlockStored", "block_hashes": [1], "token_ids": [[1, 2], [2, 3]], "block_size": 2,
                                                   "extra_keys": [["a" * 64, ["x", 1]]]}]})]

    def mutate(b):
        b = bytearray(b)
        for _ in range(rng.randint(1, 6)):
            what = rng.random()
            at = rng.randrange(len(b))
            if what < 0.6:
                b[at] = rng.randrange(256)
            elif what < 0.8:
                del b[at:at + rng.randint(1, 8)]
            else:
                b[at:at] = os.urandom(rng.randint(1, 8))
            if not b:
                b = bytearray(b"\x90")
        return bytes(b)
    e.seq = 1
    sent = 0
    rss = None
    for i in range(10000):
        e.send(mutate(rng.choice(bodies)), keep=False)
        sent += 1
        if i == 2000:
            wait_for("taken", lambda: s.metric("kv_decode_errors_total") + s.metric("kv_batches_total") >= 1000, 20)
            rss = s.rss_kb()
    wait_for("all seen", lambda: s.metric("kv_decode_errors_total") + s.metric("kv_batches_total") >= sent * 0.99, 60)
    assert s.metric("kv_decode_errors_total") > 1000
    assert s.rss_kb() < rss + 60000  # quarantined memory of the address sanitizer included
    assert s.post("/debug/validate", {}).status == 200
    assert s.complete("still alive").status == 200


def test_view_equals_the_engine_after_random_traffic(start):
    mocks = [start(Mock, "--num-gpu-blocks", "120", "--block-size", "4", speedup=500) for _ in range(2)]
    s = start(Serve, [m.spec(",block-size=4") for m in mocks])
    rng = random.Random(3)
    for i in range(150):
        group = rng.randrange(5)
        prompt = [1000 + group] * 12 + [rng.randrange(2000, 2004) for _ in range(rng.randrange(40))] + [7]
        r = s.complete(prompt, max_tokens=rng.randrange(1, 12))
        assert r.status == 200
        w = int(r.headers["x-kvroute-worker"])  # what it changed is known before the next one is decided
        wait_for("equal", lambda: s.view(w)["blocks"] == mocks[w - 1].metric("kvroute_mock_cached_blocks"))
    assert s.metric("kv_parent_not_found_total") == 0 and s.post("/debug/validate", {}).status == 200
    assert s.metric("predicted_equals_actual_total") >= 0.99 * s.metric("usage_answers_total")


def test_dropped_events_are_repaired(start):
    m = start(Mock, "--drop-events", "3", "--block-size", "4", speedup=500)
    s = start(Serve, [m.spec(",block-size=4")])
    for i in range(2000):  # until one was missed: a replay that is under way brings those that were dropped meanwhile
        s.complete([3000 + i] * 20)
        if i >= 30 and s.view()["gaps"]:
            break
    s.complete([9] * 20)
    wait_for("equal", lambda: s.complete([10] * 20) and s.view()["blocks"] == m.metric("kvroute_mock_cached_blocks"))
    wait_for("trusted", lambda: s.view()["gaps"] > 0 and trusted(s))


def test_dump_replays_into_an_equal_view(rig):
    e, s = rig()
    e.until("trusted", lambda: trusted(s))
    e.stored([1, 2, 3], T[:12])
    e.stored([4], T[20:24], parent=2)
    wait_for("stored", lambda: s.metric("index_blocks") == 4)
    dump = s.get("/dump")
    assert len(dump) == 1
    part = next(iter(dump.values()))
    assert part["block_size"] == 4
    blocks = {}
    for ev in part["events"]:
        assert ev["worker_id"] == 1 and ev["event"]["dp_rank"] == 0
        parent = ev["event"]["data"]["stored"]["parent_hash"]
        for b in ev["event"]["data"]["stored"]["blocks"]:
            blocks[b["block_hash"]] = (parent, b["tokens_hash"])
            parent = b["block_hash"]
    h = local_hashes(T, 4)
    assert blocks == {1: (None, h[0]), 2: (1, h[1]), 3: (2, h[2]), 4: (2, h[5])}


def test_a_partial_view_is_filled_by_what_its_engine_has_answered(rig):
    """Old blocks have names that nobody here knows: they are in the view after an answer, one goes with each unknown name that is removed,
    and they get their names when these are told."""
    e, s = rig(replay=False)
    e.seq = 7
    wait_for("partial", lambda: e.stored([91], T[:4][::-1]) or s.view().get("view") == "partial")
    assert not depth(s)
    s.complete(T, max_tokens=1)  # all of it is computed: events tell
    r = s.complete(T, max_tokens=1)
    cached = r.json()["usage"]["prompt_tokens_details"]["cached_tokens"] // 4
    assert r.status == 200 and r.headers["x-kvroute-view"] == "partial" and cached == 8
    wait_for("what was cached of the prompt", lambda: depth(s) == cached and s.metric("view_supposed_blocks") == cached)
    e.removed([12345])
    wait_for("one less", lambda: depth(s) == cached - 1)
    e.stored([1, 2, 3], T[:12])
    e.stored([4], T[12:16], parent=3)
    wait_for("names", lambda: s.metric("view_supposed_blocks") == cached - 5)
    e.removed([4])
    wait_for("a named one is removed", lambda: depth(s) == 3 and s.metric("view_supposed_blocks") == 0)
    assert s.view()["view"] == "partial"


def test_a_partial_view_is_whole_again_when_the_engine_has_given_up_what_came_after_the_loss(rig):
    e, s = rig(replay=False)
    e.seq = 7
    wait_for("partial", lambda: e.stored([91], T[:4][::-1]) or s.view().get("view") == "partial")
    e.stored([1], T[:4])
    e.removed([777])  # of before: more of it may be there
    for k in range(40):
        e.stored([1000 + k], [k + 1] * 4)
    e.removed([778])
    e.stored([2], T[4:8], parent=1)
    e.removed([1000])
    wait_for("stored", lambda: depth(s) == 2)
    assert s.view()["view"] == "partial"  # nothing has shown such a block, but not for long
    for k in range(40, 120):
        e.stored([1000 + k], [k + 1] * 4)
    e.removed(list(range(1001, 1030)))
    wait_for("whole", lambda: s.view()["view"] == "whole" and depth(s) == 2)
    e.stored([5], T[12:16], parent=4)  # one of before, after all
    wait_for("partial", lambda: s.view()["view"] == "partial" and depth(s) == 2 and "still in use" in s.view()["reason"])


def test_blocks_under_names_of_our_own_are_not_kept_on_disk(start, engine, tmp_path):
    """The view is whole again, but for some of it nobody could tell later when it goes: the engine's names of it are not known."""
    m, e = start(Mock, with_events=False), engine()
    args = [f"http://127.0.0.1:{m.port},block-size=4,events=tcp://127.0.0.1:{e.events}"], "--restore-timeout", "1", "--data-dir", tmp_path, "--snapshot-interval", "0.2"
    s = start(Serve, *args, ready=False)
    e.seq = 7
    wait_for("partial", lambda: e.stored([91], T[:4][::-1]) or s.view().get("view") == "partial")
    s.complete(T, max_tokens=1)
    s.complete(T, max_tokens=1)
    wait_for("supposed", lambda: depth(s) == 8)
    for k in range(200):
        e.stored([1000 + k], [k + 1] * 4)
    e.removed(list(range(1000, 1020)))
    wait_for("whole", lambda: s.view()["view"] == "whole" and depth(s) == 8)
    s.stop()
    s = start(Serve, *args, ready=False)
    wait_for("followed", lambda: s.view().get("connected", True) and s.view())
    assert not depth(s)


def test_a_stream_of_another_rank_is_named_with_what_to_give(rig):
    e, s = rig()
    e.until("trusted", lambda: trusted(s))
    for _ in range(3):
        e.send(e.batch(["BlockStored", [1, 2], None, T[:8], 4, None, "GPU", None], rank=3))
    wait_for("named", lambda: not trusted(s))
    assert s.view()["reason"] == "batches of rank 3 come here: give that rank (dp-start), or the events port of this one"
    assert len([line for line in s.text().splitlines() if "batches of rank 3 come here" in line]) == 1
    wait_for("counted", lambda: s.metric("kv_events_filtered_total", reason="other_rank") == 3)


def test_a_block_that_the_cap_took_is_no_sign_of_lost_events(start, rig):
    """The engine goes on with prompts that the router has given up to stay below --index-max-bytes."""
    e, s = rig(serve_args=("--index-max-bytes", "768KiB"))
    e.until("whole", lambda: s.view()["view"] == "whole")
    for c in range(1, 800):
        e.stored(list(range(c * 1000, c * 1000 + 64)), list(range(c * 10000, c * 10000 + 256)))
    e.until("all", lambda: s.view()["next_sequence"] == e.seq)
    assert s.metric("index_evicted_total") > 0
    for c in range(1, 31):
        e.stored([90000000 + c], [7, 7, 7, c], parent=c * 1000 + 63)
    asked = []
    wait_for("all", lambda: asked.extend(e.serve_replay(0.01)) or s.view()["next_sequence"] == e.seq)
    asked += e.serve_replay(0.2)
    assert 0 not in asked and s.view()["view"] == "whole" and s.view()["gaps"] == 0
