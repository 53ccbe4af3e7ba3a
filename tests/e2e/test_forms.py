# SPDX-License-Identifier: Apache-2.0
"""Forms (multipart/form-data: audio, pictures): each goes to a worker of the model that it names, under its key's limits, byte for byte."""
import os
import socket

import pytest
from conftest import SLOW, Serve, call, wait_for
from http_parts import Handler, HttpServer

TRANSCRIBE = "/v1/audio/transcriptions"


class Engine(HttpServer):
    """Lists one model, and keeps what it is sent: (path, headers, body)."""

    def __init__(self, model):
        self.asked = []
        engine = self

        class Answers(Handler):
            def do_GET(self):
                self.answer(200, {"object": "list", "data": [{"id": model, "object": "model"}]})

            def do_POST(self):
                engine.asked.append((self.path, self.headers, self.body()))
                self.answer(200, {"text": model})
        super().__init__(Answers)


@pytest.fixture
def fleet(start):
    """A router before an engine of `llama` and one of `whisper`: serve(options...) returns (router, engines by model)."""
    engines = {m: Engine(m) for m in ("llama", "whisper")}

    def serve(*options):
        router = start(Serve, [e.url for e in engines.values()], "--no-router-kv-events", *options)
        wait_for("both models", lambda: {"llama", "whisper"} <= {m["id"] for w in router.get("/workers") for m in w.get("models", [])}
                 or {"llama", "whisper"} <= {m["id"] for m in call(router.port, "GET", "/v1/models", headers={"x-api-key": "key-of-all"}).json().get("data", [])})
        return router, engines
    yield serve
    for e in engines.values():
        e.close()


def part(name, value, more=""):
    return f'Content-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + value


def form(*parts, boundary="XX"):
    mark = b"--" + boundary.encode()
    return b"".join(mark + b"\r\n" + p + b"\r\n" for p in parts) + mark + b"--\r\n"


def sound(size=3000):
    return part("file", os.urandom(size), '; filename="a.wav"')


def post(router, body, path=TRANSCRIBE, boundary="XX", headers=None):
    return call(router.port, "POST", path, body, {"Content-Type": f"multipart/form-data; boundary={boundary}", **(headers or {})})


def refused(a, text, status=400):
    assert a.status == status and text in a.json()["error"]["message"], (a.status, a.body)


@pytest.mark.parametrize("path", [TRANSCRIBE, "/v1/audio/translations", "/v1/images/edits"])
def test_a_form_goes_to_a_worker_of_the_model_that_it_names(fleet, path):
    router, engines = fleet()
    for model in engines:
        for i in range(8):
            parts = [part("model", model.encode()), sound()]
            body = form(*(parts if i % 2 else reversed(parts)))
            a = post(router, body, path)
            assert a.status == 200 and a.json()["text"] == model, (i, model, a.body)
            assert engines[model].asked[-1][2] == body
    refused(post(router, form(part("model", b"nobodys"), sound())), "nobodys", 404)


def test_its_model_is_read_of_a_large_form_and_of_one_in_chunks(fleet):
    router, engines = fleet()
    body = form(sound(3 << 20), part("model", b"whisper"))  # larger than what is read on the loop
    assert [post(router, body).json()["text"] for _ in range(4)] == ["whisper"] * 4 and engines["whisper"].asked[-1][2] == body
    small = form(part("model", b"whisper"), sound(50))
    for at in range(1, len(small), 17):
        with socket.create_connection(("127.0.0.1", router.port), 10 * SLOW) as c:
            c.sendall(f"POST {TRANSCRIBE} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: multipart/form-data; boundary=XX\r\n"
                      "Transfer-Encoding: chunked\r\n\r\n".encode())
            for piece in (small[:at], small[at:]):
                c.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
            c.sendall(b"0\r\n\r\n")
            got = b"".join(iter(lambda: c.recv(65536), b""))
        assert got.startswith(b"HTTP/1.1 200 ") and b"whisper" in got, (at, got)
        assert engines["whisper"].asked[-1][2] == small


def test_a_boundary_may_be_quoted_and_lines_may_have_white_space_behind_it(fleet):
    router, _ = fleet()
    body = form(part("model", b"whisper"), sound(), boundary="a b:c").replace(b"--a b:c\r\n", b"--a b:c \t\r\n")
    for _ in range(4):
        assert post(router, b"preamble\r\n" + body + b"epilogue", boundary='"a b:c"; charset=utf-8').json()["text"] == "whisper"
    assert post(router, form(sound())).status == 200, "a form need not name a model: any worker may have it"


HOSTILE = {
    "no boundary": ("must have one boundary", form(part("model", b"whisper")), None),
    "an empty one": ("is empty", form(part("model", b"whisper")), '""'),
    "a long one": ("longer than 70", form(part("model", b"whisper"), boundary="x" * 71), "x" * 71),
    "another one": ("does not have the boundary", form(part("model", b"whisper")), "YY"),
    "two models": ("more than once", form(part("model", b"whisper"), part("model", b"llama")), "XX"),
    "a huge model": ("longer than 127 bytes", form(part("model", b"w" * (1 << 20))), "XX"),
    "a NUL": ("has a NUL", form(part("model", b"whisper\0")), "XX"),
    "no end": ("has no end", form(part("model", b"whisper"))[:-8], "XX"),
    "a model that is encoded": ("Transfer-Encoding", form(b"Content-Transfer-Encoding: base64\r\n" + part("model", b"d2hpc3Blcg==")), "XX"),
    "JSON": ("does not have the boundary", b'{"model": "whisper"}', "XX"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_form_that_engines_may_read_in_another_way_is_refused(fleet, what):
    text, body, boundary = HOSTILE[what]
    router, engines = fleet()
    a = post(router, body, boundary=boundary) if boundary else call(router.port, "POST", TRANSCRIBE, body, {"Content-Type": "multipart/form-data"})
    refused(a, text)
    assert not any(e.asked for e in engines.values())


def test_a_form_within_a_part_names_no_model(fleet):
    router, engines = fleet()
    inner = form(part("model", b"llama"), boundary="inner")
    for _ in range(4):
        assert post(router, form(part("file", inner), part("model", b"whisper"))).json()["text"] == "whisper"


def test_two_content_types_of_a_form_are_refused(fleet):
    router, engines = fleet()
    body = form(part("model", b"whisper"))
    ours, other = "multipart/form-data; boundary=XX", "application/json"
    for types, said in (((ours, other), b"two values"), ((other, ours), b"two values"), ((ours, ours), b"one Content-Type")):
        with socket.create_connection(("127.0.0.1", router.port), 10 * SLOW) as c:
            lines = "".join(f"Content-Type: {t}\r\n" for t in types)
            c.sendall(f"POST {TRANSCRIBE} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            got = b"".join(iter(lambda: c.recv(65536), b""))
        assert got.startswith(b"HTTP/1.1 400 ") and said in got, got


def test_an_alias_in_a_form_is_followed_and_the_engine_gets_its_models_name(fleet, tmp_path):
    (tmp_path / "models.yaml").write_text("models:\n  speech: {alias_of: whisper}\n  gone: {targets: [{model: nobodys, weight: 1}], fallback: [whisper]}\n")
    router, engines = fleet("--models-file", tmp_path / "models.yaml")
    for name in (b"speech", b"gone"):
        for size in (100, 2 << 20):
            before, after = part("user", b"someone"), sound(size)
            a = post(router, form(before, part("model", name), after))
            assert a.json()["text"] == "whisper" and a.headers["x-kvroute-model"] == "whisper"
            assert engines["whisper"].asked[-1][2] == form(before, part("model", b"whisper"), after), "every other byte stays"


def test_shares_of_a_model_are_drawn_by_the_user_of_a_form(fleet, tmp_path):
    (tmp_path / "models.yaml").write_text("models:\n  any: {targets: [{model: whisper, weight: 50}, {model: llama, weight: 50}]}\n")
    router, _ = fleet("--models-file", tmp_path / "models.yaml")
    drawn = {u: {post(router, form(part("model", b"any"), part("user", b"u%d" % u))).json()["text"] for _ in range(3)} for u in range(20)}
    assert all(len(d) == 1 for d in drawn.values()) and {m for d in drawn.values() for m in d} == {"whisper", "llama"}
    as_json = {u: call(router.port, "POST", "/v1/embeddings", {"model": "any", "user": f"u{u}"}).json()["text"] for u in range(20)}
    assert as_json == {u: d.pop() for u, d in drawn.items()}, "as that of a JSON body"


def test_a_key_may_use_its_models_in_forms_too_and_a_models_limits_hold(fleet, tmp_path):
    (tmp_path / "keys").write_text("keys:\n- {name: all, key: key-of-all}\n- {name: one, key: key-of-llama, models: [llama]}\n"
                                   "models:\n  whisper: {requests_per_second: 0.01, burst_requests: 2}\n")
    router, engines = fleet("--api-key-file", tmp_path / "keys")
    ask = lambda key, *parts: post(router, form(*parts), headers={"x-api-key": key})  # noqa: E731
    assert ask("key-of-llama", sound(), part("model", b"llama")).json()["text"] == "llama"
    refused(ask("key-of-llama", sound(), part("model", b"whisper")), "may not use the model 'whisper'", 403)
    refused(ask("key-of-llama", sound()), "names none", 403)
    assert [ask("key-of-all", part("model", b"whisper"), sound()).status for _ in range(3)] == [200, 200, 429]
    mixed = call(router.port, "POST", TRANSCRIBE, form(part("model", b"whisper")), {"Content-Type": "multipart/mixed; boundary=XX", "x-api-key": "key-of-all"})
    refused(mixed, "not valid JSON")  # who knows what an engine would read there
    assert len(engines["whisper"].asked) == 2
