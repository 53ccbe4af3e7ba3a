# SPDX-License-Identifier: Apache-2.0
"""Workers whose sockets are silent, half-hearted or endless: whom they hold up, and what they can fill."""
import socket
import struct
import threading

import pytest

from conftest import SLOW, Indexer, Mock, ScriptedServer, Serve, call, free_ports, wait_for

T = list(range(100, 140))  # ten blocks of four


def listener(ix, i=7):
    return next(w for w in ix.get("/workers") if w["instance_id"] == i)["listeners"]["0"]


def live_goes_on(ix, e, i=7):
    """Batches that come live are applied, the view is partial and visibly so; the engine's answer makes it whole again."""
    wait_for("active", lambda: listener(ix, i)["status"] == "active")
    e.heard_by(1)
    e.stored([1], T[:4])
    e.stored([2], T[4:8], parent=1)

    def sees():
        e.stored([3], T[8:12], parent=2, keep=False)
        return ix.scores(T).get((i, 0)) == 12
    wait_for("live batches without a replay", sees, 20)
    wait_for("partial", lambda: listener(ix, i)["view"] == "partial" and "answer" in listener(ix, i)["view_reason"])


@pytest.mark.parametrize("kind", ["silent", "nobody", "two frames"])
def test_live_events_go_on_without_a_replay_endpoint_that_answers(start, engine, zctx, kind):
    ix, e = start(Indexer, "--restore-timeout", "0.5"), engine()
    more = {}
    stop = threading.Event()
    if kind == "nobody":
        more["replay_endpoint"] = f"tcp://127.0.0.1:{free_ports()}"
    if kind == "two frames":
        def answer():
            r = e.router
            while not stop.is_set():
                if r.poll(20):
                    who = r.recv_multipart()[0]
                    r.send_multipart([who, b"", b"x"])
        t = threading.Thread(target=answer, daemon=True)
        t.start()
    ix.register(7, e, **more)
    try:
        live_goes_on(ix, e)
    finally:
        stop.set()
        if kind == "two frames":
            t.join()
    assert ix.metric("kvroute_ingest_replay_failures_total") >= 1
    if kind == "nobody":
        return
    e.sent = e.sent[:2]
    e.until("whole again when it answers", ix.whole, 40)
    assert ix.scores(T) == {(7, 0): 8}


def test_live_events_go_on_after_a_gap_that_nobody_fills(start, engine):
    ix, e = start(Indexer, "--restore-timeout", "0.5"), engine()
    ix.register(7, e)
    e.until("trusted", ix.trusted)
    e.stored([1], T[:4])
    wait_for("stored", lambda: ix.scores(T) == {(7, 0): 4})
    e.stored([2], T[4:8], parent=1, drop=True)
    e.stored([11], T[20:24])
    wait_for("rebuilt by what comes", lambda: ix.scores(T[20:]) == {(7, 0): 4} and not ix.scores(T), 20)
    wait_for("partial", lambda: listener(ix)["view"] == "partial")
    e.until("whole again when it answers", lambda: ix.whole() and ix.scores(T) == {(7, 0): 8}, 40)


def test_a_router_keeps_applying_when_the_replay_endpoint_is_silent(start, engine):
    m, e = start(Mock, with_events=False), engine()
    spec = f"http://127.0.0.1:{m.port},block-size=4,events=tcp://127.0.0.1:{e.events},replay=tcp://127.0.0.1:{e.replay_port}"
    s = start(Serve, [spec], "--restore-timeout", "0.5", ready=False)
    wait_for("declared", lambda: s.view().get("reason") and s.view().get("state") == "live", 20)
    e.stored([1, 2], T[:8])
    wait_for("applied", lambda: s.overlap(T).get((1, 0)) == 2)
    wait_for("partial", lambda: s.view()["view"] == "partial")
    e.until("whole again", lambda: s.view()["view"] == "whole" and s.overlap(T).get((1, 0)) == 2, 40)


# ---- a publisher without libzmq ---------------------------------------------------------------------------------------

class RawPublisher:
    """Speaks ZMTP 3.0 (NULL) as a PUB socket, and then whatever a test wants."""

    def __init__(self):
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]

    def accept(self):
        self.server.settimeout(20 * SLOW)
        c, _ = self.server.accept()
        c.settimeout(20 * SLOW)
        c.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
        self.read(c, 64)
        ready = b"\x05READY" + b"\x0bSocket-Type" + struct.pack(">I", 3) + b"PUB"
        c.sendall(bytes([4, len(ready)]) + ready)
        head = self.read(c, 2)
        self.read(c, head[1])  # its READY
        return c

    @staticmethod
    def read(c, n):
        data = b""
        while len(data) < n:
            more = c.recv(n - len(data))
            assert more
            data += more
        return data

    def close(self):
        self.server.close()


def frame(data, more):
    return struct.pack(">BQ", 2 | more, len(data)) + data


def test_a_message_of_endless_frames_ends_the_connection(start, engine):
    """libzmq bounds a frame and counts messages; a message that never ends is neither."""
    ix, e, evil = start(Indexer), engine(), RawPublisher()
    ix.register(7, e, replay=False)
    ix.post("/register", {"instance_id": 8, "model_name": "m", "block_size": 4, "endpoint": f"tcp://127.0.0.1:{evil.port}"}, 201)
    c = evil.accept()
    sent, piece = 0, frame(bytes(1 << 20), 1)
    with pytest.raises(OSError):
        while sent < 700 << 20:
            c.sendall(piece)
            sent += len(piece)
    assert sent < 600 << 20
    wait_for("counted", lambda: ix.metric("kvroute_ingest_floods_total") >= 1)
    assert "more than can be taken" in listener(ix, 8)["untrusted_reason"]
    e.stored([1], T[:4])  # the others are served

    def sees():
        e.stored([2], T[4:8], parent=1, keep=False)
        return ix.scores(T).get((7, 0))
    wait_for("other workers", sees)
    c.close()
    evil.accept().close()  # it is tried again
    evil.close()


def test_a_large_batch_in_one_frame_is_still_taken(start, engine):
    ix, e = start(Indexer), engine()
    ix.register(7, e)
    e.until("trusted", ix.trusted)
    n = 100000
    e.stored(list(range(1, n + 1)), [i % 50000 for i in range(4 * n)])
    e.until("stored", lambda: ix.scores([i % 50000 for i in range(4000)]).get((7, 0)) == 4000, 30)
    assert ix.trusted() and ix.metric("kvroute_ingest_floods_total") == 0


# ---- a large view that goes --------------------------------------------------------------------------------------------

def test_what_a_removed_worker_held_is_given_back_behind_its_back(start, engine):
    """The answer does not wait for it; a registration that follows at once begins with nothing."""
    n = 60000
    m, e = start(Mock, with_events=False), engine()
    spec = f"http://127.0.0.1:{m.port},block-size=4,events=tcp://127.0.0.1:{e.events}"
    s = start(Serve, [spec], ready=False)
    ix = start(Indexer)
    ix.register(7, e, replay=False)
    tokens = [i % 50000 for i in range(4 * n)]
    e.heard_by(2)
    e.cleared(keep=False)
    e.stored(list(range(1, n + 1)), tokens, keep=False)
    wait_for("stored", lambda: s.overlap(tokens[:400]).get((1, 0)) == 100 and ix.scores(tokens[:400]).get((7, 0)) == 400, 30)
    ix.post("/unregister", {"instance_id": 7, "model_name": "m"})
    assert call(s.admin, "DELETE", "/workers/1").status == 200
    wait_for("given back", lambda: s.metric("index_blocks") == 0 and ix.metric("kvroute_index_blocks") == 0, 30)


def test_a_models_name_with_a_zero_in_it_is_nobodys(start):
    """Behind it two readers would see two names."""
    worker = ScriptedServer(lambda query: {"data": [{"id": "m\0other"}, {"id": "n", "parent": "a\0b"}]})
    try:
        s = start(Serve, [worker.url], ready=False)
        wait_for("the models", lambda: call(s.port, "GET", "/v1/models").json()["data"])
        assert [m["id"] for m in call(s.port, "GET", "/v1/models").json()["data"]] == ["n"]
        assert call(s.port, "POST", "/v1/completions", {"model": "m", "prompt": "x"}).status == 404
        for body in ({"model": "n\0x", "prompt": "x"}, {"model": "n", "prompt": "x", "cache_salt": "a\0b"}):
            assert call(s.port, "POST", "/v1/completions", body).status in (400, 501), body
    finally:
        worker.close()
