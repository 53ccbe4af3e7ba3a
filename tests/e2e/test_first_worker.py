# SPDX-License-Identifier: Apache-2.0
"""Starting without workers: questions wait for the first ones, as those on serve's data port do."""
import socket
import threading

from conftest import Select, call, wait_for

JSON = {"Content-Type": "application/json"}
TOKENS = list(range(16))
QUESTIONS = [("/select", {"token_ids": TOKENS}), ("/select_and_reserve", {"token_ids": TOKENS, "selection_id": "a"}),
             ("/request", {"method": "new", "tokens": TOKENS, "request_id": "b"}),
             ("/request", {"method": "new", "tokens": [7] * 200000, "request_id": "c"})]  # read on a thread


class Asking(threading.Thread):
    def __init__(self, port, path, body):
        super().__init__(daemon=True)
        self.args, self.answer = (port, "POST", path, body, JSON), None
        self.start()

    def run(self):
        self.answer = call(*self.args, timeout=60)


def add(port, i):
    assert call(port, "POST", "/workers", {"worker_id": i, "endpoint": f"http://10.0.0.{i}:1", "block_size": 4}, JSON).status == 201


def test_select_without_workers_waits_for_the_first_ones(start):
    s = start(Select, "--min-initial-workers", 2, "--queue-timeout", 600)
    asking = [Asking(s.port, *q) for q in QUESTIONS]
    add(s.port, 1)
    assert call(s.port, "POST", "/request", {"method": "mark_free", "request_id": "zz"}, JSON).json()["success"] is False  # needs no worker
    assert all(a.answer is None for a in asking)
    add(s.port, 2)
    for a in asking:
        wait_for("the answer", lambda: a.answer is not None, 20)
        assert a.answer.status == 200 and a.answer.json()["worker_id"] in (1, 2), a.answer.body
    # they have been there: from now on an answer comes at once
    for i in (1, 2):
        assert call(s.port, "DELETE", f"/workers/{i}").status == 200
    assert call(s.port, "POST", *QUESTIONS[0], JSON).status in (404, 503)


def test_select_that_waits_for_workers_gives_up_after_the_queue_timeout(start):
    s = start(Select, "--min-initial-workers", 1, "--queue-timeout", 0.2)
    for q in QUESTIONS[:3]:
        r = call(s.port, "POST", *q, JSON)
        assert r.status == 503 and "min-initial-workers" in r.json()["error"] and r.headers["retry-after"] == "1"


def test_a_client_that_goes_while_it_waits_for_the_first_worker_is_forgotten(start):
    s = start(Select, "--min-initial-workers", 1, "--queue-timeout", 600)
    body = b'{"token_ids":[1,2,3],"selection_id":"gone"}'
    with socket.create_connection(("127.0.0.1", s.port)) as c:
        c.sendall(b"POST /select_and_reserve HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        assert call(s.port, "GET", "/health").status == 200
    other = Asking(s.port, "/select_and_reserve", {"token_ids": TOKENS, "selection_id": "stays"})
    add(s.port, 1)
    wait_for("the answer", lambda: other.answer is not None, 20)
    assert other.answer.status == 200
    wait_for("one booking", lambda: [l["active_requests"] for l in s.get("/loads")] == [1])


def test_select_waits_for_workers_that_discovery_brings(start, tmp_path):
    (tmp_path / "workers").write_text("")
    s = start(Select, "--min-initial-workers", 1, "--queue-timeout", 600, "--discovery", "file", "--discovery-target", tmp_path / "workers")
    a = Asking(s.port, *QUESTIONS[0])
    assert call(s.port, "GET", "/health").status == 200
    (tmp_path / "workers").write_text("http://10.0.0.1:1,id=1\n")
    wait_for("the answer", lambda: a.answer is not None, 30)
    assert a.answer.status == 200


def test_without_the_switch_an_unknown_partition_is_404_at_once(start):
    s = start(Select)
    assert call(s.port, "POST", *QUESTIONS[0], JSON).status == 404


def test_the_request_protocol_tells_what_waits(start):
    s = start(Select, "--router-queue-threshold", 0.5, "--queue-timeout", 600)
    call(s.port, "POST", "/workers", {"worker_id": 1, "endpoint": "http://10.0.0.1:1", "block_size": 4, "max_num_batched_tokens": 16}, JSON)
    assert call(s.port, "POST", "/request", {"method": "new", "tokens": TOKENS, "request_id": "first"}, JSON).status == 200
    a = Asking(s.port, "/request", {"method": "new", "tokens": [9] * 12, "request_id": "second"})

    def waiting():
        r = call(s.port, "POST", "/request", {"method": "potential_loads", "tokens": TOKENS}, JSON).json()
        return r["method"] == "potential_loads" and len(r["loads"]) == 1 and (r["pending_count"], r["pending_isl_tokens"]) == (1, 12)
    wait_for("one that waits", waiting)
    assert call(s.port, "POST", "/request", {"method": "mark_prefill", "request_id": "first"}, JSON).json() == {"method": "prefill_marked", "success": True}
    wait_for("the answer", lambda: a.answer is not None, 20)
    assert a.answer.json() == {"method": "new", "worker_id": 1, "dp_rank": 0, "overlap_blocks": 0}
