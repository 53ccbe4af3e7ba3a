# SPDX-License-Identifier: Apache-2.0
"""The mock keeps a host tier as engines do, and a router predicts what it reuses, from the device and from the host: block for block."""
import json
import random
import subprocess

import msgpack
import pytest
import zmq

from conftest import BINARY, SLOW, Mock, Serve, wait_for

BS = 16
SMALL = ("--num-gpu-blocks", 65, "--host-kv-blocks", 256, "--max-num-seqs", 4)


def conversations(rng, n, turns):
    """Prompts of token ids: each conversation goes on with its own, in turns, so that it, or some of it, has left the device when it comes
    again."""
    talks = [[rng.randrange(300, 9000) for _ in range(100 + rng.randrange(120))] for _ in range(n)]
    for _ in range(turns):
        for t in rng.sample(talks, n):
            yield list(t)
            t += [rng.randrange(300, 9000) for _ in range(1 + rng.randrange(40))]


def hears_all(s, m):
    """A router has heard all that a mock has told."""
    wait_for("events", lambda: s.view().get("next_sequence", 0) == m.metric("kvroute_mock_event_batches_total"))


def tiers_of(answer):
    return dict((k, int(v)) for k, v in (p.split("=") for p in answer.headers.get("x-kvroute-overlap-tiers", "device=0").split(",")))


@pytest.mark.parametrize("form,chunk", [("placeholder", 1), ("placeholder", 4), ("self-describing", 1), ("self-describing", 4), ("sglang", 1),
                                        ("lmcache", 1), ("lmcache", 4)])
def test_what_is_read_from_the_host_is_predicted(start, form, chunk):
    m = start(Mock, *SMALL, "--kv-offload-chunk", chunk, "--kv-offload-events", form)
    s = start(Serve, [m], "--block-size", BS)
    rng, loaded = random.Random(7), 0
    for i, prompt in enumerate(conversations(rng, 9, 8)):
        a = s.complete(prompt, max_tokens=1, model="mock")
        assert a.status == 200
        actual = a.json()["usage"]["prompt_tokens_details"]
        actual = (actual or {}).get("cached_tokens") or 0
        t = tiers_of(a)
        said = sum(t.values()) if "host_pinned" in t else int(a.headers["x-kvroute-overlap-blocks"])
        if i >= 9:  # what a chunk is has been learned
            assert min(said, (len(prompt) - 1) // BS) == actual // BS, (i, t, actual)
        loaded += t.get("host_pinned", 0)
        hears_all(s, m)
    tiers = s.view()["tiers"]["host_pinned"]
    assert loaded > 50 and tiers["view"] == "whole" and tiers["chunk_blocks"] == chunk
    assert s.metric("tiers_predicted_tokens_total") >= loaded * BS - chunk * BS and s.metric("tiers_short_tokens_total") == 0
    assert m.metric("vllm:external_prefix_cache_hits_total") > 0


def test_what_a_store_has_is_predicted_though_no_removal_is_told(start):
    """As vLLM's MooncakeStoreConnector tells it: in the tier that others share, without removals; here the store has room for all."""
    m = start(Mock, *SMALL, "--host-kv-blocks", 4096, "--kv-offload-events", "mooncake")
    s = start(Serve, [m], "--block-size", BS)
    for prompt in conversations(random.Random(7), 9, 4):
        a = s.complete(prompt, max_tokens=1, model="mock")
        actual = (a.json()["usage"]["prompt_tokens_details"] or {}).get("cached_tokens") or 0
        t = tiers_of(a)
        assert set(t) <= {"device", "external"}
        assert min(sum(t.values()), (len(prompt) - 1) // BS) <= actual // BS
        hears_all(s, m)
    assert s.metric("tiers_predicted_tokens_total", tier="external") > 50 * BS and s.metric("tiers_short_tokens_total") == 0
    assert s.view()["tiers"]["external"]["unplaced"] == 0


def test_an_offload_tier_that_tells_nothing_is_seen(start):
    """The engine had what no tier was said to have: that is counted, and not held against the view of its device."""
    m = start(Mock, *SMALL, "--kv-offload-events", "none")
    s = start(Serve, [m], "--block-size", BS)
    for prompt in conversations(random.Random(7), 9, 4):
        assert s.complete(prompt, max_tokens=1, model="mock").status == 200
    assert s.metric("untold_cached_tokens_total") > 50 * BS and s.view()["view"] == "whole" and s.view()["tiers"] == {}


FORMS = {  # keys of a store and of a removal, as the classes of vLLM 0.32 and SGLang write them
    "placeholder": ("CPU", {"token_ids": [], "block_size": 0, "parent_block_hash": None}),
    "self-describing": ("CPU", {"block_size": BS, "kv_cache_spec_kind": "full_attention"}),
    "sglang": ("CPU_PINNED", {"block_size": BS}),
    "lmcache": ("CPU", {"block_size": 2 * BS}),
}


@pytest.mark.parametrize("form", FORMS)
def test_events_have_the_shape_of_the_engines(start, zctx, form):
    m = start(Mock, *SMALL, "--kv-offload-chunk", 2, "--kv-offload-events", form)
    sub = zctx.socket(zmq.SUB)
    sub.linger = 0
    sub.subscribe(b"")
    sub.connect(f"tcp://127.0.0.1:{m.events}")
    s = start(Serve, [m], "--block-size", BS)
    told = []

    def hear():
        while sub.poll(20):
            told.append(msgpack.unpackb(sub.recv_multipart()[2], strict_map_key=False)[1])
        return [e for b in told for e in b if e.get("medium", "GPU") != "GPU"]
    wait_for("its subscription", lambda: s.complete([5] * 40, max_tokens=1, model="mock").status == 200 and (hear() or told))
    for prompt in conversations(random.Random(3), 20, 1):
        s.complete(prompt, max_tokens=1, model="mock")
    wait_for("removals", lambda: any(e["type"] == "BlockRemoved" for e in hear()) or
             not s.complete([random.Random(len(told)).randrange(300, 9000) for _ in range(300)], max_tokens=1, model="mock"))
    medium, has = FORMS[form]
    for batch in told:
        places = [e.get("medium", "GPU") != "GPU" for e in batch if e["type"] != "AllBlocksCleared"]
        assert places == sorted(places)  # the device first
    for e in hear():
        assert e["medium"] == medium and e.get("group_idx") == (None if form == "lmcache" else 0)
        names = len(e["block_hashes"])
        if e["type"] == "BlockStored":
            assert all(e[k] == v for k, v in has.items()), e
            assert names == (2 if form == "self-describing" else 1) and len(e["token_ids"]) == {"placeholder": 0, "lmcache": 2}.get(form, names) * BS
        else:
            assert names == (2 if form == "self-describing" or form == "mooncake" else 1)
    sub.close()


def test_what_is_said_of_a_tier_is_said_everywhere(start, tmp_path):
    """The header, the decision, its candidates, the access log, metrics and the learned price tell of the host apart from the device."""
    log = tmp_path / "access.log"
    m = start(Mock, *SMALL)
    s = start(Serve, [m], "--block-size", BS, "--access-log", log)
    answers, prompts = [], list(conversations(random.Random(7), 9, 3))

    def tells():  # events may be behind
        answers.extend(s.complete(p, max_tokens=1, model="mock", headers={"x-kvroute-explain": "1"}) for p in prompts)
        return [x for x in answers if "x-kvroute-overlap-tiers" in x.headers]
    a = wait_for("an answer that tells of the host", tells)[-1]
    tiers = tiers_of(a)
    assert tiers["host_pinned"] > 0 and f"host={tiers['host_pinned']} " in a.headers["x-kvroute-explain"]
    d = wait_for("the decision", lambda: next((x for x in s.get("/decisions") if x["request_id"] == a.headers["x-request-id"]), None))
    assert d["overlap_tiers"] == {"device": 0, "host_pinned": 0, "disk": 0, "external": 0} | tiers
    assert d["predicted_cached_tokens"] == sum(tiers.values()) * BS
    line = wait_for("its line", lambda: next((x for x in map(json.loads, log.read_text().splitlines()) if x.get("id") == d["request_id"]), None))
    assert line["overlap_tiers"] == a.headers["x-kvroute-overlap-tiers"]
    assert all("overlap_tiers" not in x for x in s.get("/decisions") if x["request_id"] == answers[0].headers["x-request-id"])
    assert s.metric("tiers_predicted_tokens_total", tier="host_pinned") > 0 == s.metric("tiers_predicted_tokens_total", tier="disk")
    worker = s.get("/workers")[0]
    told = worker["views"][0]["tiers"]
    assert set(told) == {"host_pinned"} and told["host_pinned"]["view"] == "whole"
    assert s.metric("view_tier_blocks", tier="host_pinned") == told["host_pinned"]["blocks"] > 0
    assert {k: s.metric("view_tier_knowledge", tier="host_pinned", state=k) for k in ("whole", "partial", "unknown")} == {
        "whole": 1, "partial": 0, "unknown": 0}
    share = worker["ttft_model"]["read_share"]
    assert 0 <= share["host_pinned"] <= 2 and share["disk"] == share["external"] == 0.75
    assert s.metric("ttft_model_read_share", tier="external") == 0.75


def test_tokens_that_a_decode_worker_can_read_are_not_uncached_ones(start):
    """A prompt that is in the decode worker's host stays there: by its weight a quarter of it would count as lacking, and it would go away."""
    p, d = start(Mock, "--role", "prefill"), start(Mock, *SMALL, "--role", "decode")
    s = start(Serve, [p.spec(",role=prefill"), d.spec(",role=decode")], "--block-size", BS, "--router-conditional-disagg",
              "--router-conditional-disagg-eff-isl-threshold", 64, "--cost", "linear")
    wait_for("both", lambda: all(w["status"] == "up" for w in s.get("/workers")))
    rng, local = random.Random(5), {"x-kvroute-disagg": "local"}
    prompt = [rng.randrange(300, 9000) for _ in range(600)]
    others = [[rng.randrange(300, 9000) for _ in range(600)] for _ in range(2)]

    def tiers():
        rows = s.post("/overlap_scores", {"token_ids": prompt}).json()["workers"]
        return [(w["device_blocks"], w["host_pinned_blocks"]) for w in rows if w["worker_id"] == 2]
    for tokens in (prompt, *others, *others):
        assert s.complete(tokens, max_tokens=2, model="mock", headers=local).status == 200
    wait_for("it is in the host alone", lambda: tiers() == [(0, 37)], 10)
    a = s.complete(prompt, max_tokens=2, model="mock")
    assert a.status == 200 and a.headers["x-kvroute-disagg"] == "local" and a.headers["x-kvroute-worker"] == "2", a.headers
    one = wait_for("the decision", lambda: next((x for x in s.get("/decisions") if x["request_id"] == a.headers["x-request-id"]), None))
    assert one["eff_isl"] == 600 - 37 * BS


ROOM = ("--num-gpu-blocks", 161, "--host-kv-blocks", 1024, "--max-num-seqs", 4)  # for a prompt of doctor


def doctor(*args):
    p = subprocess.run([BINARY, "doctor", "--json", *map(str, args)], capture_output=True, text=True, timeout=60 * SLOW)
    report = json.loads(p.stdout)["findings"]
    return {f["verdict"]: f for f in report if f["check"] == "lower tiers"}, [f for f in report if f["verdict"] == "problem"]


@pytest.mark.parametrize("form", ["placeholder", "self-describing", "sglang"])
def test_doctor_says_which_tiers_events_tell_of(start, form):
    """Stores of the host have the block size 0, or none: that is not the engine's."""
    m = start(Mock, *ROOM, "--kv-offload-events", form)
    s = start(Serve, [m], "--block-size", BS)
    for prompt in conversations(random.Random(7), 30, 2):
        s.complete(prompt, max_tokens=1, model="mock")
        hears_all(s, m)
    for target in (f"http://127.0.0.1:{s.admin}", m.spec(f",block-size={BS}")):
        tiers, problems = doctor(target)
        assert not problems and "host_pinned" in tiers["ok"]["detail"], (tiers, problems)


def test_doctor_names_an_offload_tier_that_tells_nothing(start):
    """One engine alone says that it offloads; the answers that the router saw prove that what it offloads is missed."""
    m = start(Mock, *ROOM, "--kv-offload-events", "none")
    tiers, problems = doctor(m.spec(f",block-size={BS}"))
    assert not problems and "offloads" in tiers["unknown"]["detail"] and "self_describing_kv_events" in tiers["unknown"]["advice"]
    s = start(Serve, [m], "--block-size", BS)
    for prompt in conversations(random.Random(7), 30, 4):
        s.complete(prompt, max_tokens=1, model="mock")
    wait_for("evidence", lambda: s.view()["evidence"]["untold"] >= 8)
    tiers, problems = doctor("--no-probe", f"http://127.0.0.1:{s.admin}")
    assert "answers had more cached" in tiers["problem"]["detail"] and "enable_kv_cache_events" in tiers["problem"]["advice"], problems
