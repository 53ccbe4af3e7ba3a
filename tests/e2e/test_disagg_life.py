# SPDX-License-Identifier: Apache-2.0
"""Requests of two legs from their arrival to their end, whatever happens between: what is sent when, what is held by whom, what is given back.
Workers are scripts (leg_parts.py) where one has to fail at a chosen moment, and mocks that hold blocks where it matters who holds what."""
import contextlib
import http.client
import json
import signal
import threading
import time

import pytest
from conftest import Mock, Serve, call, free_ports, freeze, read_sse, wait_for
from leg_fleets import AT_ONCE
from leg_parts import HANG, PARAMS, RESET, Pieces, answer, decodes, events, handoff, prefills
from test_disagg_mocks import clean, fleet_of, prompt_of

PROMPT = list(range(64))
BODY = {"model": "m", "prompt": PROMPT, "max_tokens": 4}
BUSY = ("--active-decode-blocks-threshold", "0.5")  # with 8 blocks (total-kv-blocks): a request of 6 is too many, one of 4 is not
FIRST = events("a").split(b"\n\n")[0] + b"\n\n"
REST = events("a")[len(FIRST):]
ERROR_EVENT = b'data: {"error": {"message": "KV load failed", "type": "InternalServerError", "code": 500}}\n\n'


def ask(s, headers=None, timeout=60, **more):
    return call(s.port, "POST", "/v1/completions", {**BODY, **more}, headers, timeout=timeout)


def disagg(s, what, **labels):
    """A counter of requests of two legs."""
    return s.metric(f"disagg_{what}_total", **labels)


def booked(s, role, what="active_requests"):
    of = {w["worker_id"] for w in s.get("/workers") if w["role"] == role}
    return sum(x[what] for x in s.get("/loads") if x["worker_id"] in of)


def idle(s):
    wait_for("nothing booked", s.idle)


class Asking:
    """A request under way in a thread."""

    def __init__(self, s, **more):
        self.t = threading.Thread(target=self.run, args=(s, more))
        self.answer = None
        self.t.start()

    def run(self, s, more):
        with contextlib.suppress(OSError, http.client.HTTPException):
            self.answer = ask(s, **more)

    def end(self):
        self.t.join()
        return self.answer


class Leaving:
    """A request whose client can go away."""

    def __init__(self, s, **more):
        self.c = http.client.HTTPConnection("127.0.0.1", s.port)
        self.c.request("POST", "/v1/completions", json.dumps({**BODY, **more}))

    def leave(self):
        self.c.sock.close()
        self.c.close()


# ---- bytes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_usage_that_comes_byte_by_byte_is_put_right(pair, stream):
    told, right = (events("a", "b"), events("a", "b", cached=32)) if stream else (json.dumps(answer(cached=c)).encode() for c in (63, 32))
    pieces = Pieces([told[i:i + 1] for i in range(len(told))], "text/event-stream" if stream else "application/json")
    s, _, _ = pair(decode=lambda n, b: pieces, n=1)
    a = ask(s, stream=stream, **({"stream_options": {"include_usage": True}} if stream else {}))
    assert a.status == 200 and a.body == right


@pytest.mark.parametrize("protocol", ["vllm-nixl", "trtllm", "none", *AT_ONCE])
def test_a_prompt_of_200000_tokens_passes(start, protocol):
    s, ps, ds = fleet_of(start, protocol, *[("--num-gpu-blocks", "13000", "--max-num-batched-tokens", "300000")] * 2, n=1, lease=60)
    alone = start(Mock, "--num-gpu-blocks", 13000, speedup=1000)
    body = {"prompt": [i * 7 % 50000 for i in range(200_000)], "max_tokens": 4}
    a = call(s.port, "POST", "/v1/completions", body, timeout=120)
    assert a.status == 200 and a.headers["x-kvroute-disagg"] == "remote", a.body[:300]
    assert a.json()["usage"]["prompt_tokens"] == 200_000
    assert a.json()["choices"][0]["text"] == call(alone.port, "POST", "/v1/completions", body, timeout=120).json()["choices"][0]["text"]
    assert clean(s, ps + ds)["expired"] == 0


def test_what_is_only_passed_on_carries_nothing_of_a_transfer(pair):
    s, ps, ds = pair(n=1)
    body = {"model": "m", "messages": [[{"role": "user", "content": "x"}]], "kv_transfer_params": {"remote_request_id": "another's"}, "seed": 7}
    a = call(s.port, "POST", "/v1/chat/completions/batch", body)
    assert a.status == 200 and ds[0].bodies[0] == {k: v for k, v in body.items() if k != "kv_transfer_params"}
    for odd in (json.dumps(body).encode("utf-16"), json.dumps({**body, "seed": float("nan")}).encode()):  # which an engine may read all the same
        a = call(s.port, "POST", "/v1/chat/completions/batch", odd, {"Content-Type": "application/json"})
        assert a.status == 400 and "JSON object" in a.json()["error"]["message"]
    assert ds[0].n == 1 and ps[0].n == 0


def test_a_body_is_given_back_when_its_answer_begins(pair):
    s, _, ds = pair(decode=lambda n, b: Pieces([FIRST, HANG, REST]), n=1)
    c, r = read_sse(s.port, {**BODY, "prompt": [i % 100 for i in range(50_000)], "stream": True})
    assert r.status == 200 and r.read1(10)
    wait_for("given back", lambda: s.metric("http_request_bodies_bytes", port="data") == 0)
    assert booked(s, "decode") == 1
    ds[0].go.set()
    r.read()
    c.close()
    idle(s)


# ---- the gate: no prompt is computed that nobody could go on from -------------------------------------


def busy_pair(pair, *options, prefill=prefills, n=1):
    """A request of two legs beside which the decode workers have no room until they `go`: its stream hangs."""
    s, ps, ds = pair(*BUSY, *options, prefill=prefill, decode=lambda n, b: Pieces([FIRST, HANG, REST]) if b.get("stream") else (200, answer()), n=n,
                     keys=("total-kv-blocks=8",))
    return s, ps, ds


def fill(s, n=1):
    """Takes the room of n decode workers. Returns: what holds it."""
    held = []
    for i in range(n):
        held.append(read_sse(s.port, {**BODY, "prompt": [i + 1] * 96, "stream": True}))
        assert held[-1][1].read1(4)
    return held


def test_no_prompt_is_computed_while_all_decode_workers_are_overloaded(pair):
    s, ps, ds = busy_pair(pair, "--queue-timeout", "60")
    held = fill(s)
    waiting = Asking(s)
    wait_for("it waits", lambda: s.metric("requests_without_worker") == 1)
    assert ps[0].n == 1 and booked(s, "prefill") == 0
    ds[0].go.set()
    a = waiting.end()
    assert a.status == 200 and a.headers["x-kvroute-disagg"] == "remote" and ps[0].n == 2
    for c, r in held:
        r.read()
        c.close()
    idle(s)


def test_a_request_waits_in_vain_for_decode_workers_that_stay_overloaded(pair):
    s, ps, ds = busy_pair(pair, "--queue-timeout", "0.3")
    held = fill(s)
    a = ask(s)
    assert a.status == 503 and a.headers["retry-after"] and ps[0].n == ds[0].n == 1
    assert s.metric("queue_timeouts_total") == 1
    for c, _ in held:
        c.close()


def test_no_prompt_is_computed_while_no_decode_worker_is_up(pair):
    s, ps, ds = pair("--queue-timeout", "60", "--health-interval", "0.1", n=1)
    port = ds[0].port
    ds[0].vanish()
    wait_for("down", lambda: any(w["status"] == "down" for w in s.get("/workers")))
    waiting = Asking(s)
    wait_for("it waits", lambda: s.metric("requests_without_worker") == 1)
    assert ps[0].n == 0
    ds[0].listen(port)
    a = waiting.end()
    assert a.status == 200 and a.headers["x-kvroute-disagg"] == "remote" and ps[0].n == 1
    idle(s)


def test_a_pinned_decode_worker_of_another_model_is_an_error_at_once(legs, start):
    p, d, other = legs(prefills), legs(decodes), legs(decodes)
    other.models = ["another"]
    s = start(Serve, [p.spec("prefill", "id=1"), d.spec("decode", "id=2"), other.spec("decode", "id=3")], "--queue-timeout", "600")
    wait_for("all up", lambda: all(w["status"] == "up" for w in s.get("/workers")))
    wait_for("all models", lambda: {m["id"] for m in call(s.port, "GET", "/v1/models").json()["data"]} == {"m", "another"})
    assert ask(s, {"x-kvroute-worker": "3"}).status == 400 and d.n == other.n == 0


# ---- between the legs --------------------------------------------------------------------------------


class Between:
    """A request whose prompt is computed, while the decode workers have no room for it (until `free`)."""

    def __init__(self, pair, *options, n=1, release=True, **more):
        self.start = threading.Event()
        self.s, self.ps, self.ds = busy_pair(pair, "--health-interval", "3600", *options, n=n, prefill=self.prefill)
        self.request = Leaving(self.s, **more)
        wait_for("the prefill leg", lambda: sum(p.n for p in self.ps) == 1)
        self.held = fill(self.s, n)
        self.start.set()
        wait_for("between the legs", lambda: booked(self.s, "prefill") == 0)

    def prefill(self, n, body):
        if len(body["prompt"]) == 64:
            self.start.wait(60)
        return 200, handoff(remote_request_id=f"r{len(body['prompt'])}-{n}")

    def free(self):
        for d in self.ds:
            d.go.set()

    def answer(self):
        r = self.request.c.getresponse()
        r.body = r.read()
        return r


def test_a_decode_worker_without_room_is_waited_for(pair):
    b = Between(pair)
    b.free()
    a = b.answer()
    assert a.status == 200 and a.headers["x-kvroute-disagg"] == "remote" and b.ps[0].n == 2
    idle(b.s)


def test_decode_workers_without_room_in_time_are_an_error_and_the_prompt_is_released(pair):
    b = Between(pair, "--handoff-timeout", "0.3")
    a = b.answer()
    assert a.status == 503 and a.headers["retry-after"]
    wait_for("released", lambda: disagg(b.s, "releases", how="dispatched") == 1 and b.ds[0].n == 2)
    last = b.ds[0].bodies[-1]
    assert last["max_tokens"] == 1 and last["stream"] is False and last["kv_transfer_params"]["remote_request_id"].startswith("r64-")
    b.free()
    idle(b.s)
    assert disagg(b.s, "possible_leaks") == 0


def test_a_prompt_is_released_although_decode_workers_are_overloaded(pair):
    b = Between(pair)
    b.request.leave()
    wait_for("released", lambda: disagg(b.s, "releases", how="dispatched") == 1 and b.ds[0].n == 2)
    assert b.ds[0].bodies[-1]["max_tokens"] == 1
    b.free()
    idle(b.s)
    assert disagg(b.s, "possible_leaks") == disagg(b.s, "releases", how="failed") == 0


def test_a_prompt_of_a_prefill_worker_that_has_died_since_is_computed_again(pair):
    b = Between(pair, "--health-interval", "0.1", n=2)
    first = next(p for p in b.ps if any(len(x["prompt"]) == 64 for x in p.bodies))
    first.vanish()
    wait_for("down", lambda: any(w["status"] == "down" for w in b.s.get("/workers")))
    b.free()
    a = b.answer()
    assert a.status == 200, a.body
    other = next(p for p in b.ps if p is not first)
    again = [i for i, x in enumerate(other.bodies) if len(x["prompt"]) == 64]
    taken = [x["kv_transfer_params"]["remote_request_id"] for d in b.ds for x in d.bodies if len(x["prompt"]) == 64]
    assert len(again) == 1 and taken == [f"r64-{again[0]}"]
    assert other.heads[again[0]]["x-request-id"].endswith(".1")
    idle(b.s)


# ---- decode workers that fail ------------------------------------------------------------------------


def test_a_stream_that_begins_with_an_error_is_tried_again(pair):
    s, ps, ds = pair(decode=lambda n, b: ERROR_EVENT + b"data: [DONE]\n\n" if seen() == 1 else events("a", "b"))
    seen = lambda: sum(d.n for d in ds)
    a = ask(s, stream=True)
    assert a.status == 200 and a.body == events("a", "b", cached=32) and [d.n for d in ds] == [1, 1] and sum(p.n for p in ps) == 2
    idle(s)


def test_a_second_stream_that_begins_with_an_error_is_the_answer(pair):
    s, ps, ds = pair(decode=lambda n, b: Pieces([b": hello\n\n", ERROR_EVENT[:20], ERROR_EVENT[20:], b"data: [DONE]\n\n"]))
    a = ask(s, stream=True)
    assert a.status == 200 and a.body == b": hello\n\n" + ERROR_EVENT + b"data: [DONE]\n\n"
    assert [d.n for d in ds] == [1, 1] and sum(p.n for p in ps) == 2
    idle(s)


def test_an_error_after_a_token_is_passed_on(pair):
    s, ps, ds = pair(decode=lambda n, b: Pieces([FIRST, HANG, ERROR_EVENT, b"data: [DONE]\n\n"]), n=1)
    c, r = read_sse(s.port, {**BODY, "stream": True})
    text = r.read1(len(FIRST))
    ds[0].go.set()
    text += r.read()
    assert text == FIRST + ERROR_EVENT + b"data: [DONE]\n\n" and ps[0].n == ds[0].n == 1
    c.close()
    idle(s)


def test_a_stream_without_an_event_is_passed_on(pair):
    s, _, _ = pair(decode=lambda n, b: Pieces([b": nothing", b"\n\n"]), n=1)
    assert ask(s, stream=True).body == b": nothing\n\n"
    idle(s)


def test_a_decode_worker_that_does_not_answer_in_time(pair):
    s, ps, ds = pair("--first-token-timeout", "0.3", decode=lambda n, b: HANG, n=1)
    assert ask(s).status == 504 and ps[0].n == ds[0].n == 1
    wait_for("it is told", ds[0].gone.is_set)
    idle(s)


def test_a_decode_worker_that_breaks_off_its_stream(pair):
    s, ps, ds = pair(decode=lambda n, b: Pieces([FIRST, HANG, RESET]), n=1)
    c, r = read_sse(s.port, {**BODY, "stream": True})
    text = r.read1(len(FIRST))
    ds[0].go.set()
    text += r.read()
    assert text.startswith(FIRST) and b"error" in text and b"[DONE]" not in text and ps[0].n == ds[0].n == 1
    c.close()
    idle(s)


def test_a_prefill_worker_that_dies_while_the_answer_streams_is_not_missed(pair):
    s, ps, ds = pair("--health-interval", "0.1", decode=lambda n, b: Pieces([FIRST, HANG, events("a", "b")[len(FIRST):]]), n=1)
    c, r = read_sse(s.port, {**BODY, "stream": True})
    ps[0].vanish()
    wait_for("down", lambda: any(w["status"] == "down" for w in s.get("/workers")))
    ds[0].go.set()
    assert r.read() == events("a", "b", cached=32)
    c.close()
    idle(s)


# ---- nothing is left to generate ---------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True, "true", 1])
def test_a_context_leg_after_which_nothing_is_left_is_the_answer(pair, stream):
    ended = {"id": "p", "object": "text_completion", "created": 1, "model": "m", "prompt_token_ids": PROMPT,
             "choices": [{"index": 0, "text": "hi", "finish_reason": "stop", "disaggregated_params": {"request_type": "context_only"}}],
             "usage": {"prompt_tokens": 64, "completion_tokens": 1, "total_tokens": 65}}
    s, ps, ds = pair(prefill=lambda n, b: (200, ended), n=1, keys=("kv-protocol=trtllm",))
    a = ask(s, stream=stream)
    assert a.status == 200 and ps[0].n == 1 and ds[0].n == 0
    if stream:
        assert a.body.endswith(b"data: [DONE]\n\n") and b'"stop"' in a.body and b'"hi"' in a.body
    else:
        assert a.json()["choices"][0]["finish_reason"] == "stop"
    assert b"disaggregated_params" not in a.body
    idle(s)


# ---- the router stops --------------------------------------------------------------------------------


def test_a_router_that_stops_lets_both_legs_end(pair):
    go = threading.Event()
    s, ps, _ = pair(prefill=lambda n, b: (n > 0 or go.wait(60), (200, handoff()))[1], n=1)
    running = Asking(s)
    wait_for("the prefill leg", lambda: ps[0].n == 1)
    s.p.send_signal(signal.SIGTERM)

    def refuses():
        with contextlib.suppress(ConnectionError):
            return ask(s).status == 503
        return True
    wait_for("it refuses new ones", refuses)
    go.set()
    a = running.end()
    assert a is not None and a.status == 200 and a.headers["x-kvroute-disagg"] == "remote"


def test_two_routers_see_each_others_legs(legs, start):
    first, second = threading.Event(), threading.Event()
    p, d = legs(lambda n, b: (first.wait(60), prefills(n, b))[1]), legs(lambda n, b: (second.wait(60), decodes(n, b))[1])
    ports = free_ports(2)
    workers = [p.spec("prefill", "id=1"), d.spec("decode", "id=2")]
    a, b = (start(Serve, workers, "--replica-sync-port", ports + i, "--replica-sync-peers", f"tcp://127.0.0.1:{ports + 1 - i}") for i in range(2))
    for s in (a, b):
        wait_for("both up", lambda: all(w["status"] == "up" for w in s.get("/workers")))
        wait_for("peers", lambda: s.metric("replica_sync_live_peers") == 1)
    running = Asking(a)
    wait_for("the prefill leg is seen", lambda: booked(b, "prefill", "active_prefill_tokens") == 64 and booked(b, "decode") == 0)
    first.set()
    wait_for("the decode leg is seen", lambda: booked(b, "decode", "active_decode_blocks") == 4 and booked(b, "prefill") == 0)
    second.set()
    assert running.end().status == 200
    wait_for("nothing is booked", lambda: b.idle() and a.idle())


# ---- clients that leave, and workers that hold blocks --------------------------------------------------


def kv(m):
    return call(m.port, "GET", "/mock/kv").json()


def test_a_client_that_leaves_the_queue_is_asked_of_nobody(pair):
    go = threading.Event()
    s, ps, ds = pair("--router-queue-threshold", "0", prefill=lambda n, b: (go.wait(60), (200, handoff()))[1], n=1, keys=("max-num-batched-tokens=10",))
    first = Asking(s)
    wait_for("the first is computed", lambda: ps[0].n == 1)
    second = Leaving(s)
    wait_for("the second waits", lambda: s.metric("router_queue_pending_requests") == 1)
    second.leave()
    wait_for("it has left", lambda: s.metric("client_gone_total") == 1 and s.metric("router_queue_pending_requests") == 0)
    go.set()
    assert first.end().status == 200 and ps[0].n == ds[0].n == 1
    idle(s)


@pytest.mark.parametrize("protocol", ["vllm-nixl", "trtllm"])
def test_a_client_that_leaves_while_its_prompt_is_computed_leaves_nothing_held(start, protocol):
    s, ps, ds = fleet_of(start, protocol, ("--speedup-ratio", "0.01"), n=1, lease=60)
    going = Leaving(s, model="mock")
    wait_for("it is computed", lambda: booked(s, "prefill") == 1 and ps[0].metric("vllm:num_requests_running") == 1)
    going.leave()
    wait_for("the engine has stopped", lambda: ps[0].metric("vllm:num_requests_running") == 0)
    assert clean(s, ps + ds)["expired"] == 0 and ds[0].metric("vllm:prompt_tokens_total") == 0


def test_a_prefill_worker_that_does_not_notice_keeps_the_prompt_until_its_lease_is_over(start):
    s, ps, ds = fleet_of(start, "vllm-nixl", ("--speedup-ratio", "0.05", "--fault-ignore-abort"), n=1, lease=2)
    going = Leaving(s, model="mock")
    wait_for("it is computed", lambda: booked(s, "prefill") == 1 and ps[0].metric("vllm:num_requests_running") == 1)
    going.leave()
    wait_for("held all the same", lambda: kv(ps[0])["held"] or kv(ps[0])["released"]["expired"])
    assert clean(s, ps + ds)["expired"] == 1 and disagg(s, "possible_leaks") == 1


class MocksBetween:
    """Requests whose prompts are computed and held by a mock, while the decode worker has no room for them (until `free`)."""

    def __init__(self, start, *options, n=1, lease=60, **more):
        self.s, (self.p,), (self.d,) = fleet_of(start, "vllm-nixl", decode=("--speedup-ratio", "1"), options=(*BUSY, "--health-interval", "3600", *options),
                                                n=1, lease=lease, keys=",total-kv-blocks=8")
        freeze(self.p.p)
        self.requests = [Leaving(self.s, model="mock", prompt=[i * 64 + t for t in range(64)], **more) for i in range(n)]
        wait_for("the prefill legs", lambda: booked(self.s, "prefill") == n)
        whole = {"prompt": [1] * 96, "max_tokens": 100_000, "n": 2, "stream": True}  # which one worker has to take
        self.filler, r = read_sse(self.s.port, whole)
        assert r.read1(4)
        self.p.p.send_signal(signal.SIGCONT)
        wait_for("held", lambda: len(kv(self.p)["held"]) == n and booked(self.s, "prefill") == 0, 30)

    def leave(self):
        for r in self.requests:
            r.leave()
        wait_for("they have left", lambda: self.s.metric("client_gone_total") == len(self.requests), 30)

    def free(self):
        self.filler.sock.close() if self.filler.sock else None
        self.filler.close()


def test_a_client_that_leaves_between_the_legs_has_its_prompt_released(start):
    b = MocksBetween(start)
    b.leave()
    wait_for("released", lambda: kv(b.p)["released"]["pulled"] == 1)
    assert disagg(b.s, "releases", how="dispatched") == 1 and disagg(b.s, "possible_leaks") == 0
    b.free()
    assert clean(b.s, [b.p, b.d])["expired"] == 0


def test_a_client_that_leaves_between_the_legs_without_releases_leaves_it_to_the_lease(start):
    b = MocksBetween(start, "--disagg-release=false", lease=2)
    b.leave()
    b.free()
    told = clean(b.s, [b.p, b.d])
    assert told["expired"] == 1 and told["pulled"] == 0
    assert disagg(b.s, "possible_leaks") == 1 and disagg(b.s, "releases", how="dispatched") == 0


def test_many_clients_that_leave_at_once_have_a_bounded_number_of_releases(start):
    b = MocksBetween(start, n=300, lease=12)
    b.leave()
    b.free()
    released = disagg(b.s, "releases", how="dispatched")
    assert released <= 256 + kv(b.p)["released"]["pulled"] and released + disagg(b.s, "possible_leaks") == 300
    assert call(b.s.port, "POST", "/v1/completions", {"prompt": prompt_of(1), "max_tokens": 2}).status == 200
    told = clean(b.s, [b.p, b.d])
    assert told["pulled"] == released + 1 and told["expired"] == 300 - released


def test_a_prompt_that_was_held_too_long_is_computed_again(start):
    lease = 6
    b = MocksBetween(start, lease=lease)
    held = time.monotonic()
    wait_for("it is too old", lambda: time.monotonic() - held > 0.8 * lease)
    b.free()
    r = b.requests[0].c.getresponse()
    text = json.loads(r.read())["choices"][0]["text"]
    alone = start(Mock)
    assert r.status == 200 and text == call(alone.port, "POST", "/v1/completions", {**BODY, "model": "mock"}).json()["choices"][0]["text"]
    assert disagg(b.s, "leg_retries", leg="prefill") == 1
    told = clean(b.s, [b.p, b.d])
    assert told == {"pulled": 1, "notified": 0, "aborted": 0, "expired": 1}


def test_a_client_that_leaves_while_the_decode_worker_waits_has_its_prompt_notified(start):
    s, ps, ds = fleet_of(start, "vllm-nixl", decode=("--kv-latency", "600"), n=1, lease=60)
    going = Leaving(s, model="mock")
    wait_for("the decode worker has it", lambda: booked(s, "decode") == 1 and
             ds[0].metric("vllm:num_requests_waiting") + ds[0].metric("vllm:num_requests_running") == 1)
    going.leave()
    wait_for("told", lambda: kv(ps[0])["released"]["notified"] == 1)
    assert clean(s, ps + ds)["expired"] == 0


@pytest.mark.parametrize("protocol", ["vllm-nixl", "trtllm", "none", *AT_ONCE])
def test_a_client_that_leaves_while_its_answer_streams_leaves_nothing_booked(start, protocol):
    s, ps, ds = fleet_of(start, protocol, decode=("--speedup-ratio", "1"), n=1, lease=60)
    c, r = read_sse(s.port, {**BODY, "model": "mock", "max_tokens": 100_000, "stream": True})
    assert r.read1(4)
    c.sock.close() if c.sock else None
    r.close()
    c.close()
    assert clean(s, ps + ds)["expired"] == 0
    wait_for("the engine has stopped", lambda: ds[0].metric("vllm:num_requests_running") == 0)


def test_what_a_router_leaves_behind_that_was_killed_goes_with_the_leases(start):
    s, ps, ds = fleet_of(start, "vllm-nixl", decode=("--kv-latency", "600"), lease=2)
    before = [Leaving(s, model="mock", prompt=[i * 64 + t for t in range(64)]) for i in range(10)]
    wait_for("between the legs or later", lambda: booked(s, "decode") == 10)
    for p in ps:
        freeze(p.p)
    before += [Leaving(s, model="mock", prompt=[i * 64 + t for t in range(64)]) for i in range(10, 20)]
    wait_for("prompts under way", lambda: booked(s, "prefill") == 10)
    s.kill()
    for p in ps:
        p.p.send_signal(signal.SIGCONT)
    for m in ps + ds:
        wait_for("nothing held", lambda: not kv(m)["held"] and kv(m)["waiting_rooms"] == 0 and m.metric("vllm:num_requests_running") == 0, 30)
    assert sum(kv(m)["bad_pulls"] for m in ps + ds) == 0
    for x in before:
        x.leave()


@pytest.mark.parametrize("protocol", AT_ONCE)
def test_what_a_router_leaves_of_legs_at_once_that_was_killed_goes(start, protocol):
    s, ps, ds = fleet_of(start, protocol, ("--speedup-ratio", "0.01"), ("--bootstrap-timeout", "2"), lease=2)
    before = [Leaving(s, model="mock", prompt=[i * 64 + t for t in range(64)]) for i in range(10)]
    wait_for("both legs", lambda: booked(s, "prefill") == booked(s, "decode") == 10)
    s.kill()
    for m in ps + ds:
        wait_for("nothing held", lambda: not kv(m)["held"] and kv(m)["waiting_rooms"] == 0 and m.metric("vllm:num_requests_running") == 0, 30)
    assert sum(kv(m)["bad_pulls"] for m in ps + ds) == 0
    for x in before:
        x.leave()
