# SPDX-License-Identifier: Apache-2.0
"""What the index says of a model with several cache groups is what vLLM's classes reuse: random requests through its scheduler and block
pool, with evictions. GROUP_REQUESTS (2000) of each, by TIER_SEED (3); `python test_groups_vllm.py record` writes short streams to
tests/vectors/tiers."""
import os
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import judge  # noqa: E402
import vllm_groups  # noqa: E402

MODEL = os.environ.get("ENGINES_DIR", f"{judge.ROOT}/build/engines") + "/model"
REQUESTS = int(os.environ.get("GROUP_REQUESTS", "2000"))
SEED = int(os.environ.get("TIER_SEED", "3"))
EXACT = {
    "window": (["full", "window"], {}),
    "mamba-all": (["full", "mamba"], {}),
    "mamba-align": (["full", "mamba"], {"mode": "align"}),
    "mamba-align-chunks": (["full", "mamba"], {"mode": "align", "batch_tokens": 96}),
    "mamba-retained": (["full", "mamba"], {"mode": "align", "retention": 64}),
    "mamba-last": (["full", "mamba"], {"mode": "all", "retention": 0}),
    "three-all": (["full", "window", "mamba"], {"blocks": 300}),
    "three-align": (["full", "window", "mamba"], {"blocks": 300, "mode": "align"}),
}
BOUND = {  # sub-block hits, a chunk whose size no event tells, and requests that ask for reports of what they reuse
    "mamba-fine": (["full", "mamba"], {"mode": "align", "block": 64, "unit": 16, "blocks": 100}),
    "mamba-wide-fine": (["full", "mamba"], {"mode": "align", "mamba_block": 64}),
    "chunked": (["full", "chunked"], {}),
    "mamba-reports": (["full", "mamba"], {"mode": "align", "reports": 0.1}),
}


def run(name, seed=SEED, requests=REQUESTS, **more):
    kinds, options = {**EXACT, **BOUND}[name]
    stack = vllm_groups.Groups(MODEL, kinds, seed=seed, **{**options, **more.pop("options", {})})
    figures = judge.judge(stack, stack.block, requests, seed=seed + 2, **{"most": 600 // stack.block, **more})
    print(f"{name}: {figures}; {stack.reused} blocks reused, {stack.passes} passes")
    assert figures.more == 0, figures.worst[:3]
    assert stack.reused > figures.asked / 8
    return figures


@pytest.mark.parametrize("name", EXACT)
def test_what_all_groups_can_serve_is_what_the_classes_reuse(name):
    figures = run(name)
    assert figures.equal == figures.asked, str(figures)


@pytest.mark.parametrize("name", BOUND)
def test_never_more_than_the_classes_reuse(name):
    run(name)


def record():
    for name, options in {"mamba-align": {"blocks": 60}, "three-all": {"blocks": 90, "window": 10}}.items():
        lines = ["# SPDX-License-Identifier: Apache-2.0", f"# The classes of vLLM 0.32.0, cache groups: {name}, {options}"]
        run(name, 9, 40, record=lines, most=8, tokens=90, options={**options, "block": 4, "requests": 2})
        with open(f"{judge.ROOT}/tests/vectors/tiers/vllm-0.32.0-{name}.txt", "w", encoding="utf-8") as f:
            f.write("\n".join(lines) + "\n")


if __name__ == "__main__" and sys.argv[1:] == ["record"]:
    record()
