# SPDX-License-Identifier: Apache-2.0
import math
import sys

from . import _kvroute
from ._await import BestWorker, Dict, List, Ready, Text
from ._check import U32, bad, block_size as check_block_size, flag, json_of, one_of, real, whole, worker
from ._errors import ENOTFOUND, EINVAL, EOVERLOADED, EQUEUEFULL, KvrouteError, check
from .config import BUSY, COSTS, MODES, QUEUE_POLICIES, KvRouterConfig, override_of, policy_of
from .hashing import prompt_of
from .index import RadixTree

_WORKER_TYPES = ("both", "prefill", "decode")
_REQUEST_MODES = tuple(m for m in MODES if m != "direct")  # that one is the router's alone
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
    not call the router. queue_timeout_secs: how long a request waits for its turn (router_queue_threshold, policy). policy: classes of
    requests that wait, in place of router_queue_threshold: a dict with the keys of the file that `kvroute serve --router-policy-config`
    reads.

    Results can be awaited. Threads: any, at once."""

    def __init__(self, endpoint=None, block_size=16, kv_router_config=None, aic_perf_config=None, *, worker_type="both", select=None,
                 queue_timeout_secs=60.0, policy=None):
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
        if policy is not None and config.router_queue_threshold is not None:
            raise ValueError("policy: it has the thresholds of its classes; allowed: one of policy and router_queue_threshold")
        self._waits = policy is not None or config.router_queue_threshold is not None
        self._router = _kvroute.Router(self._tree._index if self._tree else None, self._predicted, self._block_size,
                                       self._settings(policy_of(policy)), select)

    def _predictions(self, ttl):
        return _kvroute.Index(ttl, self.config.router_max_tree_size, self.config.router_prune_target_ratio, 0.0, 0, 0)

    def _settings(self, policy):
        c = self.config
        blocks = c.router_track_active_blocks and self._worker_type != "prefill"
        threshold = -1.0 if c.router_queue_threshold is None else c.router_queue_threshold
        return (c.overlap_score_credit, c.overlap_score_credit_decay, c.prefill_load_scale, c.host_cache_hit_weight, c.disk_cache_hit_weight,
                c.shared_cache_multiplier, c.router_temperature, c.request_weight, COSTS[c.cost], self._worker_type == "decode", blocks,
                c.router_assume_kv_reuse, c.router_track_prefill_tokens, c.seed, threshold, QUEUE_POLICIES[c.router_queue_policy], MODES[c.mode],
                c.learn_from_reports, c.router_prefill_load_model == "fitted", self._thresholds({name: getattr(c, name) for name in BUSY}), policy)

    @staticmethod
    def _thresholds(given):
        return tuple(-1.0 if given[name] is None else given[name] for name in BUSY)

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
        names = None if isinstance(taints, str) else list(taints)
        if names is None or not all(isinstance(t, str) and t and len(t.encode()) < 128 for t in names):
            raise bad("taints", taints, "a list of str of 1 to 127 bytes")
        self._router.set_worker(worker_id, start, size)
        self._router.set_limits(worker_id, *limits)
        self._router.set_taints(worker_id, names)

    def set_schedulable(self, worker_id, schedulable):
        """Whether it may be chosen; what it has under way goes on."""
        self._router.set_schedulable(worker(worker_id), flag("schedulable", schedulable))

    def set_trusted(self, worker_id, trusted, dp_rank=0):
        """Whether what the index says of a rank counts; one that is not trusted competes on load alone."""
        self._router.set_trusted(worker(worker_id), whole("dp_rank", dp_rank, 0, U32), flag("trusted", trusted))

    def set_kv_used(self, worker_id, blocks, dp_rank=0):
        """KV blocks in use, as the engine itself says."""
        self._router.set_kv_used(worker(worker_id), whole("dp_rank", dp_rank, 0, U32), whole("blocks", blocks))

    def remove_worker(self, worker_id):
        self._router.remove_worker(worker(worker_id))

    # ---- how it chooses

    def set_mode(self, mode):
        """"kv", "round_robin", "random", "least_loaded" or "direct" (only requests that name their worker)."""
        self._router.set_mode(MODES[one_of("mode", mode, tuple(MODES))])

    def mode(self):
        return tuple(MODES)[self._router.mode()]

    def set_busy(self, **thresholds):
        """Other thresholds of overload: the options active_*_threshold. What is not given, or None, stays; none can be switched off."""
        for name, value in thresholds.items():
            if name not in BUSY:
                raise TypeError(f"set_busy: unknown threshold '{name}'; allowed: {', '.join(BUSY)}")
            if value is not None:
                real(name, value, 0, 1 if name == BUSY[0] else math.inf)
        self._router.set_busy(*self._thresholds({name: thresholds.get(name) for name in BUSY}))

    def busy(self):
        """The thresholds of overload; None: off."""
        return {name: None if value < 0 else value for name, value in zip(BUSY, self._router.busy())}

    def set_policy(self, policy):
        """Other classes, while requests wait: each goes on waiting in the class that it would get now. policy: as for KvRouter."""
        if policy is None:
            raise bad("policy", policy, "a dict")
        self._router.set_policy(policy_of(policy))
        self._waits = True

    def apply_event(self, worker_id, event):
        """A KV event of a worker, as RadixTree.apply_event."""
        self._index().apply_event(worker_id, event)

    def apply_router_event(self, event):
        """A router event, as RadixTree.apply_router_event."""
        tree = self._index()
        tree.apply_router_event(event)
        if tree.has_lower_tiers:
            self._router.use_lower_tiers()

    def _index(self):
        if not self._tree:
            raise ValueError(_NO_INDEX)
        return self._tree

    # ---- requests

    def _request(self, token_ids, lora_name=None, cache_namespace=None, block_mm_infos=None, request_id=None, router_config_override=None,
                 allowed_worker_ids=None, worker_id=None, dp_rank=None, routing_constraints=None, priority_jump=0.0, strict_priority=0, policy_class=None, is_eagle=False,
                 prefer=False, excluded_worker_ids=None, do_not_queue=False, overloads=False, guarded=False, expected_output_tokens=0, tenant=0,
                 tenant_weight=1.0, mode=None, isl=0):
        if dp_rank is not None:
            whole("dp_rank", dp_rank, 0, U32)
            if worker_id is None:
                raise ValueError("dp_rank: needs worker_id")
        pin = None if worker_id is None else (worker(worker_id), dp_rank)
        output = whole("expected_output_tokens", expected_output_tokens)
        return (prompt_of(token_ids, self._block_size, lora_name, is_eagle, cache_namespace, block_mm_infos), request_id, request_id is not None,
                override_of(router_config_override), allowed_worker_ids, pin, _taints_of(routing_constraints), real("priority_jump", priority_jump, -math.inf),
                whole("strict_priority", strict_priority, 0, U32), policy_class,
                (excluded_worker_ids, flag("prefer", prefer), flag("do_not_queue", do_not_queue), flag("overloads", overloads), flag("guarded", guarded),
                 output, (whole("tenant", tenant), real("tenant_weight", tenant_weight, above=True), output),
                 -1 if mode is None else MODES[one_of("mode", mode, _REQUEST_MODES)], whole("isl", isl)))

    def best_worker(self, token_ids, router_config_override=None, request_id=None, update_indexer=False, block_mm_infos=None, lora_name=None,
                    routing_constraints=None, strict_priority=0, policy_class=None, cache_namespace=None, *, allowed_worker_ids=None,
                    worker_id=None, dp_rank=None, priority_jump=0.0, is_eagle=False, prefer=False, excluded_worker_ids=None, do_not_queue=False,
                    overloads=False, guarded=False, expected_output_tokens=0, tenant=0, tenant_weight=1.0, mode=None):
        """(worker_id, dp_rank, overlap_blocks), with more in its attributes. With request_id it books: mark_prefill_complete and free
        follow.

        update_indexer: without KV events, remember the decision. strict_priority, priority_jump (seconds of seniority) and policy_class
        order requests that wait.

        worker_id is the one that must take it, or, with prefer, the one that is taken if it may be. overloads: overloaded workers may be
        chosen, too. guarded: the caller frees it for certain, and expire leaves it. tenant: a number that says whose the request is; among
        those that wait each tenant has a share by its tenant_weight (0: nobody's). mode: how this one is chosen, None as the router's.

        With router_queue_threshold, or a policy, a request that books waits while every worker is busy: QueueTimeout after queue_timeout_secs. It
        blocks the calling thread, or, where an event loop runs, gives a task to await. With do_not_queue it raises instead.

        Raises NoEndpoints when nobody is eligible."""
        if hasattr(token_ids, "__next__"):
            token_ids = list(token_ids)  # what is remembered goes through them once more
        request = self._request(token_ids, lora_name, cache_namespace, block_mm_infos, request_id, router_config_override, allowed_worker_ids,
                                worker_id, dp_rank, routing_constraints, priority_jump, strict_priority, policy_class, is_eagle, prefer,
                                excluded_worker_ids, do_not_queue, overloads, guarded, expected_output_tokens, tenant, tenant_weight, mode)
        remember = None
        if update_indexer and self._tree and not self.config.use_kv_events:
            remember = prompt_of(token_ids, self._block_size, lora_name, is_eagle, cache_namespace, block_mm_infos)
        if request_id is None or not self._waits:
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

    def touch(self, request_id):
        """Something was heard of it, so that expire leaves it."""
        check(self._router.touch(request_id))
        return Ready()

    def where(self, request_id):
        """(worker_id, dp_rank) where it is booked, or None."""
        return self._router.where(request_id)

    def poll(self):
        """Looks at requests that wait again, learns how fast caches turn over, and gives back a slice of what removed workers held. Call
        it every 100 ms or so where prefill loads decay with time (router_prefill_load_model "fitted") or workers come and go."""
        self._router.poll()

    def shutdown(self):
        """Requests that wait, now or later, raise KvrouteError."""
        self._router.shut_queue()

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

    def get_candidates(self, token_ids, **who):
        """The candidates of a choice that is made now and not booked: dicts as `select` is given, with `prefill_tokens` and `delay_ms`, the
        terms of the delay cost (None with another cost). who: what best_worker takes by name, as far as it says who may be chosen."""
        return self._router.explain(*self._request(token_ids, **who))

    def is_overloaded(self, tokens, **who):
        """Whether a prompt of so many tokens, none of them cached, would be refused now: all workers are overloaded, or the class has no
        room. who: as get_candidates."""
        rc = self._router.overload(*self._request(range(0), isl=whole("tokens", tokens, 1), **who))
        return rc in (-EOVERLOADED, -EQUEUEFULL) or bool(check(rc))

    def get_loads(self):
        """What is under way on each rank: a list of dicts."""
        return self._router.loads()

    def models(self, worker_id=None):
        """What was learned: "ttft" (the time to the first token: base_ms + token_ms * tokens to compute + ahead_ms * tokens ahead +
        request_ms * requests that generate), "worker" (the factor of one; 1 without worker_id) and "generation" (milliseconds of a token:
        base_ms + block_ms * blocks in use; tokens: mean of an answer), each with its observations."""
        ttft, n, factor, generation, m = self._router.models(None if worker_id is None else worker(worker_id))
        return {"ttft": dict(zip(("base_ms", "token_ms", "ahead_ms", "request_ms", "observations"), ttft + (n,))),
                "worker": dict(zip(("factor", "observations"), factor)),
                "generation": dict(zip(("base_ms", "block_ms", "tokens", "observations"), generation + (m,)))}

    def class_stats(self):
        """Of each class of requests that wait: its name, what waits now, and what was queued and rejected since the start."""
        return self._router.class_stats()

    def validate(self):
        """None, or what is wrong with the book of requests: for tests."""
        return self._router.validate()

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
        return sum(c["isl_tokens"] for c in self._router.class_stats())

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
