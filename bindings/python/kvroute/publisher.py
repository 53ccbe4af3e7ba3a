# SPDX-License-Identifier: Apache-2.0
import json
import threading

from ._check import MASK, U32, bad, block_size, whole, worker
from .hashing import compute_block_hash_for_seq
from .local import LocalIndexer


def _name(value):
    """An engine's block hash as 64 bits: signed or unsigned, or bytes, of which the last eight count."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return int.from_bytes(bytes(value)[-8:], "big")
    return whole("block_hash", value, -(1 << 63)) & MASK


def _deliver_to(endpoint):
    """What is called with each router event."""
    if endpoint is None:
        return lambda event: None
    for method in ("apply_router_event", "record"):
        if callable(getattr(endpoint, method, None)):
            return getattr(endpoint, method)
    if callable(endpoint):
        return lambda event: endpoint(json.dumps(event, separators=(",", ":")))
    raise bad("endpoint", endpoint, "None, something with apply_router_event (RadixTree, KvIndexer, KvRouter), a KvRecorder, or a callable that "
              "is given the JSON of each router event")


class KvEventPublisher:
    """Makes router events of what one (worker, rank) of an engine stores and removes, with ids of its own: 1, 2, 3, ...

    endpoint: where they go. This package opens no sockets: it is an index or a router in this process, a recorder, or a callable that
    sends the JSON wherever it should go; None: only to the local index. worker_id: needed, there is no runtime to take it from.
    kv_block_size: tokens per block. enable_local_indexer: keeps what the rank holds, for get_events_json.

    An event is in the local index before it is delivered. When delivery raises, so does the call; the id is used, so that whoever
    follows sees a gap and asks. Threads: any; events are made one after the other."""

    def __init__(self, endpoint=None, worker_id=None, kv_block_size=0, dp_rank=0, enable_local_indexer=False, zmq_endpoint=None, zmq_topic=None,
                 batching_timeout_ms=None, image_token_id=None):
        for name, value in (("zmq_endpoint", zmq_endpoint), ("zmq_topic", zmq_topic)):
            if value is not None:
                raise bad(name, value, "None; this package opens no sockets: run `kvroute publish --events` beside the engine")
        if batching_timeout_ms not in (None, 0):
            raise bad("batching_timeout_ms", batching_timeout_ms, "None, 0: events are delivered at once")
        if image_token_id is not None:
            raise bad("image_token_id", image_token_id, "None; say which objects a block has with block_mm_infos")
        self._worker, self._rank = worker(worker_id), whole("dp_rank", dp_rank, 0, U32)
        self._block_size = block_size(kv_block_size, "kv_block_size")
        self._deliver, self._lock, self._next, self._open = _deliver_to(endpoint), threading.Lock(), 1, True
        self._local = LocalIndexer(self._worker, self._block_size, self._rank) if enable_local_indexer else None

    def publish_stored(self, token_ids, num_block_tokens, block_hashes, parent_hash=None, block_mm_infos=None, lora_name=None, is_eagle=None,
                       cache_salt=None):
        """Blocks were stored: their tokens in order, how many each has (kv_block_size), and the engine's names (ints, signed or not, or
        bytes). parent_hash None: they start a sequence. Lists that do not belong together raise ValueError, and nothing is published."""
        tokens, names, sizes = list(token_ids), [_name(h) for h in block_hashes], list(num_block_tokens)
        if len(sizes) != len(names):
            raise bad("num_block_tokens", sizes, f"one for each of {len(names)} block_hashes")
        for i, n in enumerate(sizes):
            if n != self._block_size:
                raise bad(f"num_block_tokens[{i}]", n, f"{self._block_size}, the kv_block_size")
        locals_ = compute_block_hash_for_seq(tokens, self._block_size, block_mm_infos, lora_name=lora_name, is_eagle=bool(is_eagle),
                                             cache_namespace=cache_salt)
        if len(locals_) != len(names):
            raise bad("token_ids", f"{len(tokens)} tokens", f"as many as {len(names)} blocks of {self._block_size} have")
        if not names:
            return
        infos = list(block_mm_infos or []) + [None] * len(names)
        blocks = [{"block_hash": n, "tokens_hash": h, "mm_extra_info": _mm_extra(i)} for n, h, i in zip(names, locals_, infos)]
        parent = None if parent_hash is None else _name(parent_hash)
        with self._lock:
            self._publish({"stored": {"parent_hash": parent, "start_position": None, "blocks": blocks}},
                          lambda local, at: local.apply_stored(at, tokens, names, parent, lora_name, cache_salt, bool(is_eagle),
                                                               block_mm_infos=block_mm_infos))

    def publish_removed(self, block_hashes):
        """Blocks are gone, by the engine's names."""
        names = [_name(h) for h in block_hashes]
        if not names:
            return
        with self._lock:
            self._publish({"removed": {"block_hashes": names}}, lambda local, at: local.apply_removed(at, names))

    def publish_cleared(self):
        """The rank holds nothing any more."""
        with self._lock:
            self._publish("cleared", lambda local, at: local.apply_cleared(at))

    def _publish(self, data, keep):
        if not self._open:
            raise RuntimeError("the publisher has been shut down")
        at, self._next = self._next, self._next + 1
        if self._local:
            keep(self._local, at)
        self._deliver({"worker_id": self._worker, "storage_tier": "device", "residency_domain": "worker",
                       "event": {"event_id": at, "data": data, "dp_rank": self._rank}})

    def get_events_json(self, start=None, end=None):
        """The answer to `GET /kv_recover?start=&end=`, as LocalIndexer.get_events_json; needs enable_local_indexer."""
        if not self._local:
            raise RuntimeError("enable_local_indexer is False: there is nothing to answer from")
        return self._local.get_events_json(start, end)

    def shutdown(self):
        """Nothing is published from now on. Twice is fine."""
        with self._lock:
            self._open = False
            if self._local:
                self._local.shutdown()


def _mm_extra(info):
    objects = (info or {}).get("mm_objects") or []
    if not objects:
        return None
    return {"mm_objects": [{"mm_hash": o["mm_hash"], "offsets": [list(r) for r in o.get("offsets") or []]} for o in objects]}
