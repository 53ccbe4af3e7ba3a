# SPDX-License-Identifier: Apache-2.0
import math

from . import _kvroute
from ._await import BestPair, Ready
from ._check import bad, flag, real
from ._errors import check, make
from .router import KvRouter

_LEGS = ("prefill", "decode")


class KvRouterPair:
    """Chooses two workers for a request: one that computes its prompt, by overlap and prefill load, and one that goes on from it, by
    decode load alone; and books both under one id, or neither.

    prefill: a KvRouter of worker_type "prefill". decode: another one; it may have workers that take whole requests, too
    (allowed_decode_ids leaves them out). Both stay usable alone. domain_prefix: a taint that begins so, such as "kv-domain=", names the
    transfer domain of a worker; the decode worker should have the prefill worker's: with domain_required it must, else domain_weight says how
    much that is worth. keep_overlap: what is cached at decode workers counts, as where they keep what they receive.

    Threads: any, at once."""

    def __init__(self, prefill, decode, *, domain_prefix=None, domain_required=False, domain_weight=0.85, keep_overlap=False):
        for name, router in (("prefill", prefill), ("decode", decode)):
            if not isinstance(router, KvRouter):
                raise bad(name, router, "a KvRouter")
        if prefill.worker_type() != "prefill":
            raise bad("prefill", prefill, 'a KvRouter of worker_type "prefill"')
        if decode.worker_type() == "prefill":
            raise bad("decode", decode, 'a KvRouter of worker_type "decode" or "both"')
        if domain_prefix is not None and (not isinstance(domain_prefix, str) or not domain_prefix):
            raise bad("domain_prefix", domain_prefix, "None, a str that is not empty")
        self.prefill, self.decode = prefill, decode
        self._options = (domain_prefix, flag("domain_required", domain_required), real("domain_weight", domain_weight, -math.inf),
                         flag("keep_overlap", keep_overlap))

    def _both(self):
        return self.prefill._router, self.decode._router

    def best_pair(self, token_ids, router_config_override=None, request_id=None, block_mm_infos=None, lora_name=None, routing_constraints=None,
                  cache_namespace=None, *, allowed_prefill_ids=None, allowed_decode_ids=None, prefill_worker_id=None, prefill_dp_rank=None,
                  decode_worker_id=None, decode_dp_rank=None, is_eagle=False):
        """(prefill, decode), a BestWorker each. With request_id it books both: mark_prefill_complete and free follow. It never waits.

        routing_constraints and router_config_override are those of both legs. Raises NoEndpoints, or what best_worker raises, with `leg`
        ("prefill" or "decode") as an attribute; then nothing is booked."""
        if hasattr(token_ids, "__next__"):
            token_ids = list(token_ids)  # each leg goes through them

        def request(router, **who):
            return router._request(token_ids, lora_name, cache_namespace, block_mm_infos, request_id, router_config_override,
                                   routing_constraints=routing_constraints, is_eagle=is_eagle, **who)
        first = request(self.prefill, allowed_worker_ids=allowed_prefill_ids, worker_id=prefill_worker_id, dp_rank=prefill_dp_rank)
        second = request(self.decode, allowed_worker_ids=allowed_decode_ids, worker_id=decode_worker_id, dp_rank=decode_dp_rank)
        made = _kvroute.pair_best(*self._both(), self._options, first, second)
        if isinstance(made[0], int):
            error = make(made[0])
            error.leg = _LEGS[made[1]]
            raise error
        return BestPair._of(made)

    def mark_prefill_complete(self, request_id):
        """The prompt is computed: the prefill worker's booking ends, the decode worker's goes on. Saying it twice is harmless."""
        check(_kvroute.pair_prefill_done(*self._both(), request_id))
        return Ready()

    def add_output_block(self, request_id, *, decay_fraction=None):
        """Generation has filled a block, as KvRouter.add_output_block."""
        return self.decode.add_output_block(request_id, decay_fraction=decay_fraction)

    def free(self, request_id):
        """The request has ended, however it did: both bookings are over."""
        check(_kvroute.pair_free(*self._both(), request_id))
        return Ready()
