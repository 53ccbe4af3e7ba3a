# SPDX-License-Identifier: Apache-2.0
"""Workers that are found: in a file that changes, by DNS, in a registry in NATS. What is found feeds one table; what goes, goes."""
import base64
import json
import os
import socket
import struct
import threading

import pytest

from conftest import Indexer, Mock, Process, Publish, Serve, free_ports, stays, wait_for
from nats_parts import NatsClient, NatsServer

TOKENS = list(range(1, 129))


def ids(r):
    return {w["worker_id"] for w in r.get("/workers")}


def test_a_file_is_watched(start, tmp_path):
    """Lines come, change and go; a file that is wrong changes nothing and says where."""
    a, b = start(Mock), start(Mock)
    f = tmp_path / "workers"

    def write(text):
        tmp = tmp_path / "new"
        tmp.write_text(text)
        os.replace(tmp, f)
    write(f"# the fleet\n{a.spec(',id=1')}\n\n")
    r = start(Serve, [], "--discovery", "file", "--discovery-target", f)
    assert ids(r) == {1} and r.complete(TOKENS).status == 200
    wait_for("the event", lambda: r.overlap(TOKENS) == {(1, 0): 8})
    write(f"{a.spec(',id=1')}\n{b.spec(',id=2')}\n")
    wait_for("the second", lambda: ids(r) == {1, 2})
    assert r.overlap(TOKENS)[(1, 0)] == 8  # the first was left alone
    write(f"{a.spec(',id=1')}\nhttp://127.0.0.1:1,color=red\n")
    wait_for("the mistake is told", lambda: "line 2" in r.text() and "color" in r.text())
    assert ids(r) == {1, 2}
    os.unlink(f)
    wait_for("its absence is told", lambda: "No such file" in r.text())
    assert ids(r) == {1, 2}
    write(f"{b.spec(',id=2')}\n{a.spec(',id=2')}\nhttp://127.0.0.1:{free_ports()}\n")
    wait_for("the change", lambda: len(ids(r)) == 3)
    assert ids(r) > {1, 2} and "another worker has this id" in r.text() and r.metric("discovery_refused_total") == 1  # left as it was
    write(f"{b.spec(',id=2')}\n")
    wait_for("what is not there any more", lambda: ids(r) == {2})
    assert r.complete(TOKENS).headers["x-kvroute-worker"] == "2"


class Dns:
    """Answers A and SRV questions from a table; an entry that is missing is NXDOMAIN."""

    def __init__(self):
        self.a, self.srv, self.silent = {}, {}, False
        self.s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.s.bind(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.s.getsockname()[1]}"
        self.t = threading.Thread(target=self._run, daemon=True)
        self.t.start()

    @staticmethod
    def _name(labels):
        return b"".join(bytes([len(x)]) + x.encode() for x in labels.split(".")) + b"\0"

    def _run(self):
        while True:
            try:
                q, who = self.s.recvfrom(2048)
            except OSError:
                return
            if self.silent:
                continue
            at, labels = 12, []
            while q[at]:
                labels.append(q[at + 1:at + 1 + q[at]].decode())
                at += 1 + q[at]
            name, (kind, cls) = ".".join(labels), struct.unpack(">HH", q[at + 1:at + 5])
            records = []
            if kind == 1:
                records = [socket.inet_aton(x) for x in self.a.get(name, [])]
            if kind == 33:
                records = [struct.pack(">HHH", 0, 0, port) + self._name(target) for target, port in self.srv.get(name, [])]
            known = name in self.a or name in self.srv
            head = q[:2] + struct.pack(">HHHHH", 0x8180 if known else 0x8183, 1, len(records), 0, 0)
            body = b"".join(b"\xc0\x0c" + struct.pack(">HHIH", kind, cls, 1, len(r)) + r for r in records)
            try:
                self.s.sendto(head + q[12:at + 5] + body, who)
            except OSError:
                return

    def close(self):
        self.s.close()


@pytest.fixture
def dns():
    d = Dns()
    yield d
    d.close()


def test_addresses_are_resolved_again(start, dns):
    m = start(Mock, "--host", "0.0.0.0")
    dns.a["engines.test"] = ["127.0.0.1"]
    r = start(Serve, [], "--discovery", "dns", "--discovery-target", f"engines.test:{m.port}", "--discovery-dns-server", dns.address,
              "--discovery-interval", 0.2, "--discovery-worker", f"events=tcp://{{host}}:{m.events},replay=tcp://{{host}}:{m.replay}", ready=False)
    wait_for("the first", lambda: [w["endpoint"] for w in r.get("/workers")] == [f"http://127.0.0.1:{m.port}"])
    wait_for("ready", lambda: r.complete(TOKENS).status == 200)
    wait_for("events", lambda: max(r.overlap(TOKENS).values()) == 8)
    before = ids(r)
    dns.a["engines.test"] = ["127.0.0.1", "127.0.0.2"]
    wait_for("the second", lambda: len(ids(r)) == 2)
    assert before < ids(r)
    dns.silent = True
    stays("a silent name server changes nothing", lambda: len(ids(r)) == 2, 1)
    dns.silent = False
    del dns.a["engines.test"]
    stays("nor does an empty answer", lambda: len(ids(r)) == 2, 1)
    dns.a["engines.test"] = ["127.0.0.2"]
    wait_for("the first is gone", lambda: len(ids(r)) == 1 and not before & ids(r), 20)


def test_services_have_their_ports(start, dns):
    mocks = [start(Mock) for _ in range(2)]
    dns.a["one.test"] = dns.a["two.test"] = ["127.0.0.1"]
    dns.srv["_http._tcp.engines.test"] = [("one.test", mocks[0].port), ("two.test", mocks[1].port)]
    r = start(Serve, [], "--no-router-kv-events", "--discovery", "dns", "--discovery-target", "_http._tcp.engines.test", "--discovery-dns-server",
              dns.address, "--discovery-interval", 0.2, ready=False)
    wait_for("both", lambda: {w["endpoint"] for w in r.get("/workers")} == {f"http://127.0.0.1:{m.port}" for m in mocks})
    wait_for("ready", lambda: r.complete("hello").status == 200)
    other = start(Serve, [], "--no-router-kv-events", "--discovery", "dns", "--discovery-target", "_http._tcp.engines.test", "--discovery-dns-server",
                  dns.address, ready=False)
    wait_for("the same ids at every router", lambda: ids(other) == ids(r))


def test_sidecars_announce_their_engines(start):
    """Two engines and two routers that know nothing but NATS: they find the engines and each other; who dies is forgotten."""
    nats = NatsServer()
    procs = []
    try:
        plane = ["--event-plane", "jetstream", "--nats-url", nats.url, "--advertise-host", "127.0.0.1"]
        mocks = [start(Mock) for _ in range(2)]
        pubs = [start(Publish, m, "--worker-id", i + 1, "--announce", f"http://127.0.0.1:{m.port}", "--total-kv-blocks", 16384, *plane) for i, m in enumerate(mocks)]
        routers = [start(Serve, [], "--discovery", "nats", "--replica-sync-port", free_ports(), *plane, ready=False) for _ in range(2)]
        procs = pubs + routers
        for r in routers:
            wait_for("both engines", lambda: ids(r) == {1, 2} and all(v["trusted"] for v in r.views().values()), 20)
            wait_for("the other router", lambda: r.metric("replica_sync_live_peers") == 1, 20)
        assert all(w["total_kv_blocks"] == 16384 and w["endpoint"].endswith(str(mocks[w["worker_id"] - 1].port)) for w in routers[0].get("/workers"))
        assert routers[0].complete(TOKENS).status == 200
        for r in routers:
            wait_for("the event", lambda: max(r.overlap(TOKENS).values()) == 8)
        pubs[1].kill()
        for r in routers:
            wait_for("its worker is gone", lambda: ids(r) == {1}, 20)
        routers[1].kill()
        wait_for("the other router is gone", lambda: routers[0].metric("replica_sync_peers") == 0, 20)
        nats.kill()
        stays("without NATS nobody is forgotten", lambda: ids(routers[0]) == {1} and routers[0].complete(TOKENS).status == 200, 8)
        nats.start()
        start(Publish, mocks[1], "--worker-id", 2, "--announce", f"http://127.0.0.1:{mocks[1].port}", *plane, port=pubs[1].port)
        wait_for("both again", lambda: ids(routers[0]) == {1, 2}, 20)
    finally:
        for p in procs:
            p.kill()
        nats.stop()


def test_an_indexer_announces_itself(start):
    """Its key is there while it lives, and soon gone when it is killed."""
    nats = NatsServer()
    try:
        client = NatsClient(nats.port)
        client.subscribe("$KV.kvroute-registry.indexer.>")
        ix = start(Indexer, "--event-plane", "nats", "--nats-url", nats.url, "--advertise-host", "10.9.8.7")
        client.next(30)  # a server of 2.9 that is asked for a message while it makes the stream ends with a nil pointer

        def entry():
            answer = json.loads(client.request("$JS.API.STREAM.MSG.GET.KV_kvroute-registry", b'{"last_by_subj":"$KV.kvroute-registry.indexer.>"}'))
            return base64.b64decode(answer.get("message", {}).get("data", "")).decode()
        wait_for("its key", lambda: entry() == f'{{"url":"http://10.9.8.7:{ix.port}"}}')
        ix.kill()
        wait_for("its end", lambda: entry() == "", 20)
        client.close()
    finally:
        nats.stop()


@pytest.mark.parametrize("args, text", [
    (["--discovery", "file"], "--discovery file needs --discovery-target"),
    (["--discovery", "file", "--discovery-target", "/nowhere"], "--discovery-target: '/nowhere': No such file"),
    (["--discovery", "dns"], "--discovery-target: bad value ''"),
    (["--discovery", "dns", "--discovery-target", "name"], "--discovery-target: bad value 'name'"),
    (["--discovery", "dns", "--discovery-target", "a:1", "--discovery-dns-server", "x"], "--discovery-dns-server: bad value 'x'"),
    (["--discovery", "gossip"], "discovery: bad value 'gossip'"),
])
def test_bad_options_are_named(start, args, text):
    p = start(Process, "serve", "--port", free_ports(), "--admin-port", free_ports(), *args, expect=None)
    assert p.p.wait(20) in (1, 2) and text in p.text(), p.text()
