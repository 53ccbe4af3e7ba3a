# SPDX-License-Identifier: Apache-2.0
"""Engines that reset, refuse, hang or are gone: who is blamed, who serves instead, and where it is booked."""
import http.client
import json
import random
import threading

import pytest

import leg_parts
import test_trust
from conftest import Mock, Serve, call, cluster, known_workers, stays, subset_of_header, wait_for

FAILS = {"resets": lambda n, body: leg_parts.RESET, "answers 500": lambda n, body: 500, "answers 503": lambda n, body: 503}


def by_worker(asked, name):
    return {w: asked.metric(name, worker_id=w) for w in (1, 2)}


@pytest.mark.parametrize("what", FAILS)
def test_the_breaker_opens_as_on_the_data_port(gateway, start, legs, mode, what):
    """An engine's own failures count, one after the other, and open its breaker when they do on the data port."""
    def opened(ask, asked):
        for _ in range(6):
            ask({"prompt": [1] * 20, "max_tokens": 2, "model": "m"}, {"x-kvroute-worker": "1"})
        wait_for("idle", asked.idle)
        return by_worker(asked, "worker_breaker_open")
    workers = [legs(FAILS[what]), legs(leg_parts.decodes)]
    entries = [w.spec("both") for w in workers]
    s = start(Serve, entries, "--breaker-failures", 3, "--max-retries", 0)
    want = opened(lambda body, headers: call(s.port, "POST", "/v1/completions", body, headers), s)
    envoy, picker = gateway(mode, entries, "--breaker-failures", 3, listed=[w.port for w in workers])
    assert opened(envoy.ask, picker) == want
    if want[1]:
        r = envoy.complete([1] * 20, model="m")
        assert (r.status, r.headers["x-kvroute-worker"]) == (200, "2")


def test_an_engine_that_hangs_stays_booked_until_the_client_leaves(gateway, start, mode):
    envoy, picker = gateway(mode, [start(Mock, "--fault-hang")])
    c = http.client.HTTPConnection("127.0.0.1", envoy.port, timeout=60)
    c.request("POST", "/v1/completions", json.dumps({"prompt": [1] * 64, "max_tokens": 2}))
    wait_for("booked", lambda: picker.booked() == 1)
    stays("booked", lambda: picker.booked() == 1, 0.5)
    c.close()
    wait_for("idle", picker.idle)
    assert picker.metric("worker_breaker_open") == 0


def test_envoys_own_503_blames_nobody(gateway, start):
    """A destination that Envoy cannot take: its answer has no upstream address, and no worker has failed."""
    def nobody(conf):
        cluster(conf, "named")["original_dst_lb_config"]["http_header_name"] = "x-of-nobody"
    envoy, picker = gateway("duplex", [start(Mock)], "--breaker-failures", 2, edits=[nobody])
    for i in range(6):
        r = envoy.complete([1] * 20, headers={"x-request-id": f"o{i}"})
        assert r.status == 503 and envoy.access(f"o{i}")["details"].startswith("no_healthy_upstream"), r.body
    assert picker.metric("worker_breaker_open") == 0 and picker.metric("breaker_opened_total") == 0
    wait_for("idle", picker.idle)


@pytest.mark.parametrize("case", test_trust.CASES)
def test_a_view_that_is_wrong_is_found_out_by_answers(gateway, start, mode, case):
    how, body, reason = test_trust.CASES[case]
    mocks = [start(Mock, *how.get("extra", []), with_events=how.get("with_events", True)) for _ in range(2)]
    envoy, picker = gateway(mode, mocks, "--tokenizer", "engine")
    rng, sent = random.Random(1), 0

    def found_out():
        nonlocal sent
        if sent < test_trust.REQUESTS:
            assert envoy.complete(test_trust.conversation(rng, sent), max_tokens=1, **body).status == 200
            sent += 1
        return test_trust.distrusted(picker)
    wait_for("found out", found_out, 30)
    wait_for("the reason", lambda: all(reason in v["reason"] for v in picker.views().values()), 20)


def test_a_retry_goes_down_the_list_and_the_booking_with_it(gateway, start, mode):
    """The first of the list has just died; the second serves, and is what the picker books."""
    dead, m = start(Mock), start(Mock, speedup=0.5)
    envoy, picker = gateway(mode, [dead, m], "--ext-proc-fallbacks", 1, "--health-interval", 60, edits=[known_workers] if mode == "duplex" else [])
    wait_for("both", lambda: all(w["status"] == "up" for w in picker.get("/workers")))
    dead.kill()
    busy = []  # the one that is alive is busier, so the choice falls on the dead one
    while not picker.metric("ext_proc_served_elsewhere_total"):
        assert len(busy) < 4
        c = http.client.HTTPConnection("127.0.0.1", envoy.port, timeout=60)
        c.request("POST", "/v1/completions", json.dumps({"prompt": [len(busy)] * 64, "max_tokens": 3000, "stream": True}))
        busy.append((c, r := c.getresponse()))
        assert r.status == 200 and r.read1(100)
        wait_for("booked", lambda: picker.booked() == len(busy))
    loads = {x["worker_id"]: x["active_requests"] for x in picker.get("/loads")}
    assert loads == {1: 0, 2: len(busy)} and picker.metric("ext_proc_served_elsewhere_total") == 1, loads
    for c, _ in busy:
        c.close()
    wait_for("idle", picker.idle)


def test_a_list_is_never_longer_than_the_subset(gateway, start):
    mocks = [start(Mock) for _ in range(3)]
    envoy, picker = gateway("buffered", mocks, "--ext-proc-fallbacks", 2, edits=[subset_of_header])
    two = [f"127.0.0.1:{m.port}" for m in mocks[1:]]
    r = envoy.complete([1] * 20, headers={"x-subset": ",".join(two), "x-request-id": "two"})
    assert r.status == 200
    assert sorted(envoy.access("two")["destination"].split(",")) == sorted(two)
    r = envoy.complete([1] * 20, headers={"x-request-id": "all"})
    assert sorted(envoy.access("all")["destination"].split(",")) == sorted(f"127.0.0.1:{m.port}" for m in mocks)
    wait_for("idle", picker.idle)


def test_an_address_that_envoy_does_not_know_is_seen_to_be_served_elsewhere(gateway, start):
    """override_host goes silently to its fallback; the picker hears who served, and books there."""
    a, b = start(Mock), start(Mock)
    envoy, picker = gateway("buffered", [a, b], listed=[b])
    for i in range(6):
        assert envoy.complete([i] * 64).status == 200
    wait_for("idle", picker.idle)
    served = b.metric("vllm:request_success_total")
    assert served == 6 and picker.metric("ext_proc_served_elsewhere_total") > 0


def test_many_failures_at_once_leave_nothing_booked(gateway, start, mode):
    mocks = [start(Mock, "--fault-reset-after", 2), start(Mock, "--fault-error-after", 2), start(Mock)]
    envoy, picker = gateway(mode, mocks, "--breaker-failures", 1000)

    def ask(i):
        for k in range(20):
            try:
                envoy.complete([i, k] * 30, max_tokens=8, stream=k % 2 == 0)
            except (OSError, http.client.HTTPException):
                pass
    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    wait_for("idle", picker.idle)
    wait_for("streams", lambda: envoy.asking() == 0)
