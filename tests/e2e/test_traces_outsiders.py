# SPDX-License-Identifier: Apache-2.0
"""Spans as others read them: a real OpenTelemetry Collector, and OpenTelemetry's protobuf classes. scripts/otel.sh fetches both."""
import json
import os
import re
import subprocess
import tempfile

import pytest

from conftest import Mock, Serve, call, free_ports, read_log, wait_for
from prom_parts import ROOT
from test_proxy import upstream  # noqa: F401 (fixture)
from test_traces import OK, PARENT, TRACE, Collector

HERE = os.path.join(ROOT, "build/outsiders")
KINDS = {"Server": 2, "Client": 3, "Internal": 1}


def tool(name):
    path = os.path.join(HERE, name)
    if not os.path.exists(path):
        pytest.skip(f"NO {name}: spans are NOT read by others; scripts/otel.sh fetches it")
    return path


class Otelcol:
    """The Collector; what it has understood is printed, and read here."""

    def __init__(self):
        self.port, self.log = free_ports(), tempfile.TemporaryFile("w+")
        config = f"""
receivers: {{otlp: {{protocols: {{http: {{endpoint: "127.0.0.1:{self.port}"}}}}}}}}
exporters: {{debug: {{verbosity: detailed, use_internal_logger: false}}}}
service: {{pipelines: {{traces: {{receivers: [otlp], exporters: [debug]}}}}, telemetry: {{metrics: {{level: none}}}}}}
"""
        self.p = subprocess.Popen([tool("otelcol"), "--config", f"yaml:{config}"], stdout=self.log, stderr=subprocess.STDOUT)
        try:
            wait_for("the Collector", self.is_up, 60)
        except AssertionError:
            self.stop()
            raise

    def is_up(self):
        assert self.p.poll() is None, read_log(self.log)
        return "Everything is ready" in read_log(self.log)

    def spans(self):
        """[{name, trace, id, parent, kind, failed, attributes, events}]"""
        out = []
        for block in re.split(r"^Span #\d+$", read_log(self.log), flags=re.M)[1:]:
            told = dict(re.findall(r"^ {4}(.+?) +: ?(.*)$", block, re.M))
            values = {k: int(v) if kind == "Int" else v for k, kind, v in re.findall(r"^     -> (\S+): (\w+)\((.*)\)$", block, re.M)}
            out.append({"name": told["Name"], "trace": told["Trace ID"], "id": told["ID"], "parent": told["Parent ID"], "kind": KINDS[told["Kind"]],
                        "failed": told["Status code"] == "Error", "attributes": values, "events": re.findall(r"^ +-> Name: (.*)$", block, re.M)})
        return out

    def stop(self):
        self.p.terminate()
        try:
            self.p.wait(20)
        except subprocess.TimeoutExpired:
            self.p.kill()
            self.p.wait()
        self.log.close()


def ask_all(s):
    """A stream of a client's trace, a plain answer, a model that nobody serves, a body that is none, a path with odd bytes."""
    parent = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    assert s.complete("a prompt of some blocks, " * 9, model="m", stream=True, stream_options={"include_usage": True}, headers=parent).status == 200
    assert s.complete("a prompt of some blocks, " * 9, model="m").status == 200
    assert s.complete("x", model='nobody "quoted" \u00fc').status == 404
    assert call(s.port, "POST", "/v1/completions", b"{").status == 400
    call(s.port, "POST", "/v1/responses/%ff\"x", {"model": "m"})
    s.complete("fails", model="bad")


@pytest.fixture
def fleet(start, upstream):  # noqa: F811
    bad = upstream(b"HTTP/1.1 503 Bad\r\nContent-Length: 0\r\n\r\n")
    return lambda url: start(Serve, [start(Mock, "--model", "m").spec(",model=m"), bad.spec() + ",model=bad"], "--otlp-endpoint", url, "--trace-sample", 1,
                             "--max-retries", 1, "--queue-timeout", 1)


def test_a_collector_understands_every_span(fleet):
    collector = Otelcol()
    try:
        s = fleet(f"http://127.0.0.1:{collector.port}")
        ask_all(s)
        wait_for("all are taken", lambda: s.metric("trace_spans_queued") == 0 and s.metric("trace_spans_exported_total") > 0, 30)
        taken = s.metric("trace_spans_exported_total")
        s.stop()
        spans = wait_for("its print", lambda: len(collector.spans()) == taken and collector.spans(), 20)
        assert s.p.returncode == 0 and "rejected" not in read_log(collector.log)
    finally:
        collector.stop()
    judge(spans)


def test_opentelemetrys_classes_read_every_export(fleet):
    python, c = tool("python/bin/python"), Collector()
    try:
        s = fleet(c.url)
        ask_all(s)
        s.stop()
    finally:
        c.close()
    assert not c.errors and c.raw
    p = subprocess.run([python, os.path.join(ROOT, "tests/outsiders/read_otlp.py")], input="\n".join(b.decode() for b in c.raw), capture_output=True, text=True, timeout=120)
    assert p.returncode == 0, p.stderr[-2000:]
    rows = json.loads(p.stdout)
    assert len(rows) == len(c.spans)
    for (name, trace, id_, parent, kind, begin, end, status, values, events), ours in zip(rows, c.spans):
        assert (name, trace, id_, parent or None, kind, begin, end, status == 2) == tuple(ours[k] for k in ("name", "trace", "id", "parent", "kind", "begin", "end", "failed"))
        assert events == ours["events"] and all(ours[k] == v for k, v in values.items())
    judge([{"name": r[0], "trace": r[1], "id": r[2], "parent": r[3], "kind": r[4], "failed": r[7] == 2, "attributes": r[8], "events": r[9]} for r in rows])


def judge(spans):
    """What they have understood is what was asked."""
    ids = {sp["id"] for sp in spans}
    roots = [sp for sp in spans if sp["kind"] == 2]
    assert len(ids) == len(spans) and all(sp["parent"] in ids for sp in spans if sp["kind"] != 2)
    assert len(roots) == 6 and {r["attributes"]["http.response.status_code"] for r in roots} >= {200, 400, 404}
    (ours,) = [r for r in roots if r["trace"] == TRACE]
    assert ours["parent"] == PARENT and ours["attributes"]["gen_ai.usage.input_tokens"] == 225 and ours["attributes"]["kvroute.ending"] == "ok"
    attempts = [sp for sp in spans if sp["name"] == "kvroute.attempt" and sp["parent"] == ours["id"]]
    assert [a["events"] for a in attempts] == [["first_token"]] and attempts[0]["attributes"]["server.address"] == "127.0.0.1" and attempts[0]["kind"] == 3
    assert any(sp["failed"] and sp["name"] == "kvroute.attempt" for sp in spans)
    assert {r["attributes"].get("gen_ai.request.model") for r in roots} >= {"m", 'nobody "quoted" \u00fc'}
