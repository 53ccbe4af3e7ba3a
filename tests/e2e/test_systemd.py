# SPDX-License-Identifier: Apache-2.0
"""systemd, played: it hears that a program is ready, ends, reads its files again, and lives; it keeps the sockets."""
import contextlib
import ctypes
import os
import signal
import socket
import sys
import threading
import time

import pytest

from conftest import SLOW, Indexer, Mock, Process, Publish, Select, Serve, call, free_ports, wait_for
from handover_parts import Load, activated, listening, port_of, restarted_by_systemd  # noqa: F401

WATCHDOG_US = 400_000


class Supervisor:
    """The socket to which a service tells how it stands: what was told, in order, as (pid, {name: value})."""

    def __init__(self, path):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.sock.bind("\0" + path[1:] if path[0] == "@" else path)
        self.env, self.told = {"NOTIFY_SOCKET": path}, []
        threading.Thread(target=self.hear, daemon=True).start()

    def hear(self):
        with contextlib.suppress(OSError):
            while True:
                text, ancillary, _, _ = self.sock.recvmsg(4096, 64)
                pid = int.from_bytes(ancillary[0][2][:4], sys.byteorder)
                self.told.append((pid, dict(line.split("=", 1) for line in text.decode().split("\n"))))

    def heard(self, name, value=None, pid=None):
        return sum(name in t and value in (None, t[name]) and pid in (None, p) for p, t in self.told)

    def wait(self, name, value=None, pid=None, n=1):
        wait_for(f"{name}={value}", lambda: self.heard(name, value, pid) >= n, 20)


@pytest.fixture
def supervisor(tmp_path):
    made = []

    def make(path=None):
        made.append(Supervisor(path or str(tmp_path / "notify")))
        return made[-1]
    yield make
    for s in made:
        s.sock.close()


# ---- what is told -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["serve", "select", "indexer", "publish"])
def test_a_program_says_when_it_is_ready_lives_and_ends(start, supervisor, what):
    s = supervisor(f"@kvroute-test-{os.getpid()}-{what}" if what == "select" else None)
    env = {**s.env, "WATCHDOG_USEC": str(WATCHDOG_US)}
    p = {"serve": lambda: start(Serve, [start(Mock)], env=env), "select": lambda: start(Select, env=env),
         "indexer": lambda: start(Indexer, env=env), "publish": lambda: start(Publish, start(Mock), env=env)}[what]()
    s.wait("READY", "1", p.p.pid)
    s.wait("WATCHDOG", "1", p.p.pid, 5)
    assert not s.heard("STOPPING")
    p.stop()
    s.wait("STOPPING", "1", p.p.pid)


def test_the_status_says_what_is_missing(start, supervisor):
    s = supervisor()
    m = start(Mock)
    p = start(Serve, [m.spec()], env=s.env)
    s.wait("STATUS", "ready, 1 worker(s)")
    m.stop()
    s.wait("STATUS", "not ready: no worker is schedulable")
    assert call(p.port, "GET", "/ready").status == 503


@pytest.mark.parametrize("what", [Serve, Indexer])
def test_a_reload_is_told_from_its_begin_to_its_end(start, supervisor, what):
    s = supervisor()
    p = start(Serve, [], ready=False, env=s.env) if what is Serve else start(Indexer, env=s.env)
    s.wait("READY", "1")
    before = time.monotonic_ns() // 1000
    p.p.send_signal(signal.SIGHUP)
    s.wait("READY", "1", n=2)
    begun = next(t for _, t in s.told if t.get("RELOADING") == "1")
    assert before <= int(begun["MONOTONIC_USEC"]) <= time.monotonic_ns() // 1000
    assert [name for _, t in s.told for name in t if name in ("READY", "RELOADING")] == ["READY", "RELOADING", "READY"]


def test_a_watchdog_of_another_process_is_not_fed(start, supervisor):
    s = supervisor()
    start(Serve, [], ready=False, env={**s.env, "WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"})
    s.wait("STATUS", "not ready: no worker is schedulable")
    assert not s.heard("WATCHDOG")


libc = ctypes.CDLL(None, use_errno=True)
PTRACE_ATTACH, PTRACE_DETACH, WALL = 16, 17, 0x40000000


@contextlib.contextmanager
def stopped(tid):
    """One thread of a process stands still."""
    assert libc.ptrace(PTRACE_ATTACH, tid, None, None) == 0, os.strerror(ctypes.get_errno())
    try:
        os.waitpid(tid, WALL)
        yield
    finally:
        libc.ptrace(PTRACE_DETACH, tid, None, None)


def test_a_loop_that_stands_still_is_noticed(start, supervisor):
    """Without the main loop, either loop of requests, or the thread of the events, the process does not say that it lives."""
    s = supervisor()
    p = start(Serve, [start(Mock)], "--threads", 2, env={**s.env, "WATCHDOG_USEC": str(WATCHDOG_US)})
    needed = []
    for tid in map(int, os.listdir(f"/proc/{p.p.pid}/task")):
        with stopped(tid):
            at, until = s.heard("WATCHDOG"), time.monotonic() + 5 * WATCHDOG_US / 1e6
            while time.monotonic() < until and s.heard("WATCHDOG") < at + 3:  # one may be on its way, and one asked for already
                time.sleep(0.01)
            if s.heard("WATCHDOG") < at + 3:
                needed.append(tid)
        s.wait("WATCHDOG", n=s.heard("WATCHDOG") + 2)
    assert len(needed) == 4 and p.p.pid in needed


# ---- sockets that it keeps -----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("sockets,threads", [(1, 1), (1, 3), (2, 2), (2, 3)])
def test_sockets_of_systemd_are_served_by_every_loop(start, listening, sockets, threads):
    port = free_ports()
    data, admin = [listening(port, shared=sockets > 1) for _ in range(sockets)], listening()
    s = start(Serve, [start(Mock)], "--threads", threads, ports=(port, port_of(admin)),
              **activated(["data"] * sockets + ["admin"], [*data, admin]))
    assert f"{sockets} 'data', 1 'admin'" in s.text()
    for i in range(32):  # each by a connection of its own
        assert s.complete(f"x{i}").status == 200
    s.stop()
    with socket.create_connection(("127.0.0.1", port)):
        pass  # nobody serves, and nobody is refused


def test_one_of_both_is_enough(start, listening):
    data = listening()
    s = start(Serve, [start(Mock)], ports=(port_of(data), free_ports()), **activated(["data"], [data]))
    assert s.complete("x").status == 200 and s.get("/workers")
    admin = listening()
    t = start(Serve, [start(Mock)], ports=(free_ports(), port_of(admin)), **activated(["admin"], [admin]))
    assert t.complete("x").status == 200 and t.get("/workers")
    u = listening()
    p = start(Process, "select", "--port", port_of(u), **activated(["admin"], [u]))
    wait_for("select", lambda: call(port_of(u), "GET", "/health").status == 200)
    assert p.p.poll() is None


def test_sockets_for_another_process_are_left_alone(start, listening):
    other = listening()
    s = start(Serve, [start(Mock)], env={"LISTEN_PID": "1", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "data"}, fds=[other.fileno()])
    assert s.complete("x").status == 200


def test_sockets_that_do_not_fit_are_refused(start, listening):
    one, two, any_, six = listening(), listening(), listening(host="0.0.0.0"), listening(host="::1")

    def refused(names, sockets, *args, port=None, admin=None):
        p = start(Process, "serve", "--host", "127.0.0.1", "--port", port or port_of(one), "--admin-port", admin or free_ports(), *args,
                  expect=1, **activated(names, sockets))
        assert p.p.wait(20 * SLOW) == 1
        return p.text()
    assert "a socket named 'http'; allowed: FileDescriptorName= of the socket unit is one of 'admin', 'data'" in refused(["http"], [one])
    assert "2 'data'; allowed: one, and as many as --threads (1)" in refused(["data", "data"], [one, two])
    assert "2 sockets 'admin'" in refused(["admin", "admin"], [one, two])
    said = refused(["data"], [two])
    assert f"'data' of systemd listens on 127.0.0.1 port {port_of(two)}; allowed: what the options say, 127.0.0.1 port {port_of(one)}" in said
    assert "listens on 0.0.0.0 port" in refused(["data"], [any_], port=port_of(any_))
    assert "listens on ::1 port" in refused(["admin"], [six], admin=port_of(six))
    assert "'data' of systemd does not listen" in refused(["data"], [listening(backlog=0)])
    p = start(Process, "select", "--port", port_of(one), expect=1, **activated(["data"], [one]))
    assert p.p.wait(20 * SLOW) == 1 and "is one of 'admin'\n" in p.text()


def test_any_address_is_any_address(start, listening):
    port = free_ports()
    s = start(Process, "serve", "--host", "0.0.0.0", "--port", port, "--admin-port", free_ports(),
              **activated(["data"], [listening(port, host="::")]))
    wait_for("serve", lambda: call(port, "GET", "/health").status == 200)
    assert s.p.poll() is None


def test_restarted_by_systemd_twice_under_load(start, listening):
    restarted_by_systemd(start, listening, 800)


# ---- the next one, by a signal --------------------------------------------------------------------------------------------------


@pytest.fixture
def ended():
    """Processes that no test is the parent of."""
    pids = []
    yield pids.append
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        wait_for("end", lambda: not os.path.exists(f"/proc/{pid}") or open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] == "Z")


def test_sigusr2_puts_the_next_one_in_its_place_and_systemd_is_told(start, supervisor, ended, tmp_path):
    s = supervisor()
    config = tmp_path / "kvroute.yaml"
    config.write_text("lame-duck-time: 0\n")
    m = start(Mock)
    p = start(Serve, [m], "--config", config, "--handover", tmp_path / "ports", env={**s.env, "WATCHDOG_USEC": str(WATCHDOG_US)})
    s.wait("READY", "1", p.p.pid)
    load = Load(p.port, pause=0.02)
    load.until(40)
    config.write_text("no-such-option: 1\n")
    p.p.send_signal(signal.SIGUSR2)  # a next one that cannot start
    wait_for("given up", lambda: "the next process has ended by itself (status 2): this one goes on" in p.text())
    load.until(40)
    config.write_text("lame-duck-time: 0\n")
    p.p.send_signal(signal.SIGUSR2)
    assert p.p.wait(60 * SLOW) == 0, p.text()
    pid = int(next(t["MAINPID"] for who, t in s.told if "MAINPID" in t and who != p.p.pid))
    ended(pid)
    s.wait("WATCHDOG", "1", pid, 3)
    load.until(40)
    load.end()
    assert not s.heard("STOPPING") and [t["READY"] for who, t in s.told if "READY" in t] == ["1", "1"]
    open_, spare = os.listdir(f"/proc/{pid}/fd"), os.listdir(f"/proc/{os.getpid()}/fd")
    assert len(open_) < 60 + len(spare), "it has inherited what was not meant for it"


def test_sigusr2_without_a_hand_over_changes_nothing(start):
    p = start(Serve, [start(Mock)])
    p.p.send_signal(signal.SIGUSR2)
    wait_for("said", lambda: "SIGUSR2: needs --handover" in p.text())
    assert p.complete("x").status == 200


def test_a_scheduling_policy_held_for_all_threads_but_those_of_events(start):
    """CPUSchedulingPolicy= of a unit."""
    r = start(Serve, [start(Mock)], under=["chrt", "--idle", "0"])
    assert {os.sched_getscheduler(int(t)) for t in os.listdir(f"/proc/{r.p.pid}/task")} == {os.SCHED_IDLE}
