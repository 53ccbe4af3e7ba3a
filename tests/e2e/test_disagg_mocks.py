# SPDX-License-Identifier: Apache-2.0
"""Prefill and decode workers that hold and transfer blocks (mocks), under clients that leave at any moment and workers that fail: nothing stays
held or booked, no block is read twice, and every answer is the prompt's own."""
import http.client
import json
import random
import select
import threading

import pytest
from conftest import Mock, Serve, call, free_ports, wait_for
from leg_fleets import AT_ONCE, keys_of, options_of

MIXED = 60  # test_disagg_soak.py has thousands
LEASE_S = 4


def side(start, role, protocol, *extra, lease=LEASE_S):
    met = free_ports() if role == "prefill" else 0  # where the other side meets it
    extra = (*(options_of(protocol, met) if met else ()), *extra)
    m = start(Mock, "--role", role, "--kv-protocol", protocol, "--kv-lease", str(lease), *extra, with_events=role == "prefill")
    m.met = met
    return m


def fleet_of(start, protocol, prefill=(), decode=(), options=(), n=2, lease=LEASE_S, keys=""):
    ps, ds = ([side(start, role, protocol, *args, lease=lease) for _ in range(n)] for role, args in (("prefill", prefill), ("decode", decode)))
    keys = f",block-size=16,kv-protocol={protocol},kv-lease={lease}{keys}"
    s = start(Serve, [m.spec(f",role=prefill{keys}{keys_of(protocol, m.port, m.met)}") for m in ps] + [m.spec(f",role=decode{keys}") for m in ds], "--tokenizer", "bytes", *options)
    wait_for("all workers", lambda: all(w["status"] == "up" for w in s.get("/workers")))
    return s, ps, ds


def clean(s, mocks):
    """Nothing is held, waited for, or booked."""
    def nothing():
        for m in mocks:
            kv = call(m.port, "GET", "/mock/kv").json()
            if kv["held"] or kv["waiting_rooms"]:
                return False
        return all(not x["active_requests"] and not x["active_prefill_tokens"] and not x["active_decode_blocks"] for x in s.get("/loads"))
    wait_for("nothing is held or booked", nothing, 20)
    told = [call(m.port, "GET", "/mock/kv").json() for m in mocks]
    assert sum(kv["bad_pulls"] for kv in told) == 0
    return {how: sum(kv["released"].get(how, 0) for kv in told) for how in ("pulled", "notified", "aborted", "expired")}


def prompt_of(i):
    return f"{i:05d} " + "a prompt of some blocks, " * (2 + i % 7)


def body_of(i, **more):
    return {"prompt": prompt_of(i), "max_tokens": 6, **more}


@pytest.mark.parametrize("protocol", ["vllm-nixl", "trtllm", "none", *AT_ONCE])
def test_answers_are_those_of_one_worker(start, protocol):
    s, ps, ds = fleet_of(start, protocol)
    alone = start(Mock)
    for i in range(40):
        a = call(s.port, "POST", "/v1/completions", body_of(i))
        assert a.status == 200 and a.headers["x-kvroute-disagg"] == "remote", a.body
        assert a.json()["choices"][0]["text"] == call(alone.port, "POST", "/v1/completions", body_of(i)).json()["choices"][0]["text"]
    assert clean(s, ps + ds)["expired"] == 0


def test_what_a_prefill_worker_has_cached_is_what_was_predicted(start):
    s, ps, ds = fleet_of(start, "vllm-nixl")
    text, events = "a conversation that grows by turns. " * 4, 0
    for turn in range(12):
        a = call(s.port, "POST", "/v1/completions", {"prompt": text, "max_tokens": 2})
        assert a.status == 200
        overlap, cached = int(a.headers["x-kvroute-overlap-blocks"]), a.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached == 16 * overlap and (turn == 0 or overlap > 0), (turn, cached, overlap)
        wait_for("its blocks", lambda before=events: s.metric("events_applied_total") > before)
        events = s.metric("events_applied_total")
        text += "and one more thing, said at some length, to be sure. "
    assert clean(s, ps + ds)["expired"] == 0


@pytest.mark.parametrize("protocol", ["vllm-nixl", "trtllm", *AT_ONCE])
@pytest.mark.parametrize("faults", [((), ()), (("--fault-prefill-status", "503", "--fault-count", "5"), ("--fault-decode-status", "503", "--fault-count", "5"))])
def test_clients_that_leave_at_any_moment_leave_nothing_behind(start, protocol, faults):
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    s, ps, ds = fleet_of(start, protocol, *faults)
    wrong, lock, todo = [], threading.Lock(), list(range(MIXED))

    def one(i, patience, stream):
        c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60)
        try:
            c.request("POST", "/v1/completions", json.dumps(body_of(i, stream=stream, max_tokens=30)))
            if patience is not None:
                select.select([c.sock], [], [], patience)  # it leaves with the first byte, or when its patience is over
                return
            r = c.getresponse()
            text = r.read()
            if r.status not in (200, 502, 503):
                wrong.append((i, r.status, text[:200]))
        except (OSError, http.client.HTTPException) as e:
            wrong.append((i, repr(e)))
        finally:
            c.close()

    def work(plan):
        while True:
            with lock:
                if not todo:
                    return
                i = todo.pop()
            one(i, *plan[i])

    plan = {i: (rng.choice([None, 0, 0.001, 0.005, 0.02, 0.05]), rng.random() < 0.5) for i in range(MIXED)}
    threads = [threading.Thread(target=work, args=(plan,)) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong, wrong[:5]
    wait_for("an answer, when no fault is left", lambda: call(s.port, "POST", "/v1/completions", body_of(MIXED)).status == 200)
    released = clean(s, ps + ds)
    assert released["pulled"] > 0 and released["expired"] <= s.metric("disagg_possible_leaks_total"), released
    assert call(s.port, "POST", "/v1/completions", body_of(7)).status == 200
