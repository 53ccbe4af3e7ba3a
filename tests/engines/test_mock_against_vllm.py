# SPDX-License-Identifier: Apache-2.0
"""One script of requests for vLLM and for the mock: events, usage, statuses, kinds of pieces are compared. Prints the table of differences;
each must have its reason in tests/e2e/engine_script.py, and what vLLM did must be what the record says that the suite uses.

KVROUTE_RECORD=1 writes the record (tests/vectors/engines/mock_script.json) anew."""
import json
import os
import sys

from harness import ROOT, Mock, call

sys.path.insert(0, os.path.join(ROOT, "tests/e2e"))
import engine_script  # noqa: E402  pylint: disable=wrong-import-position

RECORD = os.path.join(ROOT, "tests/vectors/engines/mock_script.json")
FLAGS = ("--model", "tiny", "--lora", "ad1", "--block-size", engine_script.BLOCK, "--num-gpu-blocks", engine_script.BLOCKS, "--max-num-seqs",
         engine_script.SEQS, "--max-model-len", engine_script.CONTEXT, "--max-num-batched-tokens", engine_script.CONTEXT, "--vocab-size", 2048,
         "--no-reset-at-once")


def outcome(zctx, engine):
    s = engine_script.Script(zctx, engine.port, engine.events)
    try:
        return engine_script.run(s)
    finally:
        s.close()


def test_mock_against_vllm(scripted, start, zctx):
    engine = scripted
    assert engine.blocks == engine_script.BLOCKS
    theirs = outcome(zctx, engine)
    ours = outcome(zctx, start(Mock, *FLAGS, speedup=1000))
    table = [(engine_script.reason(step, path), step, path, x, y) for step, path, x, y in engine_script.differences(ours, theirs)]
    for why, step, path, x, y in table:
        print(f"{step} | {path} | mock {str(x)[:60]} | vLLM {str(y)[:60]} | {why}")
    assert not [row for row in table if not row[0]], "a difference without a reason"
    if os.environ.get("KVROUTE_RECORD") == "1":
        version = call(engine.port, "GET", "/version").json()["version"]
        with open(RECORD, "w", encoding="utf-8") as f:
            f.write('{"vllm":' + json.dumps(version) + ',"steps":[\n' + ",\n".join(json.dumps(s, separators=(",", ":")) for s in theirs) + "\n]}\n")
    with open(RECORD, encoding="utf-8") as f:
        assert json.load(f)["steps"] == theirs, "vLLM does something else than what is recorded"
