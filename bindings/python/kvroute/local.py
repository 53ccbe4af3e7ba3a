# SPDX-License-Identifier: Apache-2.0
import contextlib

from . import _kvroute
from ._check import U32, bad, block_size, tier_of, whole, worker
from ._errors import EINVAL, ELENGTH, ESHUTDOWN
from .hashing import mm_of


class LocalIndexer:
    """What one (worker, rank) of an engine holds, so that a router that has lost events can be told everything.

    Call apply_* where the engine makes its KV events, with event_id the sequence of the batch that is published, and answer
    `GET /kv_recover?start=&end=` with get_events_json(start, end). See kvroute/local_index.h for what the answers mean.

    worker_id, dp_rank: told in the answers. kv_block_size: tokens per block. max_events, max_event_bytes: what is kept for
    consumers that lack a little; whoever lacks more gets everything. max_index_bytes: 0: no limit.

    Threads: apply_* from one thread; the others from any, at once, also while it applies."""

    def __init__(self, worker_id=0, kv_block_size=16, dp_rank=0, *, max_events=1024, max_event_bytes=16 << 20, max_index_bytes=0, epoch=0):
        self._block_size = block_size(kv_block_size, "kv_block_size")
        self._li = _kvroute.LocalIndex(worker(worker_id), whole("dp_rank", dp_rank, 0, U32), self._block_size, whole("epoch", epoch),
                                       whole("max_events", max_events, 1), whole("max_event_bytes", max_event_bytes, 1),
                                       whole("max_index_bytes", max_index_bytes))

    @staticmethod
    def _applied(rc, event_id):
        """True, or False when the index refused the event, which is kept for consumers all the same."""
        if rc == 0:
            return True
        if rc == -ESHUTDOWN:
            raise RuntimeError("the local indexer has been shut down")
        if rc == -EINVAL:
            raise ValueError(f"event_id: {event_id} is below an earlier one; ids must not fall")
        return False

    def apply_stored(self, event_id, token_ids, block_hashes, parent_hash=None, lora_name=None, cache_salt=None, is_eagle=False, medium=None,
                     *, block_mm_infos=None):
        """Blocks were stored: their tokens, in order, and the engine's names (ints, signed or not, or bytes), one for each block that
        the tokens fill, else ValueError and nothing applied. parent_hash None: they start a sequence. medium: None and "GPU" are the
        device; "CPU_PINNED", "DISK", ... are lower tiers. block_mm_infos: as compute_block_hash_for_seq."""
        prompt = (token_ids, self._block_size, lora_name, cache_salt, bool(is_eagle), mm_of(block_mm_infos))
        rc = self._li.store(whole("event_id", event_id), tier_of(medium), prompt, block_hashes, parent_hash)
        if rc == -ELENGTH:
            raise bad("block_hashes", block_hashes, f"one for each full block of {self._block_size} tokens in token_ids")
        return self._applied(rc, event_id)

    def apply_removed(self, event_id, block_hashes, medium=None):
        return self._applied(self._li.removed(whole("event_id", event_id), tier_of(medium), block_hashes), event_id)

    def apply_cleared(self, event_id):
        return self._applied(self._li.cleared(whole("event_id", event_id)), event_id)

    @contextlib.contextmanager
    def batch(self):
        """Events applied within have one id and are told to nobody before the end: a consumer sees the whole batch or none of it."""
        self._li.hold()
        try:
            yield self
        finally:
            self._li.release()

    def get_events_json(self, start=None, end=None, *, old_shape=False, supports_tree_dump_failed=False):
        """The answer to `GET /kv_recover?start=&end=`: a JSON text, externally tagged (Events, TreeDump, TooNew, ...)."""
        return self._li.answer(start, end, old_shape, supports_tree_dump_failed)

    def write_events_json(self, write, start=None, end=None, *, old_shape=False, supports_tree_dump_failed=False):
        """The same, given to write(bytes) in pieces of some 64 KiB, so that a large answer is never in memory as a whole."""
        self._li.write_answer(start, end, old_shape, supports_tree_dump_failed, write)

    def set_incomplete(self, why):
        """Says that the engine holds more than was applied, so that dumps fail instead of lying; None: it does not."""
        self._li.set_incomplete(why)

    def stats(self):
        return self._li.stats()

    def shutdown(self):
        """Events are refused and dumps fail from now on. Twice is fine."""
        self._li.shutdown()
