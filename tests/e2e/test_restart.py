# SPDX-License-Identifier: Apache-2.0
"""A restart is no outage: the lame duck, ports that are free while answers finish, and the hand-over of ports."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import threading
import time

import pytest

from conftest import SLOW, Indexer, Mock, Process, Publish, Select, Serve, call, free_ports, read_log, read_sse, wait_for

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


# ---- hand-over ---------------------------------------------------------------------------------------------------------------


class Client(threading.Thread):
    """Asks without a pause, on connections that it keeps as long as the router does; a request that fails is noted, not asked again."""

    def __init__(self, port, streams=False):
        super().__init__(daemon=True)
        self.port, self.streams, self.done, self.failed, self.over = port, streams, 0, [], threading.Event()
        self.start()

    def ask(self, c):
        c.request("POST", "/v1/completions", json.dumps({"prompt": "x", "max_tokens": 4, "stream": self.streams}))
        r = c.getresponse()
        body = r.read()
        whole = body.endswith(b"data: [DONE]\n\n") if self.streams else r.status == 200
        if not whole:
            self.failed.append((r.status, body[-200:]))
        self.done += 1

    def run(self):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60 * SLOW)
        while not self.over.is_set():
            try:
                self.ask(c)
            except (OSError, http.client.HTTPException) as e:
                self.failed.append(repr(e))
                c.close()
        c.close()


def test_a_hand_over_refuses_nobody(start, tmp_path):
    m = start(Mock)
    args = ("--handover", tmp_path / "ports", "--lame-duck-time", 1)
    s = start(Serve, [m], *args, "--threads", 1)
    clients = [Client(s.port, streams=i % 2 == 1) for i in range(8)]
    for threads in (1, 2, 2, 3):
        wait_for("asking", lambda: all(c.done > 20 for c in clients))
        after = start(Serve, [m], *args, "--threads", threads, ports=(s.port, s.admin), wait=False)
        assert s.p.wait(60 * SLOW) == 0, after.text()
        assert "the ports are handed over" not in after.text() and ", 0 cut off" in s.text()
        wait_for("taken", lambda: "the ports are taken over" in after.text())
        s = after
        for c in clients:
            c.done = 0
    wait_for("asking", lambda: all(c.done > 20 for c in clients))
    for c in clients:
        c.over.set()
    for c in clients:
        c.join()
        assert not c.failed, c.failed[:3]
    s.stop()
    assert not os.path.exists(tmp_path / "ports")


def test_a_process_that_is_not_ready_takes_nothing(start, tmp_path):
    args = ("--handover", tmp_path / "ports")
    s = start(Serve, [start(Mock)], *args)
    late = start(Serve, [f"http://127.0.0.1:{free_ports()}"], *args, ports=(s.port, s.admin), wait=False)
    wait_for("asked", lambda: "another process gets ready" in s.text())
    assert s.complete("x").status == 200
    late.kill()
    wait_for("gone", lambda: "gone without taking" in s.text())
    assert s.complete("x").status == 200
    right = start(Serve, [start(Mock)], *args, ports=(s.port, s.admin), wait=False)
    assert s.p.wait(30 * SLOW) == 0
    assert right.complete("x").status == 200


def test_ports_of_a_process_that_dies_meanwhile_are_taken_at_once(start, tmp_path):
    args = ("--handover", tmp_path / "ports")
    s = start(Serve, [start(Mock)], *args)
    late = start(Serve, [f"http://127.0.0.1:{free_ports()}"], *args, ports=(s.port, s.admin), wait=False)
    wait_for("asked", lambda: "another process gets ready" in s.text())
    s.kill()
    wait_for("answers", lambda: call(late.port, "GET", "/ready").status == 503)
    wait_for("told", lambda: "has ended by itself" in late.text())


def test_what_does_not_fit_is_refused(start, tmp_path):
    m = start(Mock)
    path = tmp_path / "ports"
    s = start(Serve, [m], "--handover", path, "--threads", 2)

    def refused(*args, **kw):
        p = start(Serve, [m], *args, wait=False, expect=1, **kw)
        p.p.wait(20 * SLOW)
        return p.text()
    assert "2 data loops; allowed: --threads of at least as many" in refused("--handover", path, ports=(s.port, s.admin))
    assert "allowed: the same --port and --admin-port" in refused("--handover", path, "--threads", 2)
    assert "allowed: a path that this user may write to" in refused("--handover", "/proc/nowhere")
    assert "allowed: a path" in refused("--handover", "x" * 200)
    stale = tmp_path / "stale"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as u:
        u.bind(str(stale))
    t = start(Serve, [m], "--handover", stale)  # nobody is there any more
    assert oct(os.stat(stale).st_mode & 0o777) == "0o600" and t.complete("x").status == 200
    data = start(Serve, [m], "--handover", path, "--data-dir", tmp_path / "d", wait=False, expect=2)
    data.p.wait(20 * SLOW)
    assert "data-dir and handover exclude each other" in data.text()
    assert s.complete("x").status == 200


def test_a_second_one_that_asked_made_the_running_one_spin(start, tmp_path):
    path = tmp_path / "ports"
    s = start(Serve, [start(Mock)], "--handover", path)
    ask = lambda: socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # noqa: E731
    with ask() as one, ask() as two:
        one.connect(str(path))
        assert one.recv(64) == b"kvroute listeners 1"
        two.connect(str(path))
        used = lambda: sum(map(int, open(f"/proc/{s.p.pid}/stat").read().split()[13:15])) / os.sysconf("SC_CLK_TCK")  # noqa: E731
        before = used()
        time.sleep(1)
        assert used() - before < 0.5
        one.send(b"taken\0" * 9)  # no word of ours
        assert two.recv(64) == b"kvroute listeners 1", "now it is its turn"
    assert s.complete("x").status == 200


def test_strangers_at_the_path_of_a_hand_over(start, tmp_path):
    path, kept = tmp_path / "ports", tmp_path / "kept"
    s = start(Serve, [start(Mock)], "--handover", path)
    assert path.stat().st_mode & 0o777 == 0o600
    for junk in (b"", b"take", b"taken\0", b"x" * 60000, None):
        for _ in range(20):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as c:
                c.connect(str(path))
                if junk is not None:
                    c.send(junk)
    assert s.complete("x").status == 200 and path.is_socket()
    kept.write_text("mine")
    other = start(Process, "select", "--port", free_ports(), "--handover", kept, expect=None)
    assert other.p.wait(20 * SLOW) != 0 and kept.read_text() == "mine"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
def test_sockets_of_another_user_are_not_taken(start, tmp_path):
    path = tmp_path / "ports"
    with socket.create_server(("0.0.0.0", 0)) as theirs, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as offer:
        offer.bind(str(path))
        os.seteuid(65534)
        try:
            offer.listen(4)
        finally:
            os.seteuid(0)

        def give():
            c, _ = offer.accept()
            with c, contextlib.suppress(OSError):
                socket.send_fds(c, [b"kvroute listeners 1"], [theirs.fileno()])
                c.recv(1)
        t = threading.Thread(target=give, daemon=True)
        t.start()
        p = start(Process, "select", "--host", "127.0.0.1", "--port", theirs.getsockname()[1], "--handover", path, expect=None)
        assert p.p.wait(20 * SLOW) != 0 and "allowed: a path that this user may write to" in p.text()


def test_select_hands_its_port_over(start, tmp_path):
    s = start(Select, "--handover", tmp_path / "ports")
    s.worker(1)
    after = Process("select", "--host", "127.0.0.1", "--port", s.port, "--handover", tmp_path / "ports")
    try:
        wait_for("asked", lambda: "another process gets ready" in s.text())
        assert call(s.port, "GET", "/workers").json()  # the new one knows no worker yet, and waits
    finally:
        after.kill()
