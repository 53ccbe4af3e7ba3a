# SPDX-License-Identifier: Apache-2.0
"""What the mock engine tells of itself, as vLLM 0.32 does (docs/mock.md)."""
import struct

import msgpack
import pytest
import zmq

from conftest import Mock, call, wait_for


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
