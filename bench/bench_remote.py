# SPDX-License-Identifier: Apache-2.0
"""What asking a remote index costs. usage: bench_remote.py PATH_OF_KVROUTE

    latency   small completions, one after the other on a kept connection, through a router with an index of its own and
              through two that ask for it, over HTTP and NATS, in turns; a prompt of 64, 512 and 4,096 blocks
    memory    RSS of the server and of a consumer while the index grows
"""
import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

KVROUTE = sys.argv[1]
NATS = shutil.which("nats-server") or "/usr/sbin/nats-server"
ROUNDS, PER_ROUND = 12, 60
running = []


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def spawn(*args):
    p = subprocess.Popen([str(a) for a in args], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    running.append(p)
    return p


def until(what, check):
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            if check():
                return
        except OSError:
            pass
        time.sleep(0.02)
    sys.exit(f"timed out: {what}")


def get(port, path):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    c.request("GET", path)
    body = c.getresponse().read().decode()
    c.close()
    return body


def metric(port, name):
    return sum(float(l.split()[-1]) for l in get(port, "/metrics").splitlines() if l.startswith("kvroute_" + name) and not l.startswith("#"))


class Router:
    def __init__(self, name, workers, *extra):
        self.name, self.port, self.admin = name, free_port(), free_port()
        args = [KVROUTE, "serve", "--host", "127.0.0.1", "--port", self.port, "--admin-port", self.admin]
        for w in workers:
            args += ["--worker", w]
        self.p = spawn(*args, *extra)
        until(name, lambda: get(self.port, "/ready").startswith("{") or True)
        self.conn = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        self.times = []

    def complete(self, prompt):
        t0 = time.perf_counter()
        self.conn.request("POST", "/v1/completions", json.dumps({"prompt": prompt, "max_tokens": 1}), {"Content-Type": "application/json"})
        r = self.conn.getresponse()
        r.read()
        assert r.status == 200, r.status
        return time.perf_counter() - t0, r.headers["x-kvroute-reason"]

    def rss_mb(self):
        with open(f"/proc/{self.p.pid}/status") as f:
            return int(re.search(r"VmRSS:\s+(\d+)", f.read()).group(1)) / 1024


def quantile(xs, q):
    xs = sorted(xs)
    return xs[min(len(xs) - 1, int(q * len(xs)))]


def main():
    store = tempfile.mkdtemp(prefix="kvroute-bench-")
    nats_port = free_port()
    spawn(NATS, "-a", "127.0.0.1", "-p", nats_port, "-js", "-sd", store)
    until("nats-server", lambda: socket.create_connection(("127.0.0.1", nats_port), 1).close() is None)
    nats = ["--nats-url", f"nats://127.0.0.1:{nats_port}"]
    specs, bare = [], []
    for i in range(2):
        port, events, replay = free_port(), free_port(), free_port()
        spawn(KVROUTE, "mock", "--port", port, "--kv-events", f"tcp://127.0.0.1:{events}", "--kv-replay", f"tcp://127.0.0.1:{replay}",
              "--enable-prompt-tokens-details", "--speedup-ratio", 1000000, "--num-gpu-blocks", 4000000)
        until("mock", lambda: get(port, "/health") is not None)
        bare.append(f"http://127.0.0.1:{port},id={i + 1}")
        specs.append(bare[-1] + f",events=tcp://127.0.0.1:{events},replay=tcp://127.0.0.1:{replay}")
    own = Router("own index", specs, "--serve-indexer", "--event-plane", "nats", *nats)
    until("the service", lambda: json.loads(get(own.admin, "/kv_indexer_info"))["ready"])
    over_http = Router("over HTTP", bare, "--use-remote-indexer", f"http://127.0.0.1:{own.admin}")
    over_nats = Router("over NATS", bare, "--use-remote-indexer", "nats://", *nats)
    routers = [own, over_http, over_nats]
    for r in routers[1:]:
        until(r.name, lambda: metric(r.admin, "remote_indexer_up") == 1)
    print(f"{'blocks':>7} {'':>10} {'p50 us':>8} {'p99 us':>8} {'added p50':>10}   question's own mean us")
    for blocks in (64, 512, 4096):
        prompt = [blocks * 7 + i % 50000 for i in range(blocks * 16)]
        for r in routers:
            r.times = []
            r.before = metric(r.admin, "router_overhead_remote_index_ms_sum"), metric(r.admin, "router_overhead_remote_index_ms_count")
            for _ in range(20):
                r.complete(prompt)
        for _ in range(ROUNDS):
            for r in routers:
                for _ in range(PER_ROUND):
                    seconds, reason = r.complete(prompt)
                    assert reason == "kv", (r.name, reason)
                    r.times.append(seconds * 1e6)
        base = quantile(own.times, 0.5)
        for r in routers:
            n = metric(r.admin, "router_overhead_remote_index_ms_count") - r.before[1]
            mean = (metric(r.admin, "router_overhead_remote_index_ms_sum") - r.before[0]) * 1000 / n if n else 0
            print(f"{blocks:>7} {r.name:>10} {quantile(r.times, 0.5):>8.0f} {quantile(r.times, 0.99):>8.0f} {quantile(r.times, 0.5) - base:>10.0f}   {mean:.0f}")
    print(f"\n{'prompts':>8} {'blocks held':>12} {'server MB':>10} {'consumer MB':>12}")
    for n in (0, 200, 400, 800):
        for k in range(n // 2 if n > 200 else 0, n):
            over_http.complete([k * 100000 + i for i in range(512 * 16)])
        held = sum(int(v["blocks"]) for w in json.loads(get(own.admin, "/workers")) for v in w["views"])
        print(f"{n:>8} {held:>12} {own.rss_mb():>10.1f} {over_http.rss_mb():>12.1f}")
    shutil.rmtree(store, ignore_errors=True)


try:
    main()
finally:
    for p in reversed(running):
        p.terminate()
    for p in running:
        p.wait()
