# SPDX-License-Identifier: Apache-2.0
"""What the mock engine tells of itself, as vLLM 0.32 does (docs/guides/mock.md)."""
import json
import socket
import struct
import subprocess

import msgpack
import pytest
import zmq

from conftest import BINARY, Mock, call, read_sse, wait_for


def complete(m, prompt, max_tokens=1, **body):
    return call(m.port, "POST", "/v1/completions", {"prompt": prompt, "max_tokens": max_tokens, **body})


def replay(ctx, port, start):
    """[(sequence, payload)] of a replay answer, and the frames of its end."""
    s = ctx.socket(zmq.DEALER)
    s.linger = 0
    s.connect(f"tcp://127.0.0.1:{port}")
    s.send_multipart([b"", struct.pack(">Q", start)])
    got = []
    while s.poll(20000):
        frames = s.recv_multipart()
        if frames[-2] == b"\xff" * 8:
            s.close()
            return got, frames
        got.append((struct.unpack(">Q", frames[-2])[0], msgpack.unpackb(frames[-1])))
        assert len(frames) == 4 and frames[0] == b"", frames
    raise AssertionError("the answer has no end")


def test_event_sources_are_told_per_rank(start):
    m = start(Mock, "--kv-buffer-steps", 60, dp=2)
    assert call(m.port, "GET", "/kv_event_sources").json() == {
        str(r): {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://127.0.0.1:{m.events + r}",
                 "replay_endpoint": f"tcp://127.0.0.1:{m.replay + r}", "buffer_steps": 60, "hwm": 100000, "max_queue_size": 100000,
                 "topic": ""} for r in range(2)}
    text = call(m.port, "GET", "/metrics").body.decode()
    info = [l for l in text.splitlines() if l.startswith("vllm:cache_config_info{")]
    assert len(info) == 2 and 'block_size="16"' in info[0] and 'num_gpu_blocks="16384"' in info[0] and 'engine="1"' in info[1]
    config = call(m.port, "GET", "/server_info?config_format=json").json()["vllm_config"]
    assert config["cache_config"]["block_size"] == 16 and config["parallel_config"]["data_parallel_size"] == 2
    assert config["kv_events_config"]["buffer_steps"] == 60
    assert isinstance(call(m.port, "GET", "/server_info").json()["vllm_config"], str)
    assert call(m.port, "GET", "/version").json() == {"version": "0.32.0"}


def test_an_older_engine_tells_less(start):
    m = start(Mock, "--no-tell-event-sources", "--no-tell-cache-config", "--no-dev-mode")
    for path in ("/kv_event_sources", "/server_info", "/nowhere"):
        r = call(m.port, "GET", path)
        assert (r.status, r.json()) == (404, {"detail": "Not Found"})
    assert "cache_config_info" not in call(m.port, "GET", "/metrics").body.decode()
    r = call(m.port, "GET", "/v1/completions")
    assert (r.status, r.json()) == (405, {"detail": "Method Not Allowed"})


def test_a_request_is_rendered_without_computing_it(start):
    m = start(Mock, "--enable-scale-out", "--model", "tiny")
    r = call(m.port, "POST", "/v1/completions/render", {"model": "tiny", "prompt": ["ab", [7, 8, 9]], "max_tokens": 3, "stream": True, "cache_salt": "s"})
    assert r.status == 200 and [p["token_ids"] for p in r.json()] == [[97, 98], [7, 8, 9]]
    for p in r.json():
        assert p["request_id"].startswith("cmpl-") and p["sampling_params"]["max_tokens"] == 3
        assert (p["model"], p["stream"], p["cache_salt"], p["features"]) == ("tiny", True, "s", None)
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
    one = call(m.port, "POST", "/v1/chat/completions/render", chat).json()
    assert one["token_ids"] == call(m.port, "POST", "/tokenize", chat).json()["tokens"] and one["request_id"].startswith("chatcmpl-")
    assert call(m.port, "POST", "/v1/completions/render", {"model": "other", "prompt": "a"}).status == 404
    assert call(m.port, "POST", "/v1/completions/render", b"{").status == 400
    assert m.metric("vllm:request_success_total") == 0 and m.metric("vllm:prompt_tokens_total") == 0


def test_paths_of_other_settings_are_not_there(start):
    m = start(Mock)
    for method, path in [("POST", "/v1/completions/render"), ("POST", "/v1/chat/completions/render"), ("GET", "/get_server_info"),
                         ("GET", "/model_info"), ("GET", "/get_model_info"), ("GET", "/get_load"), ("GET", "/v1/loads"), ("POST", "/v1/tokenize")]:
        r = call(m.port, method, path, {"prompt": "a"} if method == "POST" else None)
        assert (r.status, r.json()) == (404, {"detail": "Not Found"}), path


def test_the_mock_tells_what_sglang_tells(start):
    m = start(Mock, "--sglang-info", "--num-gpu-blocks", 101, "--max-num-seqs", 32, dp=2, speedup=1)
    info = call(m.port, "GET", "/server_info").json()
    assert info == call(m.port, "GET", "/get_server_info").json()
    assert (info["page_size"], info["dp_size"], info["max_total_num_tokens"], info["max_running_requests"]) == (16, 2, 1616, 32)
    assert json.loads(info["kv_events_config"])["endpoint"] == f"tcp://127.0.0.1:{m.events}" and info["enable_cache_report"] is True
    model = call(m.port, "GET", "/model_info").json()
    assert model == call(m.port, "GET", "/get_model_info").json() and (model["model_path"], model["is_generation"]) == ("mock", True)
    assert call(m.port, "GET", "/version").status == 404
    for path in ("/tokenize", "/v1/tokenize"):
        assert call(m.port, "POST", path, {"prompt": "abc"}).json().keys() == {"tokens", "count", "max_model_len"}, path
    assert call(m.port, "GET", "/v1/models").json()["data"][0]["owned_by"] == "sglang"
    assert call(m.port, "GET", "/get_load").json() == [{"dp_rank": r, "num_reqs": 0, "num_waiting_reqs": 0, "num_tokens": 0} for r in range(2)]
    s = socket.create_connection(("127.0.0.1", m.port))  # one request, long enough to be seen
    body = json.dumps({"prompt": list(range(160)), "max_tokens": 1000, "stream": True, "ignore_eos": True}).encode()
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-data-parallel-rank: 1\r\nContent-Type: application/json\r\n"
              b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
    wait_for("it runs", lambda: call(m.port, "GET", "/get_load").json()[1]["num_tokens"] >= 160)
    loads = call(m.port, "GET", "/v1/loads?include=core").json()
    assert (loads["dp_rank_count"], loads["loads"][0]["num_running_reqs"], loads["loads"][1]["num_running_reqs"]) == (2, 0, 1)
    assert loads["loads"][1]["max_total_num_tokens"] == 1600 and 0 < loads["loads"][1]["token_usage"] <= 1
    assert loads["aggregate"]["total_running_reqs"] == 1
    s.close()


def test_models_have_the_members_of_the_engine(start):
    m = start(Mock, "--model", "tiny", "--lora", "ad1", "--max-model-len", 2048)
    base, lora = call(m.port, "GET", "/v1/models").json()["data"]
    assert {**base, "created": 0} == {"id": "tiny", "object": "model", "created": 0, "owned_by": "vllm", "root": "mock/tiny", "parent": None,
                                      "max_model_len": 2048, "permission": []}
    assert (lora["id"], lora["root"], lora["parent"], lora["max_model_len"]) == ("ad1", "mock/ad1", "tiny", None)


def test_the_replay_buffer_has_buffer_steps_batches(start, zctx):
    m = start(Mock, "--kv-buffer-steps", 5, "--kv-topic", "kv")
    for i in range(12):
        complete(m, [1000 * i + k for k in range(16)])
    wait_for("the events of all", lambda: replay(zctx, m.replay, 0)[0][-1][0] == 11)
    got, end = replay(zctx, m.replay, 3)  # 3 to 6 are gone: the answer begins later, without a word
    assert [seq for seq, _ in got] == [7, 8, 9, 10, 11]
    assert end == [b"", b"", b"\xff" * 8, b""]
    assert replay(zctx, m.replay, 12)[0] == []  # nothing yet


@pytest.mark.parametrize("flag", ["--replay-topic-frame", "--no-replay-topic-frame"])
def test_topic_frames_of_replays(start, zctx, flag):
    m = start(Mock, flag)
    complete(m, list(range(16)))
    s = zctx.socket(zmq.DEALER)
    s.linger = 0
    s.connect(f"tcp://127.0.0.1:{m.replay}")
    s.send_multipart([b"", struct.pack(">Q", 0)])
    assert s.poll(20000)
    assert len(s.recv_multipart()) == (3 if flag.startswith("--no") else 4)
    s.close()


def test_a_prompt_beyond_the_context_length_is_refused(start):
    m = start(Mock, "--max-model-len", 64)
    assert complete(m, list(range(64))).status == 400
    r = complete(m, list(range(60)), max_tokens=100).json()
    assert r["usage"]["completion_tokens"] == 4


def sse(answer):
    """[(event or None, data)] of a stream."""
    out = []
    for piece in answer.body.decode().strip().split("\n\n"):
        lines = dict(l.split(": ", 1) for l in piece.splitlines())
        out.append((lines.get("event"), lines["data"] if lines["data"] == "[DONE]" else json.loads(lines["data"])))
    return out


@pytest.mark.parametrize("args, words", [(["--fault-prefill-status", 99], "fault-prefill-status: bad value '99'; allowed: 0, or 400 to 599"),
                                         (["--fault-decode-status", 200], "fault-decode-status: bad value '200'"),
                                         (["--replay", "tcp://127.0.0.1:1"], "replay: there is nothing to replay without --events")])
def test_options_that_cannot_be_are_refused(args, words):
    r = subprocess.run([BINARY, "mock", "--port", "0", *map(str, args)], capture_output=True, text=True, timeout=20)
    assert r.returncode == 2 and words in r.stderr, r.stderr


def test_numbers_are_taken_as_the_engine_takes_them(start):
    """As vLLM 0.32's classes for requests do."""
    m = start(Mock)
    for body in ({"max_tokens": 2.5}, {"max_tokens": "many"}, {"max_tokens": [3]}, {"n": "x"}, {"n": None}, {"prompt_logprobs": "1"}, {"temperature": "hot"}, {"temperature": {}}):
        r = complete(m, [1, 2], **body)
        assert r.status == 400 and r.json()["error"]["param"] == f"body.{list(body)[0]}", body
    for n in (3.0, "3", " 3 ", "+0_3.0"):
        assert complete(m, [1, 2], max_tokens=n, temperature=" 0.5", max_output_tokens="many").json()["usage"]["completion_tokens"] == 3
    assert b"data: [DONE]" in complete(m, [1, 2], stream="yes", max_tokens=True).body


def test_the_context_is_what_the_cache_holds(start):
    """An answer ends there, however long it may be."""
    m = start(Mock, "--num-gpu-blocks", 40)
    room = 39 * 16
    assert call(m.port, "GET", "/v1/models").json()["data"][0]["max_model_len"] == room
    for n in (1, room - 1):
        r = complete(m, [7] * n, max_tokens=100000)
        assert r.status == 200 and r.json()["usage"]["total_tokens"] == room
    assert complete(m, [7] * room).status == 400


def test_cached_tokens_are_told_when_asked_for(start):
    m = start(Mock, details=False)
    assert complete(m, list(range(40))).json()["usage"]["prompt_tokens_details"] is None
    chunks = sse(complete(m, list(range(40)), stream=True, stream_options={"include_usage": True}))
    assert chunks[-2][1]["usage"] == {"prompt_tokens": 40, "total_tokens": 41, "completion_tokens": 1}
    m = start(Mock)
    assert complete(m, list(range(40))).json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    chunks = sse(complete(m, list(range(40)), max_tokens=2, stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}))
    assert [c[1]["usage"]["completion_tokens"] for c in chunks[:-1]] == [1, 2, 2]
    assert "prompt_tokens_details" not in chunks[0][1]["usage"]
    assert chunks[-2][1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 32}


def test_prompt_logprobs_and_echo_with_logprobs_do_not_read_the_cache(start):
    m = start(Mock)
    tokens = list(range(64))
    cached = lambda **body: complete(m, tokens, **body).json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert [cached(), cached(), cached(prompt_logprobs=0), cached(echo=True, logprobs=1), cached(echo=True), cached(logprobs=1)] == \
        [0, 48, 0, 0, 48, 48]
    choice = complete(m, tokens, echo=True, logprobs=1, prompt_logprobs=1).json()["choices"][0]
    assert len(choice["text"]) == 65 and len(choice["logprobs"]["tokens"]) == 65 and len(choice["prompt_logprobs"]) == 64
    r = complete(m, tokens, prompt_logprobs=1, stream=True)
    assert r.status == 400 and r.json()["error"]["param"] == "prompt_logprobs"


def test_what_the_core_refuses_is_an_error_in_a_stream_of_200(start):
    m = start(Mock, "--vocab-size", 1000)
    for body in ({"prompt": [5000]}, {"prompt": [1, 2], "logprobs": 21}, {"prompt": [[]]}):
        r = complete(m, **body)
        assert r.status == 400 and r.json()["error"]["type"] == "BadRequestError"
        streamed = complete(m, **body, stream=True)
        assert (streamed.status, sse(streamed)) == (200, [(None, r.json()), (None, "[DONE]")])


def test_a_generation_that_fails(start):
    m = start(Mock, "--fault-error-after", 2)
    error = {"error": {"message": "Internal server error", "type": "InternalServerError", "param": None, "code": 500}}
    r = complete(m, [1, 2, 3], max_tokens=5)
    assert (r.status, r.json()) == (500, error)
    events = sse(complete(m, [1, 2, 3], max_tokens=5, stream=True))
    assert [e[1] for e in events[-2:]] == [error, "[DONE]"] and len(events) == 4
    wait_for("the engine to be idle", lambda: m.metric("vllm:num_requests_running") == 0)
    assert m.metric("vllm:request_success_total") == 0


def test_prompts_of_every_form(start):
    m = start(Mock)
    a, b = list(range(100, 148)), list(range(48))
    for prompts, want in (([a, b], 96), (["x" * 20, "y" * 30], 50), (["x" * 20], 20), ([a], 48)):
        r = complete(m, prompts).json()
        assert r["usage"]["prompt_tokens"] == want and [c["index"] for c in r["choices"]] == list(range(len(prompts)))
    r = complete(m, a, n=3).json()
    assert len(r["choices"]) == 3 and r["usage"]["completion_tokens"] == 3
    assert complete(m, a, n=2, temperature=0).status == 400
    assert complete(m, a, best_of=2).json()["usage"]["completion_tokens"] == 1
    r = complete(m, [a + [1], b + [2]], stream=True, max_tokens=2, stream_options={"include_usage": True})
    chunks = [c[1] for c in sse(r)[:-1]]
    assert sorted(c["choices"][0]["index"] for c in chunks[:-1]) == [0, 0, 1, 1] and chunks[-1]["usage"]["completion_tokens"] == 4
    for bad, param in ((None, "prompt"), ("", "prompt"), ([], None)):
        r = complete(m, bad)
        assert r.status == 400 and r.json()["error"]["param"] == param


def test_salts_that_begin_alike_are_two_caches(start):
    m = start(Mock)
    cached = []
    for salt in ("s" * 127 + "a", "s" * 127 + "b", "s" * 127 + "a"):
        cached.append(complete(m, "q" * 64, cache_salt=salt).json()["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached == [0, 0, 48]
    assert complete(m, "q", cache_salt="s" * 2000).status == 400


def test_what_is_no_list_of_tokens_has_no_text(start):
    m = start(Mock)
    for body in ("", "{", {"tokens": [-1]}, {"tokens": ["a"]}, {"tokens": "a"}):
        assert call(m.port, "POST", "/detokenize", body).status == 400, body
    assert call(m.port, "POST", "/detokenize", {"tokens": [104, 105]}).json() == {"prompt": "hi"}


def test_truncate_prompt_tokens_keeps_the_end(start):
    m = start(Mock, "--max-model-len", 256)
    tokens = list(range(300))
    usage = lambda **body: complete(m, tokens, **body).json()["usage"]
    assert usage(truncate_prompt_tokens=64)["prompt_tokens"] == 64
    assert complete(m, tokens[-64:]).json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 48
    assert usage(truncate_prompt_tokens=64, truncation_side="right")["prompt_tokens_details"]["cached_tokens"] == 0
    assert usage(truncate_prompt_tokens=-1)["prompt_tokens"] == 255
    for bad in (-2, 1000):
        assert complete(m, tokens, truncate_prompt_tokens=bad).status == 400


def test_special_tokens(start):
    m = start(Mock, "--bos-token", 7)
    count = lambda **body: call(m.port, "POST", "/tokenize", body).json()["tokens"]
    assert count(prompt="ab") == [7, 97, 98] and count(prompt="ab", add_special_tokens=False) == [97, 98]
    assert complete(m, "ab").json()["usage"]["prompt_tokens"] == 3
    assert complete(m, "ab", add_special_tokens=False).json()["usage"]["prompt_tokens"] == 2
    assert call(m.port, "POST", "/tokenize", {"prompt": "ab", "return_token_strs": True, "add_special_tokens": False}).json() == {
        "count": 2, "max_model_len": 16383 * 16, "tokens": [97, 98], "token_strs": ["a", "b"]}


def test_responses(start):
    m = start(Mock, "--responses-store", details=False)
    ask = lambda **body: call(m.port, "POST", "/v1/responses", {"max_output_tokens": 4, **body})
    first = ask(input="hello " * 20, instructions="be nice").json()
    again = ask(input=[{"role": "user", "content": [{"type": "input_text", "text": "hello " * 20}]}], instructions="be nice", stream=True)
    assert first["object"] == "response" and first["usage"]["input_tokens_details"]["cached_tokens"] == 0
    events = sse(again)
    assert [e[0] for e in events] == [f"response.{n}" for n in (
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta", "output_text.delta", "output_text.delta",
        "output_text.delta", "output_text.done", "content_part.done", "output_item.done", "completed")]
    assert [e[1]["sequence_number"] for e in events] == list(range(12))
    done = events[-1][1]["response"]
    assert done["usage"]["input_tokens_details"]["cached_tokens"] == 176 and done["usage"]["output_tokens"] == 4
    assert done["output"][0]["content"][0]["text"] == first["output"][0]["content"][0]["text"]
    more = ask(input="more", previous_response_id=first["id"]).json()["usage"]
    assert more["input_tokens"] > 181 and more["input_tokens_details"]["cached_tokens"] == 176
    assert call(m.port, "GET", f"/v1/responses/{first['id']}").status == 200
    for r in (ask(input="more", previous_response_id="resp_nope"), call(m.port, "GET", "/v1/responses/resp_nope")):
        assert r.status == 404 and r.json()["error"]["param"] == "response_id"
    assert ask(instructions="x").status == 400


@pytest.mark.parametrize("details", [True, False])
def test_messages(start, details):
    m = start(Mock, details=details)
    body = {"max_tokens": 3, "messages": [{"role": "user", "content": [{"type": "text", "text": "hello " * 20}]}], "system": "be nice"}
    first = call(m.port, "POST", "/v1/messages", body).json()
    n = call(m.port, "POST", "/v1/messages/count_tokens", body).json()["input_tokens"]
    assert first["type"] == "message" and first["stop_reason"] == "max_tokens" and len(first["content"][0]["text"]) == 3
    cached = {"cache_creation_input_tokens": n // 16 * 16, "cache_read_input_tokens": 0} if details else {}
    assert first["usage"] == {"input_tokens": n % 16 if details else n, "output_tokens": 3, **cached}
    events = sse(call(m.port, "POST", "/v1/messages", {**body, "stream": True}))
    assert [e[0] for e in events] == ["message_start", "content_block_start"] + 3 * ["content_block_delta"] + ["content_block_stop",
                                                                                                              "message_delta", "message_stop"]
    assert events[-2][1]["usage"].get("cache_read_input_tokens") == (n // 16 * 16 if details else None)
    r = call(m.port, "POST", "/v1/messages", {**body, "model": "nope"})
    assert (r.status, r.json()["type"], r.json()["error"]["type"]) == (404, "error", "NotFoundError")


def test_a_client_that_goes_frees_its_requests(start):
    m = start(Mock, speedup=1)
    c, r = read_sse(m.port, {"prompt": [list(range(40)), list(range(50))], "max_tokens": 100000, "stream": True})
    assert r.status == 200 and m.metric("vllm:num_requests_running") == 2
    c.close()
    wait_for("no request", lambda: m.metric("vllm:num_requests_running") == 0)


def test_a_rank_that_is_no_number_asks_for_none(start):
    m = start(Mock, dp=2, speedup=1)
    c, r = read_sse(m.port, {"prompt": list(range(40)), "max_tokens": 100000, "stream": True})  # at rank 0
    for rank in ("abc", "0x0", "-"):
        assert call(m.port, "POST", "/v1/completions", {"prompt": [1], "max_tokens": 1}, {"X-data-parallel-rank": rank, "Content-Type": "application/json"}).status == 200
    page = call(m.port, "GET", "/metrics").body.decode()
    assert 'vllm:request_success_total{model_name="mock",engine="1"} 3' in page
    c.close()
