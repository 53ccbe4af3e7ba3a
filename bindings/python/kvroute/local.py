# SPDX-License-Identifier: Apache-2.0
import contextlib

from ._c import ffi, hash_of, hashes_of, lib, text_of, tier_of, tokens_of
from ._errors import EINVAL, ELENGTH, ENOMEM, ESHUTDOWN, check


@ffi.def_extern(error=1)
def py_on_piece(ctx, data, n):
    state = ffi.from_handle(ctx)
    try:
        state["write"](ffi.buffer(data, n)[:])
        return 0
    except BaseException as e:  # it goes on in the caller's frame
        state["error"] = e
        return 1


class LocalIndexer:
    """What one (worker, rank) of an engine holds, so that a router that has lost events can be told everything.

    Call apply_* where the engine makes its KV events, with event_id the sequence of the batch that is published, and answer
    `GET /kv_recover?start=&end=` with get_events_json(start, end). See kvroute/local_index.h for what the answers mean.

    worker_id, dp_rank: told in the answers. kv_block_size: tokens per block. max_events, max_event_bytes: what is kept for
    consumers that lack a little; whoever lacks more gets everything. max_index_bytes: 0: no limit.

    Threads: apply_* from one thread; the others from any, at once, also while it applies."""

    def __init__(self, worker_id=0, kv_block_size=16, dp_rank=0, *, max_events=1024, max_event_bytes=16 << 20, max_index_bytes=0, epoch=0):
        if not 0 < int(kv_block_size) <= 65536:
            raise ValueError(f"kv_block_size: bad value {kv_block_size!r}; allowed: 1 to 65536")
        if max_events < 1 or max_event_bytes < 1:
            raise ValueError("max_events, max_event_bytes: allowed: 1 or more")
        li = lib.py_local_new(int(worker_id), int(dp_rank), int(kv_block_size), int(epoch), int(max_events), int(max_event_bytes),
                              int(max_index_bytes))
        if li == ffi.NULL:
            raise MemoryError("kvroute")
        self._li = ffi.gc(li, lib.kvr_local_index_destroy)

    @staticmethod
    def _applied(rc, event_id):
        """True, or False when the index refused the event, which is kept for consumers all the same."""
        if rc == -ESHUTDOWN:
            raise RuntimeError("the local indexer has been shut down")
        if rc == -EINVAL:
            raise ValueError(f"event_id: {event_id} is below an earlier one; ids must not fall")
        if rc == -ENOMEM:
            return False
        return rc == 0

    def apply_stored(self, event_id, token_ids, block_hashes, parent_hash=None, lora_name=None, cache_salt=None, is_eagle=False, medium=None):
        """Blocks were stored: their tokens, in order, and the engine's names (ints, signed or not, or bytes). parent_hash None: they
        start a sequence. There is one name for each block that the tokens fill, or ValueError and nothing applied. medium: None and "GPU" are the device; "CPU_PINNED", "DISK", ... are lower tiers."""
        tokens, tokens_n = tokens_of(token_ids)
        names, n = hashes_of(block_hashes)
        lora, lora_n = text_of(lora_name)
        salt, salt_n = text_of(cache_salt)
        rc = lib.py_local_store(self._li, event_id, tier_of(medium), tokens, tokens_n, names, n, parent_hash is not None,
                                hash_of(parent_hash or 0), lora, lora_n, salt, salt_n, bool(is_eagle))
        if rc == -ELENGTH:
            raise ValueError(f"block_hashes: {n} for {tokens_n} tokens; allowed: one for each full block of kv_block_size tokens")
        return self._applied(rc, event_id)

    def apply_removed(self, event_id, block_hashes, medium=None):
        names, n = hashes_of(block_hashes)
        return self._applied(lib.py_local_remove(self._li, event_id, tier_of(medium), names, n), event_id)

    def apply_cleared(self, event_id):
        return self._applied(lib.kvr_local_index_clear(self._li, event_id), event_id)

    @contextlib.contextmanager
    def batch(self):
        """Events applied within have one id and are told to nobody before the end: a consumer sees the whole batch or none of it."""
        lib.kvr_local_index_hold(self._li)
        try:
            yield self
        finally:
            lib.kvr_local_index_release(self._li)

    def get_events_json(self, start=None, end=None, *, old_shape=False, supports_tree_dump_failed=False):
        """The answer to `GET /kv_recover?start=&end=`: a JSON text, externally tagged (Events, TreeDump, TooNew, ...)."""
        out, size = ffi.new("char **"), ffi.new("size_t *")
        check(lib.py_local_answer(self._li, start is not None, start or 0, end is not None, end or 0, old_shape, supports_tree_dump_failed, out, size))
        try:
            return ffi.unpack(out[0], size[0]).decode()
        finally:
            lib.free(out[0])

    def write_events_json(self, write, start=None, end=None, *, old_shape=False, supports_tree_dump_failed=False):
        """The same, given to write(bytes) in pieces of some 64 KiB, so that a large answer is never in memory as a whole."""
        state = {"write": write}
        handle = ffi.new_handle(state)
        rc = lib.py_local_write(self._li, start is not None, start or 0, end is not None, end or 0, old_shape, supports_tree_dump_failed, handle)
        if "error" in state:
            raise state["error"]
        check(rc)

    def set_incomplete(self, why):
        """Says that the engine holds more than was applied, so that dumps fail instead of lying; None: it does not."""
        text = ffi.NULL if why is None else ffi.new("char[]", str(why).encode())
        lib.kvr_local_index_set_incomplete(self._li, text)

    def stats(self):
        s = ffi.new("py_local_stats *")
        lib.py_local_stats_get(self._li, s)
        return {name: bool(getattr(s, name)) if name == "complete" else getattr(s, name) for name, _ in ffi.typeof("py_local_stats").fields}

    def shutdown(self):
        """Events are refused and dumps fail from now on. Twice is fine."""
        lib.kvr_local_index_shutdown(self._li)
