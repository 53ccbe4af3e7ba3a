# SPDX-License-Identifier: Apache-2.0
"""`kvroute doctor` compares the token ids of a prefill worker and of a decode worker. The engines encode by themselves (token_parts.py)."""
import json
import subprocess

import pytest
from conftest import BINARY, SLOW, Serve, wait_for
from token_parts import engine_fixture  # noqa: F401 (fixture)


def findings(start, workers, *options):
    """Of a router with these (engine, keys)."""
    s = start(Serve, [f"http://127.0.0.1:{e.port},id={i},block-size=16,{keys}" for i, (e, keys) in enumerate(workers, 1)], "--no-kv-events", wait=False)
    wait_for("workers are known", lambda: all(w["schedulable"] for w in s.get("/workers")))
    r = subprocess.run([BINARY, "doctor", "--json", *options, f"http://127.0.0.1:{s.admin}"], capture_output=True, text=True, timeout=60 * SLOW)
    assert "Sanitizer" not in r.stderr, r.stderr
    return [f for f in json.loads(r.stdout)["findings"] if f["check"] == "tokens of a pair"]


PREFILL, DECODE = "role=prefill", "role=decode"


def test_a_pair_with_one_tokenizer_is_sound(start, engine):
    f, = findings(start, [(engine(), PREFILL), (engine(no_render=True), DECODE), (engine(), PREFILL), (engine(), DECODE), (engine(), "role=both")])
    assert f["verdict"] == "ok" and f["subject"] == "workers 1 and 2", f
    assert int(f["detail"].split()[0]) >= 18 and "(/v1/chat/completions/render and /tokenize)" in f["detail"]


def test_where_a_pair_differs_is_named(start, engine):
    def change(ids, q):
        return [*ids[:-1], 7] if q.get("prompt") == "Once upon a time" else ids
    f, = findings(start, [(engine(), PREFILL), (engine(change=change), DECODE)])
    assert f["verdict"] == "problem" and f["advice"] and f["detail"].startswith("1 of "), f
    assert "a text without special tokens: token 15 is 101 at worker 1 and 7 at worker 2, of 16 and 16" in f["detail"], f


def test_an_engine_that_tells_no_ids_is_unknown(start, engine):
    f, = findings(start, [(engine(), PREFILL), (engine(no_render=True, no_tokenize=True), DECODE)])
    assert f["verdict"] == "unknown" and f["subject"] == "worker 2" and "worker 1's" in f["detail"], f


@pytest.mark.parametrize("workers, options", [
    ([(dict(), PREFILL), (dict(), "role=both")], ()), ([(dict(), PREFILL), (dict(models=("other",)), DECODE)], ()),
    ([(dict(), PREFILL + ",kv-protocol=trtllm"), (dict(), DECODE)], ()), ([(dict(), PREFILL), (dict(), DECODE)], ("--no-probe",))])
def test_workers_that_never_meet_are_not_compared(start, engine, workers, options):
    assert findings(start, [(engine(**how), keys) for how, keys in workers], *options) == []
