# SPDX-License-Identifier: Apache-2.0
"""Pickers that die, are stopped, start again, drain, or are two: what clients see is the table of docs/guides/gateway.md."""
import asyncio
import json
import signal
import threading
import time

from clients import one
from conftest import SLOW, TLS, Envoy, Mock, Picker, asking, cluster, configuration, free_ports, known_workers, processing, read_sse, stays, wait_for

STREAMS = 50


def stream_body(i, tokens=400):
    return json.dumps({"prompt": [i] * 64, "max_tokens": tokens, "stream": True}).encode()


class Streams(threading.Thread):
    """Many streams at once; `done` are status and body of each, in the end."""

    def __init__(self, envoy, n=STREAMS, tokens=400):
        super().__init__()
        self.envoy, self.n, self.tokens, self.done = envoy, n, tokens, []
        self.start()

    def run(self):
        async def everybody():
            return await asyncio.gather(*(one(self.envoy.port, stream_body(i, self.tokens)) for i in range(self.n)))
        self.done = [(status, body) for status, _, body in asyncio.run(everybody())]

    def whole(self):
        self.join()
        return sum(status == 200 and body.endswith(b"data: [DONE]\n\n") for status, body in self.done)


def begun(picker, n=STREAMS):
    wait_for("streams", lambda: picker.booked() == n, 30)
    wait_for("first tokens", lambda: sum(load["active_prefill_tokens"] for load in picker.get("/loads")) == 0, 30)


def slow_mocks(start):
    return [start(Mock, speedup=1), start(Mock, speedup=1)]


def unhealthy(envoy, healthy=0):
    wait_for("noticed", lambda: envoy.healthy() == healthy, 20)


def test_streams_outlive_a_buffered_picker_and_new_requests_fail_open(gateway, start):
    envoy, picker = gateway("buffered", slow_mocks(start))
    streams = Streams(envoy)
    begun(picker)
    picker.kill()
    assert envoy.complete([1] * 20).status == 200  # at once, noticed or not
    unhealthy(envoy)
    assert [envoy.complete([i] * 20).status for i in range(6)] == [200] * 6
    assert streams.whole() == STREAMS


def test_streams_of_a_duplex_picker_are_cut_and_new_requests_get_503(gateway, start):
    envoy, picker = gateway("duplex", slow_mocks(start))
    streams = Streams(envoy)
    begun(picker)
    picker.kill()
    assert streams.whole() == 0 and len(streams.done) == STREAMS
    unhealthy(envoy)
    assert envoy.complete([1] * 20).status == 503


def test_streams_outlive_a_duplex_picker_that_is_not_shown_answers(gateway, start):
    edits = [processing(response_body_mode="NONE", response_trailer_mode="SKIP")]
    envoy, picker = gateway("duplex", slow_mocks(start), "--ext-proc-unseen-secs", 60, edits=edits)
    streams = Streams(envoy)
    wait_for("streams", lambda: picker.booked() == STREAMS, 30)
    wait_for("heads", lambda: envoy.asking() == 0, 30)
    picker.kill()
    assert streams.whole() == STREAMS
    unhealthy(envoy)
    assert envoy.complete([1] * 20).status == 503


def test_a_duplex_filter_that_is_allowed_to_fail_does_so_once_its_picker_is_known_to_be_dead(gateway, start):
    """It needs workers that Envoy knows, health checks of the picker, and healthy_panic_threshold 0."""
    def allowed(conf):
        known_workers(conf)
        asking(conf)["failure_mode_allow"] = True
        asking(conf).pop("status_on_error")
    envoy, picker = gateway("duplex", [start(Mock), start(Mock)], edits=[allowed])
    assert envoy.complete([1] * 20).status == 200
    picker.kill()
    unhealthy(envoy)
    assert [envoy.complete([i] * 20).status for i in range(6)] == [200] * 6


def test_streams_of_a_buffered_filter_that_may_not_fail_are_cut(gateway, start):
    def closed(conf):
        asking(conf).update(failure_mode_allow=False, status_on_error={"code": 503})
    envoy, picker = gateway("buffered", slow_mocks(start), edits=[closed])
    streams = Streams(envoy)
    begun(picker)
    picker.kill()
    assert streams.whole() == 0
    unhealthy(envoy)
    assert envoy.complete([1] * 20).status == 503


def test_the_other_picker_takes_new_requests_at_once(gateway, start, mode):
    """retry_policy beside envoy_grpc moves on before a health check has noticed."""
    envoy, pickers = gateway(mode, slow_mocks(start), pickers=2)
    assert [envoy.complete([i] * 20).status for i in range(4)] == [200] * 4
    pickers[0].kill()
    killed = time.monotonic()
    answers = [envoy.complete([i] * 20) for i in range(8)]
    assert [r.status for r in answers] == [200] * 8, [r.status for r in answers]
    assert time.monotonic() - killed < 10 * SLOW
    assert all(r.headers["x-kvroute-worker"] for r in answers)  # nobody failed open


def test_a_picker_that_hangs_holds_a_buffered_request_no_longer_than_the_message_timeout(gateway, start):
    envoy, picker = gateway("buffered", [start(Mock)], edits=[lambda conf: asking(conf).update(message_timeout="1s")])
    assert envoy.complete([1] * 20).status == 200
    picker.p.send_signal(signal.SIGSTOP)
    try:
        assert envoy.complete([1] * 20).status == 200  # failed open
    finally:
        picker.p.send_signal(signal.SIGCONT)


def test_a_picker_that_hangs_holds_a_duplex_request_until_it_goes_on(gateway, start):
    envoy, picker = gateway("duplex", [start(Mock)])
    assert envoy.complete([1] * 20).status == 200
    picker.p.send_signal(signal.SIGSTOP)
    asked = []
    t = threading.Thread(target=lambda: asked.append(envoy.complete([1] * 20, headers={"x-request-id": "held"})))
    try:
        t.start()
        stays(f"held: {asked}", lambda: not asked, 0.5)
    finally:
        picker.p.send_signal(signal.SIGCONT)
        t.join()
    assert asked[0].status == 200


def test_a_picker_that_starts_again_is_ready_with_its_views_and_right_at_once(gateway, start, mode):
    mocks = [start(Mock), start(Mock)]
    envoy, picker = gateway(mode, mocks)
    warm = {}
    for i in range(6):
        r = envoy.complete([i] * 320)
        warm[i] = r.headers["x-kvroute-worker"]
    wait_for("events", lambda: picker.metric("index_blocks") == sum(m.metric("kvroute_mock_cached_blocks") for m in mocks))
    picker.stop()
    unhealthy(envoy)
    again = start(Picker, mocks, ports=picker.ports, tls="auto" if picker.tls else "off")
    # Envoy's thread of requests hears of it a moment after that of its statistics
    wait_for("taken again", lambda: envoy.healthy() == 1 and "x-kvroute-worker" in envoy.complete([99] * 20).headers, 20)
    for i, worker in warm.items():
        r = envoy.complete([i] * 320)
        assert (r.headers["x-kvroute-worker"], r.headers["x-kvroute-reason"], r.headers["x-kvroute-overlap-blocks"]) == (worker, "kv", "20")
    wait_for("idle", again.idle)


def test_a_picker_whose_views_are_unknown_is_not_asked_yet(start, mode):
    """Readiness is what Envoy's health checks ask for."""
    m = start(Mock)
    picker = start(Picker, [m], "--min-initial-workers", 2, ready=False)
    envoy = start(Envoy, mode, [picker], [m], healthy=False)
    stays("not healthy", lambda: envoy.healthy() == 0, 1.5)
    other = start(Mock)
    assert picker.post("/workers", {"worker_id": 9, "endpoint": f"http://127.0.0.1:{other.port}"}).status in (200, 201)
    wait_for("healthy", lambda: envoy.healthy() == 1, 20)
    assert envoy.complete([1] * 20).status == 200


def peers(start, mode, mocks):
    ports = free_ports(2)
    tls = TLS if "transport_socket" in cluster(configuration(mode), "kvroute") else None
    ps = [start(Picker, mocks, "--replica-sync-port", ports + i, "--replica-sync-peers", f"tcp://127.0.0.1:{ports + 1 - i}", tls=tls) for i in range(2)]
    wait_for("peers", lambda: all(p.metric("replica_sync_live_peers") == 1 for p in ps))
    return start(Envoy, mode, ps, mocks), ps


def test_two_pickers_book_as_one(start, mode):
    """Sixteen streams over four workers: four each, whichever picker was asked, and both know of all."""
    mocks = [start(Mock, speedup=0.5) for _ in range(4)]
    envoy, ps = peers(start, mode, mocks)
    opened = []
    for i in range(16):
        c, r = read_sse(envoy.port, {"prompt": [i] * 64, "max_tokens": 5000, "stream": True})
        assert r.status == 200 and r.read1(10)
        opened.append(c)
        wait_for("both know", lambda: [p.booked() for p in ps] == [len(opened)] * 2)
    assert all(sum(x["active_requests"] for x in p.get("/loads") if x["worker_id"] == w) == 4 for p in ps for w in (1, 2, 3, 4))
    decided = [p.metric("ext_proc_decisions_total") for p in ps]
    assert min(decided) > 0, decided
    for c in opened:
        c.close()
    wait_for("idle", lambda: all(p.idle() for p in ps))


def test_one_of_two_pickers_is_stopped_and_no_request_fails(gateway, start, mode):
    """SIGTERM beside steady requests, and again when it is back."""
    mocks = [start(Mock), start(Mock)]
    envoy, ps = gateway(mode, mocks, pickers=2)
    over, statuses = threading.Event(), []

    def ask(i):
        n = 0
        while not over.is_set():
            n += 1
            name = f"{i}-{n}"
            r = envoy.complete([i, n % 9] * 30, stream=True, max_tokens=8, headers={"x-request-id": name})
            statuses.append(r.status if "x-kvroute-worker" in r.headers else f"{r.status}: {envoy.access(name)['details']} {r.body[:200]}")
    clients = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
    for t in clients:
        t.start()
    for i in range(2):
        wait_for("requests", lambda: ps[i].metric("ext_proc_decisions_total") > 20, 30)
        ps[i].stop()
        had = len(statuses)
        wait_for("requests without it", lambda: len(statuses) > had + 50, 30)
        ps[i] = start(Picker, mocks, ports=ps[i].ports, tls="auto" if ps[i].tls else "off")
        wait_for("both", lambda: envoy.healthy() == 2, 20)
    over.set()
    for t in clients:
        t.join()
    assert set(statuses) == {200}, {s: statuses.count(s) for s in set(statuses)}


def test_streams_run_to_their_end_while_their_picker_drains(gateway, start, mode):
    envoy, ps = gateway(mode, slow_mocks(start), pickers=2)
    streams = Streams(envoy, 20)
    wait_for("streams", lambda: sum(p.booked() for p in ps) == 20, 30)
    old = max(ps, key=lambda p: p.booked())
    had = old.metric("ext_proc_decisions_total")
    assert had > 0
    old.p.send_signal(signal.SIGTERM)
    wait_for("drains", lambda: envoy.healthy() == 1, 20)
    assert [envoy.complete([i] * 20).status for i in range(6)] == [200] * 6
    assert streams.whole() == 20
    old.p.wait(20 * SLOW)
    assert old.p.returncode == 0, old.text()


def test_a_connection_of_age_is_told_to_go_and_no_request_is_lost(gateway, start, mode):
    envoy, picker = gateway(mode, slow_mocks(start), "--ext-proc-connection-age", 1)
    streams = Streams(envoy, 10, 300)
    statuses, first = [], envoy.stats("cluster.kvroute.upstream_cx_total")
    wait_for("requests over new connections",
             lambda: statuses.append(envoy.complete([1] * 20).status) or envoy.stats("cluster.kvroute.upstream_cx_total") >= first + 2, 30)
    assert set(statuses) == {200} and streams.whole() == 10
    assert envoy.stats("cluster.kvroute.upstream_cx_close_notify") >= 1
    wait_for("idle", picker.idle)
