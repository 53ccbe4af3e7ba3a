# SPDX-License-Identifier: Apache-2.0
"""--models-file: aliases, shares of a new model, fallbacks; the file read again, and other names put over the admin port, while requests go on."""
import concurrent.futures
import http.client
import json
import pathlib
import signal
import threading

import pytest
from conftest import Mock, Select, Serve, call, free_ports, wait_for

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
    wait_for("both decisions", lambda: len(router.get("/decisions")) == 2)  # a request is told of when it has ended
    last = router.get("/decisions")
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
    assert "models.yaml:2: alias: unknown key of a model; allowed: alias_of, targets, fallback, fallback_on, options" in router.text()


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
    text = (pathlib.Path(__file__).parents[2] / "docs" / "guides" / "models.md").read_text()
    router = serve(start, file(text.split("```yaml\n")[1].split("```")[0]), mock(start, "m-new"), mock(start, "m-small"))
    wait_for("both models", lambda: {"m-new", "m-small"} <= {m["id"] for m in call(router.port, "GET", "/v1/models").json()["data"]})
    got = {served(ask(router, "chat", f"s{i}")) for i in range(100)}
    assert got == {"m-new", "m-small"}  # nobody serves `m`


# ---- over the admin port ----------------------------------------------------------------------------------


def put(router, body, **headers):
    return call(router.admin, "PUT", "/models_config", body, {"Content-Type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}})


def in_force(router):
    a = call(router.admin, "GET", "/models_config")
    assert a.status == 200
    return a


def test_what_is_put_over_the_admin_port_counts_at_once_and_is_what_is_told(start, file):
    path = file(CANARY)
    router = serve(start, path, mock(start, "m"), mock(start, "m-new"))
    wait_for("both models", lambda: {"m", "m-new"} <= {m["id"] for m in call(router.port, "GET", "/v1/models").json()["data"]})
    first = in_force(router)
    rules = {"chat": {"alias_of": "m"}, "m": {"targets": [{"model": "m", "weight": 95}, {"model": "m-new", "weight": 5}]}}
    told = first.json()
    assert told["config"] == {"models": rules} and told["source"] == "file" and told["path"] == str(path) and told["since"].endswith("Z")
    assert "until" not in told and router.metric("models_config_from_api") == 0
    rules = {"chat": {"alias_of": "m-new"}, 'a"b\\': {"targets": [{"model": "m", "weight": 0.1}, {"model": "m-new", "weight": 1e-9}], "fallback": ["m-new"]}}
    a = put(router, json.dumps({"models": rules}))
    assert a.status == 200, a.body
    assert served(ask(router, "chat")) == "m-new" and served(ask(router, 'a"b\\')) == "m"
    assert a.json() == in_force(router).json() and a.json()["config"] == {"models": rules}
    assert a.json()["source"] == "api" and a.json()["until"] == "the file is read again, or the router ends"
    assert a.headers["etag"] == in_force(router).headers["etag"] != first.headers["etag"]
    assert router.metric("models_config_from_api") == 1 and router.metric("config_reloads_total", file="models-put", result="taken") == 1
    again = put(router, json.dumps(a.json()["config"]))
    assert again.json()["config"] == {"models": rules} and again.headers["etag"] == a.headers["etag"], "what is told can be put"


def test_what_was_put_is_lost_when_the_file_is_read_again(start, file):
    router = serve(start, file("models: {chat: {alias_of: m}}"), mock(start, "m"), mock(start, "m2"))
    wait_for("both models", lambda: {"m", "m2"} <= {m["id"] for m in call(router.port, "GET", "/v1/models").json()["data"]})
    tag = in_force(router).headers["etag"]
    assert put(router, {"models": {"chat": {"alias_of": "m2"}}}).status == 200 and served(ask(router, "chat")) == "m2"
    a = router.post("/reload", None)
    assert [f["result"] for f in a.json()["files"]] == ["taken"], "the file is as before, what is in force is not"
    assert served(ask(router, "chat")) == "m" and in_force(router).json()["source"] == "file" and in_force(router).headers["etag"] == tag
    assert [f["result"] for f in router.post("/reload", None).json()["files"]] == ["unchanged"]
    file("models: {chat: {alias: m}}")
    put(router, {"models": {"chat": {"alias_of": "m2"}}})
    assert router.post("/reload", None).status == 422 and served(ask(router, "chat")) == "m2", "a file that is refused changes nothing"


def test_names_can_be_put_where_there_is_no_file(start):
    router = start(Serve, [mock(start, "m").spec()])
    wait_for("m", lambda: ask(router, "m").status == 200)
    told = in_force(router)
    assert told.json() == {"config": {"models": {}}, "source": "none"}
    assert ask(router, "chat").status == 404
    a = put(router, {"models": {"chat": {"alias_of": "m"}}}, If_Match=told.headers["etag"])
    assert a.status == 200 and a.json()["until"] == "the router ends" and served(ask(router, "chat")) == "m"
    router.p.send_signal(signal.SIGHUP)
    wait_for("read again", lambda: "SIGHUP: read again" in router.text())
    assert served(ask(router, "chat")) == "m", "there is no file to read"
    assert put(router, {"models": {}}).status == 200 and ask(router, "chat").status == 404


def test_of_two_who_change_what_both_have_seen_the_second_is_told(start, file):
    router = serve(start, file("models: {}"), mock(start, "m"))
    tag = in_force(router).headers["etag"]
    assert put(router, {"models": {"a": {"alias_of": "m"}}}, If_Match=f'"other", {tag}').status == 200
    late = put(router, {"models": {"b": {"alias_of": "m"}}}, If_Match=tag)
    assert late.status == 412 and in_force(router).headers["etag"] in late.json()["error"]
    assert put(router, {"models": {"b": {"alias_of": "m"}}}, If_Match="W/" + in_force(router).headers["etag"]).status == 412
    assert list(in_force(router).json()["config"]["models"]) == ["a"]
    assert put(router, {"models": {"c": {"alias_of": "m"}}}, If_Match="*").status == 200
    assert list(in_force(router).json()["config"]["models"]) == ["c"]


@pytest.mark.parametrize("body,status,error", [
    ('{"models":\n{"chat":\n{"alias": "m"}}}', 422, "body:3: alias: unknown key of a model; allowed: alias_of, targets, fallback, fallback_on, options"),
    ('{"models": {"a": {"alias_of": "b"}, "b": {"alias_of": "a"}}}', 422, "body:1: a: its targets lead in a circle, or over more than 8 steps"),
    ('{"models": {"a": {"alias_of": null}}}', 422, "body:1: alias_of: the name of a model is expected; one that is null has quotes"),
    ('{"models": {"a\\u0000b": {"alias_of": "m"}}}', 422, "body:1: models: keys must be texts"),
    ('{"models": {"a": {"alias_of": "m\\u0000"}}}', 422, "body:1: alias_of: a text of 1 to 127 characters is expected"),
    ('{"model": {}}', 422, "body:1: model: unknown key; allowed: models"),
    ('{"models": {}, "models": {}}', 400, "given more than once"),
    ("models: {}", 400, "not valid JSON"), ("", 400, "JSON"), ("[]", 400, "object"),
    ("large", 413, "1 MiB"),
])
def test_what_cannot_be_put_changes_nothing_and_is_named(start, file, body, status, error):
    router = serve(start, file("models: {chat: {alias_of: m}}"), mock(start, "m"))
    before = in_force(router).json()
    a = put(router, body if body != "large" else '{"models": {}}' + " " * (1 << 20))
    assert a.status == status and error in a.json()["error"], a.body
    assert in_force(router).json() == before
    assert router.metric("config_reloads_total", file="models-put", result="refused") == (status == 422)
    assert router.metric("config_last_reload_successful", file="models") == 1, "the file is as good as before"
    assert b'kvroute_config_last_reload_successful{file="models-put"}' not in call(router.admin, "GET", "/metrics").body


def test_names_are_put_by_whoever_has_the_admin_key_alone(start, tmp_path):
    key = tmp_path / "key"
    key.write_text("secret\n")
    router = start(Serve, [], "--admin-key-file", key, ready=False)
    assert put(router, {"models": {}}).status == 401 and call(router.admin, "GET", "/models_config").status == 401
    assert put(router, {"models": {}}, Authorization="Bearer secret", Origin="http://elsewhere").status == 403
    assert put(router, {"models": {}}, Authorization="Bearer secret").status == 200
    assert call(router.admin, "POST", "/models_config", {"models": {}}, {"Authorization": "Bearer secret"}).status == 405
    assert call(start(Select).port, "GET", "/models_config").status == 404


def test_names_are_put_under_load_and_every_request_is_served(start, file):
    router = serve(start, file("models: {chat: {alias_of: m}}"), mock(start, "m"), mock(start, "m2"))
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
        for n in range(40):
            model = "m2" if n % 2 else "m"
            assert put(router, {"models": {"chat": {"alias_of": model}}}).status == 200
            assert served(ask(router, "chat")) == model
    finally:
        stop.set()
        for t in threads:
            t.join()
    assert {s for s, _ in seen} == {200} and {m for _, m in seen} == {"m", "m2"}


# ---- options of a model -----------------------------------------------------------------------------------


def workers_of(router, model, n, prompt=0):
    """The workers that n requests with one prompt go to, one after the other."""
    went = []
    for _ in range(n):
        a = call(router.port, "POST", "/v1/completions", {"model": model, "prompt": list(range(prompt, prompt + 64)), "max_tokens": 1})
        assert a.status == 200, a.body
        went.append(a.headers["x-kvroute-worker"])
    return went


def two_of_each(start):
    return [start(Mock, "--model", model) for model in ("m", "m", "n", "n")]


def test_a_model_has_a_mode_and_a_temperature_of_its_own(start, file):
    mocks = two_of_each(start)
    router = serve(start, file("""
models:
  m: {options: {router-mode: round-robin}}
  warm: {alias_of: n, options: {router-temperature: 1e9}}
"""), *mocks)
    wait_for("all workers", lambda: sum(w["status"] == "up" for w in router.get("/workers")) == 4)
    first = workers_of(router, "n", 1)
    wait_for("its blocks", lambda: router.view(int(first[0]))["blocks"] >= 4)
    assert set(workers_of(router, "n", 10)) == set(first), "where the prompt is"
    went = workers_of(router, "m", 10)
    assert went[:2] * 5 == went and set(went) == {"1", "2"}, "in turn"
    wait_for("all decisions", lambda: len(router.get("/decisions")) == 21)
    assert {d["reason"] for d in router.get("/decisions") if d["model"] == "m"} == {"round-robin"}
    assert set(workers_of(router, "warm", 60)) == {"3", "4"}, "by chance"
    assert put(router, {"models": {"m": {}}}).status == 200
    first = workers_of(router, "m", 1, prompt=1000)
    wait_for("its blocks", lambda: router.view(int(first[0]))["blocks"] >= 8)
    assert set(workers_of(router, "m", 10, prompt=1000)) == set(first), "as all others, at once"


def test_a_model_has_times_of_its_own(start, file):
    slow = [start(Mock, "--model", model, with_events=False, speedup=0.05) for model in ("m", "n")]
    gone = f"http://127.0.0.1:{free_ports()},model=gone"
    path = file("""
models:
  m: {options: {first-token-timeout: 0.2, max-retries: 0}}
  short: {alias_of: n, options: {total-timeout: 0.3}}
  gone: {options: {queue-timeout: 0.2}}
  gone-now: {alias_of: gone, options: {queue-timeout: 0}}
""")
    router = start(Serve, [slow[0].spec(), slow[1].spec(), gone], "--models-file", path, "--queue-timeout", 600, ready=False)
    wait_for("both models", lambda: {"m", "n"} <= {m["id"] for m in call(router.port, "GET", "/v1/models").json()["data"]})
    long = {"prompt": list(range(20000)), "max_tokens": 1}
    a = ask(router, "m", **long)
    assert a.status == 504 and "did not answer in time" in a.body.decode(), a.body
    a = ask(router, "short", **long)
    assert a.status == 504 and "--total-timeout" in a.body.decode(), a.body
    for model in ("gone", "gone-now"):
        a = ask(router, model)
        assert a.status == 503 and "in time" in a.body.decode(), a.body


@pytest.mark.parametrize("option,most,beyond", [
    ("router-kv-overlap-score-credit", 1e9, -1), ("router-prefill-load-scale", 1e9, -1), ("router-temperature", 1e9, -1),
    ("shared-cache-multiplier", 1, 1.1), ("queue-timeout", 864000, 864001), ("first-token-timeout", 864000, 864001),
    ("stall-timeout", 864000, 864001), ("total-timeout", 864000, 864001), ("max-retries", 7, 8), ("router-mode", "least-loaded", "best"),
])
def test_an_option_of_a_model_has_the_limits_of_the_command_line(start, option, most, beyond):
    router = start(Serve, ["http://127.0.0.1:9"], f"--{option}", most, ready=False)
    assert put(router, {"models": {"m": {"options": {option: most}}}}).status == 200
    assert in_force(router).json()["config"] == {"models": {"m": {"options": {option: most}}}}
    a = put(router, {"models": {"m": {"options": {option: beyond}}}})
    assert a.status == 422 and f"body:1: {option}: " in a.json()["error"], a.body
    refused = start(Serve, [], f"--{option}", beyond, wait=False, expect=2)
    assert refused.p.wait(20) == 2 and option in refused.text()


def test_a_model_has_no_credit_where_there_is_no_index(start, file):
    path = file("models:\n  m:\n    options:\n      router-kv-overlap-score-credit: 1\n")
    router = start(Serve, [], "--models-file", path, "--router-kv-overlap-score-credit", 0, wait=False, expect=1)
    assert router.p.wait(20) == 1
    assert "models.yaml:4: router-kv-overlap-score-credit: 0 is expected, because it is 0 for all models: there is no index" in router.text()


# ---- fallbacks for overload -------------------------------------------------------------------------------

OVERLOADED = """
models:
  m: {fallback: [other, small], fallback_on: [unavailable, overloaded]}
  waits: {alias_of: m, fallback: [small], fallback_on: [unavailable]}
  busy-only: {alias_of: m, fallback: [small], fallback_on: [overloaded]}
"""


def hold(router, model, tokens=60000):
    """A stream whose long prompt keeps the model's worker busy."""
    c = http.client.HTTPConnection("127.0.0.1", router.port, timeout=60)
    before = sum(l["active_requests"] for l in router.get("/loads"))
    c.request("POST", "/v1/completions", json.dumps({"model": model, "prompt": [1] * tokens, "max_tokens": 1, "stream": True}))
    wait_for("busy", lambda: sum(l["active_requests"] for l in router.get("/loads")) == before + 1)
    return c


def slow_models(start, *names):
    mocks = [start(Mock, "--model", name, with_events=False, speedup=0.05) for name in names]
    return [m.spec(f",model={n},max-num-batched-tokens=100") for m, n in zip(mocks, names)], mocks


def test_a_fallback_is_taken_while_all_workers_of_the_model_are_overloaded(start, file):
    specs, mocks = slow_models(start, "m", "other", "small")
    router = start(Serve, specs, "--models-file", file(OVERLOADED), "--active-prefill-tokens-threshold", 1000)
    wait_for("all models", lambda: {"m", "other", "small"} <= {m["id"] for m in call(router.port, "GET", "/v1/models").json()["data"]})
    assert served(ask(router, "m")) == "m" and router.metric("model_fallbacks_total") == 0
    on_m, on_other = hold(router, "m"), hold(router, "other")
    assert served(ask(router, "m")) == "small", "`other` is overloaded, too"
    assert served(ask(router, "busy-only")) == "small"
    a = ask(router, "waits")
    assert a.status == 503 and "overloaded" in a.body.decode(), "who does not say so is refused as before"
    pinned = call(router.port, "POST", "/v1/completions", {"model": "m", "prompt": "x", "max_tokens": 1}, {"x-kvroute-worker": "1"})
    assert pinned.status == 503, "who names a worker gets that one"
    assert router.metric("model_fallbacks_total", model="m", fallback="small", reason="overloaded") == 2
    on_small = hold(router, "small")
    assert ask(router, "m").status == 503, "there is nobody better"
    on_other.close()
    wait_for("`other` is calm", lambda: served(ask(router, "m")) == "other")
    on_m.close()
    wait_for("`m` is calm", lambda: served(ask(router, "m")) == "m")
    on_other = hold(router, "other")
    mocks[0].kill()
    wait_for("m is gone", lambda: any(w["worker_id"] == 1 and w["status"] == "down" for w in router.get("/workers")), 30)
    assert ask(router, "m").status == 503, "it goes to the first that only is overloaded, and is refused as one of its requests"
    assert router.metric("model_fallbacks_total", model="m", fallback="other", reason="unavailable") == 1
    for c in (on_small, on_other):
        c.close()


@pytest.mark.parametrize("tokens", [5, 40_000])  # a body of the latter is read on a thread
def test_a_request_whose_turn_comes_at_an_overloaded_model_was_refused_although_there_is_a_fallback(start, file, tmp_path, tokens):
    keys = tmp_path / "keys.yaml"
    keys.write_text("keys: [{name: ci, key: secret-of-ci, tokens_per_second: 1}]\nanonymous: {}\nmodels: {m: {max_concurrent: 9}, small: {max_concurrent: 1}}\n")
    (spec,), _ = slow_models(start, "m")
    small = start(Mock, "--model", "small", with_events=False, speedup=1000)
    router = start(Serve, [spec, small.spec(",model=small")], "--models-file", file(OVERLOADED), "--router-queue-requests", 2, "--api-key-file", keys)
    wait_for("both models", lambda: {"m", "small"} <= {m["id"] for m in call(router.port, "GET", "/v1/models").json()["data"]})
    held = [hold(router, "m") for _ in range(2)]

    def waits(model):
        body = {"model": model, "prompt": [1234567] * tokens, "max_tokens": 1}
        return call(router.port, "POST", "/v1/completions", body, {"Authorization": "Bearer secret-of-ci"} if model == "m" else {}, timeout=60)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        falls, stays = pool.submit(waits, "m"), pool.submit(waits, "waits")
        wait_for("both wait", lambda: router.metric("router_queue_pending_requests") == 2)
        assert router.post("/busy_threshold", {"active_prefill_tokens_threshold": 1000}).status == 200
        held[1].close()
        assert served(falls.result()) == "small"
        assert stays.result().status == 503
    assert router.metric("model_fallbacks_total", model="m", fallback="small", reason="overloaded") == 1
    assert router.metric("overload_rejections_total") == 1
    wait_for("nobody waits", lambda: router.metric("router_queue_pending_requests") == 0)
    use = {m["model"]: m["use"]["concurrent"] for m in router.get("/api_keys")["models"]}
    assert use == {"m": 1, "small": 0}, use
    assert [d["model"] for d in router.get("/decisions") if d["fallback"]] == ["small"]
    held[0].close()
    wait_for("idle", router.idle)


def test_a_fallback_is_taken_while_the_queue_of_the_model_is_full(start, file, tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text("default_policy_family: std\npolicy_classes:\n- {name: std, prefill_busy_threshold: 1000000}\n"
                      "models:\n  m: {default_policy_family: std, policy_classes: [{name: std, prefill_busy_threshold: 0, request_queue_limit_per_worker: 1}]}\n")
    specs, _ = slow_models(start, "m", "small")
    rules = "models: {m: {fallback: [small], fallback_on: [overloaded]}}"
    router = start(Serve, specs, "--models-file", file(rules), "--router-policy-config", policy)
    wait_for("both models", lambda: {"m", "small"} <= {m["id"] for m in call(router.port, "GET", "/v1/models").json()["data"]})
    held = hold(router, "m")
    waiting = threading.Thread(target=ask, args=(router, "m"))
    waiting.start()
    wait_for("queued", lambda: router.metric("router_queue_pending_requests") == 1)
    assert served(ask(router, "m")) == "small"
    assert router.metric("model_fallbacks_total", model="m", fallback="small", reason="overloaded") == 1
    held.close()
    waiting.join()
    wait_for("`m` again", lambda: served(ask(router, "m")) == "m")


def test_names_of_clients_make_no_series_of_fallbacks(start, file):
    router = start(Serve, [mock(start, "small").spec()], "--models-file", file("models: {m: {fallback: [small]}}"))
    wait_for("the model", lambda: any(m["id"] == "small" for m in call(router.port, "GET", "/v1/models").json()["data"]))
    for i in range(20):
        ask(router, f"made-up-{i}")
        assert served(ask(router, "m", f"s{i}")) == "small"
    page = call(router.admin, "GET", "/metrics").body.decode()
    assert [l for l in page.splitlines() if l.startswith("kvroute_model_fallbacks_total")] == [
        'kvroute_model_fallbacks_total{model="m",fallback="small",reason="unavailable"} 20']


@pytest.mark.parametrize("options", ["{router-temperature: 1e9}", "{router-mode: round-robin}"])
def test_options_of_a_model_hold_for_both_of_its_legs(start, file, options):
    """What makes a leg of two of a request stays: the decode worker gets the prompt computed."""
    mocks = [start(Mock, "--model", "m", "--role", role, "--kv-protocol", "vllm-nixl", with_events=False) for role in ("prefill", "decode") * 2]
    specs = [m.spec(f",role={role},kv-protocol=vllm-nixl,block-size=16,model=m") for m, role in zip(mocks, ("prefill", "decode") * 2)]
    router = start(Serve, specs, "--models-file", file(f"models: {{m: {{options: {options}}}}}"), "--tokenizer", "bytes")
    wait_for("all workers", lambda: sum(w["status"] == "up" for w in router.get("/workers")) == 4)
    pairs = []
    for _ in range(40):
        a = ask(router, "m", prompt="a prompt of some blocks, " * 9, max_tokens=4)
        assert a.status == 200, a.body
        pairs.append((a.headers["x-kvroute-prefill-worker"], a.headers["x-kvroute-worker"]))
    assert {p for p, _ in pairs} == {"1", "3"} and {d for _, d in pairs} == {"2", "4"}
    assert router.metric("requests_total", worker_id=2) + router.metric("requests_total", worker_id=4) == 40
    wait_for("nothing is booked", router.idle)
