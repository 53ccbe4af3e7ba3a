# SPDX-License-Identifier: Apache-2.0
"""A client that tries to make a router believe that its views of the engines' caches are wrong, beside one that behaves well.

    KVROUTE=build/release/kvroute /usr/bin/python3 tests/hostile/evidence_attack.py --seconds 600 --seed 1

Two mock engines, one with a small cache. The hostile client sends what it likes, over and over with prompts that are cached, so that answers look
as if the view were wrong: see `Attack`. No view may lose its trust, and what is predicted for the well-behaved client must be what the engine
reports. It is seeded: one seed, one sequence of requests (their order in time is the threads')."""
import argparse
import http.client
import json
import os
import random
import socket
import sys
import threading
import time

sys.path[:0] = [os.path.join(os.path.dirname(os.path.abspath(__file__)), "../e2e")]

THREADS = 4


class Attack:
    """Requests of one seed. `vocab`: token ids below are ones that the engine takes."""

    def __init__(self, seed, model, vocab=250, room=2048, adapter=None, block=16, salt_max=100, reports=True):
        self.reports = reports  # has engines report what they reuse: lower bounds are all that is left of their views then
        self.salt_max = salt_max
        self.rng, self.model, self.vocab, self.room, self.adapter, self.block = random.Random(seed), model, vocab, room, adapter, block
        self.pool = [self.fresh() for _ in range(6)]
        self.lock = threading.Lock()

    def fresh(self):
        return [self.rng.randrange(10, self.vocab) for _ in range(self.rng.randrange(self.block, self.room // 4))]

    def prompt(self):
        """Mostly one that was sent before, or a part of it, so that the view has it."""
        r = self.rng.random()
        if r < 0.2:
            self.pool[self.rng.randrange(len(self.pool))] = self.fresh()
        t = self.rng.choice(self.pool)
        return t if r < 0.8 else t[:self.rng.randrange(1, len(t))]

    def port(self, router, engines, body):
        """Some requests that have their engine report what it reuses go there behind the router's back."""
        with self.lock:
            return self.rng.choice([router, *engines]) if engines and "vllm_xargs" in body else router

    # What is done to a completion. Each returns more members of the body.
    def members(self):
        r = self.rng
        return r.choice([
            lambda: {"echo": True, "logprobs": r.randrange(3)}, lambda: {"prompt_logprobs": r.randrange(3)}, lambda: {"echo": True},
            lambda: {"logprobs": 1}, lambda: {"truncate_prompt_tokens": r.choice([-1, 1, 17, 40, 64, 100])},
            lambda: {"truncate_prompt_tokens": 50, "truncation_side": r.choice(["left", "right"])}, lambda: {"n": r.choice([2, 3])}, lambda: {"best_of": 2},
            lambda: {"use_beam_search": True, "n": 2}, lambda: {"cache_salt": r.choice(["", "s", "s" * self.salt_max, "ad1", "sha256:" + "ab" * 32, "\u00fc\u0001"])},
            lambda: {"cache_salt": ["s", "t"]}, lambda: {"cache_salt": 7}, lambda: {"nvext": {"token_data": self.prompt()}},
            lambda: {"nvext": {"cache_salt": "y"}}, lambda: {"priority": r.randrange(-5, 5)}, lambda: {"kv_transfer_params": {"do_remote_prefill": True}},
            lambda: {"kv_transfer_params": {"do_remote_decode": True}}, lambda: {"prompt_embeds": "AAAA"}, lambda: {"vllm_xargs": {"a": 1}},
            *[lambda: {"vllm_xargs": {"kv_cache_report_mode": r.choice(["full", "full", "full", "incremental", ["full"], 1])}}] * (3 * self.reports),
            lambda: {"frobnicate": r.random()}, lambda: {"prompt": [self.prompt(), self.prompt()]}, lambda: {"prompt": [self.prompt()] * 3},
            lambda: {"prompt": [10**9] * 200}, lambda: {"prompt": [self.vocab + 10**7] + self.prompt()}, lambda: {"prompt": [r.randrange(10, self.vocab)] * self.room * 4},
            lambda: {"prompt": []}, lambda: {"prompt": "text " * r.randrange(1, 60)}, lambda: {"prompt": "text " * 40, "add_special_tokens": r.random() < 0.5},
            lambda: {"model": self.adapter or "nobody"}, lambda: {"model": "nobody"}, lambda: {"max_tokens": 0}, lambda: {"max_tokens": self.room},
            lambda: {"min_tokens": 9}, lambda: {"stream_options": {"include_usage": False}}, lambda: {"stream_options": {"continuous_usage_stats": True, "include_usage": True}},
            lambda: {"return_token_ids": True}, lambda: {"logit_bias": {"1": 100}}, lambda: {"ignore_eos": True}, lambda: {"stop": ["a"]}, lambda: {"suffix": "x"},
            lambda: {"data_parallel_rank": 0}, lambda: {"request_id": "same"}, lambda: {"lora_path": "x"}, lambda: {"input_ids": self.prompt()}, lambda: {}])()

    def chat(self):
        r = self.rng
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
        text = "say it again and again. " * r.randrange(1, 20)
        messages = [{"role": r.choice(["user", "system", "developer", "tool"]), "content": r.choice([text, [{"type": "text", "text": text}],
                                                                                                    [{"type": "text", "text": text}, image]])}]
        return {"model": self.model, "messages": messages, "max_tokens": 2, **r.choice([{}, {"echo": True}, {"continue_final_message": True, "add_generation_prompt": False},
                {"chat_template_kwargs": {"a": 1}}, {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": r.choice(["none", "auto"])},
                {"documents": [{"text": "d"}]}, {"prompt_logprobs": 1}, {"cache_salt": "s"}, {"reasoning_effort": "low"}, {"n": 2}])}

    def request(self):
        """(path, body, leave): leave None: the answer is read; else after how many bytes of it."""
        with self.lock:
            r = self.rng
            leave = r.choice([None, None, None, None, 0, 1, 300])
            kind = r.random()
            stream = {"stream": r.random() < 0.5}
            if stream["stream"] and r.random() < 0.7:
                stream["stream_options"] = {"include_usage": True}
            if kind < 0.75:
                return "/v1/completions", {"model": self.model, "prompt": self.prompt(), "max_tokens": r.choice([1, 2, 40]), **stream, **self.members()}, leave
            if kind < 0.87:
                return "/v1/chat/completions", {**self.chat(), **stream}, leave
            text = "what was it that we said? " * r.randrange(1, 30)
            return r.choice([("/v1/responses", {"model": self.model, "input": text, "max_output_tokens": 16, **stream}, leave),
                             ("/v1/messages", {"model": self.model, "messages": [{"role": "user", "content": text}], "max_tokens": 3, **stream}, leave),
                             ("/tokenize", {"model": self.model, "prompt": text}, leave), ("/v1/embeddings", {"model": self.model, "input": text}, leave),
                             ("/v1/completions/render", {"model": self.model, "prompt": text}, leave),
                             ("/v1/completions", {"model": self.model, "prompt": self.prompt(), "prompt_logprobs": 0, "max_tokens": 1}, leave)])


def send(port, path, body, leave, timeout):
    data = json.dumps(body).encode()
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=timeout) as c:
            c.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" %
                      (path.encode(), len(data)) + data)
            got = 0
            while leave is None or got < leave:
                d = c.recv(65536)
                if not d:
                    return
                got += len(d)
    except OSError:
        pass


def ask(port, method, path, body=None, headers=None, timeout=120):
    """(status, headers, answer as JSON or bytes)"""
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        c.request(method, path, body if body is None else json.dumps(body), {"Content-Type": "application/json", **(headers or {})})
        r = c.getresponse()
        data, headers = r.read(), {k.lower(): v for k, v in r.getheaders()}
        return r.status, headers, json.loads(data) if headers.get("content-type", "").startswith("application/json") else data
    finally:
        c.close()


class Honest:
    """Conversations that grow, on one worker: what is predicted must be what the engine reports."""

    def __init__(self, port, admin, seed, model, worker, block, vocab=250, room=1024, more=None):
        self.port, self.admin, self.rng, self.model, self.worker = port, admin, random.Random(seed), model, worker
        self.block, self.vocab, self.room = block, vocab, room
        self.n, self.reused, self.wrong, self.refused, self.tokens, self.more = 0, 0, [], [], [], more or {}

    def ask(self):
        if len(self.tokens) > self.room:
            self.tokens = []
        self.tokens = self.tokens + [self.rng.randrange(10, self.vocab) for _ in range(self.block * 2 + self.rng.randrange(self.block))]
        status, headers, answer = ask(self.port, "POST", "/v1/completions", {"model": self.model, "prompt": self.tokens, "max_tokens": 1, **self.more},
                                      {"x-kvroute-worker": str(self.worker)})
        self.n += 1
        if status != 200:
            self.refused.append((status, answer))
            return
        predicted = min(int(headers["x-kvroute-overlap-blocks"]), (len(self.tokens) - 1) // self.block) * self.block
        cached = (answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        self.reused += cached
        if predicted != cached:
            self.wrong.append((len(self.tokens), predicted, cached, headers["x-kvroute-reason"]))

    def settle(self):
        """Waits until the view has all of the prompt: the events of its answer have come."""
        until = time.monotonic() + 60
        while time.monotonic() < until:
            status, _, answer = ask(self.admin, "POST", "/overlap_scores", {"token_ids": self.tokens, "model_name": self.model})
            assert status == 200, answer
            if max((w["device_blocks"] for w in answer["workers"] if w["worker_id"] == self.worker), default=0) >= len(self.tokens) // self.block:
                return
            time.sleep(0.01)
        raise AssertionError("the events of the honest client's prompt did not come")


def distrusted(admin):
    return {(w["worker_id"], v["dp_rank"], v["reason"]) for w in ask(admin, "GET", "/workers")[2] for v in w["views"] if not v["trusted"]}


def views(admin):
    return [f'{w["worker_id"]}/{v["dp_rank"]} {v["view"]} {v["reason"]}' for w in ask(admin, "GET", "/workers")[2] for v in w["views"]] + [
        line for line in ask(admin, "GET", "/metrics")[2].decode().splitlines() if "reason=\"copy_" in line]


def evidence(admin):
    lines = ask(admin, "GET", "/metrics")[2].decode().splitlines()
    return {l.split("{")[1].split("}")[0]: int(float(l.split()[-1])) for l in lines if l.startswith("kvroute_view_evidence_total{")}


def run(attack, honest, seconds, timeout=60, say=print, engines=(), threads=THREADS):
    """engines: ports at which the hostile client reaches the engines themselves, as through another router. Returns: what was lost: views that
    were not trusted, with their reasons."""
    stop, sent, lost = threading.Event(), [0] * threads, set()

    def hostile(i):
        while not stop.is_set():
            path, body, leave = attack.request()
            send(attack.port(honest.port, engines, body), path, body, leave, timeout)
            sent[i] += 1
    running = [threading.Thread(target=hostile, args=(i,), daemon=True) for i in range(threads)]
    for t in running:
        t.start()
    t0, told = time.monotonic(), 0
    while time.monotonic() - t0 < seconds:
        honest.ask()
        if not honest.refused:
            honest.settle()
        lost |= distrusted(honest.admin)
        if time.monotonic() - t0 > told:
            told += 10
            say(f"{time.monotonic() - t0:5.0f} s: {sum(sent)} hostile, {honest.n} honest, {len(honest.wrong)} predicted wrong, lost {lost or 'none'}")
    stop.set()
    for t in running:
        t.join(2 * timeout)
    say(f"{sum(sent)} hostile requests, {honest.n} honest ones with {honest.reused} tokens reused, {len(honest.wrong)} predicted wrong, lost {lost or 'none'}")
    say(json.dumps(evidence(honest.admin)))
    say(json.dumps(views(honest.admin)))
    return lost


def main():
    from conftest import Mock, Serve
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--seconds", type=float, default=600)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--small", type=int, default=140, help="blocks of the second engine's cache")
    a = p.parse_args()
    made = [Mock("--num-gpu-blocks", "16384", "--max-model-len", "2048", "--vocab-size", "256"),
            Mock("--num-gpu-blocks", str(a.small), "--max-model-len", "2048", "--vocab-size", "256")]
    serve = Serve(made, "--tokenizer", "engine")
    honest = Honest(serve.port, serve.admin, a.seed + 1, "mock", 1, 16)
    try:
        lost = run(Attack(a.seed, "mock"), honest, a.seconds, say=lambda text: print(text, flush=True), engines=[m.port for m in made])
    finally:
        for m in [serve, *made]:
            m.stop()
    ok = not lost and not honest.wrong and not honest.refused and honest.reused
    print("held" if ok else f"lost: {lost}, wrong: {honest.wrong[:5]}, refused: {honest.refused[:5]}")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
