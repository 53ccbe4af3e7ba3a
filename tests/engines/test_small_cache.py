# SPDX-License-Identifier: Apache-2.0
"""A cache of 120 blocks that is much too small for its traffic, with the same prompt several times at once: the engine holds copies, gives them
up one by one, and the router must know at any time what is left. Predicted are those requests that run alone."""
import os
import random
from concurrent.futures import ThreadPoolExecutor

from harness import BLOCK, Serve, cached, output_tokens, post, predicted, prompt_tokens, tokens, wait_until

SEED = int(os.environ.get("KVR_SEED", "1"))
REQUESTS = int(os.environ.get("KVR_REQUESTS", "500"))


def test_no_difference_with_duplicates_in_a_small_cache(start, small, settle):
    engine = small
    serve = start(Serve, [engine])
    wait_until("the view", lambda: serve.view().get("trusted"))
    rng, wrong, hits, alone, sent = random.Random(SEED), [], 0, 0, 0
    prompts = [tokens(f"small {SEED} {k}", rng.randrange(40, 30 * BLOCK)) for k in range(14)]
    watch, = settle(serve, [engine])
    with ThreadPoolExecutor(4) as pool:
        while alone < REQUESTS:
            body = {"model": "tiny", "prompt": rng.choice(prompts), "max_tokens": rng.choice((1, 2, 34))}
            if rng.random() < 0.5:
                body["prompt"] = body["prompt"][:rng.randrange(1, len(body["prompt"]))]
            if rng.random() < 0.4 and len(body["prompt"]) >= BLOCK:  # whole blocks: the engine computes the last one again, and has it twice then
                body["prompt"] = body["prompt"][:len(body["prompt"]) // BLOCK * BLOCK]
            if rng.random() < 0.2:
                body["cache_salt"] = "s"
            copies = rng.choice((2, 3, 4)) if rng.random() < 0.15 and len(body["prompt"]) < 20 * BLOCK else 1
            stored = sum(watch.stored.values())
            answers = list(pool.map(lambda _, b=body: post(serve, "/v1/completions", b), range(copies)))
            sent += copies
            assert all(a.status == 200 for a in answers), [a.body for a in answers]
            told = sum((prompt_tokens(a) + output_tokens(a) - 1) // BLOCK - cached(a) // BLOCK for a in answers)
            if copies == 1:
                a, = answers
                alone += 1
                hits += cached(a) > 0
                if predicted(a) != cached(a):
                    wrong.append(f"{alone}: predicted {predicted(a)}, the engine had {cached(a)} of {prompt_tokens(a)}")
            settle(serve, [engine], {engine: stored + told})
            view = serve.view()
            assert view["trusted"] and view.get("view", "whole") == "whole", view
    removed = sum(watch.removed.values())
    print(f"{sent} requests, {alone} of them alone, {hits} with a hit, {removed} blocks given up by the engine; differences: {len(wrong)} of {alone}")
    assert not wrong, f"{len(wrong)} of {alone}\n" + "\n".join(wrong[:20])
    assert hits > REQUESTS / 5 and removed > 5 * REQUESTS
