# SPDX-License-Identifier: Apache-2.0
"""Recordings of KV events: what is written, rotated and limited, and what comes of it when it is replayed."""
import json
import os
import subprocess

import pytest

from conftest import BINARY, SLOW, Engine, Indexer, Mock, Process, Serve, free_ports, wait_for

TOKENS = list(range(1, 33))


@pytest.fixture
def hand(zctx):
    e = Engine(zctx)
    yield e
    e.close()


def replay(*args, rc=0):
    p = subprocess.run([BINARY, "replay-events", *map(str, args)], capture_output=True, text=True, timeout=60 * SLOW)
    assert p.returncode == rc and "Sanitizer" not in p.stderr, (p.returncode, p.stdout, p.stderr)
    return p.stdout + p.stderr


def lines(path):
    return [json.loads(l) for l in open(path)]


def dump(ix):
    return sorted((e["worker_id"], e["event"]["dp_rank"], e["storage_tier"], b["block_hash"], b["tokens_hash"])
                  for p in ix.call("GET", "/dump").json().values() for e in p["events"] for b in e["event"]["data"]["stored"]["blocks"])


def test_an_indexers_recording_makes_an_equal_indexer(start, hand, tmp_path):
    path = tmp_path / "events.jsonl"
    ix = start(Indexer, "--record-events", path)
    ix.register(7, hand)
    hand.until("trusted", lambda: ix.trusted())
    hand.stored([1, 2, 3], TOKENS[:12])
    hand.stored([4], TOKENS[12:16], parent=3)
    hand.removed([4])
    hand.cleared()
    hand.stored([5, 6], TOKENS[:8])
    hand.send(hand.batch(["BlockStored", [7], 6, TOKENS[8:12], 4, None, "CPU", None]))
    hand.until("all", lambda: ix.metric("kvroute_ingest_events_total") == 6)
    other = start(Indexer, "--accept-events")
    want = dump(ix)
    assert len(want) == 3 and ix.metric("kvroute_recorded_events_total") >= 6
    wait_for("written", lambda: len(lines(path)) >= 6)
    recorded = lines(path)
    assert all(set(l) == {"timestamp", "event"} for l in recorded) and [l["timestamp"] for l in recorded] == sorted(l["timestamp"] for l in recorded)
    assert [l["event"]["event"]["data"] for l in recorded].count("cleared") >= 1
    out = replay(path, "--check")
    assert "3 blocks held" not in out and "2 blocks held" in out and "1 in lower tiers" in out and "valid" in out
    replay(path, "--to", f"http://127.0.0.1:{other.port}", "--model-name", "m", "--block-size", 4)
    assert dump(other) == want
    assert other.scores(TOKENS) == ix.scores(TOKENS)
    assert "status 404" in replay(path, "--to", f"http://127.0.0.1:{ix.port}", "--block-size", 4, rc=2)  # not started for it
    other.register(7, hand)
    assert "status 409" in replay(path, "--to", f"http://127.0.0.1:{other.port}", "--model-name", "m", "--block-size", 4, rc=2)  # its view is its engine's
    assert "1 events" in replay(path, "--check", "--max-count", 1)


def test_rotation_and_limits(start, hand, tmp_path):
    path = tmp_path / "r.jsonl"
    ix = start(Indexer, "--record-events", path, "--record-max-lines", 10, "--record-max-count", 25)
    ix.register(7, hand)
    hand.until("trusted", lambda: ix.trusted())
    for i in range(40):
        hand.stored([100 + i], [i, 1, 1, 1])
    hand.until("all", lambda: ix.metric("kvroute_ingest_events_total") == 40)
    files = [path, tmp_path / "r.jsonl.1", tmp_path / "r.jsonl.2"]
    wait_for("three files", lambda: all(os.path.exists(f) for f in files) and sum(len(lines(f)) for f in files) == 25)
    assert [len(lines(f)) for f in files] == [10, 10, 5] and not os.path.exists(str(path) + ".3")
    assert "25 events" in replay(*files, "--check")


def test_a_routers_recording_holds_what_it_knows(start, tmp_path):
    path = tmp_path / "serve.jsonl"
    m = start(Mock, "--num-gpu-blocks", 128)
    s = start(Serve, [m], "--record-events", path)
    for i in range(30):
        s.complete(f"{i % 7} " + "a prompt that is long enough for several blocks " * (3 + i % 5))
    blocks = wait_for("all blocks", lambda: s.view()["blocks"] == m.metric("kvroute_mock_cached_blocks") and s.view()["blocks"])
    assert s.metric("recorded_events_total") > 0
    s.stop()
    s.expect = None
    out = replay(path, "--check")
    assert f"{blocks} blocks held" in out and "valid" in out


def test_bad_lines_are_said_and_left_out(tmp_path):
    good = {"worker_id": 1, "event": {"event_id": 1, "dp_rank": 0, "data": {"stored": {"parent_hash": None, "blocks": [
        {"block_hash": 1, "tokens_hash": 2, "mm_extra_info": None}]}}}}
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b"\n".join([json.dumps({"timestamp": 5, "event": good}).encode(), b"", b"{", b"[]", b"\xff\xfe", json.dumps(good).encode(),
                                 b'{"timestamp":-1,"event":{}}', b'{"timestamp":1,"event":{"worker_id":"x"}}', b"[" * 5000]))
    out = replay(path, "--check", rc=1)
    assert "2 events" in out and "6 bad lines" in out and "line 3 is not a recorded event" in out
    assert "cannot read" in replay(tmp_path / "none", "--check", rc=2)
    assert "Is a directory" in replay(tmp_path, "--check", rc=2)
    assert "either --check or --url" in replay(path, rc=2)
    assert "block-size" in replay(path, "--to", "http://x", "--block-size", 0, rc=2)
    assert "no URL" in replay(path, "--to", "x", rc=2)


def test_a_recording_that_cannot_be_written_stops_the_start(tmp_path):
    for args in (["indexer", "--port", free_ports()], ["serve", "--port", free_ports(), "--admin-port", free_ports()]):
        p = Process(*args, "--record-events", tmp_path / "no" / "such" / "dir", expect=1)
        assert wait_for("the end", lambda: p.p.poll() is not None) and "--record-events" in p.text()
        p.stop()


def test_timed_replay_keeps_the_pauses(tmp_path):
    event = {"worker_id": 1, "event": {"event_id": 1, "dp_rank": 0, "data": "cleared"}}
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps({"timestamp": t, "event": event}) + "\n" for t in (0, 150, 300)))
    out = replay(path, "--check", "--timed")
    assert float(out.split(" events in ")[1].split(" s:")[0]) >= 0.3


def test_a_limited_timed_replay_does_not_wait_for_what_comes_later(tmp_path):
    event = {"worker_id": 1, "event": {"event_id": 1, "dp_rank": 0, "data": "cleared"}}
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps({"timestamp": t, "event": event}) + "\n" for t in (0, 12000)))
    out = replay(path, "--check", "--timed", "--max-time", 0.5)
    assert out.startswith("1 events in ") and float(out.split(" events in ")[1].split(" s:")[0]) < 11
