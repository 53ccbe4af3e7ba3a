# SPDX-License-Identifier: Apache-2.0
import json
import weakref

from ._c import PerThread, ffi, lib, text_of, tokens_of
from ._errors import check
from .index import RadixTree, _Ready, _worker, py_on_stored  # noqa: F401

_COSTS = {"linear": 0, "lmetric": 1, "time": 2}
_DEFAULTS = dict(
    overlap_score_credit=1.0, overlap_score_credit_decay=0.0, prefill_load_scale=1.0, host_cache_hit_weight=0.75, disk_cache_hit_weight=0.25,
    router_temperature=0.0, use_kv_events=True, durable_kv_events=False, router_replica_sync=False, router_track_active_blocks=True,
    router_track_output_blocks=False, router_assume_kv_reuse=True, router_track_prefill_tokens=True, router_prefill_load_model="none",
    router_snapshot_threshold=1000000, router_reset_states=False, router_ttl_secs=120.0, router_queue_threshold=None, router_policy_config=None,
    router_event_threads=4, router_queue_policy="fcfs", use_remote_indexer=False, serve_indexer=False, shared_cache_multiplier=0.0,
    shared_cache_type="none", router_predicted_ttl_secs=None, router_max_tree_size=1048576, router_prune_target_ratio=0.8, cost="linear", seed=0)


class KvRouterConfig:
    """How KvRouter chooses. Keywords as NVIDIA Dynamo names them; those that concern a runtime are accepted and kept.

    cost: "linear" (Dynamo's), "lmetric" or "time". overlap_score_weight is the older name of overlap_score_credit."""

    def __init__(self, **options):
        if "overlap_score_weight" in options:
            options.setdefault("overlap_score_credit", options.pop("overlap_score_weight"))
        for key in options:
            if key not in _DEFAULTS:
                raise TypeError(f"KvRouterConfig: unknown option '{key}'; allowed: {', '.join(sorted(_DEFAULTS))}")
        for key, default in _DEFAULTS.items():
            setattr(self, key, options.get(key, default))
        self._check()

    def _check(self):
        if self.cost not in _COSTS:
            raise ValueError(f"cost: bad value {self.cost!r}; allowed: {', '.join(_COSTS)}")
        if self.serve_indexer and self.use_remote_indexer:
            raise ValueError("serve_indexer and use_remote_indexer exclude each other: an index is served or asked for")
        if (self.serve_indexer or self.use_remote_indexer) and self.overlap_score_credit <= 0:
            raise ValueError("serve_indexer and use_remote_indexer need overlap_score_credit above 0: else there is no index")

    @property
    def overlap_score_weight(self):
        return self.overlap_score_credit

    @overlap_score_weight.setter
    def overlap_score_weight(self, value):
        self.overlap_score_credit = value

    @classmethod
    def from_json(cls, text):
        return cls(**json.loads(text))

    def copy(self):
        return self.with_overrides()

    def with_overrides(self, **options):
        return KvRouterConfig(**{**{k: getattr(self, k) for k in _DEFAULTS}, **options})

    def __repr__(self):
        changed = {k: getattr(self, k) for k in _DEFAULTS if getattr(self, k) != _DEFAULTS[k]}
        return f"KvRouterConfig({', '.join(f'{k}={v!r}' for k, v in changed.items())})"




def _refuse(**given):
    """What Dynamo's router takes and this one does not is refused, not ignored."""
    for name, value in given.items():
        if value:
            raise NotImplementedError(f"{name}: not supported by the router in this process; run kvroute serve or select")


_OVERRIDES = {"overlap_score_credit": (1, "credit"), "overlap_score_weight": (1, "credit"), "prefill_load_scale": (2, "scale"),
              "router_temperature": (4, "temperature"), "shared_cache_multiplier": (8, "shared")}


class KvRouter:
    """Chooses workers for prompts in this process, by overlap and load. Register workers with add_worker and, with KV events, feed
    them with apply_event; without, decisions are remembered.

    endpoint is kept for callers that have one and is not used. Results can be awaited. Threads: any, at once."""

    def __init__(self, endpoint=None, block_size=16, kv_router_config=None, aic_perf_config=None):
        _refuse(aic_perf_config=aic_perf_config)
        config = kv_router_config or KvRouterConfig()
        if config.use_remote_indexer:
            raise ValueError("use_remote_indexer: there is no service to ask in this process; run kvroute serve")
        if not 0 < int(block_size) <= 65536:
            raise ValueError(f"block_size: bad value {block_size!r}; allowed: 1 to 65536")
        self.endpoint, self.config, self._block_size = endpoint, config, int(block_size)
        self._tree = RadixTree() if config.overlap_score_credit > 0 else None
        if self._tree and not config.use_kv_events:
            from .index import _Index
            self._tree._index = _Index(float(config.router_ttl_secs), int(config.router_max_tree_size), float(config.router_prune_target_ratio))
        c = ffi.new("py_router_config *", dict(
            overlap_credit=config.overlap_score_credit, credit_decay=config.overlap_score_credit_decay, prefill_load_scale=config.prefill_load_scale,
            host_weight=config.host_cache_hit_weight, disk_weight=config.disk_cache_hit_weight, shared_multiplier=config.shared_cache_multiplier,
            temperature=config.router_temperature, cost=_COSTS[config.cost], track_active_blocks=config.router_track_active_blocks,
            assume_kv_reuse=config.router_assume_kv_reuse, track_prefill_tokens=config.router_track_prefill_tokens,
            record_decisions=0, seed=config.seed))
        field, rc = ffi.new("const char **"), ffi.new("int *")
        index = self._tree._index.ptr if self._tree else ffi.NULL
        router = lib.py_router_new(index, self._block_size, c, field, rc)
        if router == ffi.NULL:
            if rc[0] == -2 and field[0] != ffi.NULL:
                raise ValueError(f"KvRouterConfig: bad value for {ffi.string(field[0]).decode()}")
            check(rc[0])
        self._router = router
        self._contexts = PerThread(self, lambda: lib.py_ctx_new(router), lib.kvr_router_ctx_destroy)
        self._contexts.finalizer.detach()
        made, tree = self._contexts._all, self._tree
        self._finalizer = weakref.finalize(self, KvRouter._free, made, router, tree)

    @staticmethod
    def _free(contexts, router, tree):
        PerThread._free_all(contexts, lib.kvr_router_ctx_destroy)
        lib.kvr_router_destroy(router)
        del tree  # the index goes after the router

    # ---- workers

    def add_worker(self, worker_id, data_parallel_start_rank=0, data_parallel_size=1):
        """Registers a worker, or changes its ranks."""
        check(lib.kvr_router_set_worker(self._router, _worker(worker_id), int(data_parallel_start_rank), int(data_parallel_size)))

    def remove_worker(self, worker_id):
        lib.kvr_router_remove_worker(self._router, _worker(worker_id))

    def apply_event(self, worker_id, event):
        """A KV event of a worker, as RadixTree.apply_event."""
        if not self._tree:
            raise ValueError("there is no index: overlap_score_credit is 0")
        self._tree.apply_event(worker_id, event)

    # ---- requests

    def _request(self, keep, token_ids, lora_name=None, cache_namespace=None, request_id=None, book=False, override=None, allowed=None,
                 worker_id=None, dp_rank=None, is_eagle=False):
        rq = ffi.new("py_request *")
        owners = [tokens_of(token_ids), text_of(lora_name), text_of(cache_namespace), text_of(request_id)]
        keep += owners  # what the pointers point to
        (rq.tokens, rq.tokens_n), (rq.lora, rq.lora_len), (rq.salt, rq.salt_len), (rq.id, rq.id_len) = owners
        rq.eagle, rq.book = bool(is_eagle), bool(book)
        for key, value in (override or {}).items():
            if key not in _OVERRIDES:
                raise ValueError(f"router_config_override: unknown key '{key}'; allowed: {', '.join(_OVERRIDES)}")
            bit, name = _OVERRIDES[key]
            rq.set |= bit
            setattr(rq, name, float(value))
        if allowed is not None:
            ids = [_worker(w) for w in allowed]
            array = ffi.new("uint64_t[]", ids or [0])
            keep.append(array)
            rq.allowed, rq.allowed_n = array, len(ids)
        if worker_id is not None:
            rq.pinned, rq.pin_worker, rq.pin_any_rank, rq.pin_rank = True, _worker(worker_id), dp_rank is None, dp_rank or 0
        return rq

    def best_worker(self, token_ids, router_config_override=None, request_id=None, update_indexer=False, block_mm_infos=None, lora_name=None,
                    routing_constraints=None, strict_priority=0, policy_class=None, cache_namespace=None, *, allowed_worker_ids=None,
                    worker_id=None, dp_rank=None):
        """(worker_id, dp_rank, overlap_blocks). With request_id it books: mark_prefill_complete and free follow.

        update_indexer: without KV events, remember the decision. Raises NoEndpoints when nobody is eligible."""
        _refuse(block_mm_infos=block_mm_infos, routing_constraints=routing_constraints, strict_priority=strict_priority, policy_class=policy_class)
        keep = []
        rq = self._request(keep, token_ids, lora_name, cache_namespace, request_id, request_id is not None, router_config_override,
                           allowed_worker_ids, worker_id, dp_rank)
        out = ffi.new("py_result *")
        check(lib.py_best(self._router, self._contexts.get(), rq, out))
        if update_indexer and self._tree and not self.config.use_kv_events:
            from .hashing import local_hashes
            locals_, n = local_hashes(token_ids, self._block_size, lora_name, False, cache_namespace)
            check(lib.kvr_index_record_py(self._tree._index.ptr, out.worker_id, out.dp_rank, locals_, n))
        return _Result((out.worker_id, out.dp_rank, out.overlap_blocks))

    def mark_prefill_complete(self, request_id):
        text, n = text_of(request_id)
        check(lib.kvr_router_mark_prefill_completed(self._router, text, n))
        return _Ready()

    def add_output_block(self, request_id, *, decay_fraction=1.0):
        text, n = text_of(request_id)
        check(lib.kvr_router_add_output_blocks(self._router, text, n, 1, float(decay_fraction)))
        return _Ready()

    def free(self, request_id):
        text, n = text_of(request_id)
        check(lib.kvr_router_free(self._router, text, n))
        return _Ready()

    def get_potential_loads(self, token_ids, block_mm_infos=None, lora_name=None, cache_namespace=None):
        """What each rank's load would be with this prompt."""
        _refuse(block_mm_infos=block_mm_infos)
        keep, cap = [], 4096
        out = ffi.new("py_potential[]", cap)
        n = check(lib.py_potential_loads(self._router, self._contexts.get(), self._request(keep, token_ids, lora_name, cache_namespace), out, cap))
        keys = ("worker_id", "dp_rank", "potential_prefill_tokens", "potential_decode_blocks", "active_requests")
        return _List({k: getattr(out[i], k) for k in keys} for i in range(min(n, cap)))

    def get_overlap_scores(self, token_ids, router_config_override=None, block_mm_infos=None, lora_name=None, include_shared=True,
                           cache_namespace=None):
        """{"block_size", "num_blocks", "shared_cache", "workers": [...]} with the blocks each rank holds, tier by tier."""
        _refuse(block_mm_infos=block_mm_infos, router_config_override=router_config_override)
        if not self._tree:
            raise ValueError("there is no index: overlap_score_credit is 0")
        keep, cap = [], lib.kvr_index_ranks(self._tree._index.ptr) + 64
        out, blocks = ffi.new("py_reach[]", cap), ffi.new("size_t *")
        n = check(lib.py_overlaps(self._router, self._contexts.get(), self._request(keep, token_ids, lora_name, cache_namespace), out, cap, blocks))
        workers = [{"worker_id": o.worker_id, "dp_rank": o.dp_rank, "device_blocks": o.device, "host_pinned_blocks": o.host, "disk_blocks": o.disk}
                   for o in (out[i] for i in range(n))]
        return _Dict(block_size=self._block_size, num_blocks=blocks[0], shared_cache=None, workers=workers)

    def dump_events(self):
        """The index as a JSON text: a list of router events."""
        if not self._tree:
            raise ValueError("there is no index: overlap_score_credit is 0")
        return _Text("[" + ",".join(self._tree.dump_tree_as_events()) + "]")

    def block_size(self):
        return self._block_size


class _Result(tuple):
    __slots__ = ()

    def __await__(self):
        return self
        yield  # a generator


class _Text(str):
    __slots__ = ()

    def __await__(self):
        return self
        yield


class _List(list):
    def __await__(self):
        return self
        yield


class _Dict(dict):
    def __await__(self):
        return self
        yield
