# SPDX-License-Identifier: Apache-2.0
"""How KvRouter chooses: the options, each with the check of its values."""
from ._check import bad, flag, json_of, one_of, real, whole

COSTS = {"auto": 0, "linear": 1}
MODES = {"kv": 0, "round_robin": 1, "random": 2, "least_loaded": 3, "direct": 4}
QUEUE_POLICIES = {"fcfs": 0, "lcfs": 1, "wspt": 2}


def _at_least(low, **kw):
    return lambda name, v: real(name, v, low, **kw)


def _share(name, v):
    return real(name, v, 0, 1)


def _seconds(name, v):
    return real(name, v, 1e-3, 1e9)


def _or_none(check):
    return lambda name, v: None if v is None else check(name, v)


def _one_of(*allowed):
    return lambda name, v: one_of(name, v, allowed)


def _count(low):
    return lambda name, v: whole(name, v, low)


def _path(name, v):
    if not isinstance(v, str) or not v:
        raise bad(name, v, "None, the path of a file")
    return v


_OPTIONS = {  # name: (default, check)
    "overlap_score_credit": (1.0, _at_least(0)),
    "overlap_score_credit_decay": (0.0, _at_least(0)),
    "prefill_load_scale": (1.0, _at_least(0)),
    "host_cache_hit_weight": (0.75, _share),
    "disk_cache_hit_weight": (0.25, _share),
    "router_temperature": (0.0, _at_least(0)),
    "use_kv_events": (True, flag),
    "durable_kv_events": (False, flag),
    "router_replica_sync": (False, flag),
    "router_track_active_blocks": (True, flag),
    "router_track_output_blocks": (False, flag),
    "router_assume_kv_reuse": (True, flag),
    "router_track_prefill_tokens": (True, flag),
    "router_prefill_load_model": ("none", _one_of("none", "fitted", "aic")),
    "router_snapshot_threshold": (1000000, _or_none(_count(1))),
    "router_reset_states": (False, flag),
    "router_ttl_secs": (120.0, _seconds),
    "router_queue_threshold": (None, _or_none(_at_least(0))),
    "router_policy_config": (None, _or_none(_path)),
    "router_event_threads": (4, lambda name, v: whole(name, v, 1, 1024)),
    "router_queue_policy": ("fcfs", _one_of(*QUEUE_POLICIES)),
    "use_remote_indexer": (False, flag),
    "serve_indexer": (False, flag),
    "shared_cache_multiplier": (0.0, _share),
    "shared_cache_type": ("none", _one_of("none", "hicache")),
    "router_predicted_ttl_secs": (None, _or_none(_seconds)),
    "router_max_tree_size": (1048576, _count(1)),
    "router_prune_target_ratio": (0.8, lambda name, v: real(name, v, 0, 1, above=True)),
    "cost": ("auto", _one_of(*COSTS)),
    "seed": (0, _count(0)),
    "mode": ("kv", _one_of(*MODES)),
    "request_weight": (0.0, _at_least(0)),
    "learn_from_reports": (False, flag),
    "active_decode_blocks_threshold": (None, _or_none(_share)),
    "active_prefill_tokens_threshold": (None, _or_none(_at_least(0))),
    "active_prefill_tokens_threshold_frac": (None, _or_none(_at_least(0))),
}
BUSY = ("active_decode_blocks_threshold", "active_prefill_tokens_threshold", "active_prefill_tokens_threshold_frac")

# What an index or a router in this process cannot do, and who can. It is refused rather than left undone.
_ELSEWHERE = {
    "serve_indexer": "this package opens no sockets, so nobody could ask; allowed: False; run `kvroute serve --serve-indexer`",
    "use_remote_indexer": "this package opens no sockets; allowed: False; run `kvroute serve --use-remote-indexer`",
    "durable_kv_events": "events come from apply_event; allowed: False; run `kvroute serve --router-durable-kv-events`",
    "router_replica_sync": "this package opens no sockets; allowed: False; run `kvroute serve --router-replica-sync`",
    "router_policy_config": "classes come from a file that only the program reads; allowed: None; run `kvroute serve --router-policy-config`",
}


class KvRouterConfig:
    """How KvRouter chooses. Keywords as NVIDIA Dynamo names them; a value that is not allowed raises ValueError, which names it.

    cost: "auto" (the delay that a choice adds to everybody) or "linear" (Dynamo's). overlap_score_weight is the older name of overlap_score_credit.
    router_snapshot_threshold, router_reset_states and router_event_threads concern a runtime: they are checked and kept, and mean nothing
    here. So does router_track_output_blocks: the caller says itself, with add_output_block, what generation fills.

    learn_from_reports: the times of mark_prefill_complete, add_output_block and free teach what a request takes (KvRouter.models).
    active_*_threshold: a worker above one is overloaded, and gets nothing while others are not; None: off."""

    def __init__(self, **options):
        if "overlap_score_weight" in options:
            if "overlap_score_credit" in options:
                raise ValueError("overlap_score_weight: it is the older name of overlap_score_credit; allowed: one of the two")
            options["overlap_score_credit"] = options.pop("overlap_score_weight")
        for key in options:
            if key not in _OPTIONS:
                raise TypeError(f"KvRouterConfig: unknown option '{key}'; allowed: {', '.join(sorted(_OPTIONS))}")
        for key, (default, _) in _OPTIONS.items():
            setattr(self, key, options.get(key, default))
        self.check()

    def __setattr__(self, name, value):
        if name in _OPTIONS:
            value = _OPTIONS[name][1](name, value)
        elif name != "overlap_score_weight":
            raise AttributeError(f"KvRouterConfig: unknown option '{name}'; allowed: {', '.join(sorted(_OPTIONS))}")
        object.__setattr__(self, name, value)

    def check(self):
        """What options say of each other."""
        if self.serve_indexer and self.use_remote_indexer:
            raise ValueError("serve_indexer and use_remote_indexer exclude each other: an index is served or asked for")
        for name in ("serve_indexer", "use_remote_indexer"):
            if getattr(self, name) and self.overlap_score_credit <= 0:
                raise ValueError(f"{name}: needs overlap_score_credit above 0: else there is no index")
        if self.router_track_output_blocks and not self.router_track_active_blocks:
            raise ValueError("router_track_output_blocks: needs router_track_active_blocks")
        if self.router_prefill_load_model != "none" and not self.router_track_prefill_tokens:
            raise ValueError("router_prefill_load_model: needs router_track_prefill_tokens")
        if self.router_predicted_ttl_secs is not None and not self.use_kv_events:
            raise ValueError("router_predicted_ttl_secs: needs use_kv_events; without, decisions are the index and router_ttl_secs is their time")
        if self.router_predicted_ttl_secs is not None and self.overlap_score_credit <= 0:
            raise ValueError("router_predicted_ttl_secs: needs overlap_score_credit above 0: else there is no index")
        if self.durable_kv_events and not self.use_kv_events:
            raise ValueError("durable_kv_events: needs use_kv_events")

    def check_in_process(self):
        """What KvRouter can do."""
        self.check()
        for name, why in _ELSEWHERE.items():
            if getattr(self, name):
                raise ValueError(f"{name}: {why}")
        if self.router_prefill_load_model == "aic":
            raise ValueError("router_prefill_load_model: this router has no such model; allowed: none, fitted")
        if self.shared_cache_type != "none":
            raise ValueError("shared_cache_type: this router asks no shared cache; allowed: none")

    @property
    def overlap_score_weight(self):
        return self.overlap_score_credit

    @overlap_score_weight.setter
    def overlap_score_weight(self, value):
        self.overlap_score_credit = value

    @classmethod
    def from_json(cls, text):
        options = json_of("KvRouterConfig", text)
        if not isinstance(options, dict):
            raise ValueError("KvRouterConfig: a JSON object is needed")
        return cls(**options)

    def copy(self):
        return self.with_overrides()

    def with_overrides(self, **options):
        own = {k: getattr(self, k) for k in _OPTIONS}
        if "overlap_score_weight" in options:
            del own["overlap_score_credit"]
        return KvRouterConfig(**{**own, **options})

    def __repr__(self):
        changed = {k: getattr(self, k) for k, (default, _) in _OPTIONS.items() if getattr(self, k) != default}
        return f"KvRouterConfig({', '.join(f'{k}={v!r}' for k, v in changed.items())})"


_CLASS = {  # key of a class, in the order of the compiled part: (default, check)
    "name": (None, None), "policy_family": ("", None), "cache_bucket": ("", None), "queue_policy": ("fcfs", None),
    "quantum": (1.0, _at_least(0, above=True)),
    "prefill_busy_threshold": (-1.0, _at_least(0)),
    "prefill_busy_threshold_frac": (-1.0, _at_least(0)),
    "request_busy_threshold": (0.0, _at_least(0)),
    "busy_worker_ratio": (1.0, lambda name, v: real(name, v, 0, 1, above=True)),
    "request_queue_limit_per_worker": (-1.0, _at_least(0)),
    "raw_isl_token_queue_limit_per_worker": (-1.0, _at_least(0)),
    "cached_token_queue_limit_per_worker": (-1.0, _at_least(0)),
    "queue_ageing_secs": (0.0, lambda name, v: real(name, v, 0, 1e9)),
}


def _only(what, given, allowed):
    if not isinstance(given, dict):
        raise bad(what, given, f"a dict of {', '.join(allowed)}")
    for key in given:
        if key not in allowed:
            raise ValueError(f"{what}: unknown key '{key}'; allowed: {', '.join(allowed)}")
    return given


def _class_of(given):
    given = _only("policy_classes", given, _CLASS)
    row = [check(key, given[key]) if check and given.get(key) is not None else given.get(key, default)
           for key, (default, check) in _CLASS.items()]
    row[3] = QUEUE_POLICIES[one_of("queue_policy", row[3], tuple(QUEUE_POLICIES))]
    return tuple(row)


def policy_of(given):
    """Classes of requests that wait, for the compiled part; keys as in the file of `kvroute serve --router-policy-config`."""
    if given is None:
        return None
    given = _only("policy", given, ("default_policy_family", "uncached_isl_buckets", "policy_classes"))
    buckets = [_only("uncached_isl_buckets", b, ("bucket", "min_tokens")) for b in given.get("uncached_isl_buckets", ())]
    return (given.get("default_policy_family", "default"), [(b.get("bucket"), whole("min_tokens", b.get("min_tokens"))) for b in buckets],
            [_class_of(c) for c in given.get("policy_classes", ())])


_OVERRIDES = {  # name: (bit of enum kvr_override_bit, place, check)
    "overlap_score_credit": (1, 1, _at_least(0)),
    "overlap_score_weight": (1, 1, _at_least(0)),
    "prefill_load_scale": (2, 2, _at_least(0)),
    "router_temperature": (4, 3, _at_least(0)),
    "shared_cache_multiplier": (8, 4, _share),
    "assume_kv_reuse": (16, 5, flag),
    "track_prefill_tokens": (32, 6, flag),
}


def override_of(options):
    """What one request changes, for the compiled part."""
    if options is None:
        return None
    out = [0, 0.0, 0.0, 0.0, 0.0, False, False]
    if not hasattr(options, "items"):
        raise bad("router_config_override", options, f"None, a dict of {', '.join(_OVERRIDES)}")
    for key, value in options.items():
        if key not in _OVERRIDES:
            raise ValueError(f"router_config_override: unknown key '{key}'; allowed: {', '.join(_OVERRIDES)}")
        if value is None:
            continue
        bit, at, check = _OVERRIDES[key]
        out[0] |= bit
        out[at] = check(f"router_config_override.{key}", value)
    return tuple(out)
