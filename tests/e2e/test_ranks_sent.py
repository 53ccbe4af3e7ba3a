# SPDX-License-Identifier: Apache-2.0
"""The rank that is said to the client is the one the engine gets and the one whose load is booked, on every path."""
import json
import threading

import pytest
from conftest import Serve, call, wait_for
from test_proxy import upstream  # noqa: F401 (fixture)

PATHS = ["/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/responses", "/v1/messages", "/v1/videos"]
BODY = {"prompt": "x", "input": "x", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


def sent(u, path):
    """Rank header and body of what the engine got last on that path."""
    head, body = [r for r in u.requests if path.encode() + b" " in r[0]][-1]
    ranks = [l.split(b":")[1].strip().decode() for l in head.split(b"\r\n") if l.lower().startswith(b"x-data-parallel-rank")]
    return ranks, body


@pytest.mark.parametrize("path", PATHS)
def test_rank_said_is_the_rank_the_engine_gets(start, upstream, path):  # noqa: F811
    u = upstream(OK)
    s = start(Serve, [u.spec() + ",dp-size=4"], "--no-router-kv-events")
    r = call(s.port, "POST", path, BODY, {"x-data-parallel-rank": "3"})
    assert r.status == 200 and r.headers["x-kvroute-dp-rank"] == "3"
    assert sent(u, path)[0] == ["3"]
    r = call(s.port, "POST", path, BODY)
    assert [r.headers["x-kvroute-dp-rank"]] == sent(u, path)[0]
    assert json.loads(sent(u, path)[1]) == BODY  # of no use to this engine: the body stays as it is


@pytest.mark.parametrize("path", PATHS)
def test_load_is_booked_on_the_rank_the_engine_gets(start, upstream, path):  # noqa: F811
    go = threading.Event()
    u = upstream([OK[:17], lambda: go.wait(60), OK[17:]])
    s = start(Serve, [u.spec() + ",dp-size=4"], "--no-router-kv-events")
    t = threading.Thread(target=call, args=(s.port, "POST", path, BODY, {"x-data-parallel-rank": "2"}))
    t.start()
    try:
        wait_for("sent", lambda: u.requests)
        assert [l["dp_rank"] for l in s.get("/loads") if l["active_requests"]] == [2]
        assert sent(u, path)[0] == ["2"]
    finally:
        go.set()
        t.join()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("field", ["data_parallel_rank", "routed_dp_rank"])
def test_rank_in_the_body_beside_another_header(start, upstream, path, field):  # noqa: F811
    u = upstream(OK)
    s = start(Serve, [u.spec() + ",dp-size=4"], "--no-router-kv-events")
    r = call(s.port, "POST", path, {**BODY, field: 1}, {"x-data-parallel-rank": "3"})
    assert r.status == 400 and "data_parallel_rank" in r.json()["error"]["message"] and "header" in r.json()["error"]["message"]
    assert not u.requests
    for headers in ({}, {"x-data-parallel-rank": "1"}, {"x-kvroute-worker": "1"}):  # alone it pins the rank, as the header does
        r = call(s.port, "POST", path, {**BODY, field: 1}, headers)
        assert r.status == 200 and r.headers["x-kvroute-dp-rank"] == "1", r.body
        assert sent(u, path) == (["1"], json.dumps({**BODY, field: 1}).encode())
    assert call(s.port, "POST", path, {**BODY, field: 7}).status == 400  # out of range
    for bad in (-1, "1", 1.5, [], True):
        r = call(s.port, "POST", path, {**BODY, field: bad})
        assert r.status == 400 and field in r.json()["error"]["message"], r.body
    r = call(s.port, "POST", path, {**BODY, "data_parallel_rank": 1, "routed_dp_rank": 2})
    assert r.status == 400 and "routed_dp_rank" in r.json()["error"]["message"]
    assert call(s.port, "POST", path, {**BODY, field: None}).status == 200


def test_the_rank_of_an_engine_that_has_one_is_not_named(start, upstream):  # noqa: F811
    """vLLM with --data-parallel-rank 1 refuses rank 1, as it has one; and one with ranks that nobody mentioned would put all on rank 0."""
    a, b = upstream(OK), upstream(OK)
    s = start(Serve, [a.spec(), b.spec() + ",dp-start=1"], "--no-router-kv-events")
    for w, rank in (("1", "0"), ("2", "1")):
        r = call(s.port, "POST", "/v1/completions", BODY, {"x-kvroute-worker": w})
        assert r.status == 200 and r.headers["x-kvroute-dp-rank"] == rank
    assert sent(a, "/v1/completions")[0] == sent(b, "/v1/completions")[0] == []


def test_workers_that_are_ranks_of_one_address_are_named(start, upstream):  # noqa: F811
    u = upstream(OK)
    s = start(Serve, [u.spec(), u.spec() + ",dp-start=1"], "--no-router-kv-events")
    for w, rank in (("1", "0"), ("2", "1")):
        assert call(s.port, "POST", "/v1/completions", BODY, {"x-kvroute-worker": w}).status == 200
        assert sent(u, "/v1/completions")[0] == [rank]


def test_rank_in_the_body_needs_the_worker_where_there_are_several(start, upstream):  # noqa: F811
    a, b = upstream(OK), upstream(OK)
    s = start(Serve, [a.spec() + ",dp-size=2", b.spec() + ",dp-size=2"], "--no-router-kv-events")
    assert call(s.port, "POST", "/v1/completions", {**BODY, "data_parallel_rank": 1}).status == 400
    r = call(s.port, "POST", "/v1/completions", {**BODY, "data_parallel_rank": 1}, {"x-kvroute-worker": "2"})
    assert (r.headers["x-kvroute-worker"], r.headers["x-kvroute-dp-rank"]) == ("2", "1")


@pytest.mark.parametrize("path", PATHS)
def test_sglang_gets_the_rank_in_the_body(start, upstream, path):  # noqa: F811
    u = upstream(OK)
    s = start(Serve, [u.spec() + ",dp-size=4,engine=sglang"], "--no-router-kv-events")
    raw = b' {"prompt" : "x",\n "input":"x", "messages":[{"role":"user","content":"}{"}], "n":1e2, "seed":12345678901234567890 } \n'
    r = call(s.port, "POST", path, raw, {"x-data-parallel-rank": "3"})
    assert r.status == 200 and r.headers["x-kvroute-dp-rank"] == "3"
    ranks, body = sent(u, path)
    assert ranks == ["3"] and body == raw.replace(b" } \n", b' ,"data_parallel_rank":3,"routed_dp_rank":3} \n')
    call(s.port, "POST", path, b'{"prompt":"x","messages":[],"data_parallel_rank":2}')
    assert sent(u, path)[1] == b'{"prompt":"x","messages":[],"data_parallel_rank":2,"routed_dp_rank":2}'
    for nulls in ('"routed_dp_rank" : null , "prompt":"x"', '"prompt":"x", "data_parallel_rank":null', '"routed_dp_rank":null,"x":{},"data_parallel_rank":null'):
        call(s.port, "POST", path, '{"messages":[], "n":{"routed_dp_rank":null}, ' + nulls + '}', {"x-data-parallel-rank": "3"})
        got = json.loads(sent(u, path)[1], object_pairs_hook=list)
        assert sorted(k for k, _ in got).count("routed_dp_rank") == sorted(k for k, _ in got).count("data_parallel_rank") == 1
        assert dict(got)["routed_dp_rank"] == dict(got)["data_parallel_rank"] == 3 and dict(got)["n"] == [("routed_dp_rank", None)]


def test_sglang_bodies_that_are_no_objects_stay(start, upstream):  # noqa: F811
    u = upstream(OK)
    s = start(Serve, [u.spec() + ",dp-size=4,engine=sglang"], "--no-router-kv-events")
    for raw in (b"", b"[1]", b"--x\r\n\r\nnot json", b"{", b'"}"'):
        assert call(s.port, "POST", "/v1/audio/transcriptions", raw).status == 200
        assert sent(u, "/v1/audio/transcriptions")[1] == raw
    call(s.port, "POST", "/v1/responses", b" { } ")
    assert json.loads(sent(u, "/v1/responses")[1])["routed_dp_rank"] in range(4)


def test_sglang_with_one_rank_gets_its_body_unchanged(start, upstream):  # noqa: F811
    u = upstream(OK)
    s = start(Serve, [u.spec() + ",engine=sglang"], "--no-router-kv-events")
    call(s.port, "POST", "/v1/completions", b'{"prompt":"x"}')
    assert sent(u, "/v1/completions")[1] == b'{"prompt":"x"}'


def test_engine_of_a_worker_object(start, upstream):  # noqa: F811
    u = upstream(OK)
    s = start(Serve, [u.spec() + ",dp-size=2"], "--no-router-kv-events")
    assert s.get("/workers")[0]["engine"] == "vllm"
    assert call(s.admin, "PATCH", "/workers/1", {"engine": "sglang"}).status == 200
    assert s.get("/workers")[0]["engine"] == "sglang"
    wait_for("up", lambda: s.get("/workers")[0]["status"] == "up")
    call(s.port, "POST", "/v1/completions", b'{"prompt":"x"}', {"x-data-parallel-rank": "1"})
    assert json.loads(sent(u, "/v1/completions")[1]) == {"prompt": "x", "data_parallel_rank": 1, "routed_dp_rank": 1}
    r = call(s.admin, "PATCH", "/workers/1", {"engine": "other"})
    assert r.status == 400 and "engine" in r.json()["error"]


def test_bodies_made_for_an_engine_count_against_the_budget(start, upstream):  # noqa: F811
    u = upstream(OK)
    s = start(Serve, [u.spec() + ",dp-size=2,engine=sglang"], "--no-router-kv-events", "--max-bodies-bytes", 3 << 20, "--max-body-size", 2 << 20)
    refused = s.metric("http_request_bodies_refused_total", port="data")
    r = call(s.port, "POST", "/v1/responses", {"input": "x" * (1900 << 10)})
    assert r.status == 503 and not u.requests and s.metric("http_request_bodies_refused_total", port="data") > refused
    assert call(s.port, "POST", "/v1/responses", {"input": "x" * (900 << 10)}).status == 200
    wait_for("given back", lambda: s.metric("http_request_bodies_bytes", port="data") == 0)


def test_retried_on_another_worker_gets_that_workers_rank(start, upstream):  # noqa: F811
    """Each attempt says its own rank, and is spliced anew."""
    bad = b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"
    a, b = upstream(bad), upstream(OK)
    s = start(Serve, [a.spec() + ",dp-size=2,engine=sglang", b.spec() + ",dp-start=4,dp-size=2,engine=sglang"], "--no-router-kv-events",
              "--router-mode", "round-robin")
    for i in range(8):
        r = call(s.port, "POST", "/v1/responses", {"input": f"x{i}"})
        if r.status == 200:
            ranks, body = sent(b, "/v1/responses")
            assert ranks == [r.headers["x-kvroute-dp-rank"]] and json.loads(body)["routed_dp_rank"] == int(ranks[0])
    assert a.requests and b.requests  # it was tried, and the next one
