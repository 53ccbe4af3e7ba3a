# SPDX-License-Identifier: Apache-2.0
"""kvroute check, serve --check, and configuration files as people write them."""
import json
import os
import re
import socket
import subprocess

import pytest

from conftest import BINARY, SLOW, Mock, Serve, call, free_ports
from tls_parts import Authority

KINDS = "config|models|keys|policy"
KEYS = "keys:\n- {name: ci, key: secret-of-ci-1}\n- {name: old, key: secret-of-old, expires: 2020-01-01}\n"
MODELS = "models:\n  chat: {alias_of: m}\n  m: {targets: [{model: m, weight: 9}, {model: n, weight: 1}], fallback: [n]}\n"
POLICY = "policy_classes: [{name: fast}, {name: slow}]\ndefault_policy_family: fast\n"


def run(*args, env=None, timeout=30 * SLOW, **more):
    return subprocess.run([BINARY, *map(str, args)], capture_output=True, text=True, timeout=timeout, env={**os.environ, **(env or {})}, **more)


@pytest.fixture
def write(tmp_path):
    def make(name, text):
        file = tmp_path / name
        file.write_bytes(text) if isinstance(text, bytes) else file.write_text(text)
        return file
    return make


def findings(r):
    """Lines of a check that are not the program's own."""
    return [line for line in r.stderr.splitlines() if not line.startswith("kvroute ")]


def messages(r):
    """What is said as an error, before the start or in the log, without time, level and program."""
    return [m[1] for m in (re.match(r"(?:\S+ error )?kvroute \w+: (.*)", line) for line in r.stderr.splitlines()) if m]


# ---- what is right ------------------------------------------------------------------------------------------


def test_a_sound_configuration_and_its_files_are_told_in_short_without_secrets(write, tmp_path):
    cert, key = Authority(tmp_path, "ca").sign("router")
    c = write("c.yaml", f"""
port: 18080
worker:
  - url: http://10.0.0.1:8000
    model: m
    api-key: secret-of-worker-1
  - http://10.0.0.2:8000,model=m,api-key=secret-of-worker-2
models-file: {write("models.yaml", MODELS)}
api-key-file: {write("keys.yaml", KEYS)}
router-policy-config: {write("policy.yaml", POLICY)}
tls-cert: {cert}
tls-key: {key}
""")
    r = run("check", c)
    assert r.returncode == 0 and findings(r) == [], r.stderr
    assert "c.yaml: config: 2 workers in 1 pool; data on 0.0.0.0:18080 (https)" in r.stdout
    assert "models.yaml: models: 2 names, 1 of them shared among targets, 1 with fallbacks" in r.stdout
    assert "keys.yaml: keys: 2 keys, 1 of them expired; 0 limited models; requests without a key: refused" in r.stdout
    assert "policy.yaml: policy: 1 profile, 2 queue classes" in r.stdout
    assert r.stdout.endswith("nothing is wrong\n")
    assert "secret" not in r.stdout + r.stderr


def test_a_check_opens_no_port_connects_to_nobody_and_writes_nothing(write, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as worker, socket.create_server(("127.0.0.1", 0)) as taken:
        worker.setblocking(False)
        c = write("c.yaml", f"""
host: 127.0.0.1
port: {taken.getsockname()[1]}
event-plane: nats
nats-url: nats://127.0.0.1:{worker.getsockname()[1]}
access-log: {tmp_path}/access.log
data-dir: {tmp_path}/data
worker: [{{url: 'http://127.0.0.1:{worker.getsockname()[1]}', metrics: 'http://127.0.0.1:{worker.getsockname()[1]}/metrics'}}]
""")
        r = run("check", c)
        assert r.returncode == 0, r.stderr
        with pytest.raises(BlockingIOError):
            worker.accept()
        assert os.listdir(tmp_path) == ["c.yaml"]


def test_several_files_are_checked_at_once_and_each_is_told(write):
    r = run("check", write("models.yaml", MODELS), write("k.yaml", KEYS), write("bad.yaml", "keys: [{name: a, key: short}]\n"))
    assert r.returncode == 1 and "models.yaml: models:" in r.stdout and "k.yaml: keys:" in r.stdout and r.stdout.endswith("1 finding\n")
    assert len(findings(r)) == 1 and re.match(r".*/bad\.yaml:1: key: 8 to 255 ", findings(r)[0])


# ---- what is wrong ------------------------------------------------------------------------------------------


def test_everything_that_is_wrong_is_told_with_file_line_and_key(write):
    models = write("m.yaml", "models:\n  a: {alias_of: b, frob: c}\n  d: {targets: []}\n")
    policy = write("p.yaml", "policy_classes:\n- {name: a, quantum: x}\n")
    c = write("c.yaml", f"""\
port: 99999
frobnicate: 1
router-mode: magic
worker:
  - url: http://10.0.0.1:8000
    model: m
    block-size: 16
  - url: http://10.0.0.2:8000
    id: 1
  - url: http://10.0.0.3:8000
    model: m
    block-size: 32
  - url: http://10.0.0.4:8000
    role: boss
  - url: ftp://10.0.0.5
  - model: m
models-file: {models}
api-key-file: /nonexistent/keys.yaml
router-policy-config: {policy}
tls-cert: /nonexistent/cert.pem
tls-key: /nonexistent/key.pem
router-track-active-blocks: false
router-track-output-blocks: true
admin-key-file: /nonexistent/admin.key
otlp-endpoint: nowhere
use-remote-indexer: ftp://x
""")
    r = run("check", c)
    told = [line.replace(str(c.parent) + "/", "") for line in findings(r)]
    assert r.returncode == 1 and r.stdout.endswith(f"{len(told)} findings\n")
    for begin in ("c.yaml:1: port: bad value '99999'", "c.yaml:2: frobnicate: unknown key", "c.yaml:3: router-mode: bad value 'magic'; allowed: kv|",
                  "c.yaml:8: worker: 'http://10.0.0.2:8000,id=1': bad value '1' for 'id'",
                  "c.yaml:10: worker: 'http://10.0.0.3:8000,model=m,block-size=32': block_size mismatch for model=m",
                  "c.yaml:14: worker: 'http://10.0.0.4:8000,role=boss': bad value 'boss' for 'role'", "c.yaml:15: worker: 'ftp://10.0.0.5': bad value",
                  "c.yaml:16: worker: the key url is missing", "m.yaml:2: frob: unknown key of a model", "m.yaml:3: targets: a target with a weight",
                  "c.yaml:18: api-key-file: cannot read '/nonexistent/keys.yaml'", "p.yaml:2: quantum: a number", "c.yaml:20: tls-cert: cannot use",
                  "c.yaml:23: router-track-output-blocks needs router-track-active-blocks", "c.yaml:24: admin-key-file: ",
                  "c.yaml:25: otlp-endpoint: bad value 'nowhere'", "c.yaml:26: use-remote-indexer: bad value 'ftp://x'"):
        assert sum(line.startswith(begin) for line in told) == 1, f"{begin}\n" + "\n".join(told)
    lines = [tuple(line.split(":")[:2]) for line in told]
    assert [f for f, _ in lines] == sorted((f for f, _ in lines), key=["c.yaml", "m.yaml", "p.yaml"].index)
    assert all([int(n) for f, n in lines if f == file] == sorted(int(n) for f, n in lines if f == file) for file in ("c.yaml", "m.yaml"))


MISTAKES = [
    "port: http\n",
    "worker: [{url: 'http://10.0.0.1:1', speed: 9}]\n",
    "worker: [{url: 'http://10.0.0.1:1', id: 7}, {url: 'http://10.0.0.2:1', id: 7}]\n",
    "worker: ['http://10.0.0.1:1,dp-size=0']\n",
    "router-kv-events: false\nrecord-events: /tmp/x\n",
    "serve-indexer: true\nuse-remote-indexer: http://10.0.0.1:9090\n",
    "shared-cache-type: hicache\n",
    "discovery: dns\ndiscovery-target: name\n",
    "discovery: dns\ndiscovery-target: name:1\ndiscovery-worker: {events: nowhere}\n",
    "discovery: file\ndiscovery-target: /nonexistent\n",
    "namespace: a.b\n",
    "zmq-curve-key: /nonexistent\n",
    "tokenizer: local\ntokenizer-dir: {m: /nonexistent}\n",
    "tls-ca: /nonexistent\n",
    "admin-tls-cert: /nonexistent\nadmin-tls-key: /nonexistent\n",
    "admin-key-file: /nonexistent\n",
    "models-file: /nonexistent\n",
    "api-key-file: /nonexistent\n",
    "router-policy-config: /nonexistent\n",
    "otlp-endpoint: x\n",
    "api-key-file: {tmp}/keys.yaml\n",
    "models-file: {tmp}/models.yaml\nrouter-kv-overlap-score-credit: 0\n",
]
LEFT_ALONE = {"keys.yaml": "keys: [{name: a, key: secret-of-a, policy_class: gone}]\n",
              "models.yaml": "models: {m: {options: {router-kv-overlap-score-credit: 1}}}\n"}


@pytest.mark.parametrize("text", MISTAKES, ids=lambda t: t.splitlines()[-1][:30])
def test_what_a_check_finds_a_start_refuses_for_the_same_reason(write, text, tmp_path):
    for name, said in LEFT_ALONE.items():
        write(name, said)
    c = write("c.yaml", text.replace("{tmp}", str(tmp_path)))
    r = run("check", c)
    assert r.returncode == 1 and len(findings(r)) == 1, r.stderr
    s = run("serve", "--config", c, "--port", free_ports(), "--admin-port", free_ports())
    assert s.returncode in (1, 2)
    reason = re.sub(r"^\S+:\d+: ([a-z-]+: )?", "", findings(r)[0])  # without line and key
    assert any(reason in m for m in messages(s)), f"{findings(r)}\n{messages(s)}"


def test_certificates_and_keys_of_a_configuration_must_belong_together(write, tmp_path):
    ca = Authority(tmp_path, "ca")
    (cert, key), (other, _) = ca.sign("a"), ca.sign("b")
    assert run("check", write("c.yaml", f"tls-cert: {cert}\ntls-key: {key}\ntls-client-ca: {ca.file}\n")).returncode == 0
    r = run("check", write("c.yaml", f"tls-cert: {other}\ntls-key: {key}\n"))
    assert r.returncode == 1 and re.match(r".*/c\.yaml:1: tls-cert: ", findings(r)[0]), r.stderr
    r = run("check", write("c.yaml", f"tls-cert: {cert}\n"))
    assert r.returncode == 1 and "c.yaml:1: tls-cert and tls-key: one is missing" in r.stderr and len(findings(r)) == 1
    r = run("check", write("c.yaml", f"outgoing-tls-key: {key}\nadmin-tls-client-ca: {ca.file}\ntls-client-ca: {ca.file}\n"))
    assert r.returncode == 1 and len(findings(r)) == 3 and all("one is missing" in f for f in findings(r)), r.stderr
    r = run("check", write("c.yaml", f"outgoing-tls-cert: {cert}\n"))
    assert r.returncode == 1 and len(findings(r)) == 1, r.stderr


def test_secrets_and_control_characters_are_not_printed(write):
    c = write("c.yaml", 'worker:\n- {url: "http://10.0.0.1:1", api-key: "hush-1", frob: 1}\n- http://10.0.0.2:1,api-key=hush-2,api-key=hush\\,3,frob=1\n'
                        'router-mode: "\\e[31mred\\r\\nport: 1"\n')
    r = run("check", c)
    assert r.returncode == 1 and len(findings(r)) == 3 and "api-key=***" in r.stderr and "hush" not in r.stderr + r.stdout
    assert "\x1b" not in r.stderr and "\\x1b[31mred\\x0d\\x0aport: 1" in r.stderr


# ---- what one file says of another --------------------------------------------------------------------------

CLASSED = "keys:\n- {name: a, key: secret-of-a, policy_class: fast}\n- {name: b, key: secret-of-b, policy_class: gone}\nanonymous: {policy_class: off}\n"


def test_a_key_whose_policy_class_no_queue_has_passed_the_check(write):
    keys, policy = write("k.yaml", CLASSED), write("p.yaml", POLICY)
    c = write("c.yaml", f"api-key-file: {keys}\nrouter-policy-config: {policy}\n")
    for args in ((c,), (keys, policy), (policy, keys)):
        r = run("check", *args)
        assert r.returncode == 1 and len(findings(r)) == 2, r.stderr
        assert f"{keys}:3: policy_class 'gone': " in r.stderr and f"{keys}:4: policy_class 'off': " in r.stderr, r.stderr
    r = run("check", write("c.yaml", f"api-key-file: {keys}\n"))  # no class at all
    assert r.returncode == 1 and len(findings(r)) == 3, r.stderr
    assert run("check", keys).returncode == 0  # of which nobody knows what queues there are
    r = run("check", keys, policy, write("p2.yaml", "policy_classes: [{name: gone}]\n"))
    assert r.returncode == 0, r.stderr  # nor which of the two is meant
    good = write("k.yaml", CLASSED.replace("gone", "slow").replace("off", "fast"))
    assert run("check", good, policy).returncode == 0 and run("check", write("c.yaml", f"api-key-file: {good}\nrouter-policy-config: {policy}\n")).returncode == 0


def test_a_models_credit_without_an_index_passed_the_check(write):
    models = write("m.yaml", "models:\n  m:\n    options: {router-kv-overlap-score-credit: 0.5}\n  n:\n    options: {router-kv-overlap-score-credit: 0}\n")
    r = run("check", write("c.yaml", f"models-file: {models}\nrouter-kv-overlap-score-credit: 0\n"))
    assert r.returncode == 1 and len(findings(r)) == 1, r.stderr
    assert f"{models}:3: router-kv-overlap-score-credit: 0 is expected" in r.stderr
    assert run("check", write("c.yaml", f"models-file: {models}\n")).returncode == 0
    assert run("check", models).returncode == 0


# ---- which kind ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text,kind", [
    ("port: 1\nfrob: 2\n", "config"),
    ("no-kv-events: true\n", "config"),
    (MODELS, "models"),
    (KEYS, "keys"),
    ("anonymous: {weight: 2}\nmodels: {m: {max_concurrent: 1}}\n", "keys"),
    (POLICY, "policy"),
    ("models: {m: {policy_classes: [{name: a}]}}\n", "policy"),
])
def test_the_keys_of_a_file_tell_what_it_is(write, text, kind):
    f = write("f.yaml", text)
    r, said = run("check", f), run("check", "--kind", kind, f)
    assert f"f.yaml: {kind}: " in r.stdout and (r.stdout, r.returncode) == (said.stdout, said.returncode), r.stderr


@pytest.mark.parametrize("text,why", [
    ("", "none of its keys tells what it is"),
    ("frobnicate: 1\n", "none of its keys tells what it is"),
    ("- a\n", "none of its keys tells what it is"),
    ("models: {m: {}}\n", "its keys may be of more than one kind"),
    ("port: 1\nkeys: []\n", "its keys are of several kinds"),
])
def test_a_file_of_no_certain_kind_is_an_error_that_names_the_kinds(write, text, why):
    r = run("check", write("f.yaml", text))
    assert r.returncode == 2 and why in r.stderr and f"--kind; allowed: {KINDS}" in r.stderr and "nothing is wrong" not in r.stdout


def test_bad_usage_ends_with_2(write):
    f = write("f.yaml", "port: 1\n")
    for args, words in (([], ["no FILE"]), (["--kind", "pem", f], ["--kind", "'pem'", KINDS]), (["--frob", f], ["--frob"]),
                        (["/nonexistent"], ["/nonexistent", "No such file"]), (["--kind", "models", "/"], ["'/'", "directory"])):
        r = run("check", *args)
        assert r.returncode == 2 and all(w in r.stderr for w in words), r.stderr
    assert run("check", "--help").returncode == 0 and "check" in run("help").stdout


# ---- hostile files ------------------------------------------------------------------------------------------

HOSTILE = {
    "lists in lists": ("[" * 1000000, "nested too deeply"),
    "mappings in mappings": ("{port: " * 110000, "nested too deeply"),
    "lines deep": ("\n".join(" " * i + "port:" for i in range(1400)), "nested too deeply"),
    "a billion laughs": ("host: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(f"port{i}: &b{i} [{','.join(['*a' if i == 0 else f'*b{i - 1}'] * 9)}]\n" for i in range(9)),
                         ":1: host: must be a single value"),
    "a list in itself": ("worker: &a [*a]\n", ":1: worker: a list item must be"),
    "a mapping in itself": ("worker: &a {url: *a}\n", ":1: url: a text is expected"),
    "anchors": ("worker:\n" + "".join(f"- &a{i} x\n" for i in range(60000)), "too many anchors"),
    "directives": ("".join(f"%TAG !{i}! a\n" for i in range(60000)) + "---\nport: 1\n", "too many directives"),
    "more than 1 MiB": ("# " + "x" * (1 << 20) + "\nport: 1\n", "larger than 1 MiB"),
    "a long value": ("host: " + "x" * 1000000 + "\nfrob: 1\n", ":2: frob: unknown key"),
    "a tab": ("worker:\n\t- http://10.0.0.1:1\n", ":2: found character that cannot start any token"),
    "keys twice": ("port: 1\nhost: a\nport: 2\n", ":3: port: the key occurs twice"),
    "a zero byte": (b"port: 1\0\n", "control characters are not allowed"),
    "a zero byte in quotes": ('host: "a\\0b"\n', ":1: host: a text without zero bytes is expected"),
    "no UTF-8": (b"host: \xff\xfe\n", "UTF-8"),
    "a second document": ("port: 1\n---\nport: 2\n", ":2: a second document begins"),
    "a mapping as a key": ("{a: b}: 1\nport: 1\n", ":1: options: keys must be texts"),
    "many unknown keys": ("".join(f"k{i}: 1\n" for i in range(90000)), "there may be more that is wrong"),
    "many workers alike": ("worker: [" + ",".join(["{url: 'http://10.0.0.1:1'}"] * 10000) + "]\n", ":1: worker: there are 10000; allowed: at most 4096"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_and_soon(write, name):
    text, why = HOSTILE[name]
    f = write("f.yaml", text)
    r = run("check", "--kind", "config", f)
    assert r.returncode == 1 and why in r.stderr and "Sanitizer" not in r.stderr, r.stderr[:2000]
    s = run("serve", "--config", f, "--port", free_ports(), "--admin-port", free_ports())
    assert s.returncode == 2 and "Sanitizer" not in s.stderr, s.stderr[:2000]


@pytest.mark.parametrize("kind", ["models", "keys", "policy"])
@pytest.mark.parametrize("name", ["lists in lists", "mappings in mappings", "anchors", "directives", "a second document", "more than 1 MiB"])
def test_a_hostile_file_of_another_kind_is_refused_as_soon(write, kind, name):
    text, why = HOSTILE[name]
    r = run("check", "--kind", kind, write("f.yaml", text))
    assert r.returncode == 1 and why in r.stderr and len(findings(r)) == 1, r.stderr[:2000]


def test_a_pipe_without_a_writer_holds_nobody_up(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    r = run("check", "--kind", "models", pipe)
    assert r.returncode == 1 and "the file is empty" in r.stderr
    r = run("check", pipe)
    assert r.returncode == 2 and "--kind" in r.stderr
    r = run("serve", "--config", "/dev/zero")
    assert r.returncode == 2 and "larger than 1 MiB" in r.stderr


def test_a_configuration_may_come_through_a_pipe():
    r = run("check", "--kind", "config", "/dev/stdin", input="port: 1\nfrob: 1\n")
    assert r.returncode == 1 and findings(r)[0].startswith("/dev/stdin:2: frob: ")


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_a_discovery_file_that_has_no_lines_is_no_file_without_workers(write, tmp_path, make):
    make(tmp_path / "found")
    c = write("c.yaml", f"discovery: file\ndiscovery-target: {tmp_path}/found\n")
    r = run("check", c)
    assert r.returncode == 1 and "c.yaml:2: discovery-target: " in r.stderr, r.stderr
    r = run("serve", "--config", c, "--port", free_ports(), "--admin-port", free_ports())
    assert r.returncode == 1 and "--discovery-target: " in r.stderr, r.stderr


def test_a_line_of_a_discovery_file_is_named(write):
    found = write("found", "# workers\nhttp://10.0.0.1:1,model=m\nhttp://10.0.0.2:1,color=red\n")
    r = run("check", write("c.yaml", f"discovery: file\ndiscovery-target: {found}\n"))
    assert r.returncode == 1 and re.match(r".*/c\.yaml:2: discovery-target: .*/found:3: worker: 'http://10.0.0.2:1,color=red': unknown key 'color'", findings(r)[0])


# ---- serve --check ------------------------------------------------------------------------------------------


def test_serve_check_looks_at_flags_and_variables_too_and_starts_nothing(write):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        c = write("c.yaml", f"host: 127.0.0.1\nport: {taken.getsockname()[1]}\nworker: ['http://10.0.0.1:1']\n")
        r = run("serve", "--config", c, "--check")
        assert r.returncode == 0 and "1 worker " in r.stdout and r.stdout.endswith("nothing is wrong\n"), r.stderr
        r = run("serve", "--config", c, "--check", "--worker", "http://10.0.0.2:1", "--worker", "http://10.0.0.3:1,frob=1", "--models-file", "/nonexistent")
        assert r.returncode == 1 and r.stdout.endswith("2 findings\n")
        assert any(m.startswith("--worker: 'http://10.0.0.3:1,frob=1': unknown key 'frob'") for m in messages(r)), r.stderr
        assert any(m.startswith("--models-file: cannot read '/nonexistent'") for m in messages(r)), r.stderr
        r = run("serve", "--config", c, "--check", env={"KVROUTE_API_KEY_FILE": "/nonexistent"})
        assert r.returncode == 1 and "--api-key-file: cannot read" in r.stderr
        r = run("check", c, env={"KVROUTE_API_KEY_FILE": "/nonexistent", "KVROUTE_PORT": "x"})
        assert r.returncode == 0, r.stderr  # the file alone


TUNED = ("--router-decode-active-request-weight", 100, "--router-host-cache-hit-weight", 0.5, "--router-disk-cache-hit-weight", 0.5,
         "--router-kv-overlap-score-credit-decay", 1)


def warned(r):
    """What has no effect: {option: why}."""
    return dict(re.findall(r"warning: (\S+) has no effect (.*)", r.stdout + r.stderr))


def test_a_tuned_command_line_of_another_router_is_told_what_changes_nothing(write):
    r = run("serve", "--check", "--worker", "http://10.0.0.1:1", *TUNED, "--router-prefill-load-scale", 2, "--no-router-track-prefill-tokens")
    assert r.returncode == 0
    w = warned(r)
    assert set(w) == {o[2:] for o in TUNED[::2]} and all("use cost linear" in why for why in w.values()), r.stderr
    assert warned(run("serve", "--check", "--cost", "linear", *TUNED)) == {}
    assert warned(run("serve", "--check", env={"DYN_ROUTER_DECODE_ACTIVE_REQUEST_WEIGHT": "100"})).keys() == {"router-decode-active-request-weight"}
    f = write("c.yaml", "worker: ['http://10.0.0.1:1']\nrouter-ttl-secs: 5\ntrace-sample: 1\n")
    r = run("check", f)
    assert r.returncode == 0 and "nothing is wrong" in r.stdout
    assert f"{f}:2: warning: router-ttl-secs has no effect with KV events" in r.stdout and f"{f}:3: warning: trace-sample" in r.stdout


@pytest.mark.parametrize("args,names", [
    ((), ()),
    (("--router-mode", "round-robin", "--cost", "auto"), ("cost",)),
    (("--load-aware", "--router-kv-overlap-score-credit", 1), ("router-kv-overlap-score-credit",)),
    (("--router-queue-policy", "wspt"), ("router-queue-policy",)),
    (("--router-queue-policy", "wspt", "--router-queue-requests", 5), ()),
    (("--no-router-kv-events", "--router-ttl-secs", 5, "--tokenizer-probes", 3), ("tokenizer-probes",)),
    (("--nats-url", "nats://10.0.0.1:1", "--namespace", "x"), ("nats-url", "namespace")),
    (("--nats-url", "nats://10.0.0.1:1", "--event-plane", "nats"), ()),
    (("--record-max-lines", 5, "--snapshot-interval", 5, "--remote-indexer-timeout", 1), ("record-max-lines", "snapshot-interval", "remote-indexer-timeout")),
    (("--access-log-sample", 0.5, "--access-log", "-"), ()),
    (("--router-conditional-disagg-eff-isl-threshold", 5), ("router-conditional-disagg-eff-isl-threshold",)),
    (("--router-conditional-disagg", "--router-conditional-disagg-policy", "least_delay", "--router-conditional-disagg-eff-isl-threshold", 5,
      "--router-conditional-disagg-stall-weight", 5), ("router-conditional-disagg-eff-isl-threshold",)),
    (("--router-conditional-disagg", "--router-conditional-disagg-stall-weight", 5), ("router-conditional-disagg-stall-weight",)),
    (("--no-router-track-prefill-tokens", "--router-queue-threshold", 2, "--active-prefill-tokens-threshold", 9), ("router-queue-threshold", "active-prefill-tokens-threshold")),
    (("--replica-sync-transport", "nats", "--nats-url", "nats://10.0.0.1:1"), ("replica-sync-transport", "nats-url")),
    (("--replica-sync-transport", "nats", "--router-replica-sync", "--replica-sync-port", 5000), ("replica-sync-port",)),
    (("--event-plane", "nats", "--router-kv-overlap-score-credit", 0, "--index-max-bytes", "1GiB"), ("event-plane", "index-max-bytes")),
    (("--advertise-host", "x", "--cors-max-age", 5), ("advertise-host", "cors-max-age")),
])
def test_an_option_that_another_one_switches_off_is_named(args, names):
    r = run("serve", "--check", "--worker", "http://10.0.0.1:1", *args)
    assert r.returncode == 0 and set(warned(r)) == set(names), r.stderr


def test_check_is_no_key_of_a_file(write):
    r = run("serve", "--config", write("c.yaml", "check: true\n"))
    assert r.returncode == 2 and "unknown key 'check'" in r.stderr


def test_select_has_the_same_check(write):
    r = run("select", "--check")
    assert r.returncode == 0 and "select: http on 127.0.0.1:8092" in r.stdout
    r = run("select", "--check", "--admin-key-file", "/nonexistent")
    assert r.returncode == 1 and "api-key-file" in r.stderr


# ---- YAML as people write it --------------------------------------------------------------------------------


def start_with(start, file, **more):
    ports = [free_ports() for _ in range(2)]
    return start(Serve, [], "--config", file, ports=ports, ready=False, **more)


def test_workers_may_be_mappings_whose_values_have_commas(start, write):
    m = start(Mock)
    c = write("c.yaml", f"""
worker:
  - url: http://127.0.0.1:{m.port}
    id: 7
    group: "a,b"
    taint: [x, "y,z"]
    max-num-batched-tokens: 4096
  - http://127.0.0.1:1,id=8,group=c\\,d
""")
    s = start_with(start, c)
    w = {w["worker_id"]: w for w in call(s.admin, "GET", "/workers").json()}
    assert w[7]["routing_group"] == "a,b" and w[8]["routing_group"] == "c,d" and w[7]["max_num_batched_tokens"] == 4096
    assert sorted(w[7]["taints"]) == ["x", "y,z"]


def test_a_worker_mapping_may_stand_alone(start, write):
    m = start(Mock)
    s = start_with(start, write("c.yaml", f"worker: {{url: 'http://127.0.0.1:{m.port}', id: 3}}\n"))
    assert [w["worker_id"] for w in call(s.admin, "GET", "/workers").json()] == [3]


def test_workers_may_take_over_what_another_one_says(start, write):
    m = start(Mock)
    c = write("c.yaml", f"""
worker:
  - &first
    url: http://127.0.0.1:{m.port}
    id: 1
    group: a
    max-num-batched-tokens: 4096
  - <<: *first
    id: 2
    group: b
""")
    s = start_with(start, c)
    got = [(w["worker_id"], w["routing_group"], w["max_num_batched_tokens"]) for w in call(s.admin, "GET", "/workers").json()]
    assert sorted(got) == [(1, "a", 4096), (2, "b", 4096)]


def test_the_file_of_the_page_is_a_sound_one(write):
    page = open(os.path.join(os.path.dirname(__file__), "../../docs/guides/config.md"), encoding="utf-8").read()
    text = re.search(r"```yaml\n(.*?)```", page, re.S)[1]
    text = text.replace("/etc/kvroute/models.yaml", str(write("models.yaml", MODELS))).replace("/etc/kvroute/keys.yaml", str(write("keys.yaml", KEYS)))
    r = run("check", write("kvroute.yaml", text))
    assert [re.sub(r"^\S+ ", "", f) for f in findings(r)] == ["tokenizer-dir: '/models/m' has no tokenizer.json; allowed: a model's folder with one"], r.stderr


@pytest.mark.parametrize("text,allowed", [
    ("router-kv-events: false\n", True),
    ("kv-events: no\n", True),
    ("no-kv-events: true\n", True),
    ("no-router-kv-events: on\n", True),
    ("kv-events: false\nno-router-kv-events: true\n", True),
    ("no-kv-events: false\n", False),
    ("kv-events: true\n", False),
    ("", False),
])
def test_false_and_a_no_key_mean_the_same(write, text, allowed):
    """--record-events goes with events only, so what it says tells whether they are on."""
    r = run("check", write("c.yaml", text + "record-events: /tmp/x\n"))
    assert (r.returncode == 1 and "no-router-kv-events and record-events exclude each other" in r.stderr) == allowed, r.stderr
    assert r.returncode == (1 if allowed else 0)


@pytest.mark.parametrize("text", ["kv-events: true\nport: 1\nno-kv-events: true\n", "no-router-kv-events: true\nport: 1\nkv-events: true\n",
                                  "router-kv-events: false\nport: 1\nkv-events: true\n"])
def test_a_contradiction_names_both_lines(write, text):
    r = run("check", write("c.yaml", text))
    assert r.returncode == 1 and len(findings(r)) == 1 and "c.yaml:3: " in findings(r)[0] and "and line 1 says" in findings(r)[0], r.stderr


def test_two_names_of_one_option_exclude_each_other(write):
    r = run("check", write("c.yaml", "cost: auto\nrouter-selection-policy: linear\n"))
    assert r.returncode == 1 and ":2: router-selection-policy: it is another name of what line 1 says" in r.stderr


@pytest.mark.parametrize("text,words", [
    ("no-port: 1\n", ":1: no-port: unknown key"),
    ("admin_port: 1\n", ":1: admin_port: unknown key 'admin_port'; allowed: admin-port"),
    ("no_kv_events: true\n", ":1: no_kv_events: unknown key 'no_kv_events'; allowed: no-kv-events"),
    ("no-kv-events: maybe\n", ":1: no-kv-events: bad value 'maybe'; allowed: true or false"),
    ("kv-events: [true]\n", ":1: kv-events: must be a single value"),
    ("discovery-worker: {model: [[a]]}\n", ":1: model: a text or a number is expected"),
    ("replica-sync-peers: ['tcp://a:1,tcp://b:1']\n", ":1: replica-sync-peers: a list item must be a text without commas"),
    ("replica-sync-peers: {a: b}\n", ":1: replica-sync-peers: must be a text, or a list of texts"),
    ("host: {a: b}\n", ":1: host: must be a single value"),
])
def test_a_value_of_the_wrong_form_is_named(write, text, words):
    r = run("check", "--kind", "config", write("c.yaml", text))
    assert r.returncode == 1 and words in r.stderr, r.stderr


def test_lists_and_mappings_stand_for_texts_with_commas(write):
    c = write("c.yaml", """
use-remote-indexer: [http://10.0.0.1:1, http://10.0.0.2:1]
admin-allowed-hosts:
  - router.example
  - .lan
discovery: dns
discovery-target: workers:8000
discovery-worker:
  model: "a,b"
  events: tcp://{host}:5557
  taint: [x, y]
""")
    r = run("check", c)
    assert r.returncode == 0, r.stderr
    r = run("check", write("c.yaml", "use-remote-indexer: [http://10.0.0.1:1, nowhere]\n"))
    assert "c.yaml:1: use-remote-indexer: bad value 'http://10.0.0.1:1,nowhere'" in r.stderr


def test_a_flag_beats_a_list_of_the_file(start, write):
    m = start(Mock)
    c = write("c.yaml", "worker:\n- url: http://127.0.0.1:1\n  id: 9\n")
    s = start(Serve, [m.spec(",id=4")], "--config", c)
    assert [w["worker_id"] for w in call(s.admin, "GET", "/workers").json()] == [4]


def test_a_refused_worker_of_a_file_is_named_with_the_line_of_its_key(write):
    c = write("c.yaml", "worker:\n- url: http://10.0.0.1:1\n  model: m\n  dp-size: 65\n")
    r = run("serve", "--config", c, "--port", free_ports(), "--admin-port", free_ports())
    assert r.returncode == 1 and any(re.match(r".*/c\.yaml:4: worker: 'http://10.0.0.1:1,model=m,dp-size=65': bad value '65' for 'dp-size'", m) for m in messages(r))
