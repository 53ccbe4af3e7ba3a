# SPDX-License-Identifier: Apache-2.0
"""More than one worker at a request, at an address, or in a picker: prefill workers, ranks, pools; and what a client may not say."""
import collections
import hashlib

import leg_parts
from conftest import Envoy, Mock, Picker, wait_for

PREFILLER = "x-prefiller-host-port"


def test_a_decode_worker_is_told_where_the_prefill_worker_is(gateway, legs, mode):
    p, d = legs(leg_parts.prefills), legs(leg_parts.decodes)
    envoy, picker = gateway(mode, [p.spec("prefill"), d.spec("decode")], listed=[p.port, d.port])
    wait_for("both", lambda: all(w["status"] == "up" for w in picker.get("/workers")))
    r = envoy.complete(list(range(64)), model="m", headers={"x-request-id": "two"})
    assert r.status == 200 and envoy.access("two")["upstream"] == f"127.0.0.1:{d.port}"
    told = {k.lower(): v for k, v in d.heads[-1].items()}
    assert told[PREFILLER] == f"127.0.0.1:{p.port}"
    wait_for("idle", picker.idle)


def test_what_a_client_says_of_places_never_reaches_a_worker(gateway, sink, mode):
    named, other = sink(), sink()
    envoy, picker = gateway(mode, [named])
    says = {PREFILLER: "10.0.0.1:1", "x-gateway-destination-endpoint": f"127.0.0.1:{other.port}", "x-gateway-destination-endpoint-subset": f"127.0.0.1:{other.port}",
            "x-gateway-destination-endpoint-served": "10.0.0.1:1", "x-data-parallel-host-port": "10.0.0.1:1", "x-encoder-hosts-ports": "10.0.0.1:1"}
    for path, body in (("/v1/completions", {"prompt": [1] * 20, "model": "m"}), ("/other", {"a": 1})):
        r = envoy.ask(body, says, path)
        assert r.status == 200, r.body
        got = r.json()["headers"]
        assert not {k: v for k, v in got.items() if k in says and v == says[k]}, got
    assert not [g for g in other.got if g["path"] != "/tokenize"]


def test_without_a_picker_a_client_still_cannot_name_the_destination(gateway, sink, start):
    """Failing open, among the workers that Envoy knows."""
    known, other = sink(), sink()
    envoy, picker = gateway("buffered", [known])
    picker.kill()
    for _ in range(4):
        assert envoy.complete([1] * 20, headers={"x-gateway-destination-endpoint": f"127.0.0.1:{other.port}"}, model="m").status == 200
    assert not other.got


def test_ports_of_one_pod_have_views_of_their_own(gateway, start, mode):
    """Data-parallel engines with a port each: each is an endpoint."""
    mocks = [start(Mock), start(Mock)]
    envoy, picker = gateway(mode, mocks)
    served = collections.Counter(envoy.complete([i] * 64).headers["x-kvroute-worker"] for i in range(12))
    assert set(served) == {"1", "2"}, served
    wait_for("views", lambda: [picker.view(w)["blocks"] for w in (1, 2)] == [m.metric("kvroute_mock_cached_blocks") for m in mocks])


def test_ranks_of_one_port_are_told_to_the_engine(gateway, sink, mode):
    worker = sink()
    envoy, picker = gateway(mode, [worker.spec(",dp-size=4")], "--no-router-kv-events", listed=[worker])
    ranks = set()
    for i in range(16):
        r = envoy.complete([i] * 64, model="m", headers={"x-data-parallel-rank": str(i % 4)} if i < 8 else {})
        assert r.status == 200 and r.json()["headers"]["x-data-parallel-rank"] == r.headers["x-kvroute-dp-rank"], r.body
        assert i >= 8 or r.headers["x-kvroute-dp-rank"] == str(i % 4)
        ranks.add(r.headers["x-kvroute-dp-rank"])
    assert len(ranks) == 4
    wait_for("idle", picker.idle)


def test_ranks_of_an_sglang_are_told_in_the_body_too(gateway, sink, mode):
    worker = sink()
    envoy, picker = gateway(mode, [worker.spec(",dp-size=4,engine=sglang")], "--no-router-kv-events", listed=[worker])
    raw = b'{ "prompt": [1, 2, 3], "model": "m" }'
    for i in range(4):
        r = envoy.ask(raw, {"x-data-parallel-rank": str(i), "content-type": "application/json"})
        told = raw[:-2] + b' ,"data_parallel_rank":%d,"routed_dp_rank":%d}' % (i, i)
        assert r.status == 200 and r.json()["headers"]["x-data-parallel-rank"] == str(i), r.body
        assert r.json()["sha256"] == hashlib.sha256(told).hexdigest(), (r.json(), told)
    wait_for("idle", picker.idle)


def pool_of_route(name, value):
    """An edit of Envoy's routes: requests of that path prefix are asked for that pool."""
    def edit(conf):
        routes = conf["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]["route_config"]["virtual_hosts"][0]["routes"]
        routes.insert(0, {"match": {"prefix": f"/{name}/"}, "route": {**routes[-1]["route"], "prefix_rewrite": "/"}, "typed_per_filter_config": {
            "envoy.filters.http.ext_proc": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute",
                "overrides": {"grpc_initial_metadata": [{"key": "x-kvroute-group", "value": value}]}}}})
    return edit


def test_pools_of_one_picker_are_never_mixed(gateway, start, mode):
    mocks = [start(Mock) for _ in range(4)]
    entries = [m.spec(f",group={'red' if i < 2 else 'blue'}") for i, m in enumerate(mocks)]
    edits = [pool_of_route("red", "red"), pool_of_route("blue", "blue"), pool_of_route("green", "green")]
    envoy, picker = gateway(mode, entries, listed=mocks, edits=edits)
    for i in range(60):
        for pool, workers in (("red", "12"), ("blue", "34")):
            r = envoy.ask({"prompt": [i % 5] * 64, "max_tokens": 1}, path=f"/{pool}/v1/completions")
            assert r.status == 200 and r.headers["x-kvroute-worker"] in workers, (pool, r.headers)
    assert envoy.ask({"prompt": [1] * 64}, path="/green/v1/completions").status == 404
    wait_for("idle", picker.idle)


def test_a_port_may_be_of_one_pool(start, mode):
    mocks = [start(Mock), start(Mock)]
    picker = start(Picker, [m.spec(f",group={g}") for m, g in zip(mocks, ("red", "blue"))], "--pool", "blue")
    envoy = start(Envoy, mode, [picker], mocks)
    assert {envoy.complete([i] * 64).headers["x-kvroute-worker"] for i in range(6)} == {"2"}
