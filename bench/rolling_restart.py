# SPDX-License-Identifier: Apache-2.0
"""Restarts everything of a small fleet, one after the other, while clients ask: each worker (drained), the router by hand-over, and two routers
behind clients that choose by /ready as a balancer does. Prints how many requests were made, and how many failed.

    python3 bench/rolling_restart.py build/release/kvroute [REQUESTS [SECONDS OF A STREAM]]
"""
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../scripts"))
from ports import free_ports  # noqa: E402

KVROUTE, REQUESTS, STREAM_S = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 10000, float(sys.argv[3]) if len(sys.argv) > 3 else 30
running, failed, lock = [], [], threading.Lock()
done = {"short": 0, "stream": 0}
ready = {}  # port of a router -> is it ready, as a balancer has seen it


def spawn(*args):
    p = subprocess.Popen([KVROUTE, *map(str, args)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    running.append(p)
    return p


def get(port, path, method="GET", body=None):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        c.request(method, path, body and json.dumps(body), {"Content-Type": "application/json"} if body else {})
        r = c.getresponse()
        return r.status, r.read()
    except OSError:
        return 0, b""
    finally:
        c.close()


def until(what, check, seconds=120):
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def watch(over):
    """A balancer's checks, twice a second."""
    while not over.wait(0.5):
        for port in list(ready):
            ready[port] = get(port, "/ready")[0] == 200


class Client(threading.Thread):
    """Keeps its connection while the router does; a connection that was kept and is closed before a byte of an answer is opened anew, as HTTP
    clients do (RFC 9112, 9.3.1: only for requests that may be repeated; here the next request is made on a fresh one)."""

    def __init__(self, over, kind):
        super().__init__(daemon=True)
        self.over, self.kind, self.n = over, kind, 0
        self.start()

    def port(self):
        self.n += 1
        up = [p for p, r in ready.items() if r]
        return up[self.n % len(up)] if up else next(iter(ready))

    def ask(self, c):
        tokens = int(STREAM_S * 1000 / 6) if self.kind == "stream" else 4
        c.request("POST", "/v1/completions", json.dumps({"prompt": [self.n % 50] * 64, "max_tokens": tokens, "stream": self.kind == "stream"}))
        r = c.getresponse()
        body = r.read()
        whole = body.endswith(b"data: [DONE]\n\n") if self.kind == "stream" else r.status == 200
        with lock:
            done[self.kind] += 1
            if not whole:
                failed.append((self.kind, r.status, body[-100:]))
        return r.getheader("Connection") != "close"

    def run(self):
        c = at = None
        while not self.over.is_set():
            if c is None or not ready.get(at):
                at = self.port()
                c = http.client.HTTPConnection("127.0.0.1", at, timeout=STREAM_S * 4 + 60)
            try:
                if not self.ask(c):
                    c.close()
                    c = None
            except (OSError, http.client.HTTPException) as e:
                with lock:
                    failed.append((self.kind, repr(e)))
                c.close()
                c = None


def mock(port, events, replay):
    return spawn("mock", "--port", port, "--kv-events", f"tcp://127.0.0.1:{events}", "--kv-replay", f"tcp://127.0.0.1:{replay}")


def router(port, admin, workers, *more):
    flags = [x for w in workers for x in ("--worker", f"http://127.0.0.1:{w[0]},events=tcp://127.0.0.1:{w[1]},replay=tcp://127.0.0.1:{w[2]}")]
    return spawn("serve", "--host", "127.0.0.1", "--port", port, "--admin-port", admin, "--health-interval", 0.5, *flags, *more)


def workers_in_turn(admins, workers, mocks):
    """Drained at every router, restarted, taken in again."""
    for i, w in enumerate(workers):
        for a in admins:
            assert get(a, f"/workers/{i + 1}", "PATCH", {"state": "draining"})[0] == 200
        until("empty", lambda: all(x["active_requests"] == 0 for a in admins for x in json.loads(get(a, "/workers")[1]) if x["worker_id"] == i + 1), STREAM_S * 4 + 60)
        mocks[i].terminate()
        mocks[i].wait()
        mocks[i] = mock(*w)
        until("up", lambda: all(x["status"] == "up" for a in admins for x in json.loads(get(a, "/workers")[1]) if x["worker_id"] == i + 1))
        for a in admins:
            assert get(a, f"/workers/{i + 1}", "PATCH", {"state": "active"})[0] == 200
        print(f"worker {i + 1} was restarted; {sum(done.values())} requests, {len(failed)} failed", flush=True)


def main():
    folder = tempfile.mkdtemp()
    workers = [(free_ports(), free_ports(), free_ports()) for _ in range(3)]
    mocks = [mock(*w) for w in workers]
    one, two = (free_ports(), free_ports()), (free_ports(), free_ports())
    hand = ("--handover", os.path.join(folder, "ports"))
    first, second = router(*one, workers, *hand), router(*two, workers)
    for p in (one[0], two[0]):
        until("ready", lambda: get(p, "/ready")[0] == 200)
        ready[p] = True
    over = threading.Event()
    threading.Thread(target=watch, args=(over,), daemon=True).start()
    clients = [Client(over, "short") for _ in range(8)] + [Client(over, "stream") for _ in range(24)]
    began = time.monotonic()
    workers_in_turn([one[1], two[1]], workers, mocks)
    for _ in range(2):  # by hand-over
        after = router(*one, workers, *hand)
        until("the end of the one before", lambda: first.poll() is not None, STREAM_S * 4 + 60)
        print(f"a router handed over, exit code {first.returncode}; {sum(done.values())} requests, {len(failed)} failed", flush=True)
        first = after
    second.send_signal(signal.SIGTERM)  # by the lame duck: balancers see it, and turn to the other one
    until("not ready", lambda: not ready[two[0]])
    until("its end", lambda: second.poll() is not None, STREAM_S * 4 + 60)
    second = router(*two, workers)
    until("ready again", lambda: ready[two[0]])
    print(f"a router was restarted behind a balancer; {sum(done.values())} requests, {len(failed)} failed", flush=True)
    until("enough requests", lambda: sum(done.values()) >= REQUESTS, 600)
    over.set()
    for c in clients:
        c.join()
    print(f"{done['short']} short requests and {done['stream']} streams of {STREAM_S:g} s in {time.monotonic() - began:.0f} s: {len(failed)} failed", *failed[:5])
    return 1 if failed else 0


try:
    code = main()
finally:
    for p in running:
        p.kill()
sys.exit(code)
