# SPDX-License-Identifier: Apache-2.0
"""A router and a worker's recover endpoint that answers as told: what is asked, what becomes of the view, and bad answers."""

import threading

import pytest

from conftest import SLOW, Engine, ScriptedServer, Serve, local_hashes, wait_for

TOKENS = list(range(1, 41))


def event(i, names, tokens, parent=None, kind="stored"):
    blocks = [{"block_hash": n, "tokens_hash": h, "mm_extra_info": None} for n, h in zip(names, local_hashes(tokens, 4))]
    data = {"stored": {"parent_hash": parent, "blocks": blocks}} if kind == "stored" else {"removed": {"block_hashes": names}}
    return {"worker_id": 99, "event": {"event_id": i, "data": data, "dp_rank": 0}}


class Worker(ScriptedServer):
    def __init__(self):
        super().__init__(lambda q: 503, "/kv_recover")

    def starts(self):
        return [int(q["start"]) if "start" in q else None for q in self.asked]


@pytest.fixture
def worker():
    w = Worker()
    yield w
    w.close()


@pytest.fixture
def engine(zctx):
    e = Engine(zctx)
    yield e
    e.close()


def router(start, engine, worker):
    return start(Serve, [f"http://127.0.0.1:1,events=tcp://127.0.0.1:{engine.events},recover={worker.url},block-size=4"], ready=False)


def depth(s, tokens=TOKENS):
    return s.overlap(tokens).get((1, 0), 0)


def test_everything_then_what_is_missing_then_nothing(start, engine, worker):
    worker.script = lambda q: {"TreeDump": {"epoch": 1, "events": [event(0, [1, 2], TOKENS[:8])], "last_event_id": 9}}
    s = router(start, engine, worker)
    wait_for("trusted", lambda: s.view().get("trusted") and depth(s) == 2)
    assert worker.starts()[0] is None and worker.asked[0]["dp_rank"] == "0"
    worker.script = lambda q: {"Events": {"epoch": 1, "events": [event(10, [3], TOKENS[8:12], 2), event(10, [4], TOKENS[12:16], 3)], "last_event_id": 10}}
    engine.seq = 11
    engine.stored([5], TOKENS[16:20], parent=4)  # 10 was lost
    wait_for("repaired", lambda: depth(s) == 5 and s.view()["trusted"] and s.view()["recovered_events"] == 2)
    assert worker.starts()[-1] == 10
    worker.script = lambda q: {"TooNew": {"requested_start": 14, "requested_end": None, "newest_available": 13, "epoch": 1}}
    engine.seq = 13  # 12 had only events that the worker does not keep
    worker.script = lambda q: {"Events": {"epoch": 1, "events": [], "last_event_id": 12}}
    engine.stored([6], TOKENS[20:24], parent=5)
    wait_for("gone on", lambda: depth(s) == 6 and s.view()["trusted"])


def test_another_epoch_is_another_life(start, engine, worker):
    worker.script = lambda q: {"TreeDump": {"epoch": 1, "events": [event(0, [1, 2], TOKENS[:8])], "last_event_id": 9}}
    s = router(start, engine, worker)
    wait_for("trusted", lambda: s.view().get("trusted"))

    def restarted(q):
        if "start" in q:
            return {"Events": {"epoch": 2, "events": [event(10, [7], TOKENS[8:12], 6)], "last_event_id": 10}}
        return {"TreeDump": {"epoch": 2, "events": [event(0, [9], TOKENS[:4])], "last_event_id": 10}}
    worker.script = restarted
    engine.seq = 11
    engine.stored([10], TOKENS[4:8], parent=9)
    wait_for("the new life", lambda: s.view()["restarts"] == 1 and depth(s) == 2 and s.view()["blocks"] == 2 and s.view()["trusted"])
    assert worker.starts()[-2:] == [10, None]


def test_what_an_old_line_brought_is_not_kept_by_the_new_life(start, zctx, worker):
    old = Engine(zctx)
    dump = [event(0, [1, 2], TOKENS[:8])]
    worker.script = lambda q: ({"TooNew": {"requested_start": 11, "requested_end": None, "newest_available": 10, "epoch": 2}} if "start" in q else
                               {"TreeDump": {"epoch": 2, "events": dump, "last_event_id": 9}})
    s = router(start, old, worker)
    wait_for("trusted", lambda: s.view().get("trusted") and depth(s) == 2)

    last = old.batch(["BlockStored", [5], 2, TOKENS[8:12], 4, None, "GPU", None])

    def goes_on():  # the worker's answer was of its new life, what still comes is of the one before
        old.send(last, seq=10)
        return depth(s) == 3
    wait_for("the old life's batch", goes_on)
    old.close()
    wait_for("the line is down", lambda: not s.view()["trusted"])
    questions = len(worker.starts())
    new = Engine(zctx, old.events)
    wait_for("trusted again", lambda: s.view()["trusted"], 20)
    assert worker.starts()[questions] is None and depth(s) == 2
    new.close()


def test_a_store_under_an_unknown_parent_in_what_was_missing(start, engine, worker):
    worker.script = lambda q: {"TreeDump": {"epoch": 1, "events": [event(0, [1, 2], TOKENS[:8])], "last_event_id": 9}}
    s = router(start, engine, worker)
    wait_for("trusted", lambda: s.view().get("trusted") and depth(s) == 2)
    worker.script = lambda q: ({"Events": {"epoch": 1, "events": [event(10, [4], TOKENS[12:16], 3)], "last_event_id": 10}} if "start" in q else
                               {"TreeDump": {"epoch": 1, "events": [event(0, [1, 2, 3, 4], TOKENS[:16])], "last_event_id": 10}})
    engine.seq = 11
    engine.stored([5], TOKENS[16:20], parent=4)  # 10 was lost, and so had 3 been before
    wait_for("whole", lambda: depth(s) == 5 and s.view()["trusted"])
    assert worker.starts()[-2:] == [10, None]


def test_a_worker_that_is_behind_has_restarted(start, engine, worker):
    worker.script = lambda q: {"TreeDump": {"events": [event(0, [1, 2], TOKENS[:8])], "last_event_id": 9}}
    s = router(start, engine, worker)
    wait_for("trusted", lambda: s.view().get("trusted"))
    worker.script = lambda q: ({"TooNew": {"requested_start": 10, "requested_end": None, "newest_available": 3}} if "start" in q else
                               {"TreeDump": {"events": [event(0, [1], TOKENS[:4])], "last_event_id": 3}})
    engine.seq = 12
    engine.stored([5], TOKENS[4:8], parent=1)
    wait_for("restored", lambda: s.view()["blocks"] <= 2 and None in worker.starts()[1:])


def test_an_empty_worker_whose_stream_begins_at_0_or_1(start, engine, worker):
    worker.script = lambda q: {"TreeDump": {"epoch": 1, "events": [], "last_event_id": 0}}
    s = router(start, engine, worker)
    wait_for("trusted", lambda: s.view().get("trusted"))
    engine.stored([1], TOKENS[:4])
    wait_for("0 counts", lambda: depth(s) == 1 and s.view()["gaps"] == 0)


@pytest.mark.parametrize("bad", [500, b"", b"{", b"[]", b'{"Events":[5]}', b'{"TreeDump":{"events":[]}}', b"x" * 200000, b'{"TreeDump":{"events":[{"a":1}],"last_event_id":3}}'],
                         ids=["500", "empty", "torn", "list", "number", "no last id", "long", "no event"])
def test_bad_answers_are_asked_for_again(start, engine, worker, bad):
    answers = []

    def script(q):
        answers.append(q)
        return bad if len(answers) <= 2 else {"TreeDump": {"events": [event(0, [1, 2], TOKENS[:8])], "last_event_id": 9}}
    worker.script = script
    s = router(start, engine, worker)
    wait_for("trusted in the end", lambda: s.view().get("trusted") and depth(s) == 2, 20)
    assert sum("start" not in q for q in answers) == 3  # then at most a look at what came while connecting


@pytest.mark.parametrize("bad, reason", [({"Error": "the dog ate it"}, "the dog ate it"), ({"InvalidRange": {"start_id": 1, "end_id": 0}}, "not known"),
                                         ({"TreeDumpFailed": {"last_event_id": 3, "message": "Indexer is offline"}}, "offline"), (404, "404"),
                                         ({"TreeDump": {"block_size": 8, "events": [], "last_event_id": 3}}, "block size is 8, not the configured 4"),
                                         ({"Later": {}}, "not known"), ({"Events": []}, "whole content")])
def test_a_worker_that_cannot_tell_leaves_the_view_untrusted(start, engine, worker, bad, reason):
    worker.script = lambda q: bad
    s = router(start, engine, worker)
    wait_for("untrusted, and why", lambda: reason in s.view().get("reason", ""), 20)
    worker.script = lambda q: {"TreeDump": {"events": [event(0, [1], TOKENS[:4])], "last_event_id": 9}}
    wait_for("trusted when it can", lambda: s.view()["trusted"] and depth(s) == 1, 20)


def test_an_endpoint_that_hangs_blinds_a_view_for_minutes(start, engine, worker):
    """Ten seconds of silence are enough; then events are taken without what it could tell."""
    ended = threading.Event()
    worker.script = lambda q: ended.wait(120 * SLOW) and 503
    s = router(start, engine, worker)
    engine.heard_by(1)
    try:
        engine.stored([1, 2], TOKENS[:8])
        wait_for("it goes on without", lambda: s.view().get("trusted") and depth(s) == 2, 30)
    finally:
        ended.set()


def test_the_endpoint_is_named_and_checked(start):
    s = start(Serve, [], ready=False)
    body = {"worker_id": 1, "endpoint": "http://127.0.0.1:1", "kv_events_endpoints": "tcp://127.0.0.1:1", "recover_endpoint": "ftp://x"}
    r = s.post("/workers", body)
    assert r.status == 400 and b"recover_endpoint" in r.body
    assert s.post("/workers", {**body, "recover_endpoint": "http://127.0.0.1:2/kv_recover"}).status == 201
    assert s.get("/workers")[0]["recover_endpoint"] == "http://127.0.0.1:2/kv_recover"
