# SPDX-License-Identifier: Apache-2.0
"""Bodies of requests come to the worker as the client sent them, whatever their size and however they are sent; limits of memory hold nobody up for good."""
import hashlib
import http.client
import json
import socket
import threading

import pytest

from clients import H2
from conftest import Mock, call, stays, wait_for

PIECE = 62000  # bytes of a piece in which the picker hands a body back


def body_of(n):
    """A completion's body of exactly n bytes."""
    if n < 40:
        return b"x" * n
    head = b'{"model":"m","prompt":[1,2,3],"user":"'
    return head + b"u" * (n - len(head) - 2) + b'"}'


def path_of(body):
    return "/v1/completions" if len(body) >= 40 else "/other"


def same(got, body):
    return (got["bytes"], got["sha256"]) == (len(body), hashlib.sha256(body).hexdigest())


SIZES = (0, 1, 100, PIECE - 1, PIECE, PIECE + 1, 65536, 2 * PIECE, 1000000, 16000000)


@pytest.mark.parametrize("size", SIZES)
def test_a_body_of_any_size_arrives_whole(gateway, sink, mode, size):
    worker = sink()
    envoy, picker = gateway(mode, [worker])
    body = body_of(size)
    r = call(envoy.port, "POST", path_of(body), body, {"content-type": "application/json"}, timeout=120)
    assert r.status == 200 and same(r.json(), body), (r.status, r.body[:300])
    assert r.json()["headers"]["content-length"] == str(size)  # it is not told in chunks
    wait_for("idle", picker.idle)


@pytest.mark.parametrize("size", (1000, PIECE + 1, 300000))
def test_a_body_in_chunks_arrives_whole(gateway, sink, mode, size):
    worker = sink()
    envoy, _ = gateway(mode, [worker])
    body = body_of(size)
    c = http.client.HTTPConnection("127.0.0.1", envoy.port, timeout=60)
    c.request("POST", "/v1/completions", (body[i:i + 7919] for i in range(0, size, 7919)), {"content-type": "application/json"}, encode_chunked=True)
    r = c.getresponse()
    told = json.loads(r.read())
    c.close()
    assert r.status == 200 and same(told, body), told


def test_a_body_that_comes_slowly_arrives_whole(gateway, sink, mode):
    """A picker waits as long as the client needs: no message of Envoy's has a timer while nothing was asked."""
    worker = sink()
    envoy, picker = gateway(mode, [worker])
    body = body_of(3000)
    c = socket.create_connection(("127.0.0.1", envoy.port), timeout=60)
    c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 3000\r\n\r\n")
    for i in range(0, 3000, 1000):
        c.sendall(body[i:i + 1000])
        if i < 2000:
            stays("nothing is chosen of half a body", lambda: picker.booked() == 0 and not worker.got, 1)
    answer = b""
    while b"sha256" not in answer:
        answer += c.recv(65536)
    assert same(worker.got[0], body)
    c.close()


def test_a_client_that_expects_100_continue_gets_it(gateway, sink, mode):
    worker = sink()
    envoy, _ = gateway(mode, [worker])
    body = body_of(100000)
    c = socket.create_connection(("127.0.0.1", envoy.port), timeout=60)
    c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: 100000\r\n\r\n")
    assert c.recv(65536).startswith(b"HTTP/1.1 100 ")
    c.sendall(body)
    answer = b""
    while b"sha256" not in answer:
        piece = c.recv(65536)
        assert piece, answer
        answer += piece
    assert same(worker.got[0], body)
    c.close()


def test_trailers_of_a_request_arrive_behind_its_whole_body(gateway, sink):
    """HTTP/2 from end to end: a worker of HTTP/1.1 gets them too, where its cluster says so."""
    def trailers(conf):
        conf["static_resources"]["clusters"][0]["typed_extension_protocol_options"] = {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": {"http_protocol_options": {"enable_trailers": True}}}}
    worker = sink()
    envoy, picker = gateway("duplex", [worker], edits=[trailers])
    for size in (100, PIECE, 1000000):
        c, body = H2(envoy.port), body_of(size)
        status, _, told, _ = c.ask([body[:1000], body[1000:]], trailers=[("x-sum", f"of {size}")])
        c.close()
        told = json.loads(told)
        assert status == 200 and same(told, body), (status, told)
        assert told["trailers"].get("x-sum") == f"of {size}", told
    wait_for("idle", picker.idle)


def test_a_full_memory_slows_bodies_and_refuses_nobody(gateway, sink, mode):
    """32 bodies of 1 MB while 4 MiB are allowed."""
    worker = sink()
    envoy, picker = gateway(mode, [worker], "--ext-proc-memory", "4MiB")
    body, answers = body_of(1000000), []

    def send():
        answers.append(call(envoy.port, "POST", "/v1/completions", body, {"content-type": "application/json"}, timeout=120))
    threads = [threading.Thread(target=send) for _ in range(32)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert [a.status for a in answers] == [200] * 32, sorted(a.status for a in answers)
    assert all(same(a.json(), body) for a in answers)
    wait_for("idle", picker.idle)
    assert envoy.complete([1, 2, 3], model="m").status == 200


def test_a_client_that_reads_slowly_gets_all_of_a_long_answer(gateway, start, mode):
    m = start(Mock, speedup=1000)
    envoy, picker = gateway(mode, [m])
    c = socket.create_connection(("127.0.0.1", envoy.port), timeout=60)
    c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
    body = json.dumps({"prompt": [1] * 20, "max_tokens": 40000, "stream": True}).encode()
    c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    wait_for("decided", lambda: picker.metric("ext_proc_decisions_total") == 1)  # booked, which may be over in milliseconds
    if mode == "duplex":  # more than is kept here: the worker waits, too
        wait_for("all wait for the client", lambda: envoy.stats("cluster.named.upstream_flow_control_paused_reading_total") > 0)
        assert picker.booked() == 1
    got, tail = 0, b""
    while tail != b"0\r\n\r\n":
        piece = c.recv(1024)
        got, tail = got + len(piece), (tail + piece)[-5:]
        assert piece
    assert got > 40000 * 100
    c.close()
    wait_for("idle", picker.idle)
