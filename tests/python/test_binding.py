# SPDX-License-Identifier: Apache-2.0
"""The Python package as it is installed: names and signatures, errors, copies, threads, and a stateful test against a plain model."""
import array
import asyncio
import gc
import inspect
import json
import sys
import threading
import time

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import kvroute
from kvroute import ApproxKvIndexer, KvIndexer, KvRecorder, KvRouter, KvRouterConfig, LocalIndexer, OverlapScores, RadixTree

TOKENS = list(range(64))


def stored(names, locals_, parent=None, rank=0):
    return {"event_id": 1, "dp_rank": rank, "data": {"stored": {"parent_hash": parent, "blocks": [
        {"block_hash": n, "tokens_hash": h} for n, h in zip(names, locals_)]}}}


def test_hashes_are_those_of_the_wire():
    h = kvroute.compute_block_hash_for_seq
    assert h(range(16), 4) == [9143094415614847814, 12124091508212882195, 1088361764653601668, 16024980976528976948]
    assert h(list(range(4)), 4, lora_name="adapter-a") == [6665157333201000639]
    assert h(range(4), 4, cache_namespace="tenant-a", lora_name="adapter-a") == [8269515957840517240]
    assert h(range(4), 4, lora_name="") == h(range(4), 4)
    assert h(range(6), 2, is_eagle=True) == [11646242937812223497, 9948816348502404300]
    assert h([0, 1], 2, [{"mm_objects": [{"mm_hash": 42}]}]) == [6100948656312251355] and h([0, 1], 2, [None]) == h([0, 1], 2)
    assert h([], 4) == [] and h([1, 2, 3], 4) == [] and h([1], 0) == []
    assert kvroute.compute_seq_hash_for_block(h(range(16), 4))[1:] == [9510318385840434533, 16998148715716822651, 16790386768269814709]
    assert kvroute.compute_seq_hash_for_block([]) == []


def test_tokens_from_buffers_without_a_copy():
    h = kvroute.compute_block_hash_for_seq
    want = h(TOKENS, 16)
    for tokens in (array.array("I", TOKENS), array.array("i", TOKENS), memoryview(array.array("I", TOKENS)), array.array("Q", TOKENS), tuple(TOKENS),
                   iter(TOKENS)):
        assert h(tokens, 16) == want
    big = array.array("I", range(1 << 20))
    assert len(h(big, 16)) == 1 << 16
    for bad in (b"1234", "1234", {1: 2}, 5, None, [1.5], ["x"]):
        with pytest.raises(TypeError):
            h(bad, 4)
    for bad in ([-1], [1 << 32]):
        with pytest.raises(OverflowError):
            h(bad, 1)
    with pytest.raises(ValueError):
        h([1], -1)


def test_a_tokenizer_without_its_library_says_so(tmp_path, monkeypatch):
    """The wheel is whole without it, and a folder and a library that are not there are named."""
    with pytest.raises(ValueError, match="dir: bad value .* allowed: a model's folder with a tokenizer.json"):
        kvroute.Tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(kvroute.TokenizerError, match="library: there is no .*none.so") as e:
        kvroute.Tokenizer(tmp_path, lib=tmp_path / "none.so")
    assert e.value.label == "library" and isinstance(e.value, kvroute.KvrouteError)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("kvroute.tokenizer.INSTALLED", (str(tmp_path / "installed"),))
    with pytest.raises(kvroute.TokenizerError, match="there is no libkvr_tokenizer.so in .*installed; give it as lib=") as e:
        kvroute.Tokenizer(str(tmp_path))
    assert e.value.label == "library"
    (tmp_path / "bad.so").write_bytes(b"no library")
    with pytest.raises(kvroute.TokenizerError, match="cannot be loaded"):
        kvroute.Tokenizer(tmp_path, lib=tmp_path / "bad.so")
    for profile in ("x", [], 5):
        with pytest.raises(ValueError, match="profile"):
            kvroute.Tokenizer(tmp_path, lib=tmp_path / "none.so", profile=profile)


def test_radix_tree_as_it_is_known():
    t = RadixTree()
    t.apply_event(1, json.dumps(stored([11, 12, 13], [1, 2, 3])).encode())
    t.apply_event(2, stored([11, 12], [1, 2], rank=3))
    assert t.find_matches([1, 2, 3, 4]).scores == {(1, 0): 3, (2, 3): 2}
    assert t.find_matches([9]).scores == {} and t.find_matches([]).scores == {}
    dump = t.dump_tree_as_events()
    other = RadixTree()
    for e in dump:
        other.apply_router_event(e)
    assert other.find_matches([1, 2, 3]) == t.find_matches([1, 2, 3]) and other.current_size() == 5
    t.apply_event(1, {"event_id": 2, "data": {"removed": {"block_hashes": [13, 99]}}})
    assert t.find_matches([1, 2, 3]).scores[(1, 0)] == 2
    t.clear_all_blocks(1)
    t.apply_event(2, {"event_id": 3, "data": "cleared", "dp_rank": 3})
    assert t.find_matches([1, 2, 3]).scores == {}
    counted = RadixTree(expiration_duration_secs=60)
    counted.apply_event(1, stored([1], [1]))
    counted.find_matches([1])
    assert counted.find_matches([1]).frequencies == [1]
    for bad in (0, -1, 1e-10, 1e11, float("inf"), "60"):  # times that no window of nanoseconds can have, too
        with pytest.raises(ValueError, match="expiration_duration_secs"):
            RadixTree(bad)


@pytest.mark.parametrize("bad", [b"", b"{", b"[]", b"5", b"null", b'{"data":5}', b'{"data":{}}', b'{"data":{"stored":{}}}', b"\xff\xfe",
                                 b'{"data":{"stored":{"blocks":[{}]}}}', b'{"data":{"stored":{"blocks":[5]}}}', b'{"data":{"removed":{"block_hashes":5}}}',
                                 b'{"data":{"stored":{"parent_hash":99,"blocks":[{"block_hash":1,"tokens_hash":2}]}}}', b"[" * 100000,
                                 b'{"data":{"stored":{"blocks":[{"block_hash":-1,"tokens_hash":2}]}}}', b'{"data":"cleared","dp_rank":4294967296}',
                                 b'{"data":{"stored":{"blocks":[{"block_hash":18446744073709551616,"tokens_hash":2}]}}}'])
def test_bad_events_raise_value_errors(bad):
    with pytest.raises(ValueError):
        RadixTree().apply_event(1, bad)


def test_signatures_are_the_known_ones():
    def names(f):
        return [p.name for p in inspect.signature(f).parameters.values() if p.kind is not p.KEYWORD_ONLY and p.name != "self"]
    assert names(kvroute.compute_block_hash_for_seq) == ["tokens", "kv_block_size", "block_mm_infos"]
    assert names(RadixTree.find_matches) == ["sequence", "early_exit"]
    assert names(KvIndexer.__init__) == ["endpoint", "block_size"]
    assert names(KvIndexer.find_matches_for_request) == ["token_ids", "lora_name", "is_eagle"]
    assert names(ApproxKvIndexer.__init__)[:3] == ["endpoint", "kv_block_size", "router_ttl_secs"]
    assert names(ApproxKvIndexer.process_routing_decision_for_request) == ["tokens", "worker_id", "dp_rank"]
    assert names(KvRouter.best_worker) == ["token_ids", "router_config_override", "request_id", "update_indexer", "block_mm_infos", "lora_name",
                                           "routing_constraints", "strict_priority", "policy_class", "cache_namespace"]
    assert names(LocalIndexer.get_events_json) == ["start", "end"]
    for thing in kvroute.__all__:
        assert getattr(kvroute, thing).__doc__, thing


def test_indexers_for_requests():
    k = KvIndexer(None, 16)
    locals_ = kvroute.compute_block_hash_for_seq(TOKENS, 16)
    k.apply_event(7, stored([1, 2, 3], locals_))
    assert k.find_matches_for_request(TOKENS).scores == {(7, 0): 3} and k.block_size() == 16
    assert k.find_matches_for_request(TOKENS, lora_name="a").scores == {}
    a = ApproxKvIndexer(None, 16, 0.2)

    async def known_callers():
        await a.process_routing_decision_for_request(TOKENS, 3, 1)
        return await a.find_matches_for_request(TOKENS)
    assert asyncio.run(known_callers()).scores == {(3, 1): 4}
    deadline = time.monotonic() + 30
    while a.find_matches_for_request(TOKENS).scores and time.monotonic() < deadline:
        pass
    assert a.find_matches_for_request(TOKENS).scores == {}
    for make in (lambda: KvIndexer(None, 0), lambda: KvIndexer(None), lambda: ApproxKvIndexer(None, 16, -1), lambda: ApproxKvIndexer(None, 1 << 20)):
        with pytest.raises(ValueError):
            make()


def test_local_indexer_as_an_engine_uses_it():
    li = LocalIndexer(7, 4, dp_rank=2, max_events=4, epoch=5)
    assert li.apply_stored(0, array.array("I", range(8)), [-1, b"\x00" * 24 + b"\x00\x00\x00\x00\x00\x00\x00\x0c"])
    assert li.apply_stored(1, range(8, 12), [13], parent_hash=12, lora_name="a", cache_salt="s", medium="CPU")
    assert not li.apply_stored(2, range(4), [14], parent_hash=99)  # refused by the index, kept for consumers
    answer = json.loads(li.get_events_json(0))["Events"]
    assert answer["last_event_id"] == 2 and answer["epoch"] == 5
    first = answer["events"][0]
    assert first["event"]["dp_rank"] == 2 and [b["block_hash"] for b in first["event"]["data"]["stored"]["blocks"]] == [(1 << 64) - 1, 12]
    assert answer["events"][1]["storage_tier"] == "host_pinned"
    assert isinstance(json.loads(li.get_events_json(0, old_shape=True))["Events"], list)
    with li.batch():
        li.apply_removed(3, [12])
        assert "TooNew" in li.get_events_json(3)
        li.apply_removed(3, [13], medium="CPU")
    assert len(json.loads(li.get_events_json(3))["Events"]["events"]) == 2
    li.apply_cleared(4)
    assert json.loads(li.get_events_json())["TreeDump"]["events"] == []
    assert "TreeDump" in li.get_events_json(0) and "InvalidRange" in li.get_events_json(5, 4)
    pieces = []
    li.write_events_json(pieces.append, 4)
    assert json.loads(b"".join(pieces)) == json.loads(li.get_events_json(4))
    with pytest.raises(ZeroDivisionError):
        li.write_events_json(lambda piece: 1 / 0)
    large = LocalIndexer(1, 1)
    large.apply_stored(1, range(50000), range(1, 50001))
    with pytest.raises(ZeroDivisionError):
        large.write_events_json(lambda piece: 1 / 0)
    with pytest.raises(ValueError):
        li.apply_cleared(1)
    with pytest.raises(ValueError):
        li.apply_removed(5, [1], medium="TAPE")
    li.set_incomplete("not all was seen")
    assert "not all was seen" in li.get_events_json(supports_tree_dump_failed=True)
    assert li.stats()["newest_id"] == 4 and li.stats()["complete"] is False
    li.shutdown()
    li.shutdown()
    assert "Indexer is offline" in li.get_events_json()
    with pytest.raises(RuntimeError):
        li.apply_cleared(9)


def test_a_store_of_16_tokens_and_3_hashes_is_refused_and_leaves_nothing():
    li = LocalIndexer(1, 16)
    for tokens, hashes in ((16, [1, 2, 3]), (48, [1]), (15, [1]), (0, [1]), (16, [])):
        with pytest.raises(ValueError, match="block_hashes"):
            li.apply_stored(1, range(tokens), hashes)
    assert li.stats()["events"] == 0 and li.stats()["blocks"] == 0 and li.stats()["newest_id"] == 0
    assert li.apply_stored(0, range(17), [1])  # tokens past the last full block mean nothing


def test_router_and_its_configuration():
    r = KvRouter(None, 16, KvRouterConfig(seed=1))
    with pytest.raises(kvroute.NoEndpoints):
        r.best_worker(TOKENS)
    for w in (1, 2):
        r.add_worker(w, 0, 2)
    locals_ = kvroute.compute_block_hash_for_seq(TOKENS, 16)
    r.apply_event(2, stored([1, 2, 3, 4], locals_, rank=1))
    assert r.best_worker(TOKENS) == (2, 1, 4)
    assert asyncio.run(_await(r.best_worker(array.array("I", TOKENS), request_id="a"))) == (2, 1, 4)
    loads = {(l["worker_id"], l["dp_rank"]): l for l in r.get_potential_loads(TOKENS)}
    assert len(loads) == 4 and loads[(2, 1)]["active_requests"] == 1
    r.mark_prefill_complete("a")
    r.add_output_block("a")
    r.free("a")
    with pytest.raises(kvroute.KvrouteError):
        r.free("a")
    assert r.best_worker(TOKENS, allowed_worker_ids=[1])[0] == 1
    assert r.best_worker(TOKENS, worker_id=1, dp_rank=1)[:2] == (1, 1)
    assert r.best_worker(TOKENS, {"overlap_score_weight": 0.0})[2] == 0
    assert r.get_overlap_scores(TOKENS)["workers"] == [{"worker_id": 2, "dp_rank": 1, "device_blocks": 4, "host_pinned_blocks": 0, "disk_blocks": 0}]
    assert len(json.loads(r.dump_events())) == 1
    r.remove_worker(2)
    assert r.best_worker(TOKENS)[0] == 1
    approx = KvRouter(None, 16, KvRouterConfig(use_kv_events=False))
    approx.add_worker(5)
    approx.best_worker(TOKENS, update_indexer=True)
    assert approx.best_worker(TOKENS) == (5, 0, 4)
    none = KvRouter(None, 16, KvRouterConfig(overlap_score_credit=0.0))
    none.add_worker(1)
    assert none.best_worker(TOKENS) == (1, 0, 0)
    with pytest.raises(ValueError):
        none.dump_events()
    for bad in (dict(serve_indexer=True, use_remote_indexer=True), dict(serve_indexer=True, overlap_score_credit=0), dict(cost="x"),
                dict(durable_kv_events=True, use_kv_events=False)):
        with pytest.raises(ValueError):
            KvRouterConfig(**bad)
    for name, value in dict(routing_constraints={"a": 1}, strict_priority=-1, policy_class=5, block_mm_infos=[5], priority_jump="x").items():
        with pytest.raises((ValueError, TypeError), match=name):
            r.best_worker(TOKENS, **{name: value})
    with pytest.raises(TypeError):
        KvRouterConfig(nonsense=1)
    with pytest.raises(ValueError):
        KvRouter(None, 16, KvRouterConfig(router_temperature=-1.0))
    assert KvRouterConfig.from_json('{"overlap_score_weight": 2.0}').copy().overlap_score_credit == 2.0


async def _await(value):
    return await value


def test_recorder_round_trip(tmp_path):
    t = RadixTree()
    t.apply_event(1, stored([11, 12, 13], [1, 2, 3]))
    path = tmp_path / "r.jsonl"
    with KvRecorder(output_path=path, max_lines_per_file=1, max_count=5) as r:
        for e in t.dump_tree_as_events() * 2:
            assert r.record(e)
        assert r.event_count() == 2
    assert (tmp_path / "r.jsonl.1").exists()
    other = RadixTree()
    assert KvRecorder.replay_events(path, other) == 1 and other.find_matches([1, 2, 3]).scores == {(1, 0): 3}
    path.write_text("{\n" + path.read_text() + "[5]\n")
    with pytest.warns(UserWarning, match="left out"):
        assert KvRecorder.replay_events(path, RadixTree()) == 1
    with pytest.raises(FileNotFoundError):
        KvRecorder.replay_events(tmp_path / "none", other)


def test_threads_share_an_index_and_give_it_back():
    k = KvIndexer(None, 16)
    locals_ = kvroute.compute_block_hash_for_seq(range(16 * 200), 16)
    failures = []

    def read():
        for _ in range(200):
            n = k.find_matches(locals_).scores.get((1, 0), 0)
            if n % 10:
                failures.append(n)

    def write():
        for i in range(0, 200, 10):
            k.apply_event(1, stored(range(i + 1, i + 11), locals_[i:i + 10], parent=i if i else None))
    threads = [threading.Thread(target=f) for f in (read, read, read, write)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert k.find_matches(locals_).scores == {(1, 0): 200}
    for _ in range(50):
        r = KvRouter()
        r.add_worker(1)
        r.best_worker(TOKENS)
        del r
    gc.collect()


def test_calls_leave_no_objects_behind():
    tree, local, big = KvIndexer(None, 16), LocalIndexer(1, 16, max_events=8), KvRouter(None, 16, KvRouterConfig(), select=lambda c: 0)
    big.add_worker(1)
    locals_ = kvroute.compute_block_hash_for_seq(TOKENS, 16)
    mm = [{"mm_objects": [{"mm_hash": 1}]}]

    def every_call(i):
        tree.apply_event(1, stored([1, 2, 3, 4], locals_))
        tree.find_matches(locals_), tree.find_matches_for_request(TOKENS, "lora"), tree.dump_tree_as_events(), tree.current_size()
        local.apply_stored(i, TOKENS, [1, b"2", 3, 4], block_mm_infos=mm), local.apply_removed(i, [1]), local.get_events_json(), local.stats()
        local.write_events_json(lambda piece: None)
        big.best_worker(TOKENS, {"router_temperature": 1.0}, "a", block_mm_infos=mm, routing_constraints={"preferred_taints": {"x": 1}},
                        policy_class="p", allowed_worker_ids=[1], cache_namespace="n")
        big.mark_prefill_complete("a"), big.add_output_block("a"), big.free("a"), big.get_potential_loads(TOKENS), big.get_overlap_scores(TOKENS)
        for wrong in (lambda: tree.find_matches("x"), lambda: big.best_worker([-1]), lambda: big.free("nobody"), lambda: big.best_worker(TOKENS, request_id=5),
                      lambda: local.apply_stored(i, TOKENS, [1]), lambda: kvroute.compute_block_hash_for_seq([1 << 40], 1)):
            with pytest.raises(Exception):
                wrong()

    def run(times, first):
        for i in range(first, first + times):
            every_call(i)
        gc.collect()
        return sys.getallocatedblocks()
    run(30, 1)
    before = run(30, 100)
    assert run(300, 200) - before < 250  # less than one for each round


class TreeAgainstModel(RuleBasedStateMachine):
    """A tree and a local indexer against a dict: names stand for one content, parents are held."""

    @initialize()
    def begin(self):
        self.tree, self.local, self.id = RadixTree(), LocalIndexer(1, 1, max_events=8), 0
        self.held = {}  # name -> (parent name or 0, token)

    def path(self, name):
        out = []
        while name:
            parent, token = self.held[name]
            out.append(token)
            name = parent
        return out[::-1]

    @rule(pick=st.integers(0, 1 << 16), tokens=st.lists(st.integers(0, 2), min_size=1, max_size=4))
    def store(self, pick, tokens):
        parents = [0] + sorted(self.held)
        parent = parents[pick % len(parents)]
        names, at = [], parent
        for t in tokens:
            at = at * 7 + t + 1
            if at >= 1 << 63:
                return
            names.append(at)
        for name, t, up in zip(names, tokens, [parent] + names):
            self.held[name] = (up, t)
        self.id += 1
        locals_ = kvroute.compute_block_hash_for_seq(tokens, 1)
        self.tree.apply_event(1, stored(names, locals_, parent or None))
        assert self.local.apply_stored(self.id, tokens, names, parent or None)

    @rule(pick=st.integers(0, 1 << 16))
    def remove(self, pick):
        if not self.held:
            return
        name = sorted(self.held)[pick % len(self.held)]
        gone = {name}
        while True:
            more = {n for n, (p, _) in self.held.items() if p in gone} - gone
            if not more:
                break
            gone |= more
        for n in gone:
            del self.held[n]
        self.id += 1
        self.tree.apply_event(1, {"event_id": self.id, "data": {"removed": {"block_hashes": [name]}}})
        self.local.apply_removed(self.id, [name])

    @rule()
    def clear(self):
        self.held = {}
        self.id += 1
        self.tree.apply_event(1, {"event_id": self.id, "data": "cleared"})
        self.local.apply_cleared(self.id)

    @invariant()
    def sizes_agree(self):
        if hasattr(self, "tree"):
            assert self.tree.current_size() == len(self.held) == self.local.stats()["blocks"]

    @invariant()
    def a_dump_is_the_model(self):
        if not hasattr(self, "tree") or not self.id:
            return
        copy = RadixTree()
        answer = json.loads(self.local.get_events_json())["TreeDump"]
        for e in answer["events"]:
            copy.apply_router_event(e)
        assert answer["last_event_id"] == self.id and copy.current_size() == len(self.held)
        for name in self.held:
            path = self.path(name)
            locals_ = kvroute.compute_block_hash_for_seq(path, 1)
            assert copy.find_matches(locals_).scores == {(1, 0): len(path)} == self.tree.find_matches(locals_).scores


TestTreeAgainstModel = TreeAgainstModel.TestCase
TestTreeAgainstModel.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
