# SPDX-License-Identifier: Apache-2.0
"""More workers than there is room for. All of it happens on the router's main loop, so one sanitizer is enough (tests/run.py)."""
from conftest import wait_for
from test_discovery import dns, follow_dns  # noqa: F401 (a fixture)


def test_addresses_beyond_4096_are_named_and_nothing_is_removed(start, dns):
    dns.a["engines.test"] = [f"127.1.{i >> 8}.{i & 255}" for i in range(2500)]
    dns.aaaa["engines.test"] = [f"2001:db8::{i:x}" for i in range(1, 2001)]
    r = follow_dns(start, dns.address, interval=1)
    wait_for("as many as there is room for", lambda: r.metric("discovery_workers") == 4096, 60)
    assert r.metric("discovery_left_out_total") >= 404
    assert "'engines.test' gives more than 4096 addresses: 404 are left out, and no worker is removed" in r.text()
    before, dns.a["engines.test"] = r.metric("discovery_left_out_total"), dns.a["engines.test"][1:]
    wait_for("two looks", lambda: r.metric("discovery_left_out_total") >= before + 806, 30)
    assert r.metric("discovery_workers") >= 4096
    dns.a["engines.test"], dns.aaaa["engines.test"] = ["127.0.0.1"], ["::1"]
    wait_for("they go", lambda: r.metric("discovery_workers") == 2, 60)
