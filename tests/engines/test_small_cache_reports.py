# SPDX-License-Identifier: Apache-2.0
"""Requests that have vLLM report the cached blocks that they reuse (`kv_cache_report_mode: full`), in a small cache: such events look like copies.
They are sent through the router, past it, and both: what is predicted may be too little from then on, it is not too much, and no view is lost."""
import random

import pytest
from harness import BLOCK, Serve, cached, post, predicted, prompt_tokens, tokens, wait_until

FULL = {"vllm_xargs": {"kv_cache_report_mode": "full"}}
ROUNDS = 120


# In this order: who starts later hears in the engine's replay what was reported before.
@pytest.mark.parametrize("way", ["nothing follows", "past", "through"])
def test_reports_are_never_taken_for_copies_for_long(start, small, settle, way):
    engine = small
    serve = start(Serve, [engine])
    wait_until("the view", lambda: serve.view().get("trusted"))
    rng, high, low, hits, lost = random.Random(way), [], 0, 0, []
    prompts = [tokens(f"reports {way} {k}", 16 * BLOCK + 1) for k in range(12)]
    settle(serve, [engine])
    for n in range(ROUNDS):
        blocks = rng.randrange(1, 17)
        body = {"model": "tiny", "prompt": rng.choice(prompts)[:blocks * BLOCK + 1], "max_tokens": 1}
        reports = n > 20 and rng.random() < 0.5
        if reports and way == "nothing follows":  # again what is cached: there is nothing to compute but the last token
            assert post(engine, "/v1/completions", body).status == 200
        a = post(engine if reports and way != "through" else serve, "/v1/completions", {**body, **(FULL if reports else {})})
        assert a.status == 200, a.body
        if not (reports and way != "through"):
            hits += cached(a) > 0
            low += predicted(a) < cached(a)
            if predicted(a) > cached(a):
                high.append(f"{n}: predicted {predicted(a)}, the engine had {cached(a)} of {prompt_tokens(a)}")
                wait_until("found out", lambda: serve.metric("kv_events_filtered_total", reason="copy_taken_back") > 0, 20)
        settle(serve, [engine], last=True)
        view = serve.view()
        if not view["trusted"]:
            lost.append(view)
    counted = {k: serve.metric("kv_events_filtered_total", reason="copy_" + k) for k in ("stored", "removed", "reported", "taken_back")}
    print(f"{way}: {hits} hits, {low} predicted low, {len(high)} high; {serve.view()['view']}: {serve.view()['reason']}; {counted}")
    assert not lost and hits > ROUNDS / 6
    if way == "nothing follows":
        assert len(high) == 1, "\n".join(high)  # the answer that shows it
    else:
        assert not high, "\n".join(high)
    if way == "past":
        assert counted["reported"]
    if way == "through":
        engine.stop()  # what it has reported is not to be heard in other tests
