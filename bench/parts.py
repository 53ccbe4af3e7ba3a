# SPDX-License-Identifier: Apache-2.0
"""What benchmarks in Python share: processes on free ports of loopback, what they tell of themselves, quantiles. The program is argv[1]."""
import contextlib
import http.client
import json
import os
import re
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../scripts"))
from ports import free_ports  # noqa: E402

os.environ.setdefault("KVROUTE_LAME_DUCK_TIME", "0")  # no balancer watches
KVROUTE = sys.argv[1] if len(sys.argv) > 1 else "build/release/kvroute"
running = []


def spawn(*args):
    p = subprocess.Popen([str(a) for a in args], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    running.append(p)
    return p


def until(what, check):
    deadline = time.monotonic() + 60
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
        self.name, self.port, self.admin = name, free_ports(), free_ports()
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


@contextlib.contextmanager
def all_ended():
    """What was spawned ends with it."""
    try:
        yield
    finally:
        for p in reversed(running):
            p.terminate()
        for p in running:
            p.wait()
