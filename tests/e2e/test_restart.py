# SPDX-License-Identifier: Apache-2.0
"""A restart is no outage: the lame duck, and ports that are free while answers finish. The hand-over: test_handover.py."""

import http.client
import json
import re
import signal
import threading

import pytest

from conftest import SLOW, Indexer, Mock, Process, Publish, Select, Serve, call, free_ports, read_sse, wait_for

LAME = {"KVROUTE_LAME_DUCK_TIME": "86400"}  # a test ends it with a second signal


def ending(p):
    """SIGTERM has been heard."""
    p.p.send_signal(signal.SIGTERM)
    wait_for("lame duck", lambda: "not ready any more" in p.text())


def stop_now(p):
    p.p.send_signal(signal.SIGTERM)
    assert p.p.wait(20 * SLOW) == 0
    return p.text()


# ---- the lame duck -----------------------------------------------------------------------------------------------------------


def test_balancers_see_the_end_and_nobody_is_refused_meanwhile(start):
    s = start(Serve, [start(Mock)], env=LAME)
    kept = http.client.HTTPConnection("127.0.0.1", s.port, timeout=30 * SLOW)
    kept.connect()
    ending(s)
    for port, path in ((s.port, "/ready"), (s.port, "/health"), (s.admin, "/ready"), (s.admin, "/health")):
        r = call(port, "GET", path)
        assert r.status == 503 and b"shutting down" in r.body, (port, path, r.body)
    kept.request("POST", "/v1/completions", json.dumps({"prompt": "x", "max_tokens": 2}))
    r = kept.getresponse()
    assert r.status == 200 and r.getheader("Connection") == "close"
    r.read()
    new = s.complete("y")
    assert new.status == 200 and new.headers["connection"] == "close"
    assert s.metric("draining") == 1
    said = stop_now(s)
    assert "stopped: " in said and ", 0 cut off" in said
    finished = int(said.split("stopped: ")[1].split()[0])
    assert finished >= 7  # the four refusals, two completions, the metrics


def test_an_answer_that_is_cut_off_is_told(start):
    s = start(Serve, [start(Mock, speedup=1)], env=LAME)
    c, r = read_sse(s.port, {"prompt": "x", "max_tokens": 10000, "stream": True})
    r.read1(10)
    ending(s)
    assert "0 answers finished since the end began, 1 cut off" in stop_now(s)
    c.close()


def test_sigint_has_no_lame_duck(start):
    s = start(Serve, [start(Mock)], env=LAME)
    s.p.send_signal(signal.SIGINT)
    assert s.p.wait(20 * SLOW) == 0
    assert "not ready any more" not in s.text()


@pytest.mark.parametrize("what", ["select", "indexer", "publish"])
def test_the_other_programs_end_alike(start, what):
    if what == "select":
        p = start(Select, env=LAME)
        p.worker(1)
        ask = lambda: call(p.port, "GET", "/workers")
    elif what == "indexer":
        p = start(Indexer, env=LAME)
        ask = lambda: call(p.port, "GET", "/workers")
    else:
        p = start(Publish, start(Mock), env=LAME)
        ask = lambda: call(p.port, "GET", "/status")
    wait_for("ready", lambda: what == "select" or call(p.port, "GET", "/ready").status == 200)
    ending(p)
    for path in ("/ready", "/health"):
        assert call(p.port, "GET", path).status == 503
    r = ask()
    assert r.status == 200 and r.headers["connection"] == "close"
    assert ", 0 cut off" in stop_now(p)


def test_a_request_that_waits_for_its_turn_is_answered_in_a_drain(start):
    s = start(Serve, [start(Mock, "--max-num-seqs", 1, speedup=2)], "--router-queue-threshold", 0)
    c, r = read_sse(s.port, {"prompt": [1] * 64, "max_tokens": 60, "stream": True})
    r.read1(10)
    answers = []
    t = threading.Thread(target=lambda: answers.append(s.complete([7] * 20)))
    t.start()
    wait_for("in flight", lambda: sum(w["active_requests"] for w in s.get("/loads")) + s.metric("router_queue_pending_requests") == 2)
    s.p.terminate()
    assert r.read().endswith(b"data: [DONE]\n\n")
    c.close()
    t.join()
    assert answers[0].status == 200, answers[0].body
    assert s.p.wait(20 * SLOW) == 0 and ", 0 cut off" in s.text()


# ---- ports -------------------------------------------------------------------------------------------------------------------


def test_the_next_process_has_both_ports_while_answers_finish(start):
    m = start(Mock, speedup=1)
    s = start(Serve, [m])
    c, r = read_sse(s.port, {"prompt": "x", "max_tokens": 600, "stream": True})
    r.read1(10)
    s.p.terminate()
    wait_for("draining", lambda: "draining" in s.text())
    after = start(Serve, [m], ports=(s.port, s.admin))
    assert after.complete("y").status == 200 and s.p.poll() is None
    c.close()
    assert s.p.wait(20 * SLOW) == 0


def test_the_next_process_has_the_data_directory_while_answers_finish(start, tmp_path):
    m = start(Mock, speedup=1)
    s = start(Serve, [m], "--data-dir", tmp_path)
    s.complete([1] * 64)
    wait_for("seen", lambda: s.overlap([1] * 64)[(1, 0)] == 4)
    c, r = read_sse(s.port, {"prompt": "x", "max_tokens": 600, "stream": True})
    r.read1(10)
    s.p.terminate()
    wait_for("draining", lambda: "draining" in s.text())
    after = start(Serve, [m], "--data-dir", tmp_path, ports=(s.port, s.admin))
    assert s.p.poll() is None and re.search(r"4 blocks and \d+ batches from", after.text())
    assert after.overlap([1] * 64)[(1, 0)] == 4
    c.close()
    assert s.p.wait(20 * SLOW) == 0
    after.stop()
    assert "serve: --data-dir" not in s.text() + after.text()  # nothing was set aside, nothing failed


@pytest.mark.parametrize("what", [Serve, Indexer])
def test_two_processes_never_write_to_one_data_directory(start, tmp_path, what):
    first = start(Serve, [start(Mock)], "--data-dir", tmp_path) if what is Serve else start(Indexer, "--data-dir", tmp_path)
    p = Process(what.__name__.lower(), "--port", free_ports(), "--data-dir", tmp_path, *(("--admin-port", free_ports()) if what is Serve else ()))
    assert p.p.wait(20 * SLOW) == 1
    assert f"--data-dir: another process writes to '{tmp_path}'" in p.text()
    first.stop()
    start(Serve, [], "--data-dir", tmp_path, ready=False) if what is Serve else start(Indexer, "--data-dir", tmp_path)


def test_idle_clients_do_not_hold_up_a_drain(start):
    s = start(Serve, [start(Mock)])
    idle = []
    for _ in range(16):  # each keeps its end open
        c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=30 * SLOW)
        c.request("POST", "/v1/completions", json.dumps({"prompt": "x", "max_tokens": 2}))
        assert c.getresponse().read()
        idle.append(c)
    s.stop()
    for c in idle:
        assert c.sock.recv(1) == b""
        c.close()


@pytest.mark.parametrize("first,second", [(1, 1), (1, 2), (2, 1), (2, 2), (4, 2)])
def test_a_second_process_is_refused_whatever_the_threads(start, first, second):
    m = start(Mock)
    s = start(Serve, [m], "--threads", first)
    other = start(Serve, [m], "--threads", second, ports=(s.port, free_ports()), wait=False, expect=1)
    other.p.wait(20 * SLOW)
    assert f"--port: cannot listen on 127.0.0.1:{s.port}: address already in use" in other.text()
    ix = start(Indexer, "--threads", first)
    twin = Process("indexer", "--port", ix.port, "--threads", second)
    assert twin.p.wait(20 * SLOW) == 1 and "address already in use" in twin.text()
