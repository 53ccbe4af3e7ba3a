# SPDX-License-Identifier: Apache-2.0
"""What strict mypy must refuse: every line that says so, and no other."""
from __future__ import annotations

import kvroute

tokens = list(range(64))
kvroute.compute_block_hash_for_seq("text", 16)  # bad
kvroute.compute_block_hash_for_seq(b"bytes", 16)  # bad
kvroute.compute_block_hash_for_seq({1: 2}, 16)  # bad
kvroute.compute_block_hash_for_seq([1.5], 16)  # bad
kvroute.compute_block_hash_for_seq(["a"], 16)  # bad
kvroute.compute_block_hash_for_seq(5, 16)  # bad
kvroute.compute_block_hash_for_seq(tokens, "16")  # bad
kvroute.compute_block_hash_for_seq(tokens)  # bad
kvroute.compute_block_hash_for_seq(tokens, 16, [{"mm_objects": [{"hash": 1}]}])  # bad
kvroute.compute_block_hash_for_seq(tokens, 16, [{"mm_objects": [{"mm_hash": "x"}]}])  # bad
kvroute.compute_block_hash_for_seq(tokens, 16, None, "lora")  # bad
kvroute.compute_seq_hash_for_block(b"1234")  # bad

tree = kvroute.RadixTree("60")  # bad
tree.apply_event("1", b"{}")  # bad
tree.apply_event(1, ["x"])  # bad
tree.find_matches("text")  # bad
tree.no_such_call()  # bad
text: str = tree.find_matches([1])  # bad

local = kvroute.LocalIndexer(1, 16, 0, 1024)  # bad
local.apply_stored(0, tokens, b"abc")  # bad
local.apply_stored("0", tokens, [1])  # bad
local.apply_stored(0, tokens, [1], parent_hash="x")  # bad
local.get_events_json("0")  # bad

kvroute.KvRouterConfig(router_queue_policy="zzz")  # bad
kvroute.KvRouterConfig(router_ttl_secs="120")  # bad
kvroute.KvRouterConfig(use_kv_events=None)  # bad
kvroute.KvRouterConfig(nonsense=1)  # bad
kvroute.KvRouterConfig(1.0)  # bad
config = kvroute.KvRouterConfig()
config.router_queue_policy = "zzz"  # bad
config.nonsense = 1  # bad
config.with_overrides(cost="x")  # bad

kvroute.KvRouter(None, "16")  # bad
kvroute.KvRouter(None, 16, {"seed": 1})  # bad
kvroute.KvRouter(None, 16, worker_type="other")  # bad
kvroute.KvRouter(None, 16, select=lambda a, b: 0)  # bad
kvroute.KvRouter(None, 16, select=lambda candidates: "first")  # bad
router = kvroute.KvRouter(None, 16, config)
router.add_worker("1")  # bad
router.add_worker(1, taints="fast")  # bad
router.best_worker("text")  # bad
router.best_worker(tokens, {"temperature": 1.0})  # bad
router.best_worker(tokens, {"router_temperature": "hot"})  # bad
router.best_worker(tokens, request_id=7)  # bad
router.best_worker(tokens, routing_constraints={"required": ["a"]})  # bad
router.best_worker(tokens, allowed_worker_ids=["1"])  # bad
router.best_worker(tokens, strict_priority=1.5)  # bad
a, b = router.best_worker(tokens)  # bad
router.free(1)  # bad
router.add_request(1, tokens, 1)  # bad
router.get_overlap_blocks(tokens)  # bad
router.handle_request(["new"])  # bad

kvroute.KvEventPublisher(5, 1, 16)  # bad
kvroute.KvEventPublisher(None, 1, 16, zmq_endpoint="tcp://127.0.0.1:5557")  # bad
publisher = kvroute.KvEventPublisher(None, 1, 16)
publisher.publish_stored(tokens, [16], [1.5])  # bad
publisher.publish_stored("text", [16], [1])  # bad
publisher.publish_removed(1)  # bad
kvroute.KvRecorder.replay_events("x", print)  # bad

kvroute.KvRouterPair(router)  # bad
kvroute.KvRouterPair(router, router, domain_prefix=1)  # bad
pair = kvroute.KvRouterPair(router, router)
pair.best_pair("text")  # bad
pair.best_pair(tokens, allowed_worker_ids=[1])  # bad
pair.best_pair(tokens).prefill.nonsense  # bad
pair.free(1)  # bad
