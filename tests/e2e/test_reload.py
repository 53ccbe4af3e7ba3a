# SPDX-License-Identifier: Apache-2.0
"""Files that are read again while the router runs: POST /reload, --watch-files, and what is said of each file."""
import concurrent.futures
import http.client
import json
import os
import signal
import socket

import pytest
from conftest import BINARY, Mock, Select, Serve, call, free_ports, stays, wait_for
from tls_parts import Authority, context, put

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


def test_a_configuration_that_has_changed_is_told_to_be_read_at_the_start_only(start, tmp_path):
    m = start(Mock, with_events=False)
    config = tmp_path / "kvroute.yaml"
    config.write_text(f"worker: ['{m.spec()}']\n")
    s = start(Serve, [], "--config", config)
    f = told(post(s))["config"]
    assert f["result"] == "not-read" and f["path"] == str(config) and "error" not in f
    config.write_text(f"worker: ['{m.spec()}', 'http://127.0.0.1:{free_ports()}']\n")
    a = post(s)
    assert a.status == 200 and "read at the start only" in told(a)["config"]["error"]
    s.p.send_signal(signal.SIGHUP)
    wait_for("told", lambda: "SIGHUP: --config: it has changed" in s.text())
    assert len(s.get("/workers")) == 1


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
    assert told(a)["models"]["error"] == f"{files.models}:2: alias: unknown key of a model; allowed: alias_of, targets, fallback, fallback_on, options"
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
    assert a.status == 422 and told(a)["workers"]["result"] == "refused" and ":1: worker: " in told(a)["workers"]["error"]
    f.write_text(m.spec() + "\n")
    a = s.post("/reload", None)
    assert a.status == 200 and results(a) == {"workers": "taken"}
    wait_for("the worker", lambda: len(s.get("/workers")) == 1)


# ---- --watch-files ----------------------------------------------------------------------------------------

LOOKS = ("--watch-files", 0.1)


def swap(f, text):
    """The whole of it at once."""
    spare = f.with_suffix(".spare")
    spare.write_text(text)
    os.replace(spare, f)


def count(s, file, result="taken"):
    return s.metric("config_reloads_total", file=file, result=result)


@pytest.fixture
def watched(start, tmp_path):
    """A router whose models file is looked at, and what writes it."""
    f = tmp_path / "models.yaml"
    f.write_text(MODELS % "m")
    mocks = [start(Mock, "--model", name, with_events=False) for name in ("m", "m2")]
    s = start(Serve, [m.spec() for m in mocks], "--models-file", f, *LOOKS)
    wait_for("both models", lambda: {"m", "m2"} <= {m["id"] for m in call(s.port, "GET", "/v1/models").json()["data"]})
    return s, f


def serves(s, model):
    wait_for(f"chat to be {model}", lambda: served(s, "") == model)


def test_a_file_that_changes_is_read_again_without_a_signal_and_one_that_does_not_is_left(start, watched):
    s, f = watched
    stays("the file was read once", lambda: count(s, "models") == 1, 0.5)
    swap(f, MODELS % "m2")
    serves(s, "m2")
    assert count(s, "models") == 2
    stays("the file was read twice", lambda: count(s, "models") == 2, 0.5)
    assert s.text().count("--watch-files: --models-file: read again") == 1


def test_a_file_that_is_replaced_by_one_of_the_same_size_and_time_is_seen(start, watched):
    s, f = watched
    swap(f, MODELS % "m2")
    serves(s, "m2")
    before = f.stat()
    spare = f.with_suffix(".new")
    spare.write_text(MODELS % "m" + " ")  # as long as what it replaces
    os.utime(spare, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (spare.stat().st_size, spare.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    os.replace(spare, f)
    serves(s, "m")
    f.write_text(MODELS % "m2")
    os.utime(f, ns=(before.st_atime_ns, before.st_mtime_ns))  # in its place
    serves(s, "m2")


def test_a_config_map_whose_link_is_swapped_is_seen(start, tmp_path):
    """As a kubelet does it: FILE -> ..data/FILE, ..data -> a folder with a date."""
    volume = tmp_path / "volume"

    def publish(name, model):
        (volume / name).mkdir(parents=True)
        (volume / name / "models.yaml").write_text(MODELS % model)
        (volume / "..tmp").symlink_to(name)
        os.replace(volume / "..tmp", volume / "..data")
    publish("..2026_01", "m")
    (volume / "models.yaml").symlink_to("..data/models.yaml")
    mocks = [start(Mock, "--model", name, with_events=False) for name in ("m", "m2")]
    s = start(Serve, [m.spec() for m in mocks], "--models-file", volume / "models.yaml", *LOOKS)
    serves(s, "m")
    publish("..2026_02", "m2")
    serves(s, "m2")
    publish("..2026_03", "m")
    serves(s, "m")


def test_a_tokenizers_folder_that_has_changed_stayed_unread_until_a_signal(start, tmp_path):
    library = os.path.join(os.path.dirname(os.path.abspath(BINARY)), "tests", "libcounted_tokenizer.so")
    folders = [tmp_path / name for name in ("a", "b")]
    for f in folders:
        f.mkdir()
        (f / "tokenizer.json").write_text("{}")
    mocks = [start(Mock, "--model", f.name, with_events=False) for f in folders]
    s = start(Serve, [m.spec() for m in mocks], "--tokenizer", "local", "--tokenizer-lib", library, *LOOKS,
              *(arg for f in folders for arg in ("--tokenizer-dir", f"{f.name}={f}")))
    wait_for("both tokenizers", lambda: len(s.get("/tokenizers")) == 2)
    again = "model '%s': its folder is read again"
    stays("nothing is read", lambda: again % "a" not in s.text(), 0.5)
    (folders[0] / "chat_template.jinja").write_text("{{ x }}")  # that there is one now
    wait_for("the folder that has changed", lambda: again % "a" in s.text())
    swap(folders[0] / "tokenizer.json", "{ }")
    wait_for("another file of it", lambda: s.text().count(again % "a") == 2)
    stays("the other one is left", lambda: again % "b" not in s.text(), 0.5)
    assert s.text().count(f"--watch-files: --tokenizer-dir: {folders[0]}: read again") == 2


def test_a_file_that_is_refused_is_tried_again_when_it_changes_and_not_before(start, watched):
    s, f = watched
    f.write_text("models:\n  chat: {alias_of")  # half of it
    wait_for("the refusal", lambda: count(s, "models", "refused") == 1)
    stays("it was tried once", lambda: count(s, "models", "refused") == 1, 0.5)
    assert served(s, "") == "m" and s.metric("config_last_reload_successful", file="models") == 0
    swap(f, MODELS % "m2")
    serves(s, "m2")
    assert s.metric("config_last_reload_successful", file="models") == 1
    f.unlink()
    wait_for("the refusal", lambda: count(s, "models", "refused") == 2)
    assert served(s, "") == "m2" and "--watch-files: --models-file: cannot read" in s.text()
    swap(f, MODELS % "m")
    serves(s, "m")


def test_every_file_that_a_signal_reads_is_looked_at(start, tmp_path):
    keys, admin = tmp_path / "keys.yaml", tmp_path / "admin"
    keys.write_text(KEYS % SECRETS[0])
    admin.write_text(SECRETS[3] + "\n")
    ca = Authority(tmp_path, "ours")
    pairs = [ca.sign("one"), ca.sign("two")]
    at = [tmp_path / "cert.pem", tmp_path / "key.pem"]
    put(pairs[0], at)
    c = context(ca.file)
    s = start(Serve, [], "--api-key-file", keys, "--admin-key-file", admin, "--tls-cert", at[0], "--tls-key", at[1], *LOOKS, ready=False, tls=c)

    def shown():
        with socket.create_connection(("127.0.0.1", s.port), 10) as plain, c.wrap_socket(plain, server_hostname="127.0.0.1") as t:
            return dict(x[0] for x in t.getpeercert()["subject"])["commonName"]
    assert shown() == "one"
    swap(keys, KEYS % SECRETS[1])
    wait_for("the new key", lambda: call(s.port, "GET", "/v1/models", headers={"Authorization": f"Bearer {SECRETS[1]}"}).status == 200)
    swap(admin, SECRETS[4] + "\n")
    wait_for("the new admin key", lambda: call(s.admin, "GET", "/status", headers={"Authorization": f"Bearer {SECRETS[4]}"}).status == 200)
    put(pairs[1], at)
    wait_for("the new certificate", lambda: shown() == "two")


def test_without_the_option_no_file_is_read_by_itself(start, files):
    s = start(Serve, [], "--models-file", files.models, ready=False)
    swap(files.models, MODELS % "m2")
    stays("the file was read once", lambda: count(s, "models") == 1, 1.5)


# ---- queue classes ----------------------------------------------------------------------------------------

def policy(threshold, name="std", more=""):
    return f"default_policy_family: {name}\npolicy_classes:\n- {{name: {name}, prefill_busy_threshold: {threshold}}}\n{more}"


def test_classes_change_while_requests_wait_and_those_whose_turn_has_come_go(start, tmp_path):
    f = tmp_path / "policy.yaml"
    f.write_text(policy(0))
    m = start(Mock, speedup=0.5)
    s = start(Serve, [m.spec(",max-num-batched-tokens=100")], "--router-policy-config", f)
    held = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60)
    held.request("POST", "/v1/completions", json.dumps({"prompt": [1] * 30000, "max_tokens": 1, "stream": True}))
    wait_for("busy", lambda: sum(l["active_requests"] for l in s.get("/loads")) == 1)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(s.complete, [n] * 20, 1) for n in range(2, 5)]
        wait_for("queued", lambda: s.metric("router_queue_pending_requests", policy_class="std") == 3)
        f.write_text(policy(0, "other"))  # they wait in it
        a = s.post("/reload", None)
        assert a.status == 200 and results(a)["policy"] == "taken"
        assert s.metric("router_queue_pending_requests", policy_class="other") == 3 and s.metric("router_queue_pending_requests") == 3
        f.write_text("policy_classes: [{name: other, busy: 1}]")
        a = s.post("/reload", None)
        assert a.status == 422 and "busy: unknown key of a class" in told(a)["policy"]["error"]
        assert s.metric("router_queue_pending_requests", policy_class="other") == 3
        f.write_text(policy(10**9, "other"))
        s.p.send_signal(signal.SIGHUP)
        wait_for("all sent", lambda: s.metric("router_queue_pending_requests") == 0)
        assert all(a.result().status == 200 for a in asked)
    held.close()
    assert s.metric("config_reloads_total", file="policy", result="taken") == 3
    wait_for("idle", s.idle)


def test_which_models_have_classes_of_their_own_cannot_change_while_the_router_runs(start, tmp_path):
    f = tmp_path / "policy.yaml"
    one = "models:\n  m: {default_policy_family: only, policy_classes: [{name: only, prefill_busy_threshold: %d}]}\n"
    f.write_text(policy(5, more=one % 1))
    m = start(Mock, "--model", "m", with_events=False)
    s = start(Serve, [m.spec(",model=m")], "--router-policy-config", f)
    f.write_text(policy(5))
    why = "which models have classes of their own cannot change while the router runs, because their workers are kept apart: restart it"
    a = s.post("/reload", None)
    assert a.status == 422 and told(a)["policy"]["error"] == f"{f}: models: 'm' is gone; {why}"
    f.write_text(policy(5, more=one % 1 + "  n: {default_policy_family: only, policy_classes: [{name: only}]}\n"))
    assert told(s.post("/reload", None))["policy"]["error"] == f"{f}: models: 'n' is new; {why}"
    f.write_text(policy(5, more=one % 2))
    a = s.post("/reload", None)
    assert a.status == 200 and results(a)["policy"] == "taken"
    assert s.complete("x", model="m").status == 200


def test_classes_and_the_keys_that_name_them_can_be_renamed_with_one_reload(start, tmp_path):
    f, keys = tmp_path / "policy.yaml", tmp_path / "keys.yaml"
    named = "keys: [{name: one, key: %s, policy_class: %s}]\n"
    f.write_text(policy(5, "old"))
    keys.write_text(named % (SECRETS[0], "old"))
    s = start(Serve, [], "--router-policy-config", f, "--api-key-file", keys, ready=False)
    f.write_text(policy(5, "new"))
    keys.write_text(named % (SECRETS[1], "new"))
    a = s.post("/reload", None)
    assert a.status == 200 and results(a) == {"policy": "taken", "api-keys": "taken"}, a.body
    assert "default class" not in s.text()
    f.write_text(policy(5, "newer"))
    a = s.post("/reload", None)
    assert a.status == 422 and results(a) == {"policy": "taken", "api-keys": "refused"}
    why = f"{keys}:1: policy_class 'new': a class without a family, or a family, of --router-policy-config is expected"
    assert told(a)["api-keys"]["error"] == why
    assert f"{why}; such requests wait in the default class now" in s.text()
    assert call(s.port, "GET", "/v1/models", headers={"Authorization": f"Bearer {SECRETS[1]}"}).status == 200, "the old keys stay"


def test_keys_that_name_a_class_before_it_comes_are_taken_when_it_has_come(start, tmp_path):
    """Mounts of Kubernetes change one after the other."""
    f, keys = tmp_path / "policy.yaml", tmp_path / "keys.yaml"
    named = "keys: [{name: one, key: %s, policy_class: %s}]\n"
    swap(f, policy(5, "old"))
    swap(keys, named % (SECRETS[0], "old"))
    s = start(Serve, [], "--router-policy-config", f, "--api-key-file", keys, *LOOKS, ready=False)
    swap(keys, named % (SECRETS[1], "new"))
    wait_for("the keys are refused", lambda: count(s, "api-keys", "refused") == 1)
    swap(f, policy(5, "new"))
    wait_for("the keys are taken", lambda: call(s.port, "GET", "/v1/models", headers={"Authorization": f"Bearer {SECRETS[1]}"}).status == 200)


def test_a_pipe_in_the_place_of_a_file_holds_nobody_up(start, tmp_path):
    pipe = tmp_path / "models.yaml"
    os.mkfifo(pipe)

    def say(name):
        with open(pipe, "w") as f:
            f.write(MODELS % name)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        first = pool.submit(say, "m")
        s = start(Serve, [start(Mock, "--model", "m", with_events=False).spec()], "--models-file", pipe)
        first.result()
        wait_for("the model", lambda: served(s, "") == "m")
        assert s.post("/reload", None).status == 422, "nobody writes to it"
        assert served(s, "") == "m" and s.get("/workers")[0]["status"] == "up"


def test_on_select_models_may_get_classes_of_their_own_and_lose_them(start, tmp_path):
    f = tmp_path / "policy.yaml"
    f.write_text(policy(5))
    s = start(Select, "--router-policy-config", f)
    for n, model in ((1, "m"), (2, "n")):
        a = call(s.port, "POST", "/workers", {"worker_id": n, "model_name": model, "endpoint": "http://127.0.0.1:9", "block_size": 16})
        assert a.status in (200, 201), a.body
    waiting = lambda: {(l.split('model="')[1].split('"')[0], l.split('policy_class="')[1].split('"')[0])
                       for l in call(s.port, "GET", "/metrics").body.decode().splitlines() if l.startswith("kvroute_router_queue_pending_requests{")}
    assert waiting() == {("m", "std"), ("n", "std")}
    f.write_text(policy(5, more="models:\n  m: {default_policy_family: own, policy_classes: [{name: own}]}\n"))
    assert results(call(s.port, "POST", "/reload")) == {"policy": "taken"}
    assert waiting() == {("m", "own"), ("n", "std")}
    f.write_text(policy(5))
    assert results(call(s.port, "POST", "/reload")) == {"policy": "taken"}
    assert waiting() == {("m", "std"), ("n", "std")}
