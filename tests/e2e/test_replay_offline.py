# SPDX-License-Identifier: Apache-2.0
"""kvroute replay --offline: policies over simulated engines, what more cache or one more worker would bring, errors."""
import json
import subprocess

import pytest

from conftest import BINARY


def offline(*args):
    r = subprocess.run([BINARY, "replay", "--offline", *map(str, args)], capture_output=True, text=True, timeout=240)
    assert "Sanitizer" not in r.stderr, r.stderr
    return r


def report(tmp_path, *args):
    r = offline(*args, "--json", tmp_path / "out.json")
    assert r.returncode == 0, r.stdout + r.stderr
    return r.stdout, json.loads((tmp_path / "out.json").read_text())


CONVERSATIONS = ["--workload", "conversations,rate=60", "--num-gpu-blocks", 2560]


def test_it_names_the_best_and_what_more_would_bring(tmp_path):
    text, out = report(tmp_path, *CONVERSATIONS, "--compare", "round-robin,linear", "--seeds", 3)
    assert [p["label"] for p in out["policies"]] == ["round-robin", "linear"] and out["seeds"] == 3
    rr, linear = out["policies"]
    assert out["best"] == "linear" and "Best by mean time to the first token: linear." in text
    assert linear["ttft_mean_ms"] < 0.95 * rr["ttft_mean_ms"] and linear["hit_pct"] > rr["hit_pct"] + 10
    assert linear["completed"] == rr["completed"] > 500 and linear["failed"] == 0  # the same requests
    before, cache, worker = out["changes"]
    assert {k: v for k, v in before.items() if k != "label"} == {k: v for k, v in linear.items() if k != "label"}
    assert cache["label"].endswith("3200") and worker["label"].endswith("5")
    assert cache["hit_pct"] > before["hit_pct"] and cache["ttft_mean_ms"] < before["ttft_mean_ms"]
    assert worker["ttft_mean_ms"] < before["ttft_mean_ms"] and worker["e2e_p50_ms"] < before["e2e_p50_ms"]
    assert "as it is" in text and "one more worker: 5" in text


def test_the_same_options_give_the_same_figures(tmp_path):
    args = [*CONVERSATIONS, "--compare", "smg", "--seeds", 2]
    assert report(tmp_path, *args) == report(tmp_path, *args)


def test_what_a_mixture_has_is_not_all_requests(tmp_path):
    text, out = report(tmp_path, "--workload", "mixed,requests=50", "--compare", "linear", "--seeds", 1)
    openings = int(text.split("mixed: ")[1].split()[0])
    assert openings < out["policies"][0]["completed"] and f"{openings} conversations and single requests" in text


def test_rules_of_others_alone_say_nothing_of_more(tmp_path):
    text, out = report(tmp_path, *CONVERSATIONS, "--compare", "smg,tree", "--seeds", 1)
    assert out["changes"] == [] and "as it is" not in text


def test_every_policy_without_compare(tmp_path):
    _, out = report(tmp_path, "--workload", "uniform,requests=40,seconds=0", "--seeds", 1)
    names = [p["label"] for p in out["policies"]]
    assert {"round-robin", "least-loaded", "linear", "sglang-router", "smg", "vllm-router"} <= set(names)


def rows(n, gap_ms=500):
    return "".join(json.dumps({"timestamp": i * gap_ms, "input_length": 1024, "output_length": 50, "hash_ids": [i % 4, 100 + i % 8]}) + "\n" for i in range(n))


def test_a_trace_of_ones_own(tmp_path):
    """32 rows of 8 different prompts: on one worker all but the first 8 are found, but for the last block, which is computed for its first token."""
    (tmp_path / "t.jsonl").write_text(rows(32) + "nonsense\n")
    r = offline("--trace", tmp_path / "t.jsonl", "--workers", 1, "--compare", "round-robin", "--seeds", 1, "--json", tmp_path / "out.json")
    assert r.returncode == 0 and "32 requests in 16 s" in r.stdout and "1024 prompt tokens" in r.stdout
    assert "1 line(s) are no rows" in r.stderr and "not valid JSON" in r.stderr
    out = json.loads((tmp_path / "out.json").read_text())["policies"][0]
    assert out["completed"] == 32 and out["failed"] == 0
    first_half = 4 * 512  # of the second four prompts
    assert out["hit_pct"] == pytest.approx(100 * (24 * (1024 - 16) + first_half) / (32 * 1024), abs=0.2)


def test_limits_of_a_trace(tmp_path):
    (tmp_path / "t.jsonl").write_text(rows(32))
    common = ["--trace", tmp_path / "t.jsonl", "--compare", "linear", "--seeds", 1]
    assert report(tmp_path, *common, "--limit", 10)[1]["policies"][0]["completed"] == 10
    text, out = report(tmp_path, *common, "--speedup", 4)
    assert "32 requests in 4 s" in text
    cut = report(tmp_path, *common, "--speedup", 4, "--max-output", 2)[1]
    assert cut["policies"][0]["e2e_mean_ms"] < 0.5 * out["policies"][0]["e2e_mean_ms"]
    fast = report(tmp_path, *common, "--speedup", 4, "--engine-speed", 10)[1]
    assert fast["policies"][0]["ttft_mean_ms"] < 0.2 * out["policies"][0]["ttft_mean_ms"]


def test_a_row_whose_answer_never_ends_is_left_out(tmp_path):
    (tmp_path / "t.jsonl").write_text(rows(8) + rows(1).replace('"output_length": 50', '"output_length": 1000000000000000000'))
    r = offline("--trace", tmp_path / "t.jsonl", "--compare", "linear", "--seeds", 1)
    assert r.returncode == 0 and "8 requests in" in r.stdout and "1 line(s) are no rows" in r.stderr and "`output_length`" in r.stderr, r.stderr


@pytest.mark.parametrize("workload", ["uniform,output=50", "conversations,output=50", "mixed", "mooncake,output-max=3"])
def test_answers_of_workloads_are_cut_too(tmp_path, workload):
    common = ["--workload", workload + ",requests=20", "--compare", "linear", "--seeds", 1]
    whole, cut, two = (report(tmp_path, *common, *more)[1]["policies"][0]["e2e_mean_ms"] for more in ([], ["--max-output", 2], ["--max-output", 3]))
    assert cut < two <= whole


def test_seed_and_speedup_are_for_workloads_too(tmp_path):
    common = ["--compare", "linear", "--seeds", 1, "--workload"]
    one, given, own, both = (report(tmp_path, *common, "uniform,requests=20" + w, *more)[1] for w, more in [
        ("", []), ("", ["--seed", 5]), (",seed=5", []), (",seed=5", ["--seed", 7])])
    assert given == own == both != one
    slow, fast, its = (report(tmp_path, *common, "mooncake,requests=5" + w, *more)[0].splitlines()[0] for w, more in [
        ("", []), ("", ["--speedup", 1000]), (",speedup=1000", ["--speedup", 3])])
    assert "5 requests in 0 s" in fast and fast == its != slow


def test_prompts_that_no_cache_holds_are_told(tmp_path):
    (tmp_path / "t.jsonl").write_text(rows(8))
    text, out = report(tmp_path, "--trace", tmp_path / "t.jsonl", "--compare", "linear", "--num-gpu-blocks", 50)
    assert out["policies"][0]["failed"] == 8 and "8 requests are longer than a cache of 50 blocks" in text
    assert out["best"] is None and out["changes"] == [] and "Best" not in text  # nothing was compared


def test_a_made_up_trace_can_be_written_and_read(tmp_path):
    path = tmp_path / "made.jsonl"
    r = subprocess.run([BINARY, "replay", "--workload", "mooncake,seconds=30", "--write-trace", str(path)], capture_output=True, text=True, timeout=60)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert r.returncode == 0 and r.stdout == f"{len(rows)} rows\n" and 30 < len(rows) < 120
    assert all(len(x["hash_ids"]) == -(-x["input_length"] // 512) and x["timestamp"] % 3000 == 0 and x["hash_ids"][0] == 0 for x in rows)
    common = ["--compare", "linear", "--seeds", 1, "--max-output", 8]
    made, read = report(tmp_path, "--workload", "mooncake,seconds=30,output-max=8", *common)[1], report(tmp_path, "--trace", path, *common)[1]
    assert made["policies"][0]["completed"] == read["policies"][0]["completed"] == len(rows)
    assert made["policies"][0]["hit_pct"] == pytest.approx(read["policies"][0]["hit_pct"], abs=0.5)


def test_writing_a_trace_empties_no_file_that_it_cannot_replace(tmp_path):
    """Neither the one that is read, nor one for which there is nothing to write."""
    path, link = tmp_path / "t.jsonl", tmp_path / "link.jsonl"
    path.write_text(rows(4))
    link.symlink_to(path)
    for args, words in [(["--trace", path, "--write-trace", link], "is the file of --trace"),
                        (["--trace", tmp_path / "none", "--write-trace", path], "cannot read"), (["--trace", "/dev/null", "--write-trace", path], "no trace line")]:
        r = offline(*args)
        assert r.returncode == 2 and words in r.stderr and path.read_text() == rows(4), r.stderr


@pytest.mark.parametrize("args,words", [
    ([], ["--offline", "--trace FILE", "--workload NAME"]),
    (["--trace", "/nowhere/t.jsonl"], ["--trace", "cannot read '/nowhere/t.jsonl'"]),
    (["--workload", "convs"], ["unknown workload 'convs'", "conversations"]),
    (["--workload", "uniform,turns=2"], ["has no 'turns'", "own-tokens"]),
    (["--workload", "uniform", "--compare", "linear,fastest"], ["--compare", "'fastest'", "linear", "smg"]),
    (["--workload", "uniform", "--compare", "tenants"], ["--compare", "'tenants' is not a policy", "linear"]),
    (["--workload", "uniform", "--compare", "two-legs"], ["--compare: two-legs needs --prefill-workers"]),
    (["--workload", "uniform", "--compare", ",".join(["auto"] * 33)], ["--compare: more than 32 policies"]),
    (["--workload", "uniform", "--workers", "0"], ["workers", "'0'"]),
    (["--workload", "uniform", "--engine-speed", "fast"], ["engine-speed", "fast"]),
    (["--workload", "trace"], ["trace", "file"]),
    (["--workload", "uniform", "--write-trace", "/tmp/unused"], ["--write-trace", "'uniform' has no rows", "mooncake"]),
    (["--workload", "mooncake", "--write-trace", "/nowhere/t"], ["--write-trace", "cannot write '/nowhere/t'"]),
])
def test_errors_name_what_is_allowed(args, words):
    r = offline(*args)
    assert r.returncode == 2 and all(w in r.stderr for w in words), r.stderr


def test_help_shows_it():
    r = offline("--help")
    assert r.returncode == 0 and "--offline" in r.stdout and "one more worker" in r.stdout and "simulation.md" in r.stdout
