# SPDX-License-Identifier: Apache-2.0
"""Without an index (overlap credit 0) everything is served, and whatever asks for the index is told that there is none."""
import pytest
from conftest import Mock, Select, Serve, call

JSON = {"Content-Type": "application/json"}
CREDIT_0 = ["--router-kv-overlap-score-credit", "0"]


def asks(port):
    tokens = list(range(16))
    yield call(port, "GET", "/dump")
    yield call(port, "POST", "/query", {"token_ids": tokens}, JSON)
    yield call(port, "POST", "/query_by_hash", {"block_hashes": [1]}, JSON)
    yield call(port, "POST", "/overlap_scores", {"token_ids": tokens}, JSON)


@pytest.mark.parametrize("args", [CREDIT_0, ["--load-aware"], ["--router-kv-overlap-score-weight", "0"]])
def test_dump_with_credit_0_is_an_error_and_not_empty(start, args):
    m = start(Mock)
    s = start(Serve, [m], *args)
    assert s.complete("x", headers=JSON).status == 200
    for r in asks(s.admin):
        assert r.status == 400 and "no index" in r.json()["error"], (r.status, r.body)


def test_dump_of_a_selection_service_with_credit_0_is_an_error(start):
    s = start(Select, *CREDIT_0)
    assert call(s.port, "GET", "/dump").status == 400  # before there is a worker, too
    call(s.port, "POST", "/workers", {"worker_id": 1, "endpoint": "http://10.0.0.1:1"}, JSON)
    for r in asks(s.port):
        assert r.status == 400 and "no index" in r.json()["error"], (r.status, r.body)
    assert call(s.port, "POST", "/select", {"token_ids": [1, 2, 3]}, JSON).status == 200
