# SPDX-License-Identifier: Apache-2.0
"""What tests of two real engines, of which one computes prompts and the other one answers, have in common."""
import http.client
import json
import random

from harness import LEASE, Serve, pieces, post, scrape, tokens, wait_until

EXPIRED = "vllm:nixl_num_kv_expired_reqs_total"
PATIENCE = 100  # seconds, and more where KVROUTE_SLOW says so: a transfer between two busy processes on two cores


def fleet_of(start, engines, protocol, *more):
    keeps, takes = engines
    keys = f",kv-protocol={protocol},kv-lease={LEASE}"
    where = f",kv-addr=127.0.0.1:{keeps.side},engine-id=pushes" if protocol == "vllm-nixl-push" else ""
    return start(Serve, [keeps.spec(f",role=prefill{keys}{where}"), takes.spec(f",role=decode{keys}")], "--disagg-release-timeout", 300,
                 "--health-interval", 600, "--queue-keepalive", 0, *more)  # engines that move a prompt may not answer for a minute on two cores


def let_go(keeps, expired):
    """Nothing is kept, and nothing was kept until a lease was over."""
    wait_until("an engine that keeps nothing", lambda: scrape(keeps, "vllm:kv_cache_usage_perc") == 0, PATIENCE)
    assert scrape(keeps, EXPIRED) == expired


def same_as_alone(s, alone, path, body):
    """The answer of both engines together, which has the text of one alone."""
    a = post(s, path, body, timeout=300)
    whole = {k: v for k, v in body.items() if k not in ("stream", "stream_options")}
    want = post(alone, path, whole, timeout=300).json()["choices"][0]
    assert a.status == 200, a.body
    assert a.headers["x-kvroute-disagg"] == "remote"
    said = [p["choices"][0] for p in pieces(a) if p["choices"]] if body.get("stream") else [a.json()["choices"][0]]
    text = lambda c: c.get("text") or (c.get("delta") or c.get("message") or {}).get("content") or ""
    assert "".join(map(text, said)) == text(want)
    return a


def bodies(seed, n):
    """Requests of all forms, whose answers are determined."""
    rng = random.Random(seed)
    for i in range(n):
        more = {"model": "tiny", "max_tokens": rng.randint(2, 12), "temperature": 0, "stream": bool(i & 1)}
        if i % 3 == 2:
            yield "/v1/chat/completions", {**more, "messages": [{"role": "user", "content": f"{rng.random()} " * rng.randint(5, 60)}]}
        else:
            yield "/v1/completions", {**more, "prompt": tokens(rng.random(), rng.randint(2, 700))}


def leave_at_any_moment(s, n=20):
    """Clients that give up after a while, or leave after some bytes."""
    rng = random.Random(4)
    for i in range(n):
        c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=rng.choice((0.01, 0.05, 0.2, 1, 3)))
        c.request("POST", "/v1/completions", json.dumps({"model": "tiny", "prompt": tokens(i, 500), "max_tokens": 40, "stream": bool(i & 1)}),
                  {"Content-Type": "application/json"})
        try:
            c.getresponse().read(rng.randint(1, 400))
        except TimeoutError:
            pass
        c.close()
    wait_until("bookings that are given back", s.idle, PATIENCE)
