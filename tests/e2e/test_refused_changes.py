# SPDX-License-Identifier: Apache-2.0
"""A change of a worker that is refused changes nothing."""
from conftest import Select


def test_a_change_that_is_refused_leaves_the_workers_events_followed(start, engine):
    e = engine()
    s = start(Select)
    s.worker(1, kv_events_endpoints={"0": f"tcp://127.0.0.1:{e.events}"}, replay_endpoint=f"tcp://127.0.0.1:{e.replay_port}")
    s.worker(2)
    e.until("followed", lambda: s.view()["trusted"])
    assert "block_size" in s.ask("/workers/1", {"block_size": 8}, 409, method="PATCH", headers={"Content-Type": "application/json"})["error"]
    e.stored([11], [1, 2, 3, 4])
    e.until("seen", lambda: s.overlap([1, 2, 3, 4, 5])[(1, 0)] == 1)
