# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI document of each port: whole, in agreement with itself and with what the program routes, and kept by its answers."""
import json
import os
import re
import subprocess

import jsonschema
import pytest

from conftest import BINARY, Indexer, Mock, Publish, Select, Serve, call, free_ports, local_hashes, wait_for
from openapi_parts import SEEN, Document, document_of

ROOT = os.path.join(os.path.dirname(__file__), "../..")
KEYS = {"keys": [{"name": "one", "key": "k-one-0123456789abcdef"}]}
METHODS = ("get", "post", "put", "patch", "delete")


def source(path):
    with open(os.path.join(ROOT, "src/app", path), encoding="utf-8") as f:
        return f.read()


def table(text, start):
    """Rows of a table in C: the text of each path, and what follows it."""
    return re.findall(r'\{"(/[^"]*)"((?:[^{}]|\{[^{}]*\})*)\}', text[text.index(start):].split("};")[0])


# ---- the program's tables -----------------------------------------------------------------------------------------

def admin_routes():
    names = {"get": "get", "post": "post", "bare": "post", "put": "put"}
    routes = {path: {names[n] for n in re.findall(r"\.(\w+) =", rest) if n in names} for path, rest in table(source("serve/admin/admin.c"), "} routes[] = {")}
    verbs = re.findall(r'!kvr_text_is\(verb, "(\w+)"\)', source("serve/admin/selection.c"))
    assert len(verbs) == 3
    return {**routes, "/": {"get"}, "/page/{name}": {"get"}, "/workers/{id}": {"patch", "delete"}, "/reservations/{id}": {"delete"}, **{f"/reservations/{{id}}/{v}": {"post"} for v in verbs}}


def data_routes():
    text, port = source("serve/data/port/client_routes.c"), source("serve/data/port/data_port.c")
    words = {"POSTS": "post", "GETS": "get", "DELETES": "delete"}
    routes = {path: {"post"} for path, _ in table(text, "forms[] = {")}
    routes.update({path.replace("*", "{id}"): {words[w] for w in re.findall(r"[A-Z]+", rest)} for path, rest in table(text, "passed[] = {")})
    local = re.findall(r'"(/[^"]*)"', re.search(r"local\[\] = \{(.*?)\}", port)[1])
    assert len(routes) > 40 and len(local) == 4 and 'models[] = "/v1/models/"' in port
    return {**routes, **{path: {"get"} for path in (*local, "/v1/models/{id}")}}


def indexer_routes():
    rows = re.findall(r'\[AT_\w+\] = \{"(/[^"]*)", (true|false), ', source("indexer/routes.c"))
    assert len(rows) > 15
    return {path: {"get" if get == "true" else "post"} for path, get in rows}


def publish_routes():
    return {path: {"get"} for path, _ in table(source("publish/routes.c"), "} routes[] = {")}


ROUTES = {"data": data_routes, "admin": admin_routes, "indexer": indexer_routes, "publish": publish_routes}


@pytest.mark.parametrize("kind", ROUTES)
def test_each_route_of_the_program_is_in_the_document_and_no_other(kind):
    doc = document_of(kind)
    assert {path: set(doc.methods(path)) for path in doc.paths} == ROUTES[kind]()


# ---- the document -------------------------------------------------------------------------------------------------

def references(value):
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for v in value.values():
            yield from references(v)
    elif isinstance(value, list):
        for v in value:
            yield from references(v)


def schemas(value):
    if isinstance(value, dict):
        for k, v in value.items():
            if k == "schema":
                yield v
            elif k == "schemas":
                yield from v.values()
            else:
                yield from schemas(v)
    elif isinstance(value, list):
        for v in value:
            yield from schemas(v)


@pytest.mark.parametrize("kind", ROUTES)
def test_the_document_agrees_with_itself(kind):
    doc = document_of(kind)
    version = subprocess.run([BINARY, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    assert doc.json["openapi"] == "3.1.0" and doc.json["info"]["version"] == version
    for ref in set(references(doc.json)):
        doc.resolver.resolve(ref)
    for schema in schemas(doc.json):
        jsonschema.Draft202012Validator.check_schema(schema)
    ids = [o["operationId"] for path in doc.paths for o in doc.methods(path).values() if "operationId" in o]
    assert len(ids) == len(set(ids))
    for path in doc.paths:
        for method, o in doc.methods(path).items():
            given = [doc.at(p) for p in doc.paths[path].get("parameters", []) + o.get("parameters", [])]
            assert {p["name"] for p in given if p["in"] == "path"} == set(re.findall(r"\{(\w+)\}", path)), path
            assert any(s.startswith("2") for s in o["responses"]), (method, path)
            assert all("description" in doc.at(r) for r in o["responses"].values()), (method, path)


# ---- what is routed -----------------------------------------------------------------------------------------------

@pytest.fixture
def ports(start, tmp_path):
    """Each kind of port, with nothing switched off: port, headers."""
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps(KEYS))
    engine = start(Mock)
    s = start(Serve, [engine], "--api-key-file", keys, "--serve-indexer")
    ix = start(Indexer, "--test-endpoints", "--accept-events")
    p = start(Publish, engine)
    wait_for("publish", lambda: call(p.port, "GET", "/ready").status == 200)
    key = {"Authorization": f"Bearer {KEYS['keys'][0]['key']}"}
    return {"data": (s.port, key), "admin": (s.admin, {}), "select": (start(Select).port, {}), "indexer": (ix.port, {}), "publish": (p.port, {})}


@pytest.mark.parametrize("kind", ["data", "admin", "select", "indexer", "publish"])
def test_each_port_serves_its_document_and_routes_what_that_says(ports, kind):
    port, headers = ports[kind]
    served = call(port, "GET", "/openapi.json")
    assert served.status == 200 and served.headers["content-type"] == "application/json"
    doc = Document(served.body)
    assert doc.json == document_of(kind).json
    for path in doc.paths:
        at = path.replace("{id}", "7").replace("{name}", "style.css")
        for method in METHODS:
            body = {} if method in ("post", "put", "patch") else None
            verb = "HEAD" if (method, path) == ("get", "/status/stream") else method.upper()  # GET goes on
            r = call(port, verb, at, body, headers)
            if method in doc.paths[path]:
                assert r.status != 405 and b"unknown path" not in r.body and b"no such route" not in r.body, (method, path, r.status, r.body)
                continue
            assert r.status == 405, (method, path, r.status, r.body)
            allowed = {m.strip().lower() for m in r.headers["allow"].split(",")}
            assert allowed - {"head"} == set(doc.methods(path)) and ("head" in allowed) == ("get" in allowed), (method, path, r.headers)
        if "get" in doc.paths[path]:
            r = call(port, "HEAD", at, None, headers)
            assert r.status not in (405, 501) and not r.body
    for path in ("/none", "/openapi.yaml", "/workers/x", "/workers/7/x", "/reservations/7/x", "/reservations/", "/v1/videos/7/x"):
        assert call(port, "POST" if "/7/" in path else "GET", path, {} if "/7/" in path else None, headers).status in (404, 405), path


def test_the_document_needs_no_key_but_a_known_host(start, tmp_path):
    (tmp_path / "key").write_text("secret\n")
    (tmp_path / "keys.json").write_text(json.dumps(KEYS))
    s = start(Serve, [], "--admin-key-file", tmp_path / "key", "--api-key-file", tmp_path / "keys.json", ready=False)
    ix = start(Indexer, "--api-key-file", tmp_path / "key")
    for port in (s.port, s.admin, ix.port):
        assert call(port, "GET", "/openapi.json").status == 200
        assert call(port, "POST", "/openapi.json", {}).status in (401, 405)
    for port in (s.admin, ix.port):
        assert call(port, "GET", "/openapi.json", headers={"Host": "evil.example"}).status == 403
        assert call(port, "GET", "/metrics").status == 401


# ---- what is answered ---------------------------------------------------------------------------------------------

def promised(kind):
    doc = document_of(kind)
    return {(path, m, int(s)) for path in doc.paths for m, o in doc.methods(path).items() for s in o["responses"] if s != "default"}


def unseen(kind, but):
    """Answers of 2xx that the document promises and that no call of this process has got: all that come are judged by call()."""
    seen = {(path, m, s) for k, path, m, s in SEEN if k == kind}
    return {x for x in promised(kind) if x[2] < 300} - seen - but


def prompt(n=48):
    return list(range(1, n + 1))


def hashes(n=48):
    return {"block_hashes": local_hashes(prompt(n), 16), "isl_tokens": n}


def selection(port, worker):
    """The routes that admin and select have in common, each with an answer of 2xx and its first mistakes."""
    def ask(path, body, *statuses, method="POST", headers=None):
        r = call(port, method, path, body, headers)
        assert r.status in statuses, (method, path, r.status, r.body)
        return r.json()
    ask("/workers", {"worker_id": worker, "endpoint": f"http://127.0.0.{worker}:9", "block_size": 16, "taints": ["a"], "role": "both"}, 201)
    assert all(call(port, m, path).status == 200 for m, path in (("GET", "/page/style.css"), ("GET", "/history"), ("GET", "/options"), ("HEAD", "/status/stream")))
    q = {"token_ids": prompt()}
    for path in ("/potential_loads", "/overlap_scores", "/query", "/select"):
        ask(path, q, 200)
        ask(path, {"token_ids": "x"}, 400)
        ask(path, {**q, "routing_group": "none", "unknown": 1}, 404)
        ask(path, q, 415, headers={"Content-Type": "text/plain"})
    ask("/query_by_hash", hashes(), 200)
    ask("/select", {**q, "selection_id": "s1"}, 200)
    ask("/reservations", {"selection_id": "s1"}, 201)
    ask("/reservations", {"selection_id": "s1"}, 404)
    ask("/select_and_reserve", {**q, "selection_id": "s1"}, 409)
    ask("/select_and_reserve", {**q, "selection_id": "s2"}, 200)
    ask("/select_and_reserve", {**q, "selection_id": "s3", "legs": 2}, 200)
    ask("/select_pair", q, 200)
    ask("/reservations", {**hashes(), "selection_id": "s4", "worker_id": worker, "effective_prefill_tokens": 16}, 201)
    for verb in ("prefill_complete", "output_block", "renew"):
        ask(f"/reservations/s2/{verb}", None, 200)
        ask(f"/reservations/none/{verb}", None, 404)
    ask("/reservations/s2/output_block", {"decay_fraction": 0.5}, 200)
    ask("/reservations/s2/output_block", {"decay_fraction": 2}, 400)
    for i in ("s1", "s2", "s3", "s4"):
        ask(f"/reservations/{i}", None, 200, method="DELETE")
    ask("/request", {"method": "new", **q}, 200)
    for method in ("new", "mark_prefill", "mark_free", "potential_loads"):
        ask("/request", {"method": method, "request_id": "r", **q}, 200)
    ask("/request", {"method": "none"}, 400)
    slot = {"model_name": "slots", "request_id": "r"}
    ask("/register", {"worker_id": 77, "model_name": "slots", "block_size": 16, "dp_size": 1}, 201)
    ask("/register", {"worker_id": 77, "model_name": "slots", "block_size": 32, "dp_size": 1}, 409)
    ask("/add", {**slot, "worker_id": 77, "sequence_hashes": [1, -1], "new_isl_tokens": 32}, 201)
    ask("/prefill_complete", slot, 200)
    ask("/free", slot, 200)
    ask("/unregister", {"worker_id": 77, "model_name": "slots"}, 200)
    ask("/busy_threshold", {"active_prefill_tokens_threshold": 1e6}, 200)
    ask("/busy_threshold", {"none": 1}, 400)
    ask("/router_mode", {"router_mode": "kv"}, 200)
    ask("/replica_sync/register_peer", {"endpoint": "tcp://127.0.0.1:9"}, 201)
    ask("/replica_sync/deregister_peer", {"endpoint": "tcp://127.0.0.1:9"}, 200)
    ask(f"/workers/{worker}", {"taints": []}, 200, method="PATCH")
    ask(f"/workers/{worker}", {"state": "draining"}, 200, method="PATCH")
    ask(f"/workers/{worker}", {"nothing": 1}, 400, method="PATCH")
    ask("/debug/validate", None, 200)
    ask("/reload", None, 200)
    for path in ("/health", "/ready", "/status", "/decisions", "/tokenizers", "/workers?model_name=m", "/loads", "/dump", "/busy_threshold", "/replica_sync/peers"):
        ask(path, None, 200, 503, method="GET")
    for path in ("/", "/metrics", "/openapi.json"):
        assert call(port, "GET", path).status == 200
    ask(f"/workers/{worker}", None, 200, method="DELETE")
    ask(f"/workers/{worker}", None, 404, method="DELETE")


OF_SERVE = {("/adapters/load", "post", 200), ("/adapters/unload", "post", 200), ("/api_keys", "get", 200), ("/api_keys/reload", "post", 200),
            ("/models_config", "get", 200), ("/models_config", "put", 200), ("/kv_indexer_query", "post", 200), ("/kv_indexer_info", "get", 200),
            ("/kv_indexer_info", "post", 200), ("/kv_indexer_record_routing_decision", "post", 200)}


def test_select_answers_as_documented(start):
    s = start(Select, "--replica-sync-port", str(free_ports()))
    selection(s.port, 1)
    assert not unseen("select", OF_SERVE | {("/ready", "get", 200)})


def test_the_admin_port_answers_as_documented(start, tmp_path):
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({**KEYS, "anonymous": {}}))
    m = start(Mock, "--model", "m", "--runtime-lora", "--block-size", "16", with_events=False)
    s = start(Serve, [m], "--api-key-file", keys, "--serve-indexer", "--no-kv-events", "--replica-sync-port", str(free_ports()))
    r = s.complete(prompt(), headers={"x-request-id": "mine"})
    assert r.status == 200, r.body
    wait_for("the decision", lambda: call(s.admin, "GET", "/decisions?id=mine").status == 200)  # noted when the request is over
    one = call(s.admin, "GET", "/decisions?id=mine").json()
    assert one["request_id"] == "mine" and one["candidates"]
    assert call(s.admin, "GET", "/decisions?id=none").status == 404
    tune = {"model_name": "m", "lora_name": "t"}
    assert call(s.admin, "POST", "/adapters/load", {**tune, "lora_path": "/a/t"}).status == 200
    assert call(s.admin, "POST", "/adapters/load", {**tune, "lora_path": "/a/t"}).status == 502
    assert call(s.admin, "POST", "/adapters/unload", tune).status == 200
    assert call(s.admin, "GET", "/api_keys").json()["keys"][0]["name"] == "one"
    assert call(s.admin, "POST", "/api_keys/reload").status == 200
    names = {"models": {"chat": {"alias_of": "m"}, "most": {"targets": [{"model": "m", "weight": 2}], "fallback": ["m"]}}}
    assert call(s.admin, "PUT", "/models_config", names).status == 200
    assert call(s.admin, "PUT", "/models_config", names, {"If-Match": '"x"'}).status == 412
    assert call(s.admin, "PUT", "/models_config", {"models": {"chat": {"none": 1}}}).status == 422
    assert call(s.admin, "GET", "/models_config").json()["source"] == "api"
    block = {"model_name": "m", "block_hashes": local_hashes(prompt(), 16)}
    wait_for("the index", lambda: call(s.admin, "POST", "/kv_indexer_query", block).status == 200)
    assert call(s.admin, "POST", "/kv_indexer_query", {"model_name": "m"}).status == 400
    record = {"model_name": "m", "worker": {"worker_id": 1, "dp_rank": 0}, "local_hashes": [1, 2], "sequence_hashes": [3, 4]}
    assert call(s.admin, "POST", "/kv_indexer_record_routing_decision", record).status == 200
    assert call(s.admin, "POST", "/kv_indexer_info", {}).json() == call(s.admin, "GET", "/kv_indexer_info").json()
    selection(s.admin, 2)
    assert not unseen("admin", set())


def test_the_data_port_answers_as_documented(start, tmp_path):
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps(KEYS))
    m = start(Mock, "--model", "m", "--enable-scale-out", "--block-size", "16")
    s = start(Serve, [m], "--api-key-file", keys, "--max-body-size", "4KiB")
    key = {"Authorization": f"Bearer {KEYS['keys'][0]['key']}"}
    chat = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
    for path, body in (("/v1/completions", {"prompt": "hello", "max_tokens": 2}), ("/v1/chat/completions", chat), ("/v1/messages", chat),
                       ("/v1/responses", {"input": "hello"}), ("/tokenize", {"prompt": "hello"}), ("/v1/completions/render", {"prompt": "hello"})):
        assert call(s.port, "POST", path, body, key).status == 200, path
        for said, headers, status in ((body, {}, 401), ({**body, "model": "none"}, key, 404), (b"{}" + b" " * 5000, key, 413), (b"{", key, 400),
                                      ({**body, "n": 1}, {**key, "x-kvroute-worker": "9"}, 404), (body, {**key, "x-kvroute-worker": "x"}, 400)):
            r = call(s.port, "POST", path, said, headers)
            assert r.status == status or said == b"{", (path, r.status, r.body)
            if "x-kvroute-worker" not in r.headers:
                document_of("data").schema_check({"$ref": "#/components/schemas/Error"}, r.json())
    r = call(s.port, "POST", "/v1/completions", {"prompt": "hello", "stream": True}, {**key, "x-kvroute-explain": "1"})
    assert r.headers["content-type"].startswith("text/event-stream") and {h for h in r.headers if h.startswith("x-kvroute")} <= {
        h.lower() for h in document_of("data").json["components"]["responses"]["Routed"]["headers"]}
    assert call(s.port, "GET", "/v1/models", headers=key).json()["data"][0]["id"] == "m"
    assert call(s.port, "GET", "/v1/models/m", headers=key).status == 200
    assert call(s.port, "GET", "/v1/models/none", headers=key).status == 404
    for path in ("/health", "/ready", "/openapi.json"):
        assert call(s.port, "GET", path).status == 200
    of_engines = {x for x in promised("data") if x[0] not in ("/v1/models", "/v1/models/{id}", "/health", "/ready", "/openapi.json")}
    assert not unseen("data", of_engines)


def test_publish_answers_as_documented(start, engine):
    e = engine()
    p = start(Publish, e, "--buffer-events", "4", block_size=4)
    e.heard_by(1)
    for i in range(8):
        e.stored([i + 1], [i * 4 + k for k in range(4)], i or None)
    e.until("the events", lambda: p.status()["newest_id"] >= 8)
    for query, member in (("start=7&end=8", "Events"), ("start=7&shape=old", "Events"), ("", "TreeDump"), ("start=1", "TreeDump"), ("start=99", "TooNew"),
                          ("start=9&end=3", "InvalidRange")):
        r = call(p.port, "GET", f"/kv_recover?{query}")
        assert r.status == 200 and list(r.json()) == [member], (query, r.body)
    for query, status in (("start=x", 400), ("dp_rank=9", 404), ("worker_id=9", 404)):
        assert call(p.port, "GET", f"/kv_recover?{query}").status == status
    for path, status in (("/dump", 200), ("/status", 200), ("/load", 404), ("/health", 200), ("/metrics", 200), ("/openapi.json", 200)):
        assert call(p.port, "GET", path).status == status
    assert call(p.port, "GET", "/status", headers={"Host": "evil.example"}).status == 403
    wait_for("ready", lambda: call(p.port, "GET", "/ready").status == 200)
    assert not unseen("publish", {("/load", "get", 200)})
