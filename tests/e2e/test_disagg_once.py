# SPDX-License-Identifier: Apache-2.0
"""Prefill and decode workers that are asked at once, or that have to know each other before: who is told what, what a client gets of a decode worker
whose prompt fails, and what becomes of the other leg. The workers are scripts (leg_parts.py), or mocks where they have to meet."""
import concurrent.futures
import http.client
import json
import re
import subprocess
import threading

import pytest
from conftest import BINARY, Mock, Serve, call, free_ports, wait_for
from leg_parts import HANG, RESET, answer, begins, decodes, events, handoff
from test_disagg import BODY, PROMPT, ask, idle, leave, total

AT_ONCE = ["sglang", "vllm-nixl-push", "vllm-mooncake"]
at_once = pytest.mark.parametrize("protocol", AT_ONCE)
PATIENCE_S = 60


def computes(n, body):
    """A prefill worker's answer, of an engine that hands over without an object."""
    return 200, {k: v for k, v in handoff().items() if k != "kv_transfer_params"}


@pytest.fixture
def once(legs, start):
    """Prefill and decode workers of a protocol, and a router over them."""
    def make(protocol, *options, prefill=computes, decode=decodes, n=2, pkeys=(), dkeys=()):
        ps, ds = [legs(prefill) for _ in range(n)], [legs(decode) for _ in range(n)]
        specs = []
        for i, p in enumerate(ps):
            p.told["/query"] = {str(r): {"engine_id": f"engine-{i}-{r}", "worker_addr": {"0": {"0": "127.0.0.1:1"}}} for r in range(4)}
            where = {"vllm-nixl-push": (f"kv-addr=10.0.0.1:{5600 + 10 * i}", f"engine-id=engine-{i}", "tp=4", "pp=2"),
                     "vllm-p2p": (f"kv-addr=10.0.0.1:{21001 + i}",)}.get(protocol, (f"bootstrap={p.port}",))
            specs.append(p.spec("prefill", f"kv-protocol={protocol}", f"id={1 + i}", *where, *pkeys))
        for i, d in enumerate(ds):
            where = (f"kv-addr=10.0.0.2:{22001 + i}",) if protocol == "vllm-p2p" else ()
            specs.append(d.spec("decode", f"kv-protocol={protocol}", f"id={11 + i}", *where, *dkeys))
        s = start(Serve, specs, *options)
        wait_for("all workers", lambda: all(w["status"] == "up" for w in s.get("/workers")))
        return s, ps, ds
    return make


def fresh(i):
    """A prompt that no other one begins with."""
    return [100000 + 1000 * i + k for k in range(64)]


def asked(of):
    """Bodies and heads of all requests of these workers."""
    return [b for x in of for b in x.bodies], [h for x in of for h in x.heads]


def both(ps, ds):
    """The bodies of a pair of legs, and their heads."""
    (p,), (ph,) = asked(ps)
    (d,), (dh,) = asked(ds)
    return p, d, ph, dh


def in_background(s, **more):
    got = []
    t = threading.Thread(target=lambda: got.append(ask(s, **more)))
    t.start()
    return t, got


def one_of(of, what):
    wait_for(what, lambda: total(of) == 1)
    return next(x for x in of if x.n)


# ---- what both are told ----------------------------------------------------------------------------------


@at_once
def test_both_legs_are_asked_before_either_has_answered(once, protocol):
    together = threading.Barrier(2)

    def after(answers):
        return lambda n, b: (together.wait(PATIENCE_S), answers(n, b))[1]
    s, ps, ds = once(protocol, prefill=after(computes), decode=after(decodes))
    a = ask(s)
    assert a.status == 200 and a.headers["x-kvroute-disagg"] == "remote" and a.json()["choices"][0]["text"] == "hello", a.body
    assert a.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 32  # the prefill worker's
    p, d, ph, dh = both(ps, ds)
    assert p["stream"] is False and ph["x-request-id"] == dh["x-request-id"]
    assert p["max_tokens"] == (BODY["max_tokens"] if protocol == "sglang" else 1) and d["max_tokens"] == BODY["max_tokens"]
    idle(s)


def test_sglang_legs_meet_in_a_room_of_the_prefill_rank(once):
    s, ps, ds = once("sglang", n=1, pkeys=("dp-size=4",), dkeys=("dp-size=2",))
    ranks, rooms = set(), []
    for i in range(10):
        a = ask(s, prompt=[fresh(i)] * 100)
        assert a.status == 200 and a.headers["x-kvroute-disagg"] == "remote", a.body
        p, d = ps[0].bodies[-1], ds[0].bodies[-1]
        assert p["bootstrap_room"] == d["bootstrap_room"] and p["bootstrap_host"] == d["bootstrap_host"] == ["127.0.0.1"] * 100
        assert p["bootstrap_port"] == d["bootstrap_port"] == [ps[0].port] * 100
        rank = int(a.headers["x-kvroute-prefill-dp-rank"])
        assert {r % 4 for r in p["bootstrap_room"]} == {rank} and all(0 <= r < 1 << 63 for r in p["bootstrap_room"])
        assert p["routed_dp_rank"] == d["disagg_prefill_dp_rank"] == rank == int(ps[0].heads[-1]["X-data-parallel-rank"])
        assert d["routed_dp_rank"] == int(a.headers["x-kvroute-dp-rank"]) == int(ds[0].heads[-1]["X-data-parallel-rank"])
        assert "rid" not in p
        ranks.add(rank)
        rooms += p["bootstrap_room"]
    assert len(set(rooms)) == 1000 and len(ranks) > 1
    ask(s, prompt=[PROMPT] * 2, rid="another's")
    assert "rid" not in ps[0].bodies[-1] and "rid" not in ds[0].bodies[-1]
    ask(s, rid="another's", bootstrap_room=1)
    p, d = ps[0].bodies[-1], ds[0].bodies[-1]
    assert p["rid"] == d["rid"] != "another's" and p["bootstrap_room"] == d["bootstrap_room"] != 1


def test_sglang_answers_of_one_prompt_have_a_room_each(once):
    s, ps, ds = once("sglang")
    chat = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "n": 3}
    a = call(s.port, "POST", "/v1/chat/completions", chat)
    assert a.status == 200 and a.headers["x-kvroute-disagg"] == "remote", a.body
    legs = [b for b in asked(ps + ds)[0] if "bootstrap_room" in b]  # and not questions for its tokens
    assert len(legs) == 2 and legs[0]["bootstrap_room"] == legs[1]["bootstrap_room"]
    for body in legs:
        assert [len(body[k]) for k in ("bootstrap_host", "bootstrap_port", "bootstrap_room")] == [3, 3, 3] and len(set(body["bootstrap_room"])) == 3


def test_sglang_decode_workers_get_no_whole_requests(once):
    s, ps, ds = once("sglang", "--queue-timeout", "0.3")
    assert ask(s, max_tokens=1).headers["x-kvroute-disagg"] == "remote"  # an answer of one token, too
    before = total(ds)
    assert ask(s, prompt_logprobs=1).status == 400
    for w in s.get("/workers"):
        if w["role"] == "decode":
            assert w["local_prefill"] is False and w["decode_cache"] is False
        else:
            assert call(s.admin, "DELETE", f"/workers/{w['worker_id']}").status == 200
    assert ask(s).status == 503 and total(ds) == before


def test_push_legs_meet_by_an_id_that_no_client_knows(once):
    s, ps, ds = once("vllm-nixl-push", n=1)
    for _ in range(2):
        assert ask(s, {"x-request-id": "mine"}).headers["x-request-id"] == "mine"
    ids = [h["x-request-id"] for h in ps[0].heads]
    assert ids == [h["x-request-id"] for h in ds[0].heads] and len(set(ids)) == 2 and all(re.fullmatch("mine-[0-9a-f]{16}", i) for i in ids)
    p, d = ps[0].bodies[0]["kv_transfer_params"], ds[0].bodies[0]["kv_transfer_params"]
    assert p["do_remote_decode"] is True and p["transfer_id"] == d["transfer_id"] == f"xfer-{ids[0]}"
    assert d == {"do_remote_prefill": True, "do_remote_decode": False, "remote_engine_id": "engine-0", "remote_host": "10.0.0.1", "remote_port": 5600,
                 "remote_request_id": ids[0], "tp_size": 4, "pp_size": 2, "transfer_id": p["transfer_id"]}


def test_push_goes_to_the_port_of_the_rank(once):
    s, ps, ds = once("vllm-nixl-push", n=1, pkeys=("dp-size=2",))
    for _ in range(4):
        rank = int(ask(s).headers["x-kvroute-prefill-dp-rank"])
        assert ds[0].bodies[-1]["kv_transfer_params"]["remote_port"] == 5600 + rank and ps[0].heads[-1]["X-data-parallel-rank"] == str(rank)


def test_mooncake_legs_name_the_engine_of_the_prefill_rank(once):
    s, ps, ds = once("vllm-mooncake", n=1, pkeys=("dp-size=2",))
    queries = []
    names, ps[0].told["/query"] = ps[0].told["/query"], lambda: (queries.append(1), names)[1]
    seen = set()
    while len(seen) < 6 or (len({r for r, _ in seen}) < 2 and len(seen) < 500):
        a = ask(s, prompt=fresh(ps[0].n))
        assert a.status == 200, a.body
        rank = int(a.headers["x-kvroute-prefill-dp-rank"])
        p, d = ps[0].bodies[-1], ds[0].bodies[-1]["kv_transfer_params"]
        assert p["ignore_eos"] is True and "ignore_eos" not in ds[0].bodies[-1]  # an answer that ends by itself hands nothing over
        assert p["kv_transfer_params"]["transfer_id"] == d["transfer_id"] and d["remote_engine_id"] == f"engine-0-{rank}"
        assert d["remote_bootstrap_addr"] == f"http://127.0.0.1:{ps[0].port}"
        seen.add((rank, d["transfer_id"]))
    assert len({t for _, t in seen}) == ps[0].n and {r for r, _ in seen} == {0, 1}
    assert len(queries) <= 2  # once, and perhaps again after a minute


def test_a_prefill_engine_that_was_started_anew_costs_one_try(once):
    s, ps, ds = once("vllm-mooncake", n=1)
    assert ask(s).status == 200
    ps[0].told["/query"] = {"0": {"engine_id": "new"}}
    ds[0].script = lambda n, b: decodes(n, b) if b["kv_transfer_params"]["remote_engine_id"] == "new" else 500
    for _ in range(4):
        assert ask(s).status == 200
    assert ds[0].bodies[-1]["kv_transfer_params"]["remote_engine_id"] == "new"
    assert s.metric("disagg_leg_retries_total", leg="decode") == 1
    ds[0].script = lambda n, b: 500
    before = ds[0].n
    a = ask(s)
    assert a.status == 500 and ds[0].n == before + 2
    idle(s)


def test_a_bootstrap_address_that_tells_nothing_is_a_failure_of_the_prefill_worker(once):
    s, ps, ds = once("vllm-mooncake", dkeys=("local-prefill=false",))
    for p in ps:
        p.told["/query"] = {}
    a = ask(s)
    assert a.status == 502 and "bootstrap" in a.json()["error"]["message"] and total(ps) == total(ds) == 0, a.body
    idle(s)


def test_p2p_legs_carry_both_addresses_in_their_id(once):
    s, ps, ds = once("vllm-p2p", prefill=lambda n, b: (200, {"choices": []}))
    a = ask(s, {"x-request-id": "mine"})
    assert a.status == 200 and a.headers["x-kvroute-disagg"] == "remote" and a.headers["x-request-id"] == "mine", a.body
    p, d, ph, dh = both(ps, ds)
    assert ph["x-request-id"] == dh["x-request-id"] and "kv_transfer_params" not in {**p, **d} and d == BODY
    i, k = ps.index(next(x for x in ps if x.n)), ds.index(next(x for x in ds if x.n))
    assert re.fullmatch(f"___prefill_addr_10.0.0.1:{21001 + i}___decode_addr_10.0.0.2:{22001 + k}_[0-9a-f]{{32}}", ph["x-request-id"])
    idle(s)


def test_p2p_legs_are_both_sent_anew_when_one_fails(once):
    seen = []
    s, ps, ds = once("vllm-p2p", decode=lambda n, b: (seen.append(1), 503 if len(seen) == 1 else (200, answer()))[1])
    assert ask(s).status == 200
    ids = [h["x-request-id"] for h in asked(ps)[1]]
    assert len(set(ids)) == 2 and sorted(ids) == sorted(h["x-request-id"] for h in asked(ds)[1]) and [d.n for d in ds] == [1, 1]
    idle(s)


# ---- the commit point ------------------------------------------------------------------------------------


@at_once
@pytest.mark.parametrize("stream", [False, True])
def test_a_decode_worker_is_held_back_until_the_prompt_is_computed(once, protocol, stream):
    """More than is held of it comes before; then it is not read on."""
    texts = ["x" * 1000] * 1500
    s, ps, ds = once(protocol, "--disagg-usage", "decode", decode=lambda n, b: events(*texts) if b.get("stream") else (200, answer("".join(texts))), n=1)
    hold = threading.Event()
    ps[0].script = lambda n, b: (hold.wait(PATIENCE_S), computes(n, b))[1]
    t, got = in_background(s, stream=stream)
    decode = lambda: next(x for x in s.get("/loads") if x["worker_id"] == 11)
    wait_for("both", lambda: ps[0].n == ds[0].n == 1)
    wait_for("its load", lambda: decode()["active_decode_blocks"] == 4)
    assert not got
    hold.set()
    t.join()
    assert got[0].status == 200 and got[0].body == (events(*texts) if stream else json.dumps(answer("".join(texts))).encode())
    idle(s)


def test_what_is_held_back_has_a_limit(once):
    """A decode worker that would send 64 MiB sends what fits into buffers, while the router serves others."""
    piece, sent, hold = b": " + b"x" * 65530 + b"\n\n", [], threading.Event()

    def pieces():
        for _ in range(1024):
            yield piece
            sent.append(1)
    s, ps, ds = once("vllm-nixl-push", decode=lambda n, b: begins(pieces(), events("a", "b")) if b.get("seed") == 7 else decodes(n, b), n=1)
    ps[0].script = lambda n, b: (hold.wait(PATIENCE_S) if b.get("seed") == 7 else None, computes(n, b))[1]
    ds[0].go.set()
    t, got = in_background(s, stream=True, seed=7)
    wait_for("more than is held", lambda: len(sent) > 4)
    for _ in range(40):
        assert ask(s).status == 200
    assert len(sent) < 512 and not got
    hold.set()
    t.join()
    assert got[0].status == 200 and len(sent) == 1024 and got[0].body.endswith(events("a", "b", cached=32)) and got[0].body.count(piece) == 1024
    idle(s)


@at_once
@pytest.mark.parametrize("how", [500, RESET])
def test_a_prompt_that_fails_ends_the_other_leg(once, protocol, how):
    """Nothing of the decode worker's stream has gone to the client, who gets the answer of the second pair of legs."""
    s, ps, ds = once(protocol, decode=lambda n, b: begins(events("wrong")[:-20], b""))
    fail = threading.Event()

    def first_fails(n, b):
        if total(ps) > 1:
            return computes(n, b)
        fail.wait(PATIENCE_S)
        for d in ds:
            d.script = decodes
        return how
    for p in ps:
        p.script = first_fails
    t, got = in_background(s, stream=True)
    d = one_of(ds, "the decode leg")
    fail.set()
    wait_for("it is closed", d.gone.is_set)
    t.join()
    assert got[0].status == 200 and got[0].body == events("a", "b", cached=32), got[0].body
    assert [p.n for p in ps] == [1, 1] and total(ds) == 2
    bodies, heads = asked(ds)
    names = [json.dumps([b.get("bootstrap_room"), b.get("kv_transfer_params", {}).get("transfer_id")]) for b in bodies]
    assert len(set(names)) == 2, "an id was used again"
    ids = [h["x-request-id"] for h in heads]
    assert len([i for i in ids if re.match(re.escape(got[0].headers["x-request-id"]) + r"\.1(-|$)", i)]) == 1
    if protocol == "sglang":
        wait_for("the engine is told", lambda: d.aborts == [d.bodies[0]["rid"]])
    idle(s)


@at_once
def test_the_last_failure_of_prefill_workers_is_the_answer_where_nobody_takes_it_whole(once, protocol):
    s, ps, ds = once(protocol, prefill=lambda n, b: 500, decode=lambda n, b: HANG, dkeys=("local-prefill=false",))
    a = ask(s)
    assert a.status == 500 and [p.n for p in ps] == [1, 1], a.body
    wait_for("decode legs are closed", lambda: all(d.gone.is_set() for d in ds if d.n))
    idle(s)


def test_after_all_prefill_workers_one_worker_takes_the_whole_request(once):
    s, ps, ds = once("vllm-nixl-push", prefill=lambda n, b: 503, decode=lambda n, b: HANG if "kv_transfer_params" in b else (200, answer()))
    a = ask(s)
    assert a.status == 200 and a.headers["x-kvroute-disagg"] == "fallback" and [p.n for p in ps] == [1, 1], a.body
    idle(s)


@at_once
@pytest.mark.parametrize("status", [400, 422, 429])
def test_what_the_prefill_worker_refuses_is_passed_on(once, protocol, status):
    s, ps, ds = once(protocol, decode=lambda n, b: HANG)
    for p in ps:
        p.script = lambda n, b: (wait_for("the other leg", lambda: total(ds) == 1), status)[1]
    a = ask(s)
    assert a.status == status and a.json()["error"]["message"] == f"status {status}" and total(ps) == 1
    wait_for("it is closed", one_of(ds, "the decode leg").gone.is_set)
    idle(s)


@at_once
@pytest.mark.parametrize("status", [400, 429])
def test_what_the_decode_worker_refuses_is_passed_on(once, protocol, status):
    s, ps, ds = once(protocol, prefill=lambda n, b: HANG)
    for d in ds:
        d.script = lambda n, b: (wait_for("the other leg", lambda: total(ps) == 1), status)[1]
    a = ask(s)
    assert a.status == status and a.json()["error"]["message"] == f"status {status}" and total(ds) == 1
    p = one_of(ps, "the prefill leg")
    wait_for("it is closed", p.gone.is_set)
    if protocol == "sglang":
        wait_for("the engine is told", lambda: p.aborts == [p.bodies[0]["rid"]])
    idle(s)


@at_once
@pytest.mark.parametrize("how", [500, 503, RESET])
def test_a_decode_worker_that_fails_costs_both_legs(once, protocol, how):
    s, ps, ds = once(protocol, prefill=lambda n, b: computes(n, b) if total(ps_of["ps"]) > 1 else HANG)
    ps_of["ps"] = ps

    def first_fails(n, b):
        wait_for("the prefill leg", lambda: total(ps) >= total(ds))
        return how if total(ds) == 1 else decodes(n, b)
    for d in ds:
        d.script = first_fails
    a = ask(s)
    assert a.status == 200 and total(ps) == total(ds) == 2, a.body
    wait_for("the first one is closed", lambda: any(p.gone.is_set() for p in ps))
    idle(s)


ps_of = {}


@at_once
@pytest.mark.parametrize("how", [500, RESET])
def test_a_prefill_worker_that_dies_before_its_cache_was_taken_costs_both_legs(once, protocol, how):
    """It has answered well; the decode worker cannot have the cache any more, and says so or goes down with it."""
    s, ps, ds = once(protocol)
    dead = threading.Event()

    def pulls_from_the_dead(n, body):
        if total(ds) > 1:
            return decodes(n, body)
        first = one_of(ps, "the prefill leg")
        computing = {w["worker_id"] for w in s.get("/workers") if w["role"] == "prefill"}
        wait_for("its answer", lambda: not any(x["active_requests"] for x in s.get("/loads") if x["worker_id"] in computing))
        first.vanish()
        dead.set()
        return how
    for d in ds:
        d.script = pulls_from_the_dead
    a = ask(s)
    assert dead.is_set() and a.status == 200 and total(ps) == total(ds) == 2, a.body
    idle(s)


@at_once
def test_a_decode_worker_that_breaks_off_before_the_prompt_is_computed_was_not_heard(once, protocol):
    s, ps, ds = once(protocol)
    hold = threading.Event()
    for d in ds:
        d.script = lambda n, b: begins(events("wrong")[:-20], RESET) if total(ds) == 1 else decodes(n, b)
    for p in ps:
        p.script = lambda n, b: (hold.wait(PATIENCE_S) if total(ps) == 1 else None, computes(n, b))[1]
    t, got = in_background(s, stream=True)
    one_of(ps, "the prefill leg")  # else the one that is held up would be that of the second pair
    one_of(ds, "the decode leg").go.set()
    t.join()
    hold.set()
    assert got[0].status == 200 and got[0].body == events("a", "b", cached=32), got[0].body
    idle(s)


@at_once
def test_a_prefill_worker_that_takes_too_long_ends_both(once, protocol):
    s, ps, ds = once(protocol, "--prefill-timeout", "0.3", prefill=lambda n, b: HANG, decode=lambda n, b: HANG)
    assert ask(s).status == 504
    wait_for("both are closed", lambda: any(p.gone.is_set() for p in ps) and any(d.gone.is_set() for d in ds))
    assert total(ps) == total(ds) == 1
    idle(s)


@at_once
def test_a_pair_that_missed_each_other_is_not_chosen_again(once, protocol):
    s, ps, ds = once(protocol, "--kv-wait-timeout", "2", "--breaker-cooldown", "3600", "--breaker-failures", "100")  # a busy machine answers within that
    for d in ds:
        d.script = lambda n, b: HANG
    a = ask(s)
    assert a.status == 504 and total(ps) == total(ds) == 1, a.body
    p, d = ps.index(one_of(ps, "a prompt")), ds.index(one_of(ds, "a decode leg"))
    wait_for("it is closed", ds[d].gone.is_set)
    assert s.metric("disagg_rendezvous_missed_total") == 1
    for x in ds:
        x.script = decodes
    pairs, asks = set(), 0
    with concurrent.futures.ThreadPoolExecutor(8) as pool:  # several at once: one by one, the one that was a bit faster has them all
        while len(pairs) < 3 and asks < 800:
            for a in pool.map(lambda i: ask(s, prompt=fresh(i)), range(asks + 1, asks + 33)):
                assert a.status == 200
                pairs.add((int(a.headers["x-kvroute-prefill-worker"]) - 1, int(a.headers["x-kvroute-worker"]) - 11))
            asks += 32
    assert pairs == {(x, y) for x in (0, 1) for y in (0, 1)} - {(p, d)}
    for i in range(4):
        a = ask(s, {"x-kvroute-worker": str(11 + d)}, prompt=fresh(1000 + i))
        assert a.status == 200 and (a.headers["x-kvroute-worker"], a.headers["x-kvroute-prefill-worker"]) == (str(11 + d), str(2 - p))
    idle(s)


def test_a_prefill_worker_that_has_missed_all_is_not_asked(once):
    s, ps, ds = once("vllm-nixl-push", "--kv-wait-timeout", "0.3", "--breaker-cooldown", "3600", "--breaker-failures", "100", "--queue-timeout", "0.5", n=1,
                     decode=lambda n, b: HANG, dkeys=("local-prefill=false",))
    assert ask(s).status == 504 and ps[0].n == 1
    assert ask(s).status == 503 and ps[0].n == 1
    idle(s)


def test_a_decode_worker_without_a_first_byte_has_the_shorter_of_two_limits(once):
    s, ps, ds = once("none", "--kv-wait-timeout", "0.3", decode=lambda n, b: HANG, n=1)
    assert ask(s).status == 504
    s2, ps2, ds2 = once("vllm-nixl-push", "--first-token-timeout", "0.3", "--prefill-timeout", "600", decode=lambda n, b: HANG, prefill=lambda n, b: HANG, n=1)
    assert ask(s2).status == 504
    wait_for("all are closed", lambda: all(x.gone.is_set() for x in (ds[0], ds2[0], ps2[0])))


def test_no_prompt_is_begun_that_no_decode_worker_has_room_for(once):
    s, ps, ds = once("vllm-nixl-push", "--active-decode-blocks-threshold", "0.5", "--handoff-timeout", "0.3", "--queue-timeout", "0.3", n=1,
                     decode=lambda n, b: begins(events("a")[:-14], b"data: [DONE]\n\n"), dkeys=("total-kv-blocks=6", "local-prefill=false"))
    t, got = in_background(s, stream=True)
    wait_for("it is full", lambda: any(x["active_decode_blocks"] for x in s.get("/loads")) and ds[0].n == 1)
    a = ask(s)
    assert a.status == 503 and ps[0].n == ds[0].n == 1, a.body
    ds[0].go.set()
    t.join()
    assert got[0].status == 200
    idle(s)


# ---- clients that leave ------------------------------------------------------------------------------------


@at_once
@pytest.mark.parametrize("begun", [False, True])
def test_a_client_that_leaves_ends_both_legs(once, protocol, begun):
    s, ps, ds = once(protocol, prefill=lambda n, b: HANG, decode=lambda n, b: begins(events("a")[:-20], b"") if begun else HANG, n=1)
    leave(s, lambda: ps[0].n == ds[0].n == 1, stream=True)
    wait_for("both are closed", lambda: ps[0].gone.is_set() and ds[0].gone.is_set())
    idle(s)
    if protocol == "sglang":
        wait_for("both engines are told", lambda: ps[0].aborts == ds[0].aborts == [ps[0].bodies[0]["rid"]])
        assert s.metric("disagg_aborts_total") == 2
    else:
        assert s.metric("disagg_possible_leaks_total") == 1 and not ps[0].aborts + ds[0].aborts


def test_a_client_that_leaves_a_stream_of_sglang_ends_the_decode_leg(once):
    s, ps, ds = once("sglang", decode=lambda n, b: begins(events("a")[:-20], b""), n=1)
    leave(s, lambda: any(x["active_decode_blocks"] for x in s.get("/loads")) and not any(x["active_prefill_tokens"] for x in s.get("/loads")) and ds[0].n == 1,
          stream=True)
    wait_for("it is closed", ds[0].gone.is_set)
    wait_for("the engine is told", lambda: ds[0].aborts == [ds[0].bodies[0]["rid"]])
    idle(s)


def test_a_client_that_leaves_leaves_no_room_behind(start):
    """Of mocks, which would wait in it for minutes."""
    boot = free_ports()
    p = start(Mock, "--role", "prefill", "--kv-protocol", "sglang", "--bootstrap-port", str(boot), "--model", "m")
    d = start(Mock, "--role", "decode", "--kv-protocol", "sglang", "--kv-latency", "1000", "--model", "m", with_events=False)
    s = start(Serve, [p.spec(f",role=prefill,kv-protocol=sglang,bootstrap={boot}"), d.spec(",role=decode,kv-protocol=sglang")], "--tokenizer", "bytes")
    wait_for("both up", lambda: all(w["status"] == "up" for w in s.get("/workers")))

    def kv(m):
        return call(m.port, "GET", "/mock/kv").json()
    leave(s, lambda: kv(p)["held"] or kv(p)["waiting_rooms"] or kv(d)["waiting_rooms"], stream=True)
    wait_for("no room, no block", lambda: not any(kv(m)["held"] or kv(m)["waiting_rooms"] for m in (p, d)))
    idle(s)


# ---- keys of workers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys, key, value, allowed", [
    ("role=decode,kv-protocol=sglang,bootstrap=8999", "bootstrap", "8999", "other roles than decode"),
    ("role=prefill,kv-protocol=mooncake", "kv-protocol", "mooncake", "vllm-mooncake"),
    ("role=prefill,kv-protocol=sglang,bootstrap=host", "bootstrap", "host", "host:port"),
    ("role=prefill,kv-protocol=sglang,bootstrap=0", "bootstrap", "0", "host:port"),
    ("role=prefill,kv-protocol=vllm-nixl-push,engine-id=e", "kv-addr", "", "vllm-nixl-push"),
    ("role=prefill,kv-protocol=vllm-nixl-push,kv-addr=h:1", "engine-id", "", "vllm-nixl-push"),
    ("role=prefill,kv-protocol=vllm-nixl-push,kv-addr=h:65535,engine-id=e,dp-size=2", "kv-addr", "h:65535", "rank 0"),
    ("role=decode,kv-protocol=vllm-p2p", "kv-addr", "", "vllm-p2p"),
    ("role=decode,tp=0", "tp", "0", "1 to 65535"), ("role=decode,decode-cache=1", "decode-cache", "1", "true, false")])
def test_keys_that_are_wrong_are_named_at_the_start(keys, key, value, allowed):
    r = subprocess.run([BINARY, "serve", "--port", str(free_ports()), "--worker", f"http://127.0.0.1:1,{keys}"], capture_output=True, text=True, timeout=60)
    assert r.returncode != 0 and f"bad value '{value}' for '{key}'" in r.stderr and allowed in r.stderr, r.stderr


def test_keys_that_are_wrong_are_named_on_the_admin_port(once):
    s, ps, ds = once("sglang", n=1)
    base = {"worker_id": 5, "endpoint": "http://127.0.0.1:1", "block_size": 16}
    for more, field in [({"role": "decode", "bootstrap": 8998}, "bootstrap"), ({"kv_protocol": "x"}, "kv_protocol"), ({"bootstrap": "a b"}, "bootstrap"),
                        ({"role": "prefill", "kv_protocol": "vllm-nixl-push"}, "kv_address"), ({"tp_size": "1"}, "tp_size"),
                        ({"role": "prefill", "kv_protocol": "vllm-nixl-push", "kv_address": "h:1"}, "kv_engine_id"), ({"decode_cache": "true"}, "decode_cache")]:
        a = call(s.admin, "POST", "/workers", {**base, **more})
        assert a.status == 400 and f"'{field}'" in a.body.decode(), (more, a.body)
    a = call(s.admin, "PATCH", "/workers/1", {"role": "decode"})
    assert a.status == 400 and "bootstrap" in a.body.decode()
    assert call(s.admin, "PATCH", "/workers/1", {"role": "decode", "bootstrap": ""}).status == 200
    a = call(s.admin, "POST", "/workers", {**base, "role": "prefill", "kv_protocol": "vllm-nixl-push", "kv_address": "[::1]:7", "kv_engine_id": "e", "tp_size": 2})
    assert a.status == 201, a.body
    told = next(w for w in s.get("/workers") if w["worker_id"] == 5)
    assert (told["kv_address"], told["kv_engine_id"], told["tp_size"], told["pp_size"]) == ("[::1]:7", "e", 2, 1)


def sglang(leg, mode, port=8998):
    leg.told["/server_info"] = {"page_size": 16, "max_total_num_tokens": 16384, "dp_size": 1, "disaggregation_mode": mode, "disaggregation_bootstrap_port": port}
    return leg


def test_an_sglang_says_what_it_computes_and_where_it_is_met(legs, start):
    p, d, of_role = sglang(legs(computes), "prefill", 9001), sglang(legs(decodes), "decode"), sglang(legs(computes), "prefill", 9002)
    s = start(Serve, [f"http://127.0.0.1:{p.port},id=1", f"http://127.0.0.1:{d.port},id=2", of_role.spec("prefill", "kv-protocol=sglang", "id=3")])

    def learnt():
        told = {w["worker_id"]: (w["role"], w.get("bootstrap")) for w in s.get("/workers")}
        return told == {1: ("prefill", "127.0.0.1:9001"), 2: ("decode", None), 3: ("prefill", "127.0.0.1:9002")}
    wait_for("roles", learnt)
    for _ in range(4):
        a = ask(s)
        assert a.status == 200 and a.headers["x-kvroute-disagg"] == "remote", a.body
        assert d.bodies[-1]["bootstrap_port"] == 9000 + (int(a.headers["x-kvroute-prefill-worker"]) + 1) // 2
    assert call(s.admin, "PATCH", "/workers/3", {"bootstrap": 9003}).status == 200
    wait_for("what was given", lambda: next(w for w in s.get("/workers") if w["worker_id"] == 3)["bootstrap"] == "127.0.0.1:9003")


@pytest.mark.parametrize("mode, role", [("prefill", "decode"), ("decode", "prefill"), ("null", "prefill"), ("prefill", "both")])
def test_an_sglang_of_another_role_than_was_given_gets_no_requests(legs, start, mode, role):
    wrong, ok = sglang(legs(decodes), mode), legs(decodes)
    s = start(Serve, [wrong.spec(role, "kv-protocol=sglang", "id=1"), ok.spec("both", "id=2")])
    wait_for("a note", lambda: any(f"role={role} was given" in n for w in s.get("/workers") for n in w["learnt"]["notes"]))
    assert f"disaggregation_mode is {mode}" in s.text()
    for _ in range(6):
        a = ask(s)
        assert a.status == 200 and a.headers["x-kvroute-worker"] == "2", a.body


def test_the_abort_of_a_stream_that_runs_has_the_key_of_its_client(once):
    s, ps, (d,) = once("sglang", decode=lambda n, body: begins(events("a")[:-20], b""), n=1)
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=30)
    c.request("POST", "/v1/completions", json.dumps({**BODY, "stream": True}), {"Content-Type": "application/json", "Authorization": "Bearer of-the-client"})
    r = c.getresponse()
    assert r.read(4)
    r.close()
    c.close()
    wait_for("the engine is told", lambda: d.abort_keys)
    assert d.abort_keys[0] == d.heads[0]["Authorization"] == "Bearer of-the-client"
