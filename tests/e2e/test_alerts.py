# SPDX-License-Identifier: Apache-2.0
"""Alerts of deploy/prometheus fire when their cause is made with real processes: one Prometheus, its rules' times a twentieth, and a router
for each kind of trouble. That they fire in time, and not for what looks alike, is what kvroute.test.yml says, in Prometheus' own time."""
import re

import pytest

import alert_parts as causes
from alert_parts import Scene
from conftest import Serve, free_ports, wait_for
from prom_parts import RULES, Prometheus, scaled

FASTER, LONGEST_FOR = 20, 3

CAUSES = {
    causes.blind: ["KvrouteNoEvents", "KvroutePredictionsDiverge", "KvrouteFleetDiverged"],
    causes.wrong_block_size: ["KvrouteViewUnknown"],
    causes.gaps: ["KvrouteGapsNotRepaired", "KvrouteViewPartial"],
    causes.dead_worker: ["KvrouteWorkerDown", "KvrouteModelHasNoWorker", "KvrouteQueueTimeouts", "KvrouteErrorRatio"],
    causes.odd_worker: ["KvrouteBreakerOpen", "KvrouteTokenizeFailures"],
    causes.small_limits: ["KvrouteIndexFull", "KvrouteBodyBudget"],
    causes.lonely_replica: ["KvrouteReplicaStale"],
    causes.no_remote_index: ["KvrouteRemoteIndexDown"],
    causes.no_api_server: ["KvrouteKubernetesAway"],
    causes.no_nats: ["KvrouteNatsDisconnected"],
    causes.nobody_there: ["KvrouteRequestsWithoutWorker"],
    causes.late_streams: ["KvrouteFirstTokenBurnFast", "KvrouteFirstTokenBurnSlow"],
    causes.overloaded: ["KvrouteRefusals"],
    causes.full_disk: ["KvrouteDrops"],
    causes.lost_spans: ["KvrouteDrops"],
    causes.few_descriptors: ["KvrouteDescriptors"],
    causes.bad_file: ["KvrouteConfigReloadFailed"],
}
# Their windows are long after the cause: what failed is in them.
SLOW_TO_END = {"KvrouteQueueTimeouts", "KvrouteErrorRatio"}
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
        routers["ends"] = sc.start(Serve, [], ready=False, ports=ports)
        routers["certificate"] = certificate = causes.ends_soon(sc)
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
    wait_for("and no longer away", lambda: ("KvrouteDown", f"127.0.0.1:{s.admin}") not in p.firing(), 30)


# Last, as they end what the others are about.
@pytest.mark.parametrize("cause", [causes.blind, causes.dead_worker, causes.bad_file], ids=lambda c: c.__name__)
def test_alerts_are_quiet_again_when_their_cause_has_ended(scene, cause):
    sc, routers, p = scene
    s = routers[cause]
    for alert in CAUSES[cause]:
        if alert not in SLOW_TO_END:
            fires(p, alert, s)
    sc.ends[cause]()
    ours = [(a, f"127.0.0.1:{s.admin}") for a in CAUSES[cause] if a not in SLOW_TO_END]
    wait_for(f"quiet: {ours}", lambda: not set(ours) & set(p.firing()), 90)


def test_every_alert_is_tried_here():
    with open(RULES) as f:
        alerts = set(re.findall(r"- alert: (\w+)", f.read()))
    assert alerts == {a for names in CAUSES.values() for a in names} | set(ALONE)
