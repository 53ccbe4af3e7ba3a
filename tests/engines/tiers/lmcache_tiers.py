# SPDX-License-Identifier: Apache-2.0
"""vLLM's LMCacheConnectorV1 above LMCache's own engine, token database, storage manager and CPU backend, in one process and without a GPU: what
reads and writes the device does nothing, the rest is theirs.

    Stack(model, chunk=256, room=400)   chunks of so many tokens, room for so many of them in the CPU's memory; others: LMCache's options
    .take_gone()                        what the backend has let go of since, as an event of removal that it does not tell"""
import bisect
import importlib.abc
import importlib.machinery
import itertools
import os
import sys
import tempfile
import types

SOURCE = os.environ.get("ENGINES_DIR", os.path.dirname(os.path.abspath(__file__)) + "/../../../build/engines") + "/publishers/lmcache-0.5.6"
os.environ.setdefault("LMCACHE_LOG_LEVEL", "CRITICAL")
os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")
os.environ.setdefault("LMCACHE_DISABLE_BANNER", "1")

import vllm_tiers  # noqa: E402
import torch  # noqa: E402
import vllm.distributed.parallel_state as groups  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole  # noqa: E402
from vllm.v1.outputs import KVConnectorOutput  # noqa: E402


class SortedList(list):
    """As much of the package as LMCache's allocator uses."""

    def __init__(self, items=(), key=None):
        super().__init__(sorted(items, key=key))
        self.key = key

    def bisect_left(self, item):
        return bisect.bisect_left(self, self.key(item), key=self.key)

    def add(self, item):
        self.insert(self.bisect_left(item), item)


class Names(type):
    """A class of which every name is something: numbers and classes that are written in C++ and only named here."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return cls

    def __int__(cls):
        return 0


class Named(metaclass=Names):
    pass


class Nothing(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """What LMCache imports, and does nothing here."""

    def find_spec(self, name, path, target=None):
        absent = name.split(".")[0] in ("sortedcontainers", "aiofile") or name == "lmcache.lmcache_native"
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if absent else None

    def create_module(self, spec):
        m = types.ModuleType(spec.name)
        m.SortedList = SortedList
        m.__getattr__ = Names.__getattr__.__get__(Named)
        return m

    def exec_module(self, module):
        pass


class Device:
    """LMCache's hands on the device's memory: they move nothing."""

    def batched_from_gpu(self, *_args, **_more):
        pass

    def batched_to_gpu(self, *_args, **_more):
        pass

    def initialize_kvcaches_ptr(self, **_more):
        pass


def _stub():
    sys.meta_path.append(Nothing())
    sys.path.insert(0, SOURCE)
    one = types.SimpleNamespace(world_size=1, rank_in_group=0, is_first_rank=True, is_last_rank=True, broadcast=lambda tensor, src: tensor,
                                broadcast_object=lambda obj, src: obj)
    groups.get_tp_group = groups.get_pp_group = lambda: one
    groups.get_tensor_model_parallel_rank = lambda: 0
    os.environ["VLLM_RPC_BASE_PATH"] = tempfile.mkdtemp()
    import lmcache.v1.gpu_connector as hands
    hands.CreateGPUConnector = lambda *_args, **_more: Device()


_stub()

from lmcache.integration.vllm import utils  # noqa: E402
from lmcache.v1.cache_engine import LMCacheEngineBuilder  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.lmcache_connector import LMCacheConnectorV1  # noqa: E402

utils.vllm_layout_hints = lambda _config: None
TOKEN_BYTES = 2 * 2 * 2 * 32 * 2  # layers, keys and values, heads, their size, bytes: of the tiny model
NUMBERS = itertools.count(1)
ALIVE = []  # the sockets between the two sides must not be collected while their threads wait


class Stack(vllm_tiers.Stack):
    def __init__(self, model, chunk=256, room=400, **more):
        self.close()
        utils._config_instance = None
        options = {k if k in ("discard_partial_chunks", "skip_last_n_tokens") else f"lmcache.{k}": more.pop(k) for k in list(more)
                   if k not in ("device_blocks", "seed", "delay", "requests", "block", "batch_tokens")}
        options = {"lmcache.enable_kv_events": True, "lmcache.chunk_size": chunk, "lmcache_rpc_port": next(NUMBERS),
                   "lmcache.max_local_cpu_size": room * chunk * TOKEN_BYTES / (1 << 30), **options}
        self.tokens = chunk
        super().__init__(model, connector="LMCacheConnectorV1", **options, **more)
        self.connector = LMCacheConnectorV1(self.config, KVConnectorRole.WORKER, self.kv)
        self.connector.register_kv_caches({"layer": torch.zeros(self.kv.num_blocks, 16, dtype=torch.int8)})
        self.engine = self.connector._lmcache_engine.lmcache_engine
        ALIVE.append(self)
        self.gone, self.lost = [], set()
        self._watch_backend(self.engine.storage_manager.storage_backends["LocalCPUBackend"])

    def _watch_backend(self, backend):
        real = backend.remove

        def watched(key, force=True):
            if real(key, force):
                self.gone.append(key.chunk_hash)
                self.lost.add(key.chunk_hash)
                return True
            return False

        backend.remove = watched

    def _LMCacheConnectorV1(self, r, device):
        """Whole chunks from the prompt's beginning, whatever is on the device."""
        found = self.engine.lookup(tokens=list(r.prompt_token_ids))
        if found == r.num_tokens:
            found -= 1
        return max(device, found // self.block)

    def why(self, tokens):
        """The first chunk that is not there: did it go?"""
        found = self.engine.lookup(tokens=list(tokens))
        names = [key for _, _, key in self.engine.token_database.process_tokens(tokens=list(tokens), make_key=False)]
        return "gone" if names[found // self.tokens:] and names[found // self.tokens] in self.lost else None

    def take_gone(self):
        gone, self.gone = self.gone, []
        return vllm_tiers.removal([n & (1 << 64) - 1 for n in gone], "cpu")

    def _worker(self, out):
        c = self.connector
        c.bind_connector_metadata(out.kv_connector_metadata)
        c.start_load_kv(types.SimpleNamespace(attn_metadata={}, no_compile_layers={}))
        c.wait_for_save()
        self.loaded += sum(bool(r.load_spec and r.load_spec.can_load) for r in out.kv_connector_metadata.requests)
        done = c.get_transfer_results(out.finished_req_ids)
        said = KVConnectorOutput(finished_sending=done.finished_sending, finished_recving=done.finished_recving,
                                 invalid_block_ids=c.get_block_ids_with_load_errors(), kv_cache_events=c.get_kv_connector_kv_cache_events())
        c.clear_connector_metadata()
        return said

    def idle(self):
        return not self.scheduler.requests

    @staticmethod
    def close():
        """Ends LMCache's threads."""
        LMCacheEngineBuilder.destroy(utils.ENGINE_NAME)
