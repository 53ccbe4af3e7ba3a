# SPDX-License-Identifier: Apache-2.0
"""An index in parts: within a process, and over several indexers among which a router divides its workers."""
import pytest

from conftest import Indexer, Mock, Serve, call, free_ports, stays, wait_for


def prompt(k, n=160):
    return [k * 1000 + i for i in range(n)]


def bare(mocks):
    return [m.spec(f",id={i + 1}") for i, m in enumerate(mocks)]


def followed(ix):
    return {w["instance_id"] for w in ix.get("/workers")}


@pytest.fixture
def shards(start):
    return [start(Indexer) for _ in range(3)]


def asking(start, mocks, shards, *extra):
    urls = ",".join(f"http://127.0.0.1:{x.port}" for x in shards)
    r = start(Serve, bare(mocks), "--use-remote-indexer", urls, "--remote-indexer-timeout", 0.3, *extra)
    wait_for("the indexers", lambda: r.metric("remote_indexer_up") == 1)
    return r


def settled(shards, n):
    parts = [followed(x) for x in shards]
    return sum(map(len, parts)) == n and len(set().union(*parts)) == n and all(x.trusted() for x in shards if followed(x))


def test_parts_of_one_process_answer_as_one(start):
    """Events and predictions, and removal, whichever part a rank is in."""
    mocks = [start(Mock) for _ in range(3)]
    one, parts = start(Serve, bare(mocks)), start(Serve, bare(mocks), "--indexer-shards", 4, "--router-predicted-ttl-secs", 2)
    for k in range(9):
        assert one.complete(prompt(k), headers={"x-kvroute-worker": str(k % 3 + 1)}).status == 200
    for k in range(9):
        wait_for("the same", lambda: parts.overlap(prompt(k)) == one.overlap(prompt(k)) and max(one.overlap(prompt(k)).values()) == 10)
    assert call(parts.admin, "DELETE", "/workers/2").status == 200
    assert all((2, 0) not in parts.overlap(prompt(k)) for k in range(9)) and parts.overlap(prompt(0))[(1, 0)] == 10


def test_workers_are_divided_and_found_again(start, shards):
    """Each worker with one indexer, evenly; a second router finds the assignment; what is removed is taken away where it is."""
    mocks = [start(Mock) for _ in range(6)]
    r = asking(start, mocks, shards)
    wait_for("all are followed", lambda: settled(shards, 6), 20)
    parts = [followed(x) for x in shards]
    assert sorted(map(len, parts)) == [2, 2, 2]
    for k in range(6):
        assert r.complete(prompt(k), headers={"x-kvroute-worker": str(k + 1)}).status == 200
    for k in range(6):
        wait_for("each knows its part", lambda: any(x.scores(prompt(k), model="default@16").get((k + 1, 0)) == 160 for x in shards))
        answer = r.complete(prompt(k))
        assert answer.headers["x-kvroute-worker"] == str(k + 1) and answer.headers["x-kvroute-reason"] == "kv"
    other = asking(start, mocks, shards)
    assert other.complete(prompt(3)).headers["x-kvroute-worker"] == "4"
    stays("the assignment", lambda: [followed(x) for x in shards] == parts, 1.5)
    assert r.metric("indexer_shards_registered_total") == 6 and other.metric("indexer_shards_registered_total") == 0
    for x in (r, other):
        assert call(x.admin, "DELETE", "/workers/4").status == 200
    wait_for("it is taken away", lambda: all(4 not in followed(x) for x in shards), 20)
    assert settled(shards, 5)


def test_a_silent_part_costs_its_workers_their_overlap(start, shards):
    """Requests go on, the answer says so, and nobody is assigned anew meanwhile; back, it is used again."""
    mocks = [start(Mock) for _ in range(3)]
    r = asking(start, mocks, shards)
    wait_for("all are followed", lambda: settled(shards, 3), 20)
    for k in range(3):
        assert r.complete(prompt(k), headers={"x-kvroute-worker": str(k + 1)}).status == 200
    for k in range(3):  # pinned, so that no other worker computes it meanwhile
        wait_for("the events", lambda: r.complete(prompt(k), headers={"x-kvroute-worker": str(k + 1)}).headers["x-kvroute-overlap-blocks"] != "0")
    gone = next(i for i, x in enumerate(shards) if 1 in followed(x))
    port = shards[gone].port
    shards[gone].kill()
    kept = [k for k in (1, 2) if k + 1 not in (1,)]
    for k in kept:
        answer = r.complete(prompt(k))
        assert answer.status == 200 and answer.headers["x-kvroute-reason"] == "index-partial" and answer.headers["x-kvroute-worker"] == str(k + 1)
    assert r.complete(prompt(0)).headers["x-kvroute-overlap-blocks"] == "0"
    wait_for("it is counted", lambda: r.metric("remote_indexer_partial_total") >= 3)
    stays("the others keep what they have", lambda: sum(len(followed(x)) for i, x in enumerate(shards) if i != gone) == 2, 1.5)
    shards[gone] = start(Indexer, port=port)
    wait_for("it is used again", lambda: settled(shards, 3) and r.complete(prompt(0)).headers["x-kvroute-reason"] == "kv", 20)


def test_a_worker_that_moved_with_its_id_was_followed_where_it_had_been(start, shards):
    a, b, c = (start(Mock) for _ in range(3))
    r = asking(start, [a, c], shards)
    wait_for("all are followed", lambda: settled(shards, 2), 20)
    was = next(x for x in shards if 2 in followed(x))
    moved = {"worker_id": 1, "endpoint": b.spec().split(",")[0], "kv_events_endpoints": f"tcp://127.0.0.1:{b.events}", "replay_endpoint": f"tcp://127.0.0.1:{b.replay}"}
    assert r.post("/workers", moved).status == 201
    at = lambda i: [l["endpoint"] for x in shards for w in x.get("/workers") if w["instance_id"] == i for l in w["listeners"].values()]  # noqa: E731
    wait_for("the other address", lambda: at(1) == [f"tcp://127.0.0.1:{b.events}"] and settled(shards, 2), 20)
    assert 2 in followed(was) and r.metric("indexer_shards_registered_total") == 3  # the other one was left alone


def test_the_words_of_an_indexer(start):
    ix = start(Indexer)
    info = ix.post("/kv_indexer_info")
    assert info["ready"] and info["registers"] and info["mode"] == "events"
    assert ix.post("/kv_indexer_query", {"model_name": "m", "block_hashes": [1]}, 404) == {"Error": "this model is not served here"}
    assert "allowed" in ix.post("/kv_indexer_query", {"block_hashes": 3}, 400)["Error"]
