#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the router costs beside HAProxy and nginx, and what protection and watching add: every row has the same client (wrk), the same four
mock engines, the same requests. usage: bench_serve.py PATH_OF_KVROUTE [--rounds 5] [--seconds 3] [--only WORD,WORD] [--loops N]

A proxy has the last core for itself; client and engines share the others. CPU is that of the proxy's process alone, on a processor
(schedstat), so the client's own TLS is not in it. All are measured in turns, medians are printed. Without haproxy or nginx their columns are
missing, without wrk all is. RECORD=1: see figures.py. --only: of the loads small, stream, text, ids, latency, streams.
--loops: so many loops on as many cores, each with a client's thread of its own; small requests alone, and what remains of 2k ids in memory.
"""
import argparse
import os
import random
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time

from figures import Row, medians, report
from parts import KVROUTE, Load, all_ended, cpu_seconds, end, free_ports, get, page_faults, rss_mb, running, spawn, until

KEY = "sk-bench-0123456789"
CORES = os.cpu_count()
LOOPS = int(sys.argv[sys.argv.index("--loops") + 1]) if "--loops" in sys.argv else 1
OURS, THEIRS = (f"{CORES - LOOPS}-{CORES - 1}", f"0-{CORES - LOOPS - 1}") if CORES > LOOPS else (f"0-{CORES - 1}",) * 2
TOKENS, STREAMS, PACE = 200, 2000, 50
WAYS = {"round-robin": ("--router-mode", "round-robin", "--no-router-kv-events"), "predicted": ("--no-router-kv-events",), "kv": ("--tokenizer", "bytes")}
GOALS = {  # what the best proxy needs, or better
    "small, CPU us": (14, 17, 19), "stream, CPU us a piece": (1.4, 1.4, 1.4), "text of 32 KB, CPU us": (60, 90, 130), "32k ids, CPU us": (100, None, 170),
    "added at 200/s p50, us": (110, 130, 160), "added at 200/s p99, us": (250, 250, 250), "page faults of 32 KB text": (0, 0, 0), "page faults of 32k ids": (0, 0, 0)}


class Mocks:
    """Four engines, or two for each loop; their counters tell how many pieces there were."""

    def __init__(self, speedup):
        self.ports = [(free_ports(), free_ports(), free_ports()) for _ in range(max(4, 2 * LOOPS))]
        self.processes = [spawn(KVROUTE, "mock", "--port", p, "--speedup", speedup, "--num-gpu-blocks", 65536, "--max-num-seqs", 4096, "--max-num-batched-tokens",
                                65536, "--enable-prompt-tokens-details", "--events", f"tcp://127.0.0.1:{e}", "--replay", f"tcp://127.0.0.1:{r}", cpu=THEIRS)
                          for p, e, r in self.ports]
        for p, _, _ in self.ports:
            until("a mock", lambda p=p: get(p, "/health") is not None)

    def workers(self, events):
        return [a for p, e, r in self.ports for a in ("--worker", f"http://127.0.0.1:{p}" + (f",events=tcp://127.0.0.1:{e},replay=tcp://127.0.0.1:{r}" if events else ""))]

    def count(self, name):
        return sum(float(l.split()[-1]) for p, _, _ in self.ports for l in get(p, "/metrics").splitlines() if l.startswith(name))

    def end(self):
        for p in self.processes:
            end(p)


class Proxy:
    def __init__(self, name, port, tls, *args):
        self.name, self.url, self.runs = name, f"{'https' if tls else 'http'}://127.0.0.1:{port}/v1/completions", []
        self.p = spawn(*args, cpu=OURS)
        until(name, lambda: socket.create_connection(("127.0.0.1", port), 1).close() is None)


def kvroute(mocks, name, *options, events=False):
    port, admin = free_ports(), free_ports()
    proxy = Proxy(name, port, "--tls-cert" in options, KVROUTE, "serve", "--host", "127.0.0.1", "--port", port, "--admin-port", admin, "--threads", LOOPS, *mocks.workers(events), *options)
    until(name, lambda: get(admin, "/workers").replace(" ", "").count('"status":"up"') == len(mocks.ports))
    return proxy


def haproxy(mocks, folder, tls=False):
    port = free_ports()
    path = write(folder, f"haproxy{port}.cfg", f"""global
  maxconn 8000
  nbthread {LOOPS}
defaults
  mode http
  timeout connect 5s
  timeout client 600s
  timeout server 600s
  option http-no-delay
  http-reuse always
frontend f
  bind 127.0.0.1:{port}{f" ssl crt {folder}/both.pem alpn http/1.1" if tls else ""}
  default_backend b
backend b
  balance roundrobin
""" + "".join(f"  server m{p} 127.0.0.1:{p} pool-purge-delay 3s\n" for p, _, _ in mocks.ports))
    return Proxy("haproxy, TLS" if tls else "haproxy", port, tls, "haproxy", "-db", "-f", path)


def nginx(mocks, folder):
    port = free_ports()
    path = write(folder, f"nginx{port}.conf", f"""worker_processes 1; daemon off; master_process off; pid {folder}/nginx{port}.pid; error_log {folder}/nginx.log;
events {{ worker_connections 16384; }} worker_rlimit_nofile 65536;
http {{ access_log off; client_max_body_size 64m; client_body_buffer_size 1m; keepalive_requests 1000000;
upstream w {{ {"".join(f"server 127.0.0.1:{p};" for p, _, _ in mocks.ports)} keepalive 256; keepalive_timeout 4s; keepalive_requests 1000000; }}
server {{ listen 127.0.0.1:{port} backlog=4096; location / {{ proxy_pass http://w; proxy_http_version 1.1; proxy_set_header Connection "";
proxy_buffering off; proxy_read_timeout 600s; }} }} }}
""")
    return Proxy("nginx", port, False, "nginx", "-c", path, "-p", folder)


def write(folder, name, text):
    path = os.path.join(folder, name)
    with open(path, "w") as f:
        f.write(text)
    os.chmod(path, 0o600)
    return path


def peers(mocks, folder):
    return [make(mocks, folder) for make in (haproxy, nginx)[:1 if LOOPS > 1 else 2] if shutil.which(make.__name__)]  # nginx would be several processes


def protected(mocks, folder, collector):
    cert, key = f"{folder}/cert.pem", f"{folder}/key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                    "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", key, "-out", cert], check=True, capture_output=True)
    write(folder, "both.pem", open(cert).read() + open(key).read())
    keys = write(folder, "keys.yaml", f"keys:\n  - name: bench\n    key: {KEY}\n    requests_per_second: 1000000\n    burst_requests: 1000000\n")
    each = {"TLS": ("--tls-cert", cert, "--tls-key", key), "a key with limits": ("--api-key-file", keys), "access log": ("--access-log", f"{folder}/access.log"),
            "traces, 1 %": ("--otlp-endpoint", f"http://127.0.0.1:{collector}", "--trace-sample", "0.01")}
    rows = [kvroute(mocks, name, *WAYS["predicted"], *options) for name, options in {**each, "all four": sum(each.values(), ())}.items()]
    rows.append(kvroute(mocks, "round-robin's events", "--router-mode", "round-robin", events=True))
    return rows + ([haproxy(mocks, folder, tls=True)] if shutil.which("haproxy") else [])


def collect():
    """An OTLP collector that takes everything."""
    import http.server
    import threading

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *a):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


def loads(folder):
    rnd = random.Random(1)
    def ids(n, times, shared=0):
        head = [rnd.randrange(120000) for _ in range(shared)]
        return [{"model": "mock", "prompt": head + [rnd.randrange(120000) for _ in range(n - shared)], "max_tokens": 1} for _ in range(times)]

    def text(n, times, answer):
        some = ["".join(rnd.choices("abcdefghijklmnopqrstuvwxyz      ", k=n // 2)) for _ in range(4)]
        return [{"model": "mock", "prompt": rnd.choice(some) + "".join(rnd.choices("abcdefghijklmnopqrstuvwxyz      ", k=n // 2)), "max_tokens": answer} for _ in range(times)]
    key = f'["Authorization"] = "Bearer {KEY}"'
    return {"small": Load(folder, "small", ids(64, 2000), 32, headers=key, threads=LOOPS),
            "ids2k": Load(folder, "ids2k", ids(2048, 500, shared=1024), 32, threads=LOOPS),
            "stream": Load(folder, "stream", [{**b, "max_tokens": TOKENS, "stream": True} for b in ids(64, 500)], 32),
            "text": Load(folder, "text", text(32768, 100, 1), 4),
            "ids": Load(folder, "ids", ids(32768, 50, shared=16384), 4),
            "latency": Load(folder, "latency", text(500, 1000, 4), 1, pause_ms=5),
            "streams": Load(folder, "streams", [{**b, "max_tokens": 100000, "stream": True, "ignore_eos": True} for b in ids(64, 500)], STREAMS)}


def one_turn(kind, load, proxy, mocks, seconds):
    pid = proxy.p.pid
    cpu, faults, pieces = cpu_seconds(pid), page_faults(pid), mocks.count("vllm:generation_tokens_total") if kind == "stream" else 0
    requests, p50, p99 = load.run(proxy.url, seconds, THEIRS)
    us = (cpu_seconds(pid) - cpu) * 1e6
    if LOOPS > 1:
        return {f"small, {LOOPS} loops, CPU us": us / requests, f"small, {LOOPS} loops, us an answer": seconds * 1e6 / requests} if kind == "small" else {
            f"2k ids, {LOOPS} loops, RSS MB": rss_mb(pid)}
    if kind == "small":
        return {"small, CPU us": us / requests}
    if kind == "stream":
        return {"stream, CPU us a piece": us / (mocks.count("vllm:generation_tokens_total") - pieces)}
    faults = (page_faults(pid) - faults) / requests
    if kind == "text":
        return {"text of 32 KB, CPU us": us / requests, "page faults of 32 KB text": faults}
    if kind == "ids":
        return {"32k ids, CPU us": us / requests, "page faults of 32k ids": faults}
    return {"p50": p50, "p99": p99}


def idle_rss(make):
    proxy = make()
    time.sleep(1)  # what is done once
    mb = rss_mb(proxy.p.pid)
    end(proxy.p)
    return mb


def many_streams(load, mocks, folder, rounds):
    """Open streams at a fixed pace, each time through a new process."""
    samples = {}
    others = [lambda m=m: m(mocks, folder) for m in (haproxy, nginx) if shutil.which(m.__name__)]
    idle = [idle_rss(make) for make in [lambda: kvroute(mocks, "idle", *WAYS["predicted"]), *others]]
    for _ in range(rounds):
        for make, idle_mb in zip([lambda: kvroute(mocks, "kv", *WAYS["kv"], events=True), *others], idle):
            until("no streams", lambda: mocks.count("vllm:num_requests_running") == 0)
            proxy = make()
            time.sleep(1)
            before, client = rss_mb(proxy.p.pid), spawn(*load.command(proxy.url, 60), cpu=THEIRS)
            until("streams", lambda: mocks.count("vllm:num_requests_running") >= STREAMS * 0.98)
            time.sleep(2)
            cpu, pieces, start = cpu_seconds(proxy.p.pid), mocks.count("vllm:generation_tokens_total"), time.monotonic()
            time.sleep(5)
            cpu, pieces, took = cpu_seconds(proxy.p.pid) - cpu, mocks.count("vllm:generation_tokens_total") - pieces, time.monotonic() - start
            samples.setdefault(proxy.name, []).append({f"{STREAMS:,} streams, CPU us a piece": cpu * 1e6 / pieces, "pace": pieces / took / STREAMS,
                                                       "KB a stream": (rss_mb(proxy.p.pid) - before) * 1024 / STREAMS, "idle process, RSS MB": idle_mb})
            end(client)
            end(proxy.p)
    return {name: medians(s) for name, s in samples.items()}


def rows_of(seen):
    """seen: {proxy: {figure: value}}"""
    def beside(figure, others):
        return {n: seen[n][figure] for n in others if figure in seen.get(n, {})}
    rows = [Row(f"{figure}: {way}", seen[way][figure], {} if "faults" in figure else beside(figure, ("haproxy", "nginx")), goals[i])
            for figure, goals in (GOALS if LOOPS == 1 else dict.fromkeys(seen["kv"], (None,) * 3)).items() for i, way in enumerate(WAYS) if figure in seen.get(way, {})]
    for name in [n for n in seen if n not in WAYS and n not in ("haproxy", "nginx", "haproxy, TLS", "direct", "streams")]:
        other = "round-robin" if name.startswith("round-robin") else "predicted"
        tls = {"haproxy": seen["haproxy, TLS"]["small, CPU us"]} if name == "TLS" and "haproxy, TLS" in seen else {}
        rows.append(Row(f"small, CPU us, with: {name}", seen[name]["small, CPU us"], tls or {"without": seen[other]["small, CPU us"]}))
    of_streams = seen.get("streams", {})
    for figure, goal in ((f"{STREAMS:,} streams, CPU us a piece", None), ("KB a stream", 4.5), ("idle process, RSS MB", 8)):
        if of_streams:
            rows.append(Row(figure, of_streams["kv"][figure], {n: of_streams[n][figure] for n in ("haproxy", "nginx") if n in of_streams}, goal))
    return rows


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("kvroute")
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--seconds", type=int, default=3)
    ap.add_argument("--only", default="small,stream,text,ids,latency,streams" if LOOPS == 1 else "small,ids2k")
    ap.add_argument("--loops", type=int)
    a = ap.parse_args()
    only = a.only.split(",")
    if not shutil.which("wrk"):
        print("the router beside others: left out: wrk is not installed (apt-get install wrk)")
        return
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory() as folder, all_ended():
        mocks, load, samples = Mocks(1000000), loads(folder), {}
        plain = [kvroute(mocks, name, *options, events=name == "kv") for name, options in WAYS.items()] + peers(mocks, folder)
        more = protected(mocks, folder, collect()) if "small" in only and LOOPS == 1 else []
        for turn in range(a.rounds + 1):  # the first one is for warmth
            for kind in [k for k in load if k in only and k != "streams"]:
                print(f"round {turn} of {a.rounds}: {kind}", file=sys.stderr)
                for proxy in plain + (more if kind == "small" else []):
                    figures = one_turn(kind, load[kind], proxy, mocks, a.seconds if turn else 1)
                    if kind == "latency":
                        _, p50, p99 = load[kind].run(f"http://127.0.0.1:{mocks.ports[0][0]}/v1/completions", a.seconds if turn else 1, THEIRS)
                        figures = {"added at 200/s p50, us": figures["p50"] - p50, "added at 200/s p99, us": figures["p99"] - p99}
                    if turn:
                        samples.setdefault(proxy.name, []).append(figures)
        for p in list(running):
            end(p)
        seen = {name: medians(s) for name, s in samples.items()}
        if "streams" in only:
            slow = Mocks(PACE / 35)  # a mock's pieces come 35 times a second at speed 1
            seen["streams"] = many_streams(load["streams"], slow, folder, a.rounds)
        report(f"Through the router: medians of {a.rounds} rounds in turns, {a.seconds} s each", rows_of(seen))
        if "streams" in only:
            print(f"({STREAMS:,} streams had {seen['streams']['kv']['pace']:.0f} pieces a second each.)")


if __name__ == "__main__":
    main()
