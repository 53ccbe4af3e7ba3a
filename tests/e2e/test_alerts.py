# SPDX-License-Identifier: Apache-2.0
"""Alerts of deploy/prometheus fire when their cause is made with real processes: one Prometheus, its rules' times a twentieth, and a router
for each kind of trouble. That they fire in time, and not for what looks alike, is what kvroute.test.yml says, in Prometheus' own time."""
import http.server
import random
import re
import threading

import pytest

from conftest import Mock, Serve, call, free_ports, wait_for
from nats_parts import NatsServer
from prom_parts import RULES, Prometheus, scaled
from tls_parts import Authority

FASTER, LONGEST_FOR = 20, 3
# Causes that cannot be made here within seconds; unit tests alone have them.
UNIT_TESTED = {"KvrouteFirstTokenBurnFast", "KvrouteFirstTokenBurnSlow", "KvrouteDescriptors", "KvrouteDrops", "KvrouteRequestsWithoutWorker",
               "KvrouteRefusals", "KvrouteConfigReloadFailed"}


class Odd:
    """A worker that is healthy, cannot tokenize, and closes the connection on completions."""

    def __init__(self):
        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self, status):
                self.send_response(status)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def do_GET(self):
                self.answer(200)

            def do_POST(self):
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if self.path == "/tokenize":
                    self.answer(500)
                self.close_connection = True

            def log_message(self, *a):
                pass
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()


class Asking:
    """Asks `ask(i)` again and again, whatever comes of it."""

    def __init__(self, ask):
        self.ask, self.over = ask, threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        i = 0
        while not self.over.is_set():
            try:
                self.ask(i)
            except OSError:
                pass
            i += 1
            self.over.wait(0.04)  # the machine is to do other things too

    def stop(self):
        self.over.set()
        self.thread.join()


class Scene:
    """Starts things, and ends them in reverse."""

    def __init__(self, folder):
        self.folder, self.made = folder, []

    def start(self, cls, *args, **kw):
        self.made.append(x := cls(*args, **kw))
        return x

    def stop(self):
        errors = []
        for x in reversed(self.made):
            try:
                x.stop()
            except AssertionError as e:
                errors.append(str(e))
        assert not errors, "\n".join(errors)


def prompt(i):
    return random.Random(i).sample(range(50000), 320)


def blind(sc):
    """Events stop on their way while the worker serves, so half of the prompts are reused unseen."""
    m = sc.start(Mock, "--drop-events", "1", with_replay=False)
    s = sc.start(Serve, [m])
    sc.start(Asking, lambda i: s.complete(prompt(i if i % 2 else 0), max_tokens=1))
    return s


def wrong_block_size(sc):
    m = sc.start(Mock)
    s = sc.start(Serve, [m.spec(",block-size=32")], ready=False)
    sc.start(Asking, lambda i: s.complete(prompt(i), max_tokens=1))
    return s


def gaps(sc):
    m = sc.start(Mock, "--drop-events", "3", with_replay=False)
    s = sc.start(Serve, [m])
    sc.start(Asking, lambda i: s.complete(prompt(i), max_tokens=1))
    return s


def dead_worker(sc):
    m = sc.start(Mock)
    s = sc.start(Serve, [m], "--model", "mock", "--queue-timeout", "0.2")
    m.kill()
    sc.start(Asking, lambda i: s.complete(prompt(i), max_tokens=1, model="mock"))
    return s


def odd_worker(sc):
    o = sc.start(Odd)
    s = sc.start(Serve, [f"{o.url},model=odd"], "--breaker-failures", "2", "--breaker-cooldown", "1", "--queue-timeout", "2",
                 "--tokenizer", "engine")
    sc.start(Asking, lambda i: s.complete(f"text {i}", model="odd"))
    return s


def small_limits(sc):
    """A small index, and room for few bodies."""
    m = sc.start(Mock)
    s = sc.start(Serve, [m], "--index-max-bytes", "1MiB", "--max-bodies-bytes", "64KiB")
    sc.start(Asking, lambda i: (s.complete(random.Random(i).sample(range(50000), 3200), max_tokens=1),
                                call(s.port, "POST", "/v1/completions", b'{"prompt":"' + b"x" * 200000 + b'"}')))
    return s


def ends_soon(sc):
    """Its admin port speaks TLS, with a certificate that ends in five days."""
    cert, key = Authority(sc.folder, "alerts").sign("router", days=5)
    return sc.start(Serve, [], "--admin-tls-cert", cert, "--admin-tls-key", key, ready=False)


def lonely_replica(sc):
    return sc.start(Serve, [], "--router-replica-sync", "--replica-sync-port", free_ports(), "--replica-sync-peers",
                    f"tcp://127.0.0.1:{free_ports()}", ready=False)


def no_remote_index(sc):
    return sc.start(Serve, [], "--use-remote-indexer", f"http://127.0.0.1:{free_ports()}", ready=False)


def no_nats(sc):
    n = sc.start(NatsServer)
    s = sc.start(Serve, [], "--event-plane", "nats", "--nats-url", n.url, ready=False)
    n.kill()
    return s


CAUSES = {
    blind: ["KvrouteNoEvents", "KvroutePredictionsDiverge", "KvrouteFleetDiverged"],
    wrong_block_size: ["KvrouteViewUnknown"],
    gaps: ["KvrouteGapsNotRepaired", "KvrouteViewPartial"],
    dead_worker: ["KvrouteWorkerDown", "KvrouteModelHasNoWorker", "KvrouteQueueTimeouts", "KvrouteErrorRatio"],
    odd_worker: ["KvrouteBreakerOpen", "KvrouteTokenizeFailures"],
    small_limits: ["KvrouteIndexFull", "KvrouteBodyBudget"],
    lonely_replica: ["KvrouteReplicaStale"],
    no_remote_index: ["KvrouteRemoteIndexDown"],
    no_nats: ["KvrouteNatsDisconnected"],
}
ALONE = ["KvrouteDown", "KvrouteRestarted", "KvrouteCertificateExpires"]


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """{cause: its router}, the Prometheus."""
    sc = Scene(tmp_path_factory.mktemp("alerts"))
    try:
        with open(RULES) as f:
            rules = scaled(f.read(), FASTER, longest_for=LONGEST_FOR)
        routers = {cause: cause(sc) for cause in CAUSES}
        ports = free_ports(), free_ports()
        routers["ends"] = Serve([], ready=False, ports=ports)
        routers["certificate"] = certificate = ends_soon(sc)
        p = sc.start(Prometheus, [s.admin for k, s in routers.items() if k != "certificate"], rules, tls_targets=[certificate.admin])
        yield sc, routers, p
    finally:
        sc.stop()


def fires(p, alert, s):
    """Its texts, when it does."""
    found = wait_for(f"{alert}; fires: {sorted(p.firing())}", lambda: p.firing().get((alert, f"127.0.0.1:{s.admin}")), 60)
    for texts in found:
        assert all(texts[k] and "error expanding" not in texts[k] for k in ("summary", "description", "runbook")), texts


@pytest.mark.parametrize("cause, alert", [(c, a) for c, alerts in CAUSES.items() for a in alerts], ids=lambda x: x if isinstance(x, str) else x.__name__)
def test_an_alert_fires_for_its_cause(scene, cause, alert):
    _, routers, p = scene
    fires(p, alert, routers[cause])


def test_a_certificate_that_ends_soon_is_told_of(scene):
    _, routers, p = scene
    fires(p, "KvrouteCertificateExpires", routers["certificate"])


def test_a_router_that_goes_and_comes_back_is_told_of(scene):
    sc, routers, p = scene
    s = routers["ends"]
    wait_for("it is seen", lambda: p.query(f'up{{instance="127.0.0.1:{s.admin}"}} == 1'), 20)
    s.stop()
    fires(p, "KvrouteDown", s)
    fires(p, "KvrouteRestarted", sc.start(Serve, [], ready=False, ports=(s.port, s.admin)))


def test_every_alert_is_tried_here_or_known_to_be_left_to_unit_tests():
    with open(RULES) as f:
        alerts = set(re.findall(r"- alert: (\w+)", f.read()))
    tried = {a for names in CAUSES.values() for a in names} | set(ALONE)
    assert alerts == tried | UNIT_TESTED and not tried & UNIT_TESTED
