# SPDX-License-Identifier: Apache-2.0
"""The endpoint picker, asked by python3-grpcio as Envoy asks: what it decides, when, and that each booking ends once. tests/gateway has a real Envoy."""
import json
import os
import random
import socket
import struct
import subprocess
import threading

import pytest

pytest.importorskip("grpc", reason="python3-grpcio is not installed")
import grpc  # noqa: E402
from conftest import BINARY, SLOW, Mock, Serve, free_ports, stays, wait_for  # noqa: E402
from h2_parts import ACK, DATA, RST_STREAM, SETTINGS, WINDOW_UPDATE, Raw, message  # noqa: E402
from picker_parts import BUFFERED, DESTINATION, DUPLEX, NONE, PARTIAL, STREAMED, Observing, Picker, Talk, built, channel_to, header_map, pb, set_by  # noqa: E402

pytestmark = pytest.mark.skipif(not built(), reason="built without nghttp2")
EVENT = b'data: {"id":"a","choices":[{"text":"x"}]}\n\n'
PROMPT = json.dumps({"prompt": list(range(64)), "max_tokens": 4, "model": "mock"}).encode()


@pytest.fixture
def talk():
    made = []

    def to(picker, metadata=()):
        made.append(channel_to(picker.grpc))
        return Talk(made[-1], metadata)
    yield to
    for channel in made:
        channel.close()


def ask(t, modes=(BUFFERED, STREAMED), body=PROMPT, **kw):
    """Returns: the headers that are set."""
    t.head(modes=modes, **kw)
    t.body(body)
    if modes[0] in (BUFFERED, PARTIAL):
        assert t.heard().request_headers.response == pb.CommonResponse()
    return t.decision()


def ended(t):
    with pytest.raises(StopIteration):
        t.heard()


def test_the_decision_is_told_and_the_booking_ends_with_the_response(start, talk):
    m = start(Mock)
    p = start(Picker, [m])
    t = talk(p)
    said = ask(t)
    assert said[DESTINATION] == f"127.0.0.1:{m.port}" and said["x-kvroute-worker"] == "1" and said["x-kvroute-reason"]
    assert p.booked() == 1
    t.response(address=f"127.0.0.1:{m.port}", content_type="text/event-stream")
    assert set_by(t.heard().response_headers)["x-kvroute-worker"] == "1"
    assert p.get("/loads")[0]["active_prefill_tokens"] > 0  # headers are no sign of a first token
    t.response_body(EVENT)
    assert t.heard().response_body.response == pb.CommonResponse()
    assert p.get("/loads")[0]["active_prefill_tokens"] == 0 and p.booked() == 1
    t.response_body(b"data: [DONE]\n\n", end=True)
    t.heard()
    assert p.booked() == 0
    t.close()
    ended(t)
    assert p.metric("requests_total") == 1 and p.metric("ext_proc_decisions_total") == 1


def test_a_body_that_goes_both_ways_comes_back_in_pieces_behind_the_decision(start, talk):
    m = start(Mock)
    p = start(Picker, [m])
    t = talk(p)
    body = PROMPT[:-1] + b',"user":"' + b"u" * 150000 + b'"}'
    t.head(modes=(DUPLEX, DUPLEX))
    for i in range(0, len(body), 40000):
        t.body(body[i:i + 40000], end=False)
    t.body(b"")
    assert t.decision()[DESTINATION].endswith(str(m.port))
    got, end = b"", False
    while not end:
        piece = t.heard().request_body.response.body_mutation.streamed_response
        assert len(piece.body) <= 62000
        got, end = got + piece.body, piece.end_of_stream
    assert got == body
    t.response(content_type="application/json")
    t.heard()
    t.response_body(b'{"a":1}', end=True)
    echo = t.heard().response_body.response.body_mutation.streamed_response
    assert echo.body == b'{"a":1}' and echo.end_of_stream and p.booked() == 0


def test_a_body_that_the_gateway_takes_slowly_comes_back_whole(start):
    """Its bytes are sent from where they lie: they stay there while somebody waits for them, and no longer."""
    s = start(Picker, [start(Mock)])
    body = json.dumps({"prompt": [1, 2, 3], "user": "".join(map(str, range(300000)))}).encode()
    pieces = [body[i:i + 65536] for i in range(0, len(body), 65536)]
    parts = [pb.ProcessingRequest(request_headers=pb.Headers(headers=header_map({":method": "POST", ":path": "/v1/completions", ":authority": "x"})),
                                  protocol_config=pb.Modes(request_body_mode=DUPLEX, response_body_mode=NONE)),
             *(pb.ProcessingRequest(request_body=pb.Body(body=p, end_of_stream=p is pieces[-1])) for p in pieces)]
    raw = Raw(s.grpc)
    raw.send(SETTINGS, ACK, 0)
    raw.send(WINDOW_UPDATE, 0, 0, struct.pack("!I", 1 << 24))
    for stream in (1, 3):
        raw.call(stream, b"/envoy.service.ext_proc.v3.ExternalProcessor/Process")
        for whole in (message(p.SerializeToString()) for p in parts):
            for i in range(0, len(whole), 16384):
                raw.send(DATA, 0, stream, whole[i:i + 16384])
    raw.until(DATA, stream=1)
    raw.send(RST_STREAM, 0, 1, struct.pack("!I", 8))  # nobody takes its rest
    got, back, ended = b"", b"", False
    while not ended:
        got += raw.until(DATA, stream=3)
        raw.send(WINDOW_UPDATE, 0, 3, struct.pack("!I", 10000))
        while len(got) >= 5 and len(got) >= 5 + int.from_bytes(got[1:5], "big"):
            n = 5 + int.from_bytes(got[1:5], "big")
            piece = pb.ProcessingResponse.FromString(got[5:n]).request_body.response.body_mutation.streamed_response
            got, back, ended = got[n:], back + piece.body, piece.end_of_stream
    assert back == body
    raw.send(RST_STREAM, 0, 3, struct.pack("!I", 8))
    wait_for("its memory to be free", lambda: s.metric("kvroute_http_request_bodies_bytes") == 0)


@pytest.mark.parametrize("stage", ["head", "body", "decided", "response", "stream"])
def test_a_client_that_leaves_gives_its_booking_back(start, talk, stage):
    p = start(Picker, [start(Mock)])
    t = talk(p)
    t.head()
    if stage != "head":
        t.body(PROMPT[:-5], end=False) if stage == "body" else t.body(PROMPT)
    t.heard()
    if stage not in ("head", "body"):
        t.decision()
        assert p.booked() == 1
    if stage in ("response", "stream"):
        t.response(content_type="text/event-stream")
        t.heard()
    if stage == "stream":
        t.response_body(EVENT)
        t.heard()
    t.call.cancel()
    wait_for("nothing booked", lambda: p.booked() == 0)
    wait_for("no stream", lambda: p.metric("grpc_streams", port="ext_proc") == 0)


SEED, PICKS = int(os.environ.get("KVR_SEED", "1")), int(os.environ.get("KVR_PICKS", "240"))


def end_anyhow(t, rng):
    if rng.random() < 0.5:
        t.close()
        for _ in t.call:
            pass
    else:
        t.cancel()


def mixed(rng, a, b):
    """Both, each in its order."""
    out, a, b = [], a[::-1], b[::-1]
    while a or b:
        out.append((a if not b or a and rng.random() < 0.5 else b).pop())
    return out


def play(t, rng, observing):
    """One request, up to a moment of its life at which its client, or the gateway, goes. `observing`: makes a stream that observes."""
    modes = rng.choice(((BUFFERED, STREAMED), (BUFFERED, NONE), (DUPLEX, DUPLEX), (DUPLEX, NONE), (NONE, STREAMED)))
    prompt = [rng.randrange(9)] * 16 * rng.randrange(1, 9)
    name = f"r{rng.randrange(40)}"  # some have one at a time that others have too
    status = rng.choice((200, 200, 200, 500, 503))
    steps = [lambda: t.head(modes=modes, end=modes[0] == NONE, x_request_id=name),
             lambda: t.body(json.dumps({"prompt": prompt, "model": "mock"}).encode()) if modes[0] else None,
             lambda: wait_for("decision", lambda: DESTINATION in t.decision()), lambda: t.response(status=status, content_type="text/event-stream"),
             lambda: [t.response_body(EVENT) for _ in range(3)] if modes[1] else None, lambda: t.response_body(b"data: [DONE]\n\n", end=True) if modes[1] else None,
             lambda: end_anyhow(t, rng)]
    steps = steps[:rng.randrange(1, len(steps))] + steps[-1:]
    if rng.random() < 0.5:
        made = []
        others = [lambda: made.append(observing(name)), lambda: made[0].response(status=status, content_type="text/event-stream"),
                  *[lambda: made[0].response_body(EVENT)] * rng.randrange(40), lambda: made[0].response_body(b"data: [DONE]\n\n", end=True)]
        steps = mixed(rng, steps, others[:rng.randrange(1, len(others) + 1)] + [lambda: end_anyhow(made[0], rng)])
    for step in steps:
        step()


def test_many_at_once_that_end_anyhow_leave_nothing_booked(start):
    """KVR_PICKS and KVR_SEED for more of them."""
    p = start(Picker, [start(Mock) for _ in range(3)], "--threads", 3, "--ext-proc-unseen-secs", 0.5)
    failed = []

    def client(n):
        rng = random.Random(f"{SEED} {n}")
        for _ in range(PICKS // 12):
            with channel_to(p.grpc) as c, channel_to(p.grpc) as other:
                for _ in range(4 if PICKS > 1000 else 1):
                    t = Talk(c)
                    try:
                        play(t, rng, lambda name: Observing(rng.choice((c, other)), name))
                    except grpc.RpcError as e:
                        if e.code() != grpc.StatusCode.CANCELLED:
                            failed.append(e)
    clients = [threading.Thread(target=client, args=(n,)) for n in range(12)]
    for c in clients:
        c.start()
    for c in clients:
        c.join()
    assert not failed, failed[0]
    wait_for("no stream", lambda: p.metric("grpc_streams", port="ext_proc") == 0)
    wait_for("nothing booked", lambda: p.booked() == 0)
    assert p.metric("requests_active") == 0 and p.metric("http_bodies_held_bytes", port="data") == 0


def test_a_request_without_a_body_is_decided_at_its_headers(start, talk):
    p = start(Picker, [start(Mock)])
    t = talk(p)
    t.head("/v1/models", method="GET", end=True, modes=(DUPLEX, DUPLEX))
    assert DESTINATION in t.decision()
    ended(t)
    wait_for("nothing booked", lambda: p.booked() == 0)


def test_an_unknown_path_is_passed_on_with_its_body(start, talk):
    p = start(Picker, [start(Mock)])
    t = talk(p)
    t.head("/other", modes=(DUPLEX, DUPLEX), content_length="200000")
    assert DESTINATION in t.decision()
    t.body(b"x" * 200000)
    got = b""
    for answer in t.call:
        got += answer.request_body.response.body_mutation.streamed_response.body
    assert got == b"x" * 200000


def test_a_body_for_an_unknown_path_that_comes_while_there_is_no_worker_is_kept(start, talk):
    p = start(Picker, [], ready=False)
    t = talk(p)
    t.head("/other", modes=(DUPLEX, DUPLEX))
    t.body(b"first ", end=False)
    t.body(b"last")
    wait_for("held", lambda: p.metric("grpc_held_bytes", port="ext_proc") >= 10)
    m = start(Mock)
    assert p.post("/workers", {"worker_id": 1, "endpoint": f"http://127.0.0.1:{m.port}"}).status == 201
    assert DESTINATION in t.decision()
    assert b"".join(a.request_body.response.body_mutation.streamed_response.body for a in t.call) == b"first last"


def test_the_clients_key_stays_here_and_the_worker_gets_its_own(start, talk, tmp_path):
    (tmp_path / "keys.yaml").write_text("keys:\n- name: alice\n  key: sk-alice-0123456789\n")
    p = start(Picker, [start(Mock)], "--api-key-file", tmp_path / "keys.yaml")
    assert ask_refused(talk(p)).status.code == 401
    t = talk(p)
    t.head(authorization="Bearer sk-alice-0123456789")
    t.body(PROMPT)
    t.heard()
    assert b"authorization" in t.heard().request_body.response.header_mutation.remove_headers
    p = start(Picker, [start(Mock).spec(",api-key=of-the-worker")])
    assert ask(talk(p))["authorization"] == "Bearer of-the-worker"


def test_a_prefix_that_the_gateway_will_take_away_hides_no_path(start, talk):
    p = start(Picker, [start(Mock)])
    t = talk(p)
    assert ask(t, path="/team/a/v1/completions?x=1", content_length=str(len(PROMPT)))["x-kvroute-overlap-blocks"] == "0"
    t.response(end=True)
    t.heard()
    wait_for("nothing booked", lambda: p.booked() == 0)


def test_bodies_that_are_not_shown_are_chosen_by_load(start, talk):
    p = start(Picker, [start(Mock)])
    t = talk(p)
    t.head(modes=(STREAMED, STREAMED))
    assert DESTINATION in t.decision()
    t.body(PROMPT)
    assert t.heard().request_body.response == pb.CommonResponse()
    t = talk(p)
    t.head(modes=(PARTIAL, STREAMED))
    t.body(PROMPT[:20], end=False)
    t.heard()
    assert t.decision()["x-kvroute-reason"] == "load-body-cut"
    assert p.metric("ext_proc_by_load_total") == 1


def test_the_choice_keeps_to_the_subset(start, talk):
    mocks = [start(Mock) for _ in range(3)]
    p = start(Picker, mocks)
    for m in mocks:
        assert ask(talk(p), subset=[f"127.0.0.1:{m.port}"])[DESTINATION] == f"127.0.0.1:{m.port}"
    for subset in ([], ["10.0.0.1:80"]):
        refused = ask_refused(talk(p), subset=subset)
        assert refused.status.code == 503 and dict_of(refused)["x-llm-d-request-dropped-reason"] == "rejected-no-endpoints"


def test_the_choice_keeps_to_the_pool_that_the_gateway_names_or_the_port_has(start, talk):
    mocks = [start(Mock) for _ in range(3)]
    p = start(Picker, [m.spec(f",group={g}") for m, g in zip(mocks, ("red", "red", "blue"))], "--pool", "red")
    for pool, ports in (("blue", [mocks[2].port]), ("red", [m.port for m in mocks[:2]]), (None, [m.port for m in mocks[:2]])):
        said = {ask(talk(p, pool and (("x-kvroute-group", pool),)))[DESTINATION] for _ in range(4)}
        assert said <= {f"127.0.0.1:{port}" for port in ports}, (pool, said)
    t = talk(p, (("x-kvroute-group", "green"),))
    assert ask_refused(t).status.code == 404


def dict_of(immediate):
    return {h.header.key.decode(): h.header.raw_value.decode() for h in immediate.headers.set_headers}


def ask_refused(t, body=PROMPT, **kw):
    t.head(**kw)
    t.body(body)
    answers = list(t.call)
    assert answers[-1].WhichOneof("response") == "immediate_response", answers
    return answers[-1].immediate_response


@pytest.mark.parametrize("body,status", [(b"{", 400), (json.dumps({"prompt": "x", "model": "nobody"}).encode(), 404)])
def test_what_the_router_refuses_the_gateway_answers(start, talk, body, status):
    p = start(Picker, [start(Mock)])
    refused = ask_refused(talk(p), body=body)
    assert refused.status.code == status and json.loads(refused.body)["error"]["message"] and refused.details == f"kvroute_{status}".encode()
    assert dict_of(refused)["content-type"] == "application/json"


def test_too_large_a_body_is_refused_before_it_is_held(start, talk):
    p = start(Picker, [start(Mock)], "--max-body-size", "1MiB")
    t = talk(p)
    t.head(content_length=str(2 << 20))
    assert [a.immediate_response.status.code for a in t.call] == [413]


def test_who_waits_asks_the_gateway_to_wait_and_goes_when_its_turn_comes(start, talk):
    p = start(Picker, [start(Mock)], "--router-queue-requests", 1, "--queue-timeout", 50)
    first, second = talk(p), talk(p)
    ask(first)
    second.head()
    second.body(PROMPT)
    second.heard()
    assert second.heard().override_message_timeout.seconds > 40
    first.call.cancel()
    assert DESTINATION in second.decision()


def test_requests_of_a_negative_objective_do_not_wait(start, talk):
    p = start(Picker, [start(Mock)], "--router-queue-requests", 1, "--objective", "batch=-1,chat=5")
    running = talk(p)
    ask(running)
    refused = ask_refused(talk(p), x_gateway_inference_objective="batch")
    assert refused.status.code == 429 and dict_of(refused)["x-llm-d-request-dropped-reason"] == "rejected-saturated" and dict_of(refused)["retry-after"]


@pytest.mark.parametrize("objectives", ["chat", "=1", "chat=", "chat=high", "chat=1,batch=2x", "chat=99999999999"])
def test_an_objective_without_a_number_is_refused_at_the_start(objectives):
    r = subprocess.run([BINARY, "epp", "--check", "--objective", objectives], capture_output=True, text=True, timeout=20 * SLOW, check=False)
    assert r.returncode and "objective: allowed: NAME=PRIORITY" in r.stdout + r.stderr, r.stdout + r.stderr


def test_a_health_port_that_is_taken_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        r = subprocess.run([BINARY, "epp", "--host", "127.0.0.1", "--ext-proc-tls", "off", "--ext-proc-port", str(free_ports()), "--ext-proc-health-port", str(port),
                            "--admin-port", str(free_ports())], capture_output=True, text=True, timeout=20 * SLOW, check=False)
    assert r.returncode == 1 and f"kvroute epp: --ext-proc-health-port: cannot listen on 127.0.0.1:{port}" in r.stderr, r.stderr


def test_a_response_that_is_not_shown_ends_with_the_stream_or_by_its_time(start, talk):
    p = start(Picker, [start(Mock)], "--ext-proc-unseen-secs", 1)
    t = talk(p)
    ask(t, modes=(BUFFERED, NONE))
    t.response(content_type="text/event-stream")
    t.heard()
    stays("booked", lambda: p.booked() == 1, 0.3)
    t.close()
    wait_for("free", lambda: p.booked() == 0)
    assert p.metric("ext_proc_unseen_total") == 0
    t = talk(p)
    ask(t, modes=(DUPLEX, NONE))
    t.heard()
    t.response(content_type="text/event-stream")
    t.heard()
    t.close()
    ended(t)
    assert p.metric("grpc_streams", port="ext_proc") == 0
    wait_for("free", lambda: p.booked() == 0)
    assert p.metric("ext_proc_unseen_total") == 1


# ---- a second stream that observes ------------------------------------------------------------------------------------------

USAGE = b'data: {"id":"a","choices":[],"usage":{"prompt_tokens":64,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":0}}}\n\n'


@pytest.fixture
def observe():
    """A stream that observes, on a connection of its own, which may be of any loop."""
    made = []

    def to(picker, name=None):
        made.append(channel_to(picker.grpc))
        return Observing(made[-1], name)
    yield to
    for channel in made:
        channel.close()


def respond(t, **kw):
    t.response(content_type="text/event-stream", **kw)


def observed_whole(o):
    """What is left of a response that has begun."""
    o.response_body(EVENT)
    o.response_body(USAGE)
    o.response_body(b"data: [DONE]\n\n", end=True)
    ended(o)


@pytest.mark.parametrize("first", ["observer", "asking"])
@pytest.mark.parametrize("request_body", [BUFFERED, DUPLEX])
def test_the_end_and_the_usage_are_heard_of_a_stream_that_observes(start, talk, observe, request_body, first):
    """Eight of them: some have both streams on one loop, some not."""
    p = start(Picker, [start(Mock)], "--threads", 3, "--ext-proc-unseen-secs", 300)
    for i in range(8):
        o = observe(p, f"r{i}") if first == "observer" else None
        t = talk(p)
        ask(t, modes=(request_body, NONE), x_request_id=f"r{i}")
        o = o or observe(p, f"r{i}")
        if first == "observer":
            respond(t)
            t.heard() if request_body == BUFFERED else [t.heard(), t.heard()]
            respond(o)
        else:  # the filter that observes hears of the response first
            respond(o)
            wait_for("observed", lambda: p.metric("ext_proc_observed_total") == i + 1)
            respond(t)
            t.heard() if request_body == BUFFERED else [t.heard(), t.heard()]
        wait_for("observed", lambda: p.metric("ext_proc_observed_total") == i + 1)
        assert p.get("/loads")[0]["active_prefill_tokens"] > 0
        t.close()
        ended(t)
        stays("booked", lambda: p.booked() == 1, 0.1)
        o.response_body(EVENT)
        wait_for("computed", lambda: p.get("/loads")[0]["active_prefill_tokens"] == 0)
        assert p.booked() == 1
        observed_whole(o)
        wait_for("free", lambda: p.booked() == 0)
        assert p.metric("usage_answers_total") == i + 1 and p.metric("requests_active") == 0
    assert p.metric("ext_proc_unseen_total") == 0 and p.metric("client_gone_total") == 0


def test_the_asking_stream_that_ends_last_finds_nothing_to_end(start, talk, observe):
    p = start(Picker, [start(Mock)], "--threads", 3)
    for i in range(4):
        t, o = talk(p), observe(p, f"r{i}")
        ask(t, modes=(BUFFERED, NONE), x_request_id=f"r{i}")
        respond(t)
        t.heard()
        respond(o)
        observed_whole(o)
        wait_for("free", lambda: p.booked() == 0)
        t.close()
        ended(t)
    assert p.metric("usage_answers_total") == 4 and p.metric("requests_active") == 0
    wait_for("no stream", lambda: p.metric("grpc_streams", port="ext_proc") == 0)


def test_headers_that_both_streams_tell_are_heard_once(start, talk, observe):
    p = start(Picker, [start(Mock)])
    for i in range(2):
        t, o = talk(p), observe(p, f"r{i}")
        ask(t, modes=(BUFFERED, NONE), x_request_id=f"r{i}")
        for stream in (t, o) if i else (o, t):
            respond(stream, address="10.0.0.1:80")
        t.heard()
        wait_for("observed", lambda: p.metric("ext_proc_observed_total") == i + 1)
        assert p.metric("ext_proc_served_elsewhere_total") == i + 1 and p.booked() == 0
        observed_whole(o)


def test_a_lease_ends_no_response_that_is_observed(start, talk, observe):
    p = start(Picker, [start(Mock)], "--ext-proc-unseen-secs", 0.3)
    t = talk(p)
    ask(t, modes=(DUPLEX, NONE), x_request_id="r")
    respond(t)
    o = observe(p, "r")
    respond(o)
    wait_for("observed", lambda: p.metric("ext_proc_observed_total") == 1)
    t.close()
    stays("booked", lambda: p.booked() == 1, 1)
    observed_whole(o)
    wait_for("free", lambda: p.booked() == 0)
    assert p.metric("ext_proc_unseen_total") == 0


def test_a_stream_that_observes_and_comes_late_stops_the_lease(start, talk, observe):
    """As on a connection that is behind. It may have come too late: then another one is tried."""
    p = start(Picker, [start(Mock)], "--threads", 3, "--ext-proc-unseen-secs", 1)
    for i in range(20):
        t = talk(p)
        ask(t, modes=(DUPLEX, NONE), x_request_id=f"r{i}")
        respond(t)
        t.heard(), t.heard()
        t.close()
        ended(t)
        o = observe(p, f"r{i}")
        respond(o)
        wait_for("told", lambda: p.metric("ext_proc_observed_total") + p.metric("ext_proc_observers_unknown_total") == i + 1)
        if p.metric("ext_proc_unseen_total") == i:
            break
    stays("booked", lambda: p.booked() == 1, 1.5)
    observed_whole(o)
    wait_for("free", lambda: p.booked() == 0)
    assert p.metric("ext_proc_unseen_total") == i and p.metric("usage_answers_total") == 1


def test_a_router_that_ends_waits_for_the_stream_that_observes(start, talk, observe):
    p = start(Picker, [start(Mock)], "--threads", 3, "--ext-proc-unseen-secs", 300)
    t, o = talk(p), observe(p, "r")
    ask(t, modes=(DUPLEX, NONE), x_request_id="r")
    respond(t)
    respond(o)
    wait_for("observed", lambda: p.metric("ext_proc_observed_total") == 1)
    t.close()
    p.p.terminate()
    for _ in range(3):
        o.response_body(EVENT)
    wait_for("it drains", lambda: "draining" in p.text())
    stays("running", lambda: p.p.poll() is None, 0.3)
    observed_whole(o)
    p.p.wait(30 * SLOW)
    assert p.p.returncode == 0 and "0 cut off" in p.text()


@pytest.mark.parametrize("request_body", [BUFFERED, DUPLEX])
def test_a_client_that_leaves_in_the_middle_is_heard_of_the_stream_that_observes(start, talk, observe, request_body):
    p = start(Picker, [start(Mock)], "--ext-proc-unseen-secs", 300)
    t, o = talk(p), observe(p, "r")
    ask(t, modes=(request_body, NONE), x_request_id="r")
    respond(t)
    respond(o)
    o.response_body(EVENT)
    wait_for("computed", lambda: p.get("/loads")[0]["active_prefill_tokens"] == 0)
    t.close()
    stays("booked", lambda: p.booked() == 1, 0.2)
    o.call.cancel()
    wait_for("free", lambda: p.booked() == 0)
    assert p.metric("client_gone_total") == 1 and p.metric("ext_proc_unseen_total") == 0


def test_a_client_that_leaves_before_its_response_is_waited_for_by_nobody(start, talk, observe):
    p = start(Picker, [start(Mock)], "--ext-proc-unseen-secs", 300)
    t, o = talk(p), observe(p, "r")
    ask(t, modes=(BUFFERED, NONE), x_request_id="r")
    t.call.cancel()
    wait_for("free", lambda: p.booked() == 0)
    assert p.metric("client_gone_total") == 1
    o.close()
    ended(o)


@pytest.mark.parametrize("early", [True, False])
def test_a_stream_that_observes_and_tells_nothing_leaves_the_end_to_the_asking_one(start, talk, observe, early):
    p = start(Picker, [start(Mock)], "--ext-proc-unseen-secs", 0.5 if early else 2)
    for i, (request_body, unseen) in enumerate(((BUFFERED, 0), (DUPLEX, 1))):
        t, o = talk(p), observe(p, f"r{i}")
        ask(t, modes=(request_body, NONE), x_request_id=f"r{i}")
        if early:
            o.close()
            ended(o)
        respond(t)
        t.heard() if request_body == BUFFERED else [t.heard(), t.heard()]
        assert p.booked() == 1
        t.close()
        if not early:
            ended(t)
            stays("booked", lambda: p.booked() == 1, 0.2)
            o.close()
        wait_for("free", lambda: p.booked() == 0)
        assert p.metric("ext_proc_unseen_total") == unseen and p.metric("client_gone_total") == 0


@pytest.mark.parametrize("name", [None, "", "nobody", "x" * 128, "x" * 100000, "r\0", "r r", "\xff"])
def test_a_stream_that_observes_a_request_of_nobody_is_told_to_end(start, talk, observe, name):
    p = start(Picker, [start(Mock)])
    t = talk(p)
    ask(t, modes=(BUFFERED, NONE), x_request_id="r")
    o = observe(p, name)
    respond(o)
    o.response_body(USAGE, end=True)
    ended(o)
    assert p.booked() == 1 and p.metric("ext_proc_observers_unknown_total") == 1 and p.metric("ext_proc_observed_total") == 0
    respond(t)
    t.heard()
    t.close()
    wait_for("free", lambda: p.booked() == 0)
    assert p.metric("usage_answers_total") == 0


def test_a_request_whose_response_is_shown_is_not_observed(start, talk, observe):
    p = start(Picker, [start(Mock)])
    t, o = talk(p), observe(p, "r")
    ask(t, modes=(BUFFERED, STREAMED), x_request_id="r")
    respond(o)
    ended(o)
    respond(t)
    t.heard()
    for piece in EVENT, USAGE:
        t.response_body(piece)
        t.heard()
    t.response_body(b"data: [DONE]\n\n", end=True)
    t.heard()
    assert p.booked() == 0 and p.metric("usage_answers_total") == 1 and p.metric("ext_proc_observers_unknown_total") == 1


def test_a_second_stream_that_observes_a_request_is_refused_and_counted(start, talk, observe):
    p = start(Picker, [start(Mock)], "--threads", 3)
    t, o = talk(p), observe(p, "r")
    ask(t, modes=(BUFFERED, NONE), x_request_id="r")
    respond(t)
    t.heard()
    respond(o)
    wait_for("observed", lambda: p.metric("ext_proc_observed_total") == 1)
    second = observe(p, "r")
    respond(second)
    second.response_body(USAGE, end=True)
    ended(second)
    assert p.metric("ext_proc_observers_refused_total") == 1 and p.booked() == 1
    observed_whole(o)
    wait_for("free", lambda: p.booked() == 0)
    assert p.metric("usage_answers_total") == 1


def test_two_requests_of_one_id_are_not_taken_for_each_other(start, talk, observe):
    p = start(Picker, [start(Mock)], "--threads", 3)
    first, second, o = talk(p), talk(p), observe(p, "r")
    for t in first, second:
        ask(t, modes=(BUFFERED, NONE), x_request_id="r")
    respond(o)
    ended(o)
    assert p.metric("ext_proc_observers_refused_total") == 1 and p.booked() == 2
    for left, t in (1, second), (0, first):
        respond(t)
        t.heard()
        t.close()
        wait_for("one less", lambda: p.booked() == left)
    assert p.metric("usage_answers_total") == 0


def test_a_response_from_elsewhere_moves_the_booking_and_blames_nobody(start, talk):
    mocks = [start(Mock), start(Mock)]
    p = start(Picker, mocks, "--ext-proc-fallbacks", 1)
    t = talk(p)
    endpoints = ask(t)[DESTINATION].split(",")
    assert sorted(endpoints) == sorted(f"127.0.0.1:{m.port}" for m in mocks)
    t.response(address=endpoints[1], content_type="text/event-stream")
    t.heard()
    other = [i + 1 for i, m in enumerate(mocks) if endpoints[1].endswith(str(m.port))]
    assert [x["worker_id"] for x in p.get("/loads") if x["active_requests"]] == other
    assert p.metric("ext_proc_served_elsewhere_total") == 1
    t.response_body(b"", end=True)
    t.heard()
    assert p.booked() == 0


def test_both_workers_of_two_legs_are_told(start, talk):
    prefill, decode = start(Mock), start(Mock)
    p = start(Picker, [prefill.spec(",role=prefill"), decode.spec(",role=decode")])
    t = talk(p)
    said = ask(t)
    assert said[DESTINATION] == f"127.0.0.1:{decode.port}" and said["x-prefiller-host-port"] == f"127.0.0.1:{prefill.port}"
    assert p.booked() == 2
    t.response(address=said[DESTINATION], content_type="text/event-stream")
    t.heard()
    t.response_body(EVENT)
    t.heard()
    assert p.booked() == 1  # the prompt is computed
    t.response_body(b"data: [DONE]\n\n", end=True)
    t.heard()
    assert p.booked() == 0


def test_a_header_that_only_a_picker_may_set_is_taken_from_clients(start, talk):
    p = start(Picker, [start(Mock)])
    t = talk(p)
    t.head(x_prefiller_host_port="10.0.0.1:80")
    t.body(PROMPT)
    t.heard()
    assert b"x-prefiller-host-port" in t.heard().request_body.response.header_mutation.remove_headers


def test_messages_out_of_turn_end_the_stream_and_nothing_else(start, talk):
    p = start(Picker, [start(Mock)])
    for first in ({"response_headers": pb.Headers()}, {"request_body": pb.Body(body=b"x")}, {}):
        t = talk(p)
        t.say(**first)
        with pytest.raises(grpc.RpcError) as e:
            t.heard()
        assert e.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    t = talk(p)
    t.head()
    t.head()
    t.heard()
    with pytest.raises(grpc.RpcError) as e:
        t.heard()
    assert e.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    t = talk(p)
    ask(t)
    t.body(PROMPT)  # one too many
    t.response(end=True)
    t.heard()
    wait_for("nothing booked", lambda: p.booked() == 0)


def test_header_values_that_would_end_a_line_are_refused(start, talk):
    p = start(Picker, [start(Mock)])
    assert ask_refused(talk(p), x_a="1\r\nx-b: 2").status.code == 400
    assert ask_refused(talk(p), path="no path").status.code == 400


def test_health_is_told_by_name(start):
    p = start(Picker, [start(Mock)])
    for port in (p.grpc, p.health):
        with channel_to(port) as c:
            check = c.unary_unary("/grpc.health.v1.Health/Check", pb.HealthCheckRequest.SerializeToString, pb.HealthCheckResponse.FromString)
            for name in (b"", b"liveness", b"readiness", b"inference-extension", b"envoy.service.ext_proc.v3.ExternalProcessor"):
                assert check(pb.HealthCheckRequest(service=name), timeout=20 * SLOW).status == 1
            with pytest.raises(grpc.RpcError) as e:
                check(pb.HealthCheckRequest(service=b"other"), timeout=20 * SLOW)
            assert e.value.code() == grpc.StatusCode.NOT_FOUND
            if port == p.health:
                with pytest.raises(grpc.RpcError) as e:
                    Talk(c).heard()
                assert e.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_who_watches_hears_that_no_worker_is_left(start):
    m = start(Mock)
    p = start(Picker, [m])
    with channel_to(p.grpc) as c:
        watch = c.unary_stream("/grpc.health.v1.Health/Watch", pb.HealthCheckRequest.SerializeToString, pb.HealthCheckResponse.FromString)
        told = watch(pb.HealthCheckRequest(service=b"readiness"), timeout=60 * SLOW)
        assert next(told).status == 1
        m.kill()
        assert next(told).status == 2
        told.cancel()


def test_a_router_that_ends_lets_running_requests_end(start, talk):
    p = start(Picker, [start(Mock)])
    t = talk(p)
    ask(t)
    p.p.terminate()
    t.response(content_type="text/event-stream")
    t.heard()
    t.response_body(EVENT)
    t.heard()
    t.response_body(b"data: [DONE]\n\n", end=True)
    t.heard()
    t.close()
    ended(t)
    p.p.wait(30 * SLOW)
    assert p.p.returncode == 0


def test_the_first_line_tells_the_ports(start):
    ask = free_ports()
    s = start(Serve, [], "--ext-proc-port", ask, "--ext-proc-tls", "off", ready=False)
    assert f"kvroute serve: data on 127.0.0.1:{s.port}, ext_proc on 127.0.0.1:{ask}, admin on http://127.0.0.1:{s.admin}/" in s.text()


def test_refusals_that_nobody_reads_waited_without_a_limit(start):
    s = start(Picker, [start(Mock)])
    raw = Raw(s.grpc)
    raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    raw.socket.settimeout(3 * SLOW)
    with pytest.raises(TimeoutError):  # it is not read any more
        for first in range(1, 3_000_000, 1000):
            raw.socket.sendall(b"".join(raw.head(i, b"/x", end=True, method=b"GET") for i in range(first, first + 1000, 2)))
    raw.socket.close()
