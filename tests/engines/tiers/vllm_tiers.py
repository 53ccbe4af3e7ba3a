# SPDX-License-Identifier: Apache-2.0
"""vLLM's own scheduler, block pool and offloading, without a GPU: its classes decide what is kept where, tell of it in events and say what
they serve. Nothing is computed: a pass ends at once with a token, a transfer some passes after it began.

    Stack(connector="OffloadingConnector", chunk=4, ...)     a scheduler with its connector
    .ask(tokens)        blocks that a request of these tokens would be served from the device, and in all; changes nothing
    .step()             a pass; returns the batch of events it tells, as bytes, or None

What it serves of a prompt is asked before the request is there, from the state of the managers; when the request is scheduled, the
scheduler's own numbers are compared with that (`mistakes`)."""
import os
import random

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("PYTHONHASHSEED", "0")  # vLLM's names of blocks are random without it, and so is no failure that a seed shows
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import msgspec  # noqa: E402
import torch  # noqa: E402
from vllm.config import (CacheConfig, DeviceConfig, KVEventsConfig, KVTransferConfig, ModelConfig, ParallelConfig, SchedulerConfig,  # noqa: E402
                         VllmConfig)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata  # noqa: E402
from vllm.sampling_params import SamplingParams  # noqa: E402
from vllm.utils.hashing import sha256  # noqa: E402
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash  # noqa: E402
from vllm.v1.core.sched.scheduler import Scheduler  # noqa: E402
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor  # noqa: E402
from vllm.v1.kv_offload.base import make_offload_key  # noqa: E402
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput  # noqa: E402
from vllm.v1.request import Request  # noqa: E402
from vllm.v1.simple_kv_offload.metadata import SimpleCPUOffloadWorkerMetadata  # noqa: E402
from vllm.v1.structured_output import StructuredOutputManager  # noqa: E402

BLOCK = 16
ENCODER = msgspec.msgpack.Encoder()


def removal(names, medium, **more):
    """A batch that tells that a tier has let go of blocks, as vLLM writes it; None for none."""
    event = {"type": "BlockRemoved", "block_hashes": names, "medium": medium, **more}
    return ENCODER.encode([0.0, [event], 0]) if names else None


class Kept:
    """Events that a scheduler publishes, kept."""

    def __init__(self):
        self.batches = []

    def publish(self, batch):
        batch.data_parallel_rank = 0
        self.batches.append(ENCODER.encode(batch))

    def shutdown(self):
        pass


class Stack:
    def __init__(self, model, connector="OffloadingConnector", device_blocks=64, host_blocks=160, chunk=1, seed=1, delay=3, requests=4,
                 block=BLOCK, batch_tokens=2048, **extra):
        self.rng = random.Random(seed)
        self.delay, self.chunk, self.connector_name, self.block = delay, chunk, connector, block
        # A page whose size is what the connector's arithmetic makes whole chunks of.
        spec = FullAttentionSpec(block_size=block, num_kv_heads=1, head_size=128, dtype=torch.float16)
        page = spec.page_size_bytes
        options = dict(extra)
        if connector in ("OffloadingConnector", "SimpleCPUOffloadConnector"):
            options.setdefault("cpu_bytes_to_use", host_blocks // chunk * max(page * chunk, 4096))
        if connector == "OffloadingConnector":
            options["blocks_per_chunk"] = chunk
            options.setdefault("spec_name", "CPUOffloadingSpec")
        config = VllmConfig(
            model_config=ModelConfig(model=model, skip_tokenizer_init=True, dtype="float16", max_model_len=2048),
            cache_config=CacheConfig(block_size=block, enable_prefix_caching=True),
            scheduler_config=SchedulerConfig(max_num_seqs=requests, max_num_batched_tokens=batch_tokens, max_model_len=2048,
                                             enable_chunked_prefill=True, is_encoder_decoder=False, async_scheduling=False),
            parallel_config=ParallelConfig(),
            device_config=DeviceConfig("cpu"),
            kv_transfer_config=KVTransferConfig(kv_connector=connector, kv_role="kv_both", kv_connector_extra_config=options),
            kv_events_config=KVEventsConfig(enable_kv_cache_events=True, publisher="null"))
        config.cache_config.block_size = block
        config.cache_config.num_gpu_blocks = device_blocks
        kv = KVCacheConfig(num_blocks=device_blocks,
                           kv_cache_tensors=[KVCacheTensor(page * device_blocks, ["layer"], page * device_blocks, page)],
                           kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
        self.config, self.kv = config, kv
        self.scheduler = Scheduler(config, kv, StructuredOutputManager(config), block)
        self.events = self.scheduler.kv_event_publisher = Kept()
        init_none_hash(sha256)
        self.hasher = get_request_block_hasher(block, sha256)
        self.transfers, self.made, self.mistakes, self.loaded, self.seen = {}, 0, [], 0, set()
        self.passes = 0
        self._watch()

    def _watch(self):
        """What the connector says when a request is scheduled must be what was said before it."""
        real = self.scheduler.connector.get_num_new_matched_tokens

        def watched(request, computed):
            device, total = self.ask(request.prompt_token_ids)
            said = real(request, computed)
            first = request.request_id not in self.seen
            self.seen.add(request.request_id)
            if first and said[0] is not None and (computed != device * self.block or (computed + said[0]) // self.block != total):
                self.mistakes.append((request.num_tokens, device, total, computed, said))
            return said

        self.scheduler.connector.get_num_new_matched_tokens = watched

    # ---- what it serves

    def request(self, tokens, answer):
        self.made += 1
        return Request(request_id=f"r{self.made}", prompt_token_ids=list(tokens), sampling_params=SamplingParams(max_tokens=answer, ignore_eos=True),
                       pooling_params=None, block_hasher=self.hasher)

    def ask(self, tokens):
        r = Request(request_id="q", prompt_token_ids=list(tokens), sampling_params=SamplingParams(max_tokens=1), pooling_params=None,
                    block_hasher=self.hasher)
        pool = self.scheduler.kv_cache_manager.block_pool
        device = 0
        while device < len(r.block_hashes) and pool.get_cached_block(r.block_hashes[device], [0]):
            device += 1
        return device, getattr(self, "_" + self.connector_name)(r, device)

    def _OffloadingConnector(self, r, device):
        """Whole chunks from the one that the device's prefix ends in; less than a chunk is nothing (_lookup_complete_chunks)."""
        manager, at = self.scheduler.connector.scheduler.manager, device // self.chunk
        while (at + 1) * self.chunk <= len(r.block_hashes):
            key = make_offload_key(r.block_hashes[(at + 1) * self.chunk - 1], 0)
            if not self._ready(manager, key):
                break
            at += 1
        return at * self.chunk if at * self.chunk - device >= self.chunk else device

    @staticmethod
    def _ready(manager, key):
        primary = getattr(manager, "primary_tier", manager)
        chunk = primary._policy.get(key)
        return chunk is not None and chunk.is_ready

    def _SimpleCPUOffloadConnector(self, r, device):
        pool = self.scheduler.connector.scheduler_manager.cpu_block_pool
        at = device
        while at < len(r.block_hashes) and pool.get_cached_block(r.block_hashes[at], [0]):
            at += 1
        return at

    # ---- passes

    def add(self, tokens, answer):
        r = self.request(tokens, answer)
        self.scheduler.add_request(r)
        return r

    def step(self):
        self.passes += 1
        s = self.scheduler
        before = len(self.events.batches)
        out = s.schedule()
        said = self._worker(out)
        ids = list(out.num_scheduled_tokens)
        sampled = []
        for i in ids:
            r = s.requests[i]
            done = r.num_computed_tokens >= r.num_tokens
            sampled.append([self.rng.randrange(1 << 20)] if done else [])
        result = ModelRunnerOutput(req_ids=ids, req_id_to_index={i: k for k, i in enumerate(ids)}, sampled_token_ids=sampled,
                                   kv_connector_output=said)
        s.update_from_output(out, result)
        return self.events.batches[before:]

    def _worker(self, out):
        """What the worker's side of the connector says of a pass."""
        recv, worker_meta = self._transfer(out.kv_connector_metadata)
        return KVConnectorOutput(finished_recving=recv or None, kv_connector_worker_meta=worker_meta)

    def _transfer(self, meta):
        """Transfers end some passes after they began; what must be flushed, now. Returns: who has been loaded for, what the worker says."""
        for job, kind, reqs in self._jobs(meta):
            self.transfers[job] = (self.passes + self.rng.randrange(self.delay + 1), kind, reqs)
        flush = set(getattr(meta, "jobs_to_flush", None) or ())
        stored, recv = {}, set()
        for job in [j for j, (at, *_) in self.transfers.items() if at <= self.passes or j in flush]:
            _, kind, reqs = self.transfers.pop(job)
            if kind == "load":
                recv |= reqs
                self.loaded += 1
            if kind == "store" or self.connector_name == "OffloadingConnector":
                stored[job if isinstance(job, int) else job[1]] = 1
        if self.connector_name == "OffloadingConnector":
            return recv, OffloadingWorkerMetadata(completed_jobs=stored)
        return recv, SimpleCPUOffloadWorkerMetadata(completed_store_events=stored)

    @staticmethod
    def _jobs(meta):
        """(job, load or store, requests)"""
        if not hasattr(meta, "load_jobs"):  # SimpleCPUOffload: one of each a pass, numbered apart
            if meta.load_event >= 0:
                yield ("load", meta.load_event), "load", set(meta.load_event_to_reqs[meta.load_event])
            if meta.store_event >= 0:
                yield ("store", meta.store_event), "store", set()
            return
        for kind in ("load", "store"):
            for job, t in getattr(meta, f"{kind}_jobs").items():
                yield job, kind, {t.req_id}

    def idle(self):
        return not self.scheduler.requests and not self.transfers and not self.scheduler.has_finished_requests()
