# SPDX-License-Identifier: Apache-2.0
"""vLLM's own scheduler and block pool with several cache groups, without a GPU: full attention beside sliding windows, chunks and recurrent
layers (mamba, linear attention). As vllm_tiers.Stack, of which the passes are; there are no tiers behind the device.

    Groups(model, ["full", "mamba"], mode="align", ...)
    .reused        blocks that all the prompts so far were said to reuse"""
import random

import torch
from vllm.config import CacheConfig, DeviceConfig, KVEventsConfig, ModelConfig, ParallelConfig, SchedulerConfig, VllmConfig
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash, resolve_kv_cache_block_sizes
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (ChunkedLocalAttentionSpec, FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor, MambaSpec,
                                        SlidingWindowSpec)
from vllm.v1.structured_output import StructuredOutputManager

from vllm_tiers import BLOCK, Kept, Stack

ATTENTION = {"num_kv_heads": 1, "head_size": 128, "dtype": torch.float16}


class Groups(Stack):
    def __init__(self, model, kinds, blocks=200, mode="all", seed=1, requests=4, batch_tokens=2048, block=BLOCK, mamba_block=None, window=40,
                 chunk=64, unit=None, retention=None, reports=0):
        self.rng, self.block, self.reports = random.Random(seed), block, reports
        makes = {"full": lambda: FullAttentionSpec(block_size=block, **ATTENTION),
                 "window": lambda: SlidingWindowSpec(block_size=block, sliding_window=window, **ATTENTION),
                 "chunked": lambda: ChunkedLocalAttentionSpec(block_size=block, attention_chunk_size=chunk, **ATTENTION),
                 "mamba": lambda: MambaSpec(block_size=mamba_block or block, shapes=((64, 64),), dtypes=(torch.float16,), mamba_cache_mode=mode)}
        specs = [makes[k]() for k in kinds]
        config = VllmConfig(
            model_config=ModelConfig(model=model, skip_tokenizer_init=True, dtype="float16", max_model_len=2048),
            cache_config=CacheConfig(block_size=block, enable_prefix_caching=True, prefix_match_unit=unit),
            scheduler_config=SchedulerConfig(max_num_seqs=requests, max_num_batched_tokens=batch_tokens, max_model_len=2048,
                                             enable_chunked_prefill=True, is_encoder_decoder=False, async_scheduling=False),
            parallel_config=ParallelConfig(), device_config=DeviceConfig("cpu"),
            kv_events_config=KVEventsConfig(enable_kv_cache_events=True, publisher="null"))
        config.cache_config.block_size, config.cache_config.num_gpu_blocks = block, blocks
        config.cache_config.mamba_cache_mode = mode
        page = specs[0].page_size_bytes
        kv = KVCacheConfig(num_blocks=blocks, prefix_cache_retention_interval=retention,
                           kv_cache_tensors=[KVCacheTensor(page * blocks, [f"layer{i}"], page * blocks, page) for i in range(len(specs))],
                           kv_cache_groups=[KVCacheGroupSpec([f"layer{i}"], s) for i, s in enumerate(specs)])
        scheduling, hashing = resolve_kv_cache_block_sizes(kv, config)
        self.scheduler = Scheduler(config, kv, StructuredOutputManager(config), scheduling, hash_block_size=hashing)
        self.events = self.scheduler.kv_event_publisher = Kept()
        init_none_hash(sha256)
        self.hasher = get_request_block_hasher(hashing, sha256)
        self.transfers, self.made, self.passes, self.reused = {}, 0, 0, 0

    def ask(self, tokens):
        made, self.made = self.made, self.made - 1
        r = self.request(tokens, 1)
        self.made = made
        found = self.scheduler.kv_cache_manager.get_computed_blocks(r)[1] // self.block
        self.reused += found
        return found, found

    def add(self, tokens, answer):
        r = super().add(tokens, answer)
        if self.rng.random() < self.reports:
            r.kv_cache_report_mode = "full"
        return r

    def _worker(self, out):
        return None
