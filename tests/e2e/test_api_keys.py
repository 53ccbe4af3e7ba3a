# SPDX-License-Identifier: Apache-2.0
"""Keys of the data port (--api-key-file): who may use it, which models, and where a key goes and does not go."""
import collections
import concurrent.futures
import contextlib
import hashlib
import http.client
import json
import signal
import socket
import subprocess
import threading

import pytest

from conftest import BINARY, SLOW, Mock, Serve, call, free_ports, read_sse, wait_for
from leg_parts import HANG, Leg, Pieces, answer, events, handoff

EVENT = events("a").split(b"\n\n")[0] + b"\n\n"
ALICE, BOB = "alices-secret-key", "bobs-secret-key"
BASIC = f"""
keys:
  - name: alice
    key: {ALICE}
  - name: bob
    key_sha256: {hashlib.sha256(BOB.encode()).hexdigest()}
    models: [small, "tune-*"]
  - name: late
    key: an-old-secret-key
    expires: 2020-01-31
"""


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture
def keys(tmp_path):
    path = tmp_path / "keys.yaml"
    path.write_text(BASIC)
    return path


def serve_both(start, keys):
    """A router with keys before two mocks of different models."""
    mocks = [start(Mock, "--model", m) for m in ("small", "large")]
    s = start(Serve, mocks, "--api-key-file", keys)
    wait_for("both models", lambda: {m["id"] for m in call(s.port, "GET", "/v1/models", None, bearer(ALICE)).json()["data"]} == {"small", "large"})
    return s


@pytest.fixture
def served(start, keys):
    return serve_both(start, keys)


@pytest.fixture(scope="module")
def the_served(start_once, tmp_path_factory):
    path = tmp_path_factory.mktemp("keys") / "keys.yaml"
    path.write_text(BASIC)
    return serve_both(start_once, path)


@pytest.fixture
def same_served(the_served):
    """For requests that change nothing: the tests of this file share it."""
    yield the_served
    print(the_served.text()[-4000:])  # shown when the test fails


def refused(answer, status, code):
    assert (answer.status, answer.json()["error"]["code"]) == (status, code), (answer.status, answer.body)
    assert {"message", "type", "param", "code"} == set(answer.json()["error"])
    return answer


def test_a_request_without_a_key_is_refused_and_health_is_not(served):
    no = refused(served.complete([1, 2, 3], model="small"), 401, "invalid_api_key")
    assert no.headers["www-authenticate"] == "Bearer" and no.headers["x-request-id"]
    refused(call(served.port, "GET", "/v1/models"), 401, "invalid_api_key")
    refused(call(served.port, "GET", "/v1/models/small"), 401, "invalid_api_key")
    refused(call(served.port, "POST", "/tokenize", {"prompt": "x"}), 401, "invalid_api_key")
    assert call(served.port, "GET", "/health").status == 200 and call(served.port, "GET", "/ready").status == 200
    assert served.metric("key_refused_total", key="", reason="missing") == 4


@pytest.mark.parametrize("wrong", ["nobodys-secret-key", ALICE[:-1], ALICE + "x", "", "x" * 3000, ALICE.upper()])
def test_a_key_that_is_not_known_is_refused(same_served, wrong):
    refused(same_served.complete([1], model="small", headers=bearer(wrong)), 401, "invalid_api_key")


def test_each_header_that_clients_send_their_key_in_is_read(same_served):
    for h in (bearer(ALICE), {"authorization": f"bearer {ALICE}"}, {"x-api-key": ALICE}, {"api-key": ALICE}, {"X-Api-Key": ALICE, "Authorization": "Basic eDp5"}):
        assert same_served.complete([1, 2, 3], model="small", headers=h).status == 200, h
    refused(same_served.complete([1], model="small", headers={"Authorization": f"Basic {ALICE}"}), 401, "invalid_api_key")
    refused(same_served.complete([1], model="small", headers={"Authorization": "Bearer nobodys-secret-key", "x-api-key": ALICE}), 400, "invalid_api_key")


def test_a_key_may_use_the_models_of_its_list_only(same_served):
    assert same_served.complete([1, 2, 3], model="small", headers=bearer(BOB)).status == 200
    no = refused(same_served.complete([1, 2, 3], model="large", headers=bearer(BOB)), 403, "model_not_allowed")
    assert "'bob'" in no.json()["error"]["message"] and "'large'" in no.json()["error"]["message"]
    refused(same_served.complete([1, 2, 3], headers=bearer(BOB)), 403, "model_not_allowed")  # names none, so it could be any
    form = b"--a\r\nContent-Disposition: form-data; name=model\r\n\r\nlarge\r\n--a--"
    refused(call(same_served.port, "POST", "/v1/audio/speech", form, {"Content-Type": "multipart/form-data; boundary=a", **bearer(BOB)}), 403, "model_not_allowed")
    assert same_served.complete([1, 2, 3], model="tune-7", headers=bearer(BOB)).status == 404  # it may, but nobody serves it
    assert same_served.complete([1, 2, 3], model="tun", headers=bearer(BOB)).status == 403
    shown = call(same_served.port, "GET", "/v1/models", None, bearer(BOB)).json()["data"]
    assert [m["id"] for m in shown] == ["small"]
    assert call(same_served.port, "GET", "/v1/models/small", None, bearer(BOB)).status == 200
    assert call(same_served.port, "GET", "/v1/models/large", None, bearer(BOB)).status == 404
    assert call(same_served.port, "GET", "/v1/models/large", None, bearer(ALICE)).status == 200
    assert same_served.metric("key_refused_total", key="bob", reason="model") == 4


def test_a_keys_requests_go_to_the_workers_with_its_taints_only(start, tmp_path):
    path = tmp_path / "keys.yaml"
    path.write_text(f"keys:\n- {{name: alice, key: {ALICE}}}\n- {{name: bob, key: {BOB}, required_taints: [bulk, cheap]}}\n- {{name: eve, key: eves-secret-key, required_taints: [none]}}\n")
    mocks = [start(Mock) for _ in range(4)]
    taints = ["", ",taint=bulk,taint=cheap", ",taint=bulk", ",taint=cheap"]
    s = start(Serve, [m.spec(t) for m, t in zip(mocks, taints)], "--api-key-file", path, "--queue-timeout", 1)
    asked = {key: collections.Counter(s.complete([n] * 64, headers=bearer(key)).headers["x-kvroute-worker"] for n in range(24)) for key in (ALICE, BOB)}
    assert len(asked[ALICE]) == 4 and len(asked[BOB]) == 1, asked
    (only,) = asked[BOB]
    others = set(asked[ALICE]) - {only}
    assert [w["taints"] for w in s.get("/workers") if str(w["worker_id"]) == only] == [["bulk", "cheap"]]
    pinned = s.complete([1] * 64, headers={**bearer(BOB), "x-kvroute-worker": min(others)})
    assert pinned.status >= 400, pinned.body
    assert s.complete([1] * 64, headers=bearer("eves-secret-key")).status == 503


def test_a_prompt_was_tokenized_by_a_worker_that_its_key_may_not_use(legs, start, tmp_path):
    path = tmp_path / "keys.yaml"
    path.write_text(f"keys:\n- {{name: bob, key: {BOB}, required_taints: [bulk]}}\n")
    workers = [legs(lambda n, b: (200, answer() if "max_tokens" in b else {"tokens": [1, 2, 3], "count": 3})) for _ in range(4)]
    s = start(Serve, [w.spec("both", *(["taint=bulk"] if w is workers[0] else [])) for w in workers], "--api-key-file", path, "--tokenizer", "engine")
    for n in range(12):
        a = call(s.port, "POST", "/v1/completions", {"model": "m", "prompt": f"text {n}", "max_tokens": 1}, bearer(BOB))
        assert a.status == 200, a.body
    assert s.metric("tokenize_requests_total") == 12
    asked = [sum("max_tokens" not in b for b in w.bodies) for w in workers]
    assert asked == [12, 0, 0, 0], asked


def test_a_computed_prompt_was_released_to_a_worker_that_its_key_may_not_use(legs, start, tmp_path):
    """The one that it may use has no room."""
    path = tmp_path / "keys.yaml"
    path.write_text(f"keys:\n- {{name: alice, key: {ALICE}}}\n- {{name: bob, key: {BOB}, required_taints: [bulk]}}\n")
    gate = threading.Event()

    def compute(n, body):
        if len(body["prompt"]) == 64:
            gate.wait(60)
        return 200, handoff()
    p, own, other = legs(compute), legs(lambda n, b: Pieces([EVENT, HANG, EVENT]) if b.get("stream") else (200, answer())), legs(lambda n, b: (200, answer()))
    tainted = ("taint=bulk", "total-kv-blocks=8")
    s = start(Serve, [p.spec("prefill", *tainted), own.spec("decode", *tainted), other.spec("decode", "total-kv-blocks=8")], "--api-key-file", path,
              "--active-decode-blocks-threshold", "0.5", "--handoff-timeout", "0.5")
    wait_for("all workers", lambda: all(w["status"] == "up" for w in s.get("/workers")))
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waits = pool.submit(s.complete, list(range(64)), headers=bearer(BOB), model="m")
        wait_for("the prompt is computed", lambda: p.n == 1)
        c, r = read_sse(s.port, {"model": "m", "prompt": [1] * 96, "max_tokens": 4, "stream": True}, bearer(BOB))
        assert r.read1(4)
        gate.set()
        assert waits.result().status == 503
    wait_for("released", lambda: s.metric("disagg_releases_total", how="dispatched") == 1)
    wait_for("where the key may go", lambda: own.n == 2)
    assert other.n == 0
    c.close()


MIB = 1 << 20
BUDGET = ("--max-bodies-bytes", "8MiB", "--max-body-size", "2MiB", "--no-router-kv-events")  # 4 MiB are one key's, or address's, share


def unfinished(s, key=None, address="127.0.0.1"):
    """A body of which the end does not come."""
    c = socket.create_connection(("127.0.0.1", s.port), timeout=30, source_address=(address, 0))
    who = f"Authorization: Bearer {key}\r\n" if key else ""
    c.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n{who}Content-Length: {2 * MIB}\r\n\r\n".encode())
    with contextlib.suppress(OSError):  # refused already
        c.sendall(b"x" * (MIB + MIB // 2))
    return c


def answered(held):
    """What those of them that were refused were told."""
    told = b""
    for c in held:
        c.settimeout(0.2)
        with contextlib.suppress(OSError):
            told += c.recv(4096)
        c.close()
    return told


def large(s, key=None):
    return call(s.port, "POST", "/v1/completions", {"model": "m", "prompt": "x" * MIB, "max_tokens": 1}, bearer(key) if key else {})


@pytest.fixture
def answers(legs):
    return legs(lambda n, b: (200, answer()))


def test_one_keys_slow_uploads_used_up_the_memory_for_the_bodies_of_all(start, answers, tmp_path):
    path = tmp_path / "keys.yaml"
    path.write_text(f"keys:\n- {{name: alice, key: {ALICE}}}\n- {{name: bob, key: {BOB}}}\n")
    s = start(Serve, [answers.spec("both")], "--api-key-file", path, *BUDGET)
    held = [unfinished(s, BOB) for _ in range(6)]
    wait_for("refusals", lambda: s.metric("key_refused_total", key="bob", reason="unfinished_bodies") == 4)
    assert s.metric("http_request_bodies_over_share_total", port="data") == 4 and s.metric("http_request_bodies_refused_total", port="data") == 0
    assert large(s, ALICE).status == 200
    assert large(s, BOB).status in (200, 429)  # a body may come in one piece, and was never unfinished then
    told = answered(held)
    assert told.count(b"HTTP/1.1 429 ") == 4 and b"Retry-After: 1" in told and b"unfinished" in told and b"rate_limit_error" in told
    wait_for("memory given back", lambda: s.metric("http_request_bodies_bytes", port="data") == 0)
    assert large(s, BOB).status == 200 and s.metric("key_refused_total", key="alice", reason="unfinished_bodies") == 0


def test_one_addresss_slow_uploads_used_up_the_memory_for_the_bodies_of_all(start, answers):
    s = start(Serve, [answers.spec("both")], *BUDGET)
    held = [unfinished(s, address="127.0.0.2") for _ in range(6)]
    wait_for("refusals", lambda: s.metric("http_request_bodies_over_share_total", port="data") == 4)
    assert large(s).status == 200
    assert answered(held).count(b"HTTP/1.1 429 ") == 4
    wait_for("memory given back", lambda: s.metric("http_request_bodies_bytes", port="data") == 0)


def test_a_body_that_its_key_did_not_allow_was_a_503_when_keys_were_read_again(start, answers, tmp_path):
    """The body is refused when it gets too long for what its key could do when its head came."""
    path = tmp_path / "keys.yaml"
    path.write_text(f"keys:\n- {{name: bob, key: {BOB}, max_body_size: 1000}}\n")
    s = start(Serve, [answers.spec("both")], "--api-key-file", path)
    with socket.create_connection(("127.0.0.1", s.port), timeout=30) as c:
        c.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {BOB}\r\nTransfer-Encoding: chunked\r\n\r\n"
                  f"1\r\n{{\r\n".encode())
        wait_for("the first byte", lambda: s.metric("http_request_bodies_bytes", port="data") > 0)
        path.write_text(f"keys:\n- {{name: bob, key: {BOB}}}\n")
        assert s.post("/reload", None).status == 200
        c.sendall(b"7d0\r\n" + b" " * 2000 + b"\r\n")
        told = c.recv(4096)
    assert told.startswith(b"HTTP/1.1 413 ") and b"max_body_size is 1000" in told, told
    assert large(s, BOB).status == 200


CLASSES = """default_policy_family: usual
uncached_isl_buckets: [{min_tokens: 0, bucket: all}]
policy_classes:
- {name: usual-all, policy_family: usual, cache_bucket: all, request_busy_threshold: 1}
- {name: slow, request_busy_threshold: 1, request_queue_limit_per_worker: 0}
"""


def test_a_keys_class_is_not_for_its_client_to_choose(start, tmp_path):
    policy, path = tmp_path / "classes.yaml", tmp_path / "keys.yaml"
    policy.write_text(CLASSES)
    path.write_text(f"keys:\n- {{name: alice, key: {ALICE}}}\n- {{name: bob, key: {BOB}, policy_class: slow}}\n")
    slow = start(Mock, speedup=0.02)
    s = start(Serve, [slow], "--api-key-file", path, "--router-policy-config", policy, "--queue-timeout", 60)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        first = pool.submit(s.complete, list(range(2000)), headers=bearer(ALICE))
        wait_for("the rank is busy", lambda: not s.idle())
        answers = [s.complete([5] * 640, headers={**bearer(BOB), **chosen}) for chosen in ({}, {"x-kvroute-policy-class": "usual"})]
        assert not first.done() and [a.status for a in answers] == [529, 529], [a.body for a in answers]
        slow.kill()
        first.result()


@pytest.mark.parametrize("name", ["slwo", "usual-all"])
def test_a_class_that_no_policy_has_is_an_error(start, tmp_path, name):
    policy, path = tmp_path / "classes.yaml", tmp_path / "keys.yaml"
    policy.write_text(CLASSES)
    path.write_text(f"keys:\n- {{name: alice, key: {ALICE}}}\n- {{name: bob, key: {BOB}, policy_class: {name}}}\n")
    port = free_ports(2)
    p = subprocess.run([BINARY, "serve", "--port", str(port), "--admin-port", str(port + 1), "--api-key-file", path, "--router-policy-config", policy], capture_output=True, text=True, timeout=60)
    assert p.returncode != 0 and f"{path}:3: policy_class '{name}': a class without a family, or a family" in p.stderr, p.stderr


def head_with(*lines):
    return "".join(f"{line}\r\n" for line in ("POST /v1/completions HTTP/1.1", "Host: x", "Connection: close", "Content-Length: 49", *lines)).encode()


@pytest.mark.parametrize("lines,status", [
    ((f"Authorization: Bearer {ALICE}", f"Authorization: Bearer {BOB}"), 400), ((f"Authorization: Bearer {ALICE}",) * 2, 400),
    ((f"Authorization: Bearer {ALICE}", f"x-api-key: {BOB}"), 400), ((f"x-api-key: {ALICE}", f"api-key: {BOB}"), 400),
    ((f"x-api-key: {ALICE}", f"x-api-key: {BOB}"), 400), ((f"Authorization: Bearer {ALICE}", f"x-api-key: {ALICE}"), 200),
    (("Authorization: Basic abc", f"x-api-key: {ALICE}"), 200), ((f"Authorization: Bearer {ALICE}", "x-api-key: "), 200),
    (("Authorization: Bearer nobody", f"x-api-key: {ALICE}"), 400)])
def test_of_two_keys_none_is_chosen(same_served, lines, status):
    body = b'{"model": "small", "prompt": "x", "max_tokens":1}'
    with socket.create_connection(("127.0.0.1", same_served.port), timeout=20 * SLOW) as c:
        c.sendall(head_with(*lines) + b"\r\n" + body)
        answer = b"".join(iter(lambda: c.recv(65536), b""))
    assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer


@pytest.mark.parametrize("names", [("x-session-id",) * 2, ("x-request-id",) * 2, ("x-kvroute-worker",) * 2, ("Content-Type", "content-type"),
                                   ("x-kvroute-worker", "x-worker-instance-id"), ("x-dynamo-worker-instance-id", "x-worker-instance-id"),
                                   ("x-data-parallel-rank", "x-kvroute-dp-rank"), ("x-prefill-dp-rank", "x-dynamo-prefill-dp-rank"),
                                   ("x-request-priority", "x-dynamo-request-priority"), ("x-kvroute-policy-class", "x-dynamo-meta-policy-class")])
def test_headers_that_say_two_things_are_refused(same_served, names):
    body = b'{"model": "small", "prompt": "x", "max_tokens":1}'
    for values, status in ((("1", "2"), 400), (("1", "1"), 200)):
        with socket.create_connection(("127.0.0.1", same_served.port), timeout=20 * SLOW) as c:
            c.sendall(head_with(f"Authorization: Bearer {ALICE}", *(f"{n}: {v}" for n, v in zip(names, values))) + b"\r\n" + body)
            answer = b"".join(iter(lambda: c.recv(65536), b""))
        assert (b"two values" in answer) == (status == 400), answer


def test_a_session_with_a_long_name_had_no_affinity(same_served):
    ask = lambda n: same_served.complete([1], model="small", headers={**bearer(ALICE), "x-session-id": "s" * n})  # noqa: E731
    assert ask(255).status == 200 and ask(256).status == 400


@pytest.mark.parametrize("path", ["/v1/%63ompletions", "/v1%2Fcompletions", "/v1/../flush_cache", "/v1/%2e%2e/flush_cache", "/v1//completions", "/v1/./completions", "/v1/completions/..", "/v1/completions/", "/v1/a%", "/v1/a%4"])
def test_a_path_that_engines_may_read_otherwise_is_unknown(same_served, path):
    """Limits go by the path."""
    a = call(same_served.port, "POST", path, {"model": "small", "prompt": [1, 2]}, bearer(ALICE))
    assert a.status == 404 and a.json()["error"]["message"].startswith("unknown path"), a.body
    assert b"unknown path" not in call(same_served.port, "POST", "/v1/responses/a-b/cancel", {"model": "small"}, bearer(ALICE)).body


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/score", "/rerank"])
@pytest.mark.parametrize("body", [b'{"model": "small", "model": "small", "input": "x"}', b'{"model": "small", "input": "x", "n": NaN}', b'\xff\xfe{\0}\0'])
def test_a_body_of_which_an_engine_may_read_another_model_is_refused(same_served, path, body):
    c = http.client.HTTPConnection("127.0.0.1", same_served.port, timeout=60)
    c.request("POST", path, body, {**bearer(ALICE), "Content-Type": "application/json"})
    r = c.getresponse()
    assert r.status == 400, r.read()
    c.close()


def test_a_byte_order_mark_hides_no_model(same_served):
    ask = lambda model: call(same_served.port, "POST", "/v1/embeddings", b'\xef\xbb\xbf{"model": "%s", "input": "x"}' % model, bearer(BOB))  # noqa: E731
    refused(ask(b"large"), 403, "model_not_allowed")
    assert ask(b"small").status not in (400, 403)  # it is the engine's answer


def test_a_key_that_has_expired_is_refused(served):
    refused(served.complete([1], model="small", headers=bearer("an-old-secret-key")), 403, "expired_api_key")
    assert served.metric("key_refused_total", key="late", reason="expired") == 1


def test_requests_without_a_key_pass_where_the_file_has_anonymous(start, keys):
    keys.write_text(BASIC + "anonymous:\n  models: [small]\n  max_body_size: 200\n")
    s = start(Serve, [start(Mock, "--model", "small"), start(Mock, "--model", "large")], "--api-key-file", keys)
    wait_for("served", lambda: s.complete([1, 2], model="small").status == 200)
    refused(s.complete([1, 2], model="large"), 403, "model_not_allowed")
    refused(s.complete([1] * 200, model="small"), 413, "request_too_large")
    refused(s.complete([1, 2], model="small", headers=bearer("nobodys-secret-key")), 401, "invalid_api_key")  # a wrong key is not no key
    assert s.metric("key_requests_total", key="anonymous", status="2xx") >= 1


# ---- where a key goes

@pytest.fixture
def engine():
    made = []

    def make(**kw):
        e = Leg(lambda n, body: (200, {"id": "x", "choices": [{"index": 0, "text": "a"}], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}))
        made.append(e)
        return e
    yield make
    for e in made:
        e.go.set()
        e.close()


CREDENTIALS = {"Authorization": f"Bearer {ALICE}", "x-api-key": ALICE, "api-key": ALICE}


def heads_of(e):
    return [{k.lower(): v for k, v in h.items()} for h in e.heads]


@pytest.mark.parametrize("workers_key", ["", ",api-key=the-workers-key"])
def test_a_clients_key_does_not_reach_a_worker(start, keys, engine, workers_key):
    e = engine()
    s = start(Serve, [f"http://127.0.0.1:{e.port},model=small" + workers_key], "--no-router-kv-events", "--tokenizer", "engine", "--api-key-file", keys)
    for path, body in (("/v1/completions", {"prompt": "a text"}), ("/v1/embeddings", {"input": "x"}), ("/tokenize", {"prompt": "x"})):
        call(s.port, "POST", path, {"model": "small", **body}, CREDENTIALS)
    wait_for("all have come", lambda: len(e.heads) >= 3)
    for h in heads_of(e):
        assert ALICE not in json.dumps(h), h
        assert "x-api-key" not in h and "api-key" not in h
        assert h.get("authorization") == ("Bearer the-workers-key" if workers_key else None)


def test_a_clients_key_reaches_neither_of_two_legs(start, keys):
    p, d = Leg(lambda n, body: (200, handoff())), Leg(lambda n, body: (200, answer()))
    p.models = d.models = ["small"]
    try:
        s = start(Serve, [p.spec("prefill", "id=1", "api-key=key-of-prefill"), d.spec("decode", "id=2")], "--no-router-kv-events", "--tokenizer", "bytes", "--api-key-file", keys)
        wait_for("both up", lambda: all(w["status"] == "up" for w in s.get("/workers")))
        a = s.complete("a prompt " * 20, model="small", headers=CREDENTIALS)
        assert a.status == 200 and a.headers["x-kvroute-disagg"] == "remote", (a.body, a.headers)
        for leg, own in ((p, "Bearer key-of-prefill"), (d, None)):
            head = heads_of(leg)[-1]
            assert ALICE not in json.dumps(head) and head.get("authorization") == own, head
    finally:
        p.close()
        d.close()


def test_a_clients_key_is_sent_on_where_the_operator_says_so(start, keys, engine):
    e = engine()
    s = start(Serve, [f"http://127.0.0.1:{e.port},model=small,api-key=the-workers-key"], "--no-router-kv-events", "--api-key-file", keys, "--forward-client-key")
    assert s.complete([1, 2, 3], model="small", headers=CREDENTIALS).status == 200
    head = heads_of(e)[-1]
    assert (head["authorization"], head["x-api-key"], head["api-key"]) == (f"Bearer {ALICE}", ALICE, ALICE)


def test_without_a_file_of_keys_headers_pass_as_they_are(start, engine):
    e = engine()
    s = start(Serve, [f"http://127.0.0.1:{e.port},model=small"], "--no-router-kv-events")
    assert s.complete([1, 2, 3], model="small", headers=CREDENTIALS).status == 200
    head = heads_of(e)[-1]
    assert (head["authorization"], head["x-api-key"]) == (f"Bearer {ALICE}", ALICE)
    assert s.post("/api_keys/reload", None).status == 404 and call(s.admin, "GET", "/api_keys").status == 404


# ---- the file again

def names_of(s):
    return [k["name"] for k in s.get("/api_keys")["keys"]]


@pytest.mark.parametrize("how", ["signal", "post"])
def test_keys_are_read_again(served, keys, how):
    keys.write_text(BASIC.replace(ALICE, "alices-second-key") + "  - {name: carol, key: carols-secret-key}\n")
    if how == "post":
        assert served.post("/api_keys/reload", None).status == 200
    else:
        served.p.send_signal(signal.SIGHUP)
    wait_for("the new keys", lambda: "carol" in names_of(served))
    assert served.complete([1], model="small", headers=bearer("carols-secret-key")).status == 200
    assert served.complete([1], model="small", headers=bearer("alices-second-key")).status == 200
    refused(served.complete([1], model="small", headers=bearer(ALICE)), 401, "invalid_api_key")


def test_a_file_that_cannot_be_taken_changes_nothing(served, keys):
    keys.write_text(BASIC + "  - {name: alice, key: another-secret-key}\n")
    no = served.post("/api_keys/reload", None)
    assert no.status == 400 and f"{keys}:11: name:" in no.json()["error"] and "another-secret-key" not in served.text(), no.body
    assert served.complete([1], model="small", headers=bearer(ALICE)).status == 200
    assert served.metric("config_reloads_total", file="api-keys", result="refused") == 1


def test_what_a_key_has_used_survives_reading_the_file_again(served, keys):
    assert served.complete([1, 2, 3], model="small", headers=bearer(ALICE)).status == 200
    alice = lambda: next(k for k in served.get("/api_keys")["keys"] if k["name"] == "alice")  # noqa: E731
    wait_for("counted", lambda: alice()["use"]["tokens_in"] and not alice()["use"]["concurrent"])  # the answer is there a little earlier
    before = alice()
    keys.write_text(BASIC.replace(ALICE, "alices-second-key"))
    assert served.post("/api_keys/reload", None).status == 200
    assert alice()["use"] == before["use"]


def test_no_secret_is_shown_anywhere(served):
    served.complete([1, 2, 3], model="small", headers=bearer(ALICE))
    refused(served.complete([1], model="large", headers=bearer(BOB)), 403, "model_not_allowed")
    digest = hashlib.sha256(ALICE.encode()).hexdigest()
    for path in ("/api_keys", "/metrics", "/status", "/decisions", "/workers"):
        text = call(served.admin, "GET", path).body.decode()
        assert not any(x in text for x in (ALICE, BOB, digest, hashlib.sha256(BOB.encode()).hexdigest())), path
    assert not any(x in served.text() for x in (ALICE, BOB, digest))


@pytest.mark.parametrize("text,said", [
    ("keys:\n  - {name: a, key: short}\n", ":2: key: 8 to 255"),
    ("keys:\n  - {name: a, key: long-enough}\n  - {name: b, key: long-enough}\n", ":3: key: the key of line 2"),
    ("keys:\n  - {name: a, key: long-enough, rps: 3}\n", ":2: rps: unknown key of a key; allowed: name, key"),
    ("keys:\n  - {name: a, key: long-enough, requests_per_second: 0}\n", ":2: requests_per_second: a number above 0"),
    ("keys:\n  - {name: a, key: long-enough, expires: tomorrow}\n", ":2: expires: a date"),
    ("keys:\n  - {name: a, key:long-enough}\n", ":2: key: unknown key of a key"),  # without the space
    ("keys:\n  - {name: a, key( long-enough}\n", ":2: key: unknown key of a key"),
    ("keys:\n  - {name: a, key:long-enough, key:long-enough}\n", ":2: key: "),
    ("keys:\n  - long-enough: a\n", ":2: long: unknown key of a key"),
    ("key:long-enough: a\n", ":1: key: unknown key; allowed"),
    ("keys:\n  - {name: a, key_sha256: long-enough}\n", ":2: key_sha256: "),
    ("keyz: []\n", ":1: keyz: unknown key; allowed: keys, models, default, anonymous"),
])
def test_a_wrong_file_is_an_error_at_the_start(tmp_path, text, said):
    path = tmp_path / "keys.yaml"
    path.write_text(text)
    p = subprocess.run([BINARY, "serve", "--port", str(free_ports()), "--admin-port", str(free_ports()), "--api-key-file", str(path)], capture_output=True, text=True, timeout=60)
    assert p.returncode == 1 and f"--api-key-file: {path}{said}" in p.stderr, p.stderr
    assert "long-enough" not in p.stderr


@pytest.mark.parametrize("entry", ["api-key:long-enough", "apikey=long-enough", "api_key=long-enough", "api-key=long-enough,frob=1"])
def test_an_engines_key_that_was_mistyped_was_told(entry):
    p = subprocess.run([BINARY, "serve", "--worker", f"http://127.0.0.1:9,{entry}"], capture_output=True, text=True, timeout=60)
    assert p.returncode and "***" in p.stderr and "allowed: " in p.stderr and "long-enough" not in p.stderr, p.stderr


def test_requests_go_on_while_the_file_is_read_again_and_again(served, keys):
    over = threading.Event()

    def ask(key):
        got = collections.Counter()
        while not over.is_set():
            got[served.complete([1, 2, 3], model="small", headers=bearer(key)).status] += 1
        return got
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        sent = [pool.submit(ask, key) for key in (ALICE, BOB, ALICE, BOB)]
        try:
            for i in range(60):
                keys.write_text(BASIC + f"  - {{name: extra{i}, key: an-extra-key-{i}, requests_per_second: {i + 1}}}\n")
                assert served.post("/api_keys/reload", None).status == 200
        finally:
            over.set()
        assert all(set(f.result()) == {200} for f in sent)
    wait_for("at rest", lambda: all(k["use"]["concurrent"] == 0 for k in served.get("/api_keys")["keys"]))
