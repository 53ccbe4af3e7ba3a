# SPDX-License-Identifier: Apache-2.0
"""Prefill and decode workers: who gets what of a request, and what becomes of it when one of them fails. The workers are scripts (leg_parts.py)."""
import json
import threading

import pytest
from conftest import Serve, call, wait_for
from leg_parts import HANG, PARAMS, RESET, answer, decodes, events, handoff, prefills

PROMPT = list(range(64))
BODY = {"model": "m", "prompt": PROMPT, "max_tokens": 4}


def ask(s, headers=None, timeout=30, **more):
    return call(s.port, "POST", "/v1/completions", {**BODY, **more}, headers, timeout=timeout)


def loads(s):
    return s.get("/loads")


def idle(s):
    wait_for("nothing booked", lambda: all(not x["active_requests"] and not x["active_prefill_tokens"] and not x["active_decode_blocks"] for x in loads(s)))


def total(of):
    return sum(x.n for x in of)


def only(of):
    return next(x for x in of if x.n)


def test_a_request_goes_to_a_prefill_worker_and_then_to_a_decode_worker(pair):
    s, ps, ds = pair()
    a = ask(s, min_tokens=2, seed=7)
    assert a.status == 200 and a.headers["x-kvroute-disagg"] == "remote", a.body
    p, d = only(ps), only(ds)
    assert total(ps) == total(ds) == 1
    assert p.bodies[0] == {**BODY, "seed": 7, "max_tokens": 1, "stream": False, "kv_transfer_params": {
        "do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None, "remote_host": None, "remote_port": None}}
    assert d.bodies[0] == {**BODY, "min_tokens": 2, "seed": 7, "kv_transfer_params": PARAMS}
    assert a.json()["choices"][0]["text"] == "hello"
    assert int(a.headers["x-kvroute-worker"]) != int(a.headers["x-kvroute-prefill-worker"])
    assert p.heads[0]["x-request-id"] == d.heads[0]["x-request-id"] == a.headers["x-request-id"]
    idle(s)


def test_the_handoff_object_arrives_byte_for_byte(pair):
    raw = b'{ "do_remote_prefill":true,"remote_block_ids" : [[1,2]], "remote_engine_id":"e", "remote_request_id":"r\\u0041", "remote_host":"h", "remote_port":5600, "remote_num_tokens":1e2, "new":12345678901234567890 }'
    s, _, ds = pair(prefill=lambda n, b: (200, b'{"choices":[], "kv_transfer_params":' + raw + b', "usage":null}'))
    assert ask(s, seed=1).status == 200
    assert b'"kv_transfer_params":' + raw in only(ds).raw[0]


def test_what_a_client_says_of_a_transfer_is_removed(pair):
    s, ps, ds = pair()
    assert ask(s, kv_transfer_params={"remote_request_id": "another's"}).status == 200
    assert only(ps).bodies[0]["kv_transfer_params"]["do_remote_decode"] is True and only(ds).bodies[0]["kv_transfer_params"] == PARAMS
    assert "another's" not in str(only(ps).raw) + str(only(ds).raw)


def test_a_whole_request_does_not_carry_what_a_client_says_of_a_transfer(pair):
    s, ps, ds = pair()
    assert ask(s, n=2, kv_transfer_params={"remote_request_id": "another's"}).headers["x-kvroute-disagg"] == "local"
    assert total(ps) == 0 and "kv_transfer_params" not in only(ds).bodies[0]


def test_a_rank_that_a_client_asks_for_reaches_the_engine(legs, start):
    p, b = legs(prefills), legs(decodes)
    s = start(Serve, [p.spec("prefill", "id=1"), b.spec("both", "id=2", "engine=sglang", "dp-size=2")])
    a = ask(s, {"x-kvroute-worker": "2"}, routed_dp_rank=1)
    assert a.status == 200 and a.headers["x-kvroute-dp-rank"] == "1", a.body
    assert b.bodies[0]["routed_dp_rank"] == b.bodies[0]["data_parallel_rank"] == 1


def test_a_rank_reaches_the_leg_that_it_is_for(legs, start):
    p, d = legs(lambda n, b: (200, {"choices": []})), legs(decodes)
    s = start(Serve, [p.spec("prefill", "id=1", "kv-protocol=none", "engine=sglang", "dp-size=2"), d.spec("decode", "id=2", "kv-protocol=none", "engine=sglang", "dp-size=2")])
    wait_for("both up", lambda: all(w["status"] == "up" for w in s.get("/workers")))
    for _ in range(4):
        a = ask(s, {"x-kvroute-worker": "2"}, data_parallel_rank=1)
        assert a.status == 200 and a.headers["x-kvroute-disagg"] == "remote", a.body
        assert p.bodies[-1]["data_parallel_rank"] == p.bodies[-1]["routed_dp_rank"] == int(a.headers["x-kvroute-prefill-dp-rank"])
        assert d.bodies[-1]["data_parallel_rank"] == d.bodies[-1]["routed_dp_rank"] == 1
    assert {b["data_parallel_rank"] for b in p.bodies} == {0, 1}


def test_models_are_those_that_are_answered(legs, start):
    p, d = legs(prefills), legs(decodes)
    p.models, d.models = ["m", "hidden"], ["m"]
    s = start(Serve, [p.spec("prefill"), d.spec("decode")])
    wait_for("models", lambda: json.loads(call(s.port, "GET", "/v1/models").body)["data"])
    wait_for("both up", lambda: all(w["status"] == "up" for w in s.get("/workers")))
    assert [m["id"] for m in json.loads(call(s.port, "GET", "/v1/models").body)["data"]] == ["m"]


def test_prefill_workers_that_are_gone_leave_whole_requests_to_decode_workers(pair):
    s, ps, ds = pair(n=1)
    assert ask(s).headers["x-kvroute-disagg"] == "remote"
    worker = next(w for w in s.get("/workers") if w["role"] == "prefill")
    assert call(s.admin, "DELETE", f"/workers/{worker['worker_id']}").status == 200
    assert ask(s).headers["x-kvroute-disagg"] == "local"
    assert "kv_transfer_params" not in ds[0].bodies[-1]
    back = {"worker_id": 77, "endpoint": f"http://127.0.0.1:{ps[0].port}", "role": "prefill", "block_size": 16}
    assert call(s.admin, "POST", "/workers", back).status == 201
    wait_for("two legs again", lambda: ask(s).headers["x-kvroute-disagg"] == "remote")


def test_enforced_two_legs_wait_for_a_prefill_worker(pair):
    s, _, ds = pair("--enforce-disagg", "--queue-timeout", "0.3", n=1)
    worker = next(w for w in s.get("/workers") if w["role"] == "prefill")
    call(s.admin, "DELETE", f"/workers/{worker['worker_id']}")
    a = ask(s)
    assert a.status == 503 and a.headers["retry-after"] and total(ds) == 0


def test_a_prefill_worker_alone_waits_for_one_that_answers(legs, start):
    p, d = legs(prefills), legs(decodes)
    s = start(Serve, [p.spec("prefill")], "--queue-timeout", "0.3", ready=False)
    wait_for("it is up", lambda: s.get("/workers")[0]["status"] == "up")
    assert call(s.port, "GET", "/ready").status == 503
    assert ask(s).status == 503 and p.n == 0
    answers = []
    s2 = start(Serve, [p.spec("prefill")], "--queue-timeout", "60", ready=False)
    wait_for("it is up", lambda: s2.get("/workers")[0]["status"] == "up")
    t = threading.Thread(target=lambda: answers.append(ask(s2, timeout=60)))
    t.start()
    wait_for("it waits", lambda: s2.metric("requests_without_worker") == 1)
    call(s2.admin, "POST", "/workers", {"worker_id": 5, "endpoint": f"http://127.0.0.1:{d.port}", "role": "decode", "block_size": 16})
    t.join()
    assert answers[0].status == 200 and answers[0].headers["x-kvroute-disagg"] == "remote"


def test_workers_that_do_both_take_requests_where_nobody_decodes(legs, start):
    p, b = legs(prefills), legs(decodes)
    s = start(Serve, [p.spec("prefill"), b.spec("both")])
    a = ask(s)
    assert a.headers["x-kvroute-disagg"] == "aggregated" and p.n == 0 and b.n == 1


def test_workers_of_different_protocols_never_meet(legs, start):
    p, d = legs(prefills), legs(decodes)
    s = start(Serve, [p.spec("prefill", "kv-protocol=trtllm"), d.spec("decode", "kv-protocol=none")])
    wait_for("both up", lambda: all(w["status"] == "up" for w in s.get("/workers")))
    assert ask(s).headers["x-kvroute-disagg"] == "local" and p.n == 0


def test_a_role_can_be_changed(pair):
    s, ps, ds = pair(n=1)
    worker = next(w for w in s.get("/workers") if w["role"] == "prefill")
    assert call(s.admin, "PATCH", f"/workers/{worker['worker_id']}", {"role": "both"}).status == 200
    wait_for("aggregated", lambda: ask(s).headers["x-kvroute-disagg"] in ("aggregated", "local"))
    assert "kv_transfer_params" not in (ps[0].bodies + ds[0].bodies)[-1]
    assert call(s.admin, "PATCH", f"/workers/{worker['worker_id']}", {"role": "prefill"}).status == 200
    wait_for("remote", lambda: ask(s).headers["x-kvroute-disagg"] == "remote")


@pytest.mark.parametrize("more, name", [({"n": 2}, "n"), ({"prompt": [PROMPT, PROMPT]}, "prompt"), ({"prompt_logprobs": 1}, "prompt_logprobs"),
                                        ({"echo": True, "logprobs": 1}, "echo")])
def test_what_two_engines_cannot_do_goes_to_one(pair, legs, start, more, name):
    s, ps, ds = pair(n=1)
    assert ask(s, **more).headers["x-kvroute-disagg"] == "local"
    assert (total(ps), total(ds)) == (0, 1)
    p, d = legs(prefills), legs(decodes)
    s = start(Serve, [p.spec("prefill"), d.spec("decode", "local-prefill=false")])
    wait_for("both up", lambda: all(w["status"] == "up" for w in s.get("/workers")))
    a = ask(s, **more)
    assert a.status == 400 and name in a.json()["error"]["message"] and p.n + d.n == 0


def test_one_token_is_a_prefill_workers_own(pair):
    s, ps, ds = pair()
    a = ask(s, max_tokens=1, prompt_logprobs=1)
    assert a.headers["x-kvroute-disagg"] == "prefill-only" and (total(ps), total(ds)) == (1, 0)
    assert "kv_transfer_params" not in only(ps).bodies[0]


def test_a_shared_store_needs_no_object(pair):
    s, ps, ds = pair(prefill=lambda n, b: (200, {"choices": []}), keys=("kv-protocol=none",))
    assert ask(s).headers["x-kvroute-disagg"] == "remote"
    assert only(ds).raw[0] == json.dumps(BODY).encode() and only(ps).bodies[0] == {**BODY, "max_tokens": 1, "stream": False}


@pytest.mark.parametrize("stream", [False, True])
def test_usage_tells_what_the_prefill_worker_had_cached(pair, stream):
    s, _, _ = pair()
    if stream:
        text = call(s.port, "POST", "/v1/completions", {**BODY, "stream": True, "stream_options": {"include_usage": True}}).body
        assert text == events("a", "b", cached=32)
    else:
        assert ask(s).body == json.dumps(answer(cached=32)).encode()


def test_usage_can_be_left_as_the_decode_worker_says(pair):
    s, _, _ = pair("--disagg-usage", "decode")
    assert ask(s).body == json.dumps(answer()).encode()


def test_a_silent_prefill_worker_leaves_no_count_of_cached_tokens(pair):
    s, _, _ = pair(prefill=lambda n, b: (200, {**handoff(), "usage": None}))
    assert "cached_tokens" not in ask(s).json()["usage"].get("prompt_tokens_details", {})


def test_loads_of_both_legs(pair):
    s, ps, ds = pair(prefill=lambda n, b: HANG, n=1)
    t = threading.Thread(target=lambda: ask(s))
    t.start()
    wait_for("the prefill leg", lambda: ps[0].n == 1)
    by = {w["worker_id"]: w["role"] for w in s.get("/workers")}
    seen = {by[x["worker_id"]]: x for x in loads(s)}
    assert seen["prefill"]["active_prefill_tokens"] == 64 and seen["prefill"]["active_decode_blocks"] == 0
    assert seen["decode"]["active_requests"] == 0
    ps[0].go.set()
    t.join()
    idle(s)
    ps[0].script = prefills
    ds[0].script, before = lambda n, b: HANG, ds[0].n
    t = threading.Thread(target=lambda: ask(s))
    t.start()
    wait_for("the decode leg", lambda: ds[0].n == before + 1)
    seen = {by[x["worker_id"]]: x for x in loads(s)}
    assert seen["prefill"]["active_prefill_tokens"] == 0
    assert seen["decode"]["active_prefill_tokens"] == 0 and seen["decode"]["active_decode_blocks"] == 4
    ds[0].go.set()
    t.join()
    idle(s)


def test_equal_prompts_take_blocks_twice_on_a_decode_worker(pair):
    s, _, ds = pair(decode=lambda n, b: HANG, n=1)
    ts = [threading.Thread(target=lambda: ask(s)) for _ in range(2)]
    for t in ts:
        t.start()
    wait_for("both", lambda: ds[0].n == 2)
    assert max(x["active_decode_blocks"] for x in loads(s)) == 8
    ds[0].go.set()
    for t in ts:
        t.join()
    idle(s)


def test_a_decode_worker_is_booked_for_the_last_block_too_which_is_not_full(pair):
    s, _, ds = pair(decode=lambda n, b: HANG, n=1)
    t = threading.Thread(target=lambda: ask(s, prompt=PROMPT + PROMPT[:2]))
    t.start()
    wait_for("the decode leg", lambda: ds[0].n == 1)
    assert max(x["active_decode_blocks"] for x in loads(s)) == 5
    ds[0].go.set()
    t.join()
    idle(s)


def test_a_pinned_decode_worker_gets_a_prefill_worker_of_its_protocol(legs, start):
    nixl, other, d1, d2 = legs(prefills), legs(lambda n, b: (200, {"choices": []})), legs(decodes), legs(decodes)
    s = start(Serve, [nixl.spec("prefill", "id=1"), d1.spec("decode", "id=2"), other.spec("prefill", "id=3", "kv-protocol=none"), d2.spec("decode", "id=4", "kv-protocol=none")])
    wait_for("all up", lambda: all(w["status"] == "up" for w in s.get("/workers")))
    for pin, by in ((4, 3), (2, 1)):
        a = ask(s, {"x-kvroute-worker": str(pin)})
        assert a.status == 200 and int(a.headers["x-kvroute-worker"]) == pin and int(a.headers["x-kvroute-prefill-worker"]) == by, a.body
    a = ask(s, {"x-kvroute-worker": "1"})
    assert a.status == 400 and "prefill" in a.json()["error"]["message"]


def test_sessions_stay_on_a_worker_of_each_role(pair):
    s, _, _ = pair("--router-session-affinity-ttl-secs", "60")
    seen = set()
    for i in range(12):
        a = ask(s, {"x-session-id": "s"}, max_tokens=1 if i % 3 == 1 else 4)
        assert a.status == 200
        if a.headers["x-kvroute-disagg"] == "remote":
            seen.add((a.headers["x-kvroute-prefill-worker"], a.headers["x-kvroute-worker"]))
        ask(s)  # others turn by turn
    assert len(seen) == 1


def test_requests_of_two_legs_are_counted_as_choices(pair):
    s, _, _ = pair()
    for _ in range(5):
        assert ask(s).status == 200
    wait_for("all of them", lambda: s.metric("choices_total") == 5)


# ---- failures ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [503, 502, 504, 500, RESET])
def test_a_prefill_worker_that_fails_is_followed_by_another(pair, how):
    s, ps, ds = pair(prefill=lambda n, b: how if total_of["n"]() == 1 else (200, handoff()))
    total_of["n"] = lambda: total(ps)
    a = ask(s)
    assert a.status == 200 and a.headers["x-kvroute-disagg"] == "remote"
    assert [p.n for p in ps] == [1, 1] and total(ds) == 1
    ids = sorted(p.heads[0]["x-request-id"] for p in ps)
    assert ids == [a.headers["x-request-id"], a.headers["x-request-id"] + ".1"]
    idle(s)


total_of = {}


@pytest.mark.parametrize("how", [500, 503, RESET])
def test_after_all_prefill_workers_one_worker_takes_the_whole_request(pair, how):
    s, ps, ds = pair(prefill=lambda n, b: how)
    a = ask(s)
    assert a.status == 200 and a.headers["x-kvroute-disagg"] == "fallback", a.body
    assert [p.n for p in ps] == [1, 1] and "kv_transfer_params" not in only(ds).bodies[0]
    idle(s)


def test_enforced_two_legs_end_with_the_last_failure(pair):
    s, ps, ds = pair("--enforce-disagg", prefill=lambda n, b: 500)
    a = ask(s)
    assert a.status == 500 and total(ds) == 0 and [p.n for p in ps] == [1, 1]
    idle(s)


@pytest.mark.parametrize("status", [400, 401, 404, 422, 429])
def test_what_is_wrong_with_a_request_is_passed_on(pair, status):
    s, ps, ds = pair(prefill=lambda n, b: status)
    a = ask(s)
    assert a.status == status and a.json()["error"]["message"] == f"status {status}" and total(ps) == 1 and total(ds) == 0
    idle(s)


@pytest.mark.parametrize("more", [{"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required"}, {"response_format": {"type": "json_object"}}])
@pytest.mark.parametrize("status", [400, 500])
def test_a_call_that_must_come_is_not_split_twice(pair, more, status):
    s, ps, ds = pair(prefill=lambda n, b: status)
    a = ask(s, **more)
    assert a.status == 200 and a.headers["x-kvroute-disagg"] == "fallback" and total(ps) == 1 and total(ds) == 1


@pytest.mark.parametrize("bad", [{"choices": []}, {"kv_transfer_params": None}, {"kv_transfer_params": {"remote_host": "h"}}, b"no json", b""])
def test_an_answer_without_a_handoff_object_leads_to_one_worker(pair, bad):
    s, _, ds = pair(prefill=lambda n, b: (200, bad))
    a = ask(s)
    assert a.status == 200 and a.headers["x-kvroute-disagg"] == "fallback" and "kv_transfer_params" not in only(ds).bodies[0]
    idle(s)


def test_an_answer_without_a_handoff_object_is_an_error_where_nobody_else_can(pair):
    s, _, ds = pair("--enforce-disagg", prefill=lambda n, b: (200, {"choices": []}))
    assert ask(s).status == 502 and total(ds) == 0
    idle(s)


def test_a_prefill_worker_that_takes_too_long(pair):
    s, ps, ds = pair("--prefill-timeout", "0.2", prefill=lambda n, b: HANG)
    assert ask(s).status == 504 and total(ds) == 0
    wait_for("it has read it", lambda: total(ps) == 1)
    wait_for("it is told", lambda: only(ps).gone.is_set())
    assert s.metric("disagg_possible_leaks_total") == 1
    idle(s)


def test_one_token_falls_back_where_prefill_workers_fail(pair):
    s, ps, ds = pair(prefill=lambda n, b: 503)
    a = ask(s, max_tokens=1)
    assert a.status == 200 and a.headers["x-kvroute-disagg"] == "fallback" and [p.n for p in ps] == [1, 1] and total(ds) == 1
    idle(s)


@pytest.mark.parametrize("status", [301, 501, 507])
def test_an_odd_status_of_a_prefill_worker_is_no_computed_prompt(pair, status):
    s, ps, ds = pair(prefill=lambda n, b: (status, {"choices": []}), keys=("kv-protocol=none",))
    a = ask(s)
    assert a.status == 200 and a.headers["x-kvroute-disagg"] == "fallback" and total(ds) == 1
    idle(s)


def test_an_object_is_never_sent_twice_on_a_connection_that_was_kept(pair):
    s, ps, ds = pair(n=1, prefill=lambda n, b: (200, handoff(remote_request_id=f"r{n}")), decode=lambda n, b: RESET if n == 1 else (200, answer()))
    assert ask(s).status == 200
    assert ask(s).status == 502
    assert ask(s).status == 200
    used = [b["kv_transfer_params"]["remote_request_id"] for b in ds[0].bodies]
    assert len(used) == len(set(used)) == 3, used
    idle(s)


def test_a_decode_worker_that_cannot_be_reached_leaves_the_object_to_another(pair):
    s, ps, ds = pair("--health-interval", "3600")
    ds[0].vanish()
    asked = 0
    while not s.metric("disagg_leg_retries_total", leg="decode"):
        assert ask(s).status == 200
        asked += 1
    assert total(ps) == ds[1].n == asked and ds[0].n == 0, "a prompt was computed again"
    assert s.metric("disagg_leg_retries_total", leg="prefill") == 0
    idle(s)


@pytest.mark.parametrize("how", [502, 503, 504, 500, RESET])
def test_a_decode_worker_that_may_have_seen_the_object_costs_another_prefill(pair, how):
    s, ps, ds = pair(decode=lambda n, b: how if seen["n"]() == 1 else (200, answer()))
    seen = {"n": lambda: total(ds)}
    a = ask(s)
    assert a.status == 200 and total(ps) == 2 and [d.n for d in ds] == [1, 1], (a.status, a.body)
    idle(s)


def test_a_second_500_of_decode_workers_is_the_answer(pair):
    s, ps, ds = pair(decode=lambda n, b: 500)
    a = ask(s)
    assert a.status == 500 and a.json()["error"]["message"] == "status 500" and total(ds) == 2 and total(ps) == 2
    idle(s)


@pytest.mark.parametrize("status", [400, 422, 429])
def test_an_error_of_the_decode_worker_is_passed_on(pair, status):
    s, ps, ds = pair(decode=lambda n, b: status)
    assert ask(s).status == status and (total(ps), total(ds)) == (1, 1)
    assert s.metric("disagg_possible_leaks_total") == 1  # who refuses a request does not pull its prompt
    idle(s)


def test_failures_of_one_leg_do_not_count_against_the_other(pair):
    s, ps, ds = pair("--breaker-failures", "2", "--max-retries", "0", prefill=lambda n, b: 500, n=1)
    for _ in range(4):
        ask(s)
    open_ = {w["role"]: w["breaker_open"] for w in s.get("/workers")}
    assert open_ == {"prefill": True, "decode": False}


def test_an_object_that_grows_old_is_not_used(pair):
    s, ps, ds = pair("--handoff-timeout", "1.5", keys=("kv-lease=1", "local-prefill=false"), n=1)
    worker = next(w for w in s.get("/workers") if w["role"] == "decode")
    ps[0].script = lambda n, b: (call(s.admin, "DELETE", f"/workers/{worker['worker_id']}"), (200, handoff()))[1]
    a = ask(s)
    assert a.status == 503 and total(ds) == 0
    idle(s)


# ---- clients that leave --------------------------------------------------------------------------------


def leave(s, when, **more):
    import http.client
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=30)
    c.request("POST", "/v1/completions", json.dumps({**BODY, **more}))
    wait_for("the moment", when)
    c.close()


def test_a_client_that_leaves_while_the_prompt_is_computed(pair):
    s, ps, ds = pair(prefill=lambda n, b: HANG)
    leave(s, lambda: total(ps) == 1)
    wait_for("it is told", lambda: only(ps).gone.is_set())
    assert total(ds) == 0
    idle(s)
    assert s.metric("disagg_releases_total", how="dispatched") == 0


def leave_unpaired(s, ps):
    """The decode worker is another fleet's when the prompt is computed, so that the request waits between its legs; then its client leaves."""
    decode = next(w["worker_id"] for w in s.get("/workers") if w["role"] == "decode")
    ps[0].script = lambda n, b: (call(s.admin, "PATCH", f"/workers/{decode}", {"kv_protocol": "none"}), (200, handoff()))[1]
    leave(s, lambda: ps[0].n == 1 and not any(x["active_prefill_tokens"] for x in loads(s)))


def test_a_client_that_leaves_between_the_legs_where_nobody_can_release(pair):
    s, ps, ds = pair("--handoff-timeout", "60", keys=("local-prefill=false",), n=1)
    leave_unpaired(s, ps)
    wait_for("it is counted", lambda: s.metric("disagg_possible_leaks_total") == 1)
    assert ds[0].n == 0 and s.metric("disagg_releases_total", how="dispatched") == 0
    idle(s)


@pytest.mark.parametrize("release", ["true", "false"])
def test_a_prompt_that_nobody_goes_on_from_is_released(pair, release):
    """The decode worker that was chosen cannot be reached, and there is no further try."""
    s, ps, ds = pair("--health-interval", "3600", "--max-retries", "0", f"--disagg-release={release}")
    ds[0].vanish()
    while ask(s, stream=True, max_tokens=100).status == 200:
        assert all(w["status"] == "up" for w in s.get("/workers"))
    wait_for("it is counted", lambda: s.metric("disagg_releases_total" if release == "true" else "disagg_possible_leaks_total") == 1)
    idle(s)
    released = [b for b in ds[1].bodies if b["max_tokens"] == 1]
    assert len(released) == (release == "true")
    assert all(b["stream"] is False and b["kv_transfer_params"] == PARAMS for b in released)
    assert s.metric("disagg_releases_total", how="failed") == 0
