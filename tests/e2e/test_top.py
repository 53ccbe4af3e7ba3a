# SPDX-License-Identifier: Apache-2.0
"""kvroute top: a running router in a terminal."""
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

from conftest import BINARY, SLOW, Mock, Select, Serve, call, free_ports, wait_for


def once(port, *args):
    return subprocess.run([BINARY, "top", "--once", f"http://127.0.0.1:{port}", *map(str, args)], capture_output=True, text=True, timeout=60 * SLOW)


def row(text, worker):
    """Of a worker's line: state, view, cached, running, prompt tokens, waiting."""
    return re.search(rf"^ +{worker}  \S+ +(\S+) +(\S+) +(\S+) +(\S+) +(\S+) +(\S+)$", text, re.M).groups()


def test_one_look_says_what_each_worker_does(start):
    m, gone = start(Mock), free_ports()
    s = start(Serve, [m], "--worker", f"http://127.0.0.1:{gone},id=7")
    wait_for("its view is whole", lambda: s.get("/workers")[0]["views"][0]["view"] == "whole")
    for _ in range(2):
        assert s.complete("a prompt of some forty bytes, all of them one token").status == 200
    r = once(s.admin)
    assert r.returncode == 0 and not r.stderr and "\x1b" not in r.stdout, r
    assert f"at http://127.0.0.1:{s.admin}, mode kv" in r.stdout and "requests 2, " in r.stdout and "waiting 0;" in r.stdout
    assert row(r.stdout, 1)[:2] == ("up", "whole") and row(r.stdout, 1)[2].endswith("%") and row(r.stdout, 7)[:3] == ("down", "unknown", "-")
    assert re.search(r"^ {10}\S.*refused", r.stdout, re.M)  # why it is down
    assert re.search(r"last 2: cached \d+\.\d% predicted, .* TTFT p50 \d", r.stdout)
    assert max(map(len, r.stdout.splitlines())) <= 80
    call(s.admin, "PATCH", "/workers/1", {"state": "draining"})
    assert row(once(s.admin).stdout, 1)[0] == "draining"


def test_it_ends_when_nobody_reads_it_any_more(start):
    s = start(Select)
    p = subprocess.Popen([BINARY, "top", "--interval", "0.1", f"http://127.0.0.1:{s.port}"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        p.stdout.readline()
        p.stdout.close()
        p.wait(20 * SLOW)
    finally:
        p.kill()


def test_a_selection_service_is_watched_too(start):
    s = start(Select)
    assert "there is no worker" in once(s.port).stdout
    s.worker(3)
    assert row(once(s.port).stdout, 3)


def test_who_does_not_answer_or_is_no_router_is_named(start, tmp_path):
    port = free_ports()
    r = once(port)
    assert r.returncode == 1 and r.stderr.startswith(f"kvroute top: http://127.0.0.1:{port}/status: ") and not r.stdout
    m = start(Mock)
    r = once(m.port)
    assert r.returncode == 1 and "404; is it the admin port of a router?" in r.stderr
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    s = start(Serve, [m], "--admin-key-file", keys, ready=False)
    wait_for("it answers", lambda: "needs" in once(s.admin).stderr or "401" in once(s.admin).stderr)
    assert "does it need --admin-key-file?" in once(s.admin).stderr
    assert once(s.admin, "--admin-key-file", keys).returncode == 0
    r = subprocess.run([BINARY, "top", "nowhere"], capture_output=True, text=True)
    assert r.returncode == 2 and "'nowhere' is no URL" in r.stderr


def test_on_a_terminal_it_draws_until_ctrl_c_and_leaves_it_as_it_was(start):
    s = start(Serve, [start(Mock)])
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(BINARY, [BINARY, "top", "--interval", "0.1", f"http://127.0.0.1:{s.admin}"], {**os.environ, "TERM": "xterm"})
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    said, deadline = b"", time.monotonic() + 60 * SLOW

    def read_until(pattern):
        nonlocal said
        while not re.search(pattern, said, re.S):
            assert time.monotonic() < deadline, said
            if select.select([terminal], [], [], 1)[0]:
                try:
                    said += os.read(terminal, 65536)
                except OSError:
                    break
    try:
        read_until(rb"\x1b\[\?1049h\x1b\[\?25l.*WORKER.*\x1b\[H.*WORKER")  # and again
        os.write(terminal, b"\x03")
        read_until(rb"\x1b\[\?25h\x1b\[\?1049l$")
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        raise
    finally:
        ended = os.waitpid(pid, 0)[1]
        os.close(terminal)
    assert os.waitstatus_to_exitcode(ended) == 0
    lines = re.sub(rb"\x1b\[[?0-9;]*[A-Za-z]", b"", said).decode().replace("^C", "").splitlines()
    assert max(map(len, lines)) <= 80 and any("1  127.0.0.1:" in l for l in lines)
