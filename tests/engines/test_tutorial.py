# SPDX-License-Identifier: Apache-2.0
"""docs/start/vllm.md as its reader goes through it: the commands of its `sh` blocks, one block after the other in a shell of its own, and what the page says
that they print. Programs that run until they are ended stay in the background, as in terminals of their own.

Other than the reader has it: nothing is installed, the model is the tiny one, with what a small CPU needs, and ports are free ones."""
import os
import re
import sys

import pytest
from harness import BLOCK, DIR, ROOT, free_ports, wait_until

sys.path.insert(0, os.path.join(ROOT, "tests/e2e"))
from pages import Page, Reader, headers, shows  # noqa: E402  pylint: disable=wrong-import-position

BINARY = os.path.abspath(os.environ["KVROUTE"])
CPU = f"--served-model-name tiny --block-size {BLOCK} --max-model-len 2048 --max-num-seqs 16 --enforce-eager --dtype bfloat16 --num-gpu-blocks-override 2000"
MODEL = "Qwen/Qwen3-0.6B"
PORTS = ("8000", "5557", "5558", "8080", "9090")


@pytest.fixture
def reader(alone, tmp_path):
    r = Reader(tmp_path, BINARY, dict(zip(PORTS, (str(free_ports()) for _ in PORTS))), wait_until,
               lambda block: re.sub(r"^pip install .*\n", "", block, flags=re.M).replace(MODEL, f"{DIR}/model {CPU}"), f"{DIR}/venv/bin:",
               HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="nobind", OMP_NUM_THREADS="1",
               PYTHONDONTWRITEBYTECODE="")
    yield r
    r.close()


def test_every_command_of_the_page_does_what_the_page_says(reader):
    page = Page(os.path.join(ROOT, "docs/start/vllm.md"))
    engine, router, first_hit, doctor = page.commands
    found, hit, healthy = page.shown
    engine_says = reader.leave_running(engine)
    wait_until("the engine", lambda: "Application startup complete" in engine_says() or reader.background[0].poll() is not None, 200)
    assert reader.background[0].poll() is None, engine_says()[-3000:]
    router_says = reader.leave_running(router)
    wait_until("what the router has found", lambda: shows([reader.ports(line) for line in found], router_says()), 20)
    text = reader.run(first_hit).stdout
    shows(hit, text)
    first, second = headers(text)
    assert first["x-kvroute-overlap-blocks"] == "0" and second["x-kvroute-reason"] == "kv"
    assert int(second["x-kvroute-overlap-blocks"]) * BLOCK == int(re.findall(r'"cached_tokens":(\d+)', text)[-1]) > 0
    p = reader.run(doctor)
    assert p.returncode == 0
    shows([reader.ports(line) for line in healthy], p.stdout + p.stderr)
