# SPDX-License-Identifier: Apache-2.0
"""SIGHUP reads files again and kills nobody; what others send cannot write lines into a log."""
import json
import os
import re
import shutil
import signal
import ssl
import subprocess

from conftest import SLOW, Indexer, Mock, Publish, ScriptedServer, Select, Serve, call, read_sse, wait_for


def hang_up(p):
    p.p.send_signal(signal.SIGHUP)


def test_a_hangup_kills_no_program_and_cuts_no_stream(start):
    m = start(Mock, speedup=1)
    s = start(Serve, [m])
    others = [start(Select), start(Indexer), start(Publish, m)]
    c, r = read_sse(s.port, {"prompt": "x", "max_tokens": 60, "stream": True})
    first = r.readline()
    for p in (m, s, *others):
        for _ in range(3):
            hang_up(p)
    rest = r.read()
    assert first.startswith(b"data:") and rest.rstrip().endswith(b"data: [DONE]")
    c.close()
    for p in (m, s, *others):
        assert p.p.poll() is None and call(p.port, "GET", "/health").status == 200
    for p in (s, *others[:2]):
        wait_for("read again", lambda: "SIGHUP: read again" in p.text())


def test_a_hangup_reads_keys_again_and_a_file_that_cannot_be_read_changes_nothing(start, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("old\n")
    ask = lambda port, key: call(port, "GET", "/workers", headers={"Authorization": f"Bearer {key}"}).status
    programs = [start(Serve, [], "--admin-key-file", keys, ready=False), start(Select, "--admin-key-file", keys), start(Indexer, "--api-key-file", keys)]
    ports = [getattr(p, "admin", p.port) for p in programs]
    assert all(ask(port, "old") == 200 and ask(port, "new") == 401 for port in ports)
    keys.write_text("new\n")
    for p, port in zip(programs, ports):
        assert ask(port, "old") == 200  # not before
        hang_up(p)
        wait_for("the new key", lambda: ask(port, "new") == 200)
        assert ask(port, "old") == 401
    keys.unlink()
    for p, port in zip(programs, ports):
        hang_up(p)
        wait_for("said", lambda: "stay" in p.text())
        assert ask(port, "new") == 200 and call(port, "GET", "/workers").status == 401


def test_a_hangup_reads_the_worker_file_at_once(start, tmp_path):
    m, f = start(Mock), tmp_path / "workers"
    f.write_text("")
    s = start(Serve, [], "--discovery", "file", "--discovery-target", f, ready=False)
    assert s.get("/workers") == []
    times = os.stat(f)
    f.write_text(m.spec())
    os.utime(f, ns=(times.st_atime_ns, times.st_mtime_ns))
    hang_up(s)
    wait_for("worker", lambda: len(s.get("/workers")) == 1)
    f.write_text("no url\n")
    hang_up(s)
    wait_for("said", lambda: "nothing is changed" in s.text())
    assert len(s.get("/workers")) == 1


def make_certificate(folder, name):
    cert, key = folder / f"{name}.crt", folder / f"{name}.key"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", f"/CN={name}",
                    "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key


def test_a_hangup_reopens_the_access_log_and_reads_the_certificate_again(start, tmp_path):
    import http.client
    cert, key, log = tmp_path / "c", tmp_path / "k", tmp_path / "access.log"
    for name in ("one", "two"):
        make_certificate(tmp_path, name)

    def put(name):
        shutil.copy(tmp_path / f"{name}.crt", cert)
        shutil.copy(tmp_path / f"{name}.key", key)
    put("one")
    ix = start(Indexer, "--tls-cert", cert, "--tls-key", key, "--access-log", log, plain=False)

    def get(name):
        c = http.client.HTTPSConnection("127.0.0.1", ix.port, context=ssl.create_default_context(cafile=tmp_path / f"{name}.crt"), timeout=30 * SLOW)
        try:
            c.request("GET", "/peers")
            return c.getresponse().status
        except ssl.SSLCertVerificationError:
            return 0
        finally:
            c.close()
    wait_for("tls", lambda: get("one") == 200)
    assert get("two") == 0
    put("two")
    os.rename(log, tmp_path / "access.log.1")
    hang_up(ix)
    wait_for("the new certificate", lambda: get("two") == 200)
    assert get("one") == 0
    wait_for("the new file has its line", lambda: "/peers" in log.read_text())
    cert.write_text("no certificate")
    hang_up(ix)
    wait_for("said", lambda: "the old certificate stays" in ix.text())
    assert get("two") == 200


def test_a_hostile_name_cannot_write_lines_into_the_log(start, engine):
    evil = "m\nkvroute indexer: the admin key is hunter2\x1b[2J\u2028"
    colonless = evil.replace(":", "%3A")
    dump = {f"{colonless}:default": {"block_size": 8, "events": []}}
    peer = ScriptedServer(lambda query: json.dumps(dump).encode())
    try:
        ix, e = start(Indexer), engine()
        ix.register(1, e, model=evil, replay=False)
        ix.call("POST", "/register_peer", {"url": peer.url})
        e.seq = 10
        e.heard_by(1)
        e.stored([1], [1, 2, 3, 4])
        wait_for("asked", lambda: "has block size 8 there" in ix.text(), 30)
        text = ix.text()
        assert "\x1b" not in text and "\u2028" not in text
        assert not [l for l in text.splitlines() if re.match(r"(\S+ [a-z]+ )?kvroute indexer: the admin key", l)], text
        assert "model=m\\x0akvroute indexer: the admin key is hunter2\\x1b[2J" in text
    finally:
        peer.close()
