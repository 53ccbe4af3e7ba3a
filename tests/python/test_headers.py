# SPDX-License-Identifier: Apache-2.0
"""What the C headers have the package has too, or it is listed here with the reason why not."""
import glob
import os
import re

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# Functions that Python has no use for.
C_ONLY = {
    "a caller's own memory, clock, threads and scratch; the binding has its own": """
        kvr_alloc_libc kvr_clock_monotonic kvr_pair_ctx_create kvr_pair_ctx_destroy kvr_index_lane""",
    "numbers and names of errors: an exception has both": "kvr_err_name",
    "parts that the router is made of: it keeps the book": """
        kvr_load_create kvr_load_destroy kvr_load_bytes kvr_load_set_worker kvr_load_remove_worker kvr_load_slots kvr_load_slot_of kvr_load_get
        kvr_load_get_all kvr_load_add kvr_load_prefill_done kvr_load_output_blocks kvr_load_outputs kvr_load_course kvr_load_touch
        kvr_load_where kvr_load_free kvr_load_expire kvr_load_free_owner kvr_load_each kvr_load_seqs kvr_load_project kvr_load_stretches
        kvr_load_validate""",
    "parts that the router is made of: it keeps the queue": """
        kvr_queue_create kvr_queue_destroy kvr_queue_set_policy kvr_queue_class kvr_queue_class_config kvr_queue_limit_name kvr_queue_push kvr_queue_try
        kvr_queue_is_full kvr_queue_remove kvr_queue_pop kvr_queue_take_any kvr_queue_classes kvr_queue_stats kvr_queue_len kvr_queue_bytes""",
    "parts that the router is made of: it has the models (KvRouter.models) and the costs (KvRouter.get_candidates)": """
        kvr_ttft_init kvr_ttft_weigh_tiers kvr_ttft_observe kvr_ttft_observe_reads kvr_ttft_predict kvr_ttft_factor_init
        kvr_ttft_factor_observe kvr_ttft_factor_age kvr_generation_init kvr_generation_observe kvr_cost_config_init kvr_cost_config_check
        kvr_override_apply kvr_override_decode_leg kvr_decode_leg kvr_cost_of kvr_delay_of kvr_delays_of kvr_pick kvr_pick_in_turn
        kvr_pick_calmest""",
    "the program sees when a request was sent and answered; here the calls that report it teach (learn_from_reports)": """
        kvr_router_observe_ttft kvr_router_observe_ttft_beside kvr_router_observe_generation""",
    "who looks at some candidates; KvRouter.get_candidates has all": "kvr_router_candidate kvr_router_cheapest",
    "several routers tell each other: the package opens no sockets, and router_replica_sync is refused": """
        kvr_router_apply_remote kvr_router_forget_remote kvr_router_snapshot kvr_router_keep_trusted""",
    "what the caller has said itself": "kvr_router_block_size kvr_router_find_taint",
    "whole requests on a decode worker: a rule of the program": """
        kvr_router_any_calm kvr_disagg_rule_init kvr_disagg_rule_check kvr_disagg_policy_name kvr_disagg_policy_of kvr_disagg_is_local""",
    "legs that wait, and calls of both legs where one is enough": "kvr_pair_find_decode kvr_pair_output_blocks kvr_pair_touch",
    "names of tiers and media, and the order of workers: the package has the first two as its own tables": """
        kvr_tier_name kvr_tier_of_medium kvr_worker_cmp""",
    "loops in C that save less than one call from Python costs": "kvr_index_apply_batch kvr_index_match_batch kvr_hash_bytes kvr_hash_sequence_on",
    "event loops that cannot wait for a whole removal or a whole dump; a thread of Python can": """
        kvr_index_drop_worker kvr_index_drop_rank kvr_index_tend kvr_index_walk_begin kvr_index_walk_next kvr_index_walk_end
        kvr_index_restore""",
    "the router's dump is its index's": "kvr_router_dump",
    "who serves what changes while requests wait: a task of Python is cancelled and asks again": "kvr_router_allow",
    "a router for other workers is another KvRouter": "kvr_router_start_over",
    "tiers are matched by KvRouter.get_overlap_scores": "kvr_index_match_tiers",
    "what only the program's converter of engines' events knows: windows, pools, what an engine did not have": """
        kvr_index_window kvr_index_limit kvr_index_names kvr_index_set_pool kvr_index_fell_short""",
    "the cap is an argument of RadixTree": "kvr_index_set_bytes_max",
    "who publishes from Python knows the block size from the start": "kvr_local_index_set_block_size",
    "the content is told as JSON, which other processes read": "kvr_local_index_apply kvr_local_index_dump kvr_local_index_holds",
}
# Fields of what callers fill in.
C_ONLY_FIELDS = {
    "a caller's own memory, clock, threads and instructions": """
        kvr_router_config.alloc kvr_router_config.clock kvr_index_config.alloc kvr_index_config.clock kvr_local_index_config.alloc
        kvr_index_config.lanes kvr_index_config.ranks_max kvr_index_config.portable""",
    "an index elsewhere, or others that ask this one, or other routers: the package opens no sockets": """
        kvr_router_config.remote_index kvr_router_config.serve_index kvr_router_config.hook kvr_router_config.hook_ctx
        kvr_router_request.scores kvr_router_request.scores_n kvr_router_request.shared kvr_router_request.shared_n""",
    "best_worker(update_indexer=True) says it of each decision": "kvr_router_config.record_decisions",
    "durations are fitted (router_prefill_load_model)": "kvr_router_config.prefill kvr_router_config.prefill_ctx",
    "prompts are tokens here": """
        kvr_router_request.locals kvr_router_request.locals_n kvr_router_request.seqs kvr_router_request.seqs_n""",
    "a decode leg is what KvRouterPair makes, and worker_type": "kvr_override.decode_role",
    "the program's rule": """
        kvr_disagg_rule.policy kvr_disagg_rule.isl_tokens kvr_disagg_rule.isl_ratio kvr_disagg_rule.prefill_load kvr_disagg_rule.stall_weight
        kvr_disagg_rule.decode_load kvr_disagg_rule.min_uncached""",
    "older publishers' events; implied by the caps; defaults that nobody has asked to change": """
        kvr_index_config.clear_worker_wide kvr_index_config.evictable kvr_index_config.tier_blocks_max kvr_index_config.tier_ttl_ns""",
}
FILLED_IN = re.compile(r"struct (kvr_(?:\w+_(?:config|request|rule|thresholds)|policy|override|pair)) \{\n(.*?)^\};", re.S | re.M)


def headers():
    return "\n".join(open(path).read() for path in sorted(glob.glob(f"{ROOT}/include/kvroute/*.h")))


def binding():
    return "\n".join(open(path).read() for path in sorted(glob.glob(f"{ROOT}/bindings/python/src/*.c")))


def plain(text):
    return re.sub(r"/\*.*?\*/", "", text, flags=re.S)


def functions(text):
    return set(re.findall(r"^KVR_API [^;(]*?\b(kvr_\w+)\(", plain(text), re.M))


def fields(text):
    """struct.field of what callers fill in: the last name of each declarator."""
    found = set()
    for struct, body in FILLED_IN.findall(plain(text)):
        if struct in ("kvr_load_request",):  # the book's, which the router fills in
            continue
        for declaration in re.sub(r"struct \{.*?\}", "struct x", body, flags=re.S).split(";"):
            for declarator in declaration.split(","):
                name = re.search(r"(\w+)\s*(?:\[[^]]*\])*\s*$", declarator)
                if name:
                    found.add(f"{struct}.{name[1]}")
    return found


def listed(reasons):
    return {name for names in reasons.values() for name in names.split()}


def lacking(header_text):
    """Of headers: what neither the binding has nor the lists above excuse; and what they excuse for nothing."""
    code = plain(binding())
    has = {f for f in functions(header_text) if re.search(rf"\b{f}\b", code)}
    reads = {f for f in fields(header_text) if re.search(rf"(?:\.|->){f.split('.')[1]}\b", code)}
    there, bound = functions(header_text) | fields(header_text), has | reads
    excused = listed(C_ONLY) | listed(C_ONLY_FIELDS)
    idle = listed(C_ONLY) & has | excused - there
    return sorted(there - bound - excused), sorted(idle)


def test_every_function_and_field_of_the_headers_is_bound_or_excused():
    assert len(functions(headers())) > 150 and len(fields(headers())) > 90
    assert lacking(headers()) == ([], [])


@pytest.mark.parametrize("more, name", [
    ("KVR_API int kvr_router_new_thing(struct kvr_router *router);\n", "kvr_router_new_thing"),
    ("KVR_API const char *\nkvr_index_new_thing(void);\n", "kvr_index_new_thing"),
    ("struct kvr_new_config {\n    double new_share; /* 0..1 */\n};\n", "kvr_new_config.new_share")])
def test_a_function_or_a_field_that_is_added_to_a_header_alone_is_noticed(more, name):
    assert lacking(headers() + more) == ([name], [])


def test_every_method_of_the_compiled_part_is_used_by_the_package():
    methods = set(re.findall(r'\{"(\w+)", \w+, METH_', binding()))
    controls = re.search(r"#define PY_ROUTER_CONTROLS\(X\)(.*?)\n#define", open(f"{ROOT}/bindings/python/src/binding.h").read(), re.S)
    methods |= set(re.findall(r"X\((\w+)\)", controls[1]))
    package = "\n".join(open(path).read() for path in glob.glob(f"{ROOT}/bindings/python/kvroute/*.py"))
    assert sorted(m for m in methods if f".{m}(" not in package) == []


def test_every_public_method_has_a_stub():
    stubs = open(f"{ROOT}/bindings/python/kvroute/__init__.pyi").read()
    public = set()
    for path in glob.glob(f"{ROOT}/bindings/python/kvroute/[a-z]*.py"):
        public |= set(re.findall(r"^    def ([a-z]\w*)\(self", open(path).read(), re.M)) - {"overlap_score_weight"}  # an attribute
    assert sorted(m for m in public if f"def {m}(" not in stubs) == []
