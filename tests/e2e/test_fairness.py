# SPDX-License-Identifier: Apache-2.0
"""Whose turn it is when requests of several API keys wait: they share the queue, whoever came first and however many they are."""
import collections
import concurrent.futures
import contextlib
import threading

import pytest

from conftest import Serve, call, wait_for
from leg_parts import Leg

KEYS = """
keys:
  - {name: a, key: the-key-of-a}
  - {name: b, key: the-key-of-b}
  - {name: heavy, key: the-key-of-heavy, weight: 3}
"""


class OneAtATime:
    """A worker that answers a request when it is told to."""

    def __init__(self):
        self.may, self.seen = threading.Semaphore(0), []
        self.leg = Leg(self.answer)

    def answer(self, n, body):
        self.seen.append(body["user"])
        self.may.acquire()
        return 200, {"choices": [{"index": 0, "text": "x"}], "usage": {"prompt_tokens": len(body["prompt"]), "completion_tokens": 1}}

    def order(self, n):
        """Lets requests through until n have come in all; whose they were."""
        while len(self.seen) < n:
            had = len(self.seen)
            self.may.release()
            wait_for("the next one", lambda: len(self.seen) > had)
        return self.seen[:n]


@pytest.fixture
def worker():
    w = OneAtATime()
    yield w
    w.may.release(10000)
    w.leg.close()


@pytest.fixture
def send(worker):
    """send(router, key, n) begins n requests; they are waited for at the end."""
    with contextlib.ExitStack() as stack:
        pools = []

        def begin(s, who, n, tokens=10, key=True, **headers):
            auth = {"Authorization": f"Bearer the-key-of-{who}"} if key else {}
            pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor(n))
            body = {"model": "m", "prompt": list(range(tokens)), "max_tokens": 1, "user": who}
            pools.append([pool.submit(call, s.port, "POST", "/v1/completions", body, {**auth, **headers}, 120) for _ in range(n)])
            return pools[-1]
        try:
            yield begin
        finally:
            worker.may.release(10000)  # the pools wait for what they have begun


def router(start, worker, tmp_path, keys=KEYS):
    path = tmp_path / "keys.yaml"
    path.write_text(keys or "")
    flags = ["--api-key-file", path] if keys else []
    return start(Serve, [f"http://127.0.0.1:{worker.leg.port},model=m"], "--no-router-kv-events", "--router-queue-requests", 1, "--queue-timeout", 300, *flags)


def waiting(s, n):
    wait_for(f"{n} in the queue", lambda: s.metric("router_queue_pending_requests") == n)


def finish(worker, *sent):
    worker.may.release(10000)
    for futures in sent:
        assert all(f.result().status == 200 for f in futures)


def test_a_key_does_not_wait_behind_the_burst_of_another(start, worker, send, tmp_path):
    s = router(start, worker, tmp_path)
    flood = send(s, "b", 30)
    waiting(s, 29)
    one = send(s, "a", 1)
    waiting(s, 30)
    assert s.metric("router_queue_pending_tenants") == 2
    assert worker.order(3).index("a") <= 2
    finish(worker, flood, one)


def test_without_keys_the_burst_is_served_first(start, worker, send, tmp_path):
    """What the one above would be if the key did not matter."""
    s = router(start, worker, tmp_path, None)
    flood = send(s, "b", 12, key=False)
    waiting(s, 11)
    one = send(s, "a", 1, key=False)
    waiting(s, 12)
    assert worker.order(13) == ["b"] * 12 + ["a"]
    finish(worker, flood, one)


def test_keys_share_by_their_weights_in_tokens(start, worker, send, tmp_path):
    s = router(start, worker, tmp_path)
    first = send(s, "b", 1)
    wait_for("it is at the worker", lambda: worker.seen)
    sent = [send(s, "a", 30, tokens=100), send(s, "heavy", 30, tokens=100)]
    waiting(s, 60)
    got = collections.Counter(worker.order(41)[1:])
    assert 28 <= got["heavy"] <= 30 and 10 <= got["a"] <= 12, got
    finish(worker, first, *sent)


def test_a_priority_does_not_pass_another_key(start, worker, send, tmp_path):
    s = router(start, worker, tmp_path)
    flood = send(s, "b", 20, **{"x-request-priority": "1000000", "x-dynamo-request-strict-priority": "9"})
    waiting(s, 19)
    one = send(s, "a", 1)
    waiting(s, 20)
    assert "a" in worker.order(3)
    finish(worker, flood, one)


def test_the_priority_of_a_key_has_a_limit(start, worker, send, tmp_path):
    keys = KEYS.replace("name: b,", "name: b, priority_max: 0,")
    s = router(start, worker, tmp_path, keys)
    first = send(s, "a", 1)
    wait_for("it is at the worker", lambda: worker.seen)
    early = send(s, "b", 1, tokens=11)
    waiting(s, 1)
    late = send(s, "b", 1, tokens=12, **{"x-request-priority": "1000000", "x-dynamo-request-strict-priority": "9"})
    waiting(s, 2)
    worker.order(3)
    assert [len(b["prompt"]) for b in worker.leg.bodies] == [10, 11, 12]
    finish(worker, first, early, late)


def test_a_rank_is_busy_while_it_has_so_many_requests(start, worker, send, tmp_path):
    s = router(start, worker, tmp_path)
    sent = send(s, "a", 3)
    waiting(s, 2)
    wait_for("it is at the worker", lambda: worker.seen)
    assert worker.seen == ["a"] and s.get("/loads")[0]["active_requests"] == 1
    finish(worker, sent)
