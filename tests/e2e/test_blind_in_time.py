# SPDX-License-Identifier: Apache-2.0
"""A worker goes blind - its KV events stop on their way, without an error anywhere - and Prometheus says so within two minutes: with the
rules, the scrape interval and the times that operators have. Most of the test is waiting."""
import time

from alert_parts import Asking, prompt
from conftest import Mock, Serve, wait_for
from nats_parts import Proxy
from prom_parts import RULES, Prometheus

WITHIN_S, EVERY_S = 120, 15


def test_a_worker_that_goes_blind_is_told_of_within_two_minutes(start):
    m = start(Mock, with_replay=False)
    firewall = Proxy(m.events)
    s = start(Serve, [f"http://127.0.0.1:{m.port},events=tcp://127.0.0.1:{firewall.port}"])
    traffic = Asking(lambda i: s.complete(prompt(i // 2), max_tokens=1), pause=0.2)  # each twice: half is reused, of what is not seen
    p = None
    try:
        with open(RULES) as f:
            p = Prometheus([s.admin], f.read(), every=EVERY_S)
        wait_for("it is scraped, and sees", lambda: p.query("increase(kvroute_kv_batches_total[1m]) > 0"), 90)
        assert not p.firing(), p.firing()
        firewall.cut()
        began, seen = time.monotonic(), {}

        def told():
            for alert, _ in p.firing():
                seen.setdefault(alert, round(time.monotonic() - began))
            return {"KvrouteNoEvents", "KvroutePredictionsDiverge"} <= set(seen)
        wait_for("both alerts", told, 200)
        print(seen)
        assert max(seen["KvrouteNoEvents"], seen["KvroutePredictionsDiverge"]) <= WITHIN_S, seen
    finally:
        firewall.heal()
        traffic.stop()
        if p:
            p.stop()
        s.stop()
        firewall.stop()
