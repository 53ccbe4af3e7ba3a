# SPDX-License-Identifier: Apache-2.0
"""Every program's /metrics is what a strict reader of Prometheus' text format accepts, and leaves no rank out."""
import math
import re

import pytest

from conftest import Indexer, Mock, Publish, Select, Serve, call, free_ports, wait_for

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\n"])*)"'
TYPES = ("counter", "gauge", "histogram")


def unescaped(value):
    return re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], value)


def number(text):
    assert re.fullmatch(r"[+-]?(\d+(\.\d+)?([eE][+-]?\d+)?|Inf)|NaN", text), text
    return float(text)


def labels_of(text):
    """The pairs between the braces, every byte of which is read."""
    assert text is None or re.fullmatch(f"{LABEL}(,{LABEL})*", text), text
    pairs = [(k, unescaped(v)) for k, v in re.findall(LABEL, text or "")]
    assert len(dict(pairs)) == len(pairs), text
    return tuple(sorted(pairs))


def check_histogram(name, samples):
    """Of every series: buckets rise with `le`, their counts too, the last is +Inf and is the count."""
    kinds = {}
    for (sample, labels), v in samples.items():
        le = dict(labels).get("le")
        assert (le is not None) == sample.endswith("_bucket"), sample
        key = tuple(p for p in labels if p[0] != "le")
        one = kinds.setdefault(key, {"buckets": []})
        if le is not None:
            one["buckets"].append((number(le), v))
        else:
            one[sample.removeprefix(name)] = v
    for key, one in kinds.items():
        ends, counts = zip(*one["buckets"])
        assert list(ends) == sorted(set(ends)) and list(counts) == sorted(counts), (name, key)
        assert ends[-1] == math.inf and counts[-1] == one["_count"] and "_sum" in one, (name, key)
        assert one["_sum"] >= 0 and (one["_count"] > 0) >= (one["_sum"] > 0), (name, key)


def families(data):
    """{family: (type, {(sample, labels): value})}, or it is not what the format allows, or not how we want it."""
    text = data.decode("utf-8")
    assert text.endswith("\n") and "\r" not in text
    out, name, head = {}, None, None
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            m = re.fullmatch(rf"# HELP ({NAME}) (\S(?:[^\\]|\\[\\n])*)", line)
            assert m and head is None, line
            assert m[1] not in out, f"{m[1]} begins twice"
            name, head = m[1], "help"
            continue
        if line.startswith("#"):
            m = re.fullmatch(rf"# TYPE ({NAME}) ({'|'.join(TYPES)})", line)
            assert m and m[1] == name and head == "help", line
            out[name], head = (m[2], {}), None
            continue
        m = re.fullmatch(rf"({NAME})(?:\{{(.*)\}})? (\S+)", line)
        assert m and name in out and head is None, line
        kind, samples = out[name]
        allowed = [name + e for e in ("_bucket", "_sum", "_count")] if kind == "histogram" else [name]
        assert m[1] in allowed, f"{line} among the samples of {name}"
        key = (m[1], labels_of(m[2]))
        assert key not in samples, f"twice: {line}"
        samples[key] = number(m[3])
        assert kind == "gauge" or samples[key] >= 0, line
    assert head is None
    for name, (kind, samples) in out.items():
        if kind == "histogram":
            check_histogram(name, samples)
    return out


def scrape(p, port=None):
    r = call(port or getattr(p, "admin", p.port), "GET", "/metrics")
    assert r.status == 200 and r.headers["content-type"] == "text/plain; version=0.0.4", r
    return families(r.body)


@pytest.mark.parametrize("text", [
    b"a 1\n", b"# HELP a b\n# TYPE a gauge\na 1", b"# HELP a b\n# TYPE a gauge\na 1\na 1\n", b"# TYPE a gauge\na 1\n",
    b"# HELP a b\n# TYPE a gauge\nb 1\n", b'# HELP a b\n# TYPE a gauge\na{b="c\\d"} 1\n', b'# HELP a b\n# TYPE a gauge\na{b="c",b="c"} 1\n',
    b"# HELP a b\n# TYPE a gauge\na 1\n# HELP c d\n# TYPE c gauge\n# HELP a b\n# TYPE a gauge\n", b"# HELP a b\n# TYPE a counter\na -1\n",
    b'# HELP a b\n# TYPE a histogram\na_bucket{le="1"} 2\na_bucket{le="+Inf"} 1\na_sum 1\na_count 1\n',
    b'# HELP a b\n# TYPE a histogram\na_bucket{le="+Inf"} 2\na_sum 1\na_count 1\n'])
def test_the_reader_of_these_tests_is_strict(text):
    with pytest.raises((AssertionError, ValueError)):
        families(text)


def pools_of(page):
    return {tuple(dict(labels)[k] for k in ("model", "block_size", "routing_group")) for _, labels in page["kvroute_index_blocks"][1]}


KINDS = [('a"\\', 16, "default"), ("b", 16, "default"), ("b", 32, "default"), ("b", 16, "g")]  # model, block size, group


def test_names_of_models_are_escaped(start):
    mocks = [start(Mock, "--model", model, "--block-size", size, dp=2) for model, size, _ in KINDS]
    s = start(Serve, mocks)
    wait_for("models", lambda: {m["id"] for m in call(s.port, "GET", "/v1/models").json()["data"]} == {m for m, _, _ in KINDS})
    for model in {m for m, _, _ in KINDS}:
        for _ in range(3):
            assert s.complete(list(range(100)), model=model).status == 200
    got = scrape(s)
    assert pools_of(got) == {("", "16", "default"), ("", "32", "default")}
    assert {dict(labels)["model"] for _, labels in got["kvroute_requests_total"][1]} == {m for m, _, _ in KINDS}
    for m, (model, _, _) in zip(mocks, KINDS):
        samples = scrape(m)["kvroute_mock_cached_blocks"][1]
        assert {dict(labels)["model_name"] for _, labels in samples} == {model} and len(samples) == 2


def test_partitions_that_share_a_block_size_have_no_series_twice(start):
    s = start(Select)
    kinds = [*KINDS[:2], ("c", 32, "default"), *KINDS[3:]]
    for i, (model, size, group) in enumerate(kinds, 1):
        s.worker(i, model_name=model, block_size=size, routing_group=group)
    assert pools_of(scrape(s)) == {(model, str(size), group) for model, size, group in kinds}


def test_the_pages_of_the_other_programs(start, engine, tmp_path):
    e = engine()
    e.stored([1, 2], list(range(8)))
    ix = start(Indexer, "--record-events", tmp_path / "events", "--data-dir", tmp_path)
    ix.register(1, e)
    ix.register(2, e, model="other", block_size=4)
    e.until("taken", lambda: ix.scores(list(range(8))))
    assert "dynamo_kvindexer_request_duration_seconds" in scrape(ix)
    m = start(Mock, dp=2)
    p = start(Publish, m, "--engine-metrics", f"http://127.0.0.1:{m.port}/metrics", "--engine-metrics-interval", 0.05, dp=2)
    wait_for("a load", lambda: scrape(p)["kvroute_publish_engine_kv_usage"][1])
    select = start(Select, "--data-dir", tmp_path / "select")
    select.worker(1, model_name="m")
    select.worker(2, model_name="n")
    assert "kvroute_worker_registered" in scrape(select)


def test_routers_that_share_have_pages_too(start):
    m, sync = start(Mock), free_ports(2)
    own = start(Serve, [m], "--serve-indexer", "--router-replica-sync", "--replica-sync-port", sync, "--replica-sync-peers", f"tcp://127.0.0.1:{sync + 1}")
    asks = start(Serve, [m], "--use-remote-indexer", f"http://127.0.0.1:{own.admin}")
    assert asks.complete(list(range(64))).status == 200
    assert "kvroute_served_index_ready" in scrape(own) and "kvroute_replica_sync_events_received_total" in scrape(own)
    assert "kvroute_remote_indexer_up" in scrape(asks) and "kvroute_router_overhead_remote_index_ms" in scrape(asks)


def test_ranks_beyond_4096_are_on_the_page(start):
    s = start(Select, "--no-router-kv-events")
    workers, ranks = 65, 64
    for i in range(1, workers + 1):
        s.worker(i, data_parallel_size=ranks)
    got = scrape(s)
    assert len(got["kvroute_worker_registered"][1]) == workers * ranks
    for name in ("prefill_tokens", "decode_blocks", "requests"):
        assert len(got[f"kvroute_worker_active_{name}"][1]) == workers * ranks, name
