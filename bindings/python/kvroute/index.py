# SPDX-License-Identifier: Apache-2.0
import json

from ._c import MASK, TIERS, PerThread, ffi, lib
from ._errors import EINVAL, ENOTFOUND, EPARENT, ESEQUENCE, KvrouteError, check
from .hashing import local_hashes


class OverlapScores:
    """How many leading blocks of a prompt each (worker_id, dp_rank) holds; workers without any are absent.

    scores: {(worker_id, dp_rank): blocks}. frequencies: how often each leading block was used lately, zeros omitted.
    It can be awaited, which gives itself, so that code written for awaited calls works."""

    __slots__ = ("scores", "frequencies")

    def __init__(self, scores=None, frequencies=None):
        self.scores = dict(scores or {})
        self.frequencies = list(frequencies or [])

    def __await__(self):
        return self
        yield  # a generator

    def __eq__(self, other):
        return isinstance(other, OverlapScores) and (self.scores, self.frequencies) == (other.scores, other.frequencies)

    def __repr__(self):
        return f"OverlapScores(scores={self.scores}, frequencies={self.frequencies})"


class _Ready:
    """An awaitable of a value that is there already."""

    def __init__(self, value=None):
        self.value = value

    def __await__(self):
        return self.value
        yield


class _Index:
    """An index and a reader for each thread."""

    def __init__(self, ttl=0.0, predicted_max=0, prune_ratio=0.0, window=0.0):
        index = lib.py_index_new(ttl, predicted_max, prune_ratio, window, 0)
        if index == ffi.NULL:
            raise MemoryError("kvroute")
        self.ptr = ffi.gc(index, lib.kvr_index_destroy)  # frees the readers too
        self._readers = PerThread(self, lambda: lib.py_reader_new(index), lambda r: None)
        self._window = window > 0

    def match(self, locals_, n):
        if not n:
            return OverlapScores()
        reader = self._readers.get()
        cap = lib.kvr_index_ranks(self.ptr) + 16
        while True:
            out = ffi.new("py_overlap[]", cap)
            k = lib.py_match(reader, locals_, n, out, cap)
            if k != -10:  # a limit: somebody has registered more
                break
            cap *= 2
        check(k)
        used = []
        if self._window:
            counts = ffi.new("uint32_t[]", n)
            check(lib.kvr_index_use(self.ptr, locals_, n, counts))
            used = [c for c in ffi.unpack(counts, n) if c]
        return OverlapScores({(out[i].worker_id, out[i].dp_rank): out[i].depth for i in range(k)}, used)


def _u64(o, key, default=None):
    v = o.get(key, default)
    if isinstance(v, bool) or not isinstance(v, int) or not 0 <= v <= MASK:
        raise ValueError(f"event: bad value for '{key}': {v!r}; allowed: an unsigned 64-bit integer")
    return v


def _apply(index, worker_id, event, tier=0):
    """Applies one KvCacheEvent (a dict). Returns what the library says."""
    if not isinstance(event, dict):
        raise ValueError("event: a JSON object is needed")
    rank, data = _u64(event, "dp_rank", 0), event.get("data")
    if rank > 0xFFFFFFFF:
        raise ValueError("event: dp_rank is larger than 32 bits")
    if data == "cleared":
        return lib.py_clear(index.ptr, worker_id, rank, tier)
    if not isinstance(data, dict):
        raise ValueError("event: bad value for 'data'; allowed: stored, removed, \"cleared\"")
    if isinstance(data.get("removed"), dict):
        hashes = data["removed"].get("block_hashes")
        if not isinstance(hashes, list):
            raise ValueError("event: removed.block_hashes: a list is needed")
        names = [_u64({"block_hash": h}, "block_hash") for h in hashes]
        return lib.py_remove(index.ptr, worker_id, rank, tier, ffi.new("uint64_t[]", names or [0]), len(names))
    stored = data.get("stored")
    if not isinstance(stored, dict) or not isinstance(stored.get("blocks"), list):
        raise ValueError("event: bad value for 'data'; allowed: stored, removed, \"cleared\"")
    parent, start = stored.get("parent_hash"), stored.get("start_position")
    if parent is not None:
        parent = _u64(stored, "parent_hash")
    if start is not None and _u64(stored, "start_position") > 0xFFFFFFFF:
        raise ValueError("event: start_position is larger than 32 bits")
    blocks = [b if isinstance(b, dict) else {} for b in stored["blocks"]]
    names, locals_ = [_u64(b, "block_hash") for b in blocks], [_u64(b, "tokens_hash") for b in blocks]
    return lib.py_store(index.ptr, worker_id, rank, tier, parent is not None, parent or 0, start is not None, start or 0,
                        ffi.new("uint64_t[]", names or [0]), ffi.new("uint64_t[]", locals_ or [0]), len(names))


def _worker(worker_id):
    worker_id = int(worker_id)
    if not 0 <= worker_id <= MASK:
        raise ValueError(f"worker_id: bad value {worker_id}; allowed: an unsigned 64-bit integer")
    return worker_id


@ffi.def_extern(error=1)
def py_on_stored(ctx, e):
    out = ffi.from_handle(ctx)
    flat = ffi.unpack(e.blocks, 2 * e.blocks_n) if e.blocks_n else []
    blocks = [{"block_hash": flat[2 * i], "tokens_hash": flat[2 * i + 1], "mm_extra_info": None} for i in range(e.blocks_n)]
    stored = {"parent_hash": e.parent if e.has_parent else None, "start_position": e.start if e.has_start else None, "blocks": blocks}
    out.append({"worker_id": e.worker_id, "storage_tier": TIERS[e.tier], "residency_domain": "worker",
                "event": {"event_id": e.event_id, "data": {"stored": stored}, "dp_rank": e.dp_rank}})
    return 0


class RadixTree:
    """An index that is fed by hand.

    expiration_duration_secs: counts how often prefixes are used within that time (OverlapScores.frequencies).
    Threads: any, at once."""

    def __init__(self, expiration_duration_secs=None):
        self._index = _Index(window=float(expiration_duration_secs or 0))

    def find_matches(self, sequence, early_exit=False):
        """Overlap of each worker with a prompt given by its local hashes. early_exit is accepted; answers are always complete."""
        values = [int(h) & MASK for h in sequence]
        return self._index.match(ffi.new("uint64_t[]", values or [0]), len(values))

    def apply_event(self, worker_id, event):
        """Applies one KV cache event: bytes or str of its JSON, or a dict. Bad ones raise ValueError; so does a store whose parent
        is not known. Unknown removals are no error."""
        if isinstance(event, (bytes, bytearray, str)):
            try:
                event = json.loads(event)
            except (ValueError, RecursionError) as e:
                raise ValueError(f"event: not JSON: {e}") from None
        rc = _apply(self._index, _worker(worker_id), event)
        if rc in (-EPARENT, -ESEQUENCE, -EINVAL):
            raise ValueError(str(KvrouteError(rc)))
        if rc != -ENOTFOUND:
            check(rc)

    def remove_worker(self, worker_id):
        lib.kvr_index_remove_worker(self._index.ptr, _worker(worker_id))

    def remove_worker_dp_rank(self, worker_id, dp_rank):
        lib.py_remove_rank(self._index.ptr, _worker(worker_id), int(dp_rank))

    def clear_all_blocks(self, worker_id):
        """The worker holds nothing any more, on any rank."""
        self.remove_worker(worker_id)

    def dump_tree_as_events(self):
        """The content as JSON strings of router events; applying them to an empty tree gives an equal one."""
        out = []
        handle = ffi.new_handle(out)
        check(lib.py_dump(self._index.ptr, handle))
        return [json.dumps(e) for e in out]

    def apply_router_event(self, event):
        """Applies one router event, such as those of dump_tree_as_events and recordings (bytes, str or dict)."""
        event = event if isinstance(event, dict) else json.loads(event)
        tier = event.get("storage_tier", "device")
        if tier not in TIERS:
            raise ValueError(f"event: bad value for 'storage_tier': {tier!r}; allowed: {', '.join(TIERS)}")
        rc = _apply(self._index, _u64(event, "worker_id"), event.get("event"), TIERS.index(tier))
        if rc in (-EPARENT, -ESEQUENCE, -EINVAL):
            raise ValueError(str(KvrouteError(rc)))
        if rc != -ENOTFOUND:
            check(rc)

    def current_size(self):
        """(block, holder) pairs."""
        return lib.py_index_blocks(self._index.ptr)


class KvIndexer(RadixTree):
    """An index of prompts, fed by events.

    endpoint is kept for callers that have one and is not used: there is no runtime here that could deliver events; feed it with
    apply_event, or let `kvroute indexer` follow the engines. block_size: tokens per KV block."""

    def __init__(self, endpoint=None, block_size=None):
        if block_size is None or not 0 < int(block_size) <= 65536:
            raise ValueError(f"block_size: bad value {block_size!r}; allowed: 1 to 65536")
        super().__init__()
        self.endpoint, self._block_size = endpoint, int(block_size)

    def block_size(self):
        return self._block_size

    def find_matches_for_request(self, token_ids, lora_name=None, is_eagle=None, *, cache_namespace=None):
        """Overlap of each worker with a prompt given by its tokens; can be awaited."""
        return self._index.match(*local_hashes(token_ids, self._block_size, lora_name, bool(is_eagle), cache_namespace))


class ApproxKvIndexer:
    """An index that learns from routing decisions only, for engines without KV events.

    router_ttl_secs: how long a decision counts. router_max_tree_size: (block, worker) pairs that start pruning, down to
    router_prune_target_ratio of it."""

    def __init__(self, endpoint=None, kv_block_size=None, router_ttl_secs=120.0, router_max_tree_size=1048576, router_prune_target_ratio=0.8):
        if kv_block_size is None or not 0 < int(kv_block_size) <= 65536:
            raise ValueError(f"kv_block_size: bad value {kv_block_size!r}; allowed: 1 to 65536")
        if not 0 < router_ttl_secs or not 0 < router_prune_target_ratio <= 1 or router_max_tree_size < 1:
            raise ValueError("router_ttl_secs and router_max_tree_size: more than 0; router_prune_target_ratio: more than 0, at most 1")
        self.endpoint, self._block_size = endpoint, int(kv_block_size)
        self._index = _Index(float(router_ttl_secs), int(router_max_tree_size), float(router_prune_target_ratio))

    def block_size(self):
        return self._block_size

    def find_matches_for_request(self, token_ids, lora_name=None, is_eagle=None, *, cache_namespace=None):
        lib.kvr_index_expire(self._index.ptr)
        return self._index.match(*local_hashes(token_ids, self._block_size, lora_name, bool(is_eagle), cache_namespace))

    def process_routing_decision_for_request(self, tokens, worker_id, dp_rank=0, *, lora_name=None, cache_namespace=None):
        """The worker is taken to hold the prompt from now on; can be awaited."""
        locals_, n = local_hashes(tokens, self._block_size, lora_name, False, cache_namespace)
        check(lib.kvr_index_record_py(self._index.ptr, _worker(worker_id), int(dp_rank), locals_, n))
        return _Ready()

    def remove_worker(self, worker_id):
        lib.kvr_index_remove_worker(self._index.ptr, _worker(worker_id))
