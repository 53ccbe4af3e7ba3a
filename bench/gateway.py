# SPDX-License-Identifier: Apache-2.0
"""What asking an endpoint picker adds to a real Envoy: latency and CPU time per request and per piece of an answer, memory per open stream; and what
clients see when a picker is killed.

    python3 bench/gateway.py build/release/kvroute [latency] [cpu] [streams=2000] [kill]      # scripts/envoy.sh fetches the Envoy

Requests of all configurations are made in turns, over one connection each; the added time is the difference to Envoy alone in the same turn."""
import asyncio
import contextlib
import glob
import http.client
import json
import os
import statistics
import sys
import threading
import time

os.environ["KVROUTE"] = sys.argv[1] if len(sys.argv) > 1 else "build/release/kvroute"
os.environ.setdefault("KVROUTE_LAME_DUCK_TIME", "0")
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../tests/gateway"))
import conftest as gateway  # noqa: E402
from clients import one, open_stream, read_answer  # noqa: E402

PARTS = sys.argv[2:] or ["latency", "cpu", "streams=2000", "kill"]
SIZES = {"1 KB": (1 << 10, 400), "32 KB": (32 << 10, 200), "256 KB": (256 << 10, 60), "1 MB": (1 << 20, 30)}
WHOLE = ("Envoy alone", "kvroute serve, no Envoy")
NO_ANSWERS = {"response_body_mode": "NONE", "response_trailer_mode": "SKIP"}


def without_picker(conf):
    """Envoy alone: whoever asks names the destination. For measurements."""
    manager = gateway.manager(conf)
    manager["http_filters"] = [f for f in manager["http_filters"] if not f["name"].endswith("ext_proc")]
    manager.pop("early_header_mutation_extensions")


def large_bodies(conf):
    conf["static_resources"]["listeners"][0]["per_connection_buffer_limit_bytes"] = 64 << 20


CONFIGURATIONS = {  # file of deploy/envoy, edits
    "Envoy alone": ("duplex", [without_picker]),
    "duplex, duplex": ("duplex", []),
    "BUFFERED, STREAMED": ("buffered", []),
    "duplex, NONE": ("duplex", [gateway.processing(**NO_ANSWERS)]),
    "BUFFERED, NONE": ("buffered", [gateway.processing(response_body_mode="NONE")]),
}


class Fleet:
    """Processes of one part, ended with it."""

    def __init__(self):
        self.made = []

    def start(self, cls, *args, **kw):
        self.made.append(cls(*args, **kw))
        return self.made[-1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for p in reversed(self.made):
            with contextlib.suppress(AssertionError):
                p.stop()


def cpu_us(p):
    """CPU time of a process and all its threads."""
    total = 0
    for path in glob.glob(f"/proc/{p.p.pid}/task/*/schedstat"):
        with contextlib.suppress(OSError), open(path, encoding="ascii") as f:
            total += int(f.read().split()[0])
    return total / 1000


def body_of(n, stream=False, tokens=1):
    head = json.dumps({"prompt": [1, 2, 3], "max_tokens": tokens, "stream": stream, "user": ""}).encode()
    return head[:-2] + b"u" * max(0, n - len(head)) + head[-2:]


class Client:
    def __init__(self, envoy, mock):
        self.c, self.to = http.client.HTTPConnection("127.0.0.1", envoy.port, timeout=60), f"127.0.0.1:{mock.port}"

    def ask(self, body):
        began = time.perf_counter()
        self.c.request("POST", "/v1/completions", body, {"Content-Type": "application/json", "x-gateway-destination-endpoint": self.to})
        r = self.c.getresponse()
        data = r.read()
        assert r.status == 200, (r.status, data[:200])
        return (time.perf_counter() - began) * 1000, data


def fleet(f, names=CONFIGURATIONS, **mock):
    """A mock, a picker for each configuration that has one, and its Envoy."""
    m = f.start(gateway.Mock, "--max-model-len", 1 << 24, "--max-num-seqs", 65536, "--max-num-batched-tokens", 65536, "--num-gpu-blocks", 500000,
                with_events=False, **mock)  # a pass has a token of each that runs: where they fill it nobody else begins
    made = {}
    for name in names:
        mode, edits = CONFIGURATIONS[name]
        p = f.start(gateway.Picker, [m])
        made[name] = p, f.start(gateway.Envoy, mode, [p], [m], [large_bodies, *edits])
    return m, made


def quantile(values, q):
    return sorted(values)[min(len(values) - 1, int(len(values) * q))]


def latency():
    print("| added by asking: median (p99), ms | " + " | ".join(f"{s} (n = {n})" for s, (_, n) in SIZES.items()) + " |")
    print("|---" * (len(SIZES) + 1) + "|")
    with Fleet() as f:
        m, made = fleet(f, speedup=1000)
        clients = {name: Client(e, m) for name, (_, e) in made.items()}
        clients["kvroute serve, no Envoy"] = Client(f.start(gateway.Serve, [m]), m)
        rows = {name: [] for name in clients}
        for size, n in SIZES.values():
            body, times = body_of(size), {name: [] for name in clients}
            for turn in range(n + 10):
                for name, c in clients.items():
                    ms, _ = c.ask(body)
                    if turn >= 10:
                        times[name].append(ms)
            alone = times["Envoy alone"]
            for name, t in times.items():
                added = t if name in WHOLE else [a - b for a, b in zip(t, alone)]
                rows[name].append(f"{statistics.median(added):.2f} ({quantile(added, 0.99):.2f})")
        for name, cells in rows.items():
            print(f"| {name}{', the whole request' if name in WHOLE else ''} | " + " | ".join(cells) + " |", flush=True)


def cpu(rounds=5, requests=300, pieces=500):
    """In turns, the median of some rounds; of a stream the difference to the same request with one piece is divided by its pieces."""
    print("\n| CPU time, us | Envoy, a request of 1 KB | picker | Envoy, a piece of a stream | picker |\n|---|---|---|---|---|")
    with Fleet() as f:
        m, made = fleet(f, speedup=10)  # pieces come one by one
        clients = {name: Client(e, m) for name, (_, e) in made.items()}
        got = {name: [] for name in made}
        plain, stream = body_of(1024), body_of(1024, True, pieces)
        for _ in range(rounds):
            for name, (p, e) in made.items():
                at = cpu_us(e), cpu_us(p)
                for _ in range(requests):
                    clients[name].ask(plain)
                each = [(b - a) / requests for a, b in zip(at, (cpu_us(e), cpu_us(p)))]
                at = cpu_us(e), cpu_us(p)
                read = sum(clients[name].ask(stream)[1].count(b"data: ") for _ in range(3))
                each += [(b - a - 3 * one) / read for a, b, one in zip(at, (cpu_us(e), cpu_us(p)), each)]
                got[name].append(each)
        for name, values in got.items():
            e, p, pe, pp = (statistics.median(v[i] for v in values) for i in range(4))
            print(f"| {name} | {e:.0f} | {'' if name == 'Envoy alone' else f'{p:.0f}'} | {pe:.1f} | {'' if name == 'Envoy alone' else f'{pp:.1f}'} |", flush=True)


def rss_kb(p):
    with open(f"/proc/{p.p.pid}/status", encoding="ascii") as f:
        return int(next(line for line in f if line.startswith("VmRSS")).split()[1])


def streams(n):
    """Over two Envoys, as each stream is two descriptors of one."""
    print(f"\n| {n} streams open | picker, KiB a stream | Envoy | picker's connections | left in the picker after the end, KiB a stream |\n|---|---|---|---|---|")
    for name in ("duplex, duplex", "BUFFERED, STREAMED"):
        with Fleet() as f:
            m, made = fleet(f, [name], speedup=0.01)  # pieces come slowly: it is memory that is looked at
            p, e = made[name]
            envoys = [e, f.start(gateway.Envoy, CONFIGURATIONS[name][0], [p], [m], [large_bodies])]
            body = body_of(1024, True, 4000)
            for e in envoys:
                asyncio.run(one(e.port, body_of(1024)))
            before, before_envoys = rss_kb(p), sum(map(rss_kb, envoys))

            async def everybody(envoys=envoys):
                opened, arriving = [], asyncio.Semaphore(100)

                async def begin(i):
                    async with arriving:
                        reader, writer = await open_stream(envoys[i % 2].port, body)
                        opened.append(writer)
                    status, _, _ = await read_answer(reader, lambda b: True)  # the mock's first pieces come seconds later
                    assert status == 200, (status, gateway.read_log(envoys[i % 2].lines)[-600:])
                await asyncio.gather(*(begin(i) for i in range(n)))
                return opened

            loop = asyncio.new_event_loop()
            opened = loop.run_until_complete(asyncio.wait_for(everybody(), 240))
            gateway.wait_for("booked", lambda: p.booked() == n, 30)
            during, envoys_kb = rss_kb(p) - before, sum(map(rss_kb, envoys)) - before_envoys
            connections = sum(e.stats("cluster.kvroute.upstream_cx_active") for e in envoys)
            for w in opened:
                w.transport.abort()
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()
            gateway.wait_for("nothing booked", p.idle, 60)
            print(f"| {name} | {during / n:.1f} | {envoys_kb / n:.1f} | {connections} | {(rss_kb(p) - before) / n:.1f} |", flush=True)


def fails_closed(conf):
    gateway.asking(conf).update(failure_mode_allow=False, status_on_error={"code": 503})


def fails_open(conf):
    gateway.known_workers(conf)
    gateway.asking(conf)["failure_mode_allow"] = True


KILLED = {  # file, edits, pickers
    "duplex.yaml": ("duplex", [], 1),
    "duplex.yaml, two pickers": ("duplex", [], 2),
    "duplex.yaml, response_body_mode NONE": ("duplex", [gateway.processing(**NO_ANSWERS)], 1),
    "duplex.yaml, known workers, failure_mode_allow": ("duplex", [fails_open], 1),
    "buffered.yaml": ("buffered", [], 1),
    "buffered.yaml, two pickers": ("buffered", [], 2),
    "buffered.yaml, no failure_mode_allow": ("buffered", [fails_closed], 1),
}


def kill(n=50):
    """One picker is killed beside streams and steady requests."""
    gateway.Envoy.patience = ()  # the files as they are
    print(f"\n| one picker is killed | of {n} streams whole | requests of the first second | of the fifth |\n|---|---|---|---|")
    for name, (mode, edits, count) in KILLED.items():
        with Fleet() as f:
            mocks = [f.start(gateway.Mock, speedup=1, with_events=False) for _ in range(2)]
            ps = [f.start(gateway.Picker, mocks, "--ext-proc-unseen-secs", 60) for _ in range(count)]
            e = f.start(gateway.Envoy, mode, ps, mocks, edits)
            done, seen, over, killed_at = [], [], threading.Event(), [None]

            async def everybody(envoy=e):
                return await asyncio.gather(*(one(envoy.port, body_of(200, True, 600)) for _ in range(n)))

            def steady(envoy=e, seen=seen, over=over, killed_at=killed_at):
                while not over.is_set():
                    began = time.monotonic()
                    try:
                        status = envoy.complete([1, 2, 3], max_tokens=1, timeout=20).status
                    except OSError as error:
                        status = type(error).__name__
                    if killed_at[0]:
                        seen.append((began - killed_at[0], status))
                    time.sleep(0.02)
            t = threading.Thread(target=lambda done=done: done.extend(asyncio.run(everybody())))
            t.start()
            gateway.wait_for("streams", lambda: sum(p.booked() for p in ps) >= n, 30)
            s = threading.Thread(target=steady)
            s.start()
            time.sleep(1)
            ps[0].kill()
            killed_at[0] = time.monotonic()
            time.sleep(5.2)
            over.set()
            s.join()
            t.join()
            whole = sum(status == 200 and body.endswith(b"data: [DONE]\n\n") for status, _, body in done)

            def told(first, last, seen=seen):
                statuses = [status for at, status in seen if first <= at < last]
                return ", ".join(f"{statuses.count(k)} x {k}" for k in sorted(set(statuses), key=str)) or "none"
            print(f"| {name} | {whole} | {told(0, 1)} | {told(4, 5)} |", flush=True)


if __name__ == "__main__":
    if not gateway.ENVOY:
        sys.exit("there is no Envoy: scripts/envoy.sh fetches one")
    print(os.popen("nproc").read().strip(), "cores, load", os.getloadavg()[0])
    for part in PARTS:
        what, _, number = part.partition("=")
        {"latency": latency, "cpu": cpu, "streams": lambda: streams(int(number or 2000)), "kill": kill}[what]()
