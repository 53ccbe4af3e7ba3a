# SPDX-License-Identifier: Apache-2.0
"""A model of which three layers in four look back 64 tokens only: the engine has several cache groups, and reuses a prefix as far as all of them
have what it needs. Prompts that grow, that leave a known way in its middle, that begin anew, and all fit: what is computed again when windows have been
given up is not counted (docs/reference/events.md)."""
import os
import random

from harness import BLOCK, Serve, cached, output_tokens, post, predicted, prompt_tokens, tokens, wait_until

SEED = int(os.environ.get("KVR_SEED", "1"))


def run(serve, engine, settle, families, length, requests):
    """Returns differences (predicted, reused), how many requests had a hit, how many blocks the engine gave up."""
    rng, differences, hits = random.Random(SEED), [], 0
    known = [tokens(f"hybrid {SEED} {length} {k}", length) for k in range(families)]
    watch, = settle(serve, [engine])
    removed = sum(watch.removed.values())
    for _ in range(requests):
        prompt = rng.choice(known)[:rng.randrange(BLOCK // 2, length)]
        if rng.random() < 0.3:
            prompt = prompt + rng.choice(known)[:rng.randrange(1, 100)]
        stored = sum(watch.stored.values())
        a = post(serve, "/v1/completions", {"model": "tiny", "prompt": prompt, "max_tokens": rng.choice((1, 2, 40))})
        assert a.status == 200, a.body
        hits += cached(a) > 0
        if predicted(a) != cached(a):
            differences.append((predicted(a), cached(a)))
        settle(serve, [engine], {engine: stored + (prompt_tokens(a) + output_tokens(a) - 1) // BLOCK - cached(a) // BLOCK})
    return differences, hits, sum(watch.removed.values()) - removed


def test_a_model_with_sliding_windows_is_predicted_exactly(start, hybrid, settle):
    serve = start(Serve, [hybrid])
    wait_until("the view", lambda: serve.view().get("view") == "whole")
    differences, hits, removed = run(serve, hybrid, settle, 4, 300, 60)
    print(f"60 requests, {hits} with a hit, {removed} blocks given up; differences {differences}")
    assert not differences and hits > 20 and serve.view()["view"] == "whole"
