# SPDX-License-Identifier: Apache-2.0
"""`kvroute publish` beside an engine: what it publishes, what it answers, and what a router makes of it when things die."""
import subprocess
import time

import msgpack
import pytest
import zmq

from conftest import BINARY, Engine, Indexer, Mock, Publish, Serve, call, free_ports, local_hashes, wait_for
from nats_parts import NatsServer

TOKENS = list(range(1, 33))


def subscriber(zctx, publish):
    s = zctx.socket(zmq.SUB)
    s.linger = 0
    s.subscribe(b"")
    s.connect(f"tcp://127.0.0.1:{publish.out}")
    return s


def kinds(answer, variant):
    """(id, kind) of each event of an answer."""
    body = answer[variant]
    events = body["events"] if isinstance(body, dict) else body
    return [(e["event"]["event_id"], e["event"]["data"] if isinstance(e["event"]["data"], str) else list(e["event"]["data"])[0]) for e in events]


@pytest.fixture
def hand(zctx):
    e = Engine(zctx)
    yield e
    e.close()


def test_ids_duplicates_and_every_answer(start, hand):
    """Ids begin at 1 with a clear; a block goes with its last copy; every row of the table, and both shapes."""
    p = start(Publish, hand, "--buffer-events", 3, "--worker-id", 9, block_size=4)
    hand.until("whole", lambda: p.status()["trust"] == "trusted")
    assert p.status()["newest_id"] == 1
    hand.stored([1, 2], TOKENS[:8])
    hand.stored([1, 2], TOKENS[:8])  # a second copy: nobody is told
    hand.removed([2])                # one of them goes: nobody is told
    hand.removed([2])
    hand.stored([3], TOKENS[8:12], parent=1)
    hand.until("4 events", lambda: p.status()["newest_id"] == 4)
    status, answer = p.recover(start=2)
    assert status == 200 and kinds(answer, "Events") == [(2, "stored"), (3, "removed"), (4, "stored")]
    stored = answer["Events"]["events"][0]
    assert stored["worker_id"] == 9 and stored["storage_tier"] == "device" and stored["event"]["dp_rank"] == 0
    assert [b["tokens_hash"] for b in stored["event"]["data"]["stored"]["blocks"]] == local_hashes(TOKENS[:8], 4)
    assert answer["Events"]["last_event_id"] == 4 and answer["Events"]["epoch"] == p.status()["epoch"]
    assert kinds(p.recover(start=3, end=3)[1], "Events") == [(3, "removed")]
    assert isinstance(p.recover(start=3, shape="old")[1]["Events"], list)
    tree = p.recover(start=1)[1]["TreeDump"]  # 1 has fallen out
    assert tree["last_event_id"] == 4 and sum(len(e["event"]["data"]["stored"]["blocks"]) for e in tree["events"]) == 2
    assert p.recover()[1]["TreeDump"]["last_event_id"] == 4
    assert p.recover(start=5)[1] == {"TooNew": {"requested_start": 5, "requested_end": None, "newest_available": 4, "epoch": p.status()["epoch"]}}
    assert p.recover(start=3, end=2)[1] == {"InvalidRange": {"start_id": 3, "end_id": 2}}
    assert p.recover(dp_rank=3) == (404, {"Error": "this is worker 9 with dp_rank 0 to 0"})
    assert p.recover(worker_id=8)[0] == 404
    for bad in ("x", "-1", "1.5", "18446744073709551616", "9" * 50):
        status, answer = p.recover(start=bad)
        assert status == 400 or bad == "9" * 50, answer
    assert call(p.port, "POST", "/kv_recover").status == 405 and call(p.port, "GET", "/nothing").status == 404
    dump = call(p.port, "GET", "/dump").json()["default:default"]
    assert dump["block_size"] == 4 and len(dump["events"]) >= 1
    text = call(p.port, "GET", "/metrics").body.decode()
    assert 'kvroute_publish_duplicates_total{worker_id="9",dp_rank="0"} 1' in text


def test_published_again_in_engine_framing(start, hand, zctx):
    """Salt, LoRA, tier, pairs and multimodal objects survive; a salt is told in each event of its chain."""
    p = start(Publish, hand, block_size=4)
    hand.until("whole", lambda: p.status()["trust"] == "trusted")
    s = subscriber(zctx, p)
    ix = start(Indexer)
    ix.register(7, hand, replay=False, endpoint=f"tcp://127.0.0.1:{p.out}", recover_endpoint=p.url)
    wait_for("trusted", lambda: ix.trusted())
    direct = start(Indexer)
    direct.register(7, hand)
    hand.until("trusted", lambda: direct.trusted())
    first = p.status()["newest_id"] + 1

    def comes_and_goes():
        nonlocal first
        hand.stored([900], TOKENS[:4])
        hand.removed([900])
        first += 2
        return s.poll(50)
    hand.until("the subscription", comes_and_goes)
    hand.until("the last of these", lambda: s.poll(50) and int.from_bytes(s.recv_multipart()[1], "big") == first - 1)
    hand.send(hand.batch(["BlockStored", [1], None, TOKENS[:4], 4, None, "GPU", "adapter", [["dynamo-cache-salt:tenant"]]]))
    hand.send(hand.batch(["BlockStored", [2], 1, TOKENS[4:8], 4, None, "GPU", "adapter"]))  # inherits the salt
    hand.send(hand.batch(["BlockStored", [3], None, [[t, t + 1] for t in TOKENS[:4]], 4, None, "GPU", None]))
    hand.send(hand.batch(["BlockStored", [4], None, TOKENS[8:12], 4, None, "GPU", None, [[["ab" * 32, 0]]]]))
    hand.send(hand.batch(["BlockStored", [4], None, TOKENS[8:12], 4, None, "CPU", None]))  # without its image: the name tells
    hand.send(hand.batch({"type": "BlockStored", "block_hashes": [6], "token_ids": TOKENS[16:20], "block_size": 4, "parent_block_hash": None},
                         {"type": "BlockRemoved", "block_hashes": [6, 99]}))
    messages = []
    hand.until("7 messages", lambda: [messages.append(s.recv_multipart()) for _ in iter(lambda: s.poll(10), 0)] is None or len(messages) >= 7)
    events = [msgpack.unpackb(m[2])[1][0] for m in messages]
    assert all(m[0] == b"" for m in messages)
    assert [int.from_bytes(m[1], "big") for m in messages] == list(range(first, first + 7))  # the sequence is the id
    assert events[1][8] == [["dynamo-cache-salt:tenant"]] and events[1][7] == "adapter"
    assert events[2][3] == [[t, t + 1] for t in TOKENS[:4]]
    assert events[4][6] == "CPU_TIER1" and events[6] == ["BlockRemoved", [6, 99], "GPU"]

    def contents(i):
        blocks = [(e["storage_tier"], b["block_hash"], b["tokens_hash"]) for e in i.call("GET", "/dump").json()["m:default"]["events"]
                  for b in e["event"]["data"]["stored"]["blocks"]]
        return sorted(blocks)
    hand.until("equal", lambda: len(contents(direct)) == 5 and contents(direct) == contents(ix))
    s.close()


def answers_of(serve, prompts):
    return [serve.complete(p).json() for p in prompts]


@pytest.mark.parametrize("dp", [1, 2])
def test_a_router_behind_sidecars_survives_every_death(start, dp):
    """Two engines with a sidecar each: the sidecar dies, the engine dies, the router dies; every view is whole again."""
    mocks = [start(Mock, dp=dp) for _ in range(2)]
    sides = [start(Publish, m, dp=dp) for m in mocks]
    spec = lambda: [f"http://127.0.0.1:{m.port}" + p.source() for m, p in zip(mocks, sides)]
    s = start(Serve, spec())
    prompts = [f"{i} " + "the quick brown fox jumps over the lazy dog " * 8 for i in range(6)]

    def views_equal_engines():
        views = s.views()
        if len(views) != 2 * dp or not all(v["trusted"] for v in views.values()):
            return False
        return all(views[w + 1, r]["blocks"] == p.status(r)["blocks"] for w, p in enumerate(sides) for r in range(dp))

    def works():
        answers_of(s, prompts)
        wait_for("views", lambda: views_equal_engines() and sum(v["blocks"] for v in s.views().values()) > 0, 20)
        return True
    assert works()
    sides[0].kill()
    wait_for("noticed", lambda: not s.view(1, 0)["trusted"])
    assert s.view(1, 0)["trust"] in ("untrusted", "recovering") and "down" in s.view(1, 0)["reason"]
    answers_of(s, prompts)  # what the engine does now the dead sidecar does not see
    sides[0] = start(Publish, mocks[0], dp=dp, port=sides[0].port, out=sides[0].out)
    assert works() and s.metric("kv_recovered_dumps_total", worker_id="1") >= 1
    mocks[1].kill()
    wait_for("the sidecar noticed", lambda: sides[1].status()["trust"] != "trusted")
    assert sides[1].recover(supports_tree_dump_failed=1)[1].keys() == {"TreeDumpFailed"}  # it does not say what it does not know
    assert "Error" in sides[1].recover()[1]
    mocks[1] = start(Mock, dp=dp, port=mocks[1].port, events=mocks[1].events, replay=mocks[1].replay)
    wait_for("whole again", lambda: sides[1].status()["trust"] == "trusted", 20)
    wait_for("healthy", lambda: all(w["schedulable"] for w in s.get("/workers")), 20)
    assert works()
    s.kill()
    s = start(Serve, spec())
    wait_for("restored", views_equal_engines, 20)
    assert works()

def test_a_sidecar_of_which_no_block_size_is_given_knows_no_block(start):
    """The events say it; what is behind the sidecar is told of it, too. Another life of the engine may have another one."""
    m = start(Mock, "--block-size", 32)
    p = start(Publish, m, block_size=None)
    s = start(Serve, [f"http://127.0.0.1:{m.port}{p.source()}"])
    s.complete("x" * 200)
    wait_for("known", lambda: s.complete("x" * 200).headers["x-kvroute-overlap-blocks"] == "6")
    assert p.status()["trust"] == "trusted" and call(p.port, "GET", "/status").json()["block_size"] == 32
    assert p.recover()[1]["TreeDump"]["block_size"] == 32
    m.kill()
    start(Mock, "--block-size", 64, port=m.port, events=m.events, replay=m.replay)
    wait_for("the other size", lambda: s.complete("y" * 200) and call(p.port, "GET", "/status").json()["block_size"] == 64)
    assert not [l for l in p.text().splitlines() if "block size" in l]


def test_a_sidecar_asks_its_engine_for_ranks_and_model(start):
    m = start(Mock, "--model", "tiny", "--block-size", 32, dp=2)
    p = start(Publish, m, "--engine-url", f"http://127.0.0.1:{m.port}", block_size=None, dp=2, learns_ranks=True)
    status = wait_for("open", lambda: (lambda x: x if x["ranks"] else None)(call(p.port, "GET", "/status").json()))
    assert (status["model_name"], status["block_size"], [r["dp_rank"] for r in status["ranks"]], status["notes"]) == ("tiny", 32, [0, 1], [])
    assert p.status(1)["published_on"].endswith(f":{p.out + 1}")


def test_a_sidecar_waits_for_an_engine_that_is_not_there_yet(start, hand):
    port = free_ports()
    p = start(Publish, hand, "--engine-url", f"http://127.0.0.1:{port}", block_size=None, learns_ranks=True)
    says = wait_for("a warning", lambda: [l for l in p.text().splitlines() if "cannot be asked" in l])
    assert " warning " in says[0] and f":{port}" in says[0]
    assert "waiting for what the engine says of itself" in call(p.port, "GET", "/ready").json()["Error"]
    assert p.recover()[0] == 503 and call(p.port, "GET", "/dump").status == 503
    start(Mock, "--block-size", 32, port=port)
    hand.until("open", lambda: call(p.port, "GET", "/status").json()["ranks"])


def test_a_wrong_block_size_of_a_sidecar_is_told_in_whole(start):
    """A warning with its reason, from the engine's answer and from its events; doctor names the option, and does not blame the replay."""
    m = start(Mock, "--block-size", 32)
    p = start(Publish, m, "--engine-url", f"http://127.0.0.1:{m.port}", "--log-level", "warning", block_size=16)
    wait_for("asked", lambda: "block-size 16 was given, but the engine uses 32 (/metrics): give block-size=32, or leave it out" in p.text())
    call(m.port, "POST", "/v1/completions", {"prompt": "x" * 200, "max_tokens": 1})
    wait_for("told", lambda: "the view of rank 0 is unknown: the engine's block size is 32, not the configured 16" in p.text())
    out = subprocess.run([BINARY, "doctor", f"http://127.0.0.1:{p.port}"], capture_output=True, text=True).stdout
    assert "the engine uses 32 tokens a block, 16 are configured; start the sidecar with --block-size 32, or without --block-size" in out
    assert "replay endpoint" not in out and "block-size 16 was given, but the engine uses 32" in out
    out = subprocess.run([BINARY, "doctor", f"http://127.0.0.1:{m.port}{p.source()}"], capture_output=True, text=True).stdout  # through it
    assert "does not answer" not in out and out.count("kvroute doctor tells") == 2 and "switch KV events" not in out, out


@pytest.mark.parametrize("who", ["publish", "indexer"])
def test_an_engine_that_cannot_be_heard_is_a_warning(start, zctx, who):
    """Nobody at the events endpoint, nobody to ask for what is lost, another block size: also where only warnings are written."""
    e = Engine(zctx)
    try:
        dead = free_ports(2)
        for port, said in ((dead, "no publisher answers there"), (e.events, "without a replay endpoint, so what is lost on the way stays lost")):
            if who == "publish":
                p = start(Publish, e, "--events", f"tcp://127.0.0.1:{port}", "--log-level", "warning", with_replay=False)
            else:
                p = start(Indexer, "--log-level", "warning")
                p.register(7, e, replay=False, endpoint=f"tcp://127.0.0.1:{port}")
            wait_for(said, lambda: [l for l in p.text().splitlines() if " warning " in l and f"tcp://127.0.0.1:{port}: " in l and said in l])
        e.stored([1], list(range(8)), block_size=8)
        wait_for("the size", lambda: [l for l in p.text().splitlines() if " warning " in l and "block size is 8, not the configured" in l])
    finally:
        e.close()


def test_without_replay_it_must_see_the_first_batch(start, hand):
    hand.stored([1], TOKENS[:4])  # before anybody listens
    p = start(Publish, hand, block_size=4, with_replay=False)
    hand.heard_by(1)
    hand.stored([2], TOKENS[4:8], parent=1)
    wait_for("seen", lambda: p.status()["engine_batches"] == 1)
    assert p.status()["trust"] == "untrusted" and call(p.port, "GET", "/ready").status == 503
    assert p.recover(supports_tree_dump_failed=1)[1]["TreeDumpFailed"]["message"] == p.status()["reason"]
    hand.cleared()  # an empty cache is a whole one
    wait_for("whole", lambda: p.status()["trust"] == "trusted" and call(p.port, "GET", "/ready").status == 200)
    assert p.recover()[1]["TreeDump"]["events"] == []


def test_a_model_with_several_cache_groups_is_refused(start, hand):
    p = start(Publish, hand, block_size=4)
    hand.until("whole", lambda: p.status()["trust"] == "trusted")
    tail = [None, "GPU", None, None]
    hand.send(hand.batch(["BlockStored", [1], None, [1, 2, 3, 4], 4, *tail, 0, "full_attention", None, "LOCAL"]))
    wait_for("published", lambda: p.status()["blocks"] == 1)
    hand.send(hand.batch(["BlockStored", [1], None, [1, 2, 3, 4], 4, *tail, 1, "sliding_window", 8, "LOCAL"],
                         ["BlockStored", [2], 1, [5, 6, 7, 8], 4, *tail, 0, "full_attention", None, "LOCAL"]))
    wait_for("refused", lambda: p.status()["trust"] == "untrusted" and p.status()["blocks"] == 0)  # its listeners would predict too much
    assert "cache groups" in p.status()["reason"]
    assert p.recover(supports_tree_dump_failed=1)[1]["TreeDumpFailed"]["message"] == p.status()["reason"]


@pytest.mark.parametrize("args, text", [
    (["--publish", "tcp://nowhere"], "--publish"), (["--publish", "tcp://127.0.0.1:99999"], "--publish"), (["--events", "udp://x:1"], "--events"), (["--block-size", "65537"], "block-size"), (["--engine-url", "ftp://x"], "--engine-url"),
    (["--dp-size", "2", "--publish", "ipc:///tmp/x"], "--publish"), (["--nonsense"], "nonsense")])
def test_bad_options_are_named(start, args, text, tmp_path):
    from conftest import Process
    p = Process("publish", "--port", free_ports(), "--publish", f"tcp://127.0.0.1:{free_ports(2)}", *args, expect=None)
    assert wait_for("the end", lambda: p.p.poll() is not None) and p.p.returncode in (1, 2) and text in p.text()


def test_garbage_from_the_engine_hurts_nobody(start, hand):
    p = start(Publish, hand, block_size=4)
    hand.until("whole", lambda: p.status()["trust"] == "trusted")
    junk = [b"", b"\xc1", b"\x93", b"\xff" * 100, msgpack.packb({"ts": 1}), msgpack.packb([1.0, [["BlockStored"]], 0]), b"\x00" * 70000]

    def throw(pieces):
        for piece in pieces:
            hand.pub.send_multipart([b"", b"12345678", piece])
            hand.pub.send_multipart([b"", b"123", piece])
            hand.pub.send_multipart([piece])
    throw(junk[:4])
    hand.stored([1], TOKENS[:4])
    hand.until("still whole", lambda: p.status()["trust"] == "trusted" and p.status()["blocks"] == 1)
    throw(junk)  # too much of it says that we do not understand this engine
    wait_for("alarm", lambda: p.status()["trust"] == "untrusted" and "cannot be decoded" in p.status()["reason"])
    assert "cannot be decoded" in p.recover(supports_tree_dump_failed=1)[1]["TreeDumpFailed"]["message"]


@pytest.mark.parametrize("form", ["engine", "envelope", "nats"])
def test_a_late_sidecar_sends_stores_whose_parent_it_has_not_sent(start, hand, zctx, form):
    """They have no place: left out and counted; and who listens is told that it hears of a part only."""
    nats = NatsServer() if form == "nats" else None
    try:
        plane = ["--event-plane", "nats", "--nats-url", nats.url] if nats else ["--publish-format", form]
        hand.stored([1], TOKENS[:4])  # before anybody listens, and nobody can replay it
        p = start(Publish, hand, *plane, "--worker-id", 1, block_size=4, with_replay=False)
        r = start(Serve, [f"http://127.0.0.1:{free_ports()},id=1" + ("" if nats else f",events=tcp://127.0.0.1:{p.out}")], "--block-size", 4,
                  *(plane if nats else []), ready=False)
        hand.heard_by(1)
        if nats:
            wait_for("the event plane", lambda: r.metric("event_plane_up") == 1)
        else:
            wait_for("the router", lambda: 'publish_connections{worker_id="1",dp_rank="0"} 1' in call(p.port, "GET", "/metrics").body.decode())
            time.sleep(0.5)  # its subscription
        hand.stored([2], TOKENS[4:8], parent=1)
        hand.stored([3, 4], TOKENS[8:16], parent=2)
        hand.stored([5], TOKENS[16:20])
        wait_for("they are left out", lambda: p.status()["parentless_stores"] == 2)
        hand.removed([77])  # out of sequence for nobody
        hand.send(hand.batch(["BlockRemoved", [78], "GPU"]), seq=hand.seq + 3)  # a loss that nobody repairs
        hand.seq += 4
        wait_for("partial", lambda: p.status()["view"] == "partial")
        hand.stored([6], TOKENS[20:24], parent=5)  # gone with the loss
        hand.stored([7], TOKENS[24:28])
        hand.stored([8], TOKENS[28:32], parent=7)
        wait_for("that too", lambda: p.status()["parentless_stores"] == 3 and p.status()["blocks"] == 2)
        wait_for("the rest is there", lambda: r.overlap(TOKENS[24:]) == {(1, 0): 2})
        assert r.metric("ingest_parent_not_found_total") == 0
        if form != "engine":  # whose messages have no word for it
            wait_for("a part only", lambda: r.view()["view"] == "partial" and "its publisher" in r.view()["reason"])
        hand.cleared()
        hand.stored([9], TOKENS[:4])
        wait_for("whole", lambda: p.status()["view"] == "whole" and r.view()["view"] == "whole" and r.overlap(TOKENS[:4]) == {(1, 0): 1})
    finally:
        if nats:
            nats.stop()


def test_an_engine_where_a_publisher_was_is_never_understood(start, hand, engine):
    """Events in envelopes came from there before: an operator has taken the sidecar away, or its --publish-format is another one."""
    port = free_ports()
    p = start(Publish, hand, "--publish-format", "envelope", out=port, block_size=4, with_replay=False)
    r = start(Serve, [f"http://127.0.0.1:{free_ports()},id=7,events=tcp://127.0.0.1:{port}"], "--block-size", 4, ready=False)
    hand.heard_by(1)
    wait_for("connected", lambda: hand.stored([hand.seq + 1], TOKENS[:4]) or r.view(7).get("batches"))
    p.stop()
    e = engine(events=port)
    e.heard_by(1)
    e.stored([1001, 1002], TOKENS[:8])
    wait_for("its blocks", lambda: r.view(7)["trusted"] and r.overlap(TOKENS[:8]) == {(7, 0): 2})
    assert r.view(7)["view"] == "whole"
