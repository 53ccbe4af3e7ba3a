# SPDX-License-Identifier: Apache-2.0
"""Waiting, limits, priorities, overload and explanations through the proxy."""
import http.client
import json
import socket
import threading

from conftest import Mock, Serve, call, read_sse, stays, wait_for

SLOW_ENGINE = dict(speedup=0.5)


def busy_serve(start, *extra, mocks=1):
    """One slow engine and a queue that opens as soon as a prompt is in prefill."""
    ms = [start(Mock, **SLOW_ENGINE) for _ in range(mocks)]
    return start(Serve, [m.spec(",max-num-batched-tokens=100") for m in ms], *extra)


def occupy(s, n=1, tokens=200000):
    """Streams whose long prompts keep every rank busy, for many seconds or until they are closed. Returns connections."""
    opened = []
    for i in range(n):
        c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60)
        c.request("POST", "/v1/completions", json.dumps({"prompt": [i] * tokens, "max_tokens": 1, "stream": True}))
        opened.append(c)
        wait_for("busy", lambda: sum(l["active_requests"] for l in s.get("/loads")) == i + 1)
    return opened


def test_a_parked_stream_gets_comments_and_then_its_answer(start):
    s = busy_serve(start, "--router-queue-threshold", 0, "--queue-keepalive", 0.1)
    held = occupy(s)
    c, r = read_sse(s.port, {"prompt": [5] * 20, "max_tokens": 2, "stream": True})
    assert r.status == 200 and r.headers["content-type"].startswith("text/event-stream")
    assert r.headers["x-kvroute-reason"] == "queued"
    text = r.read1(4096)
    for h in held:
        h.close()
    while b"[DONE]" not in text:
        piece = r.read1(4096)
        assert piece, text
        text += piece
    assert text.startswith(b": waiting for a worker\n\n") and b'"text"' in text
    c.close()
    wait_for("idle", s.idle)


def test_a_parked_stream_that_times_out_ends_with_an_error_event(start):
    s = busy_serve(start, "--router-queue-threshold", 0, "--queue-keepalive", 0.05, "--queue-timeout", 0.4)
    held = occupy(s)
    c, r = read_sse(s.port, {"prompt": [5] * 20, "max_tokens": 2, "stream": True})
    text = r.read()
    assert b"in time" in text and b'"code":503' in text
    plain = s.complete([5] * 20)  # without a stream: the status says it
    assert plain.status == 503
    for h in held:
        h.close()
    wait_for("idle", s.idle)


def test_a_promised_stream_whose_worker_refuses_says_so(start):
    s = busy_serve(start, "--router-queue-threshold", 0, "--queue-keepalive", 0.05)
    held = occupy(s)
    c, r = read_sse(s.port, {"prompt": [5] * 20, "max_tokens": 1, "temperature": "hot", "stream": True})
    assert r.status == 200 and r.readline() == b": waiting for a worker\n"
    for h in held:
        h.close()
    text = r.read()
    assert b"the worker answered with status 400" in text and b"[DONE]" not in text
    c.close()
    wait_for("idle", s.idle)


def test_requests_of_the_same_millisecond_that_wait_for_a_worker_hung_the_router(start):
    """They have the same place in the line, so each time they were looked at again they changed places, without end."""
    s = start(Serve, [], "--threads", 1, "--queue-timeout", 60, ready=False)
    body = json.dumps({"prompt": [1] * 20, "max_tokens": 1}).encode()
    asked = [socket.create_connection(("127.0.0.1", s.port), timeout=60) for _ in range(40)]
    for c in asked:
        c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    wait_for("waiting", lambda: s.metric("requests_without_worker") == len(asked))
    stays("answering", lambda: call(s.port, "GET", "/health", timeout=5).status == 200, 2)  # once a second they are looked at
    m = start(Mock)
    assert s.post("/workers", {"worker_id": 1, "endpoint": f"http://127.0.0.1:{m.port}"}).status in (200, 201)
    for c in asked:
        assert c.recv(64).startswith(b"HTTP/1.1 200")
        c.close()


def test_limits_of_a_class_answer_529(start, tmp_path):
    policy = tmp_path / "p.yaml"
    policy.write_text("default_policy_family: std\npolicy_classes:\n"
                      "- {name: std, prefill_busy_threshold: 0, request_queue_limit_per_worker: 1}\n"
                      "- {name: eager, prefill_busy_threshold: 1000000}\n")
    s = busy_serve(start, "--router-policy-config", policy)
    held = occupy(s)
    t = threading.Thread(target=s.complete, args=([1] * 20,))
    t.start()
    wait_for("queued", lambda: s.metric("router_queue_pending_requests", policy_class="std") == 1)
    r = s.complete([2] * 20)
    assert r.status == 529 and r.json()["error"]["type"] == "queue_full" and "class std" in r.json()["error"]["message"]
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60)  # another class does not wait
    c.request("POST", "/v1/completions", json.dumps({"prompt": [3] * 20, "max_tokens": 1}), {"x-dynamo-meta-policy-class": "eager"})
    wait_for("eager admitted", lambda: sum(l["active_requests"] for l in s.get("/loads")) == 2)
    c.close()
    for h in held:
        h.close()
    t.join()
    wait_for("idle", s.idle)


def test_priority_jumps_the_queue(start):
    s = busy_serve(start, "--router-queue-threshold", 0)
    held = occupy(s)
    done = []

    def ask(i, priority):
        r = s.complete([i] * 6000, max_tokens=1, headers={"x-request-priority": str(priority)})
        done.append((i, r.status))
    threads = []
    for i, priority in ((1, 0), (2, 0), (3, 60)):
        threads.append(threading.Thread(target=ask, args=(i, priority)))
        threads[-1].start()
        wait_for("queued", lambda: s.metric("router_queue_pending_requests") == i)
    for h in held:
        h.close()
    for t in threads:
        t.join()
    assert [i for i, _ in done] == [3, 1, 2] and all(status == 200 for _, status in done)
    wait_for("idle", s.idle)


def test_a_client_that_leaves_the_queue_leaves_nothing(start):
    s = busy_serve(start, "--router-queue-threshold", 0)
    held = occupy(s)
    waiting = []
    for i in range(5):
        c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60)
        c.request("POST", "/v1/completions", json.dumps({"prompt": [i + 9] * 50, "max_tokens": 1}))
        waiting.append(c)
    wait_for("queued", lambda: s.metric("router_queue_pending_requests") == 5)
    for c in waiting + held:
        c.close()
    wait_for("idle", lambda: s.idle() and s.metric("router_queue_pending_requests") == 0)


def test_draining_answers_those_who_wait(start):
    s = busy_serve(start, "--router-queue-threshold", 0, "--drain-timeout", 1)
    held = occupy(s)
    answers = []
    t = threading.Thread(target=lambda: answers.append(s.complete([7] * 20)))
    t.start()
    wait_for("queued", lambda: s.metric("router_queue_pending_requests") == 1)
    s.stop()
    t.join()
    assert answers[0].status == 503 and "shutting down" in answers[0].json()["error"]["message"]
    for h in held:
        h.close()


def test_thresholds_are_those_of_a_model_that_is_served(start):
    a, b = start(Mock, "--model", "a"), start(Mock, "--model", "b", "--block-size", 32)
    s = start(Serve, [a.spec(",model=a"), f"http://127.0.0.1:{b.port},model=b,block-size=32"])
    r = s.post("/busy_threshold", {"model": "b", "active_prefill_tokens_threshold": 100})
    assert r.status == 200, r.body
    shown = {tuple(t["models"]): t["active_prefill_tokens_threshold"] for t in s.get("/busy_threshold")["thresholds"]}
    assert shown == {("a",): None, ("b",): 100}


def test_overloaded_workers_answer_503_and_the_threshold_can_change(start):
    s = busy_serve(start)
    held = occupy(s)
    assert s.post("/busy_threshold", {"active_prefill_tokens_threshold": 100}).status == 200
    r = s.complete([4] * 20)
    assert r.status == 503 and r.json()["error"]["type"] == "service_unavailable" and "overloaded" in r.json()["error"]["message"]
    shown = s.get("/busy_threshold")["thresholds"][0]
    assert shown["active_prefill_tokens_threshold"] == 100 and shown["active_decode_blocks_threshold"] is None
    assert s.post("/busy_threshold", {"active_decode_blocks_threshold": 1.5}).status == 400
    assert s.post("/busy_threshold", {"model": "nobody"}).status == 404
    assert s.metric("overload_rejections_total") == 1
    for h in held:
        h.close()
    wait_for("idle", s.idle)


def test_a_decision_can_be_explained(fleet):
    s, _ = fleet
    tokens = list(range(100))
    s.complete(tokens)
    wait_for("seen", lambda: max(s.overlap(tokens).values()) == 6)
    r = s.complete(tokens, headers={"x-kvroute-explain": "1", "x-request-id": "why"})
    explained = r.headers["x-kvroute-explain"]
    assert explained.startswith("candidates=2; ") and "overlap=6" in explained and "cost=" in explained
    d = wait_for("decision", lambda: call(s.admin, "GET", "/decisions?id=why").status == 200 and s.get("/decisions?id=why"))
    assert d["request_id"] == "why" and d["candidates_total"] == 2 and d["regret_blocks"] == 0
    assert [c["worker_id"] for c in d["candidates"]][0] == d["worker_id"]
    assert d["candidates"][0]["cost"] <= d["candidates"][1]["cost"] and d["candidates"][0]["device_blocks"] == 6
    assert d["actual_cached_tokens"] == d["predicted_cached_tokens"] == 96
    assert call(s.admin, "GET", "/decisions?id=never").status == 404
    assert "x-kvroute-explain" not in s.complete(tokens).headers
    assert s.metric("overlap_regret_blocks_count") == 3 and s.metric("prediction_diverged") == 0


def test_times_to_first_token_are_learnt(start):
    mocks = [start(Mock), start(Mock)]
    s = start(Serve, mocks, "--router-prefill-load-model", "fitted")
    for i in range(60):
        assert s.complete([i] * (16 + i * 20), max_tokens=1, stream=True, headers={"x-kvroute-worker": str(1 + i % 2)}).status == 200
    models = [w["ttft_model"] for w in s.get("/workers")]
    assert [m["observations"] for m in models] == [30, 30]
    assert all(0 <= m["base_ms"] < 1000 and 0 <= m["token_ms"] < 10 for m in models)
    assert s.complete([1] * 20, headers={"x-kvroute-policy-class": "x" * 64}).status == 400
    wait_for("idle", s.idle)


def test_predictions_that_do_not_come_true_raise_the_alarm(start):
    """The engine gives blocks up without a word (its cache is tiny): what is predicted is not delivered."""
    m = start(Mock, "--num-gpu-blocks", 8)
    s = start(Serve, [f"http://127.0.0.1:{m.port}"], "--no-router-kv-events", "--tokenizer", "engine")
    for i in range(80):
        assert s.complete([i % 4 + 1] * 64).status == 200
    wait_for("alarm", lambda: s.metric("prediction_diverged") == 1)
    assert s.metric("prediction_divergence_ratio") > 0.5
    assert "cache predictions diverge from engine usage" in s.text() and s.text().count("cached tokens predicted on worker") <= 3


def test_siblings_with_a_new_prefix_stay_together(start, engine):
    """Requests with one new prefix at once, before any event of it: by the linear cost each computes the prefix, or, when decisions are
    remembered, each worker; by default they join the one that computes it. There the prefix is long and they are few: those that keep coming
    for as long as it takes to compute it are no burst."""
    seen = {}
    for name, flags, n, prefix in (("forgotten", ("--cost", "linear"), 64, 4096),
                                   ("remembered", ("--cost", "linear", "--router-predicted-ttl-secs", 5), 64, 4096), ("default", (), 8, 32768)):
        mocks = [start(Mock, with_events=False, speedup=0.01) for _ in range(4)]  # nobody gets a first token
        engines = [engine() for _ in mocks]  # the events' side of each: silent as yet
        s = start(Serve, [f"{m.spec()},events=tcp://127.0.0.1:{e.events},replay=tcp://127.0.0.1:{e.replay_port}"
                          for m, e in zip(mocks, engines)], *flags, ready=False)

        def trusted():
            for e in engines:
                e.serve_replay(0.001)
            return len(s.views()) == 4 and all(v["trusted"] for v in s.views().values())
        wait_for("views", trusted)
        opened = []
        bodies = [json.dumps({"prompt": list(range(prefix)) + [90000 + i] * 16, "max_tokens": 1}) for i in range(n)]
        for body in bodies:
            c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60)
            c.request("POST", "/v1/completions", body)
            opened.append(c)
        wait_for("booked", lambda: sum(w["requests"] for w in s.get("/workers")) == n)
        used = sum(w["requests"] > 0 for w in s.get("/workers"))
        computed = sum(l["active_prefill_tokens"] for l in s.get("/loads"))
        seen[name] = (used, computed)
        for c in opened:
            c.close()
        wait_for("idle", s.idle)
    print("workers used, prefill tokens booked:", seen)
    assert seen["forgotten"] == (4, 64 * 4112)
    assert seen["remembered"] == (4, 4 * 4096 + 64 * 16)
    assert seen["default"] == (1, 32768 + 8 * 16)
