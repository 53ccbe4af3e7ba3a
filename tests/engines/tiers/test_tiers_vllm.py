# SPDX-License-Identifier: Apache-2.0
"""What the index says of each tier is what vLLM's classes serve: random requests through its scheduler, block pool and offloading, with
evictions in both tiers. TIER_REQUESTS (2000) of each, by TIER_SEED (3); `python test_tiers_vllm.py record` writes short streams to
tests/vectors/tiers."""
import os
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import judge  # noqa: E402
import vllm_tiers  # noqa: E402

MODEL = os.environ.get("ENGINES_DIR", f"{judge.ROOT}/build/engines") + "/model"
REQUESTS = int(os.environ.get("TIER_REQUESTS", "2000"))
SEED = int(os.environ.get("TIER_SEED", "3"))
CASES = {
    "placeholder-1": {},
    "placeholder-4": {"chunk": 4},
    "placeholder-16": {"chunk": 16, "device_blocks": 100, "host_blocks": 320},
    "describing-1": {"self_describing_kv_events": True},
    "describing-4": {"chunk": 4, "self_describing_kv_events": True},
    "describing-16": {"chunk": 16, "device_blocks": 100, "host_blocks": 320, "self_describing_kv_events": True},
    "arc-1": {"eviction_policy": "arc"},
    "arc-4": {"chunk": 4, "eviction_policy": "arc"},
    "arc-16": {"chunk": 16, "device_blocks": 100, "host_blocks": 320, "eviction_policy": "arc"},
    "simple": {"connector": "SimpleCPUOffloadConnector"},
    "simple-lazy": {"connector": "SimpleCPUOffloadConnector", "lazy_offload": True},
}


@pytest.mark.parametrize("name", CASES)
def test_each_tier_is_what_the_classes_serve(name):
    stack = vllm_tiers.Stack(MODEL, seed=SEED, **CASES[name])
    figures = judge.judge(stack, vllm_tiers.BLOCK, REQUESTS, seed=SEED + 2)
    print(f"{name}: {figures}; {stack.loaded} loads")
    assert not stack.mistakes, stack.mistakes[:3]  # the classes were asked rightly
    assert figures.more == 0, figures.worst[:3]
    assert figures.lower > 0 and stack.loaded > 0
    if name.startswith("simple"):  # a block may go from the device before those behind it, which are then not counted until they come anew
        assert figures.less <= 0.03 * figures.asked, str(figures)
    else:
        assert figures.equal == figures.asked, str(figures)


# Small caches that turn over within some dozens of requests: device and host blocks, most blocks of a prompt, requests.
RECORDED = {"placeholder-1": (16, 64, 8, 70), "placeholder-4": (32, 128, 16, 70), "placeholder-16": (90, 320, 40, 50),
            "describing-4": (32, 128, 16, 60), "simple": (16, 64, 8, 70)}


def record():
    for name, (device, host, most, requests) in RECORDED.items():
        options = {**CASES[name], "device_blocks": device, "host_blocks": host, "requests": 2}
        lines = ["# SPDX-License-Identifier: Apache-2.0", f"# The classes of vLLM 0.32.0: {options}"]
        figures = judge.judge(vllm_tiers.Stack(MODEL, seed=9, **options), vllm_tiers.BLOCK, requests, seed=11, record=lines, most=most, tokens=90)
        assert figures.more == 0 and figures.lower >= 16, str(figures)
        with open(f"{judge.ROOT}/tests/vectors/tiers/vllm-0.32.0-{name}.txt", "w", encoding="utf-8") as f:
            f.write("\n".join(lines) + "\n")
        print(name, figures)


if __name__ == "__main__" and sys.argv[1:] == ["record"]:
    record()
