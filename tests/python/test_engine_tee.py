# SPDX-License-Identifier: Apache-2.0
"""The example's engine tee, end to end with a real router: lost batches, an evicted ring, a router that comes late."""
import importlib.util
import json
import os
import random
import sys
import urllib.error
import urllib.request

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "e2e"))
os.environ.setdefault("KVROUTE", os.path.join(ROOT, "build", "asan", "kvroute"))

from conftest import Serve, free_ports, start, wait_for  # noqa: E402,F401

spec = importlib.util.spec_from_file_location("engine_tee", os.path.join(ROOT, "bindings/python/examples/engine_tee.py"))
engine_tee = importlib.util.module_from_spec(spec)
spec.loader.exec_module(engine_tee)

BS = 4


def tokens_of(path):
    return [t for letter in path for t in [letter] * BS]


def name_of(path):
    return (hash(("block",) + tuple(path)) & ((1 << 63) - 1)) | 1


class Engine:
    """A cache of paths over a small alphabet, and what it does to the tee."""

    def __init__(self, tee, seed):
        self.tee, self.rng, self.held = tee, random.Random(seed), set()

    def step(self, lose=0.0):
        send = self.rng.random() >= lose
        leaves = [p for p in self.held if not any(q[:-1] == p for q in self.held)]
        if leaves and self.rng.random() < 0.45:
            p = self.rng.choice(leaves)
            self.held.discard(p)
            self.tee.publish([("removed", [name_of(p)])], send)
            return
        p = tuple(self.rng.randrange(3) for _ in range(self.rng.randrange(1, 6)))
        events = []
        for n in range(1, len(p) + 1):
            q = p[:n]
            if q not in self.held:
                self.held.add(q)
                events.append(("stored", [name_of(q)], name_of(q[:-1]) if n > 1 else None, tokens_of(q[-1:])))
        if events:
            self.tee.publish(events, send)


def ask(port, query):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/kv_recover?{query}", timeout=30) as r:
            return r.status, json.load(r)
    except urllib.error.HTTPError as e:
        return e.code, json.load(e)


def test_a_bad_number_in_kv_recover_is_a_400_that_names_the_parameter():
    port, events = free_ports(), free_ports()
    tee = engine_tee.Tee(f"tcp://127.0.0.1:{events}", BS)
    server = engine_tee.serve(tee, port)
    try:
        tee.publish([("stored", [1], None, tokens_of((1,)))])
        for name in ("start", "end"):
            for bad in ("-1", "1.5", "1e3", "x", "", "%2B1", "1_0", "%201", "18446744073709551616", "9" * 400, "%D9%A1", "0x1", "nan"):
                status, answer = ask(port, f"{name}={bad}")
                assert status == 400 and answer["Error"].startswith(name + ":"), (name, bad, answer)
        status, answer = ask(port, "start=5&end=4")
        assert status == 400 and answer["Error"].startswith("start:") and "end" in answer["Error"]
        assert "Events" in ask(port, "start=0&end=18446744073709551615")[1] and "TooNew" in ask(port, "start=18446744073709551615")[1]
        assert "TreeDump" in ask(port, "")[1] and ask(port, "start=0")[0] == 200
    finally:
        server.shutdown()
        server.server_close()
        tee.close()


def test_what_the_tee_says_of_its_load_is_used_until_it_is_old(start):  # noqa: F811
    port, events = free_ports(), free_ports()
    tee = engine_tee.Tee(f"tcp://127.0.0.1:{events}", BS, dp_rank=0)
    server = engine_tee.serve(tee, port)
    try:
        url = f"http://127.0.0.1:{port}"
        s = start(Serve, [f"{url},events=tcp://127.0.0.1:{events},recover={url}/kv_recover,metrics={url}/metrics,block-size={BS}"],
                  "--engine-metrics-interval", 0.05, "--engine-load-max-age", 1)
        wait_for("nothing yet", lambda: s.metric("engine_metrics_failures_total") > 0)
        assert s.get("/loads")[0]["engine"] is None
        tee.set_load(3, 2, 0.75, 400 * BS)
        wait_for("the load", lambda: s.get("/loads")[0]["engine"])
        load = s.get("/loads")[0]["engine"]
        assert (load["running"], load["waiting"], load["kv_used_blocks"], load["kv_total_blocks"]) == (3, 2, 300, 400)
        wait_for("old, though it is still answered", lambda: s.get("/loads")[0]["engine"]["stale"] and s.metric("engine_load_stale") == 1)
        wait_for("let go of", lambda: s.metric("engine_loads_expired_total") == 1)
        assert s.metric("engine_requests_running") == 0
    finally:
        server.shutdown()
        server.server_close()
        tee.close()


@pytest.mark.parametrize("ring", [16, 1024])
def test_a_router_ends_right_whatever_it_loses(start, ring):  # noqa: F811
    port, events = free_ports(), free_ports()
    tee = engine_tee.Tee(f"tcp://127.0.0.1:{events}", BS, max_events=ring)
    server = engine_tee.serve(tee, port)
    try:
        e = Engine(tee, ring)
        for _ in range(200):
            e.step()  # before anybody listens
        worker = f"http://127.0.0.1:{port},events=tcp://127.0.0.1:{events},recover=http://127.0.0.1:{port}/kv_recover,block-size={BS}"
        s = start(Serve, [worker])
        for round_ in range(5):
            for _ in range(100):
                e.step(lose=0.2)
            e.step()
            wait_for("equal", lambda: [e.step()] and s.view()["trusted"] and s.view()["blocks"] == len(e.held), 20)
            for p in list(e.held)[:10]:
                assert s.overlap(tokens_of(p)) == {(1, 0): len(p)}
        assert s.metric("kv_recovered_dumps_total") >= 1
        if ring == 1024:
            assert s.metric("kv_recovered_events_total") >= 1
    finally:
        server.shutdown()
        server.server_close()
        tee.close()
