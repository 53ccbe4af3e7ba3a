# SPDX-License-Identifier: Apache-2.0
"""A router that is told nothing of its engines but their addresses finds the rest, and predicts what they reuse."""
import json
import os
import subprocess

from harness import BLOCK, Serve, blocks, cached, post, predicted, prompt_tokens, wait_until, worker, words


def test_addresses_are_enough(start, engines):
    s = start(Serve, [e.url for e in engines])  # ready
    for w, e in zip(s.get("/workers"), engines):
        assert w["block_size"] == BLOCK and w["learnt"]["block_size_from"] == "/metrics" and w["learnt"]["notes"] == []
        assert w["kv_events_endpoints"] == {"0": f"tcp://127.0.0.1:{e.events}"} and w["replay_endpoints"] == {"0": f"tcp://127.0.0.1:{e.replay}"}
        assert w["total_kv_blocks"] > 0 and w["data_parallel_size"] == 1
    for i in range(6):
        body = {"model": "tiny", "prompt": words(f"first hour {i} {s.p.pid}", 150 + 20 * i), "max_tokens": 2}
        had = blocks(s)
        first = post(s, "/v1/completions", body)
        assert first.status == 200 and predicted(first) == cached(first)
        wait_until("the blocks", lambda: blocks(s) >= had + prompt_tokens(first) // BLOCK)
        second = post(s, "/v1/completions", body)
        assert worker(second) == worker(first) and predicted(second) == cached(second) > 0


def test_what_was_given_wrong_is_named(start, engines):
    s = start(Serve, [engines[0].url + "/v1,block-size=16,dp-size=2"], ready=False)
    wait_until("named", lambda: f"block-size 16 was given, but the engine uses {BLOCK}" in s.text())
    wait_until("named", lambda: "dp-size=2 was given, but the engine has 1 data-parallel rank, number 0" in s.text())


def test_swapped_endpoints_are_named(start, engines):
    e = engines[0]
    s = start(Serve, [f"{e.url},events=tcp://127.0.0.1:{e.replay},replay=tcp://127.0.0.1:{e.events}"], ready=False)
    wait_until("named", lambda: "are events and replay swapped?" in s.text())


def test_doctor_needs_no_more_than_an_engines_address(engines):
    p = subprocess.run([os.environ["KVROUTE"], "doctor", "--json", engines[0].url + "/v1"], capture_output=True, text=True, timeout=240)
    report = json.loads(p.stdout)
    ok = {f["check"]: f["detail"] for f in report["findings"] if f["verdict"] == "ok"}
    assert p.returncode == 0, [f for f in report["findings"] if f["verdict"] == "problem"]
    assert f"vLLM, block size {BLOCK} (/metrics)" in ok["configuration"]
    assert {"events endpoint", "recovery", "events flow", "block size", "tokens", "prefix caching", "prediction"} <= set(ok), report
