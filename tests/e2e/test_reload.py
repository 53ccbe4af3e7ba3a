# SPDX-License-Identifier: Apache-2.0
"""Files that are read again while the router runs: POST /reload, --watch-files, and what is said of each file."""
import concurrent.futures
import signal

import pytest
from conftest import Mock, Select, Serve, call, wait_for

MODELS = "models: {chat: {alias_of: %s}}\n"
KEYS = "keys: [{name: one, key: %s}]\n"
SECRETS = ("first-secret", "second-secret", "third-secret", "the-admin-key", "another-admin-key")


class Files:
    def __init__(self, tmp_path):
        self.models, self.keys, self.admin, self.log = (tmp_path / n for n in ("models.yaml", "keys.yaml", "admin", "access.log"))
        self.models.write_text(MODELS % "m")
        self.keys.write_text(KEYS % SECRETS[0])
        self.admin.write_text(SECRETS[3] + "\n")

    def options(self):
        return ["--models-file", self.models, "--api-key-file", self.keys, "--admin-key-file", self.admin, "--access-log", self.log]


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


def post(s, key=SECRETS[3]):
    return call(s.admin, "POST", "/reload", headers={"Authorization": f"Bearer {key}"})


def told(answer):
    return {f["file"]: f for f in answer.json()["files"]}


def results(answer):
    return {n: f["result"] for n, f in told(answer).items()}


def served(s, key, model="chat"):
    a = call(s.port, "POST", "/v1/completions", {"model": model, "prompt": "x", "max_tokens": 1}, {"Authorization": f"Bearer {key}"})
    return a.headers.get("x-kvroute-model") if a.status == 200 else a.status


def test_a_reload_over_the_admin_port_says_of_each_file_whether_it_was_taken(start, files):
    mocks = [start(Mock, "--model", name, with_events=False) for name in ("m", "m2")]
    s = start(Serve, [m.spec() for m in mocks], *files.options())
    wait_for("the model", lambda: served(s, SECRETS[0]) == "m")
    a = post(s)
    assert a.status == 200 and a.headers["content-type"] == "application/json"
    assert results(a) == {"models": "unchanged", "api-keys": "unchanged", "admin-keys": "unchanged", "access-log": "begun"}
    assert {f["path"] for f in a.json()["files"]} == {str(f) for f in (files.models, files.keys, files.admin, files.log)}
    files.models.write_text(MODELS % "m2")
    files.keys.write_text(KEYS % SECRETS[1])
    a = post(s)
    assert a.status == 200 and results(a) == {"models": "taken", "api-keys": "taken", "admin-keys": "unchanged", "access-log": "begun"}
    assert served(s, SECRETS[1]) == "m2" and served(s, SECRETS[0]) == 401
    assert results(post(s))["models"] == "unchanged"
    assert not any(secret in a.body.decode() or secret in s.text() for secret in SECRETS)


def test_a_reload_with_a_file_that_is_refused_is_422_and_takes_the_others(start, files):
    m = start(Mock, "--model", "m", with_events=False)
    s = start(Serve, [m.spec()], *files.options())
    wait_for("the model", lambda: served(s, SECRETS[0]) == "m")
    files.models.write_text("models:\n  chat: {alias: m}\n")
    files.keys.write_text(KEYS % SECRETS[1])
    files.admin.write_text(SECRETS[4] + "\n")
    a = post(s)
    assert a.status == 422, a.body
    assert results(a) == {"models": "refused", "api-keys": "taken", "admin-keys": "taken", "access-log": "begun"}
    assert told(a)["models"]["error"] == f"{files.models}:2: alias: unknown key of a model; allowed: alias_of, targets, fallback"
    assert served(s, SECRETS[1]) == "m", "what was read before stays"
    assert post(s).status == 401 and post(s, SECRETS[4]).status == 422, "the new admin key counts, and the file is still wrong"
    page = call(s.admin, "GET", "/metrics", headers={"Authorization": f"Bearer {SECRETS[4]}"}).body.decode()
    assert 'kvroute_config_reloads_total{file="models",result="refused"} 2' in page
    assert 'kvroute_config_last_reload_successful{file="models"} 0' in page and 'kvroute_config_last_reload_successful{file="admin-keys"} 1' in page
    files.models.unlink()
    assert "cannot read" in told(post(s, SECRETS[4]))["models"]["error"]
    assert not any(secret in a.body.decode() or secret in s.text() for secret in SECRETS)


def test_a_reload_needs_the_admin_key_and_nothing_is_read_without(start, files):
    s = start(Serve, [], *files.options(), ready=False)
    files.admin.write_text(SECRETS[4] + "\n")
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Bearer {SECRETS[4]}"}):
        assert call(s.admin, "POST", "/reload", headers=headers).status == 401
    assert call(s.admin, "POST", "/reload", headers={"Authorization": f"Bearer {SECRETS[3]}", "Origin": "http://elsewhere"}).status == 403
    assert call(s.admin, "GET", "/reload", headers={"Authorization": f"Bearer {SECRETS[3]}"}).status == 405
    assert results(post(s))["admin-keys"] == "taken", "only now"


def test_reloads_at_the_same_time_are_all_answered_and_end_with_what_the_file_says(start, files):
    s = start(Serve, [], *files.options(), ready=False)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for n in range(10):
            files.keys.write_text(KEYS % f"secret-number-{n}")
            asked = [pool.submit(post, s) for _ in range(8)]
            s.p.send_signal(signal.SIGHUP)
            answers = [a.result() for a in asked]
            assert [a.status for a in answers] == [200] * 8
            assert results(post(s))["api-keys"] == "unchanged"
            assert sum(results(a)["api-keys"] == "taken" for a in answers) <= 1
    assert call(s.port, "GET", "/v1/models", headers={"Authorization": "Bearer secret-number-9"}).status == 200


def test_select_reloads_over_its_port_too(start, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("old\n")
    s = start(Select, "--admin-key-file", keys)
    ask = lambda key: call(s.port, "POST", "/reload", headers={"Authorization": f"Bearer {key}"})
    keys.write_text("new\n")
    a = ask("old")
    assert a.status == 200 and results(a) == {"admin-keys": "taken"}
    assert ask("old").status == 401 and results(ask("new")) == {"admin-keys": "unchanged"}


def test_a_reload_tells_of_the_worker_file(start, tmp_path):
    m, f = start(Mock, with_events=False), tmp_path / "workers"
    f.write_text("")
    s = start(Serve, [], "--discovery", "file", "--discovery-target", f, ready=False)
    f.write_text("nonsense=\n")
    a = s.post("/reload", None)
    assert a.status == 422 and told(a)["workers"]["result"] == "refused" and "line 1" in told(a)["workers"]["error"]
    f.write_text(m.spec() + "\n")
    a = s.post("/reload", None)
    assert a.status == 200 and results(a) == {"workers": "taken"}
    wait_for("the worker", lambda: len(s.get("/workers")) == 1)
