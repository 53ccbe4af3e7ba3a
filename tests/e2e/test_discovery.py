# SPDX-License-Identifier: Apache-2.0
"""Workers that are found: in a file that changes, by DNS, in a registry in NATS. What is found feeds one table; what goes, goes."""
import base64
import json
import os
import socket
import struct
import threading

import pytest

from conftest import Indexer, Mock, Process, Publish, Serve, call, free_ports, stays, wait_for
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
    wait_for("the mistake is told", lambda: ":2: worker: " in r.text() and "color" in r.text())
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


@pytest.fixture
def listed(start, tmp_path):
    """A router whose file of workers is written by listed(LINE, ...)."""
    f, r = tmp_path / "workers", []

    def write(*lines, given=()):
        (tmp_path / "new").write_text("".join(f"{line}\n" for line in lines))
        os.replace(tmp_path / "new", f)
        if not r:
            r.append(start(Serve, given, "--discovery", "file", "--discovery-target", f))
        return r[0]
    return write


def url(m):
    return m.spec().split(",")[0]


def addresses(r):
    return {w["worker_id"]: w["endpoint"] for w in r.get("/workers")}


def test_an_engine_that_moved_to_another_address_with_its_id_was_lost(start, listed):
    a, b = start(Mock), start(Mock)
    r = listed(a.spec(",id=1"))
    listed(b.spec(",id=1"))
    wait_for("the other address", lambda: addresses(r) == {1: url(b)})
    assert r.complete(TOKENS).headers["x-kvroute-worker"] == "1" and r.metric("discovery_refused_total") == 0


def test_engines_that_swap_their_ids_kept_those_of_before(start, listed):
    ms = [start(Mock) for _ in range(3)]
    r = listed(*(m.spec(f",id={i}") for i, m in enumerate(ms)))
    listed(*(m.spec(f",id={(i + 1) % 3}") for i, m in enumerate(ms)))
    wait_for("the new ids", lambda: addresses(r) == {(i + 1) % 3: url(m) for i, m in enumerate(ms)})
    assert r.metric("discovery_refused_total") == 0


def test_an_id_that_is_free_again_is_taken_by_who_was_refused(start, listed):
    a, b = start(Mock), start(Mock)
    r = listed(b.spec(",id=1"), given=[a.spec(",id=1")])
    assert addresses(r) == {1: url(a)} and "another worker has this id" in r.text() and r.metric("discovery_refused_total") == 1
    assert call(r.admin, "DELETE", "/workers/1").status == 200
    wait_for("the other one", lambda: addresses(r) == {1: url(b)})
    assert r.metric("discovery_refused_total") == 1


def test_after_a_hundred_refusals_no_other_one_was_told(start, listed):
    taken = [f"http://127.0.0.1:{n},id=1" for n in range(1, 121)]
    r = listed(*taken, given=[start(Mock).spec(",id=1")])
    wait_for("the refusals", lambda: r.metric("discovery_refused_total") == 120)
    stays("a second", lambda: r.metric("discovery_refused_total") == 120, 1.5)  # a place in the log has 20 lines of it
    listed(*taken, "http://127.0.0.1:500,id=1")
    wait_for("it is told", lambda: "http://127.0.0.1:500: another worker has this id" in r.text())
    assert r.metric("discovery_refused_total") == 121


def test_a_file_that_was_being_written_took_workers_away(start, tmp_path):
    a, b = start(Mock), start(Mock)
    f = tmp_path / "workers"
    f.write_text(f"{a.spec(',id=1')}\n")
    r = start(Serve, [], "--discovery", "file", "--discovery-target", f)
    for _ in range(6):  # a look each second meets one of these
        with open(f, "w") as o:
            stays("the worker", lambda: ids(r) == {1}, 0.4)
            o.write(f"{a.spec(',id=1')}\n{b.spec(',id=2')}\n")
    wait_for("all of it", lambda: ids(r) == {1, 2})


def test_a_file_that_is_written_again_and_again_was_never_read(start, tmp_path):
    a, b = start(Mock), start(Mock)
    f, new = tmp_path / "workers", tmp_path / "new"
    f.write_text(f"{a.spec(',id=1')}\n")
    r = start(Serve, [], "--discovery", "file", "--discovery-target", f)

    def written():
        new.write_text(f"{a.spec(',id=1')}\n{b.spec(',id=2')}\n")
        new.replace(f)
        return ids(r) == {1, 2}
    wait_for("the other one", written, 30)


def test_many_workers_at_one_address_held_up_the_program(start, tmp_path):
    f = tmp_path / "workers"
    f.write_text("".join(f"http://127.0.0.1:{1 + i // 3500},id={i + 1}\n" for i in range(3501)))
    r = start(Serve, [], "--discovery", "file", "--discovery-target", f, "--no-kv-events", ready=False)
    assert len(r.get("/loads")) == 3501


def test_of_ranks_at_one_address_the_last_line_was_taken(start, listed):
    m = start(Mock, dp=2)
    lines = [f"http://127.0.0.1:{m.port},events=tcp://127.0.0.1:{m.events + i},id={i + 1},dp-start={i},dp-size=1" for i in range(2)]
    r = listed(*lines)
    assert ids(r) == {1, 2} and "have one address" not in r.text()
    assert r.complete(TOKENS, headers={"x-kvroute-worker": "2"}).status == 200
    wait_for("the event", lambda: r.overlap(TOKENS)[(2, 1)] == 8)
    listed(lines[1])
    wait_for("one of them", lambda: ids(r) == {2})
    assert r.overlap(TOKENS)[(2, 1)] == 8  # it was left alone


def test_a_worker_with_a_long_address_was_replaced_by_itself(start, listed):
    m = start(Mock)
    long = f"http://127.0.0.1:{m.port}/" + "x" * 200
    r = listed(m.spec(",id=1"), f"{long},id=2,events=tcp://127.0.0.1:{m.events},state=draining")
    assert call(r.admin, "PATCH", "/workers/2", {"state": "active"}).status == 200
    listed(m.spec(",id=1"), f"{long},id=2,events=tcp://127.0.0.1:{m.events},state=draining", f"http://127.0.0.1:{m.port}/y,id=3")
    wait_for("the third", lambda: ids(r) == {1, 2, 3})
    assert [w["state"] for w in r.get("/workers") if w["worker_id"] == 2] == ["active"]  # it was left alone


def test_a_long_line_was_read_as_two(start, listed):
    r = listed("# " + "one of our racks " * 200, start(Mock).spec(",id=1"))
    assert ids(r) == {1}
    listed("# " + "x" * 20000)
    wait_for("too long", lambda: ":1: the line is longer than 16382 bytes" in r.text())
    assert ids(r) == {1}


class Dns:
    """Answers A, AAAA and SRV questions from tables over UDP and TCP; an entry that is missing is NXDOMAIN. An answer beyond 512 bytes is
    cut short over UDP. `silent`: it answers nothing; `ignored`: types of questions that it does not answer."""
    A, AAAA, SRV = 1, 28, 33

    def __init__(self):
        self.a, self.aaaa, self.srv, self.silent, self.ignored, self.asked = {}, {}, {}, False, set(), []
        self.tcp = socket.create_server(("127.0.0.1", 0))
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(self.tcp.getsockname())
        self.address = f"127.0.0.1:{self.udp.getsockname()[1]}"
        for run in (self._run_udp, self._run_tcp):
            threading.Thread(target=run, daemon=True).start()

    @staticmethod
    def _name(labels):
        return b"".join(bytes([len(x)]) + x.encode() for x in labels.split(".")) + b"\0"

    def _answer(self, q, how):
        """The answer to a question, or None."""
        at, labels = 12, []
        while q[at]:
            labels.append(q[at + 1:at + 1 + q[at]].decode())
            at += 1 + q[at]
        name, (kind, cls) = ".".join(labels), struct.unpack(">HH", q[at + 1:at + 5])
        self.asked.append((how, kind, name))
        if self.silent or kind in self.ignored:
            return None
        records = {self.A: [socket.inet_aton(x) for x in self.a.get(name, [])],
                   self.AAAA: [socket.inet_pton(socket.AF_INET6, x) for x in self.aaaa.get(name, [])],
                   self.SRV: [struct.pack(">HHH", 0, 0, port) + self._name(target) for target, port in self.srv.get(name, [])]}.get(kind, [])
        body = b"".join(b"\xc0\x0c" + struct.pack(">HHIH", kind, cls, 1, len(r)) + r for r in records)
        question = q[12:at + 5]
        cut = how == "udp" and 12 + len(question) + len(body) > 512
        known = name in self.a or name in self.aaaa or name in self.srv
        head = q[:2] + struct.pack(">HHHHH", (0x8180 if known else 0x8183) | (0x0200 if cut else 0), 1, 0 if cut else len(records), 0, 0)
        return head + question + (b"" if cut else body)

    def _run_udp(self):
        while True:
            try:
                q, who = self.udp.recvfrom(2048)
                answer = self._answer(q, "udp")
                if answer:
                    self.udp.sendto(answer, who)
            except OSError:
                return

    def _run_tcp(self):
        while True:
            try:
                c, _ = self.tcp.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(c,), daemon=True).start()

    def _talk(self, c):
        with c, c.makefile("rwb") as f:
            try:
                while len(head := f.read(2)) == 2:
                    answer = self._answer(f.read(struct.unpack(">H", head)[0]), "tcp")
                    if answer:
                        f.write(struct.pack(">H", len(answer)) + answer)
                        f.flush()
            except OSError:
                pass

    def close(self):
        self.udp.close()
        self.tcp.close()


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


def follow_dns(start, servers, *extra, name="engines.test:8000", interval=0.2):
    return start(Serve, [], "--no-router-kv-events", "--no-ask-engines", "--health-interval", 3600, "--discovery", "dns", "--discovery-target",
                 name, "--discovery-dns-server", servers, "--discovery-interval", interval, *extra, ready=False)


def endpoints(r):
    return {w["endpoint"] for w in r.get("/workers")}


def test_an_answer_that_is_cut_short_is_asked_for_over_tcp(start, dns):
    dns.a["engines.test"] = [f"127.0.1.{i}" for i in range(1, 101)]
    r = follow_dns(start, dns.address)
    wait_for("all of them", lambda: endpoints(r) == {f"http://127.0.1.{i}:8000" for i in range(1, 101)})
    assert ("udp", Dns.A, "engines.test") in dns.asked and ("tcp", Dns.A, "engines.test") in dns.asked
    dns.a["engines.test"] = ["127.0.1.7"]
    wait_for("one", lambda: endpoints(r) == {"http://127.0.1.7:8000"})


def test_addresses_of_both_families_are_workers(start, dns):
    dns.a["engines.test"], dns.aaaa["engines.test"] = ["127.0.0.1"], ["::1", "2001:db8::7"]
    r = follow_dns(start, dns.address)
    wait_for("all", lambda: endpoints(r) == {"http://127.0.0.1:8000", "http://[::1]:8000", "http://[2001:db8::7]:8000"})
    del dns.a["engines.test"]
    wait_for("one family", lambda: endpoints(r) == {"http://[::1]:8000", "http://[2001:db8::7]:8000"})
    dns.aaaa["six.test"], dns.a["four.test"] = ["2001:db8::9"], ["127.0.0.9"]
    dns.srv["_http._tcp.engines.test"] = [("six.test", 7001), ("four.test", 7002), ("nowhere.test", 7003)]
    by_service = follow_dns(start, dns.address, name="_http._tcp.engines.test")
    wait_for("those of a service", lambda: endpoints(by_service) == {"http://[2001:db8::9]:7001", "http://127.0.0.9:7002"})


def test_many_services_are_all_asked_for(start, dns):
    """More targets than are asked about at once."""
    for i in range(1, 61):
        dns.a[f"e{i}.test"] = [f"127.0.3.{i}"]
    dns.srv["_http._tcp.engines.test"] = [(f"e{i}.test", 7000 + i) for i in range(1, 61)]
    r = follow_dns(start, dns.address, name="_http._tcp.engines.test")
    wait_for("all", lambda: endpoints(r) == {f"http://127.0.3.{i}:{7000 + i}" for i in range(1, 61)})


def test_the_next_server_is_asked_when_the_first_is_silent(start, dns):
    first = Dns()
    try:
        first.silent = True
        dns.a["engines.test"] = ["127.0.0.5"]
        r = follow_dns(start, f"{first.address},{dns.address}")
        wait_for("what the second says", lambda: endpoints(r) == {"http://127.0.0.5:8000"}, 20)
        assert first.asked
    finally:
        first.close()


def test_a_family_without_an_answer_takes_no_worker_away(start, dns):
    """When questions for AAAA find no answer any more, those that came with them stay, and so do all others."""
    dns.a["engines.test"], dns.aaaa["engines.test"] = ["127.0.0.1", "127.0.0.2"], ["2001:db8::7"]
    r = follow_dns(start, dns.address)
    wait_for("all", lambda: len(endpoints(r)) == 3)
    dns.ignored.add(Dns.AAAA)
    dns.a["engines.test"] = ["127.0.0.2", "127.0.0.3"]
    wait_for("the new one", lambda: "http://127.0.0.3:8000" in endpoints(r), 30)
    assert len(endpoints(r)) == 4 and "some questions have no answer; no worker is removed" in r.text()
    assert r.metric("discovery_failed_looks_total") > 0
    dns.ignored.clear()
    wait_for("the old one is gone", lambda: endpoints(r) == {"http://127.0.0.2:8000", "http://127.0.0.3:8000", "http://[2001:db8::7]:8000"}, 30)


def test_a_server_that_never_answers_for_a_family_is_followed(start, dns):
    dns.ignored.add(Dns.AAAA)
    dns.a["engines.test"] = ["127.0.0.1", "127.0.0.2"]
    r = follow_dns(start, dns.address)
    wait_for("both", lambda: len(endpoints(r)) == 2, 30)
    dns.a["engines.test"] = ["127.0.0.2"]
    wait_for("one is gone", lambda: endpoints(r) == {"http://127.0.0.2:8000"}, 40)


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
    (["--discovery", "dns", "--discovery-target", "a:1", "--discovery-dns-server", "127.0.0.1:53,::1:53"], "bad value '127.0.0.1:53,::1:53'"),
    (["--discovery", "dns", "--discovery-target", "a:1", "--discovery-dns-server", "127.0.0.1"], "--discovery-dns-server: bad value '127.0.0.1'"),
    (["--discovery", "gossip"], "discovery: bad value 'gossip'"),
])
def test_bad_options_are_named(start, args, text):
    p = start(Process, "serve", "--port", free_ports(), "--admin-port", free_ports(), *args, expect=None)
    assert p.p.wait(20) in (1, 2) and text in p.text(), p.text()
