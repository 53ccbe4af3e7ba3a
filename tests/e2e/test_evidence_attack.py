# SPDX-License-Identifier: Apache-2.0
"""A few seconds of a client that tries to make views look wrong (tests/hostile/evidence_attack.py has the long ones): none is lost, and what is
predicted for the client beside it stays exact. And what answers prove that tell nothing, or tell it late."""
import json
import os
import subprocess
import sys

import pytest

from conftest import BINARY, Mock, Serve, wait_for
from http_parts import Handler, HttpServer

SCRIPT = os.path.join(os.path.dirname(__file__), "../hostile/evidence_attack.py")
PROMPT = list(range(10, 170))


@pytest.mark.parametrize("seed", [1, 2])
def test_no_client_makes_a_view_untrusted(seed):
    p = subprocess.run([sys.executable, SCRIPT, "--seconds", "5", "--seed", str(seed)], env={**os.environ, "KVROUTE": BINARY}, capture_output=True,
                       text=True, timeout=600)
    print(p.stdout[-8000:], p.stderr[-4000:])
    assert p.returncode == 0 and p.stdout.rstrip().endswith("held")


def fresh(k):
    return [1000 + k * 7 + i for i in range(100)]


LOUD = {"echo and logprobs": {"echo": True, "logprobs": 1}, "prompt_logprobs": {"prompt_logprobs": 0}, "a member nobody knows": {"frobnicate": 1},
        "a salt nobody reads": {"nvext": {"cache_salt": "s"}}, "truncated": {"truncate_prompt_tokens": 20}}


@pytest.mark.parametrize("case", LOUD)
def test_the_same_member_in_every_request_is_no_evidence_and_says_so(start, case):
    m = start(Mock)
    s = start(Serve, [m])
    for _ in range(30):
        assert s.complete(PROMPT, max_tokens=1, **LOUD[case]).status == 200
    wait_for("counted", lambda: s.metric("view_evidence_total") == 30)
    assert s.view()["trusted"] and s.metric("view_evidence_total", outcome="stale") == s.metric("view_evidence_total", outcome="missing") == 0
    if case != "truncated":  # whose answers prove something when the tokens that are left are known
        assert s.metric("view_evidence_total", outcome="none", reason="members") == 30 and s.view()["evidence"]["none"] == 30


def test_streams_that_are_errors_after_200_are_no_evidence(start):
    m = start(Mock, "--fault-error-after", "1")
    s = start(Serve, [m])
    for k in range(20):
        r = s.complete(fresh(k), max_tokens=4, stream=True, stream_options={"include_usage": True})
        assert r.status == 200 and b'"error"' in r.body
    wait_for("counted", lambda: s.metric("view_evidence_total", outcome="none") == 20)
    assert s.view()["trusted"]


def test_prompts_that_a_small_cache_gives_up_at_once_are_not_missing(start):
    m = start(Mock, "--num-gpu-blocks", "24")
    s = start(Serve, [m])
    for k in range(40):
        assert s.complete(fresh(40 * k), max_tokens=1).status == 200
    wait_for("judged", lambda: s.metric("view_evidence_total") == 40)
    assert s.view()["trusted"] and s.metric("view_evidence_total", outcome="missing") == 0
    assert s.metric("view_evidence_total", outcome="fine") == 40


def test_salted_prompts_whose_events_tell_no_salt_do_not_cost_the_others_their_view(start):
    m = start(Mock, "--fault-omit-salt")
    s = start(Serve, [m])
    for k in range(10):
        assert s.complete(fresh(k), max_tokens=1).status == 200
    wait_for("judged", lambda: s.metric("view_evidence_total", outcome="fine") == 10)
    for k in range(30):
        assert s.complete(fresh(100 + 40 * k), max_tokens=1, cache_salt="tenant").status == 200
    wait_for("found", lambda: s.metric("view_evidence_total", outcome="missing") >= 20, 20)
    assert s.view()["trusted"]
    r = s.complete(fresh(9), max_tokens=1)
    assert int(r.headers["x-kvroute-overlap-blocks"]) == 6 and r.headers["x-kvroute-reason"] == "kv"


class Telling(HttpServer):
    """An engine whose usage tells cached tokens as `tells` says: a number, or None for no details. `up`: is it there?"""

    def __init__(self):
        self.tells, self.up = None, True
        telling = self

        class Answers(Handler):
            def do_GET(self):
                self.answer(404 if "models" in self.path else 200 if telling.up else 503, {})

            def do_POST(self):
                n = len(json.loads(self.body())["prompt"])
                usage = {"prompt_tokens": n, "completion_tokens": 1}
                if telling.tells is not None:
                    usage["prompt_tokens_details"] = {"cached_tokens": telling.tells}
                self.answer(200, {"choices": [], "usage": usage})
        super().__init__(Answers)


@pytest.fixture
def telling():
    t = Telling()
    yield t
    t.close()


def test_prompts_of_which_no_state_is_kept_do_not_cost_a_model_with_recurrent_layers_its_view(start, engine, telling):
    """Full attention has every block of them, so they are computed beside these; where the states are is farther on, in other prompts."""
    e = engine()
    telling.tells = 0
    s = start(Serve, [telling.url + f",block-size=16,events=tcp://127.0.0.1:{e.events},replay=tcp://127.0.0.1:{e.replay_port}"],
              "--restore-timeout", "5", ready=False)
    e.until("trusted", lambda: s.view().get("trusted"))
    full = {"type": "BlockStored", "block_hashes": list(range(1, 11)), "parent_block_hash": None, "token_ids": PROMPT, "block_size": 16,
            "lora_id": None, "medium": "GPU", "lora_name": None, "extra_keys": [None] * 10, "group_idx": 0, "kv_cache_spec_kind": "full_attention"}
    e.send(e.batch(full, {**full, "block_hashes": [99], "group_idx": 1, "kv_cache_spec_kind": "mamba"}))
    e.until("stored", lambda: s.view().get("batches") == 1)
    for _ in range(12):
        assert s.complete(PROMPT, max_tokens=1).status == 200
    e.until("judged", lambda: s.metric("view_evidence_total") == 12, 40)
    assert s.metric("view_evidence_total", outcome="missing") == 0 and s.view()["trusted"]


def test_cached_tokens_that_are_left_out_are_0_once_the_worker_has_told(start, telling):
    s = start(Serve, [telling.url], "--no-router-kv-events")

    def ask():
        before = len(s.get("/decisions"))
        assert s.complete(PROMPT, max_tokens=1).status == 200
        wait_for("the request's end", lambda: len(s.get("/decisions")) > before)  # which comes after the client has its answer
        return s.get("/decisions")[0]["actual_cached_tokens"], s.metric("usage_answers_total"), s.metric("usage_untold_total")
    assert ask() == (None, 0, 1)  # not told: not 0
    telling.tells = 144
    assert ask() == (144, 1, 1)
    telling.tells = None
    assert ask() == (0, 2, 1)
    telling.up = False
    wait_for("down", lambda: s.get("/workers")[0]["status"] == "down")
    telling.up = True
    wait_for("up", lambda: s.get("/workers")[0]["schedulable"])
    assert ask() == (None, 2, 2)  # another one may have come back
