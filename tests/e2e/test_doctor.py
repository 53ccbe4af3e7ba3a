# SPDX-License-Identifier: Apache-2.0
"""`kvroute doctor` on live processes: what is sound is called sound, and every silent-miss case is named."""
import json
import subprocess

import pytest

from conftest import BINARY, SLOW, Engine, Indexer, Mock, Publish, Select, Serve, free_ports, wait_for


def doctor(*args):
    p = subprocess.run([BINARY, "doctor", "--json", *map(str, args)], capture_output=True, text=True, timeout=60 * SLOW)
    assert "Sanitizer" not in p.stderr and "runtime error" not in p.stderr, p.stderr
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
