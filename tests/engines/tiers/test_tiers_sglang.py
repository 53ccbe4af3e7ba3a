# SPDX-License-Identifier: Apache-2.0
"""What the index says of each tier is what SGLang's classes serve: random requests through its radix cache, of the device alone and with a
host behind it, in all its write policies, over storage and without, with evictions in both tiers. TIER_REQUESTS (2000) of each;
`python test_tiers_sglang.py record` writes short streams to tests/vectors/tiers."""
import logging
import os
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import judge  # noqa: E402
import sglang_tiers  # noqa: E402

logging.getLogger("sglang").setLevel(logging.ERROR)  # that a full host drops is what is wanted here
REQUESTS = int(os.environ.get("TIER_REQUESTS", "2000"))
SIZES = {1: (300, 800, 200), 4: (120, 320, 80), 16: (64, 160, 40), 64: (64, 160, 40)}  # pages of device, host and a long prompt
POLICIES = ("write_through", "write_through_selective", "write_back")
CASES = {f"{core}-{page}": {"page": page, "core": core} for page in SIZES for core in ("radix", "rust")}
CASES |= {f"{policy}-{page}": {"page": page, "policy": policy} for page in SIZES for policy in POLICIES}
CASES |= {f"{policy}-{page}-storage": {"page": page, "policy": policy, "storage_pages": 1000} for page in (1, 16) for policy in POLICIES}
CASES |= {f"{policy}-16-small": {"page": 16, "policy": policy, "host_pages": 24, "eviction": "slru"} for policy in POLICIES}
CASES |= {f"{policy}-16-python": {"page": 16, "policy": policy, "core": "python", "storage_pages": 1000} for policy in POLICIES}


@pytest.fixture(scope="module", autouse=True)
def classes():
    yield
    sglang_tiers.forget()


def judged(options, requests, seed):
    device, host, most = SIZES[options["page"]]
    stack = sglang_tiers.Stack(seed=seed, **{"device_pages": device, "host_pages": host, **options})
    return stack, judge.judge(stack, stack.page, requests, seed=seed + 2, most=most)


@pytest.mark.parametrize("name", CASES)
def test_each_tier_is_what_the_classes_serve(name):
    stack, figures = judged(CASES[name], REQUESTS, seed=3)
    print(f"{name}: {figures}; {stack.loaded} loads, {stack.prefetched} from storage, {stack.flushed} flushes")
    assert not stack.mistakes, stack.mistakes[:3]  # the classes were asked rightly
    assert stack.refused <= max(REQUESTS // 50, 2)  # and had the room that they said they had; a full host can keep the device from giving up
    assert figures.equal == figures.asked, (str(figures), figures.worst[:3])
    if REQUESTS >= 2000:  # all of it has been met
        assert stack.flushed > 0
        assert not stack.policy or (figures.lower > 0 and stack.loaded > 0)
        assert not stack.storage or stack.prefetched > 0


@pytest.mark.parametrize("policy", POLICIES)
def test_both_cores_tell_the_same(policy):
    told = {}
    for core in ("rust", "python"):
        stack, told[core] = sglang_tiers.Stack(page=4, policy=policy, core=core, device_pages=80, storage_pages=500, seed=5), []
        rng = judge.random.Random(7)
        prompts = judge.Prompts(rng, 4, 40, 1 << 16)
        for _ in range(300):
            stack.add(prompts.next(), rng.randrange(1, 6))
            told[core] += stack.step() + stack.step()
    assert len(told["rust"]) > 100 and told["rust"] == told["python"]


@pytest.mark.parametrize("policy", POLICIES)
def test_an_engine_that_has_just_begun_is_known_too(policy):
    """Before several prompts have gone to the host: nothing has to be learnt of it."""
    for seed in range(20):
        _, figures = judged({"page": 16, "policy": policy, "device_pages": 48, "requests": 1, "flush": 0}, 25, seed)
        assert figures.equal == figures.asked, (seed, str(figures), figures.worst[:3])


# Small caches that turn over within some dozens of requests: device and host pages, most pages of a prompt, requests.
RECORDED = {"write_through-4": (20, 36, 8, 36), "write_through_selective-4": (20, 40, 8, 44), "write_back-4": (20, 40, 8, 36)}


def record():
    for name, (device, host, most, requests) in RECORDED.items():
        options = {**CASES[name], "device_pages": device, "host_pages": host, "requests": 2, "flush": 0.02}
        for seed in range(9, 200):  # the first with something of all there is
            lines = ["# SPDX-License-Identifier: Apache-2.0", f"# The classes of SGLang 0.5.23: {options}"]
            stack = sglang_tiers.Stack(seed=seed, **options)
            figures = judge.judge(stack, stack.page, requests, seed=seed + 2, record=lines, most=most, tokens=90)
            text = "\n".join(lines) + "\n"
            assert figures.equal == figures.asked, (seed, str(figures))
            if figures.lower >= 12 and stack.flushed > 0 and stack.loaded > 2 and stack.declined > 1 and len(text) < 40000:
                break
        else:
            raise AssertionError(name)
        with open(f"{judge.ROOT}/tests/vectors/tiers/sglang-0.5.23-{name}.txt", "w", encoding="utf-8") as f:
            f.write(text)
        print(name, seed, len(text), figures)


if __name__ == "__main__" and sys.argv[1:] == ["record"]:
    record()
