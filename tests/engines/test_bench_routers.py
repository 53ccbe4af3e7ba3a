# SPDX-License-Identifier: Apache-2.0
"""`make bench-routers --vllm`: the lab with real engines runs to its end, and its figures are those of the engines."""
import json
import os
import subprocess
import sys

from harness import ROOT


def test_the_lab_runs_real_engines(alone, tmp_path):
    assert alone is None
    r = subprocess.run([sys.executable, os.path.join(ROOT, "bench/routers/run.py"), "--vllm", "2", "--rows", "vllm-conv-2", "--routers", "kvroute,round-robin",
                        "--rounds", "1", "--seconds", "5", "--nice", "0", "--kvroute", os.path.abspath(os.environ["KVROUTE"]), "--wheels", "/nowhere",
                        "--json", tmp_path / "o.json"], capture_output=True, text=True, timeout=400)
    assert r.returncode == 0, r.stdout + r.stderr
    runs = json.loads((tmp_path / "o.json").read_text())["runs"]["vllm-conv-2"]
    for one, in runs.values():
        assert one["failures"] == 0 and sum(one["engines"]["requests"]) == one["requests"] > 0
        assert sum(one["engines"]["tokens"]) > 900 * one["requests"] and abs(one["hit_pct"] - one["hit_pct_of_answers"]) < 1, one
