# SPDX-License-Identifier: Apache-2.0
"""Command line: help, errors that name the key, configuration precedence, hash vectors."""
import json
import os
import socket
import subprocess

import pytest

from conftest import BINARY, Mock, Process, Serve, call, free_ports, wait_for


def run(*args, env=None, timeout=30):
    return subprocess.run([BINARY, *map(str, args)], capture_output=True, text=True, timeout=timeout, env={**os.environ, **(env or {})})


@pytest.mark.parametrize("command", ["serve", "mock", "replay", "hash"])
def test_help_of_each_command(command):
    r = run(command, "--help")
    assert r.returncode == 0 and "--" in r.stdout and "default" in r.stdout


def test_help_lists_commands():
    r = run("help")
    assert r.returncode == 0 and all(c in r.stdout for c in ("serve", "mock", "replay", "hash"))


@pytest.mark.parametrize("args", [[], ["frobnicate"]])
def test_missing_or_unknown_command(args):
    r = run(*args)
    assert r.returncode != 0 and "serve" in r.stderr
    assert not args or args[0] in r.stderr


@pytest.mark.parametrize("args,words", [
    (["--port", "0"], ["port", "'0'", "65535"]),
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
    (["--worker", "http://127.0.0.1:1,block-size=0"], ["--worker", "block-size", "65536"]),
    (["--worker", "http://127.0.0.1:1,role=boss"], ["--worker", "role", "prefill"]),
    (["--worker", "http://127.0.0.1:1,replay=tcp://127.0.0.1:5"], ["--worker", "replay"]),
    (["--tokenizer", "magic"], ["tokenizer", "magic", "engine"]),
    (["--worker"], ["--worker", "value"]),
    (["extra"], ["extra"]),
    (["--config", "/nonexistent.yaml"], ["config", "/nonexistent.yaml"]),
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
    ("port: x\n", ["port", "'x'"]),
    ("- a\n", ["mapping"]),
    ("port: [1, 2]\n", ["port", "single value"]),
    ("port: 1\n  bad: [\n", ["yaml"]),
    ("worker:\n  - url: x\n", ["list item"]),
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
