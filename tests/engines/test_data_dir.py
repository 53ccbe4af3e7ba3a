# SPDX-License-Identifier: Apache-2.0
"""An engine that replays 60 batches of events, and a router that is killed after a thousand requests: with --data-dir what it predicts is
exact from the first request of its next life on, salted prompts and an adapter's too."""
import os
import random
from concurrent.futures import ThreadPoolExecutor

from harness import BLOCK, Serve, cached, post, predicted, prompt_tokens, tokens, wait_until

SEED = int(os.environ.get("KVR_SEED", "1"))
REQUESTS = int(os.environ.get("KVR_REQUESTS", "1000"))


def bodies(seed, n):
    """Prompts of a few families that share beginnings of different lengths; a third of them salted."""
    rng = random.Random(seed)
    families = [tokens(f"data dir {SEED} {k}", 24 * BLOCK) for k in range(12)]
    for k in range(n):
        prompt = rng.choice(families)[:rng.randrange(BLOCK, 24 * BLOCK)] + tokens(f"tail {seed} {k}", rng.randrange(0, 40))
        yield {"model": "tiny", "prompt": prompt, "max_tokens": 1, **({"cache_salt": f"tenant {rng.randrange(3)}"} if rng.random() < 0.33 else {})}


def differences(serve, engine, settle, seed, n):
    wrong, hits = [], 0
    watch, = settle(serve, [engine])
    for k, body in enumerate(bodies(seed, n)):
        stored = sum(watch.stored.values())
        a = post(serve, "/v1/completions", body)
        assert a.status == 200, a.body
        hits += cached(a) > 0
        if predicted(a) != cached(a):
            wrong.append((k, predicted(a), cached(a)))
        settle(serve, [engine], {engine: stored + prompt_tokens(a) // BLOCK - cached(a) // BLOCK})
    return wrong, hits


def test_kill_9_after_a_thousand_requests(start, forgetful, settle, tmp_path):
    engine = forgetful
    args = ("--data-dir", tmp_path / "data")
    serve = start(Serve, [engine], *args)
    wait_until("the view", lambda: serve.view().get("trusted"))
    settle(serve, [engine])
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda b: post(serve, "/v1/completions", b), bodies(SEED, REQUESTS)))
        assert all(a.status == 200 for a in answers)
        more = [pool.submit(post, serve, "/v1/completions", b) for b in bodies(SEED + 1, 40)]
        wait_until("some of the answers", lambda: sum(f.done() for f in more) > 10)
        serve.kill()  # in the middle of it
        for f in more:
            f.exception()
    serve = start(Serve, [engine], *args)
    view = serve.view()
    assert view["trusted"] and view["view"] == "whole", view
    assert serve.metric("data_dir_restored_views_total") == 1
    wrong, hits = differences(serve, engine, settle, SEED + 2, 100)
    figures = {n: int(serve.metric(f"data_dir_{n}_total")) for n in ("restored_blocks", "restored_batches", "journal_batches", "journal_bytes")}
    print(f"{REQUESTS} requests, killed; then 100 requests, {hits} with a hit; differences: {len(wrong)}; {figures}")
    assert not wrong and hits > 50, wrong
