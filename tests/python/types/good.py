# SPDX-License-Identifier: Apache-2.0
"""What strict mypy must accept."""
from __future__ import annotations

from array import array

import kvroute

tokens = list(range(64))
hashes: list[int] = kvroute.compute_block_hash_for_seq(array("I", tokens), 16, [{"mm_objects": [{"mm_hash": 1}]}, None], lora_name="a")
kvroute.compute_block_hash_for_seq(memoryview(array("I", tokens)), 16)
kvroute.compute_block_hash_for_seq((t for t in tokens), 16)
kvroute.compute_seq_hash_for_block(hashes)

tree = kvroute.RadixTree(expiration_duration_secs=60)
tree.apply_event(1, b"{}")
tree.apply_event(1, {"event_id": 1, "data": "cleared", "dp_rank": 0})
depth: int = tree.find_matches(hashes).scores[(1, 0)]

local = kvroute.LocalIndexer(1, 16, max_events=4)
ok: bool = local.apply_stored(0, range(16), [b"name"], parent_hash=-3, medium="GPU")
local.apply_removed(1, [1, -2])
with local.batch():
    local.apply_cleared(2)
text: str = local.get_events_json(0, 4)


def choose(candidates: list[kvroute._Candidate]) -> int | None:
    return min(range(len(candidates)), key=lambda i: candidates[i]["active_requests"]) if candidates[0]["cost"] < 5 else None


config = kvroute.KvRouterConfig(router_queue_policy="wspt", router_queue_threshold=1.5, use_kv_events=False, router_ttl_secs=60, seed=3)
config.with_overrides(cost="linear", overlap_score_weight=2)
router = kvroute.KvRouter(None, 16, config, worker_type="decode", select=choose, queue_timeout_secs=5)
router.add_worker(1, data_parallel_size=2, max_num_batched_tokens=8192, taints=["fast"])
worker, rank, overlap = router.best_worker(tokens, {"router_temperature": 0.5}, "r1", routing_constraints={"required_taints": ["fast"]},
                                           priority_jump=2, allowed_worker_ids=[1])
stage: int = router.best_worker(tokens).times["total"]
router.add_request("r2", tokens, 1, 0, 16)
loads = [load["active_requests"] + 1 for load in router.get_potential_loads(tokens)]
blocks: int = router.get_overlap_blocks(tokens, 1)
reply: object = router.handle_request({"method": "mark_free", "request_id": "r1"})["success"]


async def awaited() -> int:
    await router.mark_prefill_complete("r2")
    await router.free("r2")
    got = await router.best_worker(tokens)
    return got.worker_id + got[1]


with kvroute.KvRecorder(output_path="x") as recorder:
    kvroute.KvEventPublisher(tree, 7, 16)
    kvroute.KvEventPublisher(recorder, 7, 16)
    kvroute.KvEventPublisher(print, 7, 16)
    for publisher in (kvroute.KvEventPublisher(router, 7, 16), kvroute.KvEventPublisher(None, 7, 16, enable_local_indexer=True)):
        publisher.publish_stored(tokens, [16] * 4, [1, 2, 3, 4], None, [None])
        publisher.publish_removed([1])
        publisher.shutdown()
    kvroute.KvRecorder.replay_events("x", tree)

pair = kvroute.KvRouterPair(kvroute.KvRouter(worker_type="prefill"), kvroute.KvRouter(worker_type="decode"), domain_prefix="kv-domain=", domain_weight=1)
first, second = pair.best_pair(tokens, {"router_temperature": 0.5}, "r3", allowed_decode_ids=[1], prefill_worker_id=2)
both_tokens: int = first.prefill_tokens + pair.best_pair(tokens).decode.prefill_tokens
pair.mark_prefill_complete("r3")
pair.add_output_block("r3", decay_fraction=0.5)
pair.free("r3")
