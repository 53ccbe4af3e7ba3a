# SPDX-License-Identifier: Apache-2.0
"""A client that does what it can to make views of real engines look wrong (tests/hostile/evidence_attack.py says how), beside one that behaves well:
no view is lost at any time, and what is predicted for the other client is what its engine reuses. (A client that asks an engine for reports makes
the view a lower bound, and may: docs/reference/events.md.)

KVR_ATTACK_SECONDS for longer than the suite has time for, KVR_SEED for other requests. Without adapters: with them, `echo` with `logprobs` ends
vLLM 0.32's CPU engine."""
import os
import sys

from harness import BLOCK, ROOT, Serve, post, wait_until

sys.path.insert(0, os.path.join(ROOT, "tests/hostile"))
import evidence_attack  # noqa: E402  pylint: disable=wrong-import-position

SEED = int(os.environ.get("KVR_SEED", "1"))
SECONDS = float(os.environ.get("KVR_ATTACK_SECONDS", "45"))
VOCABULARY, ROOM = 2000, 2048
THREADS = 10  # some of them read answers of two thousand tokens


def test_no_client_can_cost_a_real_engine_its_view(start, forgetful, small):
    serve = start(Serve, [forgetful, small])
    wait_until("whole views", lambda: [v["view"] for v in serve.views().values()] == ["whole", "whole"])
    attack = evidence_attack.Attack(SEED, "tiny", vocab=VOCABULARY, room=ROOM, block=BLOCK, reports=False)
    honest = evidence_attack.Honest(serve.port, serve.admin, SEED + 1, "tiny", 1, BLOCK, vocab=VOCABULARY)
    lost = evidence_attack.run(attack, honest, SECONDS, threads=THREADS)
    assert not lost and not honest.wrong and not honest.refused, (lost, honest.wrong[:5], honest.refused[:5])
    assert honest.n > SECONDS / 5 and honest.reused > 0
    assert all(v["view"] != "unknown" for v in serve.views().values()), serve.views()
    for engine in (forgetful, small):  # it lives, and nothing of the attack is left in it
        assert post(engine, "/v1/completions", {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 1}).status == 200
    wait_until("no load booked", serve.idle)
