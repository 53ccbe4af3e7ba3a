# SPDX-License-Identifier: Apache-2.0
"""A NATS server that keeps nothing, or not what it should: who needs it says so."""
import json

import pytest

from conftest import Mock, Publish, Serve, stays, wait_for
from nats_parts import NatsClient, NatsServer


@pytest.fixture
def nats():
    made = []

    def make(**kw):
        made.append(NatsServer(**kw))
        return made[-1]
    yield make
    for n in made:
        n.stop()


def lines(p, *words):
    return [line for line in p.text().splitlines() if "warning" in line and all(w in line for w in words)]


def test_a_registry_without_jetstream_found_nobody_and_said_nothing(nats, start):
    r = start(Serve, [], "--discovery", "nats", "--nats-url", nats(jetstream=False).url, ready=False)
    wait_for("the warning", lambda: lines(r, "bucket kvroute-registry cannot be opened", "is JetStream on"))
    stays("once", lambda: len(lines(r, "kvroute-registry")) == 1, 2)


def test_a_plane_without_jetstream_left_routing_by_cache_off_and_said_nothing(nats, start):
    url = nats(jetstream=False).url
    r = start(Serve, [start(Mock)], "--event-plane", "jetstream", "--nats-url", url, ready=False)
    wait_for("the warning", lambda: lines(r, "the stream of KV events is not there", "is JetStream on"))
    stays("once", lambda: len(lines(r, "stream of KV events")) == 1, 2)


def test_snapshots_that_cannot_be_written_were_counted_only(nats, start):
    n = nats()
    c = NatsClient(n.port)
    bucket = {"name": "KV_kvroute-snapshots", "subjects": ["$KV.kvroute-snapshots.>"], "max_msgs_per_subject": 1, "max_bytes": 16, "discard": "new",
              "allow_rollup_hdrs": True, "deny_delete": True, "allow_direct": True}
    answer = json.loads(c.request("$JS.API.STREAM.CREATE.KV_kvroute-snapshots", json.dumps(bucket).encode()))
    assert "error" not in answer, answer
    c.close()
    plane = ["--event-plane", "jetstream", "--nats-url", n.url]
    m = start(Mock)
    p = start(Publish, m, "--worker-id", 1, *plane)
    r = start(Serve, [f"http://127.0.0.1:{m.port},id=1,recover={p.url}"], *plane, "--router-snapshot-threshold", 1)
    for k in range(4):
        assert r.complete([1000 * k + i for i in range(32)]).status == 200
    wait_for("the failure", lambda: r.metric("durable_failed_snapshots_total") >= 1, 20)
    wait_for("the warning", lambda: lines(r, "a snapshot cannot be written", "maximum bytes exceeded"))
