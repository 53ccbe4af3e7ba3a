# SPDX-License-Identifier: Apache-2.0
"""An engine that keeps a block twice stores it twice and removes it twice; one that reports a reused block again stores it once. Which of both
it was is not always known at once: then it is taken back, and the view is a lower bound, never lost."""
import pytest

from conftest import Indexer, Mock, Publish, Serve, call, wait_for

T = list(range(100, 132))  # eight blocks of four


def stored(names, parent=None):
    """As vLLM 0.32 writes it. Block n has the tokens T[4n - 4:4n]."""
    tokens = [t for n in names for t in T[4 * n - 4:4 * n]]
    return {"type": "BlockStored", "block_hashes": names, "parent_block_hash": parent, "token_ids": tokens, "block_size": 4, "lora_id": None,
            "medium": "GPU", "lora_name": None, "extra_keys": [None] * len(names), "group_idx": 0, "kv_cache_spec_kind": "full_attention"}


def store(e, names, parent=None):
    e.send(e.batch(stored(names, parent)))


def remove(e, *names):
    e.send(e.batch(*({"type": "BlockRemoved", "block_hashes": [n], "medium": "GPU", "group_idx": 0} for n in names)))


def serve_of(start, e):
    m = start(Mock, with_events=False)
    s = start(Serve, [f"http://127.0.0.1:{m.port},block-size=4,events=tcp://127.0.0.1:{e.events},replay=tcp://127.0.0.1:{e.replay_port}"],
              "--restore-timeout", "5", ready=False)
    e.until("trusted", lambda: s.view().get("trusted"))
    return lambda: s.overlap(T).get((1, 0))


def indexer_of(start, e):
    ix = start(Indexer)
    ix.register(1, e)
    e.until("trusted", lambda: ix.trusted())
    return lambda: ix.scores(T).get((1, 0), 0) // 4


def publish_of(start, e):
    p = start(Publish, e, block_size=4)
    e.until("whole", lambda: p.status()["trust"] == "trusted")
    return lambda: p.status()["blocks"]


@pytest.mark.parametrize("program", [serve_of, indexer_of, publish_of])
def test_a_prompt_that_is_computed_from_its_start_again_and_goes_on_is_known_to_its_end(start, engine, program):
    e = engine()
    depth = program(start, e)
    store(e, [1, 2])
    e.until("stored", lambda: depth() == 2)
    store(e, [1, 2, 3, 4])  # prompt_logprobs, echo with logprobs, a window that is gone
    e.until("all of it", lambda: depth() == 4)
    remove(e, 4, 3, 2, 1)
    e.until("one copy of each", lambda: depth() == 2)


@pytest.mark.parametrize("program", [serve_of, indexer_of, publish_of])
def test_a_block_goes_with_its_last_copy(start, engine, program):
    e = engine()
    depth = program(start, e)
    store(e, [1, 2, 3])
    store(e, [3], parent=2)        # the last block of a prompt that was all cached: computed again
    store(e, [2, 3, 4], parent=1)  # of another request, side by side
    e.until("stored", lambda: depth() == 4)
    remove(e, 4, 3)
    e.until("one copy of three is gone", lambda: depth() == 3)
    remove(e, 3, 2)
    store(e, [4], parent=3)
    e.until("it goes on behind the last copy", lambda: depth() == 4)
    remove(e, 4, 3, 2)
    e.until("the last copies are gone", lambda: depth() == 1)


@pytest.mark.parametrize("program", [serve_of, indexer_of, publish_of])
def test_copies_of_the_start_of_a_chain_are_counted(start, engine, program):
    e = engine()
    depth = program(start, e)
    for n in (3, 3, 1):
        store(e, list(range(1, n + 1)))  # prompt_logprobs, twice; a prompt of one block
    remove(e, 3, 2, 1)
    store(e, [4], parent=3)
    e.until("a copy of each is left", lambda: depth() == 4)
    remove(e, 4, 3, 2)
    e.until("the last copies of two are gone", lambda: depth() == 1)
    remove(e, 1)
    store(e, [2], parent=1)
    e.until("one of the first is left", lambda: depth() == 2)


@pytest.mark.parametrize("program", [serve_of, indexer_of, publish_of])
def test_a_store_that_is_reported_again_leaves_nothing_behind(start, engine, program):
    e = engine()
    depth = program(start, e)
    store(e, [1, 2, 3])
    store(e, [1, 2, 3])  # kv_cache_report_mode full, of a request that stores nothing: it may be a copy
    e.send(e.batch(stored([1, 2, 3]), stored([4, 5], parent=3)))  # one that does shows what it is
    for n in (3, 2, 3, 1):
        store(e, list(range(1, n + 1)))
    e.until("stored", lambda: depth() == 5)
    remove(e, 5, 4, 3)
    e.until("two are left", lambda: depth() == 2)
    remove(e, 2, 1)
    e.until("nothing is left", lambda: not depth())


def test_reports_make_a_view_partial_once_and_only_when_they_were_counted(start, engine):
    e = engine()
    serve_of(start, e)
    s = start(Serve, [f"http://127.0.0.1:{start(Mock, with_events=False).port},block-size=4,events=tcp://127.0.0.1:{e.events},"
                      f"replay=tcp://127.0.0.1:{e.replay_port}"], "--restore-timeout", "5", ready=False)
    e.until("trusted", lambda: s.view().get("trusted"))
    store(e, [1, 2, 3])
    e.send(e.batch(stored([1, 2, 3]), stored([4, 5], parent=3)))
    e.until("stored", lambda: s.overlap(T).get((1, 0)) == 5)
    assert s.view()["view"] == "whole"  # what was counted was this report's alone
    assert s.metric("kv_events_filtered_total", reason="copy_reported") == 3
    assert s.metric("kv_events_filtered_total", reason="copy_taken_back") == 0


PROMPT = list(range(10, 10 + 16 * 8 + 1))  # eight blocks; the next token begins the ninth
FULL = {"vllm_xargs": {"kv_cache_report_mode": "full"}}


def churn(port, n, salt):
    for k in range(n):
        a = call(port, "POST", "/v1/completions", {"model": "mock", "prompt": [1000 + salt * 7919 + k * 997 + i for i in range(16 * 8)], "max_tokens": 1})
        assert a.status == 200, a.body


def cached(answer):
    return (answer.json()["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0)


def test_reports_that_are_asked_for_through_the_router_are_not_counted(start):
    m = start(Mock, "--num-gpu-blocks", "64")
    s = start(Serve, [m])
    assert s.complete(PROMPT, max_tokens=1).status == 200
    for _ in range(5):
        assert s.complete(PROMPT, max_tokens=1, **FULL).status == 200  # it reuses all, and stores nothing
    churn(s.port, 20, 1)
    wait_for("given up", lambda: s.overlap(PROMPT).get((1, 0), 0) == 0)
    assert s.view()["view"] == "whole" and s.metric("kv_events_filtered_total", reason="copy_stored") == 0


def test_a_report_that_is_heard_before_the_request_for_it_leaves_nothing_behind(start, engine):
    e = engine()
    m = start(Mock, with_events=False)
    s = start(Serve, [f"http://127.0.0.1:{m.port},block-size=4,events=tcp://127.0.0.1:{e.events},replay=tcp://127.0.0.1:{e.replay_port}"],
              "--restore-timeout", "5", ready=False)
    e.until("trusted", lambda: s.view().get("trusted"))
    store(e, [1, 2, 3])
    store(e, [1, 2, 3])  # the report
    e.until("counted", lambda: s.metric("kv_events_filtered_total", reason="copy_stored") == 3)
    assert s.complete(list(range(900, 932)), max_tokens=1, **FULL).status == 200  # of another prompt: its answer says nothing of these blocks
    e.until("taken back", lambda: s.metric("kv_events_filtered_total", reason="copy_taken_back") == 3)
    remove(e, 3, 2, 1)
    e.until("nothing is left", lambda: s.overlap(T).get((1, 0), 0) == 0)


def test_reports_that_another_router_asked_for_are_found_out_by_what_is_not_cached(start):
    m = start(Mock, "--num-gpu-blocks", "64")
    s = start(Serve, [m])
    assert s.complete(PROMPT, max_tokens=1).status == 200
    for _ in range(5):
        assert call(m.port, "POST", "/v1/completions", {"model": "mock", "prompt": PROMPT, "max_tokens": 1, **FULL}).status == 200
    wait_for("counted", lambda: s.metric("kv_events_filtered_total", reason="copy_stored") == 40)
    churn(m.port, 20, 2)
    wait_for("all removals have come", lambda: s.metric("kv_events_filtered_total", reason="copy_removed") >= 8)
    a = s.complete(PROMPT[:16 * 7 + 1], max_tokens=1)
    assert int(a.headers["x-kvroute-overlap-blocks"]) == 7 and cached(a) == 0  # false, and the answer says so
    wait_for("taken back", lambda: s.metric("kv_events_filtered_total", reason="copy_taken_back") > 0, 20)
    assert s.view()["view"] == "partial" and s.view()["trusted"], s.view()
    churn(m.port, 20, 3)
    wait_for("given up", lambda: s.overlap(PROMPT).get((1, 0), 0) == 0)
    for _ in range(5):  # it is an engine that reports now
        assert call(m.port, "POST", "/v1/completions", {"model": "mock", "prompt": PROMPT, "max_tokens": 1, **FULL}).status == 200
    churn(m.port, 20, 4)
    wait_for("given up", lambda: s.overlap(PROMPT).get((1, 0), 0) == 0)
    assert s.metric("view_evidence_total", outcome="stale") <= 1 and s.view()["trusted"]
