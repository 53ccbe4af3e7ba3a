# SPDX-License-Identifier: Apache-2.0
"""`kvroute doctor` on live processes: what is sound is called sound, and every silent-miss case is named."""
import json
import subprocess

import pytest

from conftest import BINARY, SLOW, Engine, Indexer, Mock, Publish, Select, Serve, call, free_ports, wait_for
from nats_parts import NatsServer


def doctor(*args):
    p = subprocess.run([BINARY, "doctor", "--json", *map(str, args)], capture_output=True, text=True, timeout=60 * SLOW)
    assert "Sanitizer" not in p.stderr, p.stderr
    return p.returncode, json.loads(p.stdout) if p.stdout else p.stderr


def problems(report):
    return {f["check"]: f for f in report["findings"] if f["verdict"] == "problem"}


def test_a_sound_deployment(start):
    m = start(Mock, "--lora", "adapter", dp=2)
    p = start(Publish, m, dp=2)
    s = start(Serve, [m, f"http://127.0.0.1:{m.port},id=2" + p.source()])
    rc, report = doctor(f"http://127.0.0.1:{s.admin}/")
    assert rc == 0 and report["problem"] == 0, problems(report)
    checks = {(f["subject"], f["check"]) for f in report["findings"] if f["verdict"] == "ok"}
    for check in ("view", "reachable", "events endpoint", "recovery", "events flow", "block size", "tokens", "prefix caching", "prediction", "salt",
                  "LoRA", "router", "sequence", "clock"):
        assert ("worker 1", check) in checks and ("worker 2", check) in checks, (check, checks)
    rc, report = doctor(f"http://127.0.0.1:{s.port}", f"http://127.0.0.1:{p.port}",
                        f"http://127.0.0.1:{m.port},events=tcp://127.0.0.1:{m.events},replay=tcp://127.0.0.1:{m.replay},dp-size=2")
    assert rc == 0, problems(report)
    assert s.idle() or wait_for("idle", s.idle)


def test_a_health_check_asks_for_nothing_else(start):
    m = start(Mock)
    s = start(Serve, [m])
    for url in (f"http://127.0.0.1:{s.admin}", f"http://127.0.0.1:{s.port}", f"http://127.0.0.1:{m.port}"):
        rc, report = doctor("--health", url)
        assert rc == 0 and [f["check"] for f in report["findings"]] == ["health"], report
    rc, report = doctor("--health", f"http://127.0.0.1:{s.admin}", f"http://127.0.0.1:{free_ports()}")
    assert rc == 1 and [f["verdict"] for f in report["findings"]] == ["ok", "problem"], report


CASES = {
    "wrong block size": (dict(extra=["--fault-block-size", 8]), "block size"),
    "events off": (dict(with_events=False), "events endpoint"),
    "events port closed": (dict(), "events endpoint"),
    "prefix caching off": (dict(extra=["--no-enable-prefix-caching"]), "prefix caching"),
    "salt not in events": (dict(extra=["--fault-omit-salt"]), "salt"),
}


@pytest.mark.parametrize("case", CASES)
def test_silent_misses_are_found(start, case):
    how, check = CASES[case]
    m = start(Mock, *how.get("extra", []), with_events=how.get("with_events", True))
    spec = m.spec()
    if case == "events port closed":
        spec = spec.replace(str(m.events), str(free_ports())).split(",replay")[0]
    s = start(Serve, [spec], ready=case not in ("events port closed",))
    for target in (f"http://127.0.0.1:{s.admin}", spec if "events=" in spec else f"http://127.0.0.1:{m.port}"):
        rc, report = doctor(target)
        assert rc == 1 and check in problems(report), report
        assert problems(report)[check]["advice"]


def test_what_an_engine_without_replay_said_before_the_doctor_came_is_no_gap(start):
    m = start(Mock, with_replay=False)
    call(m.port, "POST", "/v1/completions", {"model": "mock", "prompt": "x" * 200, "max_tokens": 1})
    rc, report = doctor(m.spec())
    assert rc == 0 and "ok" in [f["verdict"] for f in report["findings"] if f["check"] == "sequence"], problems(report)


def test_indexers_sidecars_and_selection_services(start, zctx):
    e = Engine(zctx)
    try:
        ix = start(Indexer)
        ix.register(7, e)
        e.until("trusted", lambda: ix.trusted())
        rc, report = doctor("--no-probe", f"http://127.0.0.1:{ix.port}")
        assert rc == 0 and any(f["subject"] == "instance 7" and f["check"] == "view" for f in report["findings"])
        e.stored([1], list(range(8)), block_size=8)
        e.until("seen", lambda: not ix.trusted())
        rc, report = doctor(f"http://127.0.0.1:{ix.port}")
        assert rc == 1 and "block size" in problems(report)
        p = start(Publish, e, block_size=4, with_replay=False)
        rc, report = doctor(f"http://127.0.0.1:{p.port}")
        assert rc == 1 and "local index" in problems(report)
        sel = start(Select)
        rc, report = doctor(f"http://127.0.0.1:{sel.port}")
        assert rc == 1 and "workers" in problems(report)
    finally:
        e.close()


def test_usage_and_dead_targets(start):
    for args in ([], ["--nonsense"], ["ftp://x"], ["http://x,events=5"], ["http://x,dp-size=0"], ["--timeout", "x", "http://x"]):
        p = subprocess.run([BINARY, "doctor", *args], capture_output=True, text=True, timeout=30 * SLOW)
        assert p.returncode == 2 and p.stderr, args
    rc, report = doctor(f"http://127.0.0.1:{free_ports()}")
    assert rc == 2 and "reachable" in problems(report)
    text = subprocess.run([BINARY, "doctor", f"http://127.0.0.1:{free_ports()}"], capture_output=True, text=True, timeout=30 * SLOW).stdout
    assert text.startswith("problem") and "1 problem(s)" in text
    assert "usage: kvroute doctor" in subprocess.run([BINARY, "doctor", "--help"], capture_output=True, text=True, timeout=30 * SLOW).stdout


@pytest.fixture
def nats():
    n = NatsServer()
    yield n
    n.stop()


@pytest.mark.parametrize("kind", ["nats", "jetstream"])
def test_events_that_come_by_a_plane_are_no_problem(nats, start, kind):
    plane = ["--event-plane", kind, "--nats-url", nats.url]
    m = start(Mock)
    p = start(Publish, m, "--worker-id", 1, *plane)
    s = start(Serve, [f"http://127.0.0.1:{m.port},id=1,recover={p.url}"], *plane)
    wait_for("a whole view", lambda: s.view()["view"] == "whole")
    assert s.view()["endpoint"] == "plane"
    rc, report = doctor(f"http://127.0.0.1:{s.admin}")
    assert rc == 0, problems(report)


def test_an_admin_port_that_wants_a_key_says_so(start, tmp_path):
    (tmp_path / "keys").write_text("a-key-of-the-admin-port\n")
    s = start(Serve, [start(Mock)], "--admin-key-file", tmp_path / "keys", ready=False)
    rc, report = doctor(f"http://127.0.0.1:{s.admin}")
    assert rc == 2 and "401" in problems(report)["key"]["detail"] and "--admin-key-file" in problems(report)["key"]["advice"]
    assert "reachable" not in problems(report)


# ---- an engine by its address alone ------------------------------------------------------------------------------------


def said(report, check, verdict="ok"):
    return [f["detail"] for f in report["findings"] if (f["check"], f["verdict"]) == (check, verdict)]


def test_an_engine_of_which_only_the_address_is_given_is_asked_for_the_rest(start):
    """Not block size 16 and no events: what it says of itself, as the router does."""
    m = start(Mock, "--block-size", 32, dp=2)
    for tail in ("", "/v1"):
        rc, report = doctor(f"http://127.0.0.1:{m.port}{tail}")
        assert rc == 0, problems(report)
        assert any("block size 32 (/metrics)" in d and "2 data-parallel ranks" in d for d in said(report, "configuration")), report
        assert len(said(report, "events flow")) == 2 and len(said(report, "recovery")) == 2 and said(report, "block size")
    rc, report = doctor("--no-probe", f"http://127.0.0.1:{m.port}")
    assert rc == 0 and m.metric("vllm:prompt_tokens_total") < 40000, problems(report)
    assert len(said(report, "events endpoint")) == 2


def test_what_was_given_to_doctor_and_what_the_engine_says_are_compared(start):
    m = start(Mock, "--block-size", 32, dp=2)
    rc, report = doctor(f"http://127.0.0.1:{m.port},block-size=16,dp-size=3")
    assert rc == 1, report
    texts = [f["detail"] for f in report["findings"] if (f["check"], f["verdict"]) == ("configuration", "problem")]
    assert any("block-size 16" in t and "uses 32 (/metrics)" in t for t in texts), texts
    assert any("dp-start=0,dp-size=3" in t and "2 data-parallel ranks, 0 to 1" in t for t in texts), texts


def test_doctor_names_the_flag_that_the_engine_lacks(start):
    silent = start(Mock, with_events=False)
    rc, report = doctor(f"http://127.0.0.1:{silent.port}")
    assert rc == 1 and '--kv-events-config \'{"enable_kv_cache_events":true' in problems(report)["events endpoint"]["advice"], report
    old = start(Mock, "--no-tell-event-sources", "--no-dev-mode")
    rc, report = doctor(f"http://127.0.0.1:{old.port}")
    assert rc == 1 and "events=tcp://127.0.0.1:5557,replay=tcp://127.0.0.1:5558" in problems(report)["events endpoint"]["advice"], report
    forgetful = start(Mock, with_replay=False)
    rc, report = doctor(f"http://127.0.0.1:{forgetful.port}")
    assert any('"replay_endpoint":"tcp://*:5558"' in f["advice"] for f in report["findings"] if f["check"] == "recovery"), report


def test_doctors_prompts_fit_a_short_context(start):
    m = start(Mock, "--block-size", 128, "--max-model-len", 1024)
    rc, report = doctor(f"http://127.0.0.1:{m.port}")
    assert rc == 0 and said(report, "events flow"), problems(report)
    s = start(Serve, [m])
    rc, report = doctor(f"http://127.0.0.1:{s.port}")
    assert rc == 0, problems(report)


def test_an_engine_that_says_nothing_of_itself_is_examined_by_what_was_given(start):
    m = start(Mock, "--no-tell-event-sources", "--no-dev-mode", "--no-tell-cache-config")
    rc, report = doctor(m.spec())
    assert rc == 0, problems(report)
