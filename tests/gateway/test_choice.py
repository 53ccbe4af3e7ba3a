# SPDX-License-Identifier: Apache-2.0
"""Where requests go that Envoy asks about, and that they and their answers are the same as without anybody between."""
import hashlib
import http.client
import json
import random

import leg_parts
import pytest
from conftest import Mock, Serve, asking, call, read_sse, wait_for

USAGE = ("predicted_cached_tokens_total", "actual_cached_tokens_total", "usage_answers_total")


def addresses(mocks):
    return {f"127.0.0.1:{m.port}": i + 1 for i, m in enumerate(mocks)}


def test_the_request_goes_where_the_choice_says(gateway, start, mode):
    mocks = [start(Mock), start(Mock)]
    envoy, _ = gateway(mode, mocks)
    known = addresses(mocks)
    for i in range(8):
        r = envoy.complete([i] * 64, headers={"x-request-id": f"r{i}"})
        line = envoy.access(f"r{i}")
        assert r.status == 200, r.body
        assert line["destination"] == line["upstream"] == line["named"], line
        assert str(known[line["upstream"]]) == r.headers["x-kvroute-worker"] and r.headers["x-kvroute-reason"], line
    assert all(m.metric("vllm:request_success_total") > 0 for m in mocks)


def conversations(seed, n=40, turns=5):
    """Prompts of n conversations in turns, each with its begin; whoever sends them in this order has the same caches."""
    rng = random.Random(seed)
    told = [[rng.randrange(1000, 30000) for _ in range(rng.randrange(40, 160))] for _ in range(n)]
    for _ in range(turns):
        for i in rng.sample(range(n), n):
            yield list(told[i])
            told[i] += [rng.randrange(1000, 30000) for _ in range(rng.randrange(20, 60))]


def cached_tokens(port, mocks, settled):
    total = predicted = 0
    for prompt in conversations(7):
        r = call(port, "POST", "/v1/completions", {"prompt": prompt, "max_tokens": 1})
        assert r.status == 200, r.body
        total += r.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        predicted += 16 * int(r.headers["x-kvroute-overlap-blocks"])
        settled()
    return total, predicted


def test_two_hundred_conversation_turns_find_as_much_in_caches_as_through_the_data_port(gateway, start, mode):
    def blocks(mocks):
        return sum(m.metric("kvroute_mock_cached_blocks") for m in mocks)

    mocks = [start(Mock) for _ in range(3)]
    s = start(Serve, mocks)
    through_port = cached_tokens(s.port, mocks, lambda: wait_for("events", lambda: s.metric("index_blocks") == blocks(mocks) and s.idle()))
    others = [start(Mock) for _ in range(3)]
    envoy, picker = gateway(mode, others)
    through_envoy = cached_tokens(envoy.port, others, lambda: wait_for("events", lambda: picker.metric("index_blocks") == blocks(others) and picker.idle()))
    assert through_port[0] > 0 and abs(through_envoy[0] - through_port[0]) <= 0.01 * through_port[0], (through_envoy, through_port)
    assert through_envoy[0] == through_envoy[1] and through_port[0] == through_port[1]  # predicted and actual


def without_ids(raw):
    return [{k: v for k, v in json.loads(line[6:]).items() if k not in ("id", "created")} if b"[DONE]" not in line else line for line in raw.split(b"\n\n") if line]


def test_a_stream_is_the_engines_own_byte_for_byte(gateway, legs, mode):
    said = leg_parts.events(*[f"piece {i} " * (i % 7) + "é\U0001f600" for i in range(200)])
    leg = legs(lambda n, body: leg_parts.Pieces([said[i:i + 97] for i in range(0, len(said), 97)]))
    envoy, picker = gateway(mode, [leg.spec("both")], listed=[leg.port])
    r = envoy.complete([1] * 20, stream=True)
    assert r.status == 200 and r.body == said and r.headers["content-type"] == "text/event-stream"
    wait_for("idle", picker.idle)


def test_tokens_come_as_they_are_made(gateway, start, mode):
    """The first of many pieces is here while the others are not made yet; later ones come one by one."""
    m = start(Mock, speedup=1)
    envoy, picker = gateway(mode, [m])
    c, r = read_sse(envoy.port, {"prompt": [1] * 20, "max_tokens": 100, "stream": True})
    pieces = []
    while piece := r.read1(1 << 16):
        pieces.append(piece)
    c.close()
    assert pieces[0].count(b"data: ") < 50 and len(pieces) >= 10, [len(p) for p in pieces]
    assert b"".join(pieces).endswith(b"data: [DONE]\n\n")
    direct = call(m.port, "POST", "/v1/completions", {"prompt": [1] * 20, "max_tokens": 100, "stream": True})
    assert without_ids(direct.body) == without_ids(b"".join(pieces))
    wait_for("idle", picker.idle)


def test_requests_without_a_body_are_routed_and_nothing_is_booked(gateway, start, mode):
    mocks = [start(Mock), start(Mock)]
    envoy, picker = gateway(mode, mocks)
    for i in range(4):
        r = envoy.ask(None, path="/v1/models", method="GET")
        assert r.status == 200 and r.json()["data"], r.body
        assert envoy.ask(None, {"content-length": "0"}).status in (400, 404, 422)  # the engine's or the picker's word on an empty body
    assert picker.booked() == 0
    wait_for("streams", lambda: envoy.asking() == 0)


def test_a_path_that_is_not_known_is_passed_and_its_answer_untouched(gateway, sink, mode):
    worker = sink()
    envoy, picker = gateway(mode, [worker])
    r = envoy.ask(b"x" * 100000, {"x-request-id": "p", "content-type": "text/plain"}, path="/something/else?a=b")
    assert r.status == 200 and r.json()["path"] == "/something/else?a=b" and r.json()["bytes"] == 100000, r.body
    assert worker.got[-1]["sha256"] == r.json()["sha256"]
    assert not [h for h in r.headers if h.startswith("x-kvroute")], r.headers  # the picker has left before the answer
    wait_for("streams", lambda: envoy.asking() == 0)
    assert picker.booked() == 0


def test_a_body_that_envoy_cuts_is_routed_by_load_and_the_reason_says_so(gateway, start):
    def cut(conf):
        asking(conf)["processing_mode"]["request_body_mode"] = "BUFFERED_PARTIAL"
        conf["static_resources"]["listeners"][0]["per_connection_buffer_limit_bytes"] = 32768
    envoy, picker = gateway("buffered", [start(Mock, "--max-model-len", 1000000, "--num-gpu-blocks", 100000), start(Mock, "--num-gpu-blocks", 100000)], edits=[cut])
    whole = envoy.complete([1] * 64)
    assert whole.status == 200 and whole.headers["x-kvroute-reason"] != "load-body-cut"
    r = envoy.complete("x" * 100000)
    assert r.status == 200 and r.headers["x-kvroute-reason"] == "load-body-cut", (r.status, r.headers)
    assert r.json()["usage"]["prompt_tokens"] == 100000  # the engine has got all of it
    wait_for("idle", picker.idle)


def test_usage_is_learnt_as_through_the_data_port(gateway, start, mode):
    """Predicted and actual cached tokens of the same trace; an answer without usage makes none up."""
    def learnt(ask, asked, mocks):
        for i, prompt in enumerate(conversations(3, 8, 4)):
            r = ask({"prompt": prompt, "max_tokens": 3, "stream": i % 2 == 1, **({"stream_options": {"include_usage": True}} if i % 2 else {})})
            assert r.status == 200
            wait_for("events", lambda: asked.metric("index_blocks") == sum(m.metric("kvroute_mock_cached_blocks") for m in mocks) and asked.idle())
        return {n: asked.metric(n) for n in USAGE}

    direct, others = [start(Mock), start(Mock)], [start(Mock), start(Mock)]
    s = start(Serve, direct)
    envoy, picker = gateway(mode, others)
    want = learnt(lambda body: call(s.port, "POST", "/v1/completions", body), s, direct)
    got = learnt(envoy.ask, picker, others)
    assert got == want and all(want.values()), (got, want)
    silent = envoy.complete([9] * 64, stream=True)
    assert silent.status == 200
    wait_for("idle", picker.idle)
    assert {n: picker.metric(n) for n in USAGE} == got


def without_lengths(conf):
    asking(conf).pop("allow_content_length_header", None)


@pytest.mark.parametrize("edits", [[], [without_lengths]])
def test_a_name_that_stands_for_another_model_is_written_into_the_body(gateway, sink, mode, tmp_path, edits):
    """The body that goes on is the picker's, with another length, where the gateway has its client's."""
    (tmp_path / "models").write_text("models:\n  a-name-that-is-longer: {alias_of: m}\n")
    worker = sink()
    envoy, picker = gateway(mode, [worker], "--models-file", tmp_path / "models", edits=edits)
    data = json.dumps({"model": "a-name-that-is-longer", "prompt": [1] * 40000, "max_tokens": 2}).encode()
    for chunked in (False, True):
        c = http.client.HTTPConnection("127.0.0.1", envoy.port, timeout=60)
        c.request("POST", "/v1/completions", iter([data[:10], data[10:]]) if chunked else data, {"Content-Type": "application/json"})
        r = c.getresponse()
        assert r.status == 200 and r.getheader("x-kvroute-model") == "m", (r.status, r.read())
        r.read()
        c.close()
        assert worker.got[-1]["sha256"] == hashlib.sha256(data.replace(b"a-name-that-is-longer", b"m")).hexdigest()
    wait_for("idle", picker.idle)
