# SPDX-License-Identifier: Apache-2.0
import json

from . import _kvroute
from ._await import Ready
from ._check import MASK, TIERS, U32, block_size as check_block_size, json_of, real, tier_of, whole, worker
from ._errors import EINVAL, ENOTFOUND, EPARENT, ESEQUENCE, KvrouteError, check
from .hashing import prompt_of


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
    if rank > U32:
        raise ValueError("event: dp_rank is larger than 32 bits")
    if data == "cleared":
        return index.cleared(worker_id, rank, tier)
    if not isinstance(data, dict):
        raise ValueError("event: bad value for 'data'; allowed: stored, removed, \"cleared\"")
    if isinstance(data.get("removed"), dict):
        hashes = data["removed"].get("block_hashes")
        if not isinstance(hashes, list):
            raise ValueError("event: removed.block_hashes: a list is needed")
        return index.removed(worker_id, rank, tier, [_u64({"block_hash": h}, "block_hash") for h in hashes])
    stored = data.get("stored")
    if not isinstance(stored, dict) or not isinstance(stored.get("blocks"), list):
        raise ValueError("event: bad value for 'data'; allowed: stored, removed, \"cleared\"")
    parent, start = stored.get("parent_hash"), stored.get("start_position")
    if parent is not None:
        parent = _u64(stored, "parent_hash")
    if start is not None and _u64(stored, "start_position") > U32:
        raise ValueError("event: start_position is larger than 32 bits")
    blocks = [b if isinstance(b, dict) else {} for b in stored["blocks"]]
    names, locals_ = [_u64(b, "block_hash") for b in blocks], [_u64(b, "tokens_hash") for b in blocks]
    return index.store(worker_id, rank, tier, parent is not None, parent or 0, start is not None, start or 0, names, locals_)


def _settle(rc):
    """A bad event is a ValueError; a removal of what is not there is no error."""
    if rc in (-EPARENT, -ESEQUENCE, -EINVAL):
        raise ValueError(str(KvrouteError(rc)))
    if rc != -ENOTFOUND:
        check(rc)


def _object(event):
    return json_of("event", event) if isinstance(event, (bytes, bytearray, str)) else event


def _router_event(row):
    worker_id, rank, tier, parent, start, names, locals_ = row
    blocks = [{"block_hash": n, "tokens_hash": h, "mm_extra_info": None} for n, h in zip(names, locals_)]
    stored = {"parent_hash": parent, "start_position": start, "blocks": blocks}
    return {"worker_id": worker_id, "storage_tier": TIERS[tier], "residency_domain": "worker",
            "event": {"event_id": 0, "data": {"stored": stored}, "dp_rank": rank}}


class RadixTree:
    """An index that is fed by hand.

    expiration_duration_secs: counts how often prefixes are used within that time (OverlapScores.frequencies). max_bytes: the most that it
    takes. rank_capacity: device blocks that a rank may hold before its oldest go; set_capacity says it of one rank. 0: no limit.
    Threads: any, at once."""

    def __init__(self, expiration_duration_secs=None, *, max_bytes=0, rank_capacity=0):
        window = 0.0 if expiration_duration_secs is None else real("expiration_duration_secs", expiration_duration_secs, 1e-3, 1e9)
        self.has_lower_tiers = False
        self._index = _kvroute.Index(0.0, 0, 0.0, window, whole("max_bytes", max_bytes), whole("rank_capacity", rank_capacity))

    def find_matches(self, sequence, early_exit=False):
        """Overlap of each worker with a prompt given by its local hashes. early_exit is accepted; answers are always complete."""
        return OverlapScores(*self._index.match_hashes(sequence))

    def apply_event(self, worker_id, event):
        """Applies one KV cache event: bytes or str of its JSON, or a dict. Bad ones raise ValueError; so does a store whose parent
        is not known. Unknown removals are no error."""
        _settle(_apply(self._index, worker(worker_id), _object(event)))

    def remove_worker(self, worker_id):
        self._index.remove_worker(worker(worker_id))

    def remove_worker_dp_rank(self, worker_id, dp_rank):
        self._index.remove_rank(worker(worker_id), whole("dp_rank", dp_rank, 0, U32))

    def clear_all_blocks(self, worker_id):
        """The worker holds nothing any more, on any rank."""
        self.remove_worker(worker_id)

    def dump_tree_as_events(self):
        """The content as JSON strings of router events; applying them to an empty tree gives an equal one."""
        events = [_router_event(row) for row in self._index.dump()]
        for i, e in enumerate(events):
            e["event"]["event_id"] = i
        return [json.dumps(e) for e in events]

    def apply_router_event(self, event):
        """Applies one router event, such as those of dump_tree_as_events and recordings (bytes, str or dict)."""
        event = _object(event)
        if not isinstance(event, dict):
            raise ValueError("event: a JSON object is needed")
        tier = event.get("storage_tier", "device")
        if tier not in TIERS:
            raise ValueError(f"event: bad value for 'storage_tier': {tier!r}; allowed: {', '.join(TIERS)}")
        self.has_lower_tiers |= tier != TIERS[0]
        _settle(_apply(self._index, _u64(event, "worker_id"), event.get("event"), TIERS.index(tier)))

    def set_capacity(self, worker_id, blocks, dp_rank=0):
        """Device blocks that one rank may hold before its oldest go; needs rank_capacity or max_bytes."""
        self._index.set_capacity(worker(worker_id), whole("dp_rank", dp_rank, 0, U32), whole("blocks", blocks))

    def holds(self, worker_id, block_hash, dp_rank=0, medium=None):
        """Whether a rank has a block of that name in the tier of a medium ("CPU_PINNED", "DISK", ...; None: the device)."""
        return self._index.holds(worker(worker_id), whole("dp_rank", dp_rank, 0, U32), tier_of(medium), block_hash)

    def rank_stats(self, worker_id, dp_rank=0):
        """{"blocks", "stored", "removed", "tiers"} of one rank: device blocks now, and what events have added and taken; of each lower
        tier "blocks", "unplaced" (told of, but under a parent that is not known) and "given_up"."""
        blocks, (stored, removed), tiers = self._index.rank_stats(worker(worker_id), whole("dp_rank", dp_rank, 0, U32))
        lower = {TIERS[i]: dict(zip(("blocks", "unplaced", "given_up"), row)) for i, row in enumerate(tiers) if i}
        return {"blocks": blocks, "stored": stored, "removed": removed, "tiers": lower}

    def validate(self):
        """None, or what is wrong with the index: for tests."""
        return self._index.validate()

    def current_size(self):
        """(block, holder) pairs."""
        return self._index.blocks()


class KvIndexer(RadixTree):
    """An index of prompts, fed by events.

    endpoint is kept for callers that have one and is not used: there is no runtime here that could deliver events; feed it with
    apply_event, or let `kvroute indexer` follow the engines. block_size: tokens per KV block."""

    def __init__(self, endpoint=None, block_size=None):
        self.endpoint, self._block_size = endpoint, check_block_size(block_size)
        super().__init__()

    def block_size(self):
        return self._block_size

    def find_matches_for_request(self, token_ids, lora_name=None, is_eagle=None, *, cache_namespace=None, block_mm_infos=None):
        """Overlap of each worker with a prompt given by its tokens; can be awaited."""
        return OverlapScores(*self._index.match_prompt(*prompt_of(token_ids, self._block_size, lora_name, is_eagle, cache_namespace,
                                                                  block_mm_infos)))


class ApproxKvIndexer:
    """An index that learns from routing decisions only, for engines without KV events.

    router_ttl_secs: how long a decision counts. router_max_tree_size: (block, worker) pairs that start pruning, down to
    router_prune_target_ratio of it."""

    def __init__(self, endpoint=None, kv_block_size=None, router_ttl_secs=120.0, router_max_tree_size=1048576, router_prune_target_ratio=0.8):
        self.endpoint, self._block_size = endpoint, check_block_size(kv_block_size, "kv_block_size")
        self._index = _kvroute.Index(real("router_ttl_secs", router_ttl_secs, 1e-3, 1e9), whole("router_max_tree_size", router_max_tree_size, 1),
                                     real("router_prune_target_ratio", router_prune_target_ratio, 0, 1, above=True), 0.0, 0, 0)

    def block_size(self):
        return self._block_size

    def find_matches_for_request(self, token_ids, lora_name=None, is_eagle=None, *, cache_namespace=None, block_mm_infos=None):
        return OverlapScores(*self._index.match_prompt(*prompt_of(token_ids, self._block_size, lora_name, is_eagle, cache_namespace,
                                                                  block_mm_infos)))

    def process_routing_decision_for_request(self, tokens, worker_id, dp_rank=0, *, lora_name=None, cache_namespace=None, block_mm_infos=None):
        """The worker is taken to hold the prompt from now on; can be awaited."""
        self._index.record(worker(worker_id), whole("dp_rank", dp_rank, 0, U32),
                           prompt_of(tokens, self._block_size, lora_name, False, cache_namespace, block_mm_infos))
        return Ready()

    def remove_worker(self, worker_id):
        self._index.remove_worker(worker(worker_id))

    def expire(self):
        """Forgets what is older than router_ttl_secs, as every other call does too. Returns how many (block, worker) pairs went."""
        return self._index.expire()

    def current_size(self):
        """(block, worker) pairs."""
        return self._index.blocks()
