# SPDX-License-Identifier: Apache-2.0
"""kvroute replay as a client: workloads with times of arrival, prompts as texts, several endpoints."""
import json
import subprocess

import pytest

from conftest import BINARY, Mock
from http_parts import Handler, HttpServer
from test_first_hour import worker  # noqa: F401 (a fixture)


def replay(*args):
    r = subprocess.run([BINARY, "replay", "--no-progress", *map(str, args)], capture_output=True, text=True, timeout=240)
    assert "Sanitizer" not in r.stderr, r.stderr
    return r


def report(tmp_path, *args, rc=0):
    r = replay(*args, "--json", tmp_path / "out.json")
    assert r.returncode == rc, r.stdout + r.stderr
    return json.loads((tmp_path / "out.json").read_text())[0]


def url(*engines):
    return ",".join(f"http://127.0.0.1:{m.port}" for m in engines)


def prompts_of(worker):
    return [json.loads(r[3])["prompt"] for r in worker.got("/v1/completions")]


CONVERSATIONS = "conversations,rate=40,seconds=1,turns=3,think=0.05,groups=2,system-tokens=64,own-tokens=32,output=8"


@pytest.mark.parametrize("prompts", ["ids", "text"])
def test_conversations_are_found_in_the_cache(start, tmp_path, prompts):
    """A turn repeats what was said, the answer too: one engine has computed all of it but for the own piece."""
    m = start(Mock, "--num-gpu-blocks", 65536)
    out = report(tmp_path, "--url", url(m), "--workload", CONVERSATIONS, "--prompts", prompts)
    n = out["successes"]
    assert n and n % 3 == 0 and out["errors"] == 0 and out["answers_with_usage"] == n
    assert m.metric("vllm:request_success_total") == n and m.metric("vllm:prompt_tokens_total") == out["prompt_tokens"]
    new = n // 3 * 3 * (32 * 1.5 + 16) + 2 * 64  # the own piece of each, and less than a block of what was there
    assert out["cached_tokens"] >= out["prompt_tokens"] - new > 0
    assert out["output_tokens"] == 8 * n


@pytest.mark.parametrize("usage, told", [({}, None), ({"prompt_tokens_details": {"cached_tokens": 0}}, 0)])
def test_a_ratio_that_nobody_told_is_not_zero(worker, tmp_path, usage, told):
    w = worker(v1__completions={"choices": [{"text": "x"}], "usage": {"prompt_tokens": 64, "completion_tokens": 1, **usage}})
    r = replay("--url", w.url, "--workload", "siblings,requests=4,rate=200", "--no-stream", "--json", tmp_path / "out.json")
    assert r.returncode == 0, r.stdout + r.stderr
    shown = next(line.split()[-1] for line in r.stdout.splitlines() if line.startswith("cached-token ratio"))
    assert json.loads((tmp_path / "out.json").read_text())[0]["cached_token_ratio_pct"] == told
    assert (shown, "no answer told cached tokens (vLLM: --enable-prompt-tokens-details)" in r.stdout) == (("-", True) if told is None else ("0.0", False))


def test_text_prompts_are_texts_that_need_no_escapes(worker):
    w = worker(v1__completions={"choices": [{"text": "say \"it\" \\ \u00fc\n"}]})
    assert replay("--url", w.url, "--workload", CONVERSATIONS.replace("rate=40", "rate=20"), "--prompts", "text", "--no-stream").returncode == 0
    texts = prompts_of(w)
    assert len(texts) > 3 and all(isinstance(t, str) and len(t) >= 64 + 16 for t in texts)
    assert all(32 <= ord(c) < 127 and c not in '"\\' for t in texts for c in t)
    later = [t for t in texts if "say ?it?" in t]  # 8 tokens of the answer, no more
    assert later and len(texts) - len(later) == len({t[:80] for t in texts})
    assert all(json.dumps(t) == f'"{t}"' for t in texts)


def test_the_same_workload_sends_the_same_prompts(worker):
    w = worker(v1__completions={"choices": [{"text": "abc"}]})
    seen = []
    for seed in (5, 5, 6):
        before = len(prompts_of(w))
        assert replay("--url", w.url, "--workload", f"tail,requests=12,rate=200,longest=400,seed={seed}", "--prompts", "text", "--no-stream").returncode == 0
        seen.append(sorted(prompts_of(w)[before:]))
    assert len(seen[0]) == 12 and seen[0] == seen[1] and not set(seen[0]) & set(seen[2])


def test_requests_go_to_several_endpoints_in_turns(start, tmp_path):
    a, b, c = (start(Mock) for _ in range(3))
    out = report(tmp_path, "--url", url(a, b, c), "--workload", "siblings,requests=48,rate=200", "--prompts", "text")
    assert out["successes"] == 48
    assert [m.metric("vllm:request_success_total") for m in (a, b, c)] == [16, 16, 16]


def test_a_trace_keeps_its_shared_blocks_as_text(start, tmp_path):
    m = start(Mock, speedup=1000)
    rows = [{"timestamp": 10 * i, "input_length": 1100, "output_length": 50, "hash_ids": [0, 1, 10 + i]} for i in range(5)]
    (tmp_path / "t.jsonl").write_text("no row\n" + "".join(json.dumps(r) + "\n" for r in rows))
    r = replay("--url", url(m), "--trace", tmp_path / "t.jsonl", "--prompts", "text", "--concurrency", 1, "--max-output", 3, "--json", tmp_path / "out.json")
    out = json.loads((tmp_path / "out.json").read_text())[0]
    assert r.returncode == 0 and "1 line(s) were skipped" in r.stderr
    assert (out["successes"], out["prompt_tokens"], out["output_tokens"]) == (5, 5500, 15)
    assert out["cached_tokens"] == 4 * 1024  # two shared blocks of 512
    out = report(tmp_path, "--url", url(m), "--workload", "trace,requests=2,speedup=5,output-max=2", "--trace", tmp_path / "t.jsonl")
    assert (out["successes"], out["output_tokens"]) == (2, 4)


def test_the_report_has_the_mean_time_to_first_token(start, tmp_path):
    m = start(Mock)
    out = report(tmp_path, "--url", url(m), "--workload", "uniform,requests=1,rate=100")
    assert out["ttft_mean_ms"] == out["ttft_p50_ms"] > 0
    out = report(tmp_path, "--url", url(m), "--workload", "uniform,requests=40,rate=400")
    assert out["ttft_mean_ms"] <= out["ttft_p99_ms"] and out["ttft_mean_ms"] > 0


def test_a_workload_can_be_repeated_for_a_time(start, tmp_path):
    m = start(Mock, speedup=1000)
    out = report(tmp_path, "--url", url(m), "--workload", "uniform,requests=3,rate=60,own-tokens=32", "--duration", 1)
    assert out["successes"] > 6


@pytest.mark.parametrize("treatment, told", [("local", "local"), ('a"b\\', 'a?b?'), ("\xff", "?")])
def test_a_report_is_json_whatever_answers_say(tmp_path, treatment, told):
    class Answers(Handler):
        def do_POST(self):
            self.body()
            self.answer(200, {"choices": [{"text": "x"}]}, headers={"x-kvroute-disagg": treatment})
    server = HttpServer(Answers)
    out = report(tmp_path, "--url", server.url, "--workload", "uniform,requests=2,rate=100", "--no-stream")
    server.close()
    assert out["treatments"] == {told: 2}


def test_the_time_between_tokens_is_that_between_two(start, tmp_path):
    m = start(Mock, speedup=0.05)
    out = report(tmp_path, "--url", url(m), "--workload", "uniform,requests=1,own-tokens=32,output=2")
    assert out["itl_p50_ms"] == pytest.approx(out["e2e_p50_ms"] - out["ttft_p50_ms"], rel=0.3)


def test_what_was_compared_before_a_mode_that_there_is_not_is_told(worker, tmp_path):
    modes = iter([200, 400])
    w = worker(v1__completions={"choices": [{"text": "x"}]}, router_mode=lambda: next(modes), workers="[]")
    r = replay("--url", w.url, "--admin-url", w.url, "--no-stream", "--workload", "uniform,requests=3,rate=100", "--compare", "kv,nothing",
               "--json", tmp_path / "out.json")
    assert r.returncode == 2 and "'nothing' is not a router mode" in r.stderr
    assert [(o["label"], o["successes"]) for o in json.loads((tmp_path / "out.json").read_text())] == [("kv", 3)] and "TTFT p50" in r.stdout
    r = replay("--url", w.url, "--admin-url", w.url, "--compare", ",".join(["kv"] * 9))
    assert r.returncode == 2 and "--compare: more than 8 modes" in r.stderr


def test_a_repeated_trace_keeps_its_pace(start, tmp_path):
    """Two rows a second apart, each answered after 1.5 s: the second round begins when the first one has ended, and takes as long."""
    m = start(Mock, "--role", "prefill", "--fault-slow-prefill", 1.5)
    rows = [{"timestamp": t, "input_length": 64, "output_length": 1, "hash_ids": [t]} for t in (0, 1000)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    out = report(tmp_path, "--url", url(m), "--trace", tmp_path / "t.jsonl", "--duration", 60, "--limit", 4)
    assert out["successes"] == 4 and out["wall_s"] >= 2 * (1 + 1.5) - 0.05


def test_a_conversation_does_not_wait_for_another_to_begin(start, tmp_path):
    m = start(Mock, speedup=1000)
    out = report(tmp_path, "--url", url(m), "--sessions", 2, "--turns", 3, "--system-tokens", 0, "--turn-tokens", 16, "--output-tokens", 1,
                 "--speedup", 0.002, "--limit", 3)  # the second one begins after 10 s
    assert out["successes"] == 3 and out["wall_s"] < 9


def test_what_fails_is_counted_and_conversations_go_on(start, tmp_path):
    m = start(Mock, "--fault-error-after", 2)
    out = report(tmp_path, "--url", url(m), "--workload", CONVERSATIONS.replace("seconds=1", "seconds=0.5"), "--prompts", "text", rc=1)
    assert out["successes"] == 0 and out["errors"] >= 3 and out["errors"] % 3 == 0 and "Internal server error" in out["first_error"]


CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello, w\u00f6rld \u6771\u4eac"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


def text_trace(tmp_path):
    rows = [{"timestamp": 0, "messages": CHAT, "output_length": 3, "tools": TOOLS}, {"timestamp": 1, "prompt": "Once \"upon\"\n", "output_length": 4},
            {"timestamp": 2, "output_length": 9, "messages": CHAT}]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return tmp_path / "texts.jsonl"


def test_texts_of_a_trace_are_sent_as_they_are(worker, tmp_path):
    w = worker(v1__completions={"choices": [{"text": "x"}]}, v1__chat__completions={"choices": [{"message": {"content": "x"}}]})
    r = replay("--url", w.url, "--trace", text_trace(tmp_path), "--no-stream", "--model", "m", "--max-output", 5)
    assert r.returncode == 0, r.stdout + r.stderr
    chats, texts = ([json.loads(r[3]) for r in w.got(p)] for p in ("/v1/chat/completions", "/v1/completions"))
    common = {"model": "m", "ignore_eos": True}
    assert sorted(chats, key=lambda b: b["max_tokens"]) == [{**common, "messages": CHAT, "tools": TOOLS, "max_tokens": 3},
                                                             {**common, "messages": CHAT, "max_tokens": 5}]
    assert texts == [{**common, "prompt": "Once \"upon\"\n", "max_tokens": 4}]


def test_texts_of_a_trace_are_answered_by_an_engine(start, tmp_path):
    m = start(Mock)
    out = report(tmp_path, "--url", url(m), "--trace", text_trace(tmp_path))
    assert (out["successes"], out["errors"], out["output_tokens"]) == (3, 0, 16) and out["prompt_tokens"] == m.metric("vllm:prompt_tokens_total")


@pytest.mark.parametrize("args", [["--offline"], ["--write-trace", "/dev/null"]])
def test_tokens_of_texts_need_a_folder(tmp_path, args):
    r = replay(*args, "--trace", text_trace(tmp_path))
    assert r.returncode == 2 and "--trace: it has texts" in r.stderr and "--tokenizer-dir" in r.stderr and r.stdout == ""


def test_a_folder_without_the_library_says_so(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    r = replay("--offline", "--trace", text_trace(tmp_path), "--tokenizer-dir", tmp_path, "--tokenizer-lib", tmp_path / "none.so")
    assert r.returncode == 2 and "--tokenizer-lib: there is no" in r.stderr


@pytest.mark.parametrize("args, words", [
    (["--workload", "nothing"], ["--workload", "'nothing'", "conversations", "siblings"]),
    (["--workload", "hot,rat=3"], ["--workload", "'rat'", "hot-share"]),
    (["--workload", "hot,rate=0"], ["--workload", "rate", "allowed"]),
    (["--workload", "trace"], ["--workload", "file of Mooncake rows"]),
    (["--trace", "/nowhere"], ["--trace", "/nowhere"]),
    (["--prompts", "bytes"], ["prompts", "ids", "text"]),
    (["--url", "http://127.0.0.1:1,ftp://x"], ["--url", "'ftp://x'", "http://host[:port]"]),
    (["--url", ""], ["--url", "''"]),
])
def test_bad_values_are_named(args, words):
    r = replay(*args)
    assert r.returncode == 2 and all(w in r.stderr for w in words), r.stderr
