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


def spawn(*args, cpu=None):
    """cpu: the cores that it may use, as taskset has them."""
    pinned = ["taskset", "-c", cpu, *args] if cpu else args
    p = subprocess.Popen([str(a) for a in pinned], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    running.append(p)
    return p


def end(p):
    p.terminate()
    p.wait()
    running.remove(p)


def cpu_seconds(pid):
    """Of all threads that live."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/schedstat") as f:
            total += int(f.read().split()[0])
    return total / 1e9


def page_faults(pid):
    with open(f"/proc/{pid}/stat") as f:
        return int(f.read().rsplit(")", 1)[1].split()[7])


def rss_mb(pid):
    with open(f"/proc/{pid}/status") as f:
        return int(re.search(r"VmRSS:\s+(\d+)", f.read()).group(1)) / 1024


WRK = """local requests, n = {}, 0
init = function() for body in io.lines("%s") do requests[#requests + 1] = wrk.format("POST", nil, {["Content-Type"] = "application/json", %s}, body) end end
request = function() n = n %% #requests + 1; return requests[n] end
%s
done = function(summary, latency)
  local e = summary.errors
  io.write("KVR ", summary.requests, " ", e.connect + e.read + e.write + e.status + e.timeout, " ", latency:percentile(50), " ", latency:percentile(99), "\\n")
end
"""


class Load:
    """What wrk (Debian's) sends: these bodies in turns, by so many connections, with a pause of up to 2 * pause_ms before each."""

    def __init__(self, folder, name, bodies, connections, pause_ms=0, headers="", threads=1):
        self.path, self.connections, self.threads = os.path.join(folder, name), connections * threads, threads
        with open(self.path + ".txt", "w") as f:
            f.writelines(json.dumps(b) + "\n" for b in bodies)
        with open(self.path + ".lua", "w") as f:
            f.write(WRK % (self.path + ".txt", headers, f"delay = function() return math.random(0, {2 * pause_ms}) end" if pause_ms else ""))

    def command(self, url, seconds):
        return ["wrk", f"-t{self.threads}", f"-c{self.connections}", f"-d{seconds}s", "--timeout", "10s", "-s", self.path + ".lua", url]

    def run(self, url, seconds, cpu="0"):
        """Returns: answers, microseconds of the 50th and of the 99th percentile."""
        out = subprocess.run(["taskset", "-c", cpu, *self.command(url, seconds)], capture_output=True, text=True, check=True).stdout
        requests, errors, p50, p99 = map(float, re.search(r"KVR (\S+) (\S+) (\S+) (\S+)", out).groups())
        if errors or not requests:
            sys.exit(f"{url}: {errors:.0f} errors in {requests:.0f} requests")
        return requests, p50, p99


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
        return rss_mb(self.p.pid)


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
