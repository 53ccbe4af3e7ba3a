# SPDX-License-Identifier: Apache-2.0
"""KvEventPublisher: events of what an engine holds, in order, to whoever is there."""
import inspect
import json

import pytest

import kvroute
from kvroute import KvEventPublisher, KvIndexer, KvRecorder, KvRouter, RadixTree

TOKENS = list(range(48))
LOCALS = kvroute.compute_block_hash_for_seq(TOKENS, 16)
MM = [None, {"mm_objects": [{"mm_hash": 42, "offsets": [[0, 4]]}]}]


def test_its_signature_is_the_known_one():
    def names(f):
        return [p for p in inspect.signature(f).parameters if p != "self"]
    assert names(KvEventPublisher.__init__) == ["endpoint", "worker_id", "kv_block_size", "dp_rank", "enable_local_indexer", "zmq_endpoint",
                                                "zmq_topic", "batching_timeout_ms", "image_token_id"]
    assert names(KvEventPublisher.publish_stored) == ["token_ids", "num_block_tokens", "block_hashes", "parent_hash", "block_mm_infos", "lora_name",
                                                      "is_eagle", "cache_salt"]
    assert names(KvEventPublisher.publish_removed) == ["block_hashes"]


@pytest.mark.parametrize("kind", ["tree", "indexer", "router"])
def test_events_reach_an_index_in_this_process(kind):
    to = {"tree": RadixTree, "indexer": lambda: KvIndexer(None, 16), "router": lambda: KvRouter(None, 16)}[kind]()
    if kind == "router":
        to.add_worker(7, 0, 4)

    def held():
        if kind == "router":
            return to.get_overlap_blocks(TOKENS, 7, 3)
        return to.find_matches(LOCALS).scores.get((7, 3), 0)
    p = KvEventPublisher(to, 7, 16, dp_rank=3)
    p.publish_stored(TOKENS[:32], [16, 16], [-1, b"\x00" * 24 + b"\x00\x00\x00\x00\x00\x00\x00\x0c"])
    assert held() == 2
    p.publish_stored(TOKENS[32:], [16], [13], parent_hash=12)
    assert held() == 3
    p.publish_removed([13])
    assert held() == 2
    p.publish_cleared()
    assert held() == 0


def test_ids_are_its_own_and_the_local_index_answers_whoever_lost_some():
    sent = []
    p = KvEventPublisher(sent.append, 7, 16, dp_rank=3, enable_local_indexer=True)
    p.publish_stored(TOKENS, [16] * 3, [11, 12, 13], None, MM, "a", None, "s")
    p.publish_removed([])
    p.publish_removed([13])
    events = [json.loads(e) for e in sent]
    assert [e["event"]["event_id"] for e in events] == [1, 2]
    want = kvroute.compute_block_hash_for_seq(TOKENS, 16, MM, lora_name="a", cache_namespace="s")
    blocks = events[0]["event"]["data"]["stored"]["blocks"]
    assert [b["tokens_hash"] for b in blocks] == want and [b["mm_extra_info"] for b in blocks] == [None, MM[1], None]
    assert events[1] == {"worker_id": 7, "storage_tier": "device", "residency_domain": "worker",
                         "event": {"event_id": 2, "data": {"removed": {"block_hashes": [13]}}, "dp_rank": 3}}
    answer = json.loads(p.get_events_json(1))["Events"]["events"]
    assert [b["tokens_hash"] for b in answer[0]["event"]["data"]["stored"]["blocks"]] == want and answer[1] == events[1]
    late = RadixTree()
    for e in json.loads(p.get_events_json())["TreeDump"]["events"]:
        late.apply_router_event(e)
    assert late.find_matches(want).scores == {(7, 3): 2}
    p.shutdown()
    p.shutdown()
    for call in (lambda: p.publish_removed([1]), p.publish_cleared, lambda: p.publish_stored(TOKENS, [16] * 3, [1, 2, 3])):
        with pytest.raises(RuntimeError, match="shut down"):
            call()


def test_a_recording_of_its_events_can_be_replayed(tmp_path):
    path = tmp_path / "r.jsonl"
    with KvRecorder(output_path=path) as recorder:
        KvEventPublisher(recorder, 7, 16).publish_stored(TOKENS, [16] * 3, [1, 2, 3])
    tree = RadixTree()
    assert KvRecorder.replay_events(path, tree) == 1 and tree.find_matches(LOCALS).scores == {(7, 0): 3}


def test_lists_that_do_not_belong_together_publish_nothing():
    sent = []
    p = KvEventPublisher(sent.append, 7, 16, enable_local_indexer=True)
    for args, name in (((TOKENS, [16], [1, 2, 3]), "num_block_tokens"), ((TOKENS[:16], [16] * 3, [1, 2, 3]), "token_ids"),
                       ((TOKENS, [16, 16, 8], [1, 2, 3]), r"num_block_tokens\[2\]"), ((TOKENS, [16], [1]), "token_ids"),
                       ((TOKENS, [16] * 3, [1, 2, 1 << 64]), "block_hash"), ((TOKENS, [16] * 3, [1, 2, 3], None, [5]), "block_mm_infos"),
                       ((TOKENS, [16] * 3, [1, 2, 3], 1.5), "block_hash")):
        with pytest.raises(ValueError, match=name):
            p.publish_stored(*args)
    assert not sent and json.loads(p.get_events_json())["TreeDump"]["last_event_id"] == 0
    p.publish_stored(TOKENS, [16] * 3, [1, 2, 3])
    assert json.loads(sent[0])["event"]["event_id"] == 1


def test_a_delivery_that_fails_is_a_gap_that_whoever_follows_sees():
    sent = []

    def send(text):
        if len(sent) == 1 and not sent[0]:
            raise OSError("no route")
        sent.append(text)
    p = KvEventPublisher(send, 7, 16, enable_local_indexer=True)
    sent.append("")
    with pytest.raises(OSError):
        p.publish_stored(TOKENS, [16] * 3, [1, 2, 3])
    sent[0] = "open"
    p.publish_removed([3])
    assert json.loads(sent[1])["event"]["event_id"] == 2 and len(json.loads(p.get_events_json(1))["Events"]["events"]) == 2


def test_what_it_cannot_do_is_refused_by_name():
    for name, value in dict(zmq_endpoint="tcp://127.0.0.1:5557", zmq_topic="", worker_id=None, kv_block_size=0, batching_timeout_ms=5,
                            image_token_id=9, endpoint="tcp://*:5557", dp_rank=-1).items():
        with pytest.raises(ValueError, match=rf"^{name}: .*allowed: "):
            KvEventPublisher(**{"worker_id": 1, "kv_block_size": 16, name: value})
    with pytest.raises(RuntimeError, match="enable_local_indexer"):
        KvEventPublisher(None, 1, 16).get_events_json()
