# SPDX-License-Identifier: Apache-2.0
"""Starts and ends real vLLM engines of the set-up that scripts/engines/setup.sh makes.

    with Engine(blocks=120, extra=["--max-num-seqs", "4"]) as e: e.wait(); e.url, e.spec() ...

Used by tests/engines, the recorder of vectors and the demo. As a program it starts engines and prints what a router is to be told of
them, a line each, until it is interrupted or its standard input ends:

    engine.py [--count N] [--blocks N] [--lora]

Each engine is a process group of its own. It ends with whoever started it, also when that is killed: the kernel tells it so."""
import argparse
import atexit
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from ports import free_ports  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DIR = os.environ.get("ENGINES_DIR") or os.path.join(ROOT, "build/engines")
BLOCK = 32  # the CPU platform takes multiples of 32
ADAPTER = "ad1"
START_SECONDS = float(os.environ.get("KVROUTE_ENGINE_START", "300"))  # a quarter of a minute on an idle machine
PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None)
_running = []


def _die_with_parent():
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class Engine:
    """One vLLM. The arguments are what tests want to differ in; `extra` are further flags as vLLM takes them.

    block, blocks   tokens of a block, blocks of the cache (None: as vLLM chooses)
    details         usage tells cached_tokens
    lora            the adapter `ad1` beside the model `tiny`
    ranks           data-parallel ranks
    hybrid          the model with sliding windows
    model           the directory of the model in DIR, when it is another one
    api_key         what it wants as a bearer token
    events          KV events and replay; kv: further members of --kv-events-config
    transfer        what goes to --kv-transfer-config: how prompts get to another engine, and from one"""

    def __init__(self, block=BLOCK, blocks=None, details=True, lora=False, ranks=1, hybrid=False, model=None, api_key=None, events=True, kv=None, transfer=None,
                 extra=(), env=None):
        self.block, self.blocks, self.ranks, self.api_key, self.with_events = block, blocks, ranks, api_key, events
        self.port, self.events, self.replay, self.side = free_ports(), free_ports(ranks), free_ports(ranks), free_ports(ranks)
        self.url = f"http://127.0.0.1:{self.port}"
        args = ["serve", os.path.join(DIR, model or ("model-hybrid" if hybrid else "model")), "--served-model-name", "tiny", "--host", "127.0.0.1",
                "--port", self.port, "--max-model-len", 2048, "--max-num-batched-tokens", 2048, "--max-num-seqs", 16, "--block-size", block,
                "--enable-prefix-caching", "--enforce-eager", "--dtype", "bfloat16"]
        if details:
            args += ["--enable-prompt-tokens-details"]
        if blocks:
            args += ["--num-gpu-blocks-override", blocks]
        if lora:
            args += ["--enable-lora", "--max-lora-rank", 8, "--lora-modules", f"{ADAPTER}={os.path.join(DIR, 'model-lora')}"]
        if ranks > 1:
            args += ["--data-parallel-size", ranks]
        if api_key:
            args += ["--api-key", api_key]
        if transfer:
            args += ["--kv-transfer-config", json.dumps(transfer)]
        if events:
            args += ["--kv-events-config", json.dumps({
                "enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://*:{self.events}",
                "replay_endpoint": f"tcp://*:{self.replay}", **(kv or {})})]
        self.args = [os.path.join(DIR, "venv/bin/vllm"), *map(str, args), *map(str, extra)]
        self.env = {**os.environ, "PATH": os.path.join(DIR, "venv/bin") + ":" + os.environ["PATH"], "VLLM_CPU_KVCACHE_SPACE": "1",
                    "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
                    "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "PYTHONHASHSEED": "0", "VLLM_SERVER_DEV_MODE": "1",
                    "VLLM_NIXL_SIDE_CHANNEL_PORT": str(self.side),
                    "PYTHONDONTWRITEBYTECODE": "",  # an engine is thousands of modules: they are compiled once, not at every start
                    **({} if os.environ.get("KVROUTE_ENGINE_SPAWN") == "1" else {"PYTHONPATH": os.path.join(ROOT, "scripts/engines/start")}),
                    **(env or {})}
        self.p = self.log = None
        self.start()

    def start(self):
        """Starts it, or starts it again at the same ports."""
        self.log = tempfile.TemporaryFile("w+")
        self.p = subprocess.Popen(self.args, stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT, env=self.env, cwd=DIR,
                                  start_new_session=True, preexec_fn=_die_with_parent)
        _running.append(self)

    def wait(self, timeout=START_SECONDS):
        """Returns itself when it answers /health; raises with the end of its log when it has ended or takes too long."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self.p.poll() is not None:
                first = [line for line in self.text().splitlines() if "Error" in line][:5]  # what follows is mostly what follows from it
                raise RuntimeError(f"the engine ended with {self.p.returncode}:\n" + "\n".join(first) + f"\n...\n{self.text()[-2000:]}")
            try:
                with urllib.request.urlopen(self.url + "/health", timeout=5) as r:
                    if r.status == 200:
                        return self
            except (urllib.error.URLError, OSError):
                pass
            time.sleep(0.2)  # between two looks
        raise RuntimeError(f"the engine was not up after {timeout} s:\n{self.text()[-3000:]}")

    def text(self):
        return os.pread(self.log.fileno(), os.fstat(self.log.fileno()).st_size, 0).decode(errors="replace")  # the engine writes at the same place

    def spec(self, extra=""):
        """What `kvroute serve --worker` is told of it."""
        s = f"{self.url},block-size={self.block}"
        if self.with_events:
            s += f",events=tcp://127.0.0.1:{self.events},replay=tcp://127.0.0.1:{self.replay}"
        if self.ranks > 1:
            s += f",dp-size={self.ranks}"
        return s + extra

    def signal_group(self, number):
        try:
            os.killpg(self.p.pid, number)
            return True
        except ProcessLookupError:
            return False

    def stop(self, kill=False):
        """Ends the whole group; what has not ended after some seconds is killed."""
        if self not in _running:
            return
        _running.remove(self)
        self.signal_group(signal.SIGKILL if kill else signal.SIGTERM)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and self.signal_group(0):
            self.p.poll()
            time.sleep(0.05)  # between two looks
        self.signal_group(signal.SIGKILL)
        self.p.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def stop_all():
    for e in list(_running):
        e.signal_group(signal.SIGTERM)  # all at once, then one after the other
    for e in list(_running):
        e.stop()


atexit.register(stop_all)


def ready():
    """Whether the set-up is complete."""
    return subprocess.run([os.path.join(ROOT, "scripts/engines/setup.sh"), "--check"], check=False).returncode == 0


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--count", type=int, default=2)
    p.add_argument("--blocks", type=int)
    p.add_argument("--lora", action="store_true")
    a = p.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    engines = [Engine(blocks=a.blocks, lora=a.lora) for _ in range(a.count)]
    for e in engines:
        print(e.wait().spec(), flush=True)
    try:
        sys.stdin.read()
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
