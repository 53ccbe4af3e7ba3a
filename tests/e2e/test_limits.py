# SPDX-License-Identifier: Apache-2.0
"""How much a key, and a model, may use: rates, tokens, requests at once, sizes; over all data loops together."""
import concurrent.futures
import json
import socket

import pytest

from conftest import SLOW, Mock, Serve, call, wait_for
from leg_parts import HANG, Leg, Pieces

KEY = "alices-secret-key"
AUTH = {"Authorization": f"Bearer {KEY}"}


@pytest.fixture
def limited(start, tmp_path):
    """limited(limits, *flags, models=..., workers=...) is a router whose only key has these limits."""
    def make(limits, *flags, more="", workers=None):
        path = tmp_path / "keys.yaml"
        path.write_text(f"keys:\n  - {{name: alice, key: {KEY}{', ' if limits else ''}{limits}}}\n" + more)
        return start(Serve, workers or [start(Mock, "--model", "small")], "--api-key-file", path, *flags)
    return make


def ask(s, n=3, **more):
    return s.complete(list(range(n)), model="small", headers=AUTH, **more)


def refused(answer, status, code, said):
    error = answer.json()["error"]
    assert (answer.status, error["code"]) == (status, code) and said in error["message"], (answer.status, answer.body)
    return answer


def use_of(s, name="alice"):
    return next(k for k in s.get("/api_keys")["keys"] if k["name"] == name)["use"]


def at_rest(s):
    wait_for("nothing under way", lambda: use_of(s)["concurrent"] == 0)


def test_a_rate_of_requests_is_kept_and_told(limited):
    s = limited("requests_per_second: 0.001, burst_requests: 3")
    for left in (2, 1, 0):
        a = ask(s)
        assert a.status == 200 and a.headers["x-ratelimit-limit-requests"] == "3" and a.headers["x-ratelimit-remaining-requests"] == str(left)
    no = refused(ask(s), 429, "rate_limit_exceeded", "requests_per_second is 0.001")
    assert 900 < int(no.headers["retry-after"]) <= 1000 and no.headers["x-ratelimit-remaining-requests"] == "0"
    assert no.headers["x-ratelimit-reset-requests"].endswith("s") and "x-ratelimit-limit-tokens" not in no.headers
    assert s.metric("key_refused_total", key="alice", reason="requests") == 1
    assert s.metric("key_requests_total", key="alice", status="2xx") == 3 and s.metric("key_requests_total", key="alice", status="4xx") == 1


def test_what_was_used_up_comes_back(limited):
    s = limited("requests_per_second: 5, burst_requests: 1")
    assert ask(s).status == 200
    wait_for("one more", lambda: ask(s).status == 200)


def test_limits_hold_for_all_data_loops_together(limited):
    s = limited("requests_per_second: 0.001, burst_requests: 5", "--threads", 4)
    with concurrent.futures.ThreadPoolExecutor(16) as pool:  # each has a connection of its own
        got = [a.status for a in pool.map(lambda _: ask(s), range(40))]
    assert (got.count(200), got.count(429)) == (5, 35)


def test_tokens_are_taken_and_put_right_when_usage_is_known(limited):
    s = limited("tokens_per_second: 0.001, burst_tokens: 1000")
    a = ask(s, 100, max_tokens=500)
    assert a.status == 200 and a.headers["x-ratelimit-limit-tokens"] == "1000" and a.headers["x-ratelimit-remaining-tokens"] == "400"
    usage = a.json()["usage"]
    used = usage["prompt_tokens"] + usage["completion_tokens"]
    wait_for("put right", lambda: round(use_of(s)["tokens_left"]) == 1000 - used)
    assert (use_of(s)["tokens_in"], use_of(s)["tokens_out"]) == (usage["prompt_tokens"], usage["completion_tokens"])
    a = call(s.port, "POST", "/v1/completions", {"model": "small", "prompt": [7] * 50}, AUTH)  # it does not say how much it wants
    assert a.headers["x-ratelimit-remaining-tokens"] == str(1000 - used - 50)
    used += a.json()["usage"]["prompt_tokens"] + a.json()["usage"]["completion_tokens"]
    assert used > 650
    wait_for("put right", lambda: round(use_of(s)["tokens_left"]) == 1000 - used)
    refused(ask(s, 100, max_tokens=900 - used + 1), 429, "rate_limit_exceeded", "tokens_per_second is 0.001")
    assert round(use_of(s)["tokens_left"]) == 1000 - used  # a refused one takes nothing


@pytest.mark.parametrize("wants", [{"max_tokens": "901"}, {"max_tokens": " 9_01.0 "}, {"max_tokens": 901.0}, {"max_tokens": 2**70}, {"max_tokens": 301, "n": "3"},
                                   {"max_tokens": 301, "prompts": 3}, {"max_tokens": 901, "max_completion_tokens": 1}])
def test_output_is_counted_as_the_engine_reads_what_is_asked_for(limited, wants):
    s = limited("tokens_per_second: 0.001, burst_tokens: 1000")
    assert ask(s, 10, max_tokens=1).status == 200
    wait_for("put right", lambda: round(use_of(s)["tokens_left"]) == 989)
    prompts = wants.pop("prompts", 1)
    body = {"model": "small", "prompt": [[7] * 100] * prompts if prompts > 1 else [7] * 100, **wants}
    refused(call(s.port, "POST", "/v1/completions", body, AUTH), 429, "rate_limit_exceeded", "tokens_per_second")


def test_output_of_responses_is_what_that_form_asks_for(limited):
    s = limited("tokens_per_second: 0.001, burst_tokens: 1000")
    assert ask(s, 10, max_tokens=1).status == 200
    wait_for("put right", lambda: round(use_of(s)["tokens_left"]) == 989)
    refused(call(s.port, "POST", "/v1/responses", {"model": "small", "input": "a", "max_tokens": 1, "max_output_tokens": 990}, AUTH), 429, "rate_limit_exceeded",
            "tokens_per_second")


def test_a_request_larger_than_the_burst_passes_when_the_bucket_is_full(limited):
    s = limited("tokens_per_second: 0.001, burst_tokens: 50")
    assert ask(s, 100).status == 200
    refused(ask(s, 1), 429, "rate_limit_exceeded", "tokens_per_second")  # it has left a debt


def test_a_request_that_fails_gives_its_tokens_back(limited):
    s = limited("tokens_per_second: 0.001, burst_tokens: 1000")
    assert s.complete(list(range(100)), model="nobody", headers=AUTH).status == 404
    wait_for("all back", lambda: round(use_of(s)["tokens_left"]) == 1000)


def two_legs(start):
    """Mocks of two roles; prompts take long."""
    made = [(role, start(Mock, "--model", "small", "--role", role, "--kv-protocol", "vllm-nixl", with_events=False, speedup=0.01)) for role in ("prefill", "decode")]
    return made[0][1], [f"http://127.0.0.1:{m.port},role={role},block-size=16,kv-protocol=vllm-nixl" for role, m in made]


@pytest.mark.parametrize("legs", [1, 2])
def test_who_leaves_before_the_answer_has_used_what_was_asked_for(limited, start, legs):
    first, workers = two_legs(start) if legs == 2 else (m := start(Mock, "--model", "small", speedup=0.01), [m])
    s = limited("tokens_per_second: 0.001, burst_tokens: 1000", "--no-router-kv-events", workers=workers)
    body = json.dumps({"model": "small", "prompt": list(range(64)), "max_tokens": 800})
    with socket.create_connection(("127.0.0.1", s.port)) as c:
        c.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\n"
                  f"Content-Length: {len(body)}\r\n\r\n{body}".encode())
        wait_for("a worker has it", lambda: first.metric("vllm:num_requests_running") == 1)
    at_rest(s)
    assert round(use_of(s)["tokens_left"]) == 136 and use_of(s)["tokens_out"] == 0, "what was generated is not known"


@pytest.fixture
def slow():
    """A worker whose streams go on until `go` is set."""
    leg = Leg(lambda n, body: Pieces([b'data: {"choices":[{"index":0,"text":"a"}]}\n\n', HANG, b"data: [DONE]\n\n"]))
    yield leg
    leg.go.set()
    leg.close()


def stream(s, **more):
    return s.complete([1, 2, 3], model="small", headers=AUTH, stream=True, **more)


@pytest.mark.parametrize("whose", ["key", "model"])
def test_so_many_requests_at_once_and_no_more(limited, slow, whose):
    limits, more = ("max_concurrent: 2", "") if whose == "key" else ("", "models:\n  small: {max_concurrent: 2}\n")
    s = limited(limits, "--no-router-kv-events", more=more, workers=[f"http://127.0.0.1:{slow.port},model=small"])
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        both = [pool.submit(stream, s) for _ in range(2)]
        wait_for("both under way", lambda: use_of(s)["concurrent"] == 2)
        no = refused(stream(s), 429, "rate_limit_exceeded", "max_concurrent is 2")
        assert no.headers["retry-after"] == "1" and ("'alice'" if whose == "key" else "'small'") in no.json()["error"]["message"]
        slow.go.set()
        assert [f.result().status for f in both] == [200, 200]
    at_rest(s)
    assert stream(s).status == 200


def test_clients_that_leave_free_their_place(limited, slow):
    s = limited("max_concurrent: 1", "--no-router-kv-events", workers=[f"http://127.0.0.1:{slow.port},model=small"])
    body = json.dumps({"model": "small", "prompt": [1, 2, 3], "stream": True})
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", s.port)) as c:
            c.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\n"
                      f"Content-Length: {len(body)}\r\n\r\n{body}".encode())
            assert c.recv(100).startswith(b"HTTP/1.1 200")
            assert use_of(s)["concurrent"] == 1
        at_rest(s)


def test_a_models_limit_was_passed_by_naming_none(limited):
    s = limited("", more="models:\n  small: {requests_per_second: 0.001, burst_requests: 2}\n")
    unnamed = [s.complete([1, 2, 3], headers=AUTH, **more).status for more in ({}, {"model": None}, {}, {"model": ""})]
    assert unnamed == [200, 200, 429, 429] and ask(s).status == 429
    s = limited("", more="models:\n  small: {requests_per_second: 0.001, burst_requests: 2}\n  large: {max_concurrent: 1}\n")
    refused(s.complete([1, 2, 3], headers=AUTH), 403, "model_not_allowed", "names none")
    assert ask(s).status == 200


def test_a_models_limit_leaves_the_keys_own_alone(limited):
    s = limited("requests_per_second: 0.001, burst_requests: 100", more="models:\n  small: {requests_per_second: 0.001, burst_requests: 2}\n")
    assert [ask(s).status for _ in range(5)] == [200, 200, 429, 429, 429]
    assert round(use_of(s)["requests_left"]) == 98
    refused(ask(s), 429, "rate_limit_exceeded", "model 'small'")


@pytest.mark.parametrize("limits,status", [("tokens_per_second: 0.001, burst_tokens: 1", 429), ("max_prompt_tokens: 2", 413)])
def test_a_key_over_its_own_limits_used_up_the_rate_of_its_model(limited, limits, status):
    other = "\n  - {name: bob, key: bobs-secret-key}\nmodels:\n  small: {requests_per_second: 0.001, burst_requests: 3}\n"
    s = limited(limits, more=other[1:])
    wait_for("refused", lambda: ask(s).status == status)  # of a bucket of one token the first may pass
    for _ in range(5):
        assert ask(s).status == status
    assert s.complete([1, 2, 3], model="small", headers={"Authorization": "Bearer bobs-secret-key"}).status == 200


def test_tokens_of_a_model_that_are_used_up_used_up_the_requests_of_the_key(limited):
    s = limited("requests_per_second: 0.001, burst_requests: 6", more="models:\n  small: {tokens_per_second: 0.001, burst_tokens: 1}\n")
    wait_for("refused", lambda: ask(s).status == 429)
    left = {ask(s).headers["x-ratelimit-remaining-requests"] for _ in range(4)}
    assert len(left) == 1 and "0" not in left


def test_bodies_and_prompts_have_limits_of_the_key(limited):
    s = limited("max_body_size: 1KiB, max_prompt_tokens: 50")
    assert ask(s, 50).status == 200
    refused(ask(s, 51), 413, "request_too_large", "max_prompt_tokens is 50")
    refused(s.complete("x" * 2000, model="small", headers=AUTH), 413, "request_too_large", "max_body_size is 1024")
    assert s.metric("key_refused_total", reason="prompt_tokens") == 1 and s.metric("key_refused_total", reason="body_size") == 1


@pytest.mark.parametrize("flags", [(), ("--router-mode", "round-robin")], ids=["kv", "round-robin"])
def test_a_long_prompt_passed_a_keys_limit_behind_few_told_ids(limited, flags):
    s = limited("max_prompt_tokens: 50", *flags)
    told = {"headers": AUTH, "model": "small", "nvext": {"token_data": [1, 2]}}
    refused(s.complete("x" * 2000, **told), 413, "request_too_large", "max_prompt_tokens is 50")
    assert s.complete("x" * 20, **told).status == 200
    assert s.complete("x" * 20, **{**told, "nvext": {"token_data": list(range(100000, 100040))}}).status == 200


LONG = "x" * 2000
FORMS = {"/v1/completions": {"prompt": LONG}, "/v1/chat/completions": {"messages": [{"role": "user", "content": LONG}]}, "/generate": {"text": LONG},
         "/v1/responses": {"input": LONG}, "/v1/messages": {"messages": [{"role": "user", "content": LONG}], "max_tokens": 2}}


def test_a_long_prompt_passed_a_keys_limit_behind_ids_that_its_form_does_not_read(limited):
    s = limited("max_prompt_tokens: 50")
    for path, body in FORMS.items():
        for beside in ({"nvext": {"token_data": [1, 2]}}, {"prompt": [1, 2]} if "prompt" not in body else {}):
            refused(call(s.port, "POST", path, {"model": "small", **body, **beside}, AUTH), 413, "request_too_large", "max_prompt_tokens is 50")


def test_of_a_prompt_of_ids_behind_told_ones_half_was_seen(limited):
    s = limited("max_prompt_tokens: 50")
    for ids in ([1] * 600, [[1] * 300] * 2):
        refused(s.complete(ids, model="small", headers=AUTH, nvext={"token_data": [1, 2]}), 413, "request_too_large", "the prompt of 600 ")


def test_the_prompt_of_a_chat_was_what_a_member_of_completions_said(start):
    s = start(Serve, [start(Mock)])
    chat = {"messages": [{"role": "user", "content": "some words"}], "max_tokens": 2, "prompt": [1, 2]}
    assert call(s.port, "POST", "/v1/chat/completions", chat).status == 200
    assert s.metric("tokens_total", **{"from": "body"}) == 0


def test_a_long_prompt_behind_told_ids_cost_nothing_where_the_answer_tells_no_usage(limited):
    leg = Leg(lambda n, body: b'data: {"choices":[{"index":0,"text":"a"}]}\n\ndata: [DONE]\n\n')
    leg.models = ["small"]
    s = limited("tokens_per_second: 0.001, burst_tokens: 100000", workers=[f"http://127.0.0.1:{leg.port}"])
    assert s.complete("x" * 20000, model="small", headers=AUTH, stream=True, nvext={"token_data": [1, 2]}).status == 200
    at_rest(s)
    assert use_of(s)["tokens_in"] >= 5000 and use_of(s)["tokens_left"] <= 95000
    leg.close()


def test_of_a_list_of_prompts_for_sglang_one_was_counted(limited):
    leg = Leg(lambda n, body: (200, {"text": "x"}))
    leg.models = ["small"]
    s = limited("tokens_per_second: 0.001, burst_tokens: 100000", workers=[f"http://127.0.0.1:{leg.port}"])
    each, before = {"max_new_tokens": 50}, 100000
    for body in ({"text": ["a"] * 100, "sampling_params": each}, {"text": ["a"] * 100, "sampling_params": [each] * 100},
                 {"input_ids": [[1]] * 100, "sampling_params": each}, {"text": "a", "sampling_params": {**each, "n": 100}}):
        assert call(s.port, "POST", "/generate", {"model": "small", **body}, AUTH).status == 200
        at_rest(s)
        left = use_of(s)["tokens_left"]
        assert 5000 < before - left < 6000, body
        before = left
    leg.close()


def test_defaults_are_of_keys_that_do_not_say(start, tmp_path):
    path = tmp_path / "keys.yaml"
    path.write_text("default: {requests_per_second: 0.001, burst_requests: 1}\nkeys:\n"
                    "  - {name: a, key: first-secret-key}\n  - {name: b, key: second-secret-key, requests_per_second: 0.001, burst_requests: 3}\n")
    s = start(Serve, [start(Mock, "--model", "small")], "--api-key-file", path)
    for key, n in (("first-secret-key", 1), ("second-secret-key", 3)):
        got = [s.complete([1], model="small", headers={"x-api-key": key}).status for _ in range(5)]
        assert got == [200] * n + [429] * (5 - n)


# ---- connections of an address

def connect(s, source="127.0.0.1"):
    c = socket.create_connection(("127.0.0.1", s.port), source_address=(source, 0))
    c.settimeout(10)
    return c


def answers(c):
    try:
        c.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        return c.recv(100).startswith(b"HTTP/1.1 200")
    except OSError:
        return False


@pytest.mark.parametrize("threads", [1, 3])
def test_a_client_within_its_limit_of_connections_was_closed(start, threads):
    """It closes one and opens the next at once: that the first has ended is not known yet when the next one comes."""
    s = start(Serve, [], "--max-connections-per-address", 1, "--threads", threads, ready=False)
    for i in range(200):
        with socket.create_connection(("127.0.0.1", s.port), 10 * SLOW) as c:
            c.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n" + (b"Connection: close\r\n" if i % 2 else b"") + b"\r\n")
            assert c.recv(65536).startswith(b"HTTP/1.1 200 "), i


def test_an_address_has_so_many_connections_over_all_loops(start):
    s = start(Serve, [], "--max-connections-per-address", 20, "--threads", 3, ready=False)
    open_ = []

    def full():
        c = connect(s)
        ok = answers(c)
        open_.append(c) if ok else c.close()
        return not ok
    wait_for("no more", full)
    assert len(open_) == 20
    other = connect(s, "127.0.0.2")
    assert answers(other)
    assert s.metric("http_address_connections_refused_total", port="data") >= 1
    open_.pop().close()
    wait_for("room again", lambda: not full())
    assert len(open_) == 20
    for c in [*open_, other]:
        c.close()


def test_without_a_limit_an_address_has_any_number(start):
    s = start(Serve, [], ready=False)
    open_ = [connect(s) for _ in range(60)]
    assert all(answers(c) for c in open_)
    for c in open_:
        c.close()
