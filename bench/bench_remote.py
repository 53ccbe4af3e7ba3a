# SPDX-License-Identifier: Apache-2.0
"""What asking a remote index costs. usage: bench_remote.py PATH_OF_KVROUTE

    latency   small completions, one after the other on a kept connection, through a router with an index of its own and
              through two that ask for it, over HTTP and NATS, in turns; a prompt of 64, 512 and 4,096 blocks
    memory    RSS of the server and of a consumer while the index grows
"""
import json
import shutil
import socket
import tempfile

from parts import KVROUTE, Router, all_ended, free_ports, get, metric, quantile, spawn, until

NATS = shutil.which("nats-server") or "/usr/sbin/nats-server"
ROUNDS, PER_ROUND = 12, 60


def main():
    store = tempfile.mkdtemp(prefix="kvroute-bench-")
    nats_port = free_ports()
    spawn(NATS, "-a", "127.0.0.1", "-p", nats_port, "-js", "-sd", store)
    until("nats-server", lambda: socket.create_connection(("127.0.0.1", nats_port), 1).close() is None)
    nats = ["--nats-url", f"nats://127.0.0.1:{nats_port}"]
    specs, bare = [], []
    for i in range(2):
        port, events, replay = free_ports(), free_ports(), free_ports()
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


with all_ended():
    main()
