# SPDX-License-Identifier: Apache-2.0
"""The engines that the routers meet: mocks, fresh for each run, or real ones, started once and emptied before each run."""
import os
import random
import string
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from ports import free_ports
from processes import Failed, ask, samples, wait_for

ENGINES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../scripts/engines")
MODEL = "mock"
WARM_PROMPTS = 40
COUNTERS = {"requests": "vllm:request_success_total", "tokens": "vllm:prompt_tokens_total", "cached": "vllm:prefix_cache_hits_total",
            "read": "vllm:external_prefix_cache_hits_total"}


class Engine:
    def __init__(self, http, events, replay):
        self.http, self.events, self.replay = http, events, replay
        self.url = f"http://127.0.0.1:{http}"


def reset(engines):
    """What made the router ready is forgotten."""
    for e in engines:
        wait_for("an engine's cache is reset", lambda: ask(e.url + "/reset_prefix_cache", {}, "POST")[0] == 200)


def counters(engines):
    texts = [ask(e.url + "/metrics")[1].decode() for e in engines]
    return {k: [samples(t, name) for t in texts] for k, name in COUNTERS.items()}


class Mocks:
    count = 4

    def __init__(self, kvroute):
        self.kvroute = kvroute

    def start(self, lab, row, router):
        """Engines that answer, ended with the lab."""
        first = free_ports(3 * self.count)
        engines = [Engine(*range(first + 3 * i, first + 3 * i + 3)) for i in range(self.count)]
        for i, e in enumerate(engines):
            lab.start(f"engine{i}", [self.kvroute, "mock", "--host", "127.0.0.1", "--port", e.http, "--model", MODEL, "--enable-prompt-tokens-details",
                                     "--num-gpu-blocks", row.blocks, "--host-kv-blocks", row.host, "--speedup-ratio", row.speedup, "--kv-events", f"tcp://127.0.0.1:{e.events}",
                                     "--kv-replay", f"tcp://127.0.0.1:{e.replay}", *router.engine_args])
        for e in engines:
            wait_for("an engine answers", lambda: ask(e.url + "/health")[0] == 200, lab.alive)
        return engines

    def stop(self):
        pass


class Vllms:
    """Real vLLM engines of `make engines`. They live as long as rows want caches of one size: starting one takes longer than a run."""

    def __init__(self, count):
        sys.path.insert(0, ENGINES)
        from engine import DIR, Engine as Vllm, ready
        if not ready():
            raise Failed("--vllm: no engine is set up ('make engines' does that; ENGINES_DIR says where)")
        if not os.path.exists(os.path.join(DIR, "model-slow/model.safetensors")):
            made = subprocess.run([os.path.join(DIR, "venv/bin/python"), os.path.join(ENGINES, "make_model.py"), DIR, "--slow"], capture_output=True, text=True,
                                  check=False)
            if made.returncode:
                raise Failed(f"--vllm: the model could not be made in {DIR}: {made.stderr[-600:].strip()}")
        self.make, self.count, self.blocks, self.running = Vllm, count, None, []

    def start(self, lab, row, router):
        if self.blocks != row.blocks or any(vllm.p.poll() is not None for vllm in self.running):
            self.stop()
            self.running = [self.make(model="model-slow", blocks=row.blocks, extra=["--served-model-name", MODEL]) for _ in range(self.count)]
            self.warm()
            self.blocks = row.blocks
        engines = [Engine(v.port, v.events, v.replay) for v in self.running]
        reset(engines)
        return engines

    def warm(self):
        """The first prompts of an engine take much longer than all that follow."""
        try:
            for vllm in self.running:
                vllm.wait()
        except RuntimeError as e:
            raise Failed(str(e)) from None
        rng = random.Random(1)
        prompts = ["".join(rng.choice(string.ascii_lowercase) for _ in range(rng.randint(100, 1400))) for _ in range(WARM_PROMPTS)]

        def one(url, prompt):
            status, answer = ask(url + "/v1/completions", {"model": MODEL, "prompt": prompt, "max_tokens": 16}, timeout=120)
            if status != 200:
                raise Failed(f"an engine answers {status} {answer[:200].decode(errors='replace')}")
        with ThreadPoolExecutor(8) as pool:  # alone and several in one pass
            list(pool.map(one, *zip(*[(vllm.url, prompt) for prompt in prompts for vllm in self.running])))

    def stop(self):
        for vllm in self.running:
            vllm.stop()
        self.running, self.blocks = [], None
