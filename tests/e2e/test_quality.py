# SPDX-License-Identifier: Apache-2.0
"""How good choices are, as the router tells it: the terms of a decision, what is no error of a prediction."""
import http.client
import json
import os
import re
import threading

from conftest import Mock, Serve, call, read_sse, wait_for

TERMS = ("first_ms", "computing_ms", "generation_ms", "pass_ms")
REASONS = ("load", "copy", "not_eligible", "pinned", "session", "chance")


def together(s, prompts, **kw):
    """Sends all at once. Returns: the answers."""
    answers = [None] * len(prompts)

    def one(i):
        answers[i] = s.complete(prompts[i], **kw)
    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(prompts))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return answers


def decision(s, name):
    return wait_for("the decision", lambda: call(s.admin, "GET", f"/decisions?id={name}").status == 200 and s.get(f"/decisions?id={name}"))


def test_the_terms_of_a_delay_are_shown(start):
    s = start(Serve, [start(Mock, speedup=1), start(Mock, speedup=1)])
    tokens = list(range(2000))
    for i in range(10):  # what a token costs is seen
        assert s.complete([5000 + i] * (10 + 300 * i), max_tokens=4, stream=True).status == 200
    hold(s, tokens, 1)
    factor = {w["worker_id"]: w["ttft_model"]["factor"] for w in s.get("/workers")}
    r = s.complete(tokens, headers={"x-request-id": "why", "x-kvroute-explain": "1"})
    d = decision(s, "why")
    for row in d["candidates"]:
        assert all(row[t] >= 0 for t in TERMS) and row["copy_blocks"] >= 0 and row["pending_blocks"] >= 0 and row["pressure"] == 0
        assert abs(sum(row[t] for t in TERMS) - row["cost"]) < 0.01 * max(row["cost"], 1)
    holder, other = sorted(d["candidates"], key=lambda row: -row["device_blocks"])
    for term in ("computing_ms", "first_ms"):  # for a worker as fast as any: how fast each one seems is the machine's affair
        assert holder[term] / factor[holder["worker_id"]] < other[term] / factor[other["worker_id"]]
    chosen = next(row for row in d["candidates"] if row["worker_id"] == d["worker_id"])
    assert [d[t] for t in TERMS] == [chosen[t] for t in TERMS] and d["pending_blocks"] == chosen["pending_blocks"] == 0
    explained = r.headers["x-kvroute-explain"]
    for word in ("pending=", "copy=", *(t + "=" for t in TERMS)):
        assert explained.count(f" {word}") == 2, word
    assert d["other_ttft_ms"] is None  # nothing is known yet
    assert "first_ms" in s.get("/decisions")[0]  # the list has them too
    for w in s.get("/workers"):
        g = w["generation_model"]
        assert g["observations"] > 0 and g["tokens"] > 0 and g["base_ms"] >= 0 and g["block_ms"] >= 0


def test_a_linear_cost_has_no_such_terms(start):
    s = start(Serve, [start(Mock), start(Mock)], "--cost", "linear")
    r = s.complete(list(range(64)), headers={"x-request-id": "why", "x-kvroute-explain": "1"})
    d = decision(s, "why")
    for shown in (d, *d["candidates"]):
        assert not {*TERMS, "copy_blocks"} & set(shown) and shown["pending_blocks"] == 0
    assert "_ms=" not in r.headers["x-kvroute-explain"] and "pending=0" in r.headers["x-kvroute-explain"]


def test_what_a_sibling_joins_is_no_error_of_a_prediction(start):
    """Of a burst only the first computes the common prefix. That it was not there yet is what the views said, and so is that the
    others find it cached: between the two lies no error."""
    s = start(Serve, [start(Mock, "--max-num-seqs", 1, speedup=0.05) for _ in range(2)])  # all of a burst are there before its first is computed
    for burst in range(3):
        shared = [1000 + burst] * 512
        answers = together(s, [shared + [i] * 16 for i in range(10)], max_tokens=1)
        assert all(a.status == 200 for a in answers)
    wait_for("told", lambda: s.metric("usage_answers_total") == 30)
    print("predicted", s.metric("predicted_cached_tokens_total"), "delivered", s.metric("actual_cached_tokens_total"))
    assert s.metric("actual_cached_tokens_total") > s.metric("predicted_cached_tokens_total")
    assert s.metric("prediction_error_blocks_sum") == 0 and s.metric("prediction_error_blocks_count") == 30
    assert s.metric("prediction_diverged") == 0 and s.metric("prediction_divergence_ratio") == 0


def test_a_sibling_is_told_why_it_is_where_it_is(start):
    """Nobody holds its prompt, and it is not the load that takes it to the only worker that is busy."""
    s = start(Serve, [start(Mock, speedup=0.01) for _ in range(2)])  # it computes for seconds, and the next one comes meanwhile
    c = occupy(s, 1, 2048)
    r = s.complete([7] * 2048 + [8] * 16, max_tokens=1)
    assert r.status == 200 and r.headers["x-kvroute-worker"] == "1" and r.headers["x-kvroute-reason"] == "pending"
    assert r.headers["x-kvroute-overlap-blocks"] == "0"
    c.close()


def hold(s, tokens, worker, n=None):
    """That worker computes the prompt, and its view says so."""
    assert s.complete(tokens, max_tokens=1, headers={"x-kvroute-worker": str(worker)}).status == 200
    wait_for("held", lambda: s.overlap(tokens).get((worker, 0), 0) == (len(tokens) // 16 if n is None else n))


def occupy(s, worker, tokens):
    """A stream whose long prompt keeps a worker busy."""
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60)
    c.request("POST", "/v1/completions", json.dumps({"prompt": [7] * tokens, "max_tokens": 4, "stream": True}),
              {"x-kvroute-worker": str(worker)})
    wait_for("busy", lambda: any(l["active_prefill_tokens"] >= tokens for l in s.get("/loads") if l["worker_id"] == worker))
    return c


def moves(s):
    """{reason: (prompts, blocks)} of those that there are."""
    out = {r: (s.metric("prefix_moves_total", reason=r), s.metric("blocks_computed_again_total", reason=r)) for r in REASONS}
    return {r: v for r, v in out.items() if any(v)}


def expect_moves(s, wanted):
    """A request is counted after its answer, and the numbers are read one after the other."""
    wait_for(f"moves {wanted}", lambda: moves(s) == wanted)


def prompt(i, n=96):
    return [1000 + i] * n


def test_prompts_that_leave_their_prefix_are_counted_with_why(start):
    s = start(Serve, [start(Mock), start(Mock)], "--router-session-affinity-ttl-secs", 60)
    for i in range(4):
        hold(s, prompt(i), 1)
    assert moves(s) == {} and s.metric("choices_total") == 4
    assert s.complete(prompt(0)).headers["x-kvroute-worker"] == "1"  # goes where it is held
    assert moves(s) == {}
    assert s.complete(prompt(1), headers={"x-kvroute-worker": "2"}).status == 200
    expect_moves(s, {"pinned": (1, 6)})
    assert s.complete(prompt(9), headers={"x-kvroute-worker": "2", "x-session-id": "a"}).status == 200
    r = s.complete(prompt(2), headers={"x-session-id": "a"})
    assert r.headers["x-kvroute-worker"] == "2" and r.headers["x-kvroute-reason"] == "session"
    expect_moves(s, {"pinned": (1, 6), "session": (1, 6)})
    assert s.complete(prompt(3) + [5] * 112, headers={"x-kvroute-worker": "2"}).status == 200  # less than half of it is held
    expect_moves(s, {"pinned": (1, 12), "session": (1, 6)})
    assert s.get("/status")["last_minute"]["moved"]["pinned"] == 1


def test_a_holder_that_is_overloaded_is_no_candidate(start):
    s = start(Serve, [start(Mock, speedup=0.2), start(Mock)])
    hold(s, prompt(0), 1)
    held = occupy(s, 1, 200000)
    assert s.post("/busy_threshold", {"active_prefill_tokens_threshold": 1000}).status == 200
    assert s.complete(prompt(0)).headers["x-kvroute-worker"] == "2"
    expect_moves(s, {"not_eligible": (1, 6)})
    held.close()


def test_prompts_that_load_moves_are_told_in_the_log(start):
    s = start(Serve, [start(Mock, speedup=0.5), start(Mock)])
    for i in range(60):
        hold(s, prompt(i), 1)
    assert s.text().count("choices of the last minute") == 0 and s.get("/status")["last_minute"]["advice"] == ""
    held = occupy(s, 1, 200000)
    for i in range(60):
        assert s.complete(prompt(i), max_tokens=1).headers["x-kvroute-worker"] == "2"
    expect_moves(s, {"load": (60, 360)})
    last = s.get("/status")["last_minute"]
    assert last["choices"] == 120 and last["moved"]["load"] == 60 and last["blocks_computed_again"]["load"] == 360
    assert last["advice"] == ("choices of the last minute: 120; 60 moved away from their prefix by load (360 blocks computed again): "
                              "another worker would help")
    wait_for("the line", lambda: "moved away from their prefix by load" in s.text())
    assert s.text().count("choices of the last minute") == 1
    held.close()


def test_evictions_are_set_against_what_is_stored(start):
    s = start(Serve, [start(Mock, "--num-gpu-blocks", 32)])
    for i in range(20):
        hold(s, prompt(i, 160), 1)
    stored, removed = s.metric("index_stored_blocks_total"), s.metric("index_removed_blocks_total")
    assert stored >= 200 and removed >= 150 and stored - removed == s.metric("index_blocks") <= 32
    assert abs(s.metric("evictions_per_stored_block") - removed / stored) < 1e-3

    def pressed():
        s.complete(prompt(50), headers={"x-request-id": "why"})
        return decision(s, "why")["candidates"][0]["pressure"] > 0.3
    wait_for("what is evicted counts for the choice", pressed)


def test_times_to_first_token_are_compared_with_what_others_would_have_taken(start):
    s = start(Serve, [start(Mock, speedup=4), start(Mock, speedup=4)])
    for i in range(60):
        assert s.complete(prompt(i, 16 + 40 * (i % 20)), max_tokens=1, stream=True).status == 200
    regret, gain = s.metric("choice_regret_ms_count"), s.metric("choice_gain_ms_count")
    assert regret + gain == 60 - 19  # the first ones teach
    for i in range(5):
        assert s.complete(prompt(100 + i), max_tokens=1, stream=True, headers={"x-kvroute-worker": "1"}).status == 200
    assert s.metric("choice_regret_ms_count") + s.metric("choice_gain_ms_count") == regret + gain  # a pin is no choice
    last = s.get("/status")["last_minute"]
    assert 0 < last["compared"] <= 41 and last["ttft_ms"] > 0 and last["regret_ms"] >= 0 and last["gain_ms"] >= 0
    assert last["compared"] < 41 or abs(last["regret_ms"] * 41 - s.metric("choice_regret_ms_sum")) < 0.01  # a busy machine takes longer than a minute


def test_a_fleet_that_is_behind_is_told_that_another_worker_would_help(start):
    s = start(Serve, [start(Mock, speedup=1), start(Mock, speedup=1)])
    for i in range(40):
        assert s.complete(prompt(i, 16 + 40 * (i % 20)), max_tokens=1, stream=True).status == 200
    last = s.get("/status")["last_minute"]
    assert last["alone_ms"] > 0 and ("idle workers" not in last["advice"] or last["ttft_ms"] > 2 * last["alone_ms"])  # they may wait on a busy machine
    assert all(a.status == 200 for a in together(s, [prompt(100 + i, 2000) for i in range(80)], max_tokens=1, stream=True))
    last = s.get("/status")["last_minute"]
    assert last["ttft_ms"] > 2 * last["alone_ms"]
    assert re.fullmatch(r"choices of the last minute: \d+; first tokens took [\d.]+ ms, and would take [\d.]+ on idle workers: another worker "
                        r"would help.*", last["advice"])
    wait_for("the line", lambda: "another worker would help" in s.text())


def test_a_holder_that_is_busy_with_what_the_router_does_not_know_is_regretted(start):
    slow = start(Mock, speedup=0.5)
    s = start(Serve, [slow, start(Mock, speedup=0.5)], "--engine-metrics-interval", 3600)  # which would tell it
    for i in range(60):
        assert s.complete(prompt(i, 16 + 40 * (i % 20)), max_tokens=1, stream=True).status == 200
    hold(s, prompt(99, 4000), 1)
    before = s.metric("choice_regret_ms_sum")
    c = http.client.HTTPConnection("127.0.0.1", slow.port, timeout=60)  # not through the router
    c.request("POST", "/v1/completions", json.dumps({"prompt": [7] * 100000, "max_tokens": 1}))
    wait_for("busy", lambda: b"vllm:num_requests_running" in call(slow.port, "GET", "/metrics").body
             and re.search(rb"vllm:num_requests_running\{[^}]*\} 1", call(slow.port, "GET", "/metrics").body))
    r = s.complete(prompt(99, 4000), max_tokens=1, stream=True, headers={"x-request-id": "why"})
    c.close()
    d = decision(s, "why")
    assert r.headers["x-kvroute-worker"] == "1" and d["other_ttft_ms"] > 0
    assert s.metric("choice_regret_ms_sum") - before > d["ttft_ms"] - d["other_ttft_ms"] - 0.01 > 100


def test_a_hot_prefix_goes_to_one_more_worker_by_intent(start):
    """Many generate with the prefix, and its holder is busy: one more copy is wanted, and counted as that."""
    s = start(Serve, [start(Mock, "--max-num-batched-tokens", 2048, speedup=0.2), start(Mock)])
    hot = prompt(0, 1600)
    hold(s, hot, 1)
    streams = []
    for i in range(8):
        c, r = read_sse(s.port, {"prompt": hot + [i] * 16, "max_tokens": 4000, "stream": True}, {"x-kvroute-worker": "1"})
        assert r.status == 200 and r.read1(10)
        streams.append(c)
    wait_for("generating", lambda: all(l["active_prefill_tokens"] == 0 for l in s.get("/loads")))
    streams.append(occupy(s, 1, 100000))
    r = s.complete(hot + [99] * 16, max_tokens=1, headers={"x-request-id": "why"})
    assert r.headers["x-kvroute-worker"] == "2"
    expect_moves(s, {"copy": (1, 100)})
    row = next(row for row in decision(s, "why")["candidates"] if row["worker_id"] == 2)
    assert row["copy_blocks"] >= 50
    for c in streams:
        c.close()


def test_choices_by_chance_are_told_as_such(start):
    s = start(Serve, [start(Mock), start(Mock)], "--router-temperature", 100, "--router-seed", 1)
    for i in range(20):
        hold(s, prompt(i), 1)
        assert s.complete(prompt(i), max_tokens=1).status == 200
    assert set(moves(s)) == {"chance"} and 0 < moves(s)["chance"][0] < 20


def test_the_page_on_quality_names_what_there_is(start):
    """Every metric of the page is told, with a help text, and every member of a decision is on the page."""
    s = start(Serve, [start(Mock), start(Mock)])
    s.complete(prompt(0), headers={"x-request-id": "why"})
    with open(os.path.join(os.path.dirname(__file__), "../../docs/guides/quality.md"), encoding="utf-8") as f:
        page = f.read()
    told = call(s.admin, "GET", "/metrics").body.decode()
    named = set(re.findall(r"`(kvroute_\w+)", page))
    assert len(named) > 15
    for name in named:
        assert f"# HELP {name} " in told and re.search(rf"^{name}(_count)?[ {{]", told, re.M), name
    d = decision(s, "why")
    for member in (set(d) | set(d["candidates"][0])) - {"at_ms", "request_id", "model"}:
        assert f"`{member}`" in page, member
    for w in s.get("/workers"):
        assert s.metric("worker_ttft_factor", worker_id=w["worker_id"]) == w["ttft_model"]["factor"]
        assert abs(s.metric("ttft_model_token_ms", block_size=16) - w["ttft_model"]["token_ms"]) < 1e-5
        assert abs(s.metric("generation_model_tokens") - w["generation_model"]["tokens"]) < 1e-3
