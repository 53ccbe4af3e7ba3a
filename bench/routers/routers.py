# SPDX-License-Identifier: Apache-2.0
"""The routers: how each is started over four engines, and how one sees that it is ready.

Every router has its defaults, but for the policy that is named. The engines are the same for all; what they tell of themselves is what
the router's own engine tells (vLLM's, for sglang-router SGLang's), so that each finds what it looks for.
"""
import json
import os
import shlex
import time

from engines import MODEL
from processes import Failed, ask, ask_json, samples, wait_for


class Router:
    """ours: kvroute of this tree; peer: of others. Names of its processes begin with "router"."""
    peer = False
    engine_args = ()
    ports = 2  # data, and one more

    def __init__(self, name, meaning):
        self.name, self.meaning = name, meaning

    def missing(self):
        """Why it cannot run, or None."""
        return None

    def start(self, lab, ports, engines):
        raise NotImplementedError

    def urls(self, ports, engines):
        return [f"http://127.0.0.1:{ports[0]}"]

    def names(self):
        return ["router"]

    def ready(self, lab, ports, engines):
        """Waits for it, by questions."""
        raise NotImplementedError


def answers(url, prompt="hello"):
    return ask(url + "/v1/completions", {"model": MODEL, "prompt": prompt, "max_tokens": 1})[0] == 200


def answers_often(url, alive, times=8):
    """So many answers in a row: a worker that is not known yet, or known and not connected, does not hide behind the others."""
    said = 0

    def check():
        nonlocal said
        said = said + 1 if answers(url) else 0
        return said >= times
    wait_for(f"{url} answers", check, alive)


class Direct(Router):
    """No router: the client takes the engines in turns."""
    ports = 0

    def __init__(self):
        super().__init__("direct", "no router, the client takes the engines in turns")

    def start(self, lab, ports, engines):
        pass

    def urls(self, ports, engines):
        return [e.url for e in engines]

    def names(self):
        return []

    def ready(self, lab, ports, engines):
        pass


class Kvroute(Router):
    def __init__(self, name, binary, args=(), events=True, copies=1, meaning="", engine_args=()):
        super().__init__(name, meaning or ("kvroute " + " ".join(args)).strip())
        self.engine_args = engine_args
        self.binary, self.args, self.events, self.copies = binary, list(args), events, copies
        self.ports = 3 * copies  # data, admin, replica sync

    def missing(self):
        return None if os.access(self.binary, os.X_OK) else f"{self.binary} is not there"

    def names(self):
        return [f"router{i}" for i in range(self.copies)]

    def urls(self, ports, engines):
        return [f"http://127.0.0.1:{ports[3 * i]}" for i in range(self.copies)]

    def start(self, lab, ports, engines):
        workers = []
        for e in engines:
            events = f",events=tcp://127.0.0.1:{e.events},replay=tcp://127.0.0.1:{e.replay}" if self.events else ""
            workers += ["--worker", e.url + events]
        for i, name in enumerate(self.names()):
            data, admin, sync = ports[3 * i:3 * i + 3]
            argv = [self.binary, "serve", "--host", "127.0.0.1", "--port", data, "--admin-port", admin, *self.args]
            if self.copies > 1:
                peers = [f"tcp://127.0.0.1:{ports[3 * k + 2]}" for k in range(self.copies) if k != i]
                argv += ["--replica-sync-port", sync, "--replica-sync-peers", ",".join(peers)]
            lab.start(name, argv + workers)

    def ready(self, lab, ports, engines):
        for i, url in enumerate(self.urls(ports, engines)):
            wait_for(f"{self.name} is ready", lambda: ask(url + "/ready")[0] == 200, lab.alive)
            if self.copies > 1:
                metrics = f"http://127.0.0.1:{ports[3 * i + 1]}/metrics"
                wait_for("replicas hear each other", lambda: samples(ask(metrics)[1].decode(), "kvroute_replica_sync_live_peers") ==
                         self.copies - 1, lab.alive)
            answers_often(url, lab.alive)


class Wheel(Router):
    """A public router from a Python wheel. Its list of workers says whether they are healthy."""
    peer = True

    def __init__(self, name, program, policy, extra=(), engine_args=(), log_level="warn"):
        super().__init__(name, " ".join([os.path.basename(program[0]), policy, *extra]))
        self.program, self.policy, self.extra, self.engine_args, self.log_level = program, policy, list(extra), engine_args, log_level

    def missing(self):
        return None if os.access(self.program[0], os.X_OK) else f"{self.program[0]} is not there (scripts/bench_routers.sh installs it)"

    def more(self, engines):
        return []

    def start(self, lab, ports, engines):
        lab.start("router", [*self.program, "--host", "127.0.0.1", "--port", ports[0], "--prometheus-port", ports[1], "--log-level", self.log_level,
                             "--worker-startup-check-interval", "1", "--policy", self.policy, *self.extra, *self.more(engines),
                             "--worker-urls", *[e.url for e in engines]])

    def ready(self, lab, ports, engines):
        url = self.urls(ports, engines)[0]

        def all_healthy():
            workers = (ask_json(url + "/workers") or {}).get("workers", [])
            return len(workers) == len(engines) and all(w.get("is_healthy", True) for w in workers)
        wait_for(f"{self.name} has its workers", all_healthy, lab.alive)
        answers_often(url, lab.alive)


class VllmKvAware(Wheel):
    """vllm-router with the engines' events, which must be maps with a type: events as arrays are left out without a word."""

    def more(self, engines):
        args = ["--kv-event-model", MODEL]
        for e in engines:
            args += ["--kv-event-source", f"{e.url}=tcp://127.0.0.1:{e.events}"]
        return args

    def ready(self, lab, ports, engines):
        super().ready(lab, ports, engines)
        url, metrics = self.urls(ports, engines)[0], f"http://127.0.0.1:{ports[1]}/metrics"

        def hits():
            text = ask(metrics)[1].decode()
            return sum(float(l.rsplit(None, 1)[1]) for l in text.splitlines()
                       if l.startswith("vllm_router_kv_placement_lookups_total") and 'result="hit"' in l)
        # Each engine computes something that the router has not sent: does it know of it?
        for n, e in enumerate(engines):
            turn = 0

            def heard():
                nonlocal turn
                turn += 1
                prompt = f"{n} {turn} " + "what an engine holds is known by its events " * 2
                before = hits()
                return answers(e.url, prompt) and _soon(lambda: answers(url, prompt) and hits() > before)
            wait_for(f"{self.name} hears engine {n + 1}", heard, lab.alive)


def _soon(check, seconds=0.5):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if check():
            return True
        time.sleep(0.02)
    return False


def known(kvroute, wheels):
    """All routers by name, in the order in which they are printed."""
    at = lambda name, program: os.path.join(wheels, name, "bin", program)
    vllm = ([at("vllm-router", "vllm-router")], ("--enable-scale-out",))
    k = lambda name, *args, **kw: Kvroute(name, kvroute, args, **kw)
    routers = [
        k("kvroute", meaning="kvroute, as it is by default"),
        k("kvroute-linear", "--cost", "linear"),
        k("kvroute-no-tiers", engine_args=("--kv-offload-events", "none"), meaning="kvroute, over engines that tell nothing of their hosts' memory"),
        k("kvroute-2", copies=2, meaning="two kvroutes that tell each other their bookings, in turns"),
        k("kvroute-4", copies=4, meaning="four of them"),
        Wheel("sglang-router", [at("sglang-router", "sglang-router"), "launch"], "cache_aware", engine_args=("--sglang-info",)),
        Wheel("smg", [at("smg", "smg"), "launch"], "cache_aware"),
        Wheel("smg-unguarded", [at("smg", "smg"), "launch"], "cache_aware", ["--disable-worker-overload-protection"]),
        Wheel("vllm-router", vllm[0], "cache_aware", engine_args=vllm[1], log_level="warning"),
        VllmKvAware("vllm-router-kv", vllm[0], "kv_aware", engine_args=vllm[1], log_level="warning"),
        k("round-robin", "--router-mode", "round-robin", events=False),
        Direct(),
    ]
    return {r.name: r for r in routers}


def of_other_args(kvroute, text):
    return Kvroute("kvroute " + text, kvroute, shlex.split(text))


def of_other_binary(text):
    """NAME=BINARY[,ARGS]"""
    name, eq, rest = text.partition("=")
    binary, _, args = rest.partition(",")
    if not eq or not name or not binary:
        raise Failed(f"--also: bad value '{text}'; allowed: NAME=BINARY[,ARGS]")
    return Kvroute(name, os.path.abspath(binary), shlex.split(args))
