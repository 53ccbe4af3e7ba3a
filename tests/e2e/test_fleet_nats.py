# SPDX-License-Identifier: Apache-2.0
"""A fleet past one machine: a cluster of three nats-servers, four engines with sidecars, two routers that serve their index, two
that ask for it. All answer alike; whatever is killed, decisions are right again within five seconds, and no request is lost."""
import re
import threading
import time

import pytest

from conftest import SLOW, Mock, Publish, Serve, wait_for
from nats_parts import NatsCluster

RIGHT_AGAIN_S = 5


@pytest.fixture(scope="module")
def cluster():
    c = NatsCluster()
    yield c
    c.stop()


def prompt(k, n=128):
    return [k * 1000 + i for i in range(n)]


class Load(threading.Thread):
    """Requests one after the other through every router that is alive; what is refused or broken is kept."""

    def __init__(self, fleet):
        super().__init__()
        self.fleet, self.done, self.sent, self.lost = fleet, threading.Event(), 0, []

    def run(self):
        k = 100
        while not self.done.is_set():
            for r in list(self.fleet.routers):
                k += 1
                try:
                    status = r.complete(prompt(k % 40 + 100)).status
                except OSError as e:
                    status = e
                self.sent += 1
                if status != 200 and r in self.fleet.routers and r.p.poll() is None:
                    self.lost.append(status)
                time.sleep(0.02)  # it is there to see what is lost, not to fill the machine

    def stop(self):
        self.done.set()
        self.join()


class Fleet:
    def __init__(self, start, cluster, kind):
        self.start, self.cluster, self.kind = start, cluster, kind
        # one scope for each test: the cluster is theirs together
        self.nats = ["--nats-url", cluster.url, "--nats-replicas", 3, "--component", f"{kind}-{time.monotonic_ns()}"]
        self.plane = ["--event-plane", kind, *self.nats]
        self.mocks = [start(Mock, speedup=200) for _ in range(4)]
        self.pubs = [self.sidecar(i) for i in range(4)]
        self.workers = [f"http://127.0.0.1:{m.port},id={i + 1},recover={p.url}" for i, (m, p) in enumerate(zip(self.mocks, self.pubs))]
        self.bare = [w.split(",recover")[0] for w in self.workers]
        self.serving = [start(Serve, self.workers, "--serve-indexer", *self.plane) for _ in range(2)]
        self.consuming = [start(Serve, self.bare, "--use-remote-indexer", "nats://", "--remote-indexer-timeout", 0.5, *self.nats) for _ in range(2)]
        self.routers = self.serving + self.consuming
        self.next_prompt = 1000
        self.settle(60)

    def sidecar(self, i, port=None):
        return self.start(Publish, self.mocks[i], "--worker-id", i + 1, *self.plane, port=port)

    def fresh(self):
        """Prompts nobody has seen, one through each router that keeps an index."""
        self.prompts = [self.next_prompt + k for k in range(4)]
        self.next_prompt += 4
        for k in self.prompts:
            assert self.serving[k % 2].complete(prompt(k)).status == 200

    def wrong(self):
        """What is not right, or None: every view is trusted, the serving routers hold the same, and all four act on it."""
        a, b = self.serving
        for r in (a, b):
            if len(r.views()) != 4 or not all(v["trusted"] for v in r.views().values()):
                return "trust", {w: v["reason"] for w, v in r.views().items()}
        for c in self.consuming:
            if c.metric("remote_indexer_up") != 1:
                return "a consuming router does not ask"
        for k in self.prompts:
            held = self.held_alike(k)
            if not held or max(held.values()) != 8:
                return "what is held", a.overlap(prompt(k)), b.overlap(prompt(k))
            for r in self.routers:  # under load another worker may be the better choice; but each must know who holds it
                answer = r.complete(prompt(k), headers={"x-kvroute-explain": "1"})
                known = max(map(int, re.findall(r"overlap=(\d+)", answer.headers.get("x-kvroute-explain", "overlap=0"))))
                if answer.status != 200 or known != 8:
                    return "an answer", answer.status, answer.headers
        return None

    def held_alike(self, k):
        """What both serving routers say, once the last event has reached both."""
        def alike():
            held = [r.overlap(prompt(k)) for r in self.serving]
            return held[0] if held[0] == held[1] else None
        try:
            return wait_for("the same from both", alike, 0.2)
        except AssertionError:
            return None

    def settle(self, timeout):
        self.fresh()
        wait_for("everybody is right", lambda: self.wrong() is None, timeout)

    def right_again(self, what, limit=RIGHT_AGAIN_S):
        """From `limit` on after the kill all is right, also for prompts that came after it; until then it may not be."""
        t0, last_wrong, why = time.monotonic(), 0.0, None
        self.fresh()
        while (now := time.monotonic() - t0) < limit + 1 or (last_wrong > now - 1 and now < limit * SLOW + 1):
            wrong = self.wrong()
            time.sleep(0.3)  # a look is some thirty requests
            if wrong:
                last_wrong, why = time.monotonic() - t0, wrong
        print(f"{what}: wrong for {last_wrong:.2f} s, {why}")
        assert last_wrong < limit * SLOW, (what, last_wrong, why)


@pytest.mark.parametrize("kind", ["nats", "jetstream"])
def test_whatever_is_killed(start, cluster, kind):
    f = Fleet(start, cluster, kind)
    load = Load(f)
    load.start()
    try:
        for i in (0, 3):
            port = f.pubs[i].port
            f.pubs[i].kill()
            f.pubs[i] = f.sidecar(i, port)
            f.right_again(f"sidecar {i + 1}")
        old = f.serving[0]
        f.routers.remove(old)
        old.kill()
        f.serving[0] = start(Serve, f.workers, "--serve-indexer", *f.plane, ports=(old.port, old.admin))
        f.routers.append(f.serving[0])
        f.right_again("a serving router")
        old = f.consuming[0]
        f.routers.remove(old)
        old.kill()
        f.consuming[0] = start(Serve, f.bare, "--use-remote-indexer", "nats://", "--remote-indexer-timeout", 0.5, *f.nats, ports=(old.port, old.admin))
        f.routers.append(f.consuming[0])
        f.right_again("a consuming router")
        leader = wait_for("the leader", cluster.meta_leader, 30)
        leader.kill()
        f.right_again("the leader of the NATS cluster")
        leader.start()
        wait_for("the cluster is whole", cluster.meta_leader, 30)
        f.right_again("its return")
        m = f.mocks[1]
        m.kill()  # an engine: its cache is gone, its sidecar notices
        f.mocks[1] = start(Mock, speedup=200, port=m.port, events=m.events, replay=m.replay)
        f.right_again("an engine", RIGHT_AGAIN_S + 5)  # five seconds is what --health-interval takes to find it, in the worst case
    finally:
        load.stop()
    assert load.sent > 100 and not load.lost, (load.sent, load.lost)
