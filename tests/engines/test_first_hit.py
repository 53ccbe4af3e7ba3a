# SPDX-License-Identifier: Apache-2.0
"""The least of all: what one request left in an engine's cache is predicted for the next one, and the engine says the same."""
from harness import BLOCK, cached, post, predicted, prompt_tokens, wait_until, worker, words


def test_second_request_is_predicted_as_the_engine_reports(fleet, engines, settle):
    body = {"model": "tiny", "prompt": words("first hit", 200), "max_tokens": 2}
    first = post(fleet, "/v1/completions", body)
    assert first.status == 200, first.body
    assert predicted(first) == cached(first) == 0
    held = prompt_tokens(first) // BLOCK
    wait_until("the blocks", lambda: fleet.view(worker(first)).get("blocks", 0) >= held)
    settle(fleet, engines)
    second = post(fleet, "/v1/completions", body)
    assert worker(second) == worker(first) and second.headers["x-kvroute-reason"] == "kv"
    assert predicted(second) == cached(second) == (prompt_tokens(first) - 1) // BLOCK * BLOCK > 0
