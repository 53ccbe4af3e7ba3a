# SPDX-License-Identifier: Apache-2.0
"""A view that says nothing of use is found out by the answers of its engine, within 60 requests, and meanwhile requests go by load."""
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from conftest import Mock, Publish, Serve, wait_for

REQUESTS = 60


def conversation(rng, n):
    """A prompt of one of a few sessions, longer each time: what a cache-aware router lives on."""
    return f"session {rng.randrange(4)}: " + "we talk about this and that and remember everything. " * (2 + n // 8)


def drive(s, requests):
    rng = random.Random(1)
    return all(s.complete(conversation(rng, n), max_tokens=1).status == 200 for n in range(requests))


def largest_share(s, **body):
    """Eight clients at once: what part of the requests the busiest worker got, and the reasons."""
    rng = random.Random(2)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda p: s.complete(p, max_tokens=20, **body), [conversation(rng, n) for n in range(160)]))
    assert all(r.status == 200 for r in answers)
    workers = [r.headers["x-kvroute-worker"] for r in answers]
    return max(workers.count(w) for w in set(workers)) / len(workers), {r.headers["x-kvroute-reason"] for r in answers}


def distrusted(s):
    return all(not v["trusted"] for v in s.views().values())


CASES = {
    "wrong block size": (dict(extra=["--fault-block-size", 8]), {}, "block size"),
    "events off": (dict(with_events=False), {}, "KV events"),
    "prefix caching off": (dict(extra=["--no-enable-prefix-caching"]), {}, "prefix caching"),
    "salt not in events": (dict(extra=["--fault-omit-salt"]), {"cache_salt": "tenant"}, "salt"),
}


@pytest.mark.parametrize("case", CASES)
def test_silent_misses_raise_the_alarm(start, case):
    how, body, reason = CASES[case]
    mocks = [start(Mock, *how.get("extra", []), with_events=how.get("with_events", True)) for _ in range(2)]
    s = start(Serve, [m.spec() for m in mocks], "--tokenizer", "engine")
    sent = 0
    rng = random.Random(1)

    def alarmed():
        nonlocal sent
        if distrusted(s):
            return True
        if sent < REQUESTS:
            assert s.complete(conversation(rng, sent), max_tokens=1, **body).status == 200
            sent += 1
        return False
    wait_for("alarm", alarmed, 20)
    assert sent <= REQUESTS

    def told():  # a view that is being restored says that instead, until it is whole and the answers speak against it again
        for v in s.views().values():
            assert v["trust"] in ("untrusted", "recovering") and reason in v["reason"], v
        return True
    wait_for("the reason", told, 20)
    if how.get("with_events", True):
        assert s.metric("view_trusted") == 0
    share, reasons = largest_share(s, **body)
    assert reasons == {"untrusted"}
    assert share <= 0.85  # by load: who answers faster, on a busy machine, gets more, and nobody is left out


def test_a_sound_view_is_never_accused(start):
    """Bursts of requests with one prefix, short prompts, a small cache that evicts all the time: no alarm."""
    mocks = [start(Mock, "--num-gpu-blocks", 256) for _ in range(2)]
    s = start(Serve, mocks)
    with ThreadPoolExecutor(32) as pool:
        for k in range(6):
            prompts = [f"burst {k} " + "x" * 600 + str(i % 5) for i in range(64)] + ["hi"] * 4
            assert all(r.status == 200 for r in pool.map(lambda p: s.complete(p, max_tokens=3), prompts))
    wait_for("outcomes", lambda: s.metric("view_evidence_total", outcome="fine") > 50)
    assert all(v["trusted"] for v in s.views().values())
    assert s.metric("view_evidence_total", outcome="missing") + s.metric("view_evidence_total", outcome="stale") < \
        0.2 * s.metric("view_evidence_total")


def test_trust_comes_back_when_the_answers_agree(start):
    """An engine that is restarted with its events in order is trusted again."""
    m = start(Mock, "--no-enable-prefix-caching")
    s = start(Serve, [m])
    drive(s, 30)
    wait_for("alarm", lambda: not s.view()["trusted"], 60)
    m.kill()
    m = start(Mock, port=m.port, events=m.events, replay=m.replay)
    wait_for("healthy", lambda: s.get("/workers")[0]["schedulable"])
    wait_for("trust", lambda: drive(s, 2) and s.view()["trusted"], 60)
    assert s.complete("session 1: " + "we talk about this and that and remember everything. " * 4).headers["x-kvroute-reason"] in ("kv", "load")


def test_what_a_broken_stream_lacks_is_not_held_against_a_repaired_view(start):
    """Prompts that were served while the sidecar was dead are not in the view; once it is repaired that is no evidence."""
    m = start(Mock)
    p = start(Publish, m)
    s = start(Serve, [f"http://127.0.0.1:{m.port}" + p.source()])
    drive(s, 20)
    p.kill()
    wait_for("noticed", lambda: not s.view()["trusted"])
    drive(s, 40)
    p = start(Publish, m, port=p.port, out=p.out)
    wait_for("whole again", lambda: s.view()["view"] == "whole", 20)  # it may be partial first, and what is judged then goes with it
    drive(s, 20)
    wait_for("judged", lambda: s.metric("view_evidence_total", outcome="fine") >= 8)
    assert s.view()["trusted"] and s.metric("view_evidence_total", outcome="missing") == 0
