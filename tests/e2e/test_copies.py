# SPDX-License-Identifier: Apache-2.0
"""An engine that keeps a block twice stores it twice and removes it twice; one that reports a reused block again stores it once."""
import pytest

from conftest import Indexer, Mock, Publish, Serve, wait_for

T = list(range(100, 132))  # eight blocks of four


def store(e, names, parent=None):
    """As vLLM 0.32 writes it. Block n has the tokens T[4n - 4:4n]."""
    tokens = [t for n in names for t in T[4 * n - 4:4 * n]]
    e.send(e.batch({"type": "BlockStored", "block_hashes": names, "parent_block_hash": parent, "token_ids": tokens, "block_size": 4, "lora_id": None,
                    "medium": "GPU", "lora_name": None, "extra_keys": [None] * len(names), "group_idx": 0, "kv_cache_spec_kind": "full_attention"}))


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
def test_a_store_that_is_reported_again_leaves_nothing_behind(start, engine, program):
    e = engine()
    depth = program(start, e)
    store(e, [1, 2, 3])
    for n in (3, 2, 3, 1):
        store(e, list(range(1, n + 1)))  # kv_cache_report_mode full
    store(e, [4], parent=3)
    e.until("stored", lambda: depth() == 4)
    remove(e, 4, 3)
    e.until("two are left", lambda: depth() == 2)
    remove(e, 2, 1)
    e.until("nothing is left", lambda: not depth())
