# SPDX-License-Identifier: Apache-2.0
"""Command line: help, errors that name the key, configuration precedence, hash vectors."""
import json
import os
import pty
import re
import socket
import subprocess

import pytest

from conftest import BINARY, SLOW, Mock, Process, Select, Serve, call, free_ports, wait_for


def run(*args, env=None, timeout=30):
    return subprocess.run([BINARY, *map(str, args)], capture_output=True, text=True, timeout=timeout, env={**os.environ, **(env or {})})


@pytest.mark.parametrize("command", ["serve", "select", "indexer", "mock", "replay", "hash"])
def test_help_of_each_command(command):
    r = run(command, "--help")
    assert r.returncode == 0 and "--" in r.stdout and "default" in r.stdout


TEXTS = os.path.join(os.path.dirname(__file__), "../../src/cli/help")
COMMANDS = sorted({f.removesuffix(".txt") for f in os.listdir(TEXTS)} - {"kvroute.yaml"})
GROUPED = ["serve", "select", "indexer", "publish", "mock", "replay"]


def shown(text):
    """Names of the options in what --help says."""
    return [n for n in re.findall(r"^  --(?:\[no-\])?(\S+)", text, re.M) if n != "help"]


def groups_of(command):
    return re.findall(r"^  (\w+) +.* \(\d+\)$", run(command, "--help").stdout, re.M)


def test_help_is_that_of_the_file():
    for name in COMMANDS:
        text = open(os.path.join(TEXTS, name + ".txt"), encoding="utf-8").read().split("\n", 1)[1]
        assert text.startswith("usage: ") and " ".join(run(name, "--help").stdout.split()).startswith(" ".join(text.split())), name


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_a_terminal(command):
    for topic in [], ["all"]:
        r = run(command, "--help", *topic)
        usage, rest = r.stdout.split("\n\n", 1)
        wide = [l for l in rest.splitlines() if len(l) > 80 and " " in l.strip() and not re.match(r"  --\S+ \S+$", l)]
        assert r.returncode == 0 and not wide and not r.stderr, wide
    assert {"log-format", "log-level"} <= set(shown(r.stdout))


def test_help_shows_what_matters_and_where_the_rest_is():
    said = run("serve", "--help").stdout
    some = shown(said)
    assert 15 <= len(some) <= 25 and {"worker", "port", "router-mode", "tls-cert", "api-key-file"} <= set(some)
    assert "kvroute serve --help all" in said and "tls" in groups_of("serve")
    assert len(said.splitlines()) < 90
    assert run("help", "serve").stdout == said and run("help", "serve", "tls").stdout == run("serve", "--help=tls").stdout


@pytest.mark.parametrize("command", GROUPED)
def test_groups_are_all_options_each_once(command):
    every = shown(run(command, "--help", "all").stdout)
    by_group = [n for g in groups_of(command) for n in shown(run(command, "--help", g).stdout)]
    assert sorted(every) == sorted(by_group) and len(set(every)) == len(every) > len(shown(run(command, "--help").stdout))


def test_a_topic_is_an_option_too_and_one_that_is_none_is_named():
    assert shown(run("serve", "--help", "router-kv-events").stdout) == ["router-kv-events"]
    assert "--kv-events" in run("serve", "--help", "router-kv-events").stdout
    r = run("serve", "--help", "tsl")
    assert r.returncode == 2 and "'tsl'" in r.stderr and "did you mean tls?" in r.stderr and not r.stdout


@pytest.mark.parametrize("args,meant", [
    (["serv"], "serve"), (["replay-event"], "replay-events"), (["doctr"], "doctor"),
    (["serve", "--prot", "1"], "--port"), (["serve", "--worker=x", "--no-router-kw-events"], "--no-router-kv-events"),
    (["serve", "--queue-threshold", "1"], "--router-queue-threshold"), (["doctor", "--jsn"], "--json"), (["hash", "--lora-nam=x", "--tokns"], "--tokens"),
    (["mock", "--nun-gpu-blocks=7"], "--num-gpu-blocks"),
])
def test_what_is_nearly_a_name_is_guessed(args, meant):
    r = run(*args)
    assert r.returncode == 2 and f"did you mean {meant}?" in r.stderr, r.stderr


OLD_NAMES = {"indexer": {"bind": "host", "model-name": "model", "max-bytes": "index-max-bytes"},
             "select": {"admin-key-file": "api-key-file", "admin-allowed-hosts": "allowed-hosts", "replica-sync-bind": "replica-sync-host"},
             "serve": {"replica-sync-bind": "replica-sync-host"}, "publish": {"engine-metrics-max-age": "engine-load-max-age"},
             "mock": {"kv-events": "events", "kv-replay": "replay", "lora": "lora-name", "speedup-ratio": "speedup"},
             "replay": {"vocab": "vocab-size", "json": "report"}, "replay-events": {"to": "url", "model-name": "model"}}


@pytest.mark.parametrize("command", OLD_NAMES)
def test_old_names_are_other_names_of_the_new_ones(command):
    for old, new in OLD_NAMES[command].items():
        r = run(command, "--help", old)
        assert shown(r.stdout) == [new] and re.search(rf"other names: (--\S+ )*--{old}\b", " ".join(r.stdout.split())), r.stdout


def test_an_old_name_does_what_the_new_one_does(tmp_path):
    for flag in "--model", "--model-name", "--model=", "--model-name=":
        words = [flag + "x"] if flag.endswith("=") else [flag, "x"]
        r = run("replay-events", *words, "--to", "ftp://x", tmp_path / "none")
        assert "--url: 'ftp://x' is no URL" in r.stderr
    for env in {"KVROUTE_BIND": "nowhere.invalid"}, {"KVROUTE_HOST": "nowhere.invalid"}:
        r = run("indexer", "--port", free_ports(), env=env)
        assert r.returncode and "nowhere.invalid" in r.stderr, r.stderr


def test_what_is_near_no_name_is_not_guessed():
    for args in ["xyzzy"], ["serve", "--xyzzy"], ["serve", "--help", "xyzzy"]:
        r = run(*args)
        assert r.returncode == 2 and "xyzzy" in r.stderr and "did you mean" not in r.stderr, r.stderr


def test_errors_of_the_command_line_are_plain_lines():
    for args, line in [(["serv"], "kvroute: unknown command 'serv'; did you mean serve?"),
                       (["serve", "--prot"], "kvroute serve: unknown option '--prot'; did you mean --port?"),
                       (["serve", "--otlp-endpoint", "x", "--router-durable-kv-events", "--no-router-kv-events"],
                        "kvroute serve: no-router-kv-events and router-durable-kv-events (event-plane jetstream) exclude each other: "
                        "no event would be followed"),
                       (["select", "--kv-overlap-score-weight", "x"],
                        "kvroute select: warning: kv-overlap-score-weight is deprecated; use router-kv-overlap-score-weight")]:
        assert run(*args).stderr.splitlines()[0] == line


@pytest.mark.parametrize("env,coloured", [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_errors_are_coloured_on_a_terminal_that_is_for_it(env, coloured):
    ours, theirs = pty.openpty()
    clean = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
    r = subprocess.run([BINARY, "hash", "--xyzzy"], stderr=theirs, stdout=theirs, env={**clean, "TERM": "xterm", **env})
    os.close(theirs)
    said = os.read(ours, 4096)
    os.close(ours)
    assert r.returncode == 2 and said.startswith(b"\x1b[1;31mkvroute hash:\x1b[0m unknown" if coloured else b"kvroute hash: unknown"), said
    assert b"\x1b" not in run("hash", "--xyzzy").stderr.encode()


def test_help_lists_commands():
    assert sorted(re.findall(r"^  (\S+) ", run("help").stdout, re.M)) == COMMANDS


@pytest.mark.parametrize("args", [[], ["frobnicate"]])
def test_missing_or_unknown_command(args):
    r = run(*args)
    assert r.returncode != 0 and "serve" in r.stderr
    assert not args or args[0] in r.stderr


@pytest.mark.parametrize("args,words", [
    (["--port", "65536"], ["port", "'65536'", "65535"]),
    (["--port", "70000"], ["port", "70000", "65535"]),
    (["--port", "http"], ["port", "http"]),
    (["--block-size", "0"], ["block-size", "'0'", "1"]),
    (["--frobnicate"], ["--frobnicate"]),
    (["--router-mode", "magic"], ["router-mode", "magic", "round-robin"]),
    (["--router-temperature", "-1"], ["router-temperature", "-1"]),
    (["--max-body-size", "12XB"], ["max-body-size", "12XB", "MiB"]),
    (["--worker", "ftp://x"], ["--worker", "ftp://x", "http://"]),
    (["--worker", "http://127.0.0.1:1,speed=9"], ["--worker", "speed", "dp-size"]),
    (["--worker", "http://127.0.0.1:1,id=1", "--worker", "http://127.0.0.1:2,id=1"], ["--worker", "id", "1"]),
    (["--worker", "http://127.0.0.1:1,events=tcp://nowhere"], ["--worker", "events", "tcp://host:port"]),
    (["--worker", "http://127.0.0.1:1,events=tcp://*:5557"], ["--worker", "events", "tcp://*:5557", "as seen from here"]),
    (["--worker", "http://127.0.0.1:1,block-size=0"], ["--worker", "block-size", "65536"]),
    (["--worker", "http://127.0.0.1:1,role=boss"], ["--worker", "role", "prefill"]),
    (["--worker", "http://127.0.0.1:1,replay=tcp://127.0.0.1:5"], ["--worker", "replay"]),
    (["--tokenizer", "magic"], ["tokenizer", "magic", "engine"]),
    (["--worker"], ["--worker", "value"]),
    (["extra"], ["extra"]),
    (["--config", "/nonexistent.yaml"], ["config", "/nonexistent.yaml"]),
    (["--cost", "money"], ["cost", "money", "auto|linear"]),
    (["--router-host-cache-hit-weight", "1.5"], ["router-host-cache-hit-weight", "1.5", "from 0 to 1"]),
    (["--router-kv-overlap-score-credit", "nan"], ["router-kv-overlap-score-credit", "nan"]),
    (["--router-queue-policy", "lifo"], ["router-queue-policy", "fcfs|lcfs|wspt"]),
    (["--router-kv-overlap-score-weight", "heavy"], ["router-kv-overlap-score-weight", "heavy", ">= 0"]),
    (["--router-track-output-blocks", "--no-router-track-active-blocks"], ["router-track-output-blocks", "router-track-active-blocks"]),
    (["--router-prefill-load-model", "fitted", "--no-router-track-prefill-tokens"], ["router-prefill-load-model", "router-track-prefill-tokens"]),
    (["--router-predicted-ttl-secs", "5", "--no-router-kv-events"], ["router-predicted-ttl-secs", "router-kv-events"]),
    (["--router-predicted-ttl-secs", "5", "--router-kv-overlap-score-credit", "0"], ["router-predicted-ttl-secs", "credit"]),
    (["--router-predicted-ttl-secs", "-0.5"], ["router-predicted-ttl-secs", "-1"]),
    (["--replica-sync-peers", "tcp://127.0.0.1:1"], ["replica-sync-peers", "replica-sync-port"]),
    (["--router-replica-sync"], ["router-replica-sync", "replica-sync-port"]),
    (["--shared-cache-type", "hicache"], ["shared-cache-type", "none"]),
    (["--router-durable-kv-events", "--nats-url", "http:/x:y"], ["--nats-url", "http:/x:y"]),
    (["--router-durable-kv-events", "--no-router-kv-events"], ["router-durable-kv-events", "no-router-kv-events"]),
    (["--event-plane", "jetstream", "--no-router-kv-events"], ["event-plane jetstream", "no-router-kv-events"]),
    (["--router-durable-kv-events", "--load-aware"], ["router-durable-kv-events", "load-aware"]),
    (["--router-durable-kv-events", "--router-kv-overlap-score-credit", "0"], ["router-durable-kv-events", "router-kv-overlap-score-credit"]),
    (["--record-events", "/tmp/x", "--no-router-kv-events"], ["record-events", "no-router-kv-events"]),
    (["--discovery-target", "h:1"], ["discovery-target", "discovery"]),
    (["--use-remote-indexer", "nats://", "--router-kv-overlap-score-credit", "0"], ["use-remote-indexer", "router-kv-overlap-score-credit"]),
    (["--serve-indexer", "--use-remote-indexer", "nats://"], ["serve-indexer", "use-remote-indexer"]),
    (["--serve-indexer", "--router-kv-overlap-score-credit", "0"], ["serve-indexer", "router-kv-overlap-score-credit"]),
    (["--replica-sync-port", "1", "--replica-sync-peers", "http://x"], ["replica-sync"]),
    (["--router-policy-config", "/nonexistent.yaml"], ["router-policy-config", "/nonexistent.yaml"]),
    (["--active-decode-blocks-threshold", "2"], ["active-decode-blocks-threshold", "from -1 to 1"]),
    (["--worker", "http://127.0.0.1:1,taint="], ["--worker", "taint"]),
])
def test_serve_start_up_errors(args, words):
    r = run("serve", "--admin-port", free_ports(), *(["--port", free_ports()] if "--port" not in args else []), *args)
    assert r.returncode not in (0, None) and r.returncode > 0
    for w in words:
        assert w in r.stderr, r.stderr
    assert "Sanitizer" not in r.stderr


def test_port_taken():
    s = socket.socket()
    s.bind(("127.0.0.1", 0))
    s.listen()
    port = s.getsockname()[1]
    r = run("serve", "--host", "127.0.0.1", "--port", port, "--admin-port", free_ports())
    assert r.returncode == 1 and "--port" in r.stderr and str(port) in r.stderr and "Sanitizer" not in r.stderr
    r = run("serve", "--host", "127.0.0.1", "--port", free_ports(), "--admin-port", port)
    assert r.returncode == 1 and "--admin-port" in r.stderr and "Sanitizer" not in r.stderr
    s.close()


@pytest.mark.parametrize("text,words", [
    ("frobnicate: 1\n", ["frobnicate"]),
    ("router-modes: kv\n", ["router-modes", "did you mean router-mode?"]),
    ("no_kv_event: true\n", ["no_kv_event", "did you mean no-kv-events?"]),
    ("port: x\n", ["port", "'x'"]),
    ("- a\n", ["mapping"]),
    ("port: [1, 2]\n", ["port", "single value"]),
    ("port: 1\n  bad: [\n", ["yaml"]),
    ("worker:\n  - [x]\n", ["kvroute.yaml:2:", "list item"]),
])
def test_config_file_errors(tmp_path, text, words):
    f = tmp_path / "kvroute.yaml"
    f.write_text(text)
    r = run("serve", "--config", f)
    assert r.returncode == 2
    for w in words:
        assert w in r.stderr, r.stderr


def test_flag_beats_environment_beats_file(start, tmp_path):
    m = start(Mock)
    ports = [free_ports() for _ in range(5)]
    f = tmp_path / "kvroute.yaml"
    f.write_text(f"port: {ports[0]}\nadmin-port: {ports[1]}\nhost: 127.0.0.1\nrouter-mode: random\nworker:\n  - {m.spec()}\n")
    p = start(Process, "serve", "--config", f, "--port", ports[2], env={"KVROUTE_ADMIN_PORT": str(ports[3]), "KVROUTE_PORT": str(ports[4])})
    wait_for("serve", lambda: call(ports[2], "GET", "/ready").status == 200)
    status = call(ports[3], "GET", "/status").json()
    assert status["mode"] == "random" and len(status["workers"]) == 1
    assert p.p.poll() is None


def test_hash_command():
    r = run("hash", "--block-size", 4, "--tokens", ",".join(map(str, range(16))))
    out = json.loads(r.stdout)
    assert out["block_size"] == 4
    assert out["local_hashes"] == [9143094415614847814, 12124091508212882195, 1088361764653601668, 16024980976528976948]
    assert out["sequence_hashes"] == [9143094415614847814, 9510318385840434533, 16998148715716822651, 16790386768269814709]


def test_hash_command_salts():
    def first(*a):
        return json.loads(run("hash", "--block-size", 4, "--tokens", "0,1,2,3", *a).stdout)["local_hashes"][0]
    assert first("--lora-name", "adapter-a") == 6665157333201000639
    assert first("--cache-salt", "tenant-a") == 17009624042690211646
    assert first("--lora-name", "adapter-a", "--cache-salt", "tenant-a") == 8269515957840517240
    assert first("--lora-name=tenant-a") == 582854293518545300


VECTORS = json.load(open(os.path.join(os.path.dirname(__file__), "../vectors/hash.json")))


@pytest.mark.parametrize("v", VECTORS, ids=[v["name"] for v in VECTORS])
def test_hash_vectors(v):
    args = ["hash", "--block-size", v["block_size"], "--tokens", ",".join(map(str, v["tokens"]))]
    args += ["--lora-name", v["lora_name"]] if v.get("lora_name") else []
    args += ["--cache-salt", v["cache_salt"]] if v.get("cache_salt") else []
    args += ["--eagle"] if v.get("eagle") else []
    out = json.loads(run(*args).stdout)
    assert out["local_hashes"] == v["local_hashes"]
    if "sequence_hashes" in v:
        assert out["sequence_hashes"] == v["sequence_hashes"]


@pytest.mark.parametrize("tokens", ["", "1,,2", "1,x", "-1", "4294967296", "1,"])
def test_hash_refuses_bad_tokens(tokens):
    r = run("hash", "--tokens", tokens)
    assert r.returncode == 2 and "tokens" in r.stderr


def test_hash_of_a_text_without_the_library_says_so(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    r = run("hash", "--text", "x", "--tokenizer-dir", tmp_path, "--tokenizer-lib", tmp_path / "none.so")
    assert r.returncode == 1 and r.stdout == "" and "--tokenizer-lib: there is no" in r.stderr


@pytest.mark.parametrize("args", [["hash", "--tokens", "1,2", "--block-size", "1"], ["version"], ["help"], ["hash", "--help"], ["man"], ["completion", "bash"],
                                  ["serve", "--help"], ["help", "mock"], ["serve", "--check", "--worker", "http://127.0.0.1:1"]])
def test_a_result_that_cannot_be_written_is_an_error(args):
    with open("/dev/full", "w") as full:
        p = subprocess.run([BINARY, *args], stdout=full, stderr=subprocess.PIPE, text=True, timeout=30 * SLOW)
    assert p.returncode == 1 and "cannot be written" in p.stderr, (p.returncode, p.stderr)


def test_version():
    assert run("version").stdout.startswith("kvroute 0.")


def test_serve_without_workers_starts_and_stops(start):
    s = start(Serve, [], "--queue-timeout", "0.2", ready=False)
    assert call(s.port, "GET", "/ready").status == 503
    r = s.complete("hello")
    assert r.status == 503 and r.headers["retry-after"] and r.json()["error"]["message"]


def test_mock_refuses_a_taken_endpoint(start):
    m = start(Mock)
    r = run("mock", "--port", free_ports(), "--kv-events", f"tcp://127.0.0.1:{m.events}")
    assert r.returncode == 1 and str(m.events) in r.stderr
    r = run("mock", "--port", free_ports(), "--events", "tcp://127.0.0.1:65535", "--dp-size", 2)
    assert r.returncode == 1 and "no port for rank 1" in r.stderr


@pytest.mark.parametrize("text,words", [
    ("", ["empty", "policy_classes"]),
    ("[]", ["a mapping is expected"]),
    ("policy_classes: {}", ["policy_classes", "a list is expected"]),
    ("policy_classes:\n- {name: a, quantum: 0}\n", ["quantum", "above 0"]),
    ("policy_classes:\n- {name: a, quantum: x}\n", [":2:", "quantum", "a number"]),
    ("policy_classes:\n- {name: a, queue_policy: lifo}\n", ["queue_policy", "fcfs, lcfs, wspt"]),
    ("policy_classes:\n- {name: a, colour: red}\n", [":2:", "colour", "allowed: name"]),
    ("policy_classes:\n- {name: 'a b'}\ndefault_policy_family: 'a b'\n", ["a b", "letters"]),
    ("policy_classes:\n- {name: a, busy_worker_ratio: 0.5}\n", ["busy_worker_ratio", "prefill_busy_threshold"]),
    ("policy_classes:\n- {name: a, prefill_busy_threshold: 1, busy_worker_ratio: 16.0}\n", ["busy_worker_ratio", "(0, 1]"]),
    ("policy_classes:\n- {name: a, policy_family: f}\n", ["policy_family", "cache_bucket"]),
    ("policy_classes:\n- {name: a}\n- {name: b}\n", ["default_policy_family"]),
    ("policy_classes:\n- {name: a}\n- {name: a}\ndefault_policy_family: a\n", ["a occurs twice"]),
    ("uncached_isl_buckets:\n- {min_tokens: 5, bucket: s}\npolicy_classes:\n- {name: a, policy_family: f, cache_bucket: s}\n", ["start at 0"]),
    ("uncached_isl_buckets:\n- {min_tokens: 0, bucket: s}\n- {min_tokens: 9, bucket: l}\n"
     "policy_classes:\n- {name: a, policy_family: f, cache_bucket: s}\n", ["family f", "bucket l"]),
    ("models:\n  m:\n    policy_classes:\n    - {name: a, quantum: -1}\n", [":4:", "quantum"]),
    ("worker_selection: x\npolicy_classes:\n- {name: a}\n", ["worker_selection", "unknown key"]),
    ("policy_classes: [\n", ["p.yaml:"]),
    ("policy_classes:\n- {name: a, name: b}\n", ["name", "twice"]),
])
def test_policy_file_errors(tmp_path, text, words):
    p = tmp_path / "p.yaml"
    p.write_text(text)
    r = run("select", "--port", free_ports(), "--router-policy-config", p)
    assert r.returncode == 2, r.stderr
    for w in words:
        assert w in r.stderr, r.stderr


def test_a_models_profile_replaces_the_root(start, tmp_path):
    p = tmp_path / "p.yaml"
    p.write_text("default_policy_family: root\npolicy_classes:\n- {name: root}\n"
                 "models:\n  special:\n    default_policy_family: own\n    policy_classes:\n    - {name: own, prefill_busy_threshold_frac: 0.5}\n")
    s = start(Select, "--router-policy-config", p)
    s.worker(1)
    s.worker(2, model_name="special")
    text = call(s.port, "GET", "/metrics").body.decode()
    assert 'policy_class="root"' in text and 'model="special",routing_group="default",policy_class="own"' in text


def test_other_environment_names_are_read_and_ours_beats_them(start):
    env = {"DYN_ROUTER_TEMPERATURE": "-3"}
    r = run("select", "--port", free_ports(), env=env)
    assert r.returncode == 2 and "DYN_ROUTER_TEMPERATURE" in r.stderr and "-3" in r.stderr
    s = start(Select, env={"DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD": "77", "DYN_ACTIVE_DECODE_BLOCKS_THRESHOLD": "0.5",
                           "KVROUTE_ACTIVE_DECODE_BLOCKS_THRESHOLD": "0.25", "DYN_ROUTER_QUEUE_THRESHOLD": "null"})
    s.worker(1)
    t = s.get("/busy_threshold")["thresholds"][0]
    assert t["active_prefill_tokens_threshold"] == 77 and t["active_decode_blocks_threshold"] == 0.25


def test_deprecated_names_warn_once_and_work(start):
    s = start(Select, "--kv-overlap-score-weight", "2.5", env={"KVROUTE_KV_OVERLAP_SCORE_WEIGHT": "2"})
    s.worker(1)
    assert s.text().count("kv-overlap-score-weight is deprecated") == 2  # the alias and the name it stands for, once each
    assert s.get("/status")["prefill_load_scale"] == 2.5 and s.get("/status")["overlap_score_credit"] == 1
    s2 = start(Select, "--router-kv-overlap-score-weight", "0")  # no index: everything else works
    s2.worker(1)
    assert s2.get("/status")["prefill_load_scale"] == 0 and s2.get("/status")["overlap_score_credit"] == 0
    assert start(Select, "--router-kv-overlap-score-weight", "3", "--router-prefill-load-scale", "9").get("/status")["prefill_load_scale"] == 3
    assert s2.ask("/select_and_reserve", {"token_ids": [1] * 8, "selection_id": "a"})["worker_id"] == 1
    assert "no index" in s2.ask("/overlap_scores", {"token_ids": [1] * 8}, 400)["error"]
    s2.ask("/reservations/a", method="DELETE")


def test_load_aware_balances_without_an_index(start):
    s = start(Select, "--load-aware")
    for i in (1, 2):
        s.worker(i)
    chosen = {s.ask("/select_and_reserve", {"token_ids": [1] * 16, "selection_id": f"r{i}"})["worker_id"] for i in range(2)}
    assert chosen == {1, 2}
    s.ask("/select_and_reserve", {"token_ids": [1] * 16, "selection_id": "r2", "pinned_worker": {"worker_id": 1, "dp_rank": 0}})
    assert s.loads()[(1, 0)] == (32, 8, 2)  # nothing is shared
    for i in range(3):
        s.ask(f"/reservations/r{i}", method="DELETE")


def test_ready_waits_for_the_workers_that_were_promised(start):
    s = start(Select, "--min-initial-workers", 2)
    s.worker(1)
    r = call(s.port, "GET", "/ready")
    assert r.status == 503 and "min-initial-workers" in r.json()["error"]
    s.worker(2)
    assert call(s.port, "GET", "/ready").status == 200


def test_the_options_page_is_what_the_program_says():
    script = os.path.join(os.path.dirname(__file__), "../../scripts/options_page.sh")
    p = subprocess.run([script, "--check"], env={**os.environ, "KVROUTE": os.path.abspath(BINARY)}, capture_output=True, text=True, timeout=60, check=False)
    assert p.returncode == 0, p.stderr
