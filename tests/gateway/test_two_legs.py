# SPDX-License-Identifier: Apache-2.0
"""Prefill and decode workers behind a gateway: the picker names both, and llm-d's sidecar at the decode worker asks both; here for SGLang,
whose two legs go at once and meet in a room."""
import collections
import contextlib
import http.client
import http.server
import json
import socket
import threading

import leg_parts
import pytest
from conftest import Mock, call, free_ports, wait_for
from test_leaving import begin, leave

PREFILLER = "x-prefiller-host-port"
ROOM = ("bootstrap_host", "bootstrap_port", "bootstrap_room")
PASSED = ("content-type", "x-request-id", "x-data-parallel-rank", "authorization")


class Sidecar:
    """What stands before a decode worker: as llm-d's (pkg/sidecar/proxy/connector_sglang.go) it sends the client's body to both workers, with the
    same headers and a room, the prefill worker's answer is nobody's, and whoever names no prefill worker gets the decode worker. `bootstraps` are
    ports by prefill worker: in a pod they are one number. `pairs` has of each request: prefill worker, its body and headers, its status."""

    def __init__(self, engine, bootstraps):
        self.engine, self.bootstraps, self.pairs, self.alone = engine, bootstraps, [], []
        self.lock, self.rooms, sidecar = threading.Lock(), 1 << 60, self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                r = call(sidecar.engine, "GET", self.path)
                self.send_response(r.status)
                self.send_header("Content-Type", r.headers.get("content-type", "application/json"))
                self.send_header("Content-Length", str(len(r.body)))
                self.end_headers()
                self.wfile.write(r.body)

            def do_POST(self):
                raw = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {k.lower(): v for k, v in self.headers.items() if k.lower() in PASSED}
                to = self.headers.get(PREFILLER)
                if to:
                    raw = sidecar.pair(to, raw, self.path, headers)
                else:
                    sidecar.alone.append(self.path)
                self.relay(raw, headers)

            def relay(self, raw, headers):
                self.close_connection = True
                c = http.client.HTTPConnection("127.0.0.1", sidecar.engine, timeout=60)
                c.request("POST", self.path, raw, headers)
                watched = threading.Thread(target=self.watch, args=(c.sock,), daemon=True)
                watched.start()
                with contextlib.suppress(OSError, http.client.HTTPException):
                    r = c.getresponse()
                    self.send_response(r.status)
                    self.send_header("Content-Type", r.getheader("Content-Type"))
                    self.send_header("Transfer-Encoding", "chunked")
                    self.end_headers()
                    while piece := r.read1(1 << 16):
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                    self.wfile.write(b"0\r\n\r\n")
                c.close()

            def watch(self, engine):
                """Its client leaves: so does it."""
                with contextlib.suppress(OSError, ValueError):
                    if not self.connection.recv(1, socket.MSG_PEEK):
                        engine.shutdown(socket.SHUT_RDWR)

            def log_message(self, *a):
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads, request_queue_size = True, 256

            def handle_error(self, *a):
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def pair(self, to, raw, path, headers):
        with self.lock:
            self.rooms += 1
            body = {**json.loads(raw), "bootstrap_host": to.rsplit(":", 1)[0], "bootstrap_port": self.bootstraps[to], "bootstrap_room": self.rooms}
            pair = {"prefill": to, "body": body, "headers": headers, "status": None}
            self.pairs.append(pair)
        threading.Thread(target=self.ask_prefill, args=(pair, path), daemon=True).start()
        return json.dumps(body).encode()

    def ask_prefill(self, pair, path):
        try:
            pair["status"] = call(int(pair["prefill"].rsplit(":", 1)[1]), "POST", path, pair["body"], pair["headers"]).status
        except OSError:
            pair["status"] = 0

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class Fleet:
    """Two prefill workers and a decode worker of SGLang's protocol, the latter behind its sidecar."""

    def __init__(self, start, *decode, speedup=50):
        boots = [free_ports() for _ in range(2)]
        self.prefills = [start(Mock, "--role", "prefill", "--kv-protocol", "sglang", "--bootstrap-port", b) for b in boots]
        self.decode = start(Mock, "--role", "decode", "--kv-protocol", "sglang", *decode, speedup=speedup)
        self.sidecar = Sidecar(self.decode.port, {f"127.0.0.1:{p.port}": b for p, b in zip(self.prefills, boots)})
        self.specs = [p.spec(f",role=prefill,kv-protocol=sglang,engine=sglang,bootstrap={b},id={i + 1}") for i, (p, b) in enumerate(zip(self.prefills, boots))]
        self.specs.append(f"http://127.0.0.1:{self.sidecar.port},events=tcp://127.0.0.1:{self.decode.events},replay=tcp://127.0.0.1:{self.decode.replay}"
                          ",role=decode,kv-protocol=sglang,engine=sglang,id=9")
        self.listed = [*(p.port for p in self.prefills), self.sidecar.port]

    def waiting(self):
        return sum(call(m.port, "GET", "/mock/kv").json()["waiting_rooms"] for m in (*self.prefills, self.decode))


@pytest.fixture
def fleet(start, gateway):
    made = []

    def make(mode, *decode, options=(), **kw):
        f = Fleet(start, *decode, **kw)
        made.append(f.sidecar)
        envoy, picker = gateway(mode, f.specs, *options, listed=f.listed)
        wait_for("all workers", lambda: all(w["status"] == "up" for w in picker.get("/workers")))
        return f, envoy, picker
    yield make
    for s in made:
        s.close()


def test_two_legs_of_sglang_meet_by_the_sidecar_of_the_decode_worker(fleet, mode):
    f, envoy, picker = fleet(mode)
    prompts = [[1000 * i + k for k in range(80)] for i in range(6)]
    went = collections.defaultdict(list)
    for turn in range(3):
        for i, prompt in enumerate(prompts):
            body = {"prompt": prompt, "max_tokens": 5, "stream": (i + turn) % 2 == 0, "stream_options": {"include_usage": True}, "user": f"é{i}"}
            if not body["stream"]:
                del body["stream_options"]
            r = envoy.ask(body, {"x-request-id": f"r{turn}-{i}"})
            assert r.status == 200 and r.headers["x-kvroute-disagg"] == "remote" and r.headers["x-kvroute-worker"] == "9", (r.status, r.headers, r.body)
            assert b"####" not in r.body and (not body["stream"] or r.body.endswith(b"data: [DONE]\n\n"))
            line, pair = envoy.access(f"r{turn}-{i}"), f.sidecar.pairs[-1]
            assert line["upstream"] == line["destination"] == f"127.0.0.1:{f.sidecar.port}", line
            assert {k: v for k, v in pair["body"].items() if k not in ROOM} == body
            assert pair["prefill"] == f"127.0.0.1:{f.prefills[int(r.headers['x-kvroute-prefill-worker']) - 1].port}"
            assert (int(r.headers["x-kvroute-overlap-blocks"]) > 0) == (turn > 0), (turn, i, r.headers)
            went[i].append(pair["prefill"])
            wait_for("the prefill worker's answer", lambda p=pair: p["status"] == 200)
            wait_for("its events", lambda: picker.metric("index_blocks") == sum(m.metric("kvroute_mock_cached_blocks") for m in (*f.prefills, f.decode)))
    assert all(len(set(where)) == 1 for where in went.values()), went  # where it is cached
    assert len({where[0] for where in went.values()}) == 2, went
    assert f.waiting() == 0 and not f.sidecar.alone
    told = picker.metric("disagg_requests_total")
    assert told == len(prompts) * 3
    wait_for("idle", picker.idle)


def test_a_client_that_leaves_two_legs_of_sglang_leaves_nothing_booked(fleet, mode):
    f, envoy, picker = fleet(mode, speedup=0.5)
    for i in range(4):
        c = begin(envoy, {"prompt": [i] * 80, "max_tokens": 5000, "stream": True})
        if i % 2:
            assert c.recv(100)
        wait_for("booked", lambda: picker.booked() >= 1)
        leave(c)
        wait_for("nothing booked", picker.idle)
    wait_for("no stream", lambda: envoy.asking() == 0)
    wait_for("cancelled", lambda: f.decode.metric("vllm:num_requests_running") == 0)


def test_a_prefill_worker_of_sglang_that_dies_leaves_nothing_booked(fleet, mode):
    """Its decode worker waits for it, and answers with an error of its own; later ones get the other prefill worker, or wait for one."""
    f, envoy, picker = fleet(mode, "--bootstrap-timeout", "1", options=("--queue-timeout", "2"))
    r = envoy.complete([7] * 80)
    assert r.status == 200
    first = int(r.headers["x-kvroute-prefill-worker"]) - 1
    f.prefills[first].kill()
    for _ in range(3):
        r = envoy.complete([7] * 80)
        assert r.status == 200 or r.status >= 500, r.body
    wait_for("idle", picker.idle)
    wait_for("it is down", lambda: picker.get("/workers")[first]["status"] == "down")
    r = envoy.complete([7] * 80)
    assert r.status == 200 and int(r.headers["x-kvroute-prefill-worker"]) - 1 == 1 - first
    f.prefills[1 - first].kill()
    wait_for("both are down", lambda: [w["status"] for w in picker.get("/workers")].count("down") == 2)
    r = envoy.complete([7] * 80)
    assert r.status == 503 and int(r.headers["retry-after"]) >= 1 and not f.sidecar.alone, (r.status, r.body)
    wait_for("idle", picker.idle)


TRANSFERS = {"bootstrap_host": "10.0.0.1", "bootstrap_port": 1, "bootstrap_room": 7, "kv_transfer_params": {"do_remote_prefill": True},
             "disagg_prefill_dp_rank": 0, "disaggregated_params": {"request_type": "generation_only"}}


@pytest.mark.parametrize("protocol", ["sglang", "vllm-nixl"])
def test_what_a_client_says_of_a_transfer_reaches_nobody(gateway, legs, mode, protocol):
    p, d = legs(leg_parts.prefills), legs(leg_parts.decodes)
    extra = (f"kv-protocol={protocol}",)
    envoy, picker = gateway(mode, [p.spec("prefill", *extra), d.spec("decode", *extra)], listed=[p.port, d.port])
    wait_for("both", lambda: all(w["status"] == "up" for w in picker.get("/workers")))
    two = {"prompt": list(range(64)), "max_tokens": 4, "model": "m", "user": "é"}
    whole = {"prompt": [5] * 30, "max_tokens": 4, "model": "m", "n": 2}
    for body, treatment in ((two, "remote"), (whole, "local")):
        r = envoy.ask({**body, **TRANSFERS})
        if protocol == "sglang" and treatment == "local":
            assert r.status == 400, r.body  # it takes none
            continue
        assert r.status == 200 and r.headers["x-kvroute-disagg"] == treatment, (r.headers, r.body)
        assert d.bodies[-1] == body
    wait_for("idle", picker.idle)


def test_ranks_of_two_legs_are_told_where_both_have_them(gateway, legs, mode):
    """Whoever stands between them sends both the same header."""
    p, d, other = legs(leg_parts.prefills), legs(leg_parts.decodes), legs(leg_parts.decodes)
    envoy, picker = gateway(mode, [p.spec("prefill", "dp-size=2"), d.spec("decode", "dp-size=4")], "--no-router-kv-events", listed=[p.port, d.port])
    wait_for("both", lambda: all(w["status"] == "up" for w in picker.get("/workers")))
    ranks = set()
    for i in range(16):
        r = envoy.complete([i] * 64, model="m", headers={"x-kvroute-worker": "2", "x-data-parallel-rank": str(i % 4)})
        assert r.status == 200 and r.headers["x-kvroute-dp-rank"] == str(i % 4), r.body
        told = {k.lower(): v for k, v in d.heads[-1].items()}.get("x-data-parallel-rank")
        assert told == (str(i % 4) if i % 4 < 2 else None)
        ranks.add(told)
    assert len(ranks) == 3
    wait_for("idle", picker.idle)
