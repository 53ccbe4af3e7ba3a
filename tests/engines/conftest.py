# SPDX-License-Identifier: Apache-2.0
"""Fixtures of tests against real engines.

    engines     two alike (adapter `ad1`, events, replay, blocks of 32), started once for the whole run
    special     special(blocks=120, ...): another one (scripts/engines/engine.py says what can be asked); tests that ask for the same one
                after each other get the same one, the next one takes its place
    start       start(Serve, [engine, ...], "--flag", ...): a router, or another program of ours; ended with the test
    fleet       a router in front of `engines`
    settle      settle(serve, [engine, ...]) or settle(serve, ..., stored=n): waits until the router has taken in every event there is

Whatever was started is ended, also when the run is interrupted. KVROUTE names the binary (build/release/kvroute).
KVROUTE_ENGINES_AT="http://127.0.0.1:8001 http://127.0.0.1:8002" takes engines that run already for `engines`: they need what those have."""
import os
import signal
import sys

import pytest
import zmq

from harness import Attached, Engine, Serve, Watch, heard, stop_all, wait_until


def pytest_configure(config):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # atexit ends the engines


@pytest.fixture(scope="session")
def engines():
    running = os.environ.get("KVROUTE_ENGINES_AT", "").split()
    if running:
        yield [Attached(url) for url in running]
        return
    pair = [Engine(lora=True), Engine(lora=True)]  # side by side
    yield [e.wait() for e in pair]
    stop_all()


_special = {}


@pytest.fixture
def special():
    def make(**kw):
        key = repr(sorted(kw.items()))
        if key not in _special:
            for k in list(_special):
                _special.pop(k).stop()
            _special[key] = Engine(**kw).wait()
        return _special[key]
    return make


@pytest.fixture
def start():
    made = []

    def make(cls, *args, **kw):
        p = cls(*args, **kw)
        made.append(p)
        return p
    yield make
    errors = []
    for p in reversed(made):
        try:
            p.stop()
        except AssertionError as e:
            errors.append(str(e))
        print(f"--- {' '.join(p.args[1:])}\n{p.text()[-4000:]}")  # shown when the test fails
    assert not errors, "\n".join(errors)


@pytest.fixture
def fleet(start, engines):
    return start(Serve, engines)


@pytest.fixture
def zctx():
    ctx = zmq.Context()
    yield ctx
    ctx.destroy(linger=0)


@pytest.fixture
def settle(zctx):
    """settle(serve, engines): at once after an answer the last events may still be on their way: they leave the engine's process with the
    answer, by a thread of their own. Those that the test itself expects are told by stored={engine: blocks so far, at least}."""
    watches = {}

    def wait(serve, engines, stored=None):
        for e in engines:
            if id(e) not in watches:
                watches[id(e)] = Watch(e, zctx)
        mine = [watches[id(e)] for e in engines]
        for e, n in (stored or {}).items():
            w = watches[id(e)]
            wait_until("stored events", lambda w=w, n=n: sum(w.drain().stored.values()) >= n, 20)
        wait_until("the router's view", lambda: heard(serve, mine), 20)
        return mine
    yield wait
    for w in watches.values():
        w.close()
