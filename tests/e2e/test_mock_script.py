# SPDX-License-Identifier: Apache-2.0
"""The mock does what vLLM did: the script of requests of engine_script.py, whose outcome of vLLM 0.32 is recorded in
tests/vectors/engines/mock_script.json (tests/engines/test_mock_against_vllm.py records and compares it with the engine itself)."""
import json
import os

import engine_script
import pytest

from conftest import Mock

RECORD = os.path.join(os.path.dirname(__file__), "../vectors/engines/mock_script.json")
FLAGS = ("--model", "tiny", "--lora", "ad1", "--block-size", engine_script.BLOCK, "--num-gpu-blocks", engine_script.BLOCKS, "--max-num-seqs",
         engine_script.SEQS, "--max-model-len", engine_script.CONTEXT, "--max-num-batched-tokens", engine_script.CONTEXT, "--vocab-size", 2048,
         "--no-reset-at-once")


def unexplained(ours, theirs):
    """Differences without a reason, as lines; and the reasons that were needed."""
    lines, reasons = [], set()
    for step, path, x, y in engine_script.differences(ours, theirs):
        why = engine_script.reason(step, path)
        if why:
            reasons.add(why)
        else:
            lines.append(f"{step}: {path}: the mock {str(x)[:200]}, vLLM {str(y)[:200]}")
    return lines, reasons


def outcome_of(start, zctx):
    m = start(Mock, *FLAGS, speedup=1000)
    s = engine_script.Script(zctx, m.port, m.events)
    try:
        return engine_script.run(s)
    finally:
        s.close()


def test_the_mock_does_what_vllm_did(start, zctx):
    with open(RECORD, encoding="utf-8") as f:
        record = json.load(f)
    lines, reasons = unexplained(outcome_of(start, zctx), record["steps"])
    assert not lines, "\n".join(lines[:40])
    assert {why for _, _, why in engine_script.KNOWN} == reasons, "a difference is listed that is none any more"


@pytest.mark.parametrize("place, value", [(("answers", 1, "usage", "prompt_tokens_details", "cached_tokens"), 64), (("events", 0, "block_hashes", 1), 0),
                                          (("answers", 0, "status"), 500)])
def test_a_difference_is_found(place, value):
    with open(RECORD, encoding="utf-8") as f:
        theirs = json.load(f)["steps"]
    ours = json.loads(json.dumps(theirs))
    at = ours[1]
    for k in place[:-1]:
        at = at[k]
    at[place[-1]] = value
    assert len(unexplained(ours, theirs)[0]) == 1
