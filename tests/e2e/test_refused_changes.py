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


def test_a_replacement_that_is_refused_leaves_the_workers_blocks(start, engine):
    e = engine()
    s = start(Select)
    events = {"kv_events_endpoints": {"0": f"tcp://127.0.0.1:{e.events}"}, "replay_endpoint": f"tcp://127.0.0.1:{e.replay_port}"}
    for i in range(2, 18):
        s.worker(i, taints=[f"t{i}-{k}" for k in range(16)])
    s.worker(1, **events)
    e.until("followed", lambda: s.view()["trusted"])
    e.stored([11], [1, 2, 3, 4])
    e.until("seen", lambda: s.overlap([1, 2, 3, 4, 5])[(1, 0)] == 1)
    assert "taints" in s.worker(1, taints=["one more"], status=409, **events)["error"]
    e.until("still there", lambda: s.overlap([1, 2, 3, 4, 5])[(1, 0)] == 1)
    e.stored([12], [5, 6, 7, 8], parent=11)
    e.until("seen", lambda: s.overlap([1, 2, 3, 4, 5, 6, 7, 8, 9])[(1, 0)] == 2)
