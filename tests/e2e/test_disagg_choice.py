# SPDX-License-Identifier: Apache-2.0
"""Which prefill worker and which decode worker a request gets, whether it gets two at all, and what is seen of that. The workers are scripts
(leg_parts.py); what they have cached is what the router has sent them (--no-router-kv-events)."""
import http.client
import json
import threading

import pytest
from conftest import Mock, Serve, call, wait_for
from leg_parts import HANG, answer, begins, decodes, events, handoff, prefills

PREDICTED = ("--no-router-kv-events",)


def ask(s, tokens, headers=None, timeout=60, **more):
    return call(s.port, "POST", "/v1/completions", {"model": "m", "prompt": tokens, "max_tokens": 4, **more}, headers, timeout=timeout)


def how(a):
    assert a.status == 200, a.body
    return a.headers["x-kvroute-disagg"]


def prompt(first, n):
    """n tokens that share nothing with those of another first one."""
    return [first] + [1000 + i % 7919 for i in range(n - 1)]


@pytest.fixture
def fleet(start, legs):  # in this order: workers let go of what they hold before the router ends
    """Workers by id, prefill workers from 1 on and decode workers from 11 on, each with keys of its own; and a router over them."""
    def make(prefill=((),), decode=((),), options=(), block_size=16, script=decodes, prefill_script=prefills):
        ws, specs = {}, []
        for role, first, keys in (("prefill", 1, prefill), ("decode", 11, decode)):
            for i, more in enumerate(keys):
                w = ws[first + i] = legs(prefill_script if role == "prefill" else script)
                specs.append(w.spec(role, f"id={first + i}", *more).replace("block-size=16", f"block-size={block_size}"))
        s = start(Serve, specs, *options)
        wait_for("all workers", lambda: all(w["status"] == "up" for w in s.get("/workers")))
        return s, ws
    return make


class Held:
    """A request that stays where it is until its worker lets go."""

    def __init__(self, s, worker, tokens, headers=None, **more):
        self.worker, self.answers, before = worker, [], worker.n
        self.thread = threading.Thread(target=lambda: self.answers.append(ask(s, tokens, headers, **more)))
        self.thread.start()
        wait_for("it is there", lambda: worker.n > before)

    def end(self):
        self.worker.go.set()
        self.thread.join()


def hangs(first):
    """Decode workers that keep the prompts that begin so."""
    return lambda n, b: HANG if isinstance(b["prompt"], list) and b["prompt"][0] == first else decodes(n, b)


# ---- the two choices -----------------------------------------------------------------------------------


def test_growing_prompts_go_to_the_prefill_worker_that_has_them_while_decode_workers_take_turns(fleet):
    # Not by learnt times, which are those of a busy machine; with a seed, as decode workers that have nothing to do are equals.
    s, ws = fleet(((), ()), ((), ()), (*PREDICTED, "--cost", "linear", "--router-seed", 1))
    answers = [ask(s, prompt(1, 64 * (k + 1))) for k in range(8)]
    assert {how(a) for a in answers} == {"remote"}
    assert len({a.headers["x-kvroute-prefill-worker"] for a in answers}) == 1
    assert {a.headers["x-kvroute-worker"] for a in answers} == {"11", "12"}
    assert [int(a.headers["x-kvroute-overlap-blocks"]) for a in answers] == [4 * k for k in range(8)]


def test_a_decode_worker_is_chosen_by_load_whatever_it_has(fleet):
    s, ws = fleet(((),), ((), ()), PREDICTED, script=hangs(5))
    warm = prompt(1, 1600)
    assert how(ask(s, warm, {"x-kvroute-worker": "11", "x-kvroute-disagg": "local"})) == "local"
    held = Held(s, ws[11], prompt(5, 64), {"x-kvroute-worker": "11"})
    for _ in range(3):
        a = ask(s, warm)
        assert how(a) == "remote" and a.headers["x-kvroute-worker"] == "12", a.headers
    held.end()


def test_each_leg_has_a_mode_of_its_own(fleet):
    s, ws = fleet(((), ()), ((), ()), (*PREDICTED, "--prefill-router-mode", "round-robin", "--decode-router-mode", "least-loaded"))
    answers = [ask(s, prompt(1, 256)) for _ in range(4)]
    assert [ws[1].n, ws[2].n] == [2, 2], "the prompt is cached at the first one, which counts in mode kv alone"
    assert {a.headers["x-kvroute-reason"] for a in answers} == {"round-robin"}
    assert {how(ask(s, prompt(2, 256), {"x-kvroute-disagg": "local"})) for _ in range(2)} == {"local"}


# ---- one worker or two ---------------------------------------------------------------------------------

CONDITIONAL = (*PREDICTED, "--router-conditional-disagg")


def after(s, first, cached, n):
    """What becomes of a prompt of n tokens of which a decode worker has that many."""
    warm = ask(s, prompt(first, cached), {"x-kvroute-disagg": "local"})
    assert how(warm) == "local"
    a = ask(s, prompt(first, n))
    if how(a) == "local":
        assert a.headers["x-kvroute-worker"] == warm.headers["x-kvroute-worker"], "another decode worker than the warm one"
        assert a.headers["x-kvroute-reason"] == "local", "not by the rule's own look"
    return how(a)


def test_a_prompt_of_which_little_is_uncached_goes_whole_to_the_warm_decode_worker(fleet):
    s, ws = fleet(((),), ((), ()), CONDITIONAL, block_size=1)
    assert after(s, 1, 7953, 10000) == "local", "2047 tokens of 10,000 are uncached"
    assert after(s, 2, 7952, 10000) == "remote", "2048 tokens are not fewer than 2048"
    assert after(s, 3, 301, 1000) == "local", "a share of 0.699"
    assert after(s, 4, 300, 1000) == "remote", "a share of 0.7 is not below 0.7"
    a = ask(s, prompt(1, 10000), {"x-kvroute-disagg": "remote"})
    assert how(a) == "remote", "who asks for two legs gets two"
    a = ask(s, prompt(1, 10000), {"x-kvroute-prefill-worker": "1"})
    assert how(a) == "remote" and a.headers["x-kvroute-prefill-worker"] == "1"


def test_a_full_decode_worker_gets_no_whole_request(fleet):
    options = (*CONDITIONAL, "--router-conditional-disagg-decode-busy-threshold", "0.5", "--router-conditional-disagg-eff-isl-ratio-threshold", "2")
    s, ws = fleet(((),), (("total-kv-blocks=8",),), options)
    assert how(ask(s, prompt(1, 64))) == "local", "4 blocks of 8"
    assert how(ask(s, prompt(2, 80))) == "remote", "5 blocks of 8"


def test_a_decode_worker_whose_room_is_not_known_gets_no_whole_request_by_the_gate(fleet):
    options = (*CONDITIONAL, "--router-conditional-disagg-decode-busy-threshold", "0.5", "--router-conditional-disagg-eff-isl-ratio-threshold", "2")
    s, ws = fleet(((),), ((),), options)
    assert how(ask(s, prompt(1, 64))) == "remote"


def test_without_an_index_the_length_of_a_prompt_says_whether_it_is_split(fleet):
    s, ws = fleet(((),), ((),), ("--router-kv-overlap-score-credit", "0", "--disagg-min-uncached-tokens", "64"))
    assert how(ask(s, prompt(1, 63))) == "local"
    assert how(ask(s, prompt(2, 64))) == "remote"


def test_least_delay_spares_those_who_generate(fleet):
    script = lambda n, b: begins(events("a")[:-20], b"") if b.get("stream") else decodes(n, b)
    s, ws = fleet(((),), ((),), (*PREDICTED, "--router-conditional-disagg", "--router-conditional-disagg-policy", "least_delay"), script=script)
    assert how(ask(s, prompt(1, 10000))) == "local"  # nobody would wait for it
    held = Held(s, ws[11], prompt(2, 32), stream=True)
    wait_for("it generates", lambda: not any(x["active_prefill_tokens"] for x in s.get("/loads")))
    assert how(ask(s, prompt(3, 10000))) == "remote"
    held.end()


@pytest.mark.parametrize("policy, then", [("prefill_load", "local"), ("isl_or_load", "local"), ("isl_bounding", "remote")])
def test_a_busy_prefill_worker_is_passed_by_where_the_rule_is_by_load(fleet, policy, then):
    options = (*CONDITIONAL, "--router-conditional-disagg-policy", policy, "--router-conditional-disagg-prefill-busy-threshold", "0.5",
               "--router-conditional-disagg-eff-isl-threshold", "1")
    s, ws = fleet((("max-num-batched-tokens=100",),), ((),), options, prefill_script=lambda n, b: HANG if b["prompt"][0] == 5 else (200, handoff()))
    assert how(ask(s, prompt(1, 64))) == "remote"
    held = Held(s, ws[1], prompt(5, 64))
    assert how(ask(s, prompt(2, 64))) == then
    held.end()


def test_a_rule_by_load_needs_to_know_which_load_is_too_high(start):
    with pytest.raises(AssertionError, match="router-conditional-disagg-prefill-busy-threshold or router-queue-threshold"):
        start(Serve, [], "--router-conditional-disagg", "--router-conditional-disagg-policy", "prefill_load")


def test_a_session_whose_decode_worker_has_it_is_served_there_as_a_whole(fleet):
    s, ws = fleet(((),), ((), ()), (*CONDITIONAL, "--router-session-affinity-ttl-secs", "600"))
    session = {"x-session-id": "one"}
    first = ask(s, prompt(1, 640), session)
    assert how(first) == "remote"
    for k in range(1, 5):
        a = ask(s, prompt(1, 640 + 64 * k), session)
        assert how(a) == "local" and a.headers["x-kvroute-worker"] == first.headers["x-kvroute-worker"], k


# ---- transfer domains ----------------------------------------------------------------------------------


def test_a_decode_worker_near_the_prompt_is_preferred_until_it_costs_twice_as_much(fleet):
    s, ws = fleet((("kv-domain=a",),), (("kv-domain=a",), ("kv-domain=b",)), (*PREDICTED, "--cost", "linear"), script=hangs(5))
    assert {w["kv_domain"] for w in s.get("/workers") if w["role"] == "decode"} == {"a", "b"}

    def goes_to(first):
        a = ask(s, prompt(first, 160))
        assert how(a) == "remote"
        return a.headers["x-kvroute-worker"]
    assert [goes_to(k) for k in (1, 2, 3)] == ["11"] * 3
    near = {"x-kvroute-worker": "11"}
    held = [Held(s, ws[11], prompt(5, 144), near)]
    assert goes_to(6) == "11", "19 blocks at half the cost are less than 10"
    held.append(Held(s, ws[11], prompt(5, 32), near))
    assert goes_to(7) == "12", "21 blocks at half the cost are more than 10"
    for h in held:
        h.end()


def test_a_required_domain_is_never_left(fleet):
    s, ws = fleet((("kv-domain=a",), ("kv-domain=c",)), (("kv-domain=a",), ("kv-domain=b",)), (*PREDICTED, "--kv-transfer-domain", "required"))
    for k in range(10):
        a = ask(s, prompt(k, 64))
        assert how(a) == "remote" and (a.headers["x-kvroute-prefill-worker"], a.headers["x-kvroute-worker"]) == ("1", "11")
    a = ask(s, prompt(20, 64), {"x-kvroute-prefill-worker": "1", "x-kvroute-worker": "12"})
    assert a.status == 400 and ws[2].n == 0, a.body
    call(s.admin, "DELETE", "/workers/11")
    assert how(ask(s, prompt(21, 64))) == "local" and [ws[1].n, ws[2].n, ws[12].n] == [10, 0, 1], "no prefill worker has a partner"


def test_a_computed_prompt_is_not_released_into_another_domain(fleet):
    s, ws = fleet((("kv-domain=a",),), (("kv-domain=a",), ("kv-domain=b",)),
                  (*PREDICTED, "--kv-transfer-domain", "required", "--health-interval", "3600", "--max-retries", "0"))
    ws[11].vanish()
    while (a := ask(s, prompt(1, 64))).status == 200:  # by a connection that was kept
        assert all(w["status"] == "up" for w in s.get("/workers"))
    wait_for("it is left to its lease", lambda: s.metric("disagg_possible_leaks_total", why="not-released") == 1)
    assert ws[12].n == 0 and s.metric("disagg_releases_total") == 0
    assert decision(s, a)["staged"] == "lease"


# ---- an index elsewhere --------------------------------------------------------------------------------


@pytest.mark.parametrize("events", [True, False])
def test_an_index_elsewhere_knows_what_prefill_workers_have(legs, start, events):
    d = legs(decodes)
    p = start(Mock, "--role", "prefill", "--kv-protocol", "vllm-nixl", "--model", "m") if events else legs(prefills)
    options = ("--tokenizer", "bytes") if events else PREDICTED
    followed = p.spec(",role=prefill,block-size=16,id=1") if events else p.spec("prefill", "id=1")
    known = [f"http://127.0.0.1:{p.port},role=prefill,block-size=16,id=1", d.spec("decode", "id=11")]
    owner = start(Serve, [followed, known[1]], "--serve-indexer", *options)
    s = start(Serve, known, *options, "--use-remote-indexer", f"http://127.0.0.1:{owner.admin}")
    wait_for("the index", lambda: s.metric("remote_indexer_up") == 1)
    for worker in (s, owner):
        wait_for("all workers", lambda: all(w["status"] == "up" for w in worker.get("/workers")))
    first = ask(s, prompt(1, 160))
    assert how(first) == "remote" and first.headers["x-kvroute-overlap-blocks"] == "0"
    again = wait_for("what it has", lambda: (a := ask(s, prompt(1, 160))).headers["x-kvroute-overlap-blocks"] != "0" and a)
    assert how(again) == "remote" and int(again.headers["x-kvroute-overlap-blocks"]) >= 9 and again.headers["x-kvroute-reason"] == "kv"


# ---- what is seen --------------------------------------------------------------------------------------


def decision(s, a):
    question = f"/decisions?id={a.headers['x-request-id']}"
    return wait_for("the decision", lambda: call(s.admin, "GET", question).status == 200 and s.get(question))


def test_a_decision_tells_of_both_legs_and_their_times_add_up(fleet):
    def late(script):
        def answer_later(n, b):
            threading.Event().wait(0.1)
            return script(n, b)
        return answer_later
    s, ws = fleet(((), ()), ((), ()), (*PREDICTED, "--router-conditional-disagg"), script=late(decodes), prefill_script=late(prefills))
    a = ask(s, prompt(1, 64), stream=True)
    d = decision(s, a)
    assert (d["treatment"], d["protocol"], d["staged"], d["eff_isl"], d["why"]) == ("remote", "vllm-nixl", "pulled", 64, "much is uncached at the decode worker")
    p = d["prefill"]
    assert [d["worker_id"], p["worker_id"]] == [int(a.headers["x-kvroute-worker"]), int(a.headers["x-kvroute-prefill-worker"])]
    assert (p["status"], p["tries"], p["overlap_blocks"], p["cached_tokens"], p["actual_cached"], p["waited_ms"]) == (200, 1, 0, 0, 32, 0)
    assert {c["worker_id"] for c in p["candidates"]} == {1, 2} and {c["worker_id"] for c in d["candidates"]} == {11, 12}
    assert p["ms"] >= 80 and d["kv_wait_ms"] >= 80 and d["handoff_ms"] >= 0
    assert abs(p["ms"] + d["handoff_ms"] + d["kv_wait_ms"] - d["ttft_ms"]) < 50, d
    assert "candidates" not in s.get("/decisions")[0]["prefill"] and s.get("/decisions")[0]["treatment"] == "remote"
    d = decision(s, ask(s, prompt(1, 64)))
    assert (d["treatment"], d["why"], d["eff_isl"]) == ("local", "little is uncached at the decode worker", 0) and "prefill" not in d


def test_a_decision_tells_why_one_worker_got_all_of_it(fleet):
    s, ws = fleet(((), ()), ((),), PREDICTED, prefill_script=lambda n, b: 503)
    a = ask(s, prompt(1, 64))
    d = decision(s, a)
    assert (d["treatment"], d["why"], d["worker_id"], d["status"]) == ("fallback", "no-prefill", 11, 200)
    assert (d["prefill"]["status"], d["prefill"]["tries"], d["prefill"]["ms"], d["staged"]) == (503, 2, None, None)
    assert s.metric("disagg_fallbacks_total", why="no-prefill") == 1 and s.metric("disagg_leg_errors_total", leg="prefill", status="503") == 2
    assert s.metric("disagg_leg_retries_total", leg="prefill") == 2


def test_prefill_workers_that_come_and_go_are_told_once(fleet):
    s, ws = fleet(decode=((),), prefill=())
    state = lambda: s.metric("disagg_state", model="m")
    wait_for("its model is known", lambda: "disagg_state{" in call(s.admin, "GET", "/metrics").body.decode())
    assert state() == 0
    p = {"worker_id": 1, "endpoint": f"http://127.0.0.1:{ws[11].port}", "role": "prefill", "block_size": 16, "force": True}
    for _ in range(2):
        assert call(s.admin, "POST", "/workers", p).status == 201
        wait_for("it is up", lambda: state() == 1)
        assert how(ask(s, prompt(1, 64), {"x-kvroute-disagg": "local"})) == "local"
        assert call(s.admin, "DELETE", "/workers/1").status == 200
        assert state() == 2
        assert how(ask(s, prompt(1, 64))) == "local"
    told = [line.split("kvroute: ", 1)[1] for line in s.text().splitlines() if "prefill worker" in line]
    assert told == ["model m: prefill workers are up; requests may have two legs", "model m: no prefill worker is up any more"] * 2


def test_what_is_counted_of_two_legs(fleet):
    s, ws = fleet(((),), ((),), PREDICTED)
    count = lambda name, **labels: s.metric(f"disagg_{name}", **labels)
    assert how(ask(s, prompt(1, 64))) == "remote" and how(ask(s, prompt(1, 64), n=2)) == "local"
    assert how(ask(s, prompt(1, 64), max_tokens=1)) == "prefill-only"
    for treatment in ("remote", "local", "prefill-only"):
        wait_for(treatment, lambda: count("requests_total", treatment=treatment) == 1)
    assert count("requests_total") == 3
    for name in ("prefill_leg_seconds", "handoff_seconds", "kv_wait_seconds"):
        assert s.metric(f"{name}_count") == 1, name
    ws[11].script = lambda n, b: HANG
    held = Held(s, ws[11], prompt(2, 64))
    wait_for("it is staged", lambda: count("staged_requests", worker_id=1) == 1)
    held.end()
    wait_for("it is not any more", lambda: count("staged_requests", worker_id=1) == 0)
    ws[11].script = lambda n, b: 422
    assert ask(s, prompt(3, 64)).status == 422
    assert count("leg_errors_total", leg="decode", status="422") == 1 and count("possible_leaks_total", why="decode-4xx") == 1
    ws[1].script, before = lambda n, b: HANG, ws[1].n
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60)
    c.request("POST", "/v1/completions", json.dumps({"model": "m", "prompt": prompt(4, 64), "max_tokens": 4}))
    wait_for("it is there", lambda: ws[1].n > before)
    c.close()
    wait_for("it is counted", lambda: count("possible_leaks_total", why="abort-race") == 1)
    page = call(s.admin, "GET", "/metrics").body.decode()
    for family in ("worker_up", "worker_requests_total", "worker_registered", "worker_active_requests"):
        assert {line.split('role="')[1].split('"')[0] for line in page.splitlines() if line.startswith(f"kvroute_{family}{{")} == {"prefill", "decode"}, family


CONVERSATIONS, TURNS = 50, 10


def test_what_is_predicted_of_conversations_is_what_prefill_workers_have(start):
    def mock(role):
        return start(Mock, "--role", role, "--kv-protocol", "vllm-nixl", "--model", "m", with_events=role == "prefill")
    ps, ds = [mock("prefill") for _ in range(2)], [mock("decode") for _ in range(2)]
    s = start(Serve, [p.spec(",role=prefill,block-size=16") for p in ps] + [d.spec(",role=decode,block-size=16") for d in ds], "--tokenizer", "bytes")
    wait_for("all workers", lambda: all(w["status"] == "up" for w in s.get("/workers")))
    texts = [f"{c:03d} a conversation begins with this. " for c in range(CONVERSATIONS)]
    for turn in range(TURNS):
        for c in range(CONVERSATIONS):
            assert how(ask(s, texts[c], max_tokens=2)) == "remote"
            texts[c] += f"{turn} and one more thing, to be sure. "
        wait_for("all events", lambda: s.metric("index_blocks", routing_group="prefill") == sum(p.metric("kvroute_mock_cached_blocks") for p in ps))
    n = CONVERSATIONS * TURNS
    wait_for("all are counted", lambda: s.metric("usage_answers_total") == n)
    assert s.metric("predicted_equals_actual_total") == n
    assert s.metric("predicted_cached_tokens_total") == s.metric("actual_cached_tokens_total") > n * 16


# ---- who is asked for ----------------------------------------------------------------------------------


def test_pins_of_both_legs_are_honoured(fleet):
    s, ws = fleet(((), ("dp-size=2",)), ((), ()), PREDICTED)
    for pins in ({"x-kvroute-prefill-worker": "2", "x-kvroute-prefill-dp-rank": "1", "x-kvroute-worker": "12"},
                 {"x-dynamo-prefill-instance-id": "2", "x-dynamo-prefill-dp-rank": "1", "x-worker-instance-id": "12"},
                 {"x-prefill-instance-id": "2", "x-prefill-dp-rank": "1", "x-dynamo-worker-instance-id": "12"}):
        a = ask(s, prompt(1, 64), pins)
        assert how(a) == "remote"
        assert [a.headers[h] for h in ("x-kvroute-prefill-worker", "x-kvroute-prefill-dp-rank", "x-kvroute-worker")] == ["2", "1", "12"]
        assert not [h for w in (ws[2], ws[12]) for h in w.heads[-1] if "prefill" in h.lower() or h.lower().startswith("x-kvroute")]
    a = ask(s, prompt(1, 64), nvext={"prefill_worker_id": 2, "prefill_dp_rank": 0, "decode_worker_id": 11})
    assert [a.headers[h] for h in ("x-kvroute-prefill-worker", "x-kvroute-prefill-dp-rank", "x-kvroute-worker")] == ["2", "0", "11"]
    a = ask(s, prompt(1, 64), {"x-kvroute-prefill-worker": "1", "x-kvroute-prefill-dp-rank": "4294967295"},
            nvext={"prefill_worker_id": 2, "prefill_dp_rank": 0, "backend_instance_id": 12})
    assert (a.headers["x-kvroute-prefill-worker"], a.headers["x-kvroute-worker"]) == ("1", "12"), "the head beats the body"
    for _ in range(3):
        a = ask(s, prompt(1, 64), {"x-kvroute-prefill-worker": "2"})
        assert how(a) == "remote" and a.headers["x-kvroute-prefill-worker"] == "2"
        a = ask(s, prompt(1, 64), {"x-kvroute-worker": "12"})
        assert how(a) == "remote" and a.headers["x-kvroute-worker"] == "12"


def test_a_pin_that_cannot_be_had_is_refused(fleet):
    s, ws = fleet(((), ()), ((), ()), (*PREDICTED, "--breaker-cooldown", "600", "--breaker-failures", "1"))
    prefill = "x-kvroute-prefill-worker"
    for status, headers, more, text in ((400, {prefill: "11"}, {}, "role decode"),
                                        (404, {prefill: "77"}, {}, "not known"),
                                        (400, {"x-kvroute-worker": "1"}, {}, "only prefills"),
                                        (400, {prefill: "1", "x-kvroute-prefill-dp-rank": "3"}, {}, "out of range"),
                                        (400, {"x-kvroute-prefill-dp-rank": "0"}, {}, "x-kvroute-prefill-worker"),
                                        (400, {prefill: "one"}, {}, "worker id"),
                                        (400, {prefill: "1"}, {"n": 2}, "`n`"),
                                        (400, {"x-kvroute-disagg": "remote"}, {"n": 2}, "`n`"),
                                        (400, {"x-kvroute-disagg": "local", prefill: "1"}, {}, "exclude each other"),
                                        (400, {"x-kvroute-disagg": "both"}, {}, "remote, local"),
                                        (400, {}, {"nvext": {"prefill_worker_id": "x"}}, "nvext.prefill_worker_id"),
                                        (400, {}, {"nvext": {"decode_worker_id": 11, "backend_instance_id": 12}}, "nvext.decode_worker_id")):
        a = ask(s, prompt(1, 64), headers, **more)
        assert a.status == status and text in a.json()["error"]["message"], (headers, more, a.status, a.body)
    assert sum(w.n for w in ws.values()) == 0
    ws[1].script = lambda n, b: 502
    a = ask(s, prompt(1, 64), {prefill: "1"})
    assert a.status == 502 and ws[1].n == 1 and ws[2].n == ws[11].n == ws[12].n == 0, "a pinned worker is not replaced"
    a = ask(s, prompt(1, 64), {prefill: "1"})
    assert a.status == 503 and "prefill worker is not available" in a.json()["error"]["message"]
    assert how(ask(s, prompt(1, 64))) == "remote" and ws[2].n == 1


def test_two_legs_cannot_be_had_where_nobody_prefills(legs, start):
    b = legs(decodes)
    s = start(Serve, [b.spec("both")])
    a = ask(s, prompt(1, 64), {"x-kvroute-disagg": "remote"})
    assert a.status == 400 and b.n == 0
    assert ask(s, prompt(1, 64), {"x-kvroute-disagg": "local"}).status == 200


def test_where_the_client_chooses_a_pinned_decode_worker_needs_a_pinned_prefill_worker(fleet):
    s, ws = fleet(((), ()), ((), ()), ("--router-mode", "direct"))
    a = ask(s, prompt(1, 64), {"x-kvroute-worker": "11"})
    assert a.status == 400 and "x-kvroute-prefill-worker" in a.json()["error"]["message"]
    a = ask(s, prompt(1, 64), {"x-kvroute-worker": "11", "x-kvroute-prefill-worker": "2"})
    assert how(a) == "remote" and [ws[k].n for k in (1, 2, 11, 12)] == [0, 1, 1, 0]
    assert how(ask(s, prompt(1, 64), {"x-kvroute-worker": "12", "x-kvroute-disagg": "local"})) == "local"
    for worker in (1, 2):
        call(s.admin, "DELETE", f"/workers/{worker}")
    assert how(ask(s, prompt(1, 64), {"x-kvroute-worker": "11"})) == "local", "no prefill worker is there"
