# SPDX-License-Identifier: Apache-2.0
"""An engine that does not tell how much it has reused makes the comparison of predictions with answers blind: who runs it is told so, once,
and with the flag; and what was not predicted for sure is no part of that comparison."""
import pytest
from conftest import Mock, Serve, call, wait_for
from test_doctor import doctor
from test_first_hour import worker  # noqa: F401  pylint: disable=unused-import

LONG = list(range(1, 200))


def lines(s):
    return [line for line in s.text().splitlines() if "tell no cached tokens" in line]


def ask(s, times, prompt=LONG, **body):
    for _ in range(times):
        assert s.complete(prompt, **body).status == 200
        wait_for("idle", s.idle)


def test_an_engine_that_tells_no_cached_tokens_is_named_once_with_its_flag(start):
    m = start(Mock, details=False)
    s = start(Serve, [m])
    ask(s, 1)
    wait_for("stored", lambda: s.view()["blocks"] >= 12)
    for i in range(6):  # of which nothing is cached: an engine may leave the details out
        ask(s, 1, prompt=[1000 + 100 * i + k for k in range(40)])
    assert not lines(s) and s.get("/workers")[0]["cached_tokens"] == "not told yet"
    ask(s, 8)
    wait_for("a line", lambda: lines(s))
    ask(s, 8)
    assert len(lines(s)) == 1 and "worker 1" in lines(s)[0] and "--enable-prompt-tokens-details" in lines(s)[0]
    assert s.get("/workers")[0]["cached_tokens"] == "left out"
    rc, report = doctor("--no-probe", f"http://127.0.0.1:{s.admin}")
    said = [f for f in report["findings"] if f["check"] == "cached tokens"]
    assert [(f["subject"], f["verdict"]) for f in said] == [("worker 1", "unknown")] and "--enable-prompt-tokens-details" in said[0]["advice"], report


@pytest.mark.parametrize("more", [{"echo": True, "logprobs": 1}, {"n": 2}, {"vllm_xargs": {"a": 1}}, {"stream": True}])
def test_answers_that_need_not_tell_cached_tokens_accuse_nobody(start, more):
    m = start(Mock, details=False)
    s = start(Serve, [m])
    ask(s, 1)
    wait_for("stored", lambda: s.view()["blocks"] >= 12)
    ask(s, 8, **more)
    assert not lines(s)


def test_an_engine_that_tells_is_not_accused(start):
    m = start(Mock)
    s = start(Serve, [m])
    ask(s, 1)
    wait_for("stored", lambda: s.view()["blocks"] >= 12)
    ask(s, 8)
    assert not lines(s) and s.get("/workers")[0]["cached_tokens"] == "told"


def test_prompts_of_which_not_all_is_known_are_no_part_of_predicted_against_actual(start):
    m = start(Mock)
    s = start(Serve, [m])
    ask(s, 1)
    wait_for("stored", lambda: s.view()["blocks"] >= 12)
    wait_for("counted", lambda: s.metric("usage_answers_total") == 1)
    for more in ({"extra_key": "x"}, {"previous_response_id": "resp_1"}, {"prompt_embeds": "AAAA"}, {"suffix": "x"}):
        call(s.port, "POST", "/v1/completions", {"prompt": LONG, "max_tokens": 1, **more})
        wait_for("idle", s.idle)
    assert (s.metric("usage_answers_total"), s.metric("usage_untold_total")) == (1, 0)
    ask(s, 1)
    wait_for("counted", lambda: s.metric("usage_answers_total") == 2)
    assert s.metric("predicted_cached_tokens_total") == s.metric("actual_cached_tokens_total") == 192


def test_prompts_that_the_engine_counts_otherwise_are_one_line_for_the_worker(start, worker):
    """The engine has computed something else than was hashed: another tokenizer, another template."""
    w = worker(v1__completions={"choices": [{"text": "x"}], "usage": {"prompt_tokens": 210, "completion_tokens": 1}})
    e = start(Mock)  # whose events are followed
    s = start(Serve, [f"{w.url},block-size=16,events=tcp://127.0.0.1:{e.events},replay=tcp://127.0.0.1:{e.replay}"])

    def said():
        return [line for line in s.text().splitlines() if "prompt tokens" in line]
    w.answers["/v1/completions"]["usage"]["prompt_tokens"] = len(LONG)
    ask(s, 2)
    assert not said() and s.metric("prompt_length_differs_total", worker_id="1") == 0
    w.answers["/v1/completions"]["usage"]["prompt_tokens"] = 210
    ask(s, 5)
    wait_for("counted", lambda: s.metric("prompt_length_differs_total", worker_id="1", dp_rank="0") == 5)
    assert s.metric("view_evidence_total", outcome="none", reason="length") == 5
    assert len(said()) == 1 and "worker 1 rank 0" in said()[0] and f"210 prompt tokens, not the {len(LONG)}" in said()[0] and "kvroute doctor" in said()[0]
