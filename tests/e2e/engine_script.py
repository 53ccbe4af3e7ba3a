# SPDX-License-Identifier: Apache-2.0
"""One script of requests for an engine, and what it answered and published: of vLLM (tests/engines/test_mock_against_vllm.py, which
compares and records) and of the mock (tests/e2e/test_mock_script.py, which compares with the record).

Prompts are token ids, so that the tokenizers do not matter. Texts that are generated differ: of them only the lengths are looked at. Names of
blocks are replaced by numbers in the order of their appearance. Batches are not compared, only the order of events: how many requests a
pass takes in depends on the clock."""
import http.client
import json
import random
import struct
import time

import msgpack
import zmq

BLOCK, BLOCKS, CONTEXT, SEQS = 32, 120, 2048, 16
TEXTS = ("text", "content", "delta")


class Script:
    """Runs steps against the engine at `port`, hears its events."""

    def __init__(self, ctx, port, events, timeout=120):
        self.port, self.timeout, self.names, self.out, self.fences = port, timeout, {}, [], 0
        self.sub = ctx.socket(zmq.SUB)
        self.sub.linger, self.sub.rcvhwm = 0, 0
        self.sub.subscribe(b"")
        self.sub.connect(f"tcp://127.0.0.1:{events}")
        self.rng = random.Random(7)
        self.fence_rng = random.Random(8)
        self.events = []

    def close(self):
        self.sub.close()

    def post(self, path, body):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=self.timeout)
        try:
            c.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            r = c.getresponse()
            return r.status, r.getheader("content-type") or "", r.read().decode()
        finally:
            c.close()

    def tokens(self, n):
        return [self.rng.randrange(300, 2000) for _ in range(n)]

    # ---- events

    def take(self, frames):
        """The events of a message, names replaced."""
        batch = msgpack.unpackb(frames[2], strict_map_key=False)
        assert isinstance(batch, list) and len(batch) == 3 and batch[2] == 0 and len(frames[1]) == 8
        return batch[1]

    def name(self, h):
        return None if h is None else self.names.setdefault(h, len(self.names))

    def told(self, e):
        e = dict(e)
        if "token_ids" in e:
            e["token_ids"] = len(e["token_ids"])
        if "parent_block_hash" in e:
            e["parent_block_hash"] = self.name(e["parent_block_hash"])
        if "block_hashes" in e:
            e["block_hashes"] = [self.name(h) for h in e["block_hashes"]]
        return e

    def heard(self):
        """All events up to those of a request that is made for it: what it stores is the last of them."""
        prompt = [self.fence_rng.randrange(300, 2000) for _ in range(BLOCK + 1)]
        end, got = time.monotonic() + self.timeout, []
        while time.monotonic() < end:
            status, _, text = self.post("/v1/completions", {"model": "tiny", "prompt": prompt, "max_tokens": 1})
            assert status == 200, text
            while self.sub.poll(3000):
                for e in self.take(self.sub.recv_multipart()):
                    if e["type"] == "BlockStored" and e["token_ids"] == prompt[:BLOCK]:
                        return got + [self.told(e)]
                    got.append(self.told(e))
            prompt = prompt[::-1]  # not heard: the subscription was not there yet
        raise AssertionError("the events of a request are not heard")

    # ---- steps

    def step(self, name, *requests):
        answers = [self.answer(path, *self.post(path, {"model": "tiny", **body})) for path, body in requests]
        for (_, body), a in zip(requests, answers):
            if "stream" in a and isinstance(body.get("prompt"), list) and body["prompt"] and isinstance(body["prompt"][0], list):  # whose turn it is depends on the clock
                a["stream"] = sorted({json.dumps(x, sort_keys=True) for x in a["stream"]})
        self.out.append({"step": name, "answers": answers, "events": self.heard()})

    def answer(self, _path, status, kind, text):
        if kind.startswith("text/event-stream"):
            return {"status": status, "stream": self.shapes(text), "usage": self.stream_usage(text)}
        try:
            body = json.loads(text)
        except ValueError:
            return {"status": status, "body": text}
        if status != 200:
            return {"status": status, "error": body}
        return {"status": status, "members": shape(body), "usage": usage_of(body)}

    @staticmethod
    def shapes(text):
        """The kinds of pieces in their order; the same kind in a row counts as one."""
        out = []
        for event, data in pieces(text):
            kind = [event, data if isinstance(data, str) else shape(data)]
            if isinstance(data, dict) and "error" in data:
                kind[1] = data
            if not out or out[-1] != kind:
                out.append(kind)
        return out

    @staticmethod
    def stream_usage(text):
        return [u for u in (usage_of(d) for _, d in pieces(text) if isinstance(d, dict)) if u][-1:]


def pieces(text):
    for piece in text.strip().split("\n\n"):
        lines = dict(l.split(": ", 1) for l in piece.split("\n"))
        yield lines.get("event"), lines["data"] if lines["data"] == "[DONE]" else json.loads(lines["data"])


def shape(v):
    """Members and what kind they are of; of a list its first entry; null is a kind of its own."""
    if isinstance(v, dict):
        return {k: "list" if k == "top_logprobs" and x else shape(x) for k, x in sorted(v.items())}
    if isinstance(v, list):
        return [shape(v[0])] if v else []
    return "null" if v is None else "bool" if isinstance(v, bool) else "number" if isinstance(v, (int, float)) else "text"


def usage_of(body):
    u = body.get("usage") or (body.get("response") or {}).get("usage")
    return u


def run(s):
    """The whole script. Returns what there is to compare: [{"step", "answers", "events"}]."""
    C = "/v1/completions"
    b = {"max_tokens": 2, "temperature": 0, "ignore_eos": True}
    ask = lambda prompt, **more: (C, {**b, "prompt": prompt, **more})
    s.heard()
    assert s.post("/reset_prefix_cache", {})[0] == 200
    s.names.clear()
    s.step("an empty cache")
    t = s.tokens(100)
    s.step("a prompt, and again", ask(t), ask(t))
    t = s.tokens(64)
    s.step("a prompt of whole blocks: its last block is computed again", ask(t), ask(t), ask(t))
    s.step("blocks of the answer", ask(s.tokens(60), max_tokens=40))
    t = s.tokens(70)
    s.step("a salt", ask(t, cache_salt="pepper"), ask(t), ask(t, cache_salt="pepper"), ask(t, cache_salt="salt"))
    s.step("an adapter", ask(t, model="ad1"), ask(t, model="ad1"), ask(t, model="ad1", cache_salt="pepper"))
    t = s.tokens(70)
    s.step("requests that do not read the cache", ask(t), ask(t, prompt_logprobs=0), ask(t, echo=True, logprobs=1), ask(t, echo=True),
           ask(t, logprobs=1))
    s.step("several answers", ask(s.tokens(70), n=3, temperature=1, seed=4), ask(t, n=2), ask(t, best_of=2))
    x, y = s.tokens(70), s.tokens(70)
    s.step("a list of prompts", ask([x, y, x]), ask([x]), ask([x, y], stream=True, stream_options={"include_usage": True}))
    s.step("truncated", ask(s.tokens(40) + x, truncate_prompt_tokens=70), ask(x + s.tokens(9), truncate_prompt_tokens=70, truncation_side="right"),
           ask(s.tokens(2100), truncate_prompt_tokens=-1, max_tokens=1), ask(x, truncate_prompt_tokens=-2), ask(x, truncate_prompt_tokens=5000))
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    s.step("streams", ask(x, stream=True), ask(x, **stream), ask(x, stream=True, stream_options={"include_usage": True,
                                                                                                   "continuous_usage_stats": True}))
    s.step("errors", ask(s.tokens(2100)), ask([]), ask(""), (C, b), ask(x, model="nope"), ask(x, max_tokens=0), ask(x, max_tokens=-1),
           ask(x, temperature=-1), ask(x, cache_salt=""), ask(x, prompt_logprobs=1, stream=True))
    for more in ({}, {"stream": True}):
        s.step(f"errors of the engine's core{', streamed' * bool(more)}", ask([5000000], **more), ask(x, logprobs=21, **more),
               ask([x, [5000000]], **more), ask([[]], **more),
               ask(x))  # whether the first of two prompts was begun before the second was refused depends on the clock: now it is the last one used
    churn(s, ask)
    a = [s.tokens(500) for _ in range(4)]
    s.step("more than fits: preemption", ask(a, max_tokens=600))
    s.out[-1]["events"] = []  # which request is preempted when depends on the clock
    texts(s)
    return s.out


def texts(s):
    """Requests whose prompts are texts: the mock's tokens are bytes, so numbers of blocks, and what they evict, are others."""
    L, R, M = "/v1/chat/completions", "/v1/responses", "/v1/messages"
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    at = len(s.out)
    chat = {"max_tokens": 2, "temperature": 0, "ignore_eos": True, "messages": [{"role": "user", "content": "hello"}], "cache_salt": "chat"}
    s.step("chat", (L, chat), (L, {**chat, "stream": True}), (L, {**chat, **stream}), (L, {**chat, "messages": []}))
    s.step("responses", *((R, {"input": "hello", "max_output_tokens": 2, "temperature": 0, **more}) for more in (
        {}, {"stream": True}, {"previous_response_id": "resp_nope"})))
    said = {"max_tokens": 2, "temperature": 0, "messages": [{"role": "user", "content": "hello"}]}
    s.step("messages", (M, said), (M, {**said, "stream": True}), (M, {**said, "model": "nope"}), (M + "/count_tokens", said))
    C, one = "/v1/completions", {"max_tokens": 2, "temperature": 0, "ignore_eos": True, "prompt": [11, 12, 13], "cache_salt": "numbers"}
    s.step("numbers", *((C, {**one, **more}) for more in (
        {"max_tokens": "2"}, {"max_tokens": " +1_0.0 "}, {"max_tokens": 2.0}, {"max_tokens": True}, {"max_tokens": None}, {"max_tokens": 2.5},
        {"max_tokens": "two"}, {"max_tokens": "2."}, {"max_tokens": [2]}, {"max_completion_tokens": "two"}, {"n": None}, {"n": "2", "temperature": 1.0},
        {"n": {}}, {"temperature": " 0.0"}, {"temperature": "hot"}, {"prompt_logprobs": "1"}, {"logprobs": "1"}, {"truncate_prompt_tokens": "x"},
        {"stream": "yes"}, {"stream": 1, "stream_options": {"include_usage": "on"}})))
    s.step("numbers in other forms", *((L, {**chat, **more}) for more in ({"max_completion_tokens": "3"}, {"max_completion_tokens": 2.5}, {"n": None}, {"logprobs": "yes"})),
           *((R, {"input": "hello", "temperature": 0, **more}) for more in ({"max_output_tokens": "2"}, {"max_output_tokens": 2.5},
                                                                           {"max_output_tokens": 2, "max_tokens": "two"})),
           *((M, {**said, **more}) for more in ({"max_tokens": "3"}, {"max_tokens": 2.5})))
    for step in s.out[at:]:
        step["events"] = []


def churn(s, ask):
    """Small prompts of a few families in a cache of 119 blocks: hits, copies and evictions in the engine's own order."""
    families = [s.tokens(330) for _ in range(6)]
    for part in range(4):
        asks = []
        for _ in range(25):
            n = s.rng.choice((32, 64, 64, 96, 100, 160, 200, 320))
            family = s.rng.choice(families)
            asks.append(ask(family[:n] if s.rng.random() < 0.7 else family[:32 * s.rng.randrange(1, 6)] + s.tokens(s.rng.randrange(1, 80)),
                            max_tokens=s.rng.choice((1, 2, 40)), **({"prompt_logprobs": 0} if s.rng.random() < 0.1 else {})))
        s.step(f"a small cache, part {part + 1}", *asks)


# ---- comparing ---------------------------------------------------------------------------------------------

# What the mock does not do as vLLM does, and why: (step, or "" for any; place; reason). A place is a path in an outcome, `*` stands for
# any part of it. Every other difference fails the tests. docs/guides/mock.md has this table.
_BYTES = "the mock's tokens are bytes: prompts that are texts have another length, so do the blocks of them"
KNOWN = [(step, place, _BYTES) for step in ("chat", "responses", "messages", "numbers in other forms") for place in (
    "answers/*/usage/prompt_tokens", "answers/*/usage/total_tokens", "answers/*/usage/input_tokens", "answers/*/usage/prompt_tokens_details",
    "answers/*/usage/input_tokens_details", "answers/*/usage/cache_read_input_tokens", "answers/*/usage/cache_creation_input_tokens",
    "answers/*/usage/0/prompt_tokens", "answers/*/usage/0/total_tokens", "answers/*/usage/0/input_tokens",
    "answers/*/usage/0/prompt_tokens_details", "answers/*/usage/0/input_tokens_details", "answers/*/usage/0/cache_read_input_tokens",
    "answers/*/usage/0/cache_creation_input_tokens")]
_WORDS = "what is wrong with a number the mock says in fewer words"
KNOWN += [(step, f"answers/*/error/error/{part}", _WORDS) for step in ("numbers", "numbers in other forms") for part in ("message", "param", "type")]


def differences(ours, theirs):
    """[(step, path, ours, theirs)]."""
    out = []

    def walk(step, path, x, y):
        if isinstance(x, dict) and isinstance(y, dict):
            for k in sorted(set(x) | set(y)):
                walk(step, path + [k], x.get(k, "absent"), y.get(k, "absent"))
        elif isinstance(x, list) and isinstance(y, list) and len(x) == len(y):
            for i, (p, q) in enumerate(zip(x, y)):
                walk(step, path + [str(i)], p, q)
        elif x != y:
            out.append((step, "/".join(path), x, y))
    for x, y in zip(ours, theirs):
        assert x["step"] == y["step"]
        for k in ("answers", "events"):
            walk(x["step"], [k], x[k], y[k])
    return out


def reason(step, path):
    parts = path.split("/")
    for at, place, why in KNOWN:
        pattern = place.split("/")
        if at in ("", step) and len(pattern) <= len(parts) and all(p in ("*", q) for p, q in zip(pattern, parts)):
            return why
    return None
