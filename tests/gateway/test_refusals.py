# SPDX-License-Identifier: Apache-2.0
"""What clients are told when there is no place for a request, and where others may go while they wait."""
import http.client
import json
import threading

import pytest

from conftest import Mock, asking, call, stays, subset_list, subset_of_header, wait_for

BUSY = "--router-queue-threshold", 0


def slow(start, n=1):
    return [start(Mock, speedup=0.5) for _ in range(n)]


def specs(mocks):
    return [m.spec(",max-num-batched-tokens=100") for m in mocks]


def occupy(envoy, picker, n=1, tokens=30000, headers=()):
    """Streams whose long prompts keep every rank busy. Returns: their connections."""
    opened = []
    for i in range(n):
        c = http.client.HTTPConnection("127.0.0.1", envoy.port, timeout=60)
        c.request("POST", "/v1/completions", json.dumps({"prompt": [i] * tokens, "max_tokens": 1, "stream": True}), dict(headers))
        opened.append(c)
        wait_for("busy", lambda: picker.booked() == i + 1)
    return opened


def close(connections, picker):
    for c in connections:
        c.close()
    wait_for("idle", picker.idle)


class Asked(threading.Thread):
    """A request in a thread of its own; `r` is its answer."""

    def __init__(self, ask, *a, **kw):
        super().__init__()
        self.do, self.r = lambda: ask(*a, **kw), None
        self.start()

    def run(self):
        self.r = self.do()

    def wait(self):
        self.join()
        return self.r


def refused(envoy, r, name, status):
    """An answer of the picker's own, as JSON, with the reason in Envoy's access log."""
    assert r.status == status, (r.status, r.body)
    assert r.headers["content-type"].startswith("application/json") and r.json()["error"]["message"]
    if status in (429, 503, 529):
        assert int(r.headers["retry-after"]) >= 1
    details = envoy.access(name)["details"]
    assert details.startswith("kvroute_"), details
    return details


def test_without_a_worker_the_client_gets_503(gateway, start, mode):
    m = start(Mock)
    envoy, picker = gateway(mode, [m], "--queue-timeout", 0.5)
    assert envoy.complete([1] * 20).status == 200
    m.kill()
    wait_for("down", lambda: picker.get("/workers")[0]["status"] == "down")
    refused(envoy, envoy.complete([1] * 20, headers={"x-request-id": "none"}), "none", 503)
    assert picker.booked() == 0


@pytest.mark.parametrize("body, path, status", [
    (b'{"prompt":', "/v1/completions", 400), ({"prompt": "x", "model": "unheard-of"}, "/v1/completions", 404),
    ({"prompt": [1] * 20, "max_tokens": 1}, "/v1/completions", 404)])
def test_what_is_wrong_with_a_request_is_told_as_on_the_data_port(gateway, start, mode, body, path, status):
    m = start(Mock)
    envoy, picker = gateway(mode, [m.spec(",model=mock")], listed=[m.port], data=True)
    headers = {"x-request-id": "bad", "content-type": "application/json"}
    if isinstance(body, dict) and isinstance(body["prompt"], list):
        headers["x-kvroute-worker"] = "77"
    r = envoy.ask(body, headers, path)
    refused(envoy, r, "bad", status)
    port = call(picker.port, "POST", path, body, headers)
    assert (r.status, r.json()) == (port.status, port.json())
    assert picker.booked() == 0


def test_a_body_that_is_too_large_is_413(gateway, start, mode):
    envoy, picker = gateway(mode, [start(Mock)], "--max-body-size", "100KiB")
    r = envoy.complete("x" * 200000, headers={"x-request-id": "large"})
    refused(envoy, r, "large", 413)
    assert envoy.complete("x" * 1000).status == 200
    wait_for("idle", picker.idle)


def test_a_subset_of_one_is_always_that_one(gateway, start, mode):
    mocks = [start(Mock) for _ in range(3)]
    envoy, picker = gateway(mode, mocks, edits=[subset_of_header])
    c = http.client.HTTPConnection("127.0.0.1", envoy.port, timeout=60)
    for i in range(1000):
        n = i % 3
        c.request("POST", "/v1/completions", json.dumps({"prompt": [i % 7] * 40, "max_tokens": 1}),
                  {"content-type": "application/json", "x-subset": f"127.0.0.1:{mocks[n].port}"})
        r = c.getresponse()
        r.read()
        assert (r.status, r.headers["x-kvroute-worker"]) == (200, str(n + 1)), i
    c.close()
    wait_for("idle", picker.idle)


def test_a_subset_is_a_list_or_a_text_of_endpoints_or_of_addresses(gateway, start, mode):
    mocks = [start(Mock) for _ in range(3)]
    two = [f"127.0.0.1:{m.port}" for m in mocks[:2]]
    envoy, picker = gateway(mode, mocks, edits=[subset_list(two)])
    assert {envoy.complete([i] * 40).headers["x-kvroute-worker"] for i in range(12)} == {"1", "2"}
    envoy, picker = gateway(mode, mocks, edits=[subset_of_header])
    assert {envoy.complete([i] * 40, headers={"x-subset": ",".join(two)}).headers["x-kvroute-worker"] for i in range(12)} == {"1", "2"}
    assert {envoy.complete([i] * 40, headers={"x-subset": "127.0.0.1"}).headers["x-kvroute-worker"] for i in range(18)} == {"1", "2", "3"}
    wait_for("idle", picker.idle)


@pytest.mark.parametrize("endpoints", [[], ["127.0.0.1:1"], ["10.9.8.7"]])
def test_a_subset_without_a_worker_is_503_at_once(gateway, start, mode, endpoints):
    envoy, picker = gateway(mode, [start(Mock)], edits=[subset_list(endpoints)])
    refused(envoy, envoy.complete([1] * 20, headers={"x-request-id": "nobody"}, timeout=20), "nobody", 503)
    assert picker.booked() == 0


@pytest.mark.parametrize("options, status", [((), 429), (("--ext-proc-full-status", 529), 529)])
def test_a_full_class_is_told_so(gateway, start, mode, tmp_path, options, status):
    policy = tmp_path / "p.yaml"
    policy.write_text("default_policy_family: std\npolicy_classes:\n- {name: std, prefill_busy_threshold: 0, request_queue_limit_per_worker: 1}\n"
                      "- {name: eager, prefill_busy_threshold: 1000000}\n")
    mocks = slow(start)
    envoy, picker = gateway(mode, specs(mocks), "--router-policy-config", policy, *options, listed=mocks)
    held = occupy(envoy, picker)
    waiting = Asked(envoy.complete, [1] * 20)
    wait_for("queued", lambda: picker.metric("router_queue_pending_requests", policy_class="std") == 1)
    r = envoy.complete([2] * 20, headers={"x-request-id": "full"})
    refused(envoy, r, "full", status)
    assert r.headers["x-llm-d-request-dropped-reason"] == "rejected-saturated"
    eager = envoy.complete([3] * 20, headers={"x-llm-d-inference-fairness-id": "eager"})  # a class of that name does not wait
    assert eager.status == 200
    for c in held:
        c.close()
    assert waiting.wait().status == 200
    wait_for("idle", picker.idle)


def test_an_objective_is_a_priority_and_a_negative_one_is_dropped_when_all_are_overloaded(gateway, start, mode):
    mocks = slow(start)
    options = ("--objective", "interactive=10", "--objective", "batch=-1", "--active-prefill-tokens-threshold", 1000)
    envoy, picker = gateway(mode, specs(mocks), *options, listed=mocks)
    held = occupy(envoy, picker)
    for header in ("x-llm-d-inference-objective", "x-gateway-inference-objective"):
        r = envoy.complete([1] * 20, headers={header: "batch", "x-request-id": header})
        refused(envoy, r, header, 429)
        assert r.headers["x-llm-d-request-dropped-reason"] == "rejected-saturated"
    close(held, picker)
    assert envoy.complete([1] * 20, headers={"x-llm-d-inference-objective": "batch"}).status == 200


def test_a_higher_objective_goes_first(gateway, start, mode):
    mocks = slow(start)
    envoy, picker = gateway(mode, specs(mocks), *BUSY, "--objective", "interactive=10", listed=mocks)
    held, done = occupy(envoy, picker), []

    def ask(i, headers):
        assert envoy.complete([i] * 6000, max_tokens=1, headers=headers).status == 200
        done.append(i)
    waiting = []
    for i, headers in ((1, {}), (2, {}), (3, {"x-llm-d-inference-objective": "interactive"})):
        waiting.append(Asked(ask, i, headers))
        wait_for("queued", lambda: picker.metric("router_queue_pending_requests") == i)
    for w in waiting:
        w.wait()
    assert done == [3, 1, 2]
    close(held, picker)


def test_sixty_four_requests_over_a_threshold_wait_and_go(gateway, start, mode):
    """Longer than the time that a message has: the picker asks for more, and Envoy gives it, up to max_message_timeout."""
    mocks = slow(start, 2)
    edits = [lambda conf: asking(conf).update(message_timeout="0.2s")]
    envoy, picker = gateway(mode, specs(mocks), *BUSY, "--queue-timeout", 60, listed=mocks, edits=edits)
    held = occupy(envoy, picker, 2)
    waiting = [Asked(envoy.complete, [i] * 20, timeout=120) for i in range(64)]
    wait_for("queued", lambda: picker.metric("router_queue_pending_requests") == 64)
    stays("they wait", lambda: all(w.is_alive() for w in waiting), 0.6)
    for c in held:
        c.close()
    assert [w.wait().status for w in waiting] == [200] * 64
    wait_for("idle", picker.idle)


def test_envoy_that_gives_no_more_time_leaves_nobody_booked(gateway, start):
    """max_message_timeout is 0 where nobody sets it: the request fails open here, or ends with 504; what waited is out of the queue."""
    mocks = slow(start)

    def hurried(conf):
        asking(conf).update(message_timeout="0.2s", failure_mode_allow=False)
        asking(conf).pop("max_message_timeout")
    envoy, picker = gateway("buffered", specs(mocks), *BUSY, listed=mocks, edits=[hurried])
    held = occupy(envoy, picker)
    assert envoy.complete([5] * 20).status == 504
    wait_for("out of the queue", lambda: picker.metric("router_queue_pending_requests") == 0)
    assert picker.booked() == 1  # what holds the worker
    close(held, picker)


def test_the_end_of_the_wait_is_503(gateway, start, mode):
    mocks = slow(start)
    envoy, picker = gateway(mode, specs(mocks), *BUSY, "--queue-timeout", 0.5, listed=mocks)
    held = occupy(envoy, picker)
    r = envoy.complete([5] * 20, headers={"x-request-id": "late"})
    refused(envoy, r, "late", 503)
    assert r.headers["x-llm-d-request-dropped-reason"] == "rejected-ttl-expired"
    close(held, picker)
