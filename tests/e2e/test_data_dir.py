# SPDX-License-Identifier: Apache-2.0
"""serve --data-dir: a router that is killed goes on from its directory, and predicts exactly from the first request on, where the engine's
replay buffer alone would not reach back."""
import os
import random
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

from conftest import Mock, Serve, call, free_ports, wait_for

TEXT = "we talk about this and that and remember everything of it. "
BS = 16


def router(start, mocks, tmp_path, *extra, ports=None, **kw):
    return start(Serve, mocks, "--tokenizer", "engine", "--data-dir", tmp_path / "data", *extra, ports=ports, **kw)


def prompts_of(rng, n):
    """Conversations of a few sessions that grow: what is reused, and evicted."""
    turns = {}
    for _ in range(n):
        k = rng.randrange(12)
        turns[k] = turns.get(k, 0) % 12 + 1
        yield f"session {k}: " + TEXT * turns[k]


class Engines:
    """The mocks of a test."""

    def __init__(self, mocks):
        self.mocks = mocks

    def restart(self, i, start, *extra):
        m = self.mocks[i]
        m.kill()
        self.mocks[i] = start(Mock, *extra, port=m.port, events=m.events, replay=m.replay)

    def ask(self, s, prompt):
        """(predicted, reported) cached tokens; and the router has heard of what the engine has done for it."""
        r = s.complete(prompt, max_tokens=1)
        assert r.status == 200, r.body
        usage, worker = r.json()["usage"], int(r.headers["x-kvroute-worker"])
        tokens = call(self.mocks[worker - 1].port, "POST", "/tokenize", {"prompt": prompt}).json()["tokens"]
        wait_for("events", lambda: s.overlap(tokens).get((worker, 0), 0) >= len(tokens) // BS)
        return int(r.headers["x-kvroute-overlap-blocks"]) * BS, (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)

    def differences(self, s, prompts):
        """Where what is predicted is not what the engine reports."""
        return [pair for pair in (self.ask(s, p) for p in prompts) if pair[0] != pair[1]]


@pytest.fixture
def engines(start):
    return lambda *extra, n=1: Engines([start(Mock, *extra) for _ in range(n)])


def whole(s):
    views = s.views().values()
    return bool(views) and all(v["trusted"] for v in views)


def test_kill_9_loses_nothing(start, engines, tmp_path):
    """Killed in the middle of traffic, after many more batches than the engines' replay buffers hold: what is predicted is exact at once."""
    e = engines("--num-gpu-blocks", 400, "--kv-buffer-steps", 60, n=2)
    ports = (free_ports(), free_ports())
    s = router(start, e.mocks, tmp_path, ports=ports)
    rng = random.Random(1)
    assert e.differences(s, prompts_of(rng, 150)) == []

    def traffic(seed):
        for p in prompts_of(random.Random(seed), 10_000):
            try:
                s.complete(p, max_tokens=2)
            except OSError:
                return
    with ThreadPoolExecutor(4) as pool:
        for seed in range(4):
            pool.submit(traffic, seed)
        wait_for("traffic", lambda: s.metric("requests_total") > 400, 60)
        s.kill()
    s = router(start, e.mocks, tmp_path, ports=ports)
    assert whole(s), s.text()
    assert s.metric("data_dir_restored_views_total") == 2 and s.metric("data_dir_restored_blocks_total") + s.metric("data_dir_restored_batches_total") > 100
    assert s.metric("kv_replay_failures_total") == 0 and s.metric("data_dir_discarded_files_total") == 0
    assert e.differences(s, prompts_of(random.Random(9), 100)) == []
    assert s.metric("kv_restarts_total") == 0
    assert s.text().count("to be confirmed by the engine") == 2


def test_every_kill_is_survived(start, engines, tmp_path):
    """Again and again, at no particular moment; snapshots are written all the time meanwhile."""
    e = engines("--num-gpu-blocks", 300, "--kv-buffer-steps", 40)
    ports = (free_ports(), free_ports())
    rng = random.Random(3)
    for k in range(4):
        s = router(start, e.mocks, tmp_path, "--snapshot-interval", 0.05, ports=ports)
        assert whole(s), s.text()
        assert s.metric("data_dir_restored_views_total") == (k > 0), s.text()
        assert e.differences(s, prompts_of(rng, 50)) == [], s.text()
        wait_for("a snapshot", lambda: s.metric("data_dir_snapshots_total") > 0)
        s.kill()
    assert len(os.listdir(tmp_path / "data" / "worker-1-rank-0")) < 8  # journals that are over are removed


def test_sigterm_keeps_the_views(start, engines, tmp_path):
    e = engines("--kv-buffer-steps", 20)
    s = router(start, e.mocks, tmp_path)
    assert e.differences(s, prompts_of(random.Random(4), 60)) == []
    s.stop()
    for p in prompts_of(random.Random(5), 8):  # while the router is away
        call(e.mocks[0].port, "POST", "/v1/completions", {"prompt": p, "max_tokens": 1})
    s = router(start, e.mocks, tmp_path)
    assert whole(s) and s.metric("data_dir_restored_views_total") == 1
    assert e.differences(s, prompts_of(random.Random(4), 60)) == []


@pytest.mark.parametrize("end", ["kill", "stop"])  # from the journal; from a snapshot
def test_what_the_host_has_is_kept_too(start, engines, tmp_path, end):
    """Copies of blocks that have left the device, in chunks, with the size of a chunk that was learned: as before."""
    e = engines("--num-gpu-blocks", 100, "--host-kv-blocks", 1000, "--kv-offload-chunk", 2, "--kv-buffer-steps", 20)
    ports = (free_ports(), free_ports())
    s = router(start, e.mocks, tmp_path, ports=ports)
    prompts = [f"session {k}: " + TEXT * 8 for k in range(12)]
    tokens = [call(e.mocks[0].port, "POST", "/tokenize", {"prompt": p}).json()["tokens"] for p in prompts]
    for _ in range(4):
        for p in prompts:
            e.ask(s, p)  # and waits for its events

    def tiers(s):
        rows = [s.post("/overlap_scores", {"token_ids": t, "model_name": "mock"}).json()["workers"][0] for t in tokens]
        return [(r["device_blocks"], r["host_pinned_blocks"]) for r in rows], s.view()["tiers"]
    wait_for("the last events", lambda: all(host >= len(t) // BS // 2 * 2 for t, (_, host) in zip(tokens, tiers(s)[0])))
    wait_for("something on disk", lambda: s.metric("data_dir_snapshots_total") >= 1)
    told = tiers(s)
    assert sum(host - device for device, host in told[0]) > 50 and told[1]["host_pinned"]["chunk_blocks"] == 2
    getattr(s, end)()
    s = router(start, e.mocks, tmp_path, ports=ports)
    assert whole(s) and tiers(s) == told


def test_what_the_buffer_no_longer_has_makes_the_content_worthless(start, engines, tmp_path):
    """More batches passed while the router was away than the engine keeps: among them may have been removals."""
    e = engines("--num-gpu-blocks", 200, "--kv-buffer-steps", 10)
    s = router(start, e.mocks, tmp_path)
    for p in prompts_of(random.Random(6), 40):
        e.ask(s, p)
    wait_for("something on disk", lambda: s.metric("data_dir_snapshots_total") >= 1)
    s.kill()
    for p in prompts_of(random.Random(7), 60):
        call(e.mocks[0].port, "POST", "/v1/completions", {"prompt": p, "max_tokens": 1})
    s = router(start, e.mocks, tmp_path)
    assert s.metric("data_dir_restored_views_total") == 1  # it was read, and dropped again
    m, known = e.mocks[0], []
    for p in prompts_of(random.Random(6), 40):
        tokens = call(m.port, "POST", "/tokenize", {"prompt": p}).json()["tokens"]
        known.append((min(s.overlap(tokens).get((1, 0), 0), (len(tokens) - 1) // BS), p))
    for blocks, p in sorted(known, reverse=True)[:2]:  # more would evict what is asked for next
        usage = call(m.port, "POST", "/v1/completions", {"prompt": p, "max_tokens": 1}).json()["usage"]
        assert blocks * BS <= usage["prompt_tokens_details"]["cached_tokens"]  # never a false hit


def test_an_engine_that_restarted_meanwhile_is_not_believed_to_hold_anything(start, engines, tmp_path):
    e = engines("--kv-buffer-steps", 100)
    s = router(start, e.mocks, tmp_path)
    for p in prompts_of(random.Random(8), 30):
        e.ask(s, p)
    wait_for("something on disk", lambda: s.metric("data_dir_snapshots_total") >= 1)
    s.kill()
    e.restart(0, start, "--kv-buffer-steps", 100)
    call(e.mocks[0].port, "POST", "/v1/completions", {"prompt": TEXT * 9, "max_tokens": 1})
    s = router(start, e.mocks, tmp_path)
    wait_for("whole", lambda: whole(s))
    assert s.metric("data_dir_restored_views_total") == 1
    assert e.differences(s, prompts_of(random.Random(8), 30)) == []


def test_an_engine_that_restarts_is_written_anew(start, engines, tmp_path):
    """The router lives on, the engine does not: what is on disk is of the new life when the router is killed later."""
    e = engines("--kv-buffer-steps", 50)
    ports = (free_ports(), free_ports())
    s = router(start, e.mocks, tmp_path, ports=ports)
    wait_for("the view", lambda: whole(s))
    for p in prompts_of(random.Random(8), 30):
        e.ask(s, p)
    n = wait_for("a snapshot of the old life", lambda: s.metric("data_dir_snapshots_total"))
    e.restart(0, start, "--kv-buffer-steps", 50)
    wait_for("schedulable", lambda: s.get("/workers")[0]["schedulable"])
    wait_for("its view", lambda: whole(s))
    for p in prompts_of(random.Random(9), 30):
        e.ask(s, p)
    wait_for("a snapshot of it", lambda: whole(s) and s.metric("data_dir_snapshots_total") > n)
    for p in prompts_of(random.Random(10), 70):
        e.ask(s, p)
    s.kill()
    s = router(start, e.mocks, tmp_path, ports=ports)
    assert whole(s) and e.differences(s, prompts_of(random.Random(10), 70)) == []


def test_it_is_said_how_far_a_replay_buffer_reaches(start, engines):
    """Once for each rank, when everything was asked of it; in /workers too."""
    e = engines("--kv-buffer-steps", 12)
    for k in range(30):
        call(e.mocks[0].port, "POST", "/v1/completions", {"prompt": f"prompt {k} " + TEXT, "max_tokens": 1})
    s = start(Serve, e.mocks, "--tokenizer", "engine")
    v = wait_for("the reach", lambda: (v := s.view()).get("buffer_batches") and v)
    assert v["buffer_batches"] == 12 and v["buffer_first"] == v["next_sequence"] - 12 > 0 and 0 < v["buffer_seconds"] < 600, v
    assert s.text().count("worker 1 rank 0: its replay buffer holds the last 12 batches") == 1


# ---- files -------------------------------------------------------------------------------------------------------------

def written(start, engines, tmp_path):
    """A mock, and the directory that a router has left."""
    e = engines()
    s = router(start, e.mocks, tmp_path)
    for p in prompts_of(random.Random(2), 20):
        e.ask(s, p)
    s.stop()
    return e, tmp_path / "data" / "worker-1-rank-0" / "view.kvr"


@pytest.mark.parametrize("damage", ["truncated", "flipped", "foreign", "empty", "version"])
def test_a_damaged_file_is_left_aside(start, engines, tmp_path, damage):
    e, path = written(start, engines, tmp_path)
    good = path.read_bytes()
    at = len(good) // 2
    path.write_bytes({"truncated": good[:at], "flipped": good[:at] + bytes([good[at] ^ 4]) + good[at + 1:], "foreign": b"#!/bin/sh\n" * 9,
                      "empty": b"", "version": good[:8] + b"\x07" + good[9:]}[damage])
    s = router(start, e.mocks, tmp_path)
    assert s.text().count("is not used: ") == 1 and (path.parent / "view.kvr.bad-1").exists()
    assert s.metric("data_dir_discarded_files_total") == 1 and s.metric("data_dir_restored_views_total") == 0
    wait_for("whole", lambda: whole(s))  # from the engine's replay
    assert e.differences(s, prompts_of(random.Random(2), 20)) == []
    wait_for("written anew", path.exists)


@pytest.mark.parametrize("other,why", [("block size", "of another block size"), ("endpoint", "of another events endpoint"), ("model", "of another model")])
def test_the_view_of_another_worker_is_left_aside(start, engines, tmp_path, other, why):
    e, path = written(start, engines, tmp_path)
    if other == "model":  # a view of a worker whose model was said
        shutil.rmtree(tmp_path / "data")
        s = router(start, [e.mocks[0].spec(",model=mock-model")], tmp_path)
        ask_any(s)
        s.stop()
    more = ["--block-size", 32] if other == "block size" else []
    n = start(Mock, *more)
    spec = {"block size": e.mocks[0].spec(",block-size=32"), "endpoint": n.spec(), "model": e.mocks[0].spec(",model=other")}[other]
    s = router(start, [spec], tmp_path)
    assert why in s.text() and (path.parent / "view.kvr.bad-1").exists(), s.text()
    assert s.metric("data_dir_discarded_files_total") == 1


def ask_any(s):
    wait_for("an answer", lambda: s.complete(TEXT).status == 200)
    wait_for("applied", lambda: s.view()["next_sequence"] > 0)


def test_a_torn_journal_is_used_up_to_there(start, engines, tmp_path):
    """The machine died: the last record is in part, or not at all. The engine's buffer has the rest."""
    e = engines("--kv-buffer-steps", 30)
    s = router(start, e.mocks, tmp_path)
    wait_for("the view", lambda: whole(s))  # before the engine's buffer is passed
    for p in prompts_of(random.Random(2), 40):
        e.ask(s, p)
    kept = tmp_path / "data" / "worker-1-rank-0"
    journals = lambda: sorted(kept.glob("journal-*.kvr"), key=lambda p: p.stat().st_mtime)
    wait_for("a snapshot", (kept / "view.kvr").exists)
    fresh = (f"prompt {k}: " + TEXT * 5 for k in range(10_000))  # of a prompt that is cached already nothing is written
    wait_for("a journal of some size behind it", lambda: journals() and journals()[-1].stat().st_size > 3000 or not e.ask(s, next(fresh)))
    s.kill()
    text = journals()[-1].read_bytes()
    journals()[-1].write_bytes(text[:-300])
    s = router(start, e.mocks, tmp_path)
    assert whole(s) and s.metric("data_dir_restored_batches_total") > 0
    assert e.differences(s, prompts_of(random.Random(2), 40)) == []


def test_files_of_unknown_workers_stay(start, engines, tmp_path):
    e, path = written(start, engines, tmp_path)
    shutil.copytree(path.parent, tmp_path / "data" / "worker-99-rank-3")
    (tmp_path / "data" / "notes.txt").write_text("mine")
    s = router(start, e.mocks, tmp_path)
    assert whole(s) and s.metric("data_dir_restored_views_total") == 1
    assert (tmp_path / "data" / "worker-99-rank-3" / "view.kvr").exists() and (tmp_path / "data" / "notes.txt").exists()


def test_a_full_disk_is_said_once_and_counted(start, engines, tmp_path):
    """Files may not grow beyond 4 KiB: the router goes on, and what is on disk stays of use."""
    e = engines("--kv-buffer-steps", 2000)
    s = router(start, e.mocks, tmp_path, "--snapshot-interval", 0.1, limits=[("fsize", 4096)])
    fresh = (f"prompt {k}: " + TEXT * 5 for k in range(10_000))
    wait_for("failures", lambda: [e.ask(s, next(fresh)) for _ in range(10)] and s.metric("data_dir_snapshot_failures_total") > 2, 30)
    assert whole(s) and 1 <= s.text().count("cannot write") <= 4, s.text()
    s.kill()
    s = router(start, e.mocks, tmp_path)
    assert whole(s) and e.differences(s, prompts_of(random.Random(2), 40)) == []


def test_a_full_disk_fills_with_journals(start, engine, tmp_path):
    """What cannot be used is not kept: behind a batch that is in no journal, only a snapshot is of use."""
    e = engine()
    worker = f"http://127.0.0.1:{free_ports()},id=1,events=tcp://127.0.0.1:{e.events}"
    more = ["--block-size", 4, "--data-dir", tmp_path / "data"]
    s = start(Serve, [worker], *more, "--snapshot-interval", 0.1, limits=[("fsize", 4096)], ready=False)
    e.heard_by(1)

    def more_events():
        for _ in range(60):
            e.stored([e.seq * 8 + k + 1 for k in range(8)], [e.seq * 100 + k for k in range(32)])
        wait_for("they are seen", lambda: s.view()["batches"] == e.seq)

    def failures():
        return s.metric("data_dir_snapshot_failures_total")
    more_events()
    wait_for("the first failure", lambda: failures() > 0)
    while failures() < 12:  # of a journal and of a snapshot, once a second
        more_events()
    journals = sorted((tmp_path / "data" / "worker-1-rank-0").glob("journal-*"))
    assert s.view()["view"] == "whole" and len(journals) <= 3, journals


def test_a_directory_that_cannot_be_written_is_a_start_up_error(start, engines, tmp_path):
    m = start(Mock)
    (tmp_path / "file").write_text("")
    for where in (tmp_path / "file", tmp_path / "file" / "data", "/proc/self/data"):
        s = start(Serve, [m], "--data-dir", where, ready=False, wait=False, expect=1)
        s.p.wait(20)
        assert "--data-dir: cannot" in s.text() and "allowed: a directory that can be written" in s.text()


@pytest.mark.parametrize("more", [["--no-router-kv-events"], ["--router-kv-overlap-score-credit", 0], ["--use-remote-indexer", "http://h:1"]])
def test_a_data_dir_without_views_is_refused(start, tmp_path, more):
    s = start(Serve, [], "--data-dir", tmp_path / "data", *more, ready=False, wait=False, expect=2)
    s.p.wait(20)
    assert "data-dir needs" in s.text()
