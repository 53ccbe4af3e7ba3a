# SPDX-License-Identifier: Apache-2.0
"""kvroute replay over prefill and decode workers: live, who has computed and who has answered."""
import pytest
from test_disagg_mocks import clean, fleet_of
from test_replay import replay, report

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
