# SPDX-License-Identifier: Apache-2.0
"""Texts of bodies with a zero byte inside: what becomes a C string would end there, so it is refused by its name."""
import pytest

from conftest import Indexer, Select, Serve, local_hashes
from test_failures import OK
from test_proxy import upstream  # noqa: F401

ZERO = "gpu\0x"
TOKENS = list(range(8))


@pytest.mark.parametrize("path", ["/select", "/select_and_reserve"])
def test_a_wish_was_cut_at_a_zero_byte(start, path):
    s = start(Select)
    s.worker(1, taints=["gpu"])
    ask = {"token_ids": TOKENS}
    names = ["model_name", "lora_name", "cache_salt", "cache_namespace", "routing_group", "policy_class", "tenant", "phase", "kv_protocol"]
    for member, body in [(n, {n: ZERO}) for n in names + ["selection_id"] * (path != "/select")] + [
            ("required_taints", {"routing_constraints": {"required_taints": [ZERO]}}),
            ("preferred_taints", {"routing_constraints": {"preferred_taints": {ZERO: 1.0}}}),
            ("assume_kv_reuse", {"router_config_override": {"assume_kv_reuse\0x": True}})]:
        assert member in s.ask(path, {**ask, **body}, 400)["error"], member
    assert s.idle()
    s.ask(path, {**ask, "routing_constraints": {"preferred_taints": {"gpu": 1.0}}})


def test_a_worker_with_a_zero_byte_is_refused(start):
    s = start(Select)
    for member in ("endpoint", "model_name", "routing_group", "engine", "api_key", "recover_endpoint", "metrics_endpoint", "tls_ca", "tls_server_name",
                   "replay_endpoint", "role", "kv_transfer_domain"):
        assert member in s.worker(1, 4, 400, **{member: "http://127.0.0.1:1\0x"})["error"], member
    assert "taints" in s.worker(1, 4, 400, taints=[ZERO])["error"]
    assert "kv_events_endpoints" in s.worker(1, 4, 400, kv_events_endpoints={"0": "tcp://127.0.0.1:1\0x"})["error"]


def test_the_indexer_refuses_a_zero_byte(start, engine):
    x, e = start(Indexer), engine()
    for member in ("model_name", "endpoint", "routing_group", "replay_endpoint", "recover_endpoint"):
        assert member in x.register(1, e, status=422, **{"replay": False, member: "tcp://127.0.0.1:1\0x"})["error"], member
    x.register(1, e)
    for body in ({"token_ids": TOKENS}, {"text": "x"}, {"block_hashes": local_hashes(TOKENS, 4)}):
        path = "/query_by_hash" if "block_hashes" in body else "/query"
        r = x.call("POST", path, {**body, "model_name": "m\0x"})
        assert r.status == 422 and b"model_name" in r.body, (body, r.body)
    assert "url" in x.post("/register_peer", {"url": "http://127.0.0.1:1\0x"}, 422)["error"]


def test_a_salt_and_a_session_go_by_their_whole_length(start, upstream):
    """They never become C strings: what is behind the zero byte is part of the blocks' names."""
    u = upstream(OK)
    s = start(Serve, [u.spec() + ",model=m,block-size=4"], "--no-router-kv-events", ready=False)
    for salt, found in (("a\0b", 0), ("a\0b", 2), ("a", 0), ("a\0c", 0)):
        r = s.complete(TOKENS, model="m", cache_salt=salt, user="u\0v", prompt_cache_key="\0")
        assert r.status == 200 and int(r.headers["x-kvroute-overlap-blocks"]) == found, (salt, r.headers)
