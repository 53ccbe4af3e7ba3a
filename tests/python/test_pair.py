# SPDX-License-Identifier: Apache-2.0
"""KvRouterPair: two workers for one request, booked together, and what ends each booking."""
import asyncio
import threading

import pytest

from kvroute import BestPair, BestWorker, KvRouter, KvRouterConfig, KvRouterPair, KvrouteError, NoEndpoints, compute_block_hash_for_seq

TOKENS = list(range(64))


def pair(prefill=(1, 2), decode=(11, 12), taints=None, **options):
    p, d = KvRouter(block_size=16, worker_type="prefill"), KvRouter(block_size=16)
    for router, workers in ((p, prefill), (d, decode)):
        for w in workers:
            router.add_worker(w, taints=(taints or {}).get(w, ()))
    return KvRouterPair(p, d, **options)


def store(router, worker, tokens):
    blocks = [{"block_hash": 100 + i, "tokens_hash": h} for i, h in enumerate(compute_block_hash_for_seq(tokens, 16))]
    router.apply_event(worker, {"event_id": 1, "dp_rank": 0, "data": {"stored": {"parent_hash": None, "blocks": blocks}}})


def loads(router):
    """Without a prompt of its own a potential load is the load."""
    return {load["worker_id"]: (load["potential_prefill_tokens"], load["potential_decode_blocks"], load["active_requests"])
            for load in router.get_potential_loads([])}


def test_the_prompt_goes_where_it_is_cached_and_decoding_where_it_is_idle():
    both = pair()
    store(both.prefill, 2, TOKENS)
    store(both.decode, 11, TOKENS)
    both.decode.add_request("busy", TOKENS, 11)
    best = both.best_pair(TOKENS)
    assert isinstance(best, BestPair) and isinstance(best.prefill, BestWorker) and best == (best.prefill, best.decode)
    assert best.prefill.worker_id == 2 and best.prefill.overlap_blocks >= 3 and best.decode.worker_id == 12 and best.decode.prefill_tokens == 0
    assert loads(both.prefill) == {1: (0, 0, 0), 2: (0, 0, 0)}


def test_both_are_booked_and_each_ends_when_it_is_over():
    both = pair(prefill=(1,), decode=(11,))
    both.best_pair(iter(TOKENS), request_id="a")
    assert loads(both.prefill) == {1: (64, 0, 1)} and loads(both.decode) == {11: (0, 4, 1)}
    both.mark_prefill_complete("a")
    both.mark_prefill_complete("a")
    assert loads(both.prefill) == {1: (0, 0, 0)} and loads(both.decode) == {11: (0, 4, 1)}
    both.add_output_block("a")
    both.best_pair(TOKENS, request_id="b")  # shares no blocks
    assert loads(both.decode) == {11: (0, 9, 2)}
    both.free("a")
    both.free("b")
    assert loads(both.prefill) == {1: (0, 0, 0)} and loads(both.decode) == {11: (0, 0, 0)}
    with pytest.raises(KvrouteError):
        both.free("a")


def test_a_failure_says_which_leg_and_books_nothing():
    both = pair(decode=())
    with pytest.raises(NoEndpoints) as e:
        both.best_pair(TOKENS, request_id="a")
    assert e.value.leg == "decode" and loads(both.prefill) == {1: (0, 0, 0), 2: (0, 0, 0)}
    with pytest.raises(NoEndpoints) as e:
        pair(prefill=()).best_pair(TOKENS, request_id="a")
    assert e.value.leg == "prefill"
    both = pair()
    both.best_pair(TOKENS, request_id="a")
    with pytest.raises(KvrouteError) as e:
        both.best_pair(TOKENS, request_id="a")
    assert e.value.leg == "prefill"


def test_each_leg_has_its_own_pins_and_lists():
    both = pair()
    best = both.best_pair(TOKENS, prefill_worker_id=2, decode_worker_id=11, decode_dp_rank=0)
    assert (best.prefill.worker_id, best.decode.worker_id) == (2, 11)
    best = both.best_pair(TOKENS, allowed_prefill_ids=[1], allowed_decode_ids=[12])
    assert (best.prefill.worker_id, best.decode.worker_id) == (1, 12)


def test_domains_are_preferred_or_required():
    taints = {1: ["kv-domain=a"], 2: ["kv-domain=b"], 11: ["kv-domain=b"], 12: ["kv-domain=c"]}
    near = pair(taints=taints, domain_prefix="kv-domain=")
    assert near.best_pair(TOKENS, prefill_worker_id=2).decode.worker_id == 11
    assert near.best_pair(TOKENS, prefill_worker_id=2, allowed_decode_ids=[12]).decode.worker_id == 12
    only = pair(taints=taints, domain_prefix="kv-domain=", domain_required=True)
    for i in range(4):
        best = only.best_pair(TOKENS, request_id=f"r{i}")
        assert (best.prefill.worker_id, best.decode.worker_id) == (2, 11)
    with pytest.raises(NoEndpoints):
        only.best_pair(TOKENS, prefill_worker_id=1)


def test_what_is_cached_where_it_decodes_can_count():
    both = pair(keep_overlap=True)
    store(both.decode, 11, TOKENS)
    assert {both.best_pair(TOKENS).decode.worker_id for _ in range(4)} == {11}


def test_results_can_be_awaited():
    async def ask():
        both = pair()
        best = await both.best_pair(TOKENS, request_id="a")
        await both.mark_prefill_complete("a")
        await both.free("a")
        return best
    assert isinstance(asyncio.run(ask()), BestPair)


@pytest.mark.parametrize("make, text", [
    (lambda: KvRouterPair(1, KvRouter()), "prefill: bad value '1'; allowed: a KvRouter"),
    (lambda: KvRouterPair(KvRouter(), KvRouter()), 'prefill: bad value .* worker_type "prefill"'),
    (lambda: KvRouterPair(KvRouter(worker_type="prefill"), KvRouter(worker_type="prefill")), "decode: bad value .* allowed: .*both"),
    (lambda: pair(domain_prefix=""), "domain_prefix: bad value ''; allowed: None, a str"),
    (lambda: pair(domain_required=1), "domain_required: bad value '1'; allowed: True, False"),
    (lambda: pair(domain_weight="x"), "domain_weight: bad value 'x'; allowed: "),
    (lambda: pair(keep_overlap=None), "keep_overlap: bad value 'None'; allowed: True, False")])
def test_wrong_values_are_named(make, text):
    with pytest.raises(ValueError, match=text):
        make()


def test_a_function_that_chooses_is_asked_and_may_not_ask():
    seen, raised = [], []

    def choose(candidates):
        seen.append([c["worker_id"] for c in candidates])
        try:
            both.best_pair(TOKENS)
        except RuntimeError as e:
            raised.append(str(e))
        return 1
    p = KvRouter(block_size=16, worker_type="prefill", select=choose)
    d = KvRouter(block_size=16, kv_router_config=KvRouterConfig(cost="linear"))
    for router, workers in ((p, (1, 2)), (d, (11,))):
        for w in workers:
            router.add_worker(w)
    both = KvRouterPair(p, d)
    assert both.best_pair(TOKENS).prefill.worker_id == 2 and seen == [[1, 2]] and "must not call the router" in raised[0]


def test_threads_leave_nothing_booked():
    both, failures = pair(), []

    def work(n):
        try:
            for i in range(200):
                both.best_pair(TOKENS, request_id=f"{n}-{i}")
                if i % 3:
                    both.mark_prefill_complete(f"{n}-{i}")
                both.free(f"{n}-{i}")
        except Exception as e:  # a thread's
            failures.append(e)
    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures and loads(both.prefill) == {1: (0, 0, 0), 2: (0, 0, 0)} and loads(both.decode) == {11: (0, 0, 0), 12: (0, 0, 0)}
