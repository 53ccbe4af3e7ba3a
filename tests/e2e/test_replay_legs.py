# SPDX-License-Identifier: Apache-2.0
"""kvroute replay over prefill and decode workers: live, who has computed and who has answered; offline, whether two legs would pay."""
import pytest
from test_disagg_mocks import clean, fleet_of
from test_replay import replay, report
from test_replay_offline import offline
from test_replay_offline import report as simulated

CONVERSATIONS = "conversations,rate=40,seconds=1,turns=3,think=0.05,groups=2,system-tokens=64,own-tokens=32,output=8"


@pytest.mark.parametrize("protocol", ["vllm-nixl", "sglang"])
def test_a_live_replay_says_how_requests_were_treated_and_by_whom(start, tmp_path, protocol):
    s, ps, ds = fleet_of(start, protocol)
    url = f"http://127.0.0.1:{s.port}"
    out = report(tmp_path, "--url", url, "--workload", CONVERSATIONS)
    n = out["successes"]
    assert n >= 3 and out["errors"] == 0 and out["treatments"] == {"remote": n}
    assert set(out["prefill_workers"]) <= {"1", "2"} and sum(out["prefill_workers"].values()) == n
    assert set(out["workers"]) <= {"3", "4"} and sum(out["workers"].values()) == n
    assert out["cached_tokens"] > 0  # what prefill workers had of later turns
    text = replay("--url", url, "--workload", CONVERSATIONS, "--limit", 4).stdout
    assert "run: requests by treatment: remote: 4\n" in text and "run: requests by prefill worker: " in text
    assert clean(s, ps + ds)["expired"] == 0


LONG_PROMPTS = ["--workload", "uniform,requests=60,seconds=0,rate=6,own-tokens=4000,output=100", "--workers", 4, "--seeds", 1]


def test_offline_one_leg_is_compared_with_two_and_with_the_rules(tmp_path):
    text, out = simulated(tmp_path, *LONG_PROMPTS, "--prefill-workers", 2)
    by = {p["label"]: p for p in out["policies"]}
    assert list(by) == ["one-leg", "two-legs", "isl_bounding", "least_delay"]
    assert by["one-leg"]["whole_pct"] == 100 and by["two-legs"]["whole_pct"] == 0
    assert {p["completed"] for p in by.values()} == {60} and by["two-legs"]["itl_p99_ms"] > 0
    assert "2 of the workers compute prompts for the others" in text and "whole %" in text
    _, more = simulated(tmp_path, *LONG_PROMPTS, "--prefill-workers", 1, "--compare", "two-legs,auto")
    two, auto = more["policies"]
    assert two["ttft_mean_ms"] != by["two-legs"]["ttft_mean_ms"] and auto["ttft_mean_ms"] == by["one-leg"]["ttft_mean_ms"]


def test_offline_without_prefill_workers_shows_no_legs(tmp_path):
    text, _ = simulated(tmp_path, *LONG_PROMPTS, "--compare", "auto")
    assert "whole %" not in text and "ITL" not in text


def test_offline_somebody_has_to_decode():
    r = offline(*LONG_PROMPTS, "--prefill-workers", 4)
    assert r.returncode == 2 and "--prefill-workers: bad value 4; allowed: fewer than the 4 of --workers" in r.stderr
    r = offline(*LONG_PROMPTS, "--compare", "three-legs")
    assert r.returncode == 2 and "two-legs" in r.stderr
