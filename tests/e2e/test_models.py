# SPDX-License-Identifier: Apache-2.0
"""--models-file: aliases, shares of a new model, fallbacks, and the file read again while requests go on."""
import pathlib
import signal
import threading

import pytest
from conftest import Mock, Serve, call, wait_for

CANARY = """
models:
  chat: {alias_of: m}
  m:
    targets: [{model: m, weight: 95}, {model: m-new, weight: 5}]
"""


def mock(start, model, **kw):
    return start(Mock, "--model", model, with_events=False, **kw)


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "models.yaml"
        path.write_text(text)
        return path
    return write


def ask(router, model, session=None, path="/v1/completions", **body):
    headers = {"x-session-id": session} if session else {}
    return call(router.port, "POST", path, {"model": model, "prompt": "hello", "max_tokens": 1, **body}, headers)


def served(answer):
    assert answer.status == 200, answer.body
    return answer.headers.get("x-kvroute-model")


def serve(start, file, *mocks, **kw):
    return start(Serve, [m.spec() for m in mocks], "--models-file", file, **kw)


def test_an_alias_goes_to_its_model_and_the_engine_gets_its_name(start, file):
    router = serve(start, file("models: {chat: {alias_of: m}}"), mock(start, "m"), mock(start, "other"))
    wait_for("both models", lambda: {"m", "other", "chat"} <= {m["id"] for m in call(router.port, "GET", "/v1/models").json()["data"]})
    a = ask(router, "chat")
    assert served(a) == "m" and a.json()["model"] == "m" and a.headers["x-kvroute-worker"] == "1"
    plain = ask(router, "other")
    assert served(plain) is None and plain.headers["x-kvroute-worker"] == "2"
    last = router.get("/decisions")
    last = last.get("decisions", last) if isinstance(last, dict) else last
    assert {(d["asked_model"], d["model"], d["fallback"]) for d in last} == {("chat", "m", False), ("other", "other", False)}


def test_models_lists_an_alias_with_what_it_stands_for(start, file):
    router = serve(start, file("models: {chat: {alias_of: m}, gone: {alias_of: nobody}}"), mock(start, "m"))
    wait_for("m", lambda: any(m["id"] == "m" for m in call(router.port, "GET", "/v1/models").json()["data"]))
    listed = {m["id"]: m for m in call(router.port, "GET", "/v1/models").json()["data"]}
    assert set(listed) == {"m", "chat"}
    assert (listed["chat"]["root"], listed["chat"]["parent"]) == ("m", None)
    assert call(router.port, "GET", "/v1/models/chat").json()["root"] == "m"
    assert call(router.port, "GET", "/v1/models/gone").status == 404


def test_a_share_of_sessions_goes_to_the_new_model_and_stays_there(start, file):
    router = serve(start, file(CANARY), mock(start, "m"), mock(start, "m-new"))
    wait_for("both models", lambda: {"m", "m-new"} <= {m["id"] for m in call(router.port, "GET", "/v1/models").json()["data"]})
    went = [served(ask(router, "m", f"s{i}")) for i in range(2000)]
    assert went.count("m-new") == 103 and went.count("m") == 1897  # computed by another program from what models_file.h says
    assert [served(ask(router, "chat", f"s{i}")) for i in range(200)] == went[:200], "an alias of it is shared alike"
    again = [i for i in range(2000) if went[i] == "m-new"][:20] + list(range(20))
    assert [served(ask(router, "m", f"s{i}")) for i in again] == [went[i] for i in again]
    assert [served(ask(router, "m", user=f"s{i}")) for i in again] == [went[i] for i in again], "`user` is the session"


def test_a_fallback_is_taken_while_nobody_serves_the_model(start, file):
    first, second = mock(start, "m"), mock(start, "small")
    router = serve(start, file("models: {m: {fallback: [nobody, small]}}"), first, second)
    wait_for("both models", lambda: {"m", "small"} <= {m["id"] for m in call(router.port, "GET", "/v1/models").json()["data"]})
    assert served(ask(router, "m")) == "m"
    first.kill()
    wait_for("the fallback", lambda: ask(router, "m").headers.get("x-kvroute-model") == "small", 30)
    assert router.metric("model_fallbacks_total") >= 1
    mock(start, "m", port=first.port)
    wait_for("the model again", lambda: served(ask(router, "m")) == "m", 30)


def test_a_file_is_read_again_under_load_and_a_bad_one_changes_nothing(start, file):
    path = file("models: {chat: {alias_of: m}}")
    router = serve(start, path, mock(start, "m"), mock(start, "m2"))
    wait_for("both models", lambda: {"m", "m2"} <= {m["id"] for m in call(router.port, "GET", "/v1/models").json()["data"]})
    seen, stop = [], threading.Event()

    def load():
        while not stop.is_set():
            a = ask(router, "chat")
            seen.append((a.status, a.headers.get("x-kvroute-model")))

    threads = [threading.Thread(target=load) for _ in range(3)]
    for t in threads:
        t.start()
    try:
        for n, model in enumerate(["m2", "m", "m2"], 1):
            file(f"models: {{chat: {{alias_of: {model}}}}}")
            router.p.send_signal(signal.SIGHUP)
            wait_for("the file", lambda: router.metric("config_reloads_total", file="models", result="taken") == n + 1)
            assert served(ask(router, "chat")) == model
        file("models:\n  chat: {alias: m}")
        router.p.send_signal(signal.SIGHUP)
        wait_for("the refusal", lambda: router.metric("config_last_reload_successful", file="models") == 0)
        assert served(ask(router, "chat")) == "m2"
    finally:
        stop.set()
        for t in threads:
            t.join()
    assert {s for s, _ in seen} == {200} and {m for _, m in seen} == {"m", "m2"}
    assert "models.yaml:2: alias: unknown key of a model; allowed: alias_of, targets, fallback" in router.text()


def test_a_bad_file_is_refused_at_the_start(start, file):
    path = file("models: {a: {alias_of: b}, b: {alias_of: a}}")
    router = start(Serve, ["http://127.0.0.1:9"], "--models-file", path, wait=False, expect=1)
    assert router.p.wait(20) == 1
    assert "models-file:" in router.text() and "its targets lead in a circle" in router.text()


def test_only_the_model_of_a_body_is_changed(start, file):
    """What is passed on, too: the engine knows the name, and its answer tells it."""
    router = serve(start, file("models: {chat: {alias_of: m}}"), mock(start, "m"))
    wait_for("m", lambda: any(m["id"] == "m" for m in call(router.port, "GET", "/v1/models").json()["data"]))
    a = call(router.port, "POST", "/v1/chat/completions", {"model": "chat", "messages": [{"role": "user", "content": "chat"}], "max_tokens": 1})
    assert served(a) == "m" and a.json()["model"] == "m"
    a = call(router.port, "POST", "/tokenize", {"model": "chat", "prompt": "chat"})
    assert served(a) == "m"


def test_the_example_of_the_documents_is_taken(start, file):
    text = (pathlib.Path(__file__).parents[2] / "docs" / "models.md").read_text()
    router = serve(start, file(text.split("```yaml\n")[1].split("```")[0]), mock(start, "m-new"), mock(start, "m-small"))
    wait_for("both models", lambda: {"m-new", "m-small"} <= {m["id"] for m in call(router.port, "GET", "/v1/models").json()["data"]})
    got = {served(ask(router, "chat", f"s{i}")) for i in range(100)}
    assert got == {"m-new", "m-small"}  # nobody serves `m`
