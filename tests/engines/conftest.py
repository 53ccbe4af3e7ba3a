# SPDX-License-Identifier: Apache-2.0
"""Fixtures of tests against real engines.

    engines     two alike (adapter `ad1`), with caches that nothing falls out of
    small       one of 120 blocks
    forgetful   one of 800 blocks that replays 60 batches of events
    scripted    one of 120 blocks, with the adapter
    hybrid      one of 500 blocks, whose model has sliding windows
    ranked      one of two data-parallel ranks
    pair        a prefill and a decode engine, which hand prompts over by NIXL
    pushing     the same, of which the first one writes into the memory of the other
    sharing     the same, which share a folder of computed prompts
    alone       none of them runs: the test starts its own
    start       start(Serve, [engine, ...], "--flag", ...): a router, or another program of ours; ended with the test
    fleet       a router in front of `engines`
    settle      settle(serve, [engine, ...]) or settle(serve, ..., stored=...): waits until the router has taken in every event there is

Starting engines takes longer than most tests. So an engine is started once, side by side with the other one of its row in ROWS, the tests are put in
the order of the rows, and each test gets it with an empty cache. Two run at most. Whatever was started is ended, also when the run is
interrupted. KVROUTE names the binary (build/release/kvroute).
KVROUTE_ENGINES_AT="http://127.0.0.1:8001 http://127.0.0.1:8002" takes engines that run already for `engines`: they need what those have."""
import atexit
import os
import shutil
import signal
import tempfile
import time

import pytest
import zmq

from harness import LEASE, Attached, Engine, Serve, Watch, heard, post, scrape, stop_all, wait_until

NIXL = {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_buffer_device": "cpu",
        "kv_connector_extra_config": {"kv_lease_duration": LEASE, "num_threads": 1}}  # not four, which spin
PUSH = {**NIXL, "kv_connector": "NixlPushConnector"}
STORE = {"kv_connector": "ExampleConnector", "kv_role": "kv_both",
         "kv_connector_extra_config": {"shared_storage_path": tempfile.mkdtemp(prefix="kvroute-store")}}
atexit.register(shutil.rmtree, STORE["kv_connector_extra_config"]["shared_storage_path"], True)
FLEETS = {"engines": ["alike 1", "alike 2"], "pair": ["keeps", "takes"], "pushing": ["pushes", "awaits"], "sharing": ["writes", "reads"]}  # fixtures of several engines

ROWS = (  # what scripts/engines/engine.py is asked for
    {"alike 1": {"lora": True}, "alike 2": {"lora": True}},
    {"small": {"blocks": 120}, "forgetful": {"blocks": 800, "kv": {"buffer_steps": 60}}},
    {"scripted": {"blocks": 120, "lora": True}, "hybrid": {"blocks": 500, "hybrid": True}},
    {"ranked": {"ranks": 2}},
    {"keeps": {"transfer": NIXL}, "takes": {"transfer": NIXL}},
    {"pushes": {"transfer": {**PUSH, "engine_id": "pushes"}}, "awaits": {"transfer": PUSH}},
    {"writes": {"transfer": STORE}, "reads": {"transfer": STORE, "extra": ["--no-enable-prefix-caching"]}},
    {"alone": None},
)


LIMIT = 600  # seconds of a test, without the start of its engines; the longest takes a minute on two idle cores


@pytest.fixture(autouse=True, scope="module")
def environment():
    """What a module loads into this process may change the environment, as LMCache does (PROMETHEUS_MULTIPROC_DIR): engines that are started later
    would share their metrics by it."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(autouse=True)
def bounded():
    """A test ends: one that waits for an engine that waits for another one fails, and says where."""
    def over(*_):
        raise TimeoutError(f"the test has run for {LIMIT} s")
    signal.signal(signal.SIGALRM, over)
    signal.alarm(LIMIT)
    yield
    signal.alarm(0)


def names(fixture):
    """The engines that a fixture stands for."""
    return FLEETS.get(fixture, [fixture])


def row_of(name):
    return next((i for i, row in enumerate(ROWS) if name in row), -1)


class Stable:
    """The engines of one row; those of others are started when they are asked for, in the place of these."""

    def __init__(self):
        self.wanted, self.running, self.seconds = set(), {}, {}

    def get(self, name):
        if name not in self.running:
            self.empty()
            begin = time.monotonic()
            self.running = {n: Engine(**kw) for n, kw in ROWS[row_of(name)].items() if n in self.wanted}
            for n, e in self.running.items():
                e.wait()
                self.seconds[n] = time.monotonic() - begin
        e = self.running[name]
        if e.p.poll() is not None:  # the test before ended it, and has failed by that
            e.start()
            e.wait()
        return forget(e)

    def empty(self):
        stop_all()
        self.running = {}


def forget(engine):
    """Empties the engine's cache. The event of it goes out with the next request: one that fills no block."""
    wait_until("an idle engine", lambda: scrape(engine, "vllm:num_requests_running") + scrape(engine, "vllm:num_requests_waiting") == 0, 60)
    for rank in range(engine.ranks):
        headers = {"X-data-parallel-rank": str(rank)} if engine.ranks > 1 else None
        assert post(engine, "/reset_prefix_cache", None).status == 200
        assert post(engine, "/v1/completions", {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 1}, headers).status == 200
    return engine


_stable = Stable()


def pytest_configure():
    signal.signal(signal.SIGTERM, lambda *_: pytest.exit("ended by a signal", 143))  # atexit ends the engines


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: max((row_of(n) for f in item.fixturenames for n in names(f)), default=-1))


def pytest_collection_finish(session):
    _stable.wanted = {n for item in session.items for f in item.fixturenames for n in names(f)}


def pytest_terminal_summary(terminalreporter):
    if _stable.seconds:
        terminalreporter.write_line("engines were up after " + ", ".join(f"{s:.0f} s ({n})" for n, s in _stable.seconds.items()))


@pytest.fixture(scope="session")
def stable():
    yield _stable
    _stable.empty()


@pytest.fixture
def engines(stable):
    running = os.environ.get("KVROUTE_ENGINES_AT", "").split()
    return [Attached(url) for url in running] if running else [stable.get(n) for n in names("engines")]


def _one(name):
    @pytest.fixture(name=name)
    def engine(stable):
        return stable.get(name)
    return engine


def _several(name):
    @pytest.fixture(name=name)
    def engines_of(stable):
        return [stable.get(n) for n in FLEETS[name]]
    return engines_of


pair, pushing, sharing = map(_several, ("pair", "pushing", "sharing"))
small, forgetful, scripted, hybrid, ranked = map(_one, ("small", "forgetful", "scripted", "hybrid", "ranked"))


@pytest.fixture
def alone(stable):
    stable.empty()


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
    answer, by a thread of their own. Those that the test itself expects are told by stored={engine: blocks so far, at least}; where it cannot
    expect any and a lack would matter, last=True waits for those that there are (0.2 s)."""
    watches = {}

    def wait(serve, engines, stored=None, last=False):
        for e in engines:
            if id(e) not in watches:
                watches[id(e)] = Watch(e, zctx)
        mine = [watches[id(e)] for e in engines]
        for e, n in (stored or {}).items():
            w = watches[id(e)]
            wait_until("stored events", lambda w=w, n=n: sum(w.drain().stored.values()) >= n, 20)
        for w in mine if last else ():
            w.catch_up()
        wait_until("the router's view", lambda: heard(serve, mine), 20)
        return mine
    yield wait
    for w in watches.values():
        w.close()
