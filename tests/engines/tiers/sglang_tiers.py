# SPDX-License-Identifier: Apache-2.0
"""SGLang's own radix cache, host cache and its controller, without a GPU: its classes decide what is kept where, tell of it in events and
say what they serve. Nothing is computed and no data is moved: a transfer ends some passes after it began, its storage is a set of keys.

    Stack(page=16, policy="write_back", core="rust", ...)    a cache; policy None: the device alone
    .ask(tokens)        pages that a request of these tokens would be served from the device, and in all; keeps nothing, forgets nothing
    .step()             a pass; returns the batches of events that it tells, as bytes

Device and host are numbers of slots here, as free lists; requests come, are computed in one or more parts, answer and go. What a request
is then served is compared with what was said a moment before (`mistakes`).

The files are those of its wheel (scripts/engines/publishers.py); modules that are not among them, or that would want a GPU, are stubs in
which every name is an empty class."""
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import os
import queue
import random
import sys
import types
from array import array

ROOT = os.path.dirname(os.path.abspath(__file__)) + "/../../.."
FILES = os.environ.get("ENGINES_DIR", f"{ROOT}/build/engines") + "/publishers/sglang-0.5.23-caches"

import msgspec  # noqa: E402
import torch  # noqa: E402

torch.set_num_threads(1)
CLOCK = types.SimpleNamespace(now=0)


# ---- what is around the classes -------------------------------------------------------------------------------------


class Nothing:
    """An instance of a class that is not here: false, and takes everything."""

    def __init__(self, *a, **k):
        pass

    def __bool__(self):
        return False

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()

    def __call__(self, *a, **k):
        return Nothing()


class Empty(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = type(name, (Nothing,), {})
        setattr(self, name, value)
        return value


class Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """The last to be asked for a module of SGLang, and the first where one is here that wants more than is here."""
    HEAVY = ("memory_pool", "memory_pool_host", "swa_memory_pool", "allocator", "pool_host", "l2_transfer", "storage.",
             "hybrid_cache.hybrid_pool_assembler", "page_interleave_pool")

    def __init__(self, first):
        self.first = first

    def find_spec(self, name, path, target=None):
        mine = name.startswith("sglang.") and (not self.first or name.startswith(tuple(f"sglang.srt.mem_cache.{h}" for h in self.HEAVY)))
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if mine else None

    def create_module(self, spec):
        m = Empty(spec.name)
        m.__path__ = []
        return m

    def exec_module(self, module):
        pass


class Event:
    """Of a stream of the device: ready at once, or at a pass to come."""

    def __init__(self, at=0, **_):
        self.at = at

    def query(self):
        return CLOCK.now >= self.at

    def synchronize(self):
        self.at = 0

    def record(self, *_):
        pass

    wait = record


class Transfers:
    """In place of L2TransferEngine: end in the order in which they began."""
    rng, delay = random.Random(1), 3

    def __init__(self, *_):
        self.last = {}

    def _begin(self, way):
        self.last[way] = max(self.last.get(way, 0), CLOCK.now + self.rng.randrange(self.delay + 1))
        return types.SimpleNamespace(start_event=Event(), finish_event=Event(self.last[way]), timing_enabled=False)

    def submit_device_to_host(self, transfers):
        return self._begin("store")

    def submit_host_to_device(self, transfers, **_):
        return self._begin("load")


class Done(Exception):
    pass


class Steps(queue.Queue):
    """A queue of a thread that is run in steps: it leaves its loop where it would wait."""

    def get(self, block=True, timeout=None):
        if self.empty():
            raise Done
        return super().get()


class NoThread:
    def __init__(self, *_, **__):
        pass

    def start(self):
        pass

    join = start

    def is_alive(self):
        return False


FINDERS = (Stubs(True), Stubs(False))


def forget():
    """Another SGLang may be imported."""
    global CLASSES
    CLASSES = None
    for name in [n for n in sys.modules if n == "sglang" or n.startswith("sglang.")]:
        del sys.modules[name]
    sys.meta_path[:] = [f for f in sys.meta_path if f not in FINDERS]
    sys.path[:] = [p for p in sys.path if p != FILES]


def _load():
    """Imports the classes. Returns what is used of them."""
    forget()
    sys.path.insert(0, FILES)
    sys.meta_path.insert(0, FINDERS[0])
    sys.meta_path.append(FINDERS[1])
    for name in ("sglang", "sglang.srt", "sglang.srt.managers", "sglang.srt.disaggregation", "sglang.srt.session", "sglang.srt.utils"):
        m = sys.modules[name] = Empty(name)
        m.__path__ = [f"{FILES}/{name.replace('.', '/')}"]
    common = importlib.import_module("sglang.srt.utils.common")
    for m in (common, sys.modules["sglang.srt.utils"]):
        m.get_device_module = lambda: types.SimpleNamespace(Event=Event, Stream=Nothing, __name__="none")
        m.ceil_align = lambda x, to: -(-x // to) * to
        m.is_npu = lambda: False
        m.assert_int64_array = lambda values, name: None
    context = importlib.import_module("sglang.srt.runtime_context")
    bags = {name: types.SimpleNamespace() for name in ("memory", "disagg", "observability", "model", "exec", "parallel", "serving", "spec")}
    for name, bag in bags.items():
        setattr(context, f"get_{name}", lambda bag=bag: bag)
    bags["disagg"].disaggregation_mode, bags["disagg"].disaggregation_decode_retraction_backup = "null", None
    bags["observability"].extra_metric_labels, bags["model"].context_length = None, 1 << 16
    bags["parallel"].attn_dcp_size = 1
    importlib.import_module("sglang.srt.mem_cache.allocator.page_interleave").page_interleave_shard_size = lambda allocator: 1
    importlib.import_module("sglang.srt.mem_cache.l2_transfer").L2TransferEngine = Transfers
    rust = importlib.import_module("sglang.srt.rust_extensions")
    rust.load_rust_extension = lambda name, **_: importlib.import_module(name)
    build = importlib.import_module("sglang.srt.rust_extensions.torch_build")
    build._MIN_SUPPORTED_TORCH, build._MAX_SUPPORTED_TORCH = (2, 11), (2, 14)
    build.torch_build_configuration = lambda **_: types.SimpleNamespace(environment={}, fingerprint={})
    native = importlib.import_module("sglang.srt.mem_cache.cpp_utils.native_hash")  # would compile itself; the one of the other core is the same
    core = importlib.import_module("sglang.srt.mem_cache.rust_tree_core.mem_cache")
    native.get_native_hash = lambda key, prior, page=None: core.get_hash_str(
        array("q", native._native_hash_input(key)[0][:len(key)]), prior.hex() if prior else None, page)
    assembler = importlib.import_module("sglang.srt.mem_cache.hybrid_cache.hybrid_pool_assembler")
    assembler.attach_hybrid_pool_to_unified_cache = lambda cache, *_, **k: attach(cache, **k)
    names = {"cache": "unified_radix_cache", "base": "base_prefix_cache", "radix": "radix_cache", "params": "cache_init_params",
             "hybrid": "hybrid_cache.hybrid_cache_controller", "components": "unified_cache.components", "common": "common"}
    c = types.SimpleNamespace(**{k: importlib.import_module(f"sglang.srt.mem_cache.{v}") for k, v in names.items()}, bags=bags)
    c.events = importlib.import_module("sglang.srt.disaggregation.kv_events")
    c.controller = importlib.import_module("sglang.srt.managers.cache_controller")
    c.controller.threading = types.SimpleNamespace(Event=c.controller.threading.Event, Lock=c.controller.threading.Lock, Thread=NoThread)
    c.controller.Queue = Steps

    class Controller(c.hybrid.HybridCacheController):
        """Its own but for moving data."""

        def _move_op_indices(self, op):
            return op.host_indices, op.device_indices, op.pool_transfers

        _move_write_operation = _move_op_indices

        def _l2_transfers(self, *_):
            return []

        _l2_load_transfers = _l2_transfers

        def _transfer_num_bytes(self, op):
            return 0

        _num_tokens_by_pool = _transfer_num_bytes

        def threads(self, rng):
            """Each of its threads has a turn, sometimes."""
            if not self.enable_storage:
                return
            for run in (self.prefetch_thread_func, self.prefetch_io_aux_func, self.prefetch_sync_thread_func, self.backup_thread_func):
                try:
                    if rng.random() < 0.7:
                        run()
                except Done:
                    pass

    c.Controller = Controller
    return c


def attach(cache, **_):
    """In place of what sizes host pools by memory: one pool of slots, and its controller."""
    stack = cache.stack
    storage = stack.storage is not None
    cache.host_pool_group = stack.host
    cache.cache_controller = cc = CLASSES.Controller(
        stack.allocator, stack.host, stack.page, None, None, write_policy=stack.policy, io_backend="none")
    cache.components[CLASSES.components.ComponentType.FULL]._full_kv_pool_host = stack.host
    if storage:
        cc.storage_backend, cc.enable_storage = stack.storage, True
        cc.storage_config = types.SimpleNamespace(is_storage_writer=True)
        cc.prefetch_threshold, cc.prefetch_tokens_occupied = stack.threshold, 0
        cc.prefetch_capacity_limit = stack.host.size // 2
        cc._start_storage_threads()
        cc.prefetch_queue.queue.clear()


# ---- slots and requests ---------------------------------------------------------------------------------------------


class Slots:
    """Whole pages of slots: the device's allocator, and the host's pools as one."""
    device = "cpu"
    layer_num = 1
    size_per_token = 1
    shared_allocation_domain = host_evict_fn = layer_mapper = None

    def __init__(self, pages, page):
        self.pages, self.page_size, self.size = pages, page, pages * page
        self.logical_size = self.size_full = self.size
        self.anchor_entry = types.SimpleNamespace(host_pool=self, device_pool=self, host_evict_fn=None, shared_allocation_domain=None)
        self.entries, self.entry_map = [], {}
        self.clear()

    def clear(self):
        self.free_pages = list(range(1, self.pages + 1))
        self.used = set()

    def available_size(self, *_):
        return len(self.free_pages) * self.page_size

    def alloc(self, n, **_):
        assert n % self.page_size == 0
        if n > self.available_size():
            return None
        k = n // self.page_size
        pages, self.free_pages = self.free_pages[:k], self.free_pages[k:]
        self.used.update(pages)
        return (torch.tensor(pages, dtype=torch.int64)[:, None] * self.page_size + torch.arange(self.page_size)).reshape(-1)

    def free(self, indices, **_):
        pages = sorted(set((indices // self.page_size).tolist()))
        assert self.used.issuperset(pages), "freed twice"
        self.used.difference_update(pages)
        self.free_pages.extend(pages)
        return len(indices)

    def free_segment(self, indices, start_pos=0):
        self.free(indices)

    def free_segments(self, segments):
        if any(len(s) for s, _ in segments):
            self.free(torch.cat([s for s, _ in segments]))

    def get_kvcache(self):
        return self

    def register_layer_transfer_counter(self, counter):
        pass

    def set_hicache_transfer_done_event(self, *_):
        pass

    def mamba_full_cache_donor(self):
        return None

    def resolve_host_transfers(self, *_, **__):
        return None

    def layout_lease(self):
        return contextlib.nullcontext()

    def get_dummy_flat_data_page(self):
        return 0

    def get_data_page(self, index):
        return 0

    def set_from_flat_data_page(self, index, data):
        pass


class Storage:
    """Keys that outlive the host; the oldest go."""

    def __init__(self, pages):
        self.pages, self.keys = pages, {}

    def batch_exists(self, keys, extra_info=None):
        return next((i for i, k in enumerate(keys) if k not in self.keys), len(keys))

    def batch_get(self, keys, into):
        return [0 if k in self.keys else None for k in keys]

    def batch_set(self, keys, data):
        self.keys.update(dict.fromkeys(keys))
        while len(self.keys) > self.pages:
            del self.keys[next(iter(self.keys))]
        return True


class Rows:
    def __init__(self, rows, most):
        self.req_to_token = torch.zeros((rows, most), dtype=torch.int64)
        self.free_rows = list(range(rows))

    def write(self, at, values):
        self.req_to_token[at] = values


class Request:
    def __init__(self, n, tokens, answer, rng):
        self.rid, self.n, self.prompt, self.answer = f"r{n}", n, array("q", tokens), answer
        self.tokens = self.prompt + array("q", (rng.randrange(1 << 20) for _ in range(answer)))
        self.part = rng.randrange(1, len(tokens) + 1) if rng.random() < 0.2 else len(tokens)  # computed at first
        self.leaves = rng.random() < 0.05
        self.done, self.over, self.lock, self.last_node = 0, False, None, None
        self.handle = CLASSES.base.CacheRequestHandle(self.rid, 0)
        # What a cache reads of a request.
        self.origin_input_ids = self.prompt
        self.full_untruncated_fill_ids = self.prompt
        self.extra_key = self.cache_salt = self.session_id = self.session = self.kv_rotation_base = self.to_finish = None
        self.priority = self.prefix_len = self.host_hit_length = 0
        self.swa_host_hit_length = self.mamba_host_hit_length = 0
        self.kv = types.SimpleNamespace(req_pool_idx=None, cache_protected_len=0, cache_inserted_len=0, mamba_pool_idx=None, swa_evict_floor=0,
                                        get_evicted_seqlen=lambda _: 0)

    def finished(self):
        return self.over


# ---- the stack ------------------------------------------------------------------------------------------------------


class Stack:
    def __init__(self, page=16, policy=None, core="rust", device_pages=64, host_pages=160, storage_pages=0, requests=4, seed=1, delay=3,
                 flush=0.002, eviction="lru", threshold=1):
        global CLASSES
        CLASSES = CLASSES or _load()
        CLOCK.now = 0
        self.rng = Transfers.rng = random.Random(seed)
        Transfers.delay = delay
        self.page, self.policy, self.core, self.most, self.flush = page, policy, core, requests, flush
        self.threshold = threshold * page
        self.allocator, self.host = Slots(device_pages, page), Slots(host_pages, page)
        self.storage = Storage(storage_pages) if storage_pages else None
        self.rows = Rows(requests, (device_pages + 1) * page)
        self.waiting, self.running, self.made, self.mistakes = [], [], 0, []
        self.loaded = self.refused = self.flushed = self.prefetched = self.declined = 0
        self.closing = False  # nobody is let in before a flush
        p = CLASSES.params.CacheInitParams(
            disable=False, req_to_token_pool=self.rows, token_to_kv_pool_allocator=self.allocator, page_size=page, eviction_policy=eviction,
            enable_kv_cache_events=True, tree_components=(CLASSES.components.ComponentType.FULL,), tree_core_backend=core)
        if core == "radix":  # the class before it, of the device alone
            self.cache = CLASSES.radix.RadixCache(p)
        else:
            self.cache = CLASSES.cache.UnifiedRadixCache(p)
            assert self.cache._tree_core_backend == core
        self.cache.stack = self
        if policy:
            m = CLASSES.bags["memory"]
            m.hicache_host_memory_mode, m.hicache_write_policy, m.hicache_storage_prefetch_policy = "cache", policy, "wait_complete"
            m.hicache_storage_backend = "set" if self.storage else None
            m.hicache_storage_backend_extra_config = '{"prefetch_threshold": %d}' % self.threshold
            self.cache.init_hicache(types.SimpleNamespace(file_storage_path=None), p)
        self.cache.take_events()

    # ---- what it serves

    def match(self, tokens):
        """Of all but the last token, which is always computed."""
        key = CLASSES.radix.RadixKey(array("q", tokens[:-1]))
        return self.cache.match_prefix(CLASSES.base.MatchPrefixParams(key=key))

    def served(self, m):
        """Less than its threshold is not loaded back."""
        host = m.host_hit_length if m.host_hit_length >= max(getattr(self.cache, "load_back_threshold", 1), 1) else 0
        return m.device_prefix_len // self.page, (m.device_prefix_len + host) // self.page

    def ask(self, tokens):
        return self.served(self.match(tokens))

    # ---- passes

    def add(self, tokens, answer):
        self.made += 1
        r = Request(self.made, tokens, answer, self.rng)
        self.waiting.append(r)
        if self.storage:
            self._prefetch(r)

    def _prefetch(self, r):
        """As the scheduler does when a request comes: what is in neither tier is looked for in the storage."""
        m = self.match(r.tokens[:len(r.prompt)])
        if not (self.cache.is_backuped(m.last_host_node) or self.cache.is_root(m.last_host_node)):
            return
        at = m.device_prefix_len + m.host_hit_length
        self.cache.prefetch_from_storage(r.handle, m.last_host_node, r.prompt[at:-1], self.cache.get_last_hash_value(m.last_host_node), None,
                                         matched_prefix_tokens=r.prompt[:at])

    def step(self):
        CLOCK.now += 1
        if self.policy:
            self.cache.cache_controller.threads(self.rng)
            self.cache.check_hicache_events()
        self.closing = self.closing or self.rng.random() < self.flush
        if self.closing and not self.running:
            self._clear()
        self.rng.shuffle(self.running)  # those that end in one pass do so in any order
        for r in list(self.running):
            self._go_on(r)
        while self.waiting and len(self.running) < self.most and not self.closing and self._admit(self.waiting[0]):
            self.running.append(self.waiting.pop(0))
        if self.policy:
            self.cache.ready_to_load_host_cache()
            self.cache.flush_pending_backups()
        events = self.cache.take_events()
        return [ENCODER.encode(CLASSES.events.KVEventBatch(ts=float(CLOCK.now), events=events, attn_dp_rank=0))] if events else []

    def _clear(self):
        """As a flush does, which is refused while requests run or transfers are under way."""
        c = self.cache
        for r in self.waiting if self.storage else ():
            c.check_prefetch_progress(r.handle)
        if self.policy and (c.ongoing_write_through or c.ongoing_load_back or c.ongoing_prefetch or c.ongoing_backup):
            return
        c.reset()
        self.allocator.clear()
        self.closing = False
        self.flushed += 1

    def _slots(self, n):
        if n > self.allocator.available_size():
            short = n - self.allocator.available_size()
            (self.cache.evict if self.core == "radix" else self.cache.evict_for_alloc)(CLASSES.base.EvictParams(num_tokens=short))
        return self.allocator.alloc(n)

    def _admit(self, r):
        c, page = self.cache, self.page
        if self.policy and not (c.check_prefetch_progress(r.handle) and c.has_free_load_back_slot()):
            return False
        before = self.ask(r.prompt)
        m = self.match(r.prompt)
        hold = c.lock(m.last_device_node)
        whole = -(-len(r.tokens) // page) * page
        room = self.allocator.available_size() + c.evictable_size()
        if whole - m.device_prefix_len > room:  # the scheduler lets it wait
            c.unlock(hold)
            return False
        r.last_node, r.prefix_len, r.host_hit_length = m.last_device_node, m.device_prefix_len, m.host_hit_length
        n = 0
        if m.host_hit_length:
            host_hold = c.inc_host_lock_ref(m.best_match_node).to_dec_params()
            n, r.last_node = c.init_load_back(CLASSES.base.InitLoadBackParams(m.best_match_node, m.host_hit_length, req=r))
            c.dec_host_lock_ref(m.best_match_node, host_hold)
            r.prefix_len += n
            self.loaded += n > 0
            self.declined += n == 0
        if before[1] > before[0] and not n and self.allocator.available_size() < m.host_hit_length:
            self.refused += 1  # write_back: the device gives nothing up while the host is full
        elif (m.device_prefix_len // page, r.prefix_len // page) != before:
            self.mistakes.append((len(r.prompt), before, m.device_prefix_len, m.host_hit_length, r.prefix_len))
        r.lock = c.lock(r.last_node)
        c.unlock(hold)
        new = self._slots(whole - r.prefix_len)
        if new is None:
            self.refused += 1
            c.unlock(r.lock)
            r.lock = None
            return False
        if self.storage:
            self.prefetched += c.pop_prefetch_loaded_tokens(r.handle) > 0
        row = r.kv.req_pool_idx = self.rows.free_rows.pop()
        self.rows.req_to_token[row, :r.prefix_len] = c.prefix_device_indices(r) if self.core != "radix" else self._indices(r)
        self.rows.req_to_token[row, r.prefix_len:whole] = new
        r.kv.cache_protected_len = r.prefix_len
        r.whole = whole
        return True

    @staticmethod
    def _indices(r):
        parts, node = [], r.last_node
        while node.parent is not None:
            parts.append(node.value)
            node = node.parent
        return torch.cat(parts[::-1])[:r.prefix_len] if parts else torch.empty(0, dtype=torch.int64)

    def _go_on(self, r):
        """A part of the prompt more, or tokens of the answer; or nobody waits for it any more."""
        if r.leaves and self.rng.random() < 0.2:
            self._leave(r, keep=False)
            return
        if r.done < len(r.prompt):
            r.done = max(r.part, r.prefix_len + 1) if r.done == 0 else len(r.prompt)
            r.done = min(r.done, len(r.prompt))
            self.cache.checkpoint(r, up_to=r.done)
            return
        r.done += self.rng.randrange(1, 3)
        if r.done < len(r.tokens):
            return
        self._leave(r, keep=True)

    def _leave(self, r, keep):
        r.over = True
        r.full_untruncated_fill_ids = r.tokens
        if keep:
            self.cache.checkpoint(r, up_to=len(r.tokens) - 1)  # the last one is never computed
        row = self.rows.req_to_token[r.kv.req_pool_idx]
        tail = row[-(-r.kv.cache_protected_len // self.page) * self.page:r.whole]
        if len(tail):
            self.allocator.free(tail)
        self.cache.unlock(r.lock)
        self.cache.on_release(r, checkpointed=keep)
        self.rows.free_rows.append(r.kv.req_pool_idx)
        self.running.remove(r)

    def idle(self):
        return not self.running and not self.waiting


ENCODER = msgspec.msgpack.Encoder()
CLASSES = None  # before the first stack
