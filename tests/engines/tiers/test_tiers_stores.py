# SPDX-License-Identifier: Apache-2.0
"""What the index says beside a store that tells little: vLLM's MooncakeStoreConnector, and LMCache under vLLM. Both tell what is stored and
never what goes, so more than they serve is said of what has gone, and of nothing else: with removals told in their place, never.
TIER_REQUESTS (2000) of each; `python test_tiers_stores.py record [NAME ...]` writes short streams to tests/vectors/tiers."""
import os
import random
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import judge  # noqa: E402

ENGINES = os.environ.get("ENGINES_DIR", f"{judge.ROOT}/build/engines")
MODEL = ENGINES + "/model"
REQUESTS = int(os.environ.get("TIER_REQUESTS", "2000"))


def mooncake(store=None, **options):
    import mooncake_tiers
    store = mooncake_tiers.Store(rng=random.Random(5), **(store or {}))
    return mooncake_tiers.Stack(MODEL, store, seed=3, **options)


@pytest.fixture
def lmcache():
    if not os.path.exists(f"{ENGINES}/publishers/lmcache-0.5.6/ready"):
        pytest.skip("LMCache is not set up: 'make engines' fetches it")
    import lmcache_tiers
    yield lambda **options: lmcache_tiers.Stack(MODEL, seed=3, **options)
    lmcache_tiers.Stack.close()


def tell_removals(stack, ours, _rng):
    gone = stack.take_gone()
    if gone:
        ours.event(gone)


MOONCAKE = {
    "plain": {},
    "answers": {"save_decode_cache": True},
    "asks-later": {"lookup_async": True},
    "block-64": {"block": 64},
    "passes-of-100": {"batch_tokens": 100},
    "evicting": {"store": {"most": 400}},
    "failing": {"store": {"fails": 4}},
}


@pytest.mark.parametrize("name", MOONCAKE)
def test_mooncake_is_what_was_stored(name):
    stack = mooncake(**MOONCAKE[name])
    figures = judge.judge(stack, stack.block, REQUESTS, seed=5, most=2000 // stack.block // 3 if stack.block > 16 else 40)
    print(f"{name}: {figures}; {stack.loaded} loads")
    assert not stack.mistakes, stack.mistakes[:3]
    assert not figures.worst, figures.worst[:3]  # more only where the store has let go of something, or had not taken it
    assert figures.less == 0 and figures.lower > 0 and stack.loaded > 0, str(figures)
    assert name in ("evicting", "failing") or figures.more == 0, str(figures)
    assert name != "failing" or figures.more <= 0.005 * figures.asked, str(figures)  # healed by the next request that has the block


def test_mooncake_with_its_removals_told_is_what_it_serves():
    stack = mooncake(store={"most": 400})
    figures = judge.judge(stack, 16, REQUESTS, seed=5, before=tell_removals)
    print(figures)
    assert figures.equal == figures.asked and figures.lower > 0, str(figures)


def test_what_another_engine_stores_is_not_told():
    """Two engines above one store: each tells what it stores itself; without a pool declared the rest is not seen, and nothing is too much."""
    stack = mooncake(device_blocks=48)
    other = mooncake_of(stack.store)
    seen = []

    def other_goes_on(_stack, _ours, rng):
        if seen and rng.random() < 0.3:
            other.add(rng.choice(seen), rng.randrange(1, 6))
        other.step()

    asked = stack.ask
    stack.ask = lambda tokens: (seen.append(tokens), asked(tokens))[1]
    figures = judge.judge(stack, 16, REQUESTS, seed=5, before=other_goes_on)
    print(figures)
    assert figures.more == 0 and figures.lower_seen > 0, str(figures)


def mooncake_of(store):
    import mooncake_tiers
    return mooncake_tiers.Stack(MODEL, store, seed=8)


LMCACHE = {
    "chunk-64": {"chunk": 64, "room": 5000},
    "chunk-256": {"chunk": 256, "room": 2000, "device_blocks": 160},
    "passes-of-100": {"chunk": 64, "room": 5000, "batch_tokens": 100},
    "tails": {"chunk": 64, "room": 5000, "save_unfull_chunk": True},
    "other-hash": {"chunk": 64, "room": 5000, "pre_caching_hash_algorithm": "sha256_cbor"},  # its names do not say what is before them
    "evicting": {"chunk": 64, "room": 100},
    "evicting-256": {"chunk": 256, "room": 40, "device_blocks": 160},
}


@pytest.mark.parametrize("name", LMCACHE)
def test_lmcache_is_at_most_what_was_stored(lmcache, name):
    stack = lmcache(**LMCACHE[name])
    figures = judge.judge(stack, stack.block, REQUESTS, seed=5, most=100 if "256" in name else 40)
    print(f"{name}: {figures}; {stack.loaded} loads")
    assert not stack.mistakes, stack.mistakes[:3]
    assert not figures.worst, figures.worst[:3]
    assert figures.lower_seen >= (0.3 if name == "other-hash" else 0.95) * figures.lower and stack.loaded > 0, str(figures)
    assert name.startswith("evicting") or figures.more == 0, str(figures)


@pytest.mark.parametrize("name", ["evicting", "evicting-256"])
def test_lmcache_with_its_removals_told_is_never_more(lmcache, name):
    stack = lmcache(**LMCACHE[name])
    figures = judge.judge(stack, stack.block, REQUESTS, seed=5, most=100 if "256" in name else 40, before=tell_removals)
    print(f"{name}: {figures}")
    assert figures.more == 0 and figures.lower_seen >= 0.95 * figures.lower, str(figures)


def record(only):
    import lmcache_tiers
    import mooncake_tiers
    small = {"device_blocks": 20, "requests": 2}
    stacks = {
        "vllm-0.32.0-mooncake-store": lambda: mooncake_tiers.Stack(MODEL, seed=9, **small),
        "lmcache-0.5.6-chunk-64": lambda: lmcache_tiers.Stack(MODEL, seed=9, chunk=64, room=1000, **small),
        "lmcache-0.5.6-passes": lambda: lmcache_tiers.Stack(MODEL, seed=9, chunk=64, room=1000, batch_tokens=100, **small),
        "lmcache-0.5.6-tails": lambda: lmcache_tiers.Stack(MODEL, seed=9, chunk=64, room=1000, save_unfull_chunk=True, **small),
    }
    for name, make in stacks.items():
        if only and name not in only:
            continue
        lines = ["# SPDX-License-Identifier: Apache-2.0", f"# Classes of vLLM 0.32.0 and its store: {name}"]
        figures = judge.judge(make(), 16, 40 if "passes" in name else 16, seed=11, record=lines, most=10, tokens=90)
        assert figures.more == 0 and figures.lower_seen >= 8, str(figures)
        with open(f"{judge.ROOT}/tests/vectors/tiers/{name}.txt", "w", encoding="utf-8") as f:
            f.write("\n".join(lines) + "\n")
        print(name, figures)
    lmcache_tiers.Stack.close()


if __name__ == "__main__" and sys.argv[1:2] == ["record"]:
    record(sys.argv[2:])
