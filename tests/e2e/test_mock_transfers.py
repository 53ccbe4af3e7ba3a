# SPDX-License-Identifier: Apache-2.0
"""KV transfers between mocks: one computes a prompt and keeps its blocks, another one fetches them and generates (docs/guides/mock.md)."""
import errno
import http.client
import json
import random
import resource
import socket
import subprocess
import time

import pytest

from conftest import BINARY, Answer, Mock, call, free_ports, read_sse, wait_for

KEEP = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None, "remote_host": None,
        "remote_port": None}
PROMPT = "a prompt of some blocks, " * 8


class Side(Mock):
    """A mock with transfers."""

    def __init__(self, *extra, protocol="vllm-nixl", **kw):
        super().__init__("--kv-protocol", protocol, *extra, **kw)

    def kv(self):
        return call(self.port, "GET", "/mock/kv").json()

    def released(self):
        return {how: n for how, n in self.kv()["released"].items() if n}

    def used(self):
        return self.metric("vllm:kv_cache_usage_perc")

    def complete(self, prompt=PROMPT, headers=None, **body):
        return call(self.port, "POST", "/v1/completions", {"prompt": prompt, "max_tokens": 8, **body}, headers)

    def keep(self, prompt=PROMPT, **body):
        """Computes the prompt. Returns its hand-off."""
        r = self.complete(prompt, **{"max_tokens": 1, "kv_transfer_params": KEEP, **body})
        assert r.status == 200, r.body
        return r.json()["kv_transfer_params"]

    def fetch(self, params, prompt=PROMPT, **body):
        return self.complete(prompt, kv_transfer_params=params, **body)


class Leaving:
    """A request whose client goes away before its end."""

    def __init__(self, m, prompt=PROMPT, **body):
        self.c = http.client.HTTPConnection("127.0.0.1", m.port)
        self.c.request("POST", "/v1/completions", json.dumps({"prompt": prompt, "max_tokens": 8, **body}))

    def leave(self):
        self.c.sock.close()
        self.c.close()


def clean(*sides, bad_pulls=0, expired=0):
    """Nothing is kept or used by anybody, and nobody read what was not theirs."""
    for m in sides:
        wait_for("nothing kept", lambda: (kv := m.kv())["held"] == [] and kv["waiting_rooms"] == 0 and m.used() == 0)
        assert m.metric("mock_kv_held_blocks") == 0
    assert sum(m.kv()["bad_pulls"] for m in sides) == sum(m.metric("mock_kv_bad_pulls_total") for m in sides) == bad_pulls
    assert sum(m.kv()["released"]["expired"] for m in sides) == expired


def text(r):
    assert r.status == 200, r.body
    return r.json()["choices"][0]["text"]


def cached(r):
    return r.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


# ---- options ---------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("option, value, says", [
    ("--role", "both2", "both|prefill|decode"), ("--kv-protocol", "nixl", "vllm-nixl|"), ("--kv-load-failure-policy", "retry", "fail|recompute"),
    ("--kv-lease", "0", "a number from 0.01"), ("--kv-side-port", "65536", "from 0 to 65535")])
def test_a_bad_option_is_named_with_what_is_allowed(option, value, says):
    r = subprocess.run([BINARY, "mock", option, value], capture_output=True, text=True, timeout=60)
    assert r.returncode == 2 and option.removeprefix("--") in r.stderr and value in r.stderr and says in r.stderr, r.stderr


def test_a_side_port_that_is_taken_is_named():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        r = subprocess.run([BINARY, "mock", "--port", str(free_ports()), "--kv-protocol", "vllm-nixl", "--kv-side-port", str(port)],
                           capture_output=True, text=True, timeout=60)
    assert r.returncode == 1 and "--kv-side-port" in r.stderr and str(port) in r.stderr, r.stderr


def test_without_a_protocol_transfers_are_not_spoken_of(start):
    m = start(Side, "--role", "decode", protocol="none")
    r = m.complete(kv_transfer_params=KEEP)
    assert text(r) and r.json()["kv_transfer_params"] is None
    kv = m.kv()
    assert (kv["role"], kv["protocol"], kv["held"]) == ("decode", "none", [])
    clean(m)


# ---- keeping ---------------------------------------------------------------------------------------------------------------------

def test_an_answer_hands_its_blocks_on(start):
    p = start(Side)
    tokens = list(range(1000, 1040))
    r = p.complete(tokens, {"X-Request-Id": "req1"}, max_tokens=1, kv_transfer_params=KEEP)
    params = r.json()["kv_transfer_params"]
    blocks, name = params["remote_block_ids"], params["remote_request_id"]
    assert len(blocks) == 1 and len(set(blocks[0])) == 3 and all(isinstance(b, int) and b > 0 for b in blocks[0])
    assert name.startswith("cmpl-req1-0-") and len(name) == len("cmpl-req1-0-") + 8
    assert len(params["remote_engine_id"]) == 32 and params["remote_port"] > 0
    assert {k: v for k, v in params.items() if k not in ("remote_block_ids", "remote_request_id", "remote_engine_id", "remote_port")} == {
        "do_remote_prefill": True, "do_remote_decode": False, "remote_host": "127.0.0.1", "tp_size": 1, "dcp_size": 1, "pp_size": 1,
        "remote_num_tokens": 40, "remote_blocks_expiry_time": None, "transfer_mode": "pull"}
    held = p.kv()["held"]
    assert [(h["request_id"], h["blocks"]) for h in held] == [(name, 3)] and held[0]["age_s"] >= 0
    assert p.metric("mock_kv_held_blocks") == 3
    chat = call(p.port, "POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1,
                                                         "kv_transfer_params": KEEP})
    assert chat.json()["kv_transfer_params"]["remote_request_id"].startswith("chatcmpl-")


def test_an_answer_to_others_hands_nothing_on(start):
    p = start(Side)
    for params in (None, {}, {"do_remote_decode": False}, "x", [1]):
        assert p.complete(kv_transfer_params=params).json()["kv_transfer_params"] is None
    clean(p)


def test_kept_blocks_starve_an_engine_until_their_lease_ends(start):
    p = start(Side, "--num-gpu-blocks", 9, "--kv-lease", 2)
    p.keep(list(range(100)))
    assert p.used() == 7 / 8
    r = p.complete(list(range(1000, 1100)), max_tokens=1)
    assert r.status == 200 and p.released() == {"expired": 1}
    clean(p, expired=1)


def test_each_rank_keeps_its_own(start):
    p = start(Side, dp=2)
    a, b = (p.complete(headers={"X-data-parallel-rank": str(r)}, max_tokens=1, kv_transfer_params=KEEP).json()["kv_transfer_params"]
            for r in range(2))
    assert a["remote_engine_id"].endswith("_dp0") and b["remote_engine_id"].endswith("_dp1") and a["remote_port"] != b["remote_port"]
    d = start(Side)
    assert text(d.fetch(b)) == text(p.complete())
    assert [h["request_id"] for h in p.kv()["held"]] == [a["remote_request_id"]]
    assert d.fetch({**a, "remote_port": b["remote_port"]}).status == 500  # an engine answers for itself only
    text(d.fetch(a))
    clean(p, d)


def test_a_client_that_leaves_before_the_end_leaves_nothing(start):
    p = start(Side, speedup=0.01)
    gone = Leaving(p, max_tokens=1, kv_transfer_params=KEEP)
    wait_for("it computes", lambda: p.metric("vllm:num_requests_running") == 1)
    gone.leave()
    wait_for("abort", lambda: p.released() == {"aborted": 1})
    clean(p)


# ---- fetching --------------------------------------------------------------------------------------------------------------------

def test_a_prompt_is_computed_here_and_generated_there(start):
    p, d = start(Side), start(Side)
    params = p.keep()
    r = d.fetch(params)
    assert text(r) == text(p.complete()) and r.json()["kv_transfer_params"] is None
    assert cached(r) == len(PROMPT) - 1
    assert p.released() == {"pulled": 1} and d.released() == {}
    assert d.metric("vllm:prefix_cache_hits_total") == 0  # they are no hits of its own cache
    clean(p, d)


def test_pairs_generate_what_one_engine_does(start):
    p, d, alone = start(Side), start(Side), start(Mock)
    rng = random.Random(5)
    for i in range(100):
        prompt = [rng.randrange(1, 256) for _ in range(rng.choice((1, 15, 16, 17, 31, 32, 33, 100, 300)))] if i % 2 else \
            "".join(rng.choice("abcdef ") for _ in range(rng.randrange(1, 400)))
        one = call(alone.port, "POST", "/v1/completions", {"prompt": prompt, "max_tokens": 8})
        r = d.fetch(p.keep(prompt), prompt)
        assert text(r) == text(one) and cached(r) == len(prompt) - 1, prompt
    assert p.released() == {"pulled": 100}
    clean(p, d)


def test_a_stream_is_generated_from_fetched_blocks(start):
    p, d = start(Side), start(Side)
    c, r = read_sse(d.port, {"prompt": PROMPT, "max_tokens": 8, "stream": True, "stream_options": {"include_usage": True},
                             "kv_transfer_params": p.keep()})
    events = [json.loads(l[6:]) for l in r.read().decode().splitlines() if l.startswith("data: {")]
    c.close()
    assert "".join(e["choices"][0]["text"] for e in events if e["choices"]) == text(p.complete())
    assert events[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] == len(PROMPT) - 1
    clean(p, d)


def test_fetched_blocks_are_cached_and_told(start, zctx):
    from test_mock import replay
    p, d = start(Side), start(Side)
    prompt = list(range(500, 570))
    text(d.fetch(p.keep(prompt), prompt))
    told = [e for _, batch in replay(zctx, d.replay, 0)[0] for e in batch[1] if e["type"] == "BlockStored"]
    assert [t for e in told for t in e["token_ids"]][:64] == prompt[:64]
    assert cached(d.complete(prompt)) == 64
    clean(p, d)


def test_a_long_prompt_is_fetched(start):
    p, d = start(Side, speedup=1e6), start(Side, speedup=1e6)
    prompt = [i % 50000 for i in range(200000)]
    params = p.keep(prompt)
    assert len(params["remote_block_ids"][0]) == 12500
    assert cached(d.fetch(params, prompt)) == 199999
    clean(p, d)


def test_older_hand_offs_are_read(start):
    p, d = start(Side), start(Side)
    params = p.keep()
    old = {k: params[k] for k in ("do_remote_prefill", "remote_engine_id", "remote_request_id", "remote_host", "remote_port")}
    text(d.fetch({**old, "remote_block_ids": params["remote_block_ids"][0], "a_new_member": [1, {"x": None}]}))
    clean(p, d)


def test_the_chats_of_both_sides_have_one_prompt(start):
    p, d = start(Side), start(Side)
    chat = {"messages": [{"role": "system", "content": "short"}, {"role": "user", "content": PROMPT}], "max_tokens": 6}
    params = call(p.port, "POST", "/v1/chat/completions", {**chat, "max_tokens": 1, "kv_transfer_params": KEEP}).json()["kv_transfer_params"]
    r = call(d.port, "POST", "/v1/chat/completions", {**chat, "kv_transfer_params": params})
    assert r.status == 200 and cached(r) == r.json()["usage"]["prompt_tokens"] - 1
    assert r.json()["choices"][0]["message"]["content"] == call(p.port, "POST", "/v1/chat/completions", chat).json()["choices"][0]["message"]["content"]
    clean(p, d)


def test_heartbeats_keep_what_is_waited_for(start):
    p, d = start(Side, "--kv-lease", 1), start(Side, "--kv-heartbeat", 0.1, "--kv-latency", 3)
    r = d.fetch(p.keep())
    assert text(r) and cached(r) == len(PROMPT) - 1 and p.released() == {"pulled": 1}
    clean(p, d)


def test_bytes_take_their_time(start):
    p = start(Side)
    d = start(Side, "--kv-bandwidth", 1e6, "--kv-bytes-per-token", 1000000)  # a second for each token
    waiting = Leaving(d, "abc", kv_transfer_params=p.keep("abc"))
    wait_for("it waits for its KV", lambda: d.metric("vllm:num_requests_waiting") == 1 and d.used() > 0)
    assert len(p.kv()["held"]) == 1
    assert waiting.c.getresponse().status == 200
    assert p.released() == {"pulled": 1}
    clean(p, d)


# ---- what goes wrong -------------------------------------------------------------------------------------------------------------

def test_a_client_that_leaves_before_the_pull_is_told_to_the_keeper(start):
    p, d = start(Side), start(Side, "--kv-latency", 1000)
    gone = Leaving(d, kv_transfer_params=p.keep())
    wait_for("it waits for its KV", lambda: d.metric("vllm:num_requests_waiting") == 1)
    gone.leave()
    wait_for("release", lambda: p.released() == {"notified": 1})
    clean(p, d)


def test_a_client_that_leaves_while_its_request_is_queued_is_told_to_the_keeper(start):
    p, d = start(Side), start(Side, "--num-gpu-blocks", 20)
    blocker = d.keep(list(range(200)))
    gone = Leaving(d, kv_transfer_params=p.keep())
    wait_for("it waits for room", lambda: d.metric("vllm:num_requests_waiting") == 1)
    gone.leave()
    wait_for("release", lambda: p.released() == {"notified": 1})
    text(p.fetch(blocker, list(range(200))))
    clean(p, d)


def test_a_client_that_leaves_while_it_generates_has_pulled(start):
    p, d = start(Side), start(Side, speedup=0.05)
    c, r = read_sse(d.port, {"prompt": PROMPT, "max_tokens": 1000, "stream": True, "kv_transfer_params": p.keep()})
    assert r.read(10)
    r.close()
    c.close()
    wait_for("abort", lambda: d.used() == 0)
    assert p.released() == {"pulled": 1}
    clean(p, d)


def test_a_request_that_is_refused_is_told_to_the_keeper(start):
    p, d = start(Side), start(Side)
    for n, body in enumerate(({"model": "other"}, {"max_tokens": 0}, {"temperature": -1}, {"prompt": []}, {"prompt": "a" * 300000})):
        assert d.complete(**{"kv_transfer_params": p.keep(), **body}).status in (400, 404), body
        wait_for("release", lambda: p.released() == {"notified": n + 1})
        clean(p, d)


def test_a_hand_off_that_was_used_gives_marked_garbage(start):
    p, d = start(Side), start(Side)
    params = p.keep()
    text(d.fetch(params))
    r = d.fetch(params)
    assert text(r) == "#" * 8
    clean(p, d, bad_pulls=1)


def test_a_hand_off_that_has_expired_gives_marked_garbage(start):
    p, d = start(Side, "--kv-lease", 0.1), start(Side)
    params = p.keep()
    wait_for("expiry", lambda: p.released() == {"expired": 1})
    assert text(d.fetch(params)) == "#" * 8
    clean(p, d, bad_pulls=1, expired=1)


def test_a_lease_that_ends_while_blocks_are_read_gives_marked_garbage(start):
    p, d = start(Side, "--kv-lease", 0.3), start(Side, "--kv-latency", 1.5)
    assert text(d.fetch(p.keep())) == "#" * 8
    clean(p, d, bad_pulls=1, expired=1)


def test_other_blocks_than_those_that_are_kept_give_marked_garbage(start):
    p, d = start(Side), start(Side)
    params = p.keep()
    params["remote_block_ids"][0].reverse()
    assert text(d.fetch(params)) == "#" * 8
    assert p.released() == {"pulled": 1}
    clean(p, d, bad_pulls=1)


def test_another_prompts_blocks_are_refused(start):
    p, d = start(Side), start(Side, "--kv-load-failure-policy", "recompute")
    assert d.fetch(p.keep("one prompt"), "another prompt").status == 500
    assert d.fetch(p.keep(PROMPT, cache_salt="x"), PROMPT).status == 500
    wait_for("release", lambda: p.kv()["held"] and len(p.kv()["held"]) == 2)  # nobody has told: their leases end
    text(d.fetch(p.keep(PROMPT, cache_salt="x"), PROMPT, cache_salt="x"))
    assert d.kv()["bad_pulls"] == 0 and p.released() == {"pulled": 1}


def broken(params, how, dead):
    return {"engine": {**params, "remote_engine_id": "f" * 32}, "refused": {**params, "remote_port": dead},
            "no address": {**params, "remote_host": "no.such.host"}}[how]


@pytest.mark.parametrize("how", ["engine", "refused", "no address", "another block size"])
def test_kv_that_does_not_come_fails_or_is_computed(start, how):
    sizes = ("--block-size", 32) if how == "another block size" else ()
    p, fails, computes = start(Side, "--kv-lease", 3), start(Side, *sizes), start(Side, "--kv-load-failure-policy", "recompute", *sizes)
    dead, params = free_ports(), p.keep()
    params = params if sizes else broken(params, how, dead)
    r = fails.fetch(params)
    assert r.status == 500 and r.json()["error"]["type"] == "InternalServerError"
    c, r = read_sse(fails.port, {"prompt": PROMPT, "max_tokens": 8, "stream": True, "kv_transfer_params": params})
    assert r.status == 200 and b'data: {"error"' in r.read()  # a stream has begun
    c.close()
    r = computes.fetch(params)
    assert text(r) == text(p.complete()) and cached(r) == 0
    wait_for("expiry", lambda: p.released() == {"expired": 1})
    clean(p, fails, computes, expired=1)


def test_a_keeper_that_dies_while_it_is_read_is_a_failed_load(start):
    p, d = start(Side), start(Side, "--kv-latency", 1000)
    waiting = Leaving(d, kv_transfer_params=p.keep())
    wait_for("it waits for its KV", lambda: d.metric("vllm:num_requests_waiting") == 1)
    p.kill()
    assert waiting.c.getresponse().status == 500
    clean(d)


def test_a_restarted_keeper_is_another_engine(start):
    port = free_ports()
    p, d = start(Side, "--kv-side-port", port), start(Side)
    params = p.keep()
    p.stop()
    start(Side, "--kv-side-port", port)
    assert d.fetch(params).status == 500
    clean(d)


def test_several_answers_cannot_share_blocks(start):
    p, d = start(Side), start(Side)
    assert p.complete(kv_transfer_params=KEEP, n=2).status == 500
    assert d.fetch(p.keep(), n=2).status == 500
    assert d.fetch(p.keep(), ["one", "two"]).status == 500
    wait_for("release", lambda: p.released() == {"notified": 2})
    clean(p, d)


def test_prompt_logprobs_of_fetched_blocks_reset_the_connection(start):
    p, d = start(Side, "--kv-lease", 1), start(Side)
    params = p.keep()
    for body in ({"prompt_logprobs": 1}, {"echo": True, "logprobs": 1}):
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            d.fetch(params, **body)
    assert p.complete(prompt_logprobs=1, max_tokens=1, kv_transfer_params=KEEP).status == 200
    wait_for("expiry", lambda: p.released() == {"expired": 2})
    clean(p, d, expired=2)


def test_a_hand_off_that_lacks_something_never_ends_well(start):
    p, d = start(Side), start(Side)
    params = p.keep()
    r = d.fetch({k: v for k, v in params.items() if k != "remote_block_ids"})
    assert r.status == 500 and "Internal server error" in r.body.decode()
    for member in ("remote_engine_id", "remote_request_id", "remote_host", "remote_port"):
        gone = Leaving(d, kv_transfer_params={k: v for k, v in params.items() if k != member})
        wait_for("it waits", lambda: d.metric("vllm:num_requests_waiting") == 1)
        wait_for("a warning", lambda: f"kv_transfer_params has no {member}" in d.text())
        gone.leave()
        wait_for("it left", lambda: d.metric("vllm:num_requests_waiting") == 0)
    text(d.fetch(params))
    clean(p, d)


# ---- both legs at once -----------------------------------------------------------------------------------------------------------

class Boot(Side):
    """A side of a transfer whose legs are sent at once."""

    def __init__(self, role, *extra, protocol="sglang", **kw):
        self.boot = free_ports()
        super().__init__("--role", role, "--bootstrap-port", self.boot, *extra, protocol=protocol, **kw)


class Legs:
    """Two requests that are sent one right after the other; their answers."""

    def __init__(self, *legs):
        self.open = []
        for m, body, *path in legs:
            c = http.client.HTTPConnection("127.0.0.1", m.port, timeout=90)
            c.request("POST", path[0] if path else "/v1/completions", json.dumps({"prompt": PROMPT, "max_tokens": 8, **body}))
            self.open.append(c)

    def answers(self):
        got = []
        for c in self.open:
            r = c.getresponse()
            got.append(Answer(r.status, {}, r.read()))
            c.close()
        return got

    def leave(self, i):
        self.open[i].sock.close()
        self.open[i].close()


def room(p, number, **more):
    return {"bootstrap_host": "127.0.0.1", "bootstrap_port": p.boot, "bootstrap_room": number, **more}


def waiting(m):
    return m.kv()["waiting_rooms"]


@pytest.mark.parametrize("first", ["prefill", "decode"])
def test_both_sides_meet_in_a_room_whoever_comes_first(start, first):
    p, d, alone = start(Boot, "prefill"), start(Boot, "decode"), start(Mock)
    one, other = ((p, d) if first == "prefill" else (d, p))
    big = 4611686018427387907
    a = Legs((one, room(p, big)))
    wait_for("it waits", lambda: waiting(p) == 1)
    assert p.metric("mock_kv_waiting_rooms") == 1
    b = Legs((other, room(p, big)))
    answers = {m: l.answers()[0] for m, l in ((one, a), (other, b))}
    assert text(answers[d]) == text(call(alone.port, "POST", "/v1/completions", {"prompt": PROMPT, "max_tokens": 8}))
    assert len(text(answers[p])) == 1 and cached(answers[d]) == cached(answers[p]) == 0  # what P has found
    r = Legs((p, room(p, big)), (d, room(p, big))).answers()[1]  # free again
    assert cached(r) == (len(PROMPT) - 1) // 16 * 16
    assert p.released() == {"pulled": 2}
    clean(p, d)


def test_a_hundred_pairs_meet_at_once(start):
    p, d, alone = start(Boot, "prefill"), start(Boot, "decode"), start(Mock)
    rng = random.Random(3)
    prompts = ["".join(rng.choice("abcdef ") for _ in range(rng.randrange(1, 300))) for _ in range(100)]
    pairs = []
    for i, prompt in enumerate(prompts):
        legs = [(m, room(p, 1000 + i, prompt=prompt)) for m in (p, d)]
        pairs.append(Legs(*(legs if i % 2 else legs[::-1])))
    for i, (prompt, pair) in enumerate(zip(prompts, pairs)):
        got = pair.answers()
        assert text(got[i % 2]) == text(call(alone.port, "POST", "/v1/completions", {"prompt": prompt, "max_tokens": 8})), prompt
    assert p.released() == {"pulled": 100}
    clean(p, d)


def test_rooms_belong_to_ranks(start):
    p, d = start(Boot, "prefill", dp=3), start(Boot, "decode")
    for number, more in ((7, {}), (8, {"routed_dp_rank": 2}), (9, {"routed_dp_rank": 0, "disagg_prefill_dp_rank": 0})):
        theirs = {k: v for k, v in more.items() if k == "routed_dp_rank"}
        its = {k: v for k, v in more.items() if k == "disagg_prefill_dp_rank"}
        assert [r.status for r in Legs((p, room(p, number, **theirs)), (d, room(p, number, **its))).answers()] == [200, 200]
    r = p.complete(**room(p, 7, routed_dp_rank=2))
    assert r.status == 400 and "is not of rank 2" in r.json()["error"]["message"]
    assert p.complete(headers={"X-data-parallel-rank": "0"}, **room(p, 7)).status == 400
    clean(p, d)


def test_a_batch_has_a_room_for_each_sequence(start):
    p, d = start(Boot, "prefill"), start(Boot, "decode")
    batch = {"bootstrap_host": ["127.0.0.1"] * 3, "bootstrap_port": [p.boot] * 3, "bootstrap_room": [5, 6, 7]}
    for body in ({"prompt": ["one", "two, " * 20, "three"]}, {"n": 3}):
        answers = Legs((p, {**batch, **body}), (d, {**batch, **body})).answers()
        assert [len(a.json()["choices"]) for a in answers] == [3, 3], answers[1].body
    assert p.released() == {"pulled": 6}
    for m in (p, d):
        assert m.complete(**room(p, 5), n=3).status == 400 and m.complete(**batch).status == 400
    clean(p, d)


def test_without_a_room_a_request_is_refused(start):
    p, d = start(Boot, "prefill"), start(Boot, "decode")
    for body in ({}, *({"bootstrap_room": room} for room in (None, -1, "7", 2 ** 63, 7.5, [], {}))):
        for m in (p, d):
            r = m.complete(**body)
            assert r.status == 400 and "bootstrap_room" in r.json()["error"]["message"], body
    assert d.complete(bootstrap_room=7).status == 400
    assert d.complete(bootstrap_room=7, bootstrap_host="127.0.0.1", bootstrap_port=70000).status == 400
    clean(p, d)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_room_that_is_in_use_ends_the_engine(start, role):
    p, d = start(Boot, "prefill"), start(Boot, "decode")
    m = p if role == "prefill" else d
    m.expect = 1
    first = Legs((m, room(p, 7)))
    wait_for("it waits", lambda: waiting(p) == 1)
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        m.complete(**room(p, 7))
    m.p.wait(30)
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        first.answers()
    assert "a bootstrap room is in use already" in m.text()


@pytest.mark.parametrize("who, how", [("prefill", "leave"), ("decode", "leave"), ("prefill", "abort"), ("decode", "abort")])
@pytest.mark.parametrize("when", ["alone", "computing", "reading"])
def test_the_end_of_one_side_ends_the_other(start, who, how, when):
    p = start(Boot, "prefill", speedup=0.005 if when == "computing" else 50)
    d = start(Boot, "decode", "--kv-latency", 1000)
    legs = [(m, room(p, 7, rid="me" if m is (p if who == "prefill" else d) else "you")) for m in (p, d)]
    pair = Legs(*(legs if when != "alone" else legs[:1] if who == "prefill" else legs[1:]))
    one = 0 if when == "alone" or who == "prefill" else 1
    wait_for("they wait", lambda: waiting(p) == 1 if when == "alone" else p.metric("vllm:num_requests_running") == 1 if when == "computing"
             else len(p.kv()["held"]) == 1)
    if how == "leave":
        pair.leave(one)
    else:
        m = p if who == "prefill" else d
        assert call(m.port, "POST", "/abort_request", {"rid": "nobody"}).status == 200
        assert call(m.port, "POST", "/abort_request", {"rid": "me"}).status == 200
        assert pair.open[one].getresponse().status == 400
    if when != "alone":
        assert pair.open[1 - one].getresponse().status == 500
    clean(p, d)


def test_a_side_that_waits_too_long_fails(start):
    p, d = start(Boot, "prefill", "--bootstrap-timeout", 0.5), start(Boot, "decode", "--bootstrap-timeout", 0.5)
    assert p.complete(**room(p, 7)).status == 500
    assert d.complete(**room(p, 8)).status == 500
    assert d.complete(**{**room(p, 8), "bootstrap_port": free_ports()}).status == 500
    clean(p, d)


def test_bad_abort_requests_are_refused(start):
    p = start(Boot, "prefill")
    for body in (b"", b"{", b"[]", {"rid": 7}, {"rid": ""}, {"rid": "x" * 5000}):
        assert call(p.port, "POST", "/abort_request", body).status == 400
    assert call(p.port, "GET", "/abort_request").status == 405
    assert call(start(Side).port, "POST", "/abort_request", {"rid": "x"}).status == 404


def test_each_side_tells_what_it_is(start):
    p, d = start(Boot, "prefill", dp=2), start(Boot, "decode")
    info = [call(m.port, "GET", "/server_info").json() for m in (p, d)]
    assert [(i["disaggregation_mode"], i["disaggregation_bootstrap_port"], i["dp_size"]) for i in info] == [("prefill", p.boot, 2), ("decode", d.boot, 1)]
    assert call(start(Mock, "--sglang-info").port, "GET", "/server_info").json()["disaggregation_mode"] == "null"
    told = call(p.boot, "GET", "/query").json()
    assert list(told) == ["0", "1"] and told["0"]["engine_id"] != told["1"]["engine_id"]
    assert all(r["worker_addr"]["0"]["0"].startswith("127.0.0.1:") for r in told.values())
    assert call(p.boot, "GET", "/").status == 404 and call(p.boot, "POST", "/query", {}).status == 404
    with pytest.raises(ConnectionError):
        call(d.boot, "GET", "/query")


def test_sglang_is_one_side_or_the_other():
    r = subprocess.run([BINARY, "mock", "--kv-protocol", "sglang"], capture_output=True, text=True, timeout=60)
    assert r.returncode == 2 and "role" in r.stderr and "prefill, decode" in r.stderr


def transfer(p, number, rank=0):
    """The legs of a transfer of vLLM's connectors that need no answer of the first one."""
    told = call(p.boot, "GET", "/query").json()[str(rank)] if p.protocol == "vllm-mooncake" else p.engine(rank)
    keep = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": f"xfer-{number}"}
    fetch = {"do_remote_decode": False, "do_remote_prefill": True, "transfer_id": f"xfer-{number}", "remote_engine_id": told["engine_id"]}
    if p.protocol == "vllm-mooncake":
        fetch["remote_bootstrap_addr"] = f"http://127.0.0.1:{p.boot}"
    else:
        fetch.update(remote_host="127.0.0.1", remote_port=told["port"], tp_size=1, pp_size=1)
    return {"kv_transfer_params": keep}, {"kv_transfer_params": fetch}


class Sender(Boot):
    def __init__(self, protocol, *extra, role="both", **kw):
        self.protocol, self.side = protocol, free_ports(4)
        super().__init__(role, "--kv-side-port", self.side, *extra, protocol=protocol, **kw)

    def engine(self, rank):
        return {"engine_id": self.kv()["engine_ids"][rank], "port": self.side + rank}


SENDERS = pytest.mark.parametrize("protocol", ["vllm-mooncake", "vllm-nixl-push"])


@SENDERS
@pytest.mark.parametrize("first", ["prefill", "decode"])
def test_what_is_sent_meets_who_receives_it(start, protocol, first):
    p, d = start(Sender, protocol, dp=2), start(Sender, protocol)
    for rank in range(2):
        keep, fetch = transfer(p, rank, rank)
        if first == "prefill":
            r = p.complete(headers={"X-data-parallel-rank": str(rank)}, **keep)
            assert text(r) and r.json()["kv_transfer_params"] is None and len(p.kv()["held"]) == 1
            got = d.complete(**fetch)
        else:
            late = Legs((d, fetch))
            wait_for("it waits", lambda: waiting(p) == 1 and waiting(d) == 1)
            text(p.complete(headers={"X-data-parallel-rank": str(rank)}, **keep))
            got = late.answers()[0]
        assert text(got) == text(p.complete()) and cached(got) == len(PROMPT) - 1
    assert p.released() == {"pulled": 2}
    clean(p, d)


@SENDERS
def test_what_nobody_receives_expires(start, protocol):
    p, d = start(Sender, protocol, "--kv-lease", 0.3), start(Sender, protocol, "--bootstrap-timeout", 0.5)
    keep, fetch = transfer(p, 1)
    text(p.complete(**keep))
    wait_for("expiry", lambda: p.released() == {"expired": 1})
    assert d.complete(**fetch).status == 500
    unnamed = {k: v for k, v in keep["kv_transfer_params"].items() if k != "transfer_id"}
    text(p.complete(kv_transfer_params=unnamed))  # nothing is sent
    assert "no transfer_id" in p.text()
    clean(p, d, expired=1)


@SENDERS
def test_an_engine_that_is_not_there_any_more_is_a_failed_load(start, protocol):
    p, d = start(Sender, protocol), start(Sender, protocol)
    fetch = transfer(p, 1)[1]["kv_transfer_params"]
    assert d.complete(kv_transfer_params={**fetch, "remote_engine_id": "f" * 32}).status == 500
    p.stop()
    assert d.complete(kv_transfer_params=fetch).status == 500
    clean(d)


@SENDERS
def test_a_receiver_that_leaves_gives_up_its_place(start, protocol):
    p, d = start(Sender, protocol, "--kv-lease", 2), start(Sender, protocol, "--kv-latency", 1000)
    keep, fetch = transfer(p, 1)
    gone = Legs((d, fetch))
    wait_for("it waits", lambda: waiting(p) == 1)
    gone.leave(0)
    wait_for("it left", lambda: waiting(p) == waiting(d) == 0)
    gone = Legs((d, fetch), (p, keep))
    wait_for("it reads", lambda: len(p.kv()["held"]) == 1 and waiting(d) == 0)
    gone.leave(0)
    wait_for("release", lambda: p.released() == {"notified": 1})
    clean(p, d)


def test_mooncake_asserts_roles(start):
    p, d = (start(Sender, "vllm-mooncake", role=role) for role in ("prefill", "decode"))
    keep, fetch = transfer(p, 1)
    assert p.complete(**fetch).status == 500 and d.complete(**keep).status == 500
    clean(p, d)


# ---- TensorRT-LLM ----------------------------------------------------------------------------------------------------------------

ID = 1729384756102938625


def context(p, path="/v1/completions", **body):
    """The answer to a context leg, and what the generation leg is given of it."""
    r = call(p.port, "POST", path, {"max_tokens": 1, "disaggregated_params": {
        "request_type": "context_only", "disagg_request_id": ID, "schedule_style": 0}, **body})
    assert r.status == 200, r.body
    answer = r.json()
    return answer, {**answer["choices"][0]["disaggregated_params"], "request_type": "generation_only", "schedule_style": 0,
                    "ctx_usage": answer["usage"]}


def test_a_context_leg_hands_its_state_to_a_generation_leg(start):
    p, d = start(Side, protocol="trtllm"), start(Side, protocol="trtllm")
    answer, params = context(p, prompt=PROMPT)
    told = answer["choices"][0]["disaggregated_params"]
    assert (told["request_type"], told["disagg_request_id"], told["ctx_dp_rank"], told["draft_tokens"]) == ("context_only", ID, 0, None)
    assert told["ctx_request_id"] > 0 and len(told["first_gen_tokens"]) == 1 and answer["prompt_token_ids"] == list(PROMPT.encode())
    assert answer["choices"][0]["finish_reason"] == "length" and answer["kv_transfer_params"] is None
    r = d.complete(answer["prompt_token_ids"], disaggregated_params=params)
    assert text(r) == text(p.complete()) and text(r).encode()[0] == told["first_gen_tokens"][0]
    assert "disaggregated_params" not in r.json()["choices"][0] and p.released() == {"pulled": 1}
    clean(p, d)


def test_the_chat_of_a_generation_leg_brings_its_tokens(start):
    p, d = start(Side, protocol="trtllm"), start(Side, protocol="trtllm")
    chat = {"messages": [{"role": "user", "content": PROMPT}]}
    answer, params = context(p, "/v1/chat/completions", **chat)
    for messages in (chat["messages"], [{"role": "user", "content": "not this"}]):
        r = call(d.port, "POST", "/v1/chat/completions", {"messages": messages, "prompt_token_ids": answer["prompt_token_ids"], "max_tokens": 8,
                                                          "disaggregated_params": params})
        assert r.status == 200 and r.json()["usage"]["prompt_tokens"] == len(answer["prompt_token_ids"])
        answer, params = context(p, "/v1/chat/completions", **chat)
    p2 = d.complete(answer["prompt_token_ids"], disaggregated_params=params)
    assert text(p2)
    clean(p, d)


def test_a_state_that_was_altered_is_refused(start):
    p, d = start(Side, "--kv-lease", 2, protocol="trtllm"), start(Side, protocol="trtllm")
    params = context(p, prompt=PROMPT)[1]
    state = params["encoded_opaque_state"]
    other = context(p, prompt="another")[1]
    for change in ({"encoded_opaque_state": state[:-1] + ("0" if state[-1] != "0" else "1")}, {"encoded_opaque_state": "6" + state[1:-17] + state[-16:]},
                   {"encoded_opaque_state": ""}, {"encoded_opaque_state": None}, {"encoded_opaque_state": other["encoded_opaque_state"]},
                   {"disagg_request_id": ID + 1}, {"disagg_request_id": 1.7e18}, {"disagg_request_id": None}, {"disagg_request_id": 2 ** 40 - 1},
                   {"ctx_request_id": params["ctx_request_id"] + 1}, {"ctx_request_id": None}):
        r = d.complete(disaggregated_params={**params, **change})
        assert r.status == 400 and "disaggregated_params" in r.json()["error"]["message"], change
    assert d.complete(n=2, disaggregated_params=params).status == 400
    wait_for("release", lambda: p.released().get("notified") == 1)  # that one was understood
    assert text(d.complete(disaggregated_params=params)) == "#" * 8
    wait_for("expiry", lambda: p.released().get("expired") == 1)
    clean(p, d, bad_pulls=1, expired=1)


def test_a_context_leg_can_lack_its_state(start):
    p = start(Side, "--fault-bad-handoff", protocol="trtllm")
    told = context(p, prompt=PROMPT)[1]
    assert "ctx_request_id" not in told and "encoded_opaque_state" not in told
    clean(p)
    p = start(Side, "--fault-no-handoff", protocol="trtllm")
    r = p.complete(max_tokens=1, disaggregated_params={"request_type": "context_only", "disagg_request_id": ID})
    assert r.json()["choices"][0]["disaggregated_params"] is None
    assert p.complete(disaggregated_params={"request_type": "context_only", "disagg_request_id": 5}).status == 400
    clean(p)


# ---- faults ----------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("protocol", ["vllm-nixl", "none"])
def test_the_first_legs_of_either_side_can_be_answered_with_a_status(start, protocol):
    p = start(Side, "--role", "prefill", "--fault-prefill-status", 503, "--fault-count", 2, "--fault-decode-status", 418, protocol=protocol)
    d = start(Side, "--role", "decode", "--fault-decode-status", 502, "--fault-count", 1, "--fault-prefill-status", 418, "--kv-lease", 1,
              protocol=protocol)
    assert [p.complete(kv_transfer_params=KEEP).status for _ in range(2)] == [503, 503]
    params = p.keep()
    assert d.fetch(params).status == 502
    r = d.fetch(params)
    assert text(r) == text(p.complete()) and p.kv()["bad_pulls"] == 0  # what is in front of an engine uses no reference up
    clean(p, d)


def test_every_nth_transfer_can_fail(start):
    p, d = start(Side, "--kv-lease", 3), start(Side, "--kv-fail-every", 2)
    assert [d.fetch(p.keep()).status for _ in range(4)] == [200, 500, 200, 500]
    assert p.released() == {"pulled": 2}
    wait_for("expiry", lambda: p.released() == {"pulled": 2, "expired": 2})
    clean(p, d, expired=2)


def test_a_process_ends_well_while_transfers_are_under_way(start):
    """Whatever is kept, read and waited for: its memory is given back, and the exit code is 0."""
    p, d = start(Side), start(Side, "--kv-latency", 1000)
    open_ones = [Leaving(d, kv_transfer_params=p.keep()) for _ in range(3)]
    p.keep()
    a, b = start(Boot, "prefill"), start(Boot, "decode", "--kv-latency", 1000)
    open_ones += [Legs((m, room(a, n))) for n, m in enumerate((a, b, a, b))] + [Legs((a, room(a, 9)), (b, room(a, 9)))]
    late = start(Side, "--fault-slow-prefill", 1000)
    open_ones.append(Leaving(late, kv_transfer_params=KEEP))
    wait_for("they wait", lambda: waiting(a) == 4 and len(a.kv()["held"]) == 1 and len(p.kv()["held"]) == 4 and
             d.metric("vllm:num_requests_waiting") == 3)
    for m in (p, d, b, a, late):
        m.stop()


def test_a_leg_that_is_refused_by_fault_is_told_to_the_keeper(start):
    p, d = start(Side), start(Side, "--fault-decode-status", 429)
    assert d.complete().status == 200  # a whole request is no leg
    assert d.fetch(p.keep()).status == 429
    wait_for("release", lambda: p.released() == {"notified": 1})
    clean(p, d)


def test_a_hand_off_can_be_missing_or_broken(start):
    p = start(Side, "--fault-no-handoff")
    assert p.keep() is None
    clean(p)
    p = start(Side, "--fault-bad-handoff")
    params = p.keep()
    assert params["do_remote_prefill"] is True and "remote_block_ids" not in params and "remote_host" not in params
    clean(p)


def test_a_keeper_can_die_after_its_answer(start):
    p, d = start(Side, "--fault-die-after", "prefill", expect=3), start(Side)
    assert p.complete().status == 200  # a whole request is no leg
    params = p.keep()
    p.p.wait(30)
    assert d.fetch(params).status == 500
    clean(d)


def test_a_keeper_can_die_when_it_has_been_read(start):
    p, d, alone = start(Side, "--fault-die-after", "pull", expect=3), start(Side), start(Side)
    assert text(d.fetch(p.keep())) == text(alone.complete())
    p.p.wait(30)
    clean(d)


def test_who_fetches_can_die_when_it_has_read(start):
    p, d = start(Side), start(Side, "--fault-die-after", "pull", expect=3)
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        d.fetch(p.keep())
    d.p.wait(30)
    assert p.released() == {"pulled": 1}
    clean(p)


def test_a_slow_prefill_can_be_left(start):
    p = start(Side, "--fault-slow-prefill", 1000)
    assert text(p.complete())  # a whole request is no leg
    gone = [Leaving(p, max_tokens=1, kv_transfer_params=KEEP) for _ in range(3)]
    for i in (1, 0, 2):
        gone[i].leave()
    wait_for("aborts", lambda: p.released() == {"aborted": 3})
    clean(p)


def test_a_slow_prefill_ends(start):
    p, d = start(Side, "--fault-slow-prefill", 0.3), start(Side)
    several = [Leaving(p, max_tokens=1, kv_transfer_params=KEEP) for _ in range(3)]
    for one in several:
        params = json.loads(one.c.getresponse().read())["kv_transfer_params"]
        assert text(d.fetch(params)) == text(p.complete())
    clean(p, d)


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_can_be_kept_although_its_client_has_gone(start, stream):
    p = start(Side, "--fault-ignore-abort", "--kv-lease", 1, speedup=0.05)
    gone = Leaving(p, max_tokens=3, stream=stream, kv_transfer_params=KEEP)
    wait_for("it computes", lambda: p.metric("vllm:num_requests_running") == 1)
    gone.leave()
    wait_for("it is kept", lambda: len(p.kv()["held"]) == 1)
    wait_for("expiry", lambda: p.released() == {"expired": 1})
    clean(p, expired=1)


def test_whole_requests_are_left_when_aborts_are_ignored(start):
    p = start(Side, "--fault-ignore-abort", speedup=0.01)
    gone = Leaving(p, max_tokens=1000)
    wait_for("it computes", lambda: p.metric("vllm:num_requests_running") == 1)
    gone.leave()
    clean(p)


# ---- the side channel is on the wire, too ----------------------------------------------------------------------------------------

def speak(port, *lines):
    """What is answered to these lines, until the other side closes or has answered all that it will."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as s:
        got = b""
        try:  # it may close before it has heard all
            s.sendall(b"".join(l if isinstance(l, bytes) else json.dumps(l).encode() + b"\n" for l in lines))
            s.shutdown(socket.SHUT_WR)
            while piece := s.recv(65536):
                got += piece
        except OSError as e:
            assert e.errno in (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN), e
        return [json.loads(l) for l in got.splitlines()]


NO_LINES = [
    b"\n", b"{}\n", b"[]\n", b"\xff\xfe\n", b"{" * 4000 + b"\n", b"a" * 200000, b'{"op":"pull"}\n', b'{"op":"burn","key":"x"}\n',
    b'{"op":1,"key":"x"}\n', b'{"op":"pull","key":"x"}\n', b'{"op":"pull","key":"a\\u0000b","engine":"x"}\n',
    b'{"op":"beat","key":"' + b"k" * 3000 + b'"}\n', b'{"op":"done","key":"x', b""]


def test_what_is_no_line_closes_the_side_channel_and_nothing_else(start):
    p, d = start(Side, "--kv-side-port", (port := free_ports())), start(Side)
    for line in NO_LINES:
        params = p.keep()
        assert speak(port, line) == [], line
        text(d.fetch(params))
        clean(p, d)


def test_strangers_release_nothing(start):
    p, d = start(Side, "--kv-side-port", (port := free_ports())), start(Side)
    params = p.keep()
    assert speak(port, {"op": "release", "key": "cmpl-1-0-00000000"}, {"op": "beat", "key": ""}, {"op": "done", "key": "x"}) == [{"state": "unknown"}]
    engine = params["remote_engine_id"]
    pull = {"op": "pull", "key": params["remote_request_id"], "engine": engine}
    assert [a["state"] for a in speak(port, {**pull, "engine": "other"})] == ["engine"]
    assert [a["state"] for a in speak(port, {**pull, "key": "x"})] == ["unknown"]
    assert [a["state"] for a in speak(port, pull, pull)] in ([], ["kept"])  # one pull for each connection: it is closed
    text(d.fetch(params))
    clean(p, d)


def test_a_keeper_that_talks_nonsense_is_a_failed_load(start):
    d = start(Side)
    p = start(Side)
    params = p.keep()
    for answer in (b"", b"nonsense\n", b'{"state":"kept"}\n', b'{"state":"freed"}\n', b'{"state":"kept","block_size":16,"salt":0,"blocks":1,"tokens":{}}\n'):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            s.listen()
            asking = Leaving(d, kv_transfer_params={**params, "remote_port": s.getsockname()[1]})
            c = s.accept()[0]
            assert b'"pull"' in c.recv(65536)
            c.sendall(answer)
            c.close()
            assert asking.c.getresponse().status == 500
    text(d.fetch(params))
    clean(p, d)


PEERS_MAX = 2048  # MOCK_KV_PEERS_MAX


def test_connections_beyond_the_bound_are_closed(start):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < PEERS_MAX + 1000:
        pytest.skip("too few descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (PEERS_MAX + 1000, hard))  # of the mocks, too
    p, d = start(Side, "--kv-side-port", (port := free_ports())), start(Side)
    params = p.keep()
    inside = [socket.create_connection(("127.0.0.1", port)) for _ in range(PEERS_MAX)]
    outside = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(5)]
    assert [s.recv(1) for s in outside] == [b""] * 5
    inside[0].settimeout(30)
    inside[0].sendall(json.dumps({"op": "pull", "key": "x", "engine": params["remote_engine_id"]}).encode() + b"\n")
    assert b"unknown" in inside[0].recv(1000)
    assert d.fetch(params).status == 500
    for s in inside + outside:
        s.close()
    wait_for("room again", lambda: speak(port, {"op": "pull", "key": "x", "engine": params["remote_engine_id"]}))
    text(d.fetch(params))
    clean(p, d)


STRANGE = [None, True, -1, 0, 1, 2 ** 31, 2 ** 63, 2 ** 64 - 1, 2 ** 64, 1.5, "", "a\0b", "x" * 5000, "127.0.0.1", "::1", [], {}, [[]], [[1, 2], [3]], [2 ** 40],
           [None], [[["x"]]], {"a": [1]}, "http://127.0.0.1:1/", "http://", "ftp://x", "\ud800"]


def strange(rng, good):
    """The same with some members replaced, or missing. Rooms stay different ones."""
    out = dict(good)
    for name in rng.sample(list(out), rng.randrange(1, 4) if len(out) > 3 else 1):
        if rng.random() < 0.2:
            del out[name]
        else:
            rooms = [v for v in STRANGE if type(v) is not int]  # two that are one end the engine
            out[name] = rng.choice(rooms if name == "bootstrap_room" else STRANGE)
    return out


@pytest.mark.parametrize("protocol", ["vllm-nixl", "vllm-nixl-push", "vllm-mooncake", "sglang", "trtllm"])
def test_strange_hand_offs_do_no_harm(start, protocol):
    rng = random.Random(7)
    quick = ("--kv-lease", 0.5, "--bootstrap-timeout", 0.5)
    if protocol == "sglang":
        p, d = start(Boot, "prefill", *quick), start(Boot, "decode", *quick)
        pair = lambda i: (room(p, 10 ** 6 + i), room(p, 10 ** 6 + i))
    elif protocol in ("vllm-nixl", "trtllm"):
        p, d = start(Side, *quick, protocol=protocol), start(Side, *quick, protocol=protocol)
        pair = (lambda i: (KEEP, p.keep())) if protocol == "vllm-nixl" else \
            lambda i: ({"request_type": "context_only", "disagg_request_id": ID + i}, context(p, prompt=PROMPT)[1])
    else:
        p, d = start(Sender, protocol, *quick), start(Sender, protocol, *quick)
        pair = lambda i: tuple(body["kv_transfer_params"] for body in transfer(p, i))
    place = {"trtllm": "disaggregated_params", "sglang": None}.get(protocol, "kv_transfer_params")
    open_ones = []
    for i in range(60):
        keep, fetch = pair(i)
        for m, good in ((p, keep), (d, fetch)):
            bad = strange(rng, good)
            open_ones.append(Leaving(m, **(bad if place is None else {place: bad})))
    for one in rng.sample(open_ones, len(open_ones)):
        one.leave()
    for m in (p, d):
        wait_for("all gone", lambda: m.metric("vllm:num_requests_waiting") == m.metric("vllm:num_requests_running") == 0 and
                 m.kv()["held"] == [] and waiting(m) == 0 and m.used() == 0)
    keep, fetch = pair(1000)
    legs = Legs(*[(m, good if place is None else {place: good}) for m, good in ((p, keep), (d, fetch))])
    assert [r.status for r in legs.answers()] == [200, 200]


def test_a_slow_prompt_is_not_begun_early_when_the_one_before_it_has_gone(start):
    p = start(Side, "--role", "prefill", "--fault-slow-prefill", 1)
    first = Leaving(p, max_tokens=1, kv_transfer_params=KEEP)
    begun = time.monotonic()
    wait_for("some time", lambda: time.monotonic() - begun > 0.5)
    asked = time.monotonic()
    second = Leaving(p, max_tokens=1, kv_transfer_params=KEEP)
    p.kv()  # it has the second when it has answered this
    first.leave()
    assert second.c.getresponse().status == 200
    assert time.monotonic() - asked > 0.9
    second.leave()
