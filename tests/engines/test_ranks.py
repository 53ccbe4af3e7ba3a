# SPDX-License-Identifier: Apache-2.0
"""An engine with two data-parallel ranks, of which nobody said a word."""
from harness import BLOCK, Serve, blocks, cached, post, predicted, prompt_tokens, wait_until, words


def test_ranks_are_found_named_and_predicted(start, ranked):
    e = ranked
    s = start(Serve, [e.url])
    wait_until("both ranks", lambda: [v["view"] for v in s.views().values()] == ["whole", "whole"])
    w = s.get("/workers")[0]
    assert w["block_size"] == BLOCK and w["learnt"]["notes"] == []
    assert w["kv_events_endpoints"] == {str(r): f"tcp://127.0.0.1:{e.events + r}" for r in (0, 1)}
    seen = set()
    for i in range(12):
        body = {"model": "tiny", "prompt": words(f"ranks {i} {s.p.pid}", 150), "max_tokens": 2}
        had = blocks(s)
        first = post(s, "/v1/completions", body)
        wait_until("the blocks", lambda: blocks(s) >= had + prompt_tokens(first) // BLOCK)
        second = post(s, "/v1/completions", body)
        seen.add(second.headers["x-kvroute-dp-rank"])
        assert second.headers["x-kvroute-dp-rank"] == first.headers["x-kvroute-dp-rank"]
        assert predicted(first) == cached(first) and predicted(second) == cached(second) > 0
    assert seen == {"0", "1"}
