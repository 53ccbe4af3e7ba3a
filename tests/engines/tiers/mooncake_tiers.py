# SPDX-License-Identifier: Apache-2.0
"""vLLM's MooncakeStoreConnector with its scheduler's side and its worker's, above a store that is a dict of keys: no GPU and no Mooncake. The
worker's threads do not run by themselves: what they are given is done some passes later, in order.

    Store(most, fails)      keys in order of use; most: so many, then the one used longest ago goes, untold; fails: of so many puts one
    Stack(model, store)     an engine; two of them may have one store
    .take_gone()            what the store has let go of since, as an event of removal that vLLM does not have"""
import itertools
import json
import os
import sys
import tempfile
import types

import vllm_tiers
import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store import worker
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.connector import MooncakeStoreConnector
from vllm.v1.core.kv_cache_utils import BlockHash, maybe_convert_block_hash
from vllm.v1.outputs import KVConnectorOutput

NO_ROOM = worker.MOONCAKE_NO_AVAILABLE_HANDLE


class Store:
    """What MooncakeDistributedStore does for the worker, of keys alone."""

    def __init__(self, most=None, fails=0, rng=None):
        self.keys, self.most, self.fails, self.rng, self.quiet = {}, most, fails, rng, False
        self.gone, self.lost, self.failed = [], set(), set()

    def setup(self, *_args, **_more):
        return 0

    def register_buffer(self, *_args):
        return 0

    def close(self):
        return 0

    def _use(self, key):
        if not self.quiet:
            self.keys[key] = self.keys.pop(key)

    def batch_is_exist(self, keys):
        found = [int(k in self.keys) for k in keys]
        for k, there in zip(keys, found):
            if there:
                self._use(k)
        return found

    def batch_put_from_multi_buffers(self, keys, _addrs, _sizes, _config):
        said = []
        for k in keys:
            if self.fails and self.rng.randrange(self.fails) == 0:
                said.append(NO_ROOM if self.rng.random() < 0.3 else -1)
                self.failed.add(k)
                continue
            self.keys[k] = True
            said.append(0)
            if self.most and len(self.keys) > self.most:
                oldest = next(iter(self.keys))
                del self.keys[oldest]
                self.gone.append(oldest)
                self.lost.add(oldest)
        return said

    def batch_get_into_multi_buffers(self, keys, _addrs, _sizes):
        return [0 if there else -704 for there in self.batch_is_exist(keys)]


class ReplicateConfig:
    pass


class NoEvent:
    """Of the device's stream: nothing to wait for."""

    def record(self):
        pass

    def synchronize(self):
        pass


def _stub():
    """The few things that only a GPU, a group of ranks or Mooncake has."""
    current = {}
    package, module = types.ModuleType("mooncake"), types.ModuleType("mooncake.store")
    module.MooncakeDistributedStore = lambda: current["store"]
    module.ReplicateConfig = ReplicateConfig
    package.store = module
    sys.modules.update({"mooncake": package, "mooncake.store": module})
    alone = types.SimpleNamespace(world_size=1, rank_in_group=0)
    worker.get_tensor_model_parallel_rank = lambda: 0
    worker.get_tensor_model_parallel_world_size = lambda: 1
    worker.get_pcp_group = worker.get_dcp_group = lambda: alone
    worker.KVTransferThread.start = lambda self: self.ready_event.set()
    torch.cuda.Event = NoEvent
    where = tempfile.mkdtemp()
    os.environ["MOONCAKE_CONFIG_PATH"] = where + "/config.json"
    with open(where + "/config.json", "w", encoding="utf-8") as f:
        json.dump({"metadata_server": "none", "master_server_address": "none", "protocol": "tcp"}, f)
    os.environ["VLLM_RPC_BASE_PATH"] = where
    return current


CURRENT = _stub()
NUMBERS = itertools.count(1)
ALIVE = []  # the sockets between the two sides must not be collected while their threads wait


class Stack(vllm_tiers.Stack):
    def __init__(self, model, store=None, **more):
        self.store = CURRENT["store"] = store or Store()
        more.setdefault("lookup_rpc_port", next(NUMBERS))
        super().__init__(model, connector="MooncakeStoreConnector", **more)
        self.connector = MooncakeStoreConnector(self.config, KVConnectorRole.WORKER, self.kv)
        self.connector.register_kv_caches({"layer": torch.zeros(self.kv.num_blocks, 16, dtype=torch.int8)})
        ALIVE.append(self)
        self.work = []
        self.short = 0

    def _MooncakeStoreConnector(self, r, device):
        """From the prompt's beginning, whatever is on the device."""
        return max(device, self._found(r) // self.block)

    def _found(self, r):
        self.store.quiet = True
        found = self.connector.connector_worker.lookup(r.num_tokens, r.block_hashes).hit_length
        self.store.quiet = False
        return found

    def why(self, tokens):
        """The first block that the store has not: did it go, or was it never taken?"""
        r = self.request(tokens, 1)
        key = self.connector.connector_worker.token_dbs[0].key_for(r.block_hashes[self._found(r) // self.block])
        return "gone" if key in self.store.lost else "a put failed" if key in self.store.failed else None

    def take_gone(self):
        gone, self.store.gone = self.store.gone, []
        names = [maybe_convert_block_hash(BlockHash(bytes.fromhex(k.rsplit("@", 1)[1]))) for k in gone]
        return vllm_tiers.removal(names, "cpu", group_idx=0)

    def _worker(self, out):
        c, w = self.connector, self.connector.connector_worker
        c.bind_connector_metadata(out.kv_connector_metadata)
        c.start_load_kv(None)
        c.wait_for_save()
        self._work(w)
        done = c.get_transfer_results(out.finished_req_ids)
        wrong = c.get_block_ids_with_load_errors()
        self.short += len(done.failed_recving) + len(wrong)
        said = KVConnectorOutput(finished_sending=done.finished_sending, finished_recving=done.finished_recving, failed_recving=done.failed_recving,
                                 invalid_block_ids=wrong, kv_cache_events=c.get_kv_connector_kv_cache_events(),
                                 kv_connector_worker_meta=c.build_connector_worker_meta())
        c.clear_connector_metadata()
        return said

    def _work(self, w):
        for kind, thread in (("store", w.kv_send_thread), ("load", w.kv_recv_threads[0])):
            while not thread.request_queue.empty():
                self.work.append((self.passes + self.rng.randrange(self.delay + 1), kind, thread, thread.request_queue.get()))
        late = set()
        for job in list(self.work):
            at, kind, thread, request = job
            if kind in late or at > self.passes:
                late.add(kind)  # each thread does one after the other
                continue
            self.work.remove(job)
            thread._handle_request(request)
            self.loaded += kind == "load"

    def idle(self):
        return not self.scheduler.requests and not self.work and not self.scheduler.connector.has_pending_push_work()
