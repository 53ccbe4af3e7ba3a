# SPDX-License-Identifier: Apache-2.0
"""Requests as users send them: what is asked of an engine's tokenizer, which paths there are, keys of engines, responses that are gone on from."""
import json

import pytest
from conftest import Mock, Serve, call, wait_for
from http_parts import Handler, HttpServer
from test_first_hour import worker  # noqa: F401  pylint: disable=unused-import
from test_proxy import upstream  # noqa: F401  pylint: disable=unused-import

KEY = "sk-of-this-engine"
LONG = " ".join(f"word{i}" for i in range(200))


class KeyedEngine(HttpServer):
    """Wants a key, as vLLM with --api-key does, and says what it was asked."""

    def __init__(self, model="m"):
        self.seen, engine = [], self

        class Answers(Handler):
            def serve(self, body=None):
                engine.seen.append((self.path, self.headers.get("Authorization"), body))
                if self.path.startswith("/v1/") and self.headers.get("Authorization") != f"Bearer {KEY}":
                    self.answer(401, {"error": "Unauthorized"})
                elif self.path == "/v1/models":
                    self.answer(200, {"data": [{"id": model, "root": "/models/m", "parent": None, "owned_by": "vllm", "created": 17,
                                                "max_model_len": 64}]})
                elif self.path == "/tokenize":
                    self.answer(200, {"tokens": list(body["prompt"].encode()), "max_model_len": 64})
                else:
                    self.answer(200, {"id": "x", "usage": {"prompt_tokens": 8, "completion_tokens": 1}})

            def do_GET(self):
                self.serve()

            def do_POST(self):
                self.serve(json.loads(self.body()))
        super().__init__(Answers)

    def asked(self, path):
        return [(auth, body) for p, auth, body in self.seen if p == path]


@pytest.fixture
def keyed():
    e = KeyedEngine()
    yield e
    e.close()


def models(s):
    return call(s.port, "GET", "/v1/models").json()["data"]


def test_an_engine_that_wants_a_key_is_asked_with_that_of_its_entry(start, keyed, tmp_path):
    (tmp_path / "key").write_text(KEY + "\n")
    s = start(Serve, [f"{keyed.url},api-key-file={tmp_path / 'key'}"], "--no-router-kv-events", "--tokenizer", "engine")
    wait_for("its models", lambda: models(s))
    assert models(s)[0] == {"id": "m", "object": "model", "created": 17, "owned_by": "vllm", "root": "/models/m", "parent": None,
                            "max_model_len": 64}
    assert call(s.port, "GET", "/v1/models/m").json() == models(s)[0]
    assert call(s.port, "GET", "/v1/models/n").status == 404
    assert s.complete(LONG).status == 200
    assert keyed.asked("/tokenize") == [(f"Bearer {KEY}", {"prompt": LONG})]
    assert s.complete(LONG, headers={"Authorization": "Bearer other"}).status == 401  # the client's own wins
    assert KEY not in json.dumps(s.get("/workers")) + json.dumps(s.get("/decisions")) + s.text()


def test_a_key_that_is_wrong_is_named_and_not_shown(start):
    s = start(Serve, [], ready=False)
    r = s.post("/workers", {"worker_id": 1, "endpoint": "http://127.0.0.1:1", "api_key": "two words"})
    assert r.status == 400 and b"api_key" in r.body and b"two words" not in r.body


def test_requests_that_differ_in_sampling_alone_are_one_question(start, keyed):
    s = start(Serve, [f"{keyed.url},api-key={KEY}"], "--no-router-kv-events", "--tokenizer", "engine")
    wait_for("its models", lambda: models(s))
    for more in ({}, {"temperature": 0.5}, {"prompt": [LONG], "user": "u"}, {"truncate_prompt_tokens": 16}):
        assert s.complete(**{"prompt": LONG, **more}).status == 200
    # the last one asks once more, for the tokens without those that the tokenizer adds
    assert [b for _, b in keyed.asked("/tokenize")] == [{"prompt": LONG}, {"prompt": LONG, "add_special_tokens": False}]
    assert s.metric("tokenize_cache_hits_total") == 3


@pytest.mark.parametrize("path", ["/sleep", "/reset_prefix_cache", "/collective_rpc", "/server_info", "/pause", "/invocations", "/shutdown", "/metrics"])
def test_an_engines_own_paths_cannot_be_reached(start, keyed, path):
    s = start(Serve, [f"{keyed.url},api-key={KEY}"], "--no-router-kv-events")
    for method in ("GET", "POST"):
        assert call(s.port, method, path, {} if method == "POST" else None).status == 404
    assert not [p for p, *_ in keyed.seen if p == path and path != "/metrics"] or path == "/server_info"  # which the router asks by itself


@pytest.mark.parametrize("path", ["/tokenize", "/v1/score", "/pooling", "/rerank", "/classify", "/v1/messages/count_tokens"])
def test_paths_without_a_prompt_of_their_own_go_by_load(start, keyed, path):
    s = start(Serve, [f"{keyed.url},api-key={KEY}"], "--no-router-kv-events")
    r = call(s.port, "POST", path, {"prompt": "a"})
    assert r.status == 200 and r.headers["x-kvroute-reason"] == "load"


def test_what_goes_on_from_a_response_goes_to_the_worker_that_has_it(start):
    s = start(Serve, [start(Mock, "--responses-store"), start(Mock, "--responses-store")])

    def respond(headers=None, **more):
        return call(s.port, "POST", "/v1/responses", {"input": LONG, "max_output_tokens": 2, **more}, headers)
    first = respond({"x-kvroute-worker": "2"})
    assert first.status == 200, first.body
    on = [respond(input="on", previous_response_id=first.json()["id"]) for _ in range(4)]
    assert {r.headers["x-kvroute-worker"] for r in on} == {"2"} and {r.headers["x-kvroute-reason"] for r in on} == {"session"}
    streamed = respond({"x-kvroute-worker": "2"}, stream=True).body.decode()
    told = next(json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {"))["response"]["id"]
    for path in (told, told + "/cancel"):
        method = "POST" if path.endswith("cancel") else "GET"
        assert call(s.port, method, "/v1/responses/" + path).headers["x-kvroute-worker"] == "2"


ITEMS = {
    "function calls": [{"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
                       {"type": "function_call_output", "call_id": "c1", "output": "7"}],
    "reasoning": [{"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}],
    "image": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]}]}


@pytest.mark.parametrize("kind", ITEMS)
def test_responses_of_items_that_are_not_predicted_stick_all_the_same(start, worker, kind):
    """By the response that they go on from, and by their session; and they are never claimed to be cached."""
    ws = [worker(v1__responses={"id": f"resp_{i}", "object": "response", "usage": {"input_tokens": 300, "output_tokens": 1}}) for i in (1, 2)]
    s = start(Serve, [w.url for w in ws], "--no-router-kv-events", "--router-session-affinity-ttl-secs", 60)
    body = {"input": [{"role": "user", "content": LONG}] + ITEMS[kind], "max_output_tokens": 2}

    def ask(headers=None, **more):
        r = call(s.port, "POST", "/v1/responses", {**body, **more}, headers)
        assert r.status == 200, r.body
        wait_for("idle", s.idle)
        return r.headers["x-kvroute-worker"], r.headers["x-kvroute-reason"], r.json()["id"]
    for i in ("1", "2"):
        _, why, told = ask({"x-kvroute-worker": i, "x-session-id": "session of " + i})
        assert why == "pinned"
        assert {ask(previous_response_id=told)[:2] for _ in range(3)} == {(i, "session")}
        assert {ask({"x-session-id": "session of " + i})[:2] for _ in range(3)} == {(i, "session")}
    assert {ask()[1] for _ in range(3)} <= {"load", "kv"}  # kv: its beginning has been there before


def test_what_is_asked_of_a_response_goes_to_the_worker_that_has_it(start, worker):
    ws = [worker(v1__responses={"id": f"resp_{i}", "object": "response"}) for i in (1, 2)]
    for w in ws:
        for i in (1, 2):
            w.answers.update({f"/v1/responses/resp_{i}": {"id": f"resp_{i}"}, f"/v1/responses/resp_{i}/cancel": 400})
    s = start(Serve, [w.url for w in ws], "--no-router-kv-events")
    assert s.metric("responses") == 0
    for i in (1, 2):
        r = call(s.port, "POST", "/v1/responses", {"input": LONG}, {"x-kvroute-worker": str(i)})
        assert r.status == 200 and r.json()["id"] == f"resp_{i}"
    wait_for("kept", lambda: s.metric("responses") == 2)
    for i in (1, 2):
        for method, tail, status in (("GET", "", 200), ("GET", "?stream=true", 200), ("POST", "/cancel", 400)):
            for _ in range(2):
                r = call(s.port, method, f"/v1/responses/resp_{i}{tail}")
                assert (r.status, r.headers["x-kvroute-worker"]) == (status, str(i)), (method, tail)
    assert s.metric("responses") == 2
    ws[0].answers["/v1/responses/resp_1"] = 405  # as vLLM, which cannot delete any
    assert call(s.port, "DELETE", "/v1/responses/resp_1").status == 405 and s.metric("responses") == 2
    r = call(s.port, "DELETE", "/v1/responses/resp_2")
    assert (r.status, r.headers["x-kvroute-worker"]) == (200, "2")
    wait_for("forgotten", lambda: s.metric("responses") == 1)
    assert [r[:2] for w in ws for r in w.got("/v1/responses/resp_2") if r[0] == "DELETE"] == [("DELETE", "/v1/responses/resp_2")]


@pytest.mark.parametrize("path, body", [
    ("/v1/responses", {"input": LONG, "instructions": "be kind", "max_output_tokens": 2}),
    ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": "text", "text": LONG}]}], "system": "be kind", "max_tokens": 2})])
def test_responses_and_messages_are_predicted_as_their_chat(start, path, body):
    mocks = [start(Mock), start(Mock)]
    s = start(Serve, mocks)
    model = models(s)[0]["id"] if models(s) else None
    for streamed in (False, False, True):
        r = call(s.port, "POST", path, {**body, **({"model": model} if model else {}), "stream": streamed})
        assert r.status == 200, r.body
        wait_for("events", lambda: s.idle() and sum(v["blocks"] for v in s.views().values())
                 == sum(m.metric("kvroute_mock_cached_blocks") for m in mocks) > 5)
    assert int(r.headers["x-kvroute-overlap-blocks"]) > 5 and r.headers["x-kvroute-reason"] == "kv"
    wait_for("usage", lambda: s.metric("usage_answers_total") == 3)
    assert s.metric("predicted_cached_tokens_total") == s.metric("actual_cached_tokens_total") > 0


def audio(n):
    head = b'--b0\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--b0\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
    return head + bytes(i % 251 for i in range(n)) + b"\r\n--b0--\r\n"


@pytest.mark.parametrize("path", ["/v1/audio/transcriptions", "/v1/audio/translations"])
def test_audio_reaches_an_engine_as_it_came_and_its_limit_is_named(start, worker, path):
    w = worker(**{path[1:].replace("/", "__"): {"text": "hm"}})
    s = start(Serve, [w.url], "--no-router-kv-events", "--max-body-size", "700KiB")
    form = {"Content-Type": "multipart/form-data; boundary=b0"}
    for n in (1000, 300_000, 700 * 1024 - len(audio(0))):  # small; one that would be read on a thread; all that is allowed
        r = call(s.port, "POST", path, audio(n), form)
        assert (r.status, r.headers["x-kvroute-reason"]) == (200, "load")
        sent = w.got(path)[-1]
        assert sent[3] == audio(n) and sent[2]["Content-Type"] == form["Content-Type"]
    e = call(s.port, "POST", path, audio(700 * 1024), form)
    assert e.status == 413 and e.json()["error"]["code"] == 413
    assert e.json()["error"]["message"] == "the request body is larger than 716800 bytes, which is --max-body-size"
    assert len(w.got(path)) == 3


BOM = b"\xef\xbb\xbf"


def test_a_byte_order_mark_before_the_json_is_passed_over_and_passed_on(start, upstream, tmp_path):
    (tmp_path / "models").write_text("models: {chat: {alias_of: m}}\n")
    u = upstream(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
    s = start(Serve, [u.spec() + ",model=m,dp-size=2,engine=sglang"], "--no-router-kv-events", "--models-file", tmp_path / "models")
    kinds = [("/v1/completions", b' {"model":"m","prompt":"hello"}'), ("/v1/chat/completions", b'{"model":"m","messages":[{"role":"user","content":"x"}]}'),
             ("/v1/embeddings", b'{"model":"m","input":"x"}')]
    for path, body in kinds:
        assert call(s.port, "POST", path, BOM + body).status == 200
        sent = u.requests[-1][1]
        assert sent.startswith(BOM + body[:-1]) and json.loads(sent)["model"] == "m", sent  # with the rank, as without the mark
        assert call(s.port, "POST", path, BOM + body.replace(b'"m"', b'"chat"')).status == 200
        assert u.requests[-1][1].startswith(BOM + body[:-1])
        assert call(s.port, "POST", path, BOM + body.replace(b'"m"', b'"nobodys"')).status == 404
    for wrong in (BOM, BOM + BOM + b'{"model":"m","prompt":"x"}', b" " + BOM + b'{"prompt":"x"}', b'{"model":"m",' + BOM + b'"prompt":"x"}', BOM[:2] + b'{"prompt":"x"}'):
        assert call(s.port, "POST", "/v1/completions", wrong).status == 400, wrong


def test_a_prompt_behind_a_byte_order_mark_is_the_same_prompt(start):
    m = start(Mock)
    s = start(Serve, [m])
    body = json.dumps({"prompt": LONG, "max_tokens": 2}).encode()
    first = call(s.port, "POST", "/v1/completions", BOM + body)
    assert first.status == 200, first.body
    wait_for("events", lambda: s.metric("index_blocks") > 0)
    again, chat = call(s.port, "POST", "/v1/completions", body), json.dumps({"messages": [{"role": "user", "content": LONG}], "max_tokens": 2}).encode()
    assert again.headers["x-kvroute-reason"] == "kv" and again.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert call(s.port, "POST", "/v1/chat/completions", BOM + chat).headers["x-kvroute-reason"] == "load"
    wait_for("the chat's", lambda: call(s.port, "POST", "/v1/chat/completions", chat).headers["x-kvroute-reason"] == "kv")
    assert s.metric("tokenize_failures_total") == 0


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity"])
def test_what_python_takes_for_a_number_and_json_does_not_have_is_refused(start, number):
    s = start(Serve, [start(Mock, with_events=False)])
    a = call(s.port, "POST", "/v1/completions", b'{"prompt":"x","temperature":' + number + b"}")
    assert a.status == 400 and "not valid JSON" in a.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/realtime", "/v1/realtime?model=m", "/v1/completions", "/v1/videos"])
def test_a_websocket_is_told_that_there_are_none(start, path):
    m = start(Mock, with_events=False)
    s = start(Serve, [m])
    a = call(s.port, "GET", path, headers={"Connection": "keep-alive, Upgrade", "Upgrade": "WebSocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="})
    assert a.status == 501 and "WebSocket" in a.json()["error"]["message"] and s.metric("requests_total") == 0
    assert call(s.port, "GET", "/v1/models", headers={"Connection": "Upgrade", "Upgrade": "h2c"}).status == 200, "another upgrade is not taken"
