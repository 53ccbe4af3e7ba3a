# SPDX-License-Identifier: Apache-2.0
"""Ranks that share one stream go together: in what a peer or the disk gives, and when the engine starts anew."""
import pytest

from conftest import Indexer, wait_for

TOKENS = list(range(1, 33))
BOTH = {(7, 0): 8, (7, 3): 12}


def connected(ix):
    return all(l["status"] == "active" for l in ix.listeners().values())


@pytest.fixture
def peer(start, engine):
    """An indexer whose worker 7 is registered with rank 0 only and sends events of rank 3 on the same port."""
    ix, e = start(Indexer), engine()
    ix.register(7, e, replay=False)
    wait_for("connected", lambda: connected(ix))
    e.heard_by(1)  # a connection stands earlier, and what is sent then is lost
    e.stored([1, 2], TOKENS[:8])
    e.send(e.batch(["BlockStored", [1, 2, 3], None, TOKENS[:12], 4, None, "GPU", None], rank=3))
    wait_for("both ranks", lambda: ix.scores(TOKENS) == BOTH)
    return ix, e


def restart_engine(e, ix):
    """A sequence that goes backwards: what was before is gone."""
    def gone():
        e.seq = 0
        e.stored([9], TOKENS[20:24])
        return (7, 3) not in ix.scores(TOKENS) and (7, 0) not in ix.scores(TOKENS)
    wait_for("the old ranks are gone", gone)


def test_a_peer_gives_every_rank_that_came_by_one_registration(start, peer):
    a, e = peer
    b = start(Indexer, "--peers", f"http://127.0.0.1:{a.port}")
    assert b.scores(TOKENS) == BOTH
    b.register(7, e, replay=False)
    wait_for("connected", lambda: connected(b))
    e.heard_by(2)
    assert b.scores(TOKENS) == BOTH
    e.send(e.batch(["BlockStored", [4], 3, TOKENS[12:16], 4, None, "GPU", None], rank=3))
    for ix in (a, b):
        wait_for("goes on", lambda: ix.scores(TOKENS) == {(7, 0): 8, (7, 3): 16})
    for ix in (a, b):
        restart_engine(e, ix)


def test_a_lost_view_gets_every_rank_back_and_drops_them_together(start, peer):
    a, e = peer
    b = start(Indexer)
    b.register(7, e, replay=False)  # too late for what was before
    wait_for("connected", lambda: connected(b))
    e.heard_by(2)
    b.post("/register_peer", {"url": f"http://127.0.0.1:{a.port}"}, 201)
    e.stored([20], TOKENS[24:28])
    wait_for("taken over", lambda: b.scores(TOKENS) == BOTH, 30)
    restart_engine(e, b)


def test_the_disk_keeps_every_rank_of_a_worker_that_nobody_has_registered_yet(start, peer, tmp_path):
    a, e = peer
    b = start(Indexer, "--peers", f"http://127.0.0.1:{a.port}", "--data-dir", tmp_path, "--snapshot-interval", "0.1")
    assert b.scores(TOKENS) == BOTH
    for _ in range(2):
        b.stop()
        b = start(Indexer, "--data-dir", tmp_path, "--snapshot-interval", "0.1", port=b.port)
        assert b.scores(TOKENS) == BOTH
    b.register(7, e, replay=False)
    wait_for("connected", lambda: connected(b))
    restart_engine(e, b)


def test_the_counter_under_dynamos_name_has_the_device_tier_only(start, engine):
    ix, e = start(Indexer), engine()
    ix.register(7, e)
    e.until("trusted", ix.trusted)
    e.stored([1], TOKENS[:4])
    e.send(e.batch(["BlockStored", [1], None, TOKENS[:4], 4, None, "CPU", None]))
    e.send(e.batch(["BlockRemoved", [1], "CPU"]))
    def value(name, kind):
        text = ix.call("GET", "/metrics").body.decode()
        return int(next(l for l in text.splitlines() if l.startswith(f'{name}{{event_type="{kind}",status="ok"}}')).split()[-1])
    wait_for("counted", lambda: value("kvroute_events_applied_total", "removed") == 1)
    assert value("kvroute_events_applied_total", "stored") == 2
    assert value("dynamo_kvrouter_kv_cache_events_applied", "stored") == 1
    assert value("dynamo_kvrouter_kv_cache_events_applied", "removed") == 0
