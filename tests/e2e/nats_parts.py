# SPDX-License-Identifier: Apache-2.0
"""Real nats-servers for tests, one or a cluster, a client that speaks their text protocol, and a proxy that can cut the line."""
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

import msgpack

from conftest import free_ports, read_log, wait_for

NATS = shutil.which("nats-server") or "/usr/sbin/nats-server"


class NatsServer:
    """One server on loopback, JetStream on unless told otherwise, its store in a folder of its own, which outlives a kill."""

    def __init__(self, port=None, name="n0", routes=(), cluster_port=None, extra="", jetstream=True):
        self.port, self.monitor = port or free_ports(), free_ports()
        self.dir = tempfile.mkdtemp(prefix="kvroute-nats-")
        self.conf, self.log, self.p = os.path.join(self.dir, "conf"), open(os.path.join(self.dir, "log"), "w+"), None
        lines = [f"server_name: {name}", f"listen: 127.0.0.1:{self.port}", f"http: 127.0.0.1:{self.monitor}",
                 f'jetstream {{ store_dir: "{self.dir}/js", max_memory_store: 256MB, max_file_store: 4GB }}' if jetstream else "", extra]
        if cluster_port:
            urls = ", ".join(f'"nats://127.0.0.1:{p}"' for p in routes)
            lines.append(f"cluster {{ name: c, listen: 127.0.0.1:{cluster_port}, routes: [{urls}] }}")
        with open(self.conf, "w") as f:
            f.write("\n".join(lines) + "\n")
        self.start()

    @property
    def url(self):
        return f"nats://127.0.0.1:{self.port}"

    def start(self, wait=True):
        self.p = subprocess.Popen([NATS, "-c", self.conf], stdout=self.log, stderr=subprocess.STDOUT)
        if wait:
            wait_for("nats-server", lambda: self.p.poll() is not None or socket.create_connection(("127.0.0.1", self.port), 1).close() is None)
        assert self.p.poll() is None, self.text()

    def text(self):
        return read_log(self.log)

    def kill(self):
        if self.p.poll() is None:
            self.p.kill()
        self.p.wait()

    def ask(self, path):
        import urllib.request
        with urllib.request.urlopen(f"http://127.0.0.1:{self.monitor}{path}", timeout=5) as r:
            return json.load(r)

    def stop(self):
        print(f"--- nats-server {self.port}{' (gone)' if self.p.poll() is not None else ''}\n{self.text()[-8000:]}")  # shown when a test fails
        if self.p.poll() is None:
            self.p.send_signal(signal.SIGTERM)
            try:
                self.p.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()
        self.log.close()
        shutil.rmtree(self.dir, ignore_errors=True)


class NatsCluster:
    """Three servers that know each other."""

    def __init__(self, n=3, extra=""):
        ports = [free_ports() for _ in range(n)]
        self.nodes = [NatsServer(name=f"n{i}", routes=ports, cluster_port=ports[i], extra=extra) for i in range(n)]
        wait_for("a leader", self.meta_leader, 30)

    @property
    def url(self):
        return ",".join(n.url for n in self.nodes)

    def alive(self):
        return [n for n in self.nodes if n.p.poll() is None]

    def meta_leader(self):
        for n in self.alive():
            try:
                info = n.ask("/jsz")
            except OSError:
                continue
            leader = info.get("meta_cluster", {}).get("leader")
            if leader and len(info["meta_cluster"].get("replicas") or []) == len(self.nodes) - 1:
                return next((m for m in self.alive() if f"n{self.nodes.index(m)}" == leader), None)
        return None

    def stop(self):
        for n in self.nodes:
            n.stop()


class NatsClient:
    """Publishes and subscribes, by hand: what other writers might send."""

    def __init__(self, port):
        self.s = socket.create_connection(("127.0.0.1", port), 5)
        self.buf, self.sid, self.reply = b"", 0, None
        self._line()
        self.s.sendall(b'CONNECT {"verbose":false,"pedantic":false,"headers":false}\r\nPING\r\n')
        while self._line() != b"PONG":
            pass

    def _fill(self):
        data = self.s.recv(65536)
        assert data, "the server closed the connection"
        self.buf += data

    def _line(self):
        while b"\r\n" not in self.buf:
            self._fill()
        line, self.buf = self.buf.split(b"\r\n", 1)
        return line

    def publish(self, subject, data, reply=None):
        head = f"PUB {subject} {reply + ' ' if reply else ''}{len(data)}\r\n"
        self.s.sendall(head.encode() + data + b"\r\n")

    def flush(self):
        self.s.sendall(b"PING\r\n")
        while self._line() != b"PONG":
            pass

    def subscribe(self, subject):
        self.sid += 1
        self.s.sendall(f"SUB {subject} {self.sid}\r\n".encode())
        self.flush()

    def next(self, timeout=5):
        """(subject, data) of the next message."""
        self.s.settimeout(timeout)
        while True:
            line = self._line()
            if line == b"PING":
                self.s.sendall(b"PONG\r\n")
            if line.startswith(b"MSG "):
                parts = line.split()
                n, self.reply = int(parts[-1]), parts[3].decode() if len(parts) == 5 else None
                while len(self.buf) < n + 2:
                    self._fill()
                data, self.buf = self.buf[:n], self.buf[n + 2:]
                return parts[1].decode(), data

    def request(self, subject, data, timeout=5):
        inbox = f"_INBOX.test{os.getpid()}.{time.monotonic_ns()}"
        self.subscribe(inbox)
        self.publish(subject, data, inbox)
        return self.next(timeout)[1]

    def close(self):
        self.s.close()


class Proxy:
    """Forwards TCP connections to a port; `cut` drops bytes without a word, as a partition does, `heal` ends that."""

    def __init__(self, target):
        self.target, self.port, self.stopping = target, free_ports(), False
        self.talks, self.still = threading.Event(), threading.Event()
        self.talks.set()
        self.listener = socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind(("127.0.0.1", self.port))
        self.listener.listen(64)
        self.pairs = {}
        self.t = threading.Thread(target=self._run, daemon=True)
        self.t.start()

    @property
    def url(self):
        return f"nats://127.0.0.1:{self.port}"

    def cut(self):
        self.still.clear()
        self.talks.clear()
        assert self.still.wait(10)  # what was on its way has passed

    def heal(self):
        self.talks.set()

    def _drop(self, s):
        other = self.pairs.pop(s, None)
        self.pairs.pop(other, None)
        for x in (s, other):
            if x:
                x.close()

    def _accept(self):
        a, _ = self.listener.accept()
        try:
            b = socket.create_connection(("127.0.0.1", self.target), 1)
        except OSError:
            a.close()
            return
        self.pairs[a], self.pairs[b] = b, a

    def _run(self):
        while not self.stopping:
            if not self.talks.is_set():
                self.still.set()
            self.talks.wait()  # meanwhile nothing is read, nobody is let in; connections stay open, as far as they know
            for s in select.select([self.listener, *self.pairs], [], [], 0.05)[0]:
                if s is self.listener:
                    self._accept()
                elif s in self.pairs:
                    try:
                        data = s.recv(65536)
                        self.pairs[s].sendall(data) if data else self._drop(s)
                    except OSError:
                        self._drop(s)
        for s in list(self.pairs):
            s.close()
        self.listener.close()

    def stop(self):
        self.stopping = True
        self.talks.set()
        self.t.join()


def envelope(publisher, sequence, payload, topic="kv-events", at=None, numbers=False, **more):
    """`payload`: bytes, or what is to be packed; numbers: as an array of numbers instead of a bin."""
    payload = payload if isinstance(payload, bytes) else msgpack.packb(payload)
    return msgpack.packb({"publisher_id": publisher, "sequence": sequence, "published_at": int((at or time.time()) * 1000), "topic": topic,
                          "payload": list(payload) if numbers else payload, **more})


def router_event(worker, event_id, data, rank=0):
    return {"worker_id": worker, "event": {"event_id": event_id, "data": data, "dp_rank": rank}}


def stored(names, hashes, parent=None):
    return {"stored": {"parent_hash": parent, "blocks": [{"block_hash": n, "tokens_hash": h} for n, h in zip(names, hashes)]}}
