# SPDX-License-Identifier: Apache-2.0
"""Keys go where the operator said, and nowhere else: not to an address that a client, or a worker, has named."""
import json
import subprocess

import pytest

from conftest import BINARY, Engine, Indexer, Mock, ScriptedServer, Serve, call, local_hashes, wait_for


@pytest.fixture
def listener():
    """listener(answer) is a server that keeps the headers of what it is asked."""
    made = []

    def make(answer):
        made.append(ScriptedServer(lambda query: answer))
        return made[-1]
    yield make
    for s in made:
        s.close()


EMPTY = {"m:default": {"block_size": 4, "events": []}}


def test_a_key_is_not_sent_to_a_recover_endpoint_that_a_client_named(start, engine, listener, tmp_path):
    keys, spy = tmp_path / "keys", listener({"TreeDump": {"events": [], "last_event_id": 9}})
    keys.write_text("operators-key\nclients-key\n")
    ix, e = start(Indexer, "--api-key-file", keys, key="clients-key"), engine()
    e.seq = 10  # what came before is asked for
    ix.register(1, e, replay=False, recover_endpoint=spy.url + "/kv_recover")
    wait_for("connected", lambda: ix.listeners()[(1, 0)]["status"] == "active")

    def asked():
        e.stored([e.seq + 100], [1, 2, 3, 4])
        return spy.headers
    wait_for("asked", asked)
    assert not any("operators-key" in json.dumps(h) or "Authorization" in h for h in spy.headers), spy.headers


def test_a_key_is_not_sent_to_a_peer_that_a_client_registered(start, engine, listener, tmp_path):
    keys, named, configured = tmp_path / "keys", listener(EMPTY), listener(500)
    keys.write_text("operators-key\nclients-key\n")
    ix = start(Indexer, "--api-key-file", keys, "--peers", configured.url, key="clients-key")
    assert ix.call("POST", "/register_peer", {"url": named.url}).status == 201
    e = engine()
    e.seq = 10  # without replay this view is lost, and peers are asked for it
    ix.register(1, e, replay=False)
    e.heard_by(1)
    e.stored([1], [1, 2, 3, 4])
    wait_for("both asked", lambda: named.headers and configured.headers, 30)
    assert all("Authorization" not in h for h in named.headers), named.headers
    assert all(h.get("Authorization") == "Bearer operators-key" for h in configured.headers), configured.headers
    assert ix.call("POST", "/register_peer", {"url": configured.url}).status == 201  # naming it again changes nothing
    n = len(configured.headers)
    wait_for("asked again", lambda: len(configured.headers) > n, 60)
    assert configured.headers[-1].get("Authorization") == "Bearer operators-key"


def test_peers_have_a_key_of_their_own(start, engine, listener, tmp_path):
    keys, out, peer = tmp_path / "keys", tmp_path / "out", listener(EMPTY)
    keys.write_text("clients-key\n")
    out.write_text("peers-key\n")
    ix = start(Indexer, "--api-key-file", keys, "--peer-key-file", out, "--peers", peer.url, key="clients-key")
    e = engine()
    e.seq = 10
    ix.register(1, e, replay=False)
    e.heard_by(1)
    e.stored([1], [1, 2, 3, 4])
    wait_for("asked", lambda: peer.headers, 30)
    assert all(h.get("Authorization") == "Bearer peers-key" for h in peer.headers), peer.headers


def test_doctor_sends_its_key_to_what_it_was_given_only(start, listener):
    """The engines that a router lists may be anybody's."""
    spy = listener(404)
    s = start(Serve, [], ready=False)
    assert s.post("/workers", {"worker_id": 1, "endpoint": spy.url, "block_size": 16}).status == 201
    n = len(spy.headers)  # the router's health checks come here too
    command = [BINARY, "doctor", "--api-key", "operators-key", "--timeout", "5", f"http://127.0.0.1:{s.admin}"]
    subprocess.run(command, check=False, capture_output=True, timeout=120)
    assert len(spy.headers) > n and not any("operators-key" in json.dumps(h) for h in spy.headers)
    subprocess.run([*command, "--engine-api-key", "engines-key"], check=False, capture_output=True, timeout=120)
    wait_for("with its own", lambda: any(h.get("Authorization") == "Bearer engines-key" for h in spy.headers))


def test_a_router_asks_anothers_index_with_the_key_it_was_given(start, tmp_path):
    keys, m = tmp_path / "keys", start(Mock)
    keys.write_text("sesame\n")
    server = start(Serve, [m], "--serve-indexer", "--admin-key-file", keys)
    consumer = start(Serve, [m], "--use-remote-indexer", f"http://127.0.0.1:{server.admin}", ready=False)
    wait_for("refused", lambda: "a valid API key is required" in consumer.text())
    assert consumer.metric("remote_indexer_up") == 0
    good = start(Serve, [m], "--use-remote-indexer", f"http://127.0.0.1:{server.admin}", "--remote-indexer-key-file", keys)
    wait_for("up", lambda: good.metric("remote_indexer_up") == 1)
