# SPDX-License-Identifier: Apache-2.0
"""https peers, recover endpoints and remote indexes: certificates are checked, and nothing is ever sent in the clear instead."""
import http.client
import json
import os
import socket
import ssl
import subprocess
import threading

import pytest

from conftest import BINARY, Indexer, Mock, Process, Serve, local_hashes, wait_for
from http_parts import Handler, HttpServer

TOKENS = list(range(1, 33))


@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    """name -> (certificate, key): `good` is of 127.0.0.1 and localhost, `other` of somebody else."""
    folder, made = tmp_path_factory.mktemp("certs"), {}
    for name, san in (("good", "IP:127.0.0.1,DNS:localhost"), ("other", "IP:127.0.0.9,DNS:other.example")):
        cert, key = folder / f"{name}.crt", folder / f"{name}.key"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", f"/CN={name}",
                        "-addext", f"subjectAltName={san}", "-keyout", key, "-out", cert], check=True, capture_output=True)
        made[name] = (cert, key)
    return made


class TlsServer(HttpServer):
    """Answers every GET with `body` over TLS."""

    def __init__(self, pair, body):
        outer = self
        self.asked = []

        class Answers(Handler):
            def do_GET(self):
                outer.asked.append((self.path, dict(self.headers)))
                self.answer(200, body)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*pair)
        super().__init__(Answers, tls=context)


class Listener:
    """One connection at a time; what comes is kept, and handed to script(connection, data) once."""

    def __init__(self, script):
        self.got, self.stop = [], False
        self.s = socket.create_server(("127.0.0.1", 0))
        self.port = self.s.getsockname()[1]
        self.script = script
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            try:
                c, _ = self.s.accept()
            except OSError:
                return
            try:
                self.script(self, c)
            except OSError:
                pass
            c.close()

    def close(self):
        self.s.close()


@pytest.fixture
def closing():
    made = []

    def make(x):
        made.append(x)
        return x
    yield make
    for x in made:
        x.close()


def secured(start, pair, *args, **kw):
    ix = start(Indexer, "--tls-cert", pair[0], "--tls-key", pair[1], *args, plain=False, **kw)
    context = ssl._create_unverified_context()

    def up():
        with socket.create_connection(("127.0.0.1", ix.port), 5) as s, context.wrap_socket(s) as t:
            t.sendall(b"GET /ready HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            return b" 200 " in t.recv(100)
    wait_for("ready", up, 20)
    return ix


def dump_of(n):
    blocks = [{"block_hash": i + 1, "tokens_hash": h} for i, h in enumerate(local_hashes(TOKENS, 4)[:n])]
    event = {"worker_id": 7, "event": {"event_id": 1, "dp_rank": 0, "data": {"stored": {"parent_hash": None, "blocks": blocks}}}}
    return json.dumps({"m:default": {"block_size": 4, "events": [event]}}).encode()


def lost_view(ix, engine, **more):
    """A view that peers are asked for."""
    e = engine()
    e.seq = 10
    ix.register(1, e, replay=False, model="lost", **more)
    e.heard_by(1)
    e.stored([1], TOKENS[:4])
    return e


def test_an_indexer_takes_over_from_a_peer_over_https(start, certs, tmp_path, closing, engine):
    (tmp_path / "key").write_text("sesame\n")
    peer = closing(TlsServer(certs["good"], dump_of(3)))
    for host in ("127.0.0.1", "localhost"):
        n = len(peer.asked)
        ix = start(Indexer, "--peers", f"https://{host}:{peer.port}", "--tls-ca", certs["good"][0], "--peer-key-file", tmp_path / "key")
        lost_view(ix, engine)
        wait_for("asked", lambda: len(peer.asked) > n)
        wait_for("taken over", lambda: ix.scores(TOKENS) == {(7, 0): 12})
        assert peer.asked[-1][1]["Authorization"] == "Bearer sesame"


@pytest.mark.parametrize("pair,ca", [("good", None), ("good", "other"), ("other", "other")])
def test_a_certificate_that_is_not_trusted_or_of_another_host_is_refused(start, certs, closing, engine, pair, ca):
    peer = closing(TlsServer(certs[pair], dump_of(3)))
    ix = start(Indexer, "--peers", f"https://127.0.0.1:{peer.port}", *(["--tls-ca", certs[ca][0]] if ca else []))
    lost_view(ix, engine)
    wait_for("refused", lambda: "TLS: " in ix.text(), 60)  # on a busy machine the first try may have taken too long
    assert ix.metric("kvroute_peer_failures_total") > 0 and not peer.asked
    assert ix.call("POST", "/query", {"token_ids": TOKENS, "model_name": "m"}).status == 404


def test_https_to_a_port_that_does_not_speak_it_sends_no_request_in_the_clear(start, closing, engine, tmp_path):
    (tmp_path / "key").write_text("sesame\n")

    def plain(self, c):
        self.got.append(c.recv(65536))
        c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
    peer = closing(Listener(plain))
    ix = start(Indexer, "--peers", f"https://127.0.0.1:{peer.port}", "--peer-key-file", tmp_path / "key")
    lost_view(ix, engine)
    wait_for("failed", lambda: ix.metric("kvroute_peer_failures_total") > 0)
    assert peer.got and all(d[:1] == b"\x16" and b"sesame" not in d and b"GET" not in d for d in peer.got), peer.got


def test_an_answer_that_was_cut_off_is_not_taken_for_a_whole_one(start, certs, closing, engine):
    """Without a length the end of the connection is the end of the answer: only the session's goodbye tells it from a cut."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certs["good"])

    def server(goodbye):
        def run(self, c):
            t = context.wrap_socket(c, server_side=True)
            t.recv(65536)
            t.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + dump_of(3))
            if goodbye:
                t.unwrap()
            os.close(t.detach())
        return closing(Listener(run))
    whole, cut = server(True), server(False)
    ix = start(Indexer, "--peers", f"https://127.0.0.1:{whole.port}", "--tls-ca", certs["good"][0])
    lost_view(ix, engine)
    wait_for("taken over", lambda: ix.scores(TOKENS) == {(7, 0): 12})
    ix = start(Indexer, "--peers", f"https://127.0.0.1:{cut.port}", "--tls-ca", certs["good"][0])
    lost_view(ix, engine)
    wait_for("failed", lambda: ix.metric("kvroute_peer_failures_total") > 0)
    assert ix.metric("kvroute_peer_recoveries_total") == 0


def test_a_recover_endpoint_is_asked_over_https(start, certs, closing, engine):
    event = json.loads(dump_of(3))["m:default"]["events"][0]
    recover = closing(TlsServer(certs["good"], json.dumps({"TreeDump": {"events": [event], "last_event_id": 9}}).encode()))
    ix, e = start(Indexer, "--tls-ca", certs["good"][0]), engine()
    e.seq = 10
    ix.register(7, e, replay=False, recover_endpoint=f"https://localhost:{recover.port}/kv_recover")
    wait_for("connected", lambda: ix.listeners()[(7, 0)]["status"] == "active")
    wait_for("recovered", lambda: ix.scores(TOKENS).get((7, 0)) == 12, 20)
    assert recover.asked and "Authorization" not in recover.asked[0][1]


def test_a_remote_index_is_asked_over_https(start, certs, tmp_path):
    m = start(Mock)
    (tmp_path / "key").write_text("sesame\n")
    ix = secured(start, certs["good"], "--api-key-file", tmp_path / "key")
    args = ["--use-remote-indexer", f"https://127.0.0.1:{ix.port}", "--remote-indexer-key-file", tmp_path / "key"]
    blind = start(Serve, [f"http://127.0.0.1:{m.port},id=1,model=mock"], *args, ready=False)
    wait_for("refused", lambda: "the remote index is not used: TLS: " in blind.text())
    c = start(Serve, [f"http://127.0.0.1:{m.port},id=1,model=mock"], *args, "--tls-ca", certs["good"][0], "--remote-indexer-timeout", 5)
    assert c.metric("remote_indexer_up") == 1
    body = {"instance_id": 1, "endpoint": f"tcp://127.0.0.1:{m.events}", "replay_endpoint": f"tcp://127.0.0.1:{m.replay}", "model_name": "mock",
            "block_size": 16}
    t = http.client.HTTPSConnection("127.0.0.1", ix.port, context=ssl.create_default_context(cafile=certs["good"][0]), timeout=60)
    t.request("POST", "/register", json.dumps(body), {"Content-Type": "application/json", "Authorization": "Bearer sesame"})
    assert t.getresponse().status == 201
    t.close()
    prompt = list(range(20000))  # a large question, over and over on kept connections
    overlap = lambda: c.complete(prompt, max_tokens=1, model="mock").headers["x-kvroute-overlap-blocks"]
    wait_for("all held", lambda: overlap() == "1250")
    assert [overlap() for _ in range(10)] == ["1250"] * 10


def test_doctor_examines_an_indexer_over_https(start, certs):
    ix = secured(start, certs["good"])
    run = lambda *more: subprocess.run([BINARY, "doctor", *map(str, more), f"https://127.0.0.1:{ix.port}"], capture_output=True, text=True, timeout=120,
                                       check=False)
    assert "none is registered" in run("--tls-ca", certs["good"][0]).stdout
    r = run()
    assert r.returncode == 2 and "TLS: " in r.stdout


def test_a_file_of_certificates_that_cannot_be_used_is_a_start_up_error(start, tmp_path):
    (tmp_path / "bad").write_text("no certificate\n")
    for command in ("serve", "select", "indexer"):
        p = start(Process, command, "--tls-ca", tmp_path / "bad", expect=None)
        wait_for("exit", lambda: p.p.poll() is not None)
        assert p.p.returncode != 0 and "--tls-ca" in p.text() and "allowed" in p.text()
