# SPDX-License-Identifier: Apache-2.0
"""The router is killed, and the engine's replay buffer (60 batches) reaches back a few of its requests only: what is known is true, is filled by what
the engine answers, and is all there is in the end, without a reset."""
import os
import random

from harness import BLOCK, Serve, cached, post, predicted, tokens, wait_until

REQUESTS = int(os.environ.get("KVR_REQUESTS", "1000"))
PREFIXES = 16


def test_a_killed_router_predicts_most_of_the_reuse_within_50_requests_and_all_of_it_in_the_end(start, forgetful):
    engine = forgetful
    rng = random.Random(5)
    prefixes = [tokens(f"partial {k}", BLOCK * rng.randrange(4, 16)) for k in range(PREFIXES)]

    def run(serve, n):
        """Requests with one of some old beginnings and a new end each. Returns tokens foretold and reused, and how often too much was foretold."""
        foretold = reused = over = 0
        for _ in range(n):
            body = {"model": "tiny", "prompt": rng.choice(prefixes) + tokens(rng.random(), rng.randrange(1, 120)), "max_tokens": 2}
            a = post(serve, "/v1/completions", body)
            assert a.status == 200, a.body
            foretold += min(predicted(a), cached(a))
            reused += cached(a)
            over += predicted(a) > cached(a)
        return foretold, reused, over
    serve = start(Serve, [engine])
    wait_until("the view", lambda: serve.view().get("view") == "whole")
    before = run(serve, REQUESTS)
    serve.kill()
    serve = start(Serve, [engine])
    wait_until("what the buffer has", lambda: serve.view().get("view") == "partial")
    assert "history" in serve.view()["reason"]
    first, then, more = run(serve, 50), run(serve, 50), 0
    while serve.view()["view"] != "whole" and more < 3000:
        more += 50
        assert run(serve, 50)[2] == 0
    end = run(serve, 50)
    print(f"before {before}, the first 50 {first}, the next {then}, whole after {100 + more}, then {end}; {serve.view()}")
    assert before[0] == before[1] and first[2] == then[2] == 0
    assert then[0] >= 0.9 * then[1]
    assert serve.view()["view"] == "whole" and serve.view()["restarts"] == 0 and end[0] == end[1] and not end[2]
