# SPDX-License-Identifier: Apache-2.0
"""What clients may reach of engines: inference. Nothing that loads, stops or empties them."""

import socket

import pytest

from conftest import SLOW, Serve, call
from test_failures import OK
from test_proxy import upstream  # noqa: F401

MANAGEMENT = ["/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/load_lora_adapter", "/v1/loads", "/flush_cache", "/sleep", "/collective_rpc",
              "/update_weights_from_disk", "/reset_prefix_cache", "/pause", "/shutdown", "/server_info", "/metrics", "/v1/realtime", "/v1/files"]
TRICKS = ["/v1//load_lora_adapter", "/v1/./load_lora_adapter", "/v1/embeddings/../load_lora_adapter", "/v1/%6coad_lora_adapter", "/v1/load_lora_adapter/",
          "/v1/load_lora_adapter?x=/v1/embeddings", "/v1/LOAD_LORA_ADAPTER", "/v1%2fload_lora_adapter", "/v1/responses/../load_lora_adapter",
          "/v1/responses/%2e%2e/load_lora_adapter", "/v1/videos/a/../../load_lora_adapter", "/v1/load_lora_adapter%00", "/v1/responses/a/b/cancel",
          "/v1/embeddings/", "/v1/embeddings/x", "/v1/responses//cancel", "/v1/responses/..\\\\load_lora_adapter", "/v1/responses/a%00",
          "/v1/responses/a%0d%0ax", "/v1/responses/a%c3%a4", "/v1/responses/a;b", "/v1/videos/%20", "//v1/load_lora_adapter", "/v1/embeddings;/../load_lora_adapter"]
INFERENCE = ["/v1/embeddings", "/v1/rerank", "/v1/score", "/v1/classify", "/v1/audio/transcriptions", "/v1/audio/speech", "/v1/images/generations",
             "/v1/responses/resp_1/cancel", "/v1/messages/count_tokens", "/v1/chat/completions/render", "/v1/videos",
             "/v1/videos/sync", "/v1/videos/generations",
             "/tokenize", "/detokenize", "/rerank", "/v2/rerank", "/pooling", "/classify", "/encode", "/score"]


@pytest.mark.parametrize("path", MANAGEMENT + TRICKS)
def test_a_client_cannot_reach_the_management_of_an_engine(start, upstream, path):
    u = upstream(OK)
    s = start(Serve, [u.spec()], ready=False)
    for method in ("POST", "GET", "DELETE"):
        r = call(s.port, method, path, {"lora_name": "a", "lora_path": "/etc"} if method == "POST" else None, timeout=5 * SLOW)
        assert r.status in (400, 404), (method, path, r.body)
    assert not any(b"lora" in head or path.encode() in head for head, _ in u.requests)


def test_inference_is_passed_on(start, upstream):
    u = upstream(OK)
    s = start(Serve, [u.spec()], ready=False)
    for path in INFERENCE:
        assert call(s.port, "POST", path, {}).status == 200, path
        assert u.requests[-1][0].startswith(f"POST {path} ".encode())


KEPT = ["/v1/responses/resp_1", "/v1/responses/resp_1/input_items", "/v1/videos/a", "/v1/videos/a-b_c.d:e=f~g@h/content", "/v1/images/x/content"]


def test_a_route_took_any_method(start, upstream):
    u = upstream(OK)
    s = start(Serve, [u.spec()], "--pass-routes", "/custom", ready=False)
    for path in KEPT:
        assert call(s.port, "GET", path).status == 200 and u.requests[-1][0].startswith(f"GET {path} ".encode()), path
    n = len(u.requests)
    for method, path, allowed in (("PUT", "/tokenize", "POST"), ("DELETE", "/v1/embeddings", "POST"), ("PATCH", "/v1/completions", "POST"), ("GET", "/v1/videos", "POST"),
                                  ("HEAD", "/v1/videos", "POST"), ("POST", KEPT[0], "GET, HEAD, DELETE"), ("DELETE", KEPT[1], "GET, HEAD"),
                                  ("PUT", KEPT[2], "GET, HEAD, DELETE"), ("POST", "/v1/models", "GET, HEAD"), ("POST", "/v1/models/m", "GET, HEAD")):
        r = call(s.port, method, path, {} if method != "HEAD" else None)
        assert r.status == 405 and r.headers["allow"] == allowed, (method, path, r.status)
    assert len(u.requests) == n
    for method in ("PUT", "DELETE", "POST", "GET"):
        assert call(s.port, method, "/custom").status == 200, method  # an operator's


def test_a_body_of_a_refused_method_was_held(start):
    s = start(Serve, ["http://127.0.0.1:9"], ready=False)
    for method, path, status in (("POST", "/tokenize", b"100"), ("PUT", "/tokenize", b"4"), ("POST", "/v1/responses/a", b"4")):
        with socket.create_connection(("127.0.0.1", s.port), timeout=20 * SLOW) as c:
            c.sendall(f"{method} {path} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1000000\r\n\r\n".encode())
            assert c.recv(12).startswith(b"HTTP/1.1 " + status), (method, path)


def test_an_operator_may_open_further_routes(start, upstream):
    u = upstream(OK)
    s = start(Serve, [u.spec()], "--pass-routes", "/v1/load_lora_adapter,/custom/*", ready=False)
    for path, status in (("/v1/load_lora_adapter", 200), ("/custom/a/b", 200), ("/custom/", 404), ("/customs", 404), ("/v1/unload_lora_adapter", 404),
                         ("/custom/../sleep", 404), ("/custom/%2e%2e/sleep", 404)):
        assert call(s.port, "POST", path, {}).status == status, path


@pytest.mark.parametrize("routes", ["v1/x", "", "/a,,/b", "/v1/*/x", "/a/../b", "/%61"])
def test_a_route_that_cannot_be_read_is_refused(start, routes):
    p = start(Serve, [], "--pass-routes", routes, wait=False, expect=None)
    assert p.p.wait(20 * SLOW) == 2 and "pass-routes: " in p.text()
