# SPDX-License-Identifier: Apache-2.0
"""CURVE: who may hear a publisher and a router, and whom they hear."""
import os
import stat
import subprocess

import pytest

from conftest import BINARY, SLOW, Indexer, Publish, Select, call, free_ports, stays, wait_for

T = list(range(100, 140))


@pytest.fixture
def keys(tmp_path):
    """keys(name): (file of a fresh pair, public key)."""
    def make(name):
        path = tmp_path / name
        r = subprocess.run([BINARY, "curve-key", str(path)], capture_output=True, text=True, timeout=30 * SLOW)
        assert r.returncode == 0, r.stderr
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        return str(path), r.stdout.strip()
    return make


@pytest.fixture
def listed(tmp_path):
    def make(name, *lines):
        path = tmp_path / name
        path.write_text("# who\n\n" + "".join(l + "\n" for l in lines))
        return str(path)
    return make


def curve(key, clients=None, servers=None):
    args = ["--zmq-curve-key", key]
    return args + (["--zmq-curve-clients", clients] if clients else []) + (["--zmq-curve-servers", servers] if servers else [])


def test_an_indexer_hears_a_publisher_that_knows_its_key_and_no_other(start, engine, keys, listed):
    (pub_key, pub), (ix_key, ix_public), (other_key, _) = keys("publish"), keys("indexer"), keys("other")
    e, plain = engine(), engine()
    p = start(Publish, e, *curve(pub_key, listed("clients", ix_public)), block_size=4)
    e.until("whole", lambda: call(p.port, "GET", "/ready").status == 200)
    servers = listed("servers", f"{pub} tcp://127.0.0.1:{p.out}")
    register = lambda ix, i: ix.post("/register", {"instance_id": i, "model_name": "m", "block_size": 4,
                                                   "endpoint": f"tcp://127.0.0.1:{p.out}", "recover_endpoint": p.url}, 201)
    ix = start(Indexer, *curve(ix_key, servers=servers))
    stranger = start(Indexer, *curve(other_key, servers=servers))  # knows whom it asks, but is not known there
    in_clear = start(Indexer)
    for one in (ix, stranger, in_clear):
        register(one, 7)
    ix.register(8, plain, replay=False)  # no line of the servers file fits: connected to in clear
    e.until("connected", lambda: ix.listeners()[(7, 0)]["status"] == "active")
    wait_for("connected in clear", lambda: ix.listeners()[(8, 0)]["status"] == "active")

    def told():
        e.stored([1, 2], T[:8])
        return ix.scores(T).get((7, 0)) == 8
    wait_for("told", told)
    stays("strangers hear nothing", lambda: all(s.listeners()[(7, 0)]["status"] == "pending" for s in (stranger, in_clear)), 0.5)


def test_routers_that_know_each_other_share_bookings(start, keys, listed):
    (a_key, a_public), (b_key, b_public), (c_key, _) = keys("a"), keys("b"), keys("c")
    ports = free_ports(3)
    known = listed("known", a_public, b_public)
    servers = listed("servers", f"{a_public} tcp://127.0.0.1:{ports}", f"{b_public} tcp://127.0.0.1:{ports + 1}")
    other = lambda i: f"tcp://127.0.0.1:{ports + i}"
    a = start(Select, "--replica-sync-port", ports, "--replica-sync-peers", other(1), *curve(a_key, known, servers))
    b = start(Select, "--replica-sync-port", ports + 1, "--replica-sync-peers", other(0), *curve(b_key, known, servers))
    c = start(Select, "--replica-sync-port", ports + 2, "--replica-sync-peers", other(0), *curve(c_key, known, servers))
    for s in (a, b, c):
        s.worker(1)
    wait_for("peers", lambda: all(s.metric("replica_sync_live_peers") == 1 for s in (a, b)))
    a.ask("/select_and_reserve", {"token_ids": [1] * 40, "selection_id": "x"})
    wait_for("told", lambda: b.loads() == a.loads() and b.loads()[(1, 0)][2] == 1)
    assert c.metric("replica_sync_live_peers") == 0 and c.loads()[(1, 0)][2] == 0


@pytest.mark.parametrize("args,text", [
    (["--zmq-curve-clients", "F"], "needs --zmq-curve-key"),
    (["--zmq-curve-key", "/nowhere"], "cannot read"),
    (["--zmq-curve-key", "BAD"], "line 1 is no key; allowed: 40 characters"),
    (["--zmq-curve-key", "EMPTY"], "has no key"),
])
@pytest.mark.parametrize("command", ["select", "indexer", "publish"])
def test_bad_key_files_are_named(tmp_path, command, args, text):
    (tmp_path / "BAD").write_text("nothing\n")
    (tmp_path / "EMPTY").write_text("# nothing\n")
    args = [str(tmp_path / a) if a in ("BAD", "EMPTY", "F") else a for a in args]
    r = subprocess.run([BINARY, command, "--port", str(free_ports()), *args], capture_output=True, text=True, timeout=30 * SLOW)
    assert r.returncode and text in r.stderr and args[0] in r.stderr, r.stderr


@pytest.mark.parametrize("args", [["publish"], ["select", "--replica-sync-port", "PORT"]])
def test_a_key_without_clients_is_refused_where_somebody_is_to_connect(keys, args):
    args = [str(free_ports()) if a == "PORT" else a for a in args]
    r = subprocess.run([BINARY, *args, "--port", str(free_ports()), *curve(keys("one")[0])], capture_output=True, text=True, timeout=30 * SLOW)
    assert r.returncode and "needs --zmq-curve-clients" in r.stderr, r.stderr


def test_a_key_file_is_not_written_over(keys, tmp_path):
    path, _ = keys("one")
    before = open(path, encoding="utf-8").read()
    r = subprocess.run([BINARY, "curve-key", path], capture_output=True, text=True, timeout=30 * SLOW)
    assert r.returncode == 1 and "exists" in r.stderr and open(path, encoding="utf-8").read() == before
