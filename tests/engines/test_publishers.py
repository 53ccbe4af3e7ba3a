# SPDX-License-Identifier: Apache-2.0
"""The event publishers of vLLM's releases and of SGLang, without their engines: real code packs and sends, kvroute must read it right."""
import json
import os
import subprocess

import pytest

from harness import DIR, ROOT, Mock, Serve, Watch, free_ports, wait_until
from publisher_script import BLOCK, RELEASES, steps


class Publisher:
    """A process that publishes what publish() is given."""

    def __init__(self, release, buffer_steps=10000):
        self.release, self.ranks, self.port = release, 1, free_ports()
        self.events, self.replay = free_ports(), free_ports()
        self.args = ["", os.path.join(ROOT, "scripts/engines/publishers.py"), "run", release, f"tcp://*:{self.events}", f"tcp://*:{self.replay}", "0",
                     str(buffer_steps)]
        self.p = subprocess.Popen([os.path.join(DIR, "venv/bin/python"), *self.args[1:]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                  env={**os.environ, "ENGINES_DIR": DIR})
        assert self.p.stdout.readline() == "ready\n"

    def publish(self, *events):
        self.p.stdin.write(json.dumps(events) + "\n")
        self.p.stdin.flush()
        assert self.p.stdout.readline() == "ok\n"

    def stop(self):
        self.p.kill()
        self.p.wait()

    def text(self):
        return ""


@pytest.fixture(params=list(RELEASES))
def release(request):
    return request.param


@pytest.fixture
def rig(start, release):
    """rig(...): (publisher, what makes the router that follows it)."""
    def make(**kw):
        p = start(Publisher, release, **kw)

        def serve():
            m = start(Mock, with_events=False)
            return start(Serve, [f"http://127.0.0.1:{m.port},block-size={BLOCK},events=tcp://127.0.0.1:{p.events},replay=tcp://127.0.0.1:{p.replay}"],
                         "--restore-timeout", "2")
        return p, serve
    return make


def check(serve, asks, what):
    for question, blocks in asks:
        wait_until(f"{blocks} blocks for {question} after {what}", lambda q=question, b=blocks: serve.overlap(q["token_ids"], **{
            k: v for k, v in q.items() if k != "token_ids"}).get((1, 0)) == b, 5)


def test_every_step_is_read_live(rig, release):
    p, serve = rig()
    s = serve()
    wait_until("a view", lambda: s.view().get("trusted"))
    for batch, asks in steps(release):
        p.publish(*batch)
        check(s, asks, batch)
    assert s.view()["trusted"]


def test_what_was_before_the_router_comes_by_replay(rig, release):
    p, serve = rig()
    done = steps(release)[:3]
    for batch, _ in done:
        p.publish(*batch)
    s = serve()
    wait_until("a view", lambda: s.view().get("trusted"))
    check(s, done[-1][1], "the replay")


def test_history_that_the_replay_buffer_lost_is_not_claimed_to_be_whole(rig, release, zctx):
    p, serve = rig(buffer_steps=2)
    done = steps(release)[:4]
    for batch, _ in done:
        p.publish(*batch)
    wait_until("published", lambda: Watch(p, zctx).seq[0] == len(done) - 1)
    s = serve()
    wait_until("said", lambda: s.view().get("state") == "live" and s.view().get("reason"))
    assert s.view().get("view", "unknown") != "whole"
    p.publish({"clear": {}})  # an empty cache is fully known
    wait_until("whole", lambda: s.view().get("trusted") and s.view().get("view", "whole") == "whole")
