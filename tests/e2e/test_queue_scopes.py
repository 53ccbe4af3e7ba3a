# SPDX-License-Identifier: Apache-2.0
"""Requests that wait, and workers that are not for all of them: who is asked, who is kept waiting, what a change of a worker leaves booked."""
import http.client
import json

import pytest

from conftest import Mock, Serve, call, wait_for

ONE = ("--router-queue-requests", 1)


def send(s, tokens, n=1, stream=True, headers=None, model="mock"):
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60)
    body = {"model": model, "prompt": tokens, "max_tokens": n, "stream": stream}
    c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json", **(headers or {})})
    return c


def waiting(s):
    return s.metric("router_queue_pending_requests")


def running(s):
    return sum(l["active_requests"] for l in s.get("/loads"))


@pytest.mark.parametrize("entry", [{"model_name": "B"}, {"state": "draining"}, {"role": "decode", "kv_protocol": "vllm-nixl", "local_prefill": False}],
                         ids=["another model", "draining", "only decodes"])
def test_a_queued_request_went_to_a_worker_that_is_not_for_it(start, entry):
    role = ("--role", "decode", "--kv-protocol", "vllm-nixl") if "role" in entry else ()
    other = start(Mock, "--model", "A" if "state" in entry or role else "B", *role, with_events=False)
    s = start(Serve, [start(Mock, "--model", "A", speedup=0.2).spec(",id=1")], *ONE)
    first = send(s, [1] * 40, 400, model="A")
    wait_for("it runs", lambda: running(s) == 1)
    second = send(s, [2] * 40, stream=False, model="A")
    wait_for("it waits", lambda: waiting(s) == 1)
    r = call(s.admin, "POST", "/workers", {"worker_id": 2, "endpoint": f"http://127.0.0.1:{other.port}", **entry})
    assert r.status == 201, r.body
    wait_for("it is known", lambda: len(s.get("/workers")) == 2)
    wait_for("it waits on", lambda: waiting(s) == 1 and running(s) == 1)
    first.close()
    r = second.getresponse()
    assert r.status == 200 and r.headers["x-kvroute-worker"] == "1", r.read()
    second.close()
    wait_for("idle", s.idle)


def kept_apart(tmp_path):
    keys = tmp_path / "keys.yaml"
    keys.write_text("keys:\n- {name: z, key: sk-zzzzzzzz}\n" + "".join(f"- {{name: {k}, key: sk-{k * 8}, required_taints: [bulk]}}\n" for k in "abcdef"))
    return "--api-key-file", keys


@pytest.mark.parametrize("kind", ["pins", "adapter", "taints"])
def test_requests_that_wait_for_one_worker_held_up_those_for_another(start, kind, tmp_path):
    a, b = start(Mock, *(("--lora-name", "lo") if kind == "adapter" else ()), speedup=0.2), start(Mock, speedup=0.2)
    s = start(Serve, [a.spec(",id=1,taint=bulk" if kind == "taints" else ",id=1"), b.spec(",id=2")], *ONE, *(kept_apart(tmp_path) if kind == "taints" else ()))

    def bound(k):
        how = {"pins": {"headers": {"x-kvroute-worker": "1", "x-request-priority": "100"}}, "adapter": {"model": "lo"},
               "taints": {"headers": {"Authorization": f"Bearer sk-{k * 8}"}}}[kind]
        return send(s, [ord(k)] * 40, 400, **how)
    held = []
    for i, k in enumerate("abcdef"):
        held.append(bound(k))
        wait_for("it has come", lambda: running(s) + waiting(s) == i + 1)
    assert waiting(s) == 5
    r = s.complete([7] * 30, max_tokens=1, headers={"Authorization": "Bearer sk-zzzzzzzz"})
    assert r.status == 200 and r.headers["x-kvroute-worker"] == "2" and waiting(s) == 5
    for c in held:
        c.close()
    wait_for("idle", s.idle)


def test_a_worker_that_came_for_those_who_wait_was_not_given_them(start):
    a, b, other = start(Mock, "--lora-name", "lo", speedup=0.02), start(Mock, "--lora-name", "lo"), start(Mock)
    s = start(Serve, [a.spec(",id=1"), other.spec(",id=3")], *ONE)
    first = send(s, [1] * 400, 400, model="lo")
    wait_for("it runs", lambda: running(s) == 1)
    rest = []
    for i in range(3):
        rest.append(send(s, [2 + i] * 40, stream=False, model="lo"))
        wait_for("it waits", lambda: waiting(s) == i + 1)
    r = call(s.admin, "POST", "/workers", {"worker_id": 2, "endpoint": f"http://127.0.0.1:{b.port}"})
    assert r.status == 201, r.body
    for c in rest:
        r = c.getresponse()
        assert r.status == 200 and r.headers["x-kvroute-worker"] == "2", r.read()
        c.close()
    assert running(s) == 1 and a.metric("vllm:num_requests_running") == 1
    first.close()
    wait_for("idle", s.idle)


def test_a_change_of_a_worker_dropped_what_is_booked_there_and_a_limit_was_passed(start):
    m = start(Mock, speedup=0.3)
    s = start(Serve, [m.spec(",id=1")], *ONE)
    held = []
    for i in range(3):
        held.append(send(s, [i] * 40, 400))
        wait_for("it has come", lambda: running(s) + waiting(s) == i + 1)
    for change in ({"taints": ["a"]}, {"max_num_batched_tokens": 9999}, {"taints": ["b"]}):
        assert call(s.admin, "PATCH", "/workers/1", change).status == 200
        assert running(s) == 1 and waiting(s) == 2
    assert m.metric("vllm:num_requests_running") == 1
    for c in held:
        c.close()
    wait_for("idle", s.idle)
