# SPDX-License-Identifier: Apache-2.0
import math
import sys

from . import _kvroute
from ._await import BestWorker, Dict, List, Ready, Text
from ._check import U32, bad, block_size as check_block_size, json_of, one_of, real, whole, worker
from ._errors import ENOTFOUND, EINVAL, KvrouteError, check
from .config import COSTS, QUEUE_POLICIES, KvRouterConfig, override_of
from .hashing import prompt_of
from .index import RadixTree

_WORKER_TYPES = ("both", "prefill", "decode")
_NO_INDEX = "there is no index: overlap_score_credit is 0"


def _taints_of(constraints):
    """What the compiled part takes for {"required_taints": [...], "preferred_taints": {name: weight}}."""
    if constraints is None:
        return None
    if not isinstance(constraints, dict) or set(constraints) - {"required_taints", "preferred_taints"}:
        raise bad("routing_constraints", constraints, "None, a dict of required_taints (a list) and preferred_taints ({name: weight})")
    required, preferred = constraints.get("required_taints") or [], constraints.get("preferred_taints") or {}
    if not isinstance(required, (list, tuple)) or not all(isinstance(t, str) for t in required):
        raise bad("routing_constraints.required_taints", required, "a list of str")
    if not isinstance(preferred, dict) or not all(isinstance(t, str) for t in preferred):
        raise bad("routing_constraints.preferred_taints", preferred, "a dict of str and weight")
    weights = [(t, real(f"routing_constraints.preferred_taints[{t!r}]", w, -math.inf)) for t, w in preferred.items()]
    return list(required), weights


def _running_loop():
    """The event loop of this thread, if it runs one."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return None
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class KvRouter:
    """Chooses workers for prompts in this process, by overlap and load. Register workers with add_worker and, with KV events, feed
    them with apply_event; without, decisions are remembered for router_ttl_secs.

    endpoint is kept for callers that have one and is not used. worker_type: what the workers do; "prefill" leaves their active blocks
    out of the cost, "decode" is the second leg of disaggregated serving. select: chooses instead of the cost; it is given a list of
    candidates (dicts) and returns the place of one, or None to refuse. It is called under the router's lock: it must be short and must
    not call the router. queue_timeout_secs: how long a request waits for its turn (router_queue_threshold).

    Results can be awaited. Threads: any, at once."""

    def __init__(self, endpoint=None, block_size=16, kv_router_config=None, aic_perf_config=None, *, worker_type="both", select=None,
                 queue_timeout_secs=60.0):
        if aic_perf_config is not None:
            raise bad("aic_perf_config", aic_perf_config, "None; this router has no such model")
        if kv_router_config is not None and not isinstance(kv_router_config, KvRouterConfig):
            raise bad("kv_router_config", kv_router_config, "None, a KvRouterConfig")
        if select is not None and not callable(select):
            raise bad("select", select, "None, a callable")
        config = KvRouterConfig() if kv_router_config is None else kv_router_config.copy()
        config.check_in_process()
        self.endpoint, self.config, self._block_size = endpoint, config, check_block_size(block_size)
        self._worker_type = one_of("worker_type", worker_type, _WORKER_TYPES)
        self._queue_timeout = real("queue_timeout_secs", queue_timeout_secs)
        self._tree = RadixTree() if config.overlap_score_credit > 0 else None
        if self._tree and not config.use_kv_events:
            self._tree._index = self._predictions(config.router_ttl_secs)
        self._predicted = None if config.router_predicted_ttl_secs is None else self._predictions(config.router_predicted_ttl_secs)
        self._router = _kvroute.Router(self._tree._index if self._tree else None, self._predicted, self._block_size, self._settings(), select)

    def _predictions(self, ttl):
        return _kvroute.Index(ttl, self.config.router_max_tree_size, self.config.router_prune_target_ratio, 0.0)

    def _settings(self):
        c = self.config
        blocks = c.router_track_active_blocks and self._worker_type != "prefill"
        threshold = -1.0 if c.router_queue_threshold is None else c.router_queue_threshold
        return (c.overlap_score_credit, c.overlap_score_credit_decay, c.prefill_load_scale, c.host_cache_hit_weight, c.disk_cache_hit_weight,
                c.shared_cache_multiplier, c.router_temperature, COSTS[c.cost], self._worker_type == "decode", blocks, c.router_assume_kv_reuse,
                c.router_track_prefill_tokens, c.seed, threshold, QUEUE_POLICIES[c.router_queue_policy])

    def block_size(self):
        return self._block_size

    def worker_type(self):
        """"both", "prefill" or "decode"."""
        return self._worker_type

    # ---- workers

    def add_worker(self, worker_id, data_parallel_start_rank=0, data_parallel_size=1, *, max_num_batched_tokens=None, total_kv_blocks=None,
                   taints=()):
        """Registers a worker, or changes it. max_num_batched_tokens: what router_queue_threshold is a share of; None: not known, and its
        requests never wait. taints: names that routing_constraints ask for."""
        worker(worker_id)
        start = whole("data_parallel_start_rank", data_parallel_start_rank, 0, U32)
        size = whole("data_parallel_size", data_parallel_size, 1, 4096)
        limits = [0 if v is None else whole(name, v, 1) for name, v in
                  (("max_num_batched_tokens", max_num_batched_tokens), ("total_kv_blocks", total_kv_blocks))]
        if isinstance(taints, str) or not all(isinstance(t, str) and t and len(t.encode()) < 128 for t in taints):
            raise bad("taints", taints, "a list of str of 1 to 127 bytes")
        self._router.set_worker(worker_id, start, size)
        self._router.set_limits(worker_id, *limits)
        self._router.set_taints(worker_id, list(taints))

    def remove_worker(self, worker_id):
        self._router.remove_worker(worker(worker_id))

    def apply_event(self, worker_id, event):
        """A KV event of a worker, as RadixTree.apply_event."""
        self._index().apply_event(worker_id, event)

    def apply_router_event(self, event):
        """A router event, as RadixTree.apply_router_event."""
        self._index().apply_router_event(event)

    def _index(self):
        if not self._tree:
            raise ValueError(_NO_INDEX)
        return self._tree

    # ---- requests

    def _request(self, token_ids, lora_name=None, cache_namespace=None, block_mm_infos=None, request_id=None, override=None, allowed=None,
                 worker_id=None, dp_rank=None, constraints=None, priority_jump=0.0, strict_priority=0, policy_class=None, is_eagle=False):
        if dp_rank is not None:
            whole("dp_rank", dp_rank, 0, U32)
            if worker_id is None:
                raise ValueError("dp_rank: needs worker_id")
        pin = None if worker_id is None else (worker(worker_id), dp_rank)
        return (prompt_of(token_ids, self._block_size, lora_name, is_eagle, cache_namespace, block_mm_infos), request_id, request_id is not None,
                override_of(override), allowed, pin, _taints_of(constraints), real("priority_jump", priority_jump, -math.inf),
                whole("strict_priority", strict_priority, 0, U32), policy_class)

    def best_worker(self, token_ids, router_config_override=None, request_id=None, update_indexer=False, block_mm_infos=None, lora_name=None,
                    routing_constraints=None, strict_priority=0, policy_class=None, cache_namespace=None, *, allowed_worker_ids=None,
                    worker_id=None, dp_rank=None, priority_jump=0.0, is_eagle=False):
        """(worker_id, dp_rank, overlap_blocks), with more in its attributes. With request_id it books: mark_prefill_complete and free
        follow.

        update_indexer: without KV events, remember the decision. strict_priority, priority_jump (seconds of seniority) and policy_class
        order requests that wait.

        With router_queue_threshold a request that books waits while every worker is busy: QueueTimeout after queue_timeout_secs. It
        blocks the calling thread, or, where an event loop runs, gives a task to await.

        Raises NoEndpoints when nobody is eligible."""
        request = self._request(token_ids, lora_name, cache_namespace, block_mm_infos, request_id, router_config_override, allowed_worker_ids,
                                worker_id, dp_rank, routing_constraints, priority_jump, strict_priority, policy_class, is_eagle)
        remember = None
        if update_indexer and self._tree and not self.config.use_kv_events:
            remember = prompt_of(token_ids, self._block_size, lora_name, is_eagle, cache_namespace, block_mm_infos)
        if request_id is None or self.config.router_queue_threshold is None:
            return self._chosen(self._router.best(*request), remember)
        made = self._router.submit(*request)
        if isinstance(made, tuple):
            return self._chosen(made, remember)
        loop = _running_loop()
        if loop is None:
            return self._chosen(made.wait(self._queue_timeout), remember)

        def given_up(task):
            if task.cancelled() and not made.cancel():  # it was booked just now, and nobody will hear of it
                self._router.free(request_id)
        task = loop.create_task(self._turn(loop, made, remember))
        task.add_done_callback(given_up)  # a task that is cancelled before it has begun runs nothing of its own
        return task

    def _chosen(self, made, remember):
        if remember is not None:
            self._tree._index.record(made[0], made[1], remember)
        return BestWorker._of(made)

    async def _turn(self, loop, ticket, remember):
        turn = loop.create_future()

        def over():
            if not turn.done():
                turn.set_result(None)
        ticket.on_done(lambda: loop.call_soon_threadsafe(over))
        timer = loop.call_later(self._queue_timeout, over)
        try:
            await turn
        finally:
            timer.cancel()
        return self._chosen(ticket.wait(0.0), remember)

    def add_request(self, request_id, token_ids, worker_id, dp_rank=0, cached_tokens=0, block_mm_infos=None, lora_name=None,
                    cache_namespace=None, router_config_override=None, *, is_eagle=False):
        """Books a request on a worker that the caller has chosen; mark_prefill_complete and free follow."""
        if not request_id:
            raise bad("request_id", request_id, "a str that is not empty")
        request = self._request(token_ids, lora_name, cache_namespace, block_mm_infos, request_id, router_config_override, is_eagle=is_eagle)
        self._router.add_request(request, worker(worker_id), whole("dp_rank", dp_rank, 0, U32), whole("cached_tokens", cached_tokens))
        return Ready()

    def mark_prefill_complete(self, request_id):
        """The first token has come."""
        check(self._router.mark_prefill(request_id))
        return Ready()

    def add_output_block(self, request_id, *, decay_fraction=None):
        """Generation has filled a block. decay_fraction: what the blocks that only this request holds weigh from now on."""
        fraction = -1.0 if decay_fraction is None else real("decay_fraction", decay_fraction, 0, 1)
        self._router.output(request_id, 1, fraction)
        return Ready()

    def free(self, request_id):
        """The request has ended, however it did."""
        check(self._router.free(request_id))
        return Ready()

    def expire(self, requests_older_than_secs=None):
        """Forgets predicted blocks whose time has come, as every question does too, and, when asked, bookings of which nothing was heard
        for so long. Returns how many of each, (blocks, requests)."""
        blocks = sum(index.expire() for index in (self._tree and self._tree._index, self._predicted) if index)
        if requests_older_than_secs is None:
            return blocks, 0
        return blocks, self._router.expire_requests(int(real("requests_older_than_secs", requests_older_than_secs, 0, 1e9) * 1e9))

    # ---- the request protocol

    def handle_request(self, request, context_id=None):
        """One message of the request protocol (a dict, or its JSON), and the reply, a dict; both have a `method`.

            new            tokens, ...    -> new             worker_id, dp_rank, overlap_blocks; booked as request_id
            mark_prefill   request_id     -> prefill_marked  success
            mark_free      request_id     -> free_marked     success
            potential_loads tokens, ...   -> potential_loads loads, pending_count,
                                                           pending_isl_tokens

        A request_id that is blank or missing is context_id. Raises as best_worker; a message that is no such raises ValueError."""
        if isinstance(request, (str, bytes, bytearray)):
            request = json_of("request", request)
        if not isinstance(request, dict):
            raise bad("request", request, "a dict, a JSON object")
        method = one_of("method", request.get("method"), tuple(_METHODS))
        unknown = set(request) - {"method"} - set(_METHODS[method])
        if unknown:
            raise ValueError(f"{sorted(unknown)[0]}: unknown field of '{method}'; allowed: {', '.join(_METHODS[method])}")
        given = {k: v for k, v in request.items() if v is not None}
        if method == "potential_loads":
            loads = self.get_potential_loads(*self._prompt_fields(given))
            return Dict(method="potential_loads", loads=list(loads), pending_count=self.pending_count(),
                        pending_isl_tokens=self.pending_isl_tokens())
        request_id = given.get("request_id") or context_id
        if not isinstance(request_id, str) or not request_id:
            raise bad("request_id", request_id, "a str that is not empty; without one the context's id counts")
        if method == "new":
            return self._reply_new(given, request_id)
        rc = self._router.mark_prefill(request_id) if method == "mark_prefill" else self._router.free(request_id)
        if rc not in (0, -ENOTFOUND, -EINVAL):
            check(rc)
        return Dict(method="prefill_marked" if method == "mark_prefill" else "free_marked", success=rc == 0)

    @staticmethod
    def _prompt_fields(given):
        if "tokens" not in given:
            raise ValueError("tokens: missing; allowed: a list of integers")
        return given["tokens"], given.get("block_mm_infos"), given.get("lora_name"), given.get("cache_namespace")

    def _reply_new(self, given, request_id):
        tokens, mm, lora, namespace = self._prompt_fields(given)
        got = self.best_worker(tokens, None, request_id, True, mm, lora, given.get("routing_constraints"), given.get("strict_priority", 0),
                               given.get("policy_class"), namespace, priority_jump=given.get("priority_jump", 0.0))

        def reply(best):
            return Dict(method="new", worker_id=best[0], dp_rank=best[1], overlap_blocks=best[2])

        async def later():
            return reply(await got)
        if isinstance(got, BestWorker):
            return reply(got)

        def given_up(task):
            if task.cancelled() and not got.cancel() and not got.cancelled() and got.exception() is None:
                self._router.free(request_id)  # nobody will hear of it
        task = _running_loop().create_task(later())
        task.add_done_callback(given_up)
        return task

    # ---- questions

    def get_potential_loads(self, token_ids, block_mm_infos=None, lora_name=None, cache_namespace=None):
        """What each rank's load would be with this prompt."""
        return List(self._router.potential_loads(*self._request(token_ids, lora_name, cache_namespace, block_mm_infos)))

    def get_overlap_blocks(self, token_ids, worker_id, dp_rank=0, block_mm_infos=None, lora_name=None, cache_namespace=None):
        """How many blocks of a prompt count as cached on one rank, with the weights of its tiers, rounded; 0 for one that is not there."""
        request = self._request(token_ids, lora_name, cache_namespace, block_mm_infos, worker_id=worker_id, dp_rank=dp_rank)
        try:
            return self._router.best(*request)[2]
        except KvrouteError as e:
            if e.code in (ENOTFOUND, 14):  # no such worker, no such rank
                return 0
            raise

    def get_overlap_scores(self, token_ids, router_config_override=None, block_mm_infos=None, lora_name=None, include_shared=True,
                           cache_namespace=None):
        """{"block_size", "num_blocks", "shared_cache", "workers": [...]} with the blocks each rank holds, tier by tier.

        router_config_override must be None: these are blocks, before any weight. There is no shared cache to include."""
        self._index()
        if router_config_override is not None:
            raise bad("router_config_override", router_config_override, "None; what is held has no weights")
        request = self._request(token_ids, lora_name, cache_namespace, block_mm_infos)
        blocks, workers = self._router.overlaps(*request)
        return Dict(block_size=self._block_size, num_blocks=blocks, shared_cache=None, workers=workers)

    def pending_count(self):
        """Requests that wait for their turn."""
        return self._router.stats()[0]

    def pending_isl_tokens(self):
        """Tokens of their prompts."""
        return self._router.pending_tokens()

    def stage_times(self):
        """{"decisions": how many, and of each stage the nanoseconds spent: "block_hashing", "find_matches", "seq_hashing", "scheduling",
        "total"}; those of one decision are its result's `times`."""
        return dict(zip(("decisions",) + BestWorker.STAGES, self._router.stats()[1:]))

    def dump_events(self):
        """The index as a JSON text: a list of router events."""
        return Text("[" + ",".join(self._index().dump_tree_as_events()) + "]")


_PROMPT_FIELDS = ("tokens", "block_mm_infos", "lora_name", "cache_namespace")
_METHODS = {"new": ("request_id",) + _PROMPT_FIELDS + ("routing_constraints", "priority_jump", "strict_priority", "policy_class"),
            "mark_prefill": ("request_id",), "mark_free": ("request_id",), "potential_loads": _PROMPT_FIELDS}
