# SPDX-License-Identifier: Apache-2.0
"""ZMQ ports that others connect to (replica sync, publishers, the mock): who can reach them and what one who does can fill."""
import contextlib
import re
import socket
import struct
import subprocess
import time

import pytest
import zmq

from conftest import BINARY, SLOW, Mock, Process, Publish, Select, call, free_ports, wait_for


def listeners(port):
    """Addresses on which somebody listens at a port, as the kernel writes them."""
    found = set()
    for table in ("tcp", "tcp6"):
        with open(f"/proc/net/{table}") as f:
            for line in f.readlines()[1:]:
                local, state = line.split()[1], line.split()[3]
                if state == "0A" and int(local.split(":")[1], 16) == port:
                    found.add(local.split(":")[0])
    return found


LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}


def test_bound_sockets_are_on_loopback_unless_told_otherwise(start, engine):
    p = free_ports(3)
    start(Select, "--replica-sync-port", p)
    assert listeners(p) and listeners(p) <= LOOPBACK
    start(Select, "--replica-sync-port", p + 1, "--replica-sync-bind", "0.0.0.0")
    assert not listeners(p + 1) & LOOPBACK
    sidecar = start(Publish, engine(), block_size=4)
    assert listeners(sidecar.out) <= LOOPBACK
    r = subprocess.run([BINARY, "select", "--port", str(free_ports()), "--replica-sync-port", str(p + 2), "--replica-sync-bind", "192.0.2.7"],
                       capture_output=True, text=True, timeout=30 * SLOW)
    assert r.returncode and "replica-sync-bind" in r.stderr and "allowed" in r.stderr


def raw(port, socket_type=b"SUB"):
    """A connection that speaks ZMTP 3.0 (NULL) and then whatever a test wants."""
    c = socket.create_connection(("127.0.0.1", port), timeout=20 * SLOW)
    c.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
    read(c, 64)
    ready = b"\x05READY" + b"\x0bSocket-Type" + struct.pack(">I", len(socket_type)) + socket_type
    c.sendall(bytes([4, len(ready)]) + ready)
    head = read(c, 2)
    read(c, head[1])
    return c


def read(c, n):
    data = b""
    while len(data) < n:
        more = c.recv(n - len(data))
        assert more, "the other side has ended the connection"
        data += more
    return data


def ends(c):
    """Reads until the other side ends the connection."""
    try:
        while c.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    except socket.timeout:
        return False
    return True


@pytest.fixture(params=["replica sync", "publish", "mock events", "mock replay"])
def bound(request, start, engine):
    """(process, port, type of who connects) of each socket that binds."""
    if request.param == "replica sync":
        port = free_ports()
        return start(Select, "--replica-sync-port", port), port, b"SUB"
    if request.param == "publish":
        p = start(Publish, engine(), block_size=4)
        return p, p.out, b"SUB"
    m = start(Mock)
    return (m, m.events, b"SUB") if request.param == "mock events" else (m, m.replay, b"DEALER")


def test_a_frame_of_eight_gigabytes_is_not_believed(bound):
    _, port, kind = bound
    c = raw(port, kind)
    c.sendall(struct.pack(">BQ", 2, 8 << 30) + bytes(64))
    assert ends(c)
    raw(port, kind).close()  # others are served


def test_a_message_of_endless_frames_is_not_collected(bound):
    process, port, kind = bound
    c, sent = raw(port, kind), 0
    piece = struct.pack(">BQ", 3, 60000) + bytes(60000)
    with pytest.raises(OSError):
        while sent < 512 << 20:
            c.sendall(piece)
            sent += len(piece)
    assert sent < 256 << 20
    assert process.p.poll() is None
    raw(port, kind).close()


def test_connections_are_limited(bound):
    _, port, kind = bound
    crowd = []
    for _ in range(100):
        with contextlib.suppress(ConnectionError):  # ended before it was seen to begin
            crowd.append(socket.create_connection(("127.0.0.1", port), timeout=20 * SLOW))

    def ended():
        n = 100 - len(crowd)
        for c in crowd:
            c.settimeout(0.001)
            try:
                while c.recv(256):
                    pass
                n += 1
            except (socket.timeout, BlockingIOError):
                pass
            except ConnectionError:
                n += 1
        return n >= 100 - 64
    wait_for("the rest are ended", ended)
    for c in crowd:
        c.close()

    def served():
        try:
            raw(port, kind).close()
            return True
        except (AssertionError, ConnectionError):
            return False
    wait_for("room again", served)


def test_who_asks_for_snapshots_without_end_is_one_of_many(start, zctx):
    ports = free_ports(2)
    a = start(Select, "--replica-sync-port", ports)
    a.worker(1)
    a.ask("/select_and_reserve", {"token_ids": [1] * 40, "selection_id": "x"})
    sub = zctx.socket(zmq.SUB)
    sub.linger, sub.rcvhwm = 0, 100
    sub.connect(f"tcp://127.0.0.1:{ports}")
    asked = 0
    until = time.monotonic() + 1
    while time.monotonic() < until:
        for _ in range(50):
            asked += 1
            sub.subscribe(f"s{asked:016x}")
        time.sleep(0.001)
    wait_for("refused", lambda: a.metric("replica_sync_snapshots_refused_total") + a.metric("replica_sync_talkers_total") > 0)
    sent = a.metric("replica_sync_snapshots_sent_total")
    assert sent < asked / 2, (sent, asked)
    sub.close()
    b = start(Select, "--replica-sync-port", ports + 1, "--replica-sync-peers", f"tcp://127.0.0.1:{ports}")
    wait_for("another one hears all", lambda: b.metric("replica_sync_snapshots_received_total") >= 1)


def test_a_peer_that_sends_endless_frames_is_connected_to_anew(start):
    evil = socket.create_server(("127.0.0.1", 0))
    evil.settimeout(20 * SLOW)
    b = start(Select, "--replica-sync-port", free_ports(), "--replica-sync-peers", f"tcp://127.0.0.1:{evil.getsockname()[1]}")
    c, _ = evil.accept()
    c.settimeout(20 * SLOW)
    c.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
    read(c, 64)
    ready = b"\x05READY" + b"\x0bSocket-Type" + struct.pack(">I", 4) + b"XPUB"
    c.sendall(bytes([4, len(ready)]) + ready)
    head = read(c, 2)
    read(c, head[1])
    piece, sent = struct.pack(">BQ", 3, 1 << 20) + bytes(1 << 20), 0
    with pytest.raises(OSError):
        while sent < 700 << 20:
            c.sendall(piece)
            sent += len(piece)
    assert sent < 600 << 20
    wait_for("counted", lambda: b.metric("replica_sync_floods_total") >= 1)
    evil.accept()
    evil.close()


def test_replays_asked_for_without_end_are_answered_now_and_then(start, zctx):
    m = start(Mock)
    d = zctx.socket(zmq.DEALER)
    d.linger = 0
    d.connect(f"tcp://127.0.0.1:{m.replay}")
    for _ in range(400):
        d.send_multipart([b"", bytes(8)])
    ends_seen = 0
    while d.poll(500 * SLOW):
        ends_seen += d.recv_multipart()[-1] == b""
        if ends_seen >= 32:
            break
    assert ends_seen >= 32
    while d.poll(300):
        d.recv_multipart()
        ends_seen += 1
    assert ends_seen < 400
    d.close()


@pytest.mark.parametrize("args", [["serve", "--port", 0, "--admin-port", 0], ["serve", "--port", 0, "--admin-port", 0, "--threads", 3],
                                  ["select", "--port", 0], ["indexer", "--port", 0], ["mock", "--port", 0],
                                  ["publish", "--port", 0, "--dp-size", 1]])
def test_port_0_is_a_free_one_that_the_first_line_tells(start, args):
    if args[0] == "publish":
        args = [*args, "--publish", f"tcp://127.0.0.1:{free_ports()}"]
    p = start(Process, *args)
    line = wait_for("the line", lambda: [l for l in p.text().splitlines() if l.startswith(f"kvroute {args[0]}: ")])[0]
    ports = [int(n) for n in re.findall(r"(?:on |://)[\w.]*:(\d+)", re.sub(r"tcp://\S+", "", line))]
    assert len(ports) == (2 if args[0] == "serve" else 1) and 0 not in ports, line
    for port in ports:
        wait_for(f"{port} of {line}", lambda: call(port, "GET", "/health").status == 200)
