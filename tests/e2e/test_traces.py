# SPDX-License-Identifier: Apache-2.0
"""Traces: the spans of a request, how a trace goes on from the client to the worker, and a collector that misbehaves.

The collector here reads OTLP's JSON strictly, by the names and types of opentelemetry/proto/trace/v1/trace.proto as ProtoJSON has them."""
import json
import re
import socket
import threading
import time

import pytest

from conftest import SLOW, Mock, Serve, call, read_sse, wait_for
from http_parts import Handler, HttpServer
from test_proxy import upstream  # noqa: F401 (fixture)

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
HEX16, HEX32 = re.compile("(?!0{16})[0-9a-f]{16}"), re.compile("(?!0{32})[0-9a-f]{32}")


def members(o, needed, may=()):
    assert isinstance(o, dict) and set(needed) <= set(o) <= set(needed) | set(may), o
    return o


def int64(v):
    assert isinstance(v, str) and re.fullmatch("-?[0-9]+", v) and -2**63 <= int(v) < 2**64, v
    return int(v)


def value(v):
    (kind, x), = members(v, (), ("stringValue", "intValue", "doubleValue", "boolValue")).items()
    if kind == "intValue":
        return int64(x)
    assert type(x) in {"stringValue": (str,), "doubleValue": (float, int), "boolValue": (bool,)}[kind], v
    return x


def attributes(list_):
    pairs = [(members(a, ("key", "value"))["key"], value(a["value"])) for a in list_]
    assert len({k for k, _ in pairs}) == len(pairs), pairs
    return dict(pairs)


def read_span(s):
    members(s, ("traceId", "spanId", "flags", "name", "kind", "startTimeUnixNano", "endTimeUnixNano", "attributes"), ("parentSpanId", "events", "status"))
    assert HEX32.fullmatch(s["traceId"]) and HEX16.fullmatch(s["spanId"]) and HEX16.fullmatch(s.get("parentSpanId", "1" * 16)), s
    assert s["kind"] in (1, 2, 3) and isinstance(s["flags"], int) and s["name"], s
    begin, end = int64(s["startTimeUnixNano"]), int64(s["endTimeUnixNano"])
    assert abs(begin / 1e9 - time.time()) < 600 and begin <= end, s
    for e in s.get("events", []):
        assert begin <= int64(members(e, ("timeUnixNano", "name"))["timeUnixNano"]) <= end, s
    if "status" in s:
        assert members(s["status"], ("code",), ("message",))["code"] == 2
    return {"trace": s["traceId"], "id": s["spanId"], "parent": s.get("parentSpanId"), "name": s["name"], "kind": s["kind"], "begin": begin, "end": end,
            "events": [e["name"] for e in s.get("events", [])], "failed": "status" in s, **attributes(s["attributes"])}


def read_export(body):
    (resource,) = members(body, ("resourceSpans",))["resourceSpans"]
    (scope,) = members(resource, ("resource", "scopeSpans"))["scopeSpans"]
    told = attributes(members(resource["resource"], ("attributes",))["attributes"])
    assert members(members(scope, ("scope", "spans"))["scope"], ("name", "version"))["name"] == "kvroute"
    return told, [read_span(s) for s in scope["spans"]]


class Collector(HttpServer):
    """script(n): what it answers to the n-th export: a status, (status, headers, body), or an Event that it waits for first."""

    def __init__(self, script=lambda n: 200):
        self.spans, self.resources, self.exports, self.go, self.times, self.errors, self.raw = [], [], 0, threading.Event(), [], [], []
        me, lock = self, threading.Lock()

        class Answers(Handler):
            def do_POST(self):
                body = self.body()
                try:
                    assert self.path == "/v1/traces" and self.headers["Content-Type"] == "application/json"
                    told, spans = read_export(json.loads(body))
                except (AssertionError, ValueError, KeyError) as e:
                    me.errors.append(repr(e))
                    raise
                with lock:
                    n, me.exports = me.exports, me.exports + 1
                    me.times.append(time.monotonic())
                answer = script(n)
                if answer == "never":
                    me.go.wait(60)
                    self.close_connection = True
                    return
                status, headers, text = answer if isinstance(answer, tuple) else (answer, {}, b"{}")
                if status == 200:
                    me.resources.append(told)
                    me.raw.append(body)
                    me.spans += spans
                self.answer(status, text, headers=headers)
        super().__init__(Answers)

    def options(self, sample=1):
        return ["--otlp-endpoint", self.url, "--trace-sample", sample]

    def close(self):
        self.go.set()
        super().close()


@pytest.fixture
def collector():
    made = []

    def make(*a):
        made.append(Collector(*a))
        return made[-1]
    yield make
    for c in made:
        c.close()
        assert not c.errors, c.errors


def tree(spans):
    """The root and its children by name. Every span but the root hangs on it, and lies within it."""
    ids = {s["id"] for s in spans}
    assert len(ids) == len(spans) and len({s["trace"] for s in spans}) == 1
    (root,) = [s for s in spans if s["parent"] not in ids]
    children = [s for s in spans if s is not root]
    assert root["kind"] == 2 and all(s["parent"] == root["id"] and root["begin"] <= s["begin"] <= s["end"] <= root["end"] for s in children), spans
    return root, {n: [s for s in children if s["name"] == n] for n in {s["name"] for s in children}}


def parent_told(head):
    """What a worker got: (version, trace, parent, flags)."""
    found = re.findall(rb"(?im)^traceparent: *(.*?)\r?$", head)
    assert len(found) == 1, head
    return found[0].decode().split("-")


def test_a_trace_that_begins_here_has_a_span_for_every_step(start, collector):
    c = collector()
    s = start(Serve, [start(Mock)], *c.options(), env={"OTEL_SERVICE_NAME": "front"})
    conn, r = read_sse(s.port, {"prompt": "a few words", "max_tokens": 5, "stream": True, "stream_options": {"include_usage": True}}, {"x-request-id": "mine"})
    r.read()
    conn.close()
    s.stop()  # what waits is sent at the end
    root, steps = tree(c.spans)
    assert c.resources[0]["service.name"] == "front" and root["parent"] is None and root["name"] == "POST /v1/completions" and not root["failed"]
    assert root["http.request.method"] == "POST" and root["url.path"] == "/v1/completions" and root["http.response.status_code"] == 200
    assert root["kvroute.request_id"] == "mine" and root["gen_ai.usage.input_tokens"] > 0 and root["gen_ai.usage.output_tokens"] == 5
    assert {"kvroute.read_body", "kvroute.tokenize", "kvroute.lookup", "kvroute.choose", "kvroute.relay", "kvroute.attempt"} == set(steps)
    (attempt,) = steps["kvroute.attempt"]
    assert attempt["kind"] == 3 and attempt["events"] == ["first_token"] and attempt["server.address"] == "127.0.0.1" and attempt["kvroute.worker_id"] == 1
    assert not any("a few words" in str(v) for sp in c.spans for v in sp.values())


@pytest.mark.parametrize("sample, flags, kept", [(1, "01", True), (0, "01", True), (1, "00", False), (0, "00", False)])
def test_a_clients_trace_goes_on_to_the_worker_and_its_flag_decides(start, upstream, collector, sample, flags, kept):  # noqa: F811
    c, u = collector(), upstream(OK)
    s = start(Serve, [u.spec()], *c.options(sample))
    state = "vendor=a1,other@x=2"
    assert s.complete("x", headers={"traceparent": f"00-{TRACE}-{PARENT}-{flags}", "tracestate": state}).status == 200
    s.stop()
    head = u.requests[-1][0]
    version, trace, parent, told = parent_told(head)
    assert (version, trace, told) == ("00", TRACE, flags) and b"tracestate: " + state.encode() in head.lower()
    if not kept:
        assert not c.spans and parent == PARENT
        return
    root, steps = tree(c.spans)
    assert root["trace"] == TRACE and root["parent"] == PARENT and [a["id"] for a in steps["kvroute.attempt"]] == [parent]


@pytest.mark.parametrize("bad", ["", "x", f"00-{TRACE.upper()}-{PARENT}-01", f"00-{'0' * 32}-{PARENT}-01", f"00-{TRACE}-{'0' * 16}-01", f"ff-{TRACE}-{PARENT}-01",
                                 f"00-{TRACE}-{PARENT}-01-more", f"00-{TRACE}-{PARENT}-0", f"00_{TRACE}-{PARENT}-01"])
def test_a_malformed_parent_begins_a_new_trace_without_its_state(start, upstream, collector, bad):  # noqa: F811
    c, u = collector(), upstream(OK)
    s = start(Serve, [u.spec()], *c.options())
    assert s.complete("x", headers={"traceparent": bad, "tracestate": "a=1"}).status == 200
    s.stop()
    _, trace, parent, flags = parent_told(u.requests[-1][0])
    root, steps = tree(c.spans)
    assert trace == root["trace"] != TRACE and root["parent"] is None and steps["kvroute.attempt"][0]["id"] == parent and flags == "01"
    assert b"tracestate" not in u.requests[-1][0].lower()


def test_without_a_collector_the_headers_pass_unchanged_and_the_log_has_the_trace(start, upstream, tmp_path):  # noqa: F811
    u = upstream(OK)
    s = start(Serve, [u.spec()], "--access-log", tmp_path / "log")
    for parent in (f"00-{TRACE}-{PARENT}-01", "anything"):
        s.complete("x", headers={"traceparent": parent, "tracestate": "?!"})
        head = u.requests[-1][0]
        assert b"traceparent: " + parent.encode() in head and b"tracestate: ?!" in head
    s.stop()
    lines = [json.loads(l) for l in (tmp_path / "log").read_text().splitlines()]
    assert [l.get("trace_id") for l in lines if l["path"] == "/v1/completions"] == [TRACE, None]


def test_the_log_and_the_trace_of_a_request_name_each_other(start, collector, tmp_path):
    c = collector()
    s = start(Serve, [start(Mock)], *c.options(), "--access-log", tmp_path / "log")
    answer = s.complete("x")
    s.stop()
    root, _ = tree(c.spans)
    (line,) = [l for l in map(json.loads, (tmp_path / "log").read_text().splitlines()) if l["path"] == "/v1/completions"]
    assert line["trace_id"] == root["trace"] and line["id"] == root["kvroute.request_id"] == answer.headers["x-request-id"]


def test_each_worker_that_was_asked_has_a_span_of_its_own(start, upstream, collector):  # noqa: F811
    c, bad, good = collector(), upstream(b"HTTP/1.1 503 Bad\r\nContent-Length: 0\r\n\r\n"), upstream(OK)
    s = start(Serve, [bad.spec(), good.spec()], *c.options(0), "--router-mode", "round-robin")
    while True:  # until the bad one was asked first
        assert s.complete("x", headers={"traceparent": f"00-{TRACE}-{PARENT}-00"}).status == 200
        if s.metric("retries_total"):
            break
    n, before = len(bad.requests), len(good.requests)
    while len(bad.requests) == n:
        assert s.complete("x", headers={"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": f"r{len(good.requests)}"}).status == 200
    s.stop()
    last = [sp for sp in c.spans if sp["name"] == "POST /v1/completions" and sp["kvroute.attempts"] == 2]
    assert len(last) == 1 and len(good.requests) > before
    first, second = sorted((sp for sp in c.spans if sp["parent"] == last[0]["id"] and sp["name"] == "kvroute.attempt"), key=lambda sp: sp["begin"])
    assert first["failed"] and first["http.response.status_code"] == 503 and first["kvroute.worker_id"] == 1
    assert not second["failed"] and second["http.request.resend_count"] == 1 and second["kvroute.worker_id"] == 2
    assert [parent_told(bad.requests[-1][0])[2], parent_told(good.requests[-1][0])[2]] == [first["id"], second["id"]]


def test_both_legs_are_spans_of_the_trace(pair, collector):
    c = collector()
    s, ps, ds = pair(*c.options())
    assert s.complete("x" * 100, model="m").status == 200
    s.stop()
    root, steps = tree(c.spans)
    legs = {a["kvroute.leg"]: a for a in steps["kvroute.attempt"]}
    heads = [h for leg in ps + ds for h in leg.heads if "traceparent" in h]
    assert set(legs) == {"prefill", "decode"} and legs["prefill"]["end"] <= legs["decode"]["end"]
    assert {h["traceparent"].split("-")[2] for h in heads} == {a["id"] for a in legs.values()} and root["gen_ai.usage.cache_read.input_tokens"] == 32


@pytest.mark.parametrize("status", [429, 503])
def test_a_collector_that_is_busy_is_asked_again_when_it_says(start, collector, status):
    c = collector(lambda n: (status, {"Retry-After": "1"}, b"") if n == 0 else 200)
    s = start(Serve, [start(Mock)], *c.options())
    s.complete("x")
    wait_for("taken", lambda: c.spans, 30)
    assert c.exports == 2 and c.times[1] - c.times[0] >= 0.95 and s.metric("trace_spans_dropped_total") == 0
    wait_for("counted", lambda: s.metric("trace_spans_exported_total") == len(c.spans))


def test_spans_that_a_collector_refuses_are_counted_and_not_sent_again(start, collector):
    c = collector(lambda n: 400 if n == 0 else (200, {}, b'{"partialSuccess":{"rejectedSpans":"3","errorMessage":"no"}}'))
    s = start(Serve, [start(Mock)], *c.options())
    s.complete("x")
    wait_for("refused", lambda: s.metric("trace_spans_dropped_total", reason="refused") > 0, 20)
    first = s.metric("trace_spans_dropped_total", reason="refused")
    s.complete("x")
    wait_for("a part is refused", lambda: s.metric("trace_spans_dropped_total", reason="refused") == first + 3, 20)
    assert c.exports == 2


@pytest.mark.parametrize("how", ["away", "never"])
def test_a_collector_that_is_away_or_silent_holds_up_no_request_and_no_exit(start, collector, how):
    c = collector(lambda n: "never")
    if how == "away":
        c.close()
    s = start(Serve, [start(Mock)], *c.options())
    for _ in range(200):
        assert s.complete("x").status == 200
    assert s.metric("requests_total") == 200
    t = time.monotonic()
    s.stop()
    assert time.monotonic() - t < 10 * SLOW and "spans=" in s.text() and "are lost at the end" in s.text()


def test_the_queue_of_spans_is_bounded(start, collector):
    c = collector(lambda n: "never")
    s = start(Serve, [], *c.options(), ready=False)
    question = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\ntraceparent: 00-{TRACE}-{PARENT}-01\r\nContent-Length: 1\r\n\r\n{{".encode()
    with socket.create_connection(("127.0.0.1", s.port), 60 * SLOW) as client:
        while not s.metric("trace_spans_dropped_total", reason="queue_full"):
            client.sendall(question * 200)
            seen = b""
            while seen.count(b"HTTP/1.1 400 ") < 200 or not seen.endswith(b"}"):
                seen += (piece := client.recv(1 << 20))
                assert piece, seen[-300:]
    assert 0 < s.metric("trace_spans_queued") <= 16384


@pytest.mark.parametrize("url", ["grpc://x:4317", "http://x:4318/v?tenant=1", "http://x:4318#a"])
def test_an_endpoint_that_is_none_is_said_at_the_start(start, url):
    s = start(Serve, [], "--otlp-endpoint", url, wait=False, expect=1)
    s.p.wait(20)
    assert "--otlp-endpoint" in s.text() and url in s.text() and "allowed" in s.text()
