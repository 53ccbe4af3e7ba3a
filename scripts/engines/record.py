# SPDX-License-Identifier: Apache-2.0
"""Records what real engines publish and answer, for tests/vectors/engines: record.py [NAME...] (none: all). Run it with the set-up's Python.

A file is lines of JSON, in the order in which things happened:

    {"kind": "head", "engine", "block_size", "ranks", ...}
    {"kind": "frames", "rank", "frames": [hex, hex, hex]}     one message as it was published, byte by byte
    {"kind": "request", "rank", "path", "body", "tokens",     the request; tokens: what the engine's /tokenize makes of it, if it needs that
     "status", "type", "answer",                              the engine's answer, byte by byte
     "prompt_tokens", "cached_tokens",                        its usage
     "predict"}                                               false: at that moment nobody can know (others ran beside it), or the engine
                                                              did not look into its cache
    {"kind": "ask", "question", "blocks"}                     publishers alone: a question of /overlap_scores and its answer

Before each request all events of those before it had come."""
import json
import os
import sys
import threading
import time

import zmq

sys.path[:0] = [os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/engines")]

from harness import BLOCK, ROOT, Engine, Watch, cached, call, prompt_tokens, tokens, words  # noqa: E402
import publisher_script  # noqa: E402
from test_publishers import Publisher  # noqa: E402

OUT = os.path.join(ROOT, "tests/vectors/engines")
QUIET = 0.25  # seconds without an event: the last one has come


class Recorder:
    def __init__(self, name, source, **head):
        self.engine, self.name, self.lines, self.taken = source, name, [{"kind": "head", **head}], {}
        self.ctx = zmq.Context()
        self.watch = Watch(source, self.ctx)
        time.sleep(1)  # the subscription is on its way

    def take_events(self):
        """Waits until no more come, and writes down those that came."""
        last = time.monotonic()
        while time.monotonic() - last < QUIET:
            before = sum(map(len, self.watch.frames.values()))
            if sum(map(len, self.watch.drain().frames.values())) != before:
                last = time.monotonic()
            time.sleep(0.01)
        for rank, frames in self.watch.frames.items():
            for f in frames[self.taken.get(rank, 0):]:
                self.lines.append({"kind": "frames", "rank": rank, "frames": [x.hex() for x in f]})
            self.taken[rank] = len(frames)

    def send(self, path, body, rank=0):
        return call(self.engine.port, "POST", path, body, {"X-data-parallel-rank": str(rank)} if self.engine.ranks > 1 else None, 120)

    def tokens_of(self, path, body):
        """What /tokenize says to the text of a request; None where it has none."""
        if isinstance(body.get("prompt"), list):
            return None
        if path == "/v1/completions":
            ask = {k: v for k, v in body.items() if k in ("model", "prompt", "add_special_tokens")}
        else:
            messages = body.get("messages") or [{"role": "user", "content": body["input"]}]
            if "system" in body:
                messages = [{"role": "system", "content": body["system"]}, *messages]
            ask = {"model": body["model"], "messages": messages}
        return call(self.engine.port, "POST", "/tokenize", ask).json().get("tokens")

    def request(self, path, body, rank=0, predict=True):
        self.many([(path, body)], rank, predict)

    def many(self, requests, rank=0, predict=False):
        """At the same time."""
        answers = [None] * len(requests)

        def one(i):
            answers[i] = self.send(*requests[i], rank)
        threads = [threading.Thread(target=one, args=(i,)) for i in range(len(requests))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        for (path, body), a in zip(requests, answers):
            self.lines.append({"kind": "request", "rank": rank, "path": path, "body": body, "tokens": self.tokens_of(path, body),
                               "status": a.status, "type": a.headers.get("content-type"), "answer": a.body.decode(), **told(a),
                               "predict": predict and a.status == 200 and "error" not in a.body.decode()[:200]})
        self.take_events()

    def clear(self):
        assert call(self.engine.port, "POST", "/reset_prefix_cache").status == 200
        self.take_events()

    def write(self):
        os.makedirs(OUT, exist_ok=True)
        path = os.path.join(OUT, self.name + ".jsonl")
        with open(path, "w", encoding="utf-8") as f:
            for line in self.lines:
                f.write(json.dumps({k: v for k, v in line.items() if v is not None}, separators=(",", ":")) + "\n")
        requests = [x for x in self.lines if x["kind"] == "request"]
        print(f"{path}: {os.path.getsize(path)} bytes, {len(requests)} requests, {sum(x.get('cached_tokens', 0) > 0 for x in requests)} with cached tokens")
        self.ctx.destroy(linger=0)


def told(answer):
    """Usage, when there is one."""
    try:
        return {"prompt_tokens": prompt_tokens(answer), "cached_tokens": cached(answer)}
    except (AssertionError, KeyError, TypeError, ValueError):
        return {}


def completion(prompt, **more):
    return "/v1/completions", {"model": "tiny", "prompt": prompt, "max_tokens": 2, "temperature": 0, **more}


def chat(text, **more):
    return "/v1/chat/completions", {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 2, "temperature": 0, **more}


def mixed(r):
    """What users send, one after the other, each kind at least twice."""
    t = {k: tokens(f"mixed {k}", 150) for k in ("plain", "salt", "both", "cut", "echo", "log", "early")}
    w = words("mixed words", 45)
    for n in (100, 150):
        r.request(*completion(t["plain"][:n]))
        for salt in ("s1", "s2", "ad1"):
            r.request(*completion(t["salt"][:n], cache_salt=salt))
        r.request(*completion(t["salt"][:n]))
        r.request(*completion(t["both"][:n], model="ad1"))
        r.request(*completion(t["both"][:n], model="ad1", cache_salt="s1"))
        r.request(*completion(t["both"][:n]))
        r.request(*completion(w, max_tokens=n // 2))
        r.request(*completion([w]))
        r.request(*completion(w, truncate_prompt_tokens=70))
        r.request(*completion(t["cut"][:n], truncate_prompt_tokens=90))
        r.request(*completion(t["echo"][:n], echo=True))
        r.request(*completion(t["echo"][:n - 50], echo=True, logprobs=1), predict=False)
        r.request(*completion(t["log"][:n - 50], prompt_logprobs=1), predict=False)
        r.request(*completion(t["log"][:n]))
        r.request(*chat(w))
        r.request(*chat(w, truncate_prompt_tokens=64))
        r.request(*chat(w, cache_salt="s1", stream=True, stream_options={"include_usage": True}))
        r.request("/v1/responses", {"model": "tiny", "input": w, "max_output_tokens": 2})
        r.request("/v1/messages", {"model": "tiny", "messages": [{"role": "user", "content": w}], "max_tokens": 2})
        r.request(*completion(t["early"][:n], n=2, temperature=0.7, stream=True, stream_options={"include_usage": True}), predict=False)  # tells the last one's
        r.request(*completion([5000] * 40, stream=True), predict=False)
    r.clear()
    r.request(*completion(t["plain"]), predict=False)  # the engine tells that it has cleared its cache with its next batch, not before
    r.request(*completion(t["plain"]))


def small(r):
    """A cache of 70 blocks and prompts that are more than it holds. A prompt of whole blocks leaves another copy of its last block each time,
    and so do equal answers that are computed side by side; copies are given up one by one."""
    prompts = [tokens(f"small {k}", 11 * BLOCK + 7 * (k % 2)) for k in range(8)]

    def send(*ks, **more):
        for k in ks:
            r.request(*completion(prompts[k], **more))
    send(0, 0, 0, 1, 2, 0)
    r.many([completion(prompts[4])] * 4)
    send(4, 3, 2, 4, 4, 6, 0, 0)
    r.many([completion(prompts[6][:9 * BLOCK], max_tokens=70)] * 3)
    send(6, 5, 6, 0, 1, 6)
    send(2, 2, 2, cache_salt="s")
    r.many([completion(prompts[2], cache_salt="s")] * 2 + [completion(prompts[2])] * 2)
    send(2, 0, 6)
    send(2, cache_salt="s")
    send(4, 2, 3, 0, 6, 4, 1, 2)


def hybrid(r):
    """Three layers with a window of 64 tokens beside one with full attention: several cache groups."""
    base = [tokens(f"hybrid {k}", 300) for k in range(6)]
    for n in (70, 200, 300):
        for k in range(4):
            r.request(*completion(base[k][:n]))
    for k in range(4):
        r.request(*completion(base[k][:130] + base[4][:60]))  # leaves the known way in its middle
        r.request(*completion(base[k][:40] + base[5][:40]))
    for k in range(6):
        r.request(*completion(base[k][:260], max_tokens=40))
    for k in range(6):
        r.request(*completion(base[k]))


def ranks(r):
    """Two data-parallel ranks of one engine: each has a cache and a stream of its own."""
    base = [tokens(f"ranks {k}", 140) for k in range(3)]
    for n in (80, 140):
        for k in range(3):
            for rank in (0, 1):
                if (k + rank) % 3:
                    r.request(*completion(base[k][:n]), rank=rank)
    for k in range(3):
        for rank in (0, 1):
            r.request(*completion(base[k], cache_salt="s" if k else None) if k else completion(base[k]), rank=rank)
            r.request(*completion(base[k]), rank=rank)


ENGINES = {
    "vllm-0.32.0-mixed": (mixed, {"lora": True, "blocks": 600}),
    "vllm-0.32.0-small": (small, {"blocks": 70}),
    "vllm-0.32.0-hybrid": (hybrid, {"hybrid": True, "blocks": 500}),
    "vllm-0.32.0-ranks": (ranks, {"ranks": 2, "blocks": 300}),
}


def record_engine(name):
    script, config = ENGINES[name]
    with Engine(**config) as e:
        e.wait()
        r = Recorder(name, e, engine=name[:11], block_size=e.block, ranks=e.ranks, **{k: v for k, v in config.items() if k != "ranks"})
        script(r)
        r.write()


def record_publisher(release):
    p = Publisher(release)
    try:
        r = Recorder("publisher-" + release, p, engine=release, block_size=publisher_script.BLOCK, ranks=1)
        for batch, asks in publisher_script.steps(release):
            p.publish(*batch)
            r.take_events()
            r.lines += [{"kind": "ask", "question": q, "blocks": n} for q, n in asks]
        r.write()
    finally:
        p.stop()


def main():
    for name in sys.argv[1:] or [*ENGINES, *("publisher-" + r for r in publisher_script.RELEASES)]:
        if name in ENGINES:
            record_engine(name)
        else:
            record_publisher(name.removeprefix("publisher-"))


if __name__ == "__main__":
    main()
