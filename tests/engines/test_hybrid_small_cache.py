# SPDX-License-Identifier: Apache-2.0
"""A model with sliding windows beside full attention, in a small cache: vLLM keeps four groups of blocks, gives up blocks of each by itself, and
reuses what all of them can serve. Predicted is what the engine reuses, request by request."""
import os
import random

from harness import BLOCK, Serve, cached, output_tokens, post, predicted, prompt_tokens, tokens, wait_until

SEED = int(os.environ.get("KVR_SEED", "1"))
REQUESTS = int(os.environ.get("KVR_HYBRID_REQUESTS", "150"))


def test_windows_in_a_small_cache(start, hybrid, settle):
    engine = hybrid
    serve = start(Serve, [engine])
    wait_until("the view", lambda: serve.view().get("trusted"))
    rng, high, low, hits = random.Random(SEED), [], [], 0
    prompts = [tokens(f"hybrid {SEED} {k}", 26 * BLOCK) for k in range(12)]
    watch, = settle(serve, [engine])
    for n in range(REQUESTS):
        prompt = rng.choice(prompts)[:rng.randrange(1, 26 * BLOCK)]
        if rng.random() < 0.2:
            prompt = prompt[:max(BLOCK, len(prompt) // BLOCK * BLOCK)]
        if rng.random() < 0.2:
            prompt = prompt[:len(prompt) // 2] + tokens(f"tail {n}", rng.randrange(1, 6 * BLOCK))
        stored = sum(watch.stored.values())
        a = post(serve, "/v1/completions", {"model": "tiny", "prompt": prompt, "max_tokens": rng.choice((1, 2, 40))})
        assert a.status == 200, a.body
        hits += cached(a) > 0
        if predicted(a) != cached(a):
            (high if predicted(a) > cached(a) else low).append(f"{n}: predicted {predicted(a)}, the engine had {cached(a)} of {prompt_tokens(a)}")
        settle(serve, [engine], {engine: stored + (prompt_tokens(a) + output_tokens(a) - 1) // BLOCK - cached(a) // BLOCK})
    print(f"{REQUESTS} requests, {hits} with a hit, {sum(watch.removed.values())} blocks given up; {len(high)} predicted high, {len(low)} low; "
          f"{serve.view()['view']}")
    assert not high, "\n".join(high)
    assert len(low) <= REQUESTS / 8, "\n".join(low)
    assert hits > REQUESTS / 4 and serve.view()["view"] == "whole", serve.view()
