# SPDX-License-Identifier: Apache-2.0
"""What it costs that an engine is asked for the tokens of a text: measured and printed, not judged. KVR_SAMPLES of each length.

`alone` is the engine's /tokenize over one connection that is kept; `busy` the same while four clients compute. `through` is what a request of
text takes longer through the router than the same request as token numbers (max_tokens 1; median of the differences of pairs, each with a
prompt of its own)."""
import http.client
import json
import os
import threading
import time

from harness import Serve, post, tokens, wait_until, words

SAMPLES = int(os.environ.get("KVR_SAMPLES", "30"))
WORDS = (30, 150, 300, 550)  # three to four tokens each; the tiny model takes 2,048
LONG = (3000, 12000)  # /tokenize alone


class Kept:
    """A connection that is kept, as the router keeps its own."""

    def __init__(self, port):
        self.c = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def post(self, path, body):
        t0 = time.perf_counter()
        self.c.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        r = self.c.getresponse()
        answer = json.loads(r.read())
        assert r.status == 200, answer
        return (time.perf_counter() - t0) * 1e3, answer


def quantile(values, q):
    return sorted(values)[min(len(values) - 1, int(q * len(values)))]


def tokenize(conn, n, tag):
    times, count = [], 0
    for i in range(SAMPLES):
        ms, answer = conn.post("/tokenize", {"model": "tiny", "prompt": words(f"cost {tag} {n} {i}", n)})
        times.append(ms)
        count += answer["count"]
    return times, count // SAMPLES


def extra_through_router(serve, engine, n):
    """Pairs of requests: a text, and as many token numbers."""
    through, direct, out = Kept(serve.port), Kept(engine.port), []
    for i in range(SAMPLES):
        text = words(f"through {n} {i}", n)
        count = direct.post("/tokenize", {"model": "tiny", "prompt": text})[1]["count"]
        body = {"model": "tiny", "max_tokens": 1}
        as_text = through.post("/v1/completions", {**body, "prompt": text})[0]
        as_numbers = through.post("/v1/completions", {**body, "prompt": tokens(f"through {n} {i}", count)})[0]
        out.append(as_text - as_numbers)
    return out


def busy(engine, stop):
    def work(k):
        i = 0
        while not stop.is_set():
            post(engine, "/v1/completions", {"model": "tiny", "prompt": tokens(f"busy {k} {i}", 200), "max_tokens": 60})
            i += 1
    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    return threads


def test_what_tokenizing_costs(start, engines, capsys):
    engine = engines[0]
    serve = start(Serve, [engine], "--tokenizer", "engine")
    wait_until("the view", lambda: serve.view().get("trusted"))
    before = serve.metric("tokenize_requests_total")
    rows = {n: {"alone": tokenize(Kept(engine.port), n, "alone")} for n in WORDS + LONG}
    for n in WORDS:
        rows[n]["through"] = extra_through_router(serve, engine, n)
    assert serve.metric("tokenize_requests_total") - before == SAMPLES * len(WORDS)
    stop = threading.Event()
    workers = busy(engine, stop)
    try:
        for n in WORDS + LONG:
            rows[n]["busy"] = tokenize(Kept(engine.port), n, "busy")[0]
    finally:
        stop.set()
        for t in workers:
            t.join()
    with capsys.disabled():
        print(f"\n/tokenize of a real engine, ms ({SAMPLES} prompts of each length)")
        print("tokens    alone p50    p99    busy p50    p99    through the router p50")
        for n, row in rows.items():
            alone, count = row["alone"]
            through = f"{quantile(row['through'], .5):10.2f}" if "through" in row else ""
            print(f"{count:6d} {quantile(alone, .5):12.2f} {quantile(alone, .99):6.2f} {quantile(row['busy'], .5):11.2f} {quantile(row['busy'], .99):6.2f} {through}")
