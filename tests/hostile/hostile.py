# SPDX-License-Identifier: Apache-2.0
"""A mixed hostile load against one program, beside a client that behaves well and whose requests must all succeed.

    KVROUTE=build/release/kvroute /usr/bin/python3 tests/hostile/hostile.py --program serve --limit memory --seconds 600

--tls: both ports of serve, and its well-behaved workers, speak TLS, and so do most attacks; some break sessions.
--keys: both ports of serve need keys; attackers have none, a false one, or one with limits, and that one of them gets through is an error, too.
--limit memory: 512 MiB of address space; files: 64 descriptors; none (sanitizers need their address space). Every few seconds a line: what the
well-behaved client got, the resident memory, how many attacks were made. The end is an error when a good request failed, when memory grew
without bound, when the program died or did not stop, or when a sanitizer spoke. Everything is on loopback and ends with the run."""
import argparse
import http.client
import json
import os
import pathlib
import random
import ssl
import statistics
import sys
import tempfile
import threading
import time

sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)), os.path.join(os.path.dirname(os.path.abspath(__file__)), "../e2e")]
import attacks  # noqa: E402
import zmq  # noqa: E402
from conftest import Indexer, Mock, Select, Serve, call, free_ports, wait_for  # noqa: E402
from tls_parts import Authority, context  # noqa: E402

MIB = 1 << 20
LIMITS = {"none": [], "memory": [("as", 512 * MIB)], "files": [("nofile", 64)]}
# What fits into 512 MiB of address space, together.
SMALL = {"serve": ["--max-body-size", "8MiB", "--max-bodies-bytes", "48MiB"], "indexer": ["--max-body-size", "8MiB", "--max-bodies-bytes", "48MiB"],
         "select": ["--max-body-size", "8MiB", "--max-bodies-bytes", "48MiB"]}
GOOD_KEY, EVIL_KEY, ADMIN_KEY = "a-key-that-behaves-well", "a-key-of-an-attacker", "a-key-of-an-operator"
KEYS = f"""keys:
- {{name: good, key: {GOOD_KEY}}}
- {{name: evil, key: {EVIL_KEY}, max_concurrent: 24, max_body_size: 4MiB, requests_per_second: 500, models: [evil], priority_max: 0}}
- {{name: late, key: a-key-of-yesterday, expires: 2020-01-31}}
"""
PATIENCE_S = 60  # of the client that behaves well


class Good:
    """The client that behaves well: it asks, reads what comes, and remembers what was wrong with it."""

    def __init__(self, ask):
        self.ask, self.n, self.bad, self.seconds, self.stop = ask, 0, [], [], threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        while not self.stop.is_set():
            t0 = time.monotonic()
            try:
                wrong = self.ask(self.n)
            except (OSError, http.client.HTTPException, ValueError) as e:
                wrong = repr(e)
            self.seconds.append(time.monotonic() - t0)
            self.n += 1
            if wrong:
                self.bad.append(f"request {self.n}: {wrong}")
            self.stop.wait(0.02)


class Stage:
    """A program under attack: how it is started, what the good client asks of it, where the attacks go."""

    def __init__(self, limits, rng):
        self.limits, self.rng, self.processes, self.ctx, self.stop = limits, rng, [], zmq.Context(), threading.Event()

    def start(self, cls, *args, **kw):
        p = cls(*args, **kw)
        self.processes.append(p)
        return p

    def end(self):
        self.stop.set()
        errors = []
        for p in reversed(self.processes):
            try:
                p.stop(60)
            except AssertionError as e:
                errors.append(str(e)[-6000:])
        return errors


class TooSlow(ConnectionError):
    """Cut off before an answer began."""


class ServeStage(Stage):
    posts, gets = ["/v1/completions", "/v1/chat/completions", "/v1/embeddings"], ["/v1/models", "/health", "/ready"]

    def __init__(self, limits, rng, tls=False, keys=False):
        super().__init__(limits, rng)
        self.tls, own, admin, trust = None, [], [], []
        self.folder = tempfile.TemporaryDirectory()
        folder = pathlib.Path(self.folder.name)
        self.headers, guarded = {"Content-Type": "application/json"}, []
        if keys:
            (folder / "keys.yaml").write_text(KEYS)
            (folder / "admin").write_text(ADMIN_KEY + "\n")
            guarded = ["--api-key-file", folder / "keys.yaml", "--admin-key-file", folder / "admin"]
            self.headers["Authorization"] = f"Bearer {GOOD_KEY}"
        if tls:
            ca = Authority(folder, "hostile")
            cert, key = ca.sign("router")
            self.tls = context(ca.file)
            own, trust = ["--tls-cert", cert, "--tls-key", key], ["--tls-ca", ca.file]
            admin = ["--admin-tls-cert", cert, "--admin-tls-key", key]
        mocks = [self.start(Mock, "--model", "good", *own, tls=self.tls) for _ in range(2)]
        events = free_ports()
        self.evil = [attacks.EvilWorker(rng) for _ in range(2)]
        self.events = attacks.EvilEvents(self.ctx, rng, events, self.stop)
        workers = [m.spec(",model=good") for m in mocks]
        workers += [f"http://127.0.0.1:{w.port},model=evil" + (f",events=tcp://127.0.0.1:{events}" if i == 0 else "") for i, w in enumerate(self.evil)]
        self.p = self.start(Serve, workers, "--first-token-timeout", 5, "--stall-timeout", 5, "--client-write-timeout", 5, "--breaker-failures", 1000000,
                            *SMALL["serve"], *own, *admin, *trust, *guarded, limits=limits, tls=self.tls, admin_tls=self.tls)
        self.targets = [attacks.Target([self.p.port], self.posts, self.gets, rng, key=EVIL_KEY if keys else None),
                        attacks.Target([self.p.admin], ["/select", "/overlap_scores", "/query", "/workers/7"], ["/metrics", "/workers", "/dump", "/loads"], rng,
                                       key=ADMIN_KEY if keys else None)]
        for t in self.targets if tls else []:
            t.tls = ssl._create_unverified_context()

    def good(self, n):
        """Who needs more than a second for a handshake may have to make room for others, and comes again."""
        t0 = time.monotonic()
        try:
            return self.ask(n)
        except TooSlow:
            if time.monotonic() - t0 < 1:
                raise
            return self.ask(n)

    def ask(self, n):
        at = ("127.0.0.1", self.p.port)
        c = http.client.HTTPSConnection(*at, timeout=PATIENCE_S, context=self.tls) if self.tls else http.client.HTTPConnection(*at, timeout=PATIENCE_S)
        try:
            stream = n % 2 == 0
            body = {"model": "good", "prompt": f"conversation {n % 7}: " + "what was said before " * (1 + n % 40), "max_tokens": 5, "stream": stream}
            try:
                c.request("POST", "/v1/completions", json.dumps(body), self.headers)
                r = c.getresponse()
            except ConnectionError as e:
                raise TooSlow(str(e)) if self.tls else e
            text = r.read()
            if r.status != 200:
                return f"{r.status} {text[:200]}"
            if stream and not text.rstrip().endswith(b"data: [DONE]"):
                return f"a stream without its end: {text[-200:]}"
            return None if stream or json.loads(text)["usage"]["completion_tokens"] == 5 else f"{text[:300]}"
        finally:
            c.close()


class IndexerStage(Stage):
    def __init__(self, limits, rng):
        super().__init__(limits, rng)
        events = free_ports()
        mock = self.start(Mock, "--model", "good")
        self.events = attacks.EvilEvents(self.ctx, rng, events, self.stop)
        self.p = self.start(Indexer, *SMALL["indexer"], "--client-write-timeout", 5, limits=limits, ready=False)
        self.p.post("/register", {"instance_id": 1, "endpoint": f"tcp://127.0.0.1:{mock.events}", "replay_endpoint": f"tcp://127.0.0.1:{mock.replay}",
                                  "model_name": "good", "block_size": 16}, 201)
        self.p.post("/register", {"instance_id": 2, "endpoint": f"tcp://127.0.0.1:{events}", "model_name": "evil", "block_size": 16}, 201)
        self.prompt = "a prompt that the worker has computed " * 8
        assert call(mock.port, "POST", "/v1/completions", {"model": "good", "prompt": self.prompt, "max_tokens": 1}).status == 200
        wait_for("the worker's blocks", lambda: not self.good(0), 20)
        self.targets = [attacks.Target([self.p.port], ["/query", "/query_by_hash", "/register", "/unregister"], ["/metrics", "/workers", "/dump", "/health"], rng)]

    def good(self, n):
        c = http.client.HTTPConnection("127.0.0.1", self.p.port, timeout=PATIENCE_S)
        try:
            body = {"model_name": "good", "token_ids": list(self.prompt.encode()), "n": n}
            body.pop("n")
            c.request("POST", "/query", json.dumps(body), {"Content-Type": "application/json"})
            r = c.getresponse()
            text = r.read()
            if r.status != 200:
                return f"{r.status} {text[:200]}"
            want = len(self.prompt) // 16 * 16
            return None if json.loads(text)["scores"].get("1", {}).get("0") == want else f"not {want}: {text[:200]}"
        finally:
            c.close()


class SelectStage(Stage):
    def __init__(self, limits, rng):
        super().__init__(limits, rng)
        self.p = self.start(Select, *SMALL["select"], "--client-write-timeout", 5, "--no-router-kv-events", limits=limits)
        for i in (1, 2):
            r = call(self.p.port, "POST", "/workers", {"worker_id": i, "model_name": "good", "block_size": 16, "endpoint": f"http://10.0.0.{i}:1"},
                     {"Content-Type": "application/json"})
            assert r.status == 201, r.body
        self.targets = [attacks.Target([self.p.port], ["/select", "/select_and_reserve", "/overlap_scores", "/potential_loads", "/workers"],
                                       ["/metrics", "/workers", "/loads", "/health"], rng)]

    def good(self, n):
        c = http.client.HTTPConnection("127.0.0.1", self.p.port, timeout=PATIENCE_S)
        try:
            json_type = {"Content-Type": "application/json"}
            body = {"model_name": "good", "token_ids": [n % 7] * 320, "selection_id": f"good-{n}"}
            c.request("POST", "/select_and_reserve", json.dumps(body), json_type)
            r = c.getresponse()
            text = r.read()
            if r.status != 200:
                return f"{r.status} {text[:200]}"
            status = self.release(c, n)
            return None if status in (200, 204) else f"release: {status}"
        finally:
            c.close()


    def release(self, c, n):
        """A connection that is kept may be closed between two requests, of which a client asks the second again on a fresh one."""
        try:
            c.request("DELETE", f"/reservations/good-{n}")
            r = c.getresponse()
            r.read()
            return r.status
        except (ConnectionError, http.client.RemoteDisconnected):
            return call(self.p.port, "DELETE", f"/reservations/good-{n}", timeout=PATIENCE_S).status


STAGES = {"serve": ServeStage, "indexer": IndexerStage, "select": SelectStage}


class Attackers:
    def __init__(self, targets, rng, threads):
        self.counts, self.stop = {}, threading.Event()
        for t in targets:
            t.stop = self.stop
        self.threads = [threading.Thread(target=self._run, args=(targets, random.Random(rng.random())), daemon=True) for _ in range(threads)]
        for t in self.threads:
            t.start()

    def _run(self, targets, rng):
        while not self.stop.is_set():
            target = rng.choice(targets)
            attack = rng.choice(attacks.CLIENTS + (attacks.TLS_CLIENTS if target.tls else []) + (attacks.KEY_CLIENTS if target.key else []))
            try:
                attack(target)
            except OSError:
                pass  # refused, reset, cut off: as it should be
            self.counts[attack.__name__] = self.counts.get(attack.__name__, 0) + 1

    def end(self):
        self.stop.set()
        for t in self.threads:
            t.join(20)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--program", choices=sorted(STAGES), default="serve")
    a.add_argument("--limit", choices=sorted(LIMITS), default="none")
    a.add_argument("--tls", action="store_true", help="over TLS (serve only)")
    a.add_argument("--keys", action="store_true", help="ports that need keys (serve only)")
    a.add_argument("--seconds", type=float, default=20)
    a.add_argument("--threads", type=int, default=12, help="attackers at once")
    a.add_argument("--rss-max-mib", type=float, default=500, help="more resident memory than this is a failure")
    a.add_argument("--seed", type=int, default=int(time.time()))
    o = a.parse_args()
    if (o.tls or o.keys) and o.program != "serve":
        a.error("--tls, --keys: allowed with --program serve")
    print(f"seed {o.seed}", flush=True)
    rng = random.Random(o.seed)
    stage = STAGES[o.program](LIMITS[o.limit], rng, **({"tls": o.tls, "keys": o.keys} if o.program == "serve" else {}))
    good = Good(stage.good)
    good.thread.start()
    wait_for("the first good answer", lambda: good.n > 0, PATIENCE_S)
    attackers = Attackers(stage.targets, rng, o.threads)
    end, peak, errors = time.monotonic() + o.seconds, 0.0, []
    next_line = 0.0
    while time.monotonic() < end and not errors:
        rss = stage.p.rss_kb() / 1024
        if not rss or stage.p.p.poll() is not None:
            errors.append(f"the program died: exit {stage.p.p.wait(60)}\n{stage.p.text()[-12000:]}")
            break
        peak = max(peak, rss)
        if rss > o.rss_max_mib:
            errors.append(f"{rss:.0f} MiB resident")
        if time.monotonic() > next_line:
            next_line = time.monotonic() + min(30.0, o.seconds / 4)
            print(f"{o.seconds - (end - time.monotonic()):6.0f} s  {good.n} good requests, {len(good.bad)} failed; {rss:.0f} MiB; "
                  f"{sum(attackers.counts.values())} attacks", flush=True)
        stage.stop.wait(0.2)
    attackers.end()
    good.stop.set()
    good.thread.join(PATIENCE_S + 5)
    after = stage.p.rss_kb() / 1024 if stage.p.p.poll() is None else 0
    errors += good.bad[:5] + [f for t in stage.targets for f in t.findings][:5] + stage.end()
    latency = sorted(good.seconds)
    print(f"{o.program}, limit {o.limit}, {o.seconds:.0f} s: {good.n} good requests, {len(good.bad)} failed, p50 {statistics.median(latency) * 1000:.0f} ms, "
          f"p99 {latency[int(len(latency) * 0.99)] * 1000:.0f} ms, slowest {latency[-1] * 1000:.0f} ms; "
          f"resident {peak:.0f} MiB at most, {after:.0f} at the end; attacks {dict(sorted(attackers.counts.items()))}")
    print("\n".join(errors) if errors else "held")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
