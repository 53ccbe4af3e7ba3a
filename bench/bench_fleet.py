# SPDX-License-Identifier: Apache-2.0
"""What pages about a large fleet cost the requests meanwhile: latency through a router with 10,000 workers, of which one is live.
usage: bench_fleet.py PATH_OF_KVROUTE [WORKERS [SECONDS]]

The others are registered by a file, have another model and nobody behind them, and are checked once: what is measured is what the pages hold
up, not the choice among 10,000. Each row asks for one page over and over from a process of its own while requests go one after the other
over one connection; a row before and one after without pages say what the machine itself does. It says the router's memory a worker, too.

On a machine with other work the latencies are its scheduler's. So a second router, with lock_times.c, says for how much processor time the
places that held a mutex for longest held it: while the workers were registered, and while every page was asked for ten times.
"""
import http.client
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time

from parts import KVROUTE, Router, all_ended, free_ports, get, quantile, spawn, until

WORKERS = int(sys.argv[2]) if len(sys.argv) > 2 else 10000
SECONDS = float(sys.argv[3]) if len(sys.argv) > 3 else 4
PAGES = ("/metrics", "/workers", "/loads", "/v1/models", "/busy_threshold", "/health")


def scrape(port, path, stop, pages):
    os.nice(19)  # the client's own work is not what is measured
    while not stop.is_set():
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        c.request("GET", path)
        r = c.getresponse()
        body = r.read()
        assert r.status == 200, (path, r.status)
        pages.value += 1
        time.sleep(0.02)
        c.close()
    return body


def requests(router, seconds):
    times, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        times.append(router.complete(list(range(len(times) % 50, len(times) % 50 + 64)))[0] * 1e3)
        time.sleep(0.0005)
    return times


def row(router, path):
    stop, pages = multiprocessing.Event(), multiprocessing.Value("i", 0)
    port = router.port if path and path.startswith("/v1") else router.admin
    p = multiprocessing.Process(target=scrape, args=(port, path, stop, pages)) if path else None
    if p:
        p.start()
    times = requests(router, SECONDS)
    stop.set()
    if p:
        p.join(60)
    print(f"| {path or 'none':<14} | {pages.value:>5} | {len(times):>6} | {quantile(times, 0.5):7.2f} | {quantile(times, 0.99):7.2f} | "
          f"{quantile(times, 0.999):7.2f} | {max(times):7.2f} |", flush=True)


def fleet_router(path):
    begun = time.monotonic()
    fleet = Router("fleet", [], "--discovery", "file", "--discovery-target", path, "--health-interval", "3600", "--threads", "2",
                   *os.environ.get("FLEET_ARGS", "").split())
    for _ in range(60):
        if get(fleet.admin, "/workers").count('"worker_id"') == WORKERS:
            break
        time.sleep(1)
    print(f"{WORKERS} workers registered in {time.monotonic() - begun:.1f} s")
    return fleet


def print_held(what, path):
    print(f"\nheld for longest, {what}:\n| times | us in all | us at most | by |\n|---:|---:|---:|---|")
    with open(path) as f:
        rows = sorted((line.split() for line in f), key=lambda r: -int(r[5]))
    for at, n, _, _, held, most in rows[:8]:
        place = subprocess.run(["addr2line", "-sfipe", KVROUTE, at], capture_output=True, text=True).stdout.split("inlined by) ")
        print(f"| {n} | {held} | {most} | {place[min(1, len(place) - 1)].strip().split(' (')[0]} |")


def locks(where, workers):
    library = os.path.join(where, "lock_times.so")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", os.path.join(os.path.dirname(os.path.abspath(__file__)), "lock_times.c"), "-o", library, "-ldl"], check=True)
    for what in ("registering", "pages"):
        os.environ.update(LD_PRELOAD=library, LOCK_TIMES=os.path.join(where, what))
        fleet = fleet_router(workers)
        del os.environ["LD_PRELOAD"]
        if what == "pages":
            get(fleet.admin, "/metrics")
            fleet.p.send_signal(signal.SIGUSR2)
            for page in PAGES * 10:
                get(fleet.port if page.startswith("/v1") else fleet.admin, page)
            time.sleep(1)
        fleet.p.terminate()
        fleet.p.wait()
        print_held(what, os.path.join(where, what))


def main():
    mock_port = free_ports()
    spawn(KVROUTE, "mock", "--port", mock_port, "--speedup-ratio", "1000")
    until("mock", lambda: get(mock_port, "/health") is not None)
    with tempfile.TemporaryDirectory() as where:
        path = os.path.join(where, "workers")
        with open(path, "w") as f:
            f.write(f"http://127.0.0.1:{mock_port},id=1,model=mock\n")
            for i in range(2, WORKERS + 1):
                f.write(f"http://127.{i >> 16}.{i >> 8 & 255}.{i & 255}:1,id={i},model=other,block-size=16\n")
        alone = Router("alone", [f"http://127.0.0.1:{mock_port},id=1,model=mock"], "--health-interval", "3600")
        fleet = fleet_router(path)
        until("a request", lambda: fleet.complete(list(range(64))) is not None)
        print(f"{(fleet.rss_mb() - alone.rss_mb()) * 1024 / WORKERS:.1f} KiB of RSS a worker ({fleet.rss_mb():.0f} MiB)")
        print("| page           | pages | requests | p50 ms | p99 ms | p99.9 ms | max ms |\n|---|---:|---:|---:|---:|---:|---:|")
        for page in (None, *PAGES, None):
            row(fleet, page)
        fleet.p.terminate()
        locks(where, path)


if __name__ == "__main__":
    with all_ended():
        main()
