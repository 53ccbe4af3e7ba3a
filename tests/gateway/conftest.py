# SPDX-License-Identifier: Apache-2.0
"""A real Envoy before mock engines, with `kvroute epp` as its picker: make test-gateway (scripts/envoy.sh has the Envoy).

What tests/e2e/conftest.py has is here too. Envoy runs the files of deploy/envoy, in which the addresses alone are others: MODES names both. A
test takes `mode` where both must show the same, and gateway(...) gives it an Envoy, with one picker or more behind it."""
import copy
import hashlib
import http.server
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading

import pytest
import yaml

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
os.environ.setdefault("KVROUTE", os.path.join(ROOT, "build/release/kvroute"))
sys.path.insert(1, os.path.join(ROOT, "tests/e2e"))
_spec = importlib.util.spec_from_file_location("e2e_conftest", os.path.join(ROOT, "tests/e2e/conftest.py"))
_e2e = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_e2e)
globals().update({k: v for k, v in vars(_e2e).items() if not k.startswith("_")})  # its fixtures too
from_e2e = vars(_e2e)
Process, Serve, SLOW, call, free_ports, read_log, wait_for = (
    from_e2e[k] for k in ("Process", "Serve", "SLOW", "call", "free_ports", "read_log", "wait_for"))

PORTS = sys.modules["openapi_parts"].PORTS  # which document a port has; a port that is taken again may have had one
ENVOY = subprocess.run([os.path.join(ROOT, "scripts/envoy.sh"), "--check"], capture_output=True, text=True, check=False).stdout.strip()
MODES = ("duplex", "buffered")
TLS = os.environ.get("GATEWAY_TLS", "auto")


# ---- configurations ---------------------------------------------------------------------------------------------------------


def configuration(mode):
    """A file of deploy/envoy, as it stands there."""
    with open(os.path.join(ROOT, "deploy/envoy", f"{mode}.yaml"), encoding="utf-8") as f:
        return yaml.safe_load(f)


def cluster(conf, name):
    return next(c for c in conf["static_resources"]["clusters"] if c["name"] == name)


def manager(conf):
    """What is said of the clients' HTTP."""
    return conf["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]


def asking(conf):
    """What is said of the picker's filter."""
    return next(f for f in manager(conf)["http_filters"] if f["name"] == "envoy.filters.http.ext_proc")["typed_config"]


def route(conf):
    return manager(conf)["route_config"]["virtual_hosts"][0]["routes"][0]["route"]


def at(conf, name, ports):
    """Gives a cluster these addresses: each to a group, where it has so many."""
    assignment = cluster(conf, name)["load_assignment"]
    hosts = [{"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": p}}}} for p in ports]
    groups = assignment["endpoints"]
    assignment["endpoints"] = [{**g, "lb_endpoints": [h]} for g, h in zip(groups, hosts)] if len(groups) == len(hosts) else [{"lb_endpoints": hosts}]


def known_workers(conf):
    """duplex.yaml with the cluster of workers that buffered.yaml has, which takes a list of destinations."""
    other = configuration("buffered")
    if not any(c["name"] == "workers" for c in conf["static_resources"]["clusters"]):
        conf["static_resources"]["clusters"].append(cluster(other, "workers"))
    route(conf).update(copy.deepcopy(route(other)))


def processing(**modes):
    """An edit: other modes of the picker's filter."""
    return lambda conf: asking(conf)["processing_mode"].update(modes)


HTTP = "type.googleapis.com/envoy.extensions.filters.http"
SUBSET = "x-gateway-destination-endpoint-subset"


def before_asking(name, **config):
    """An edit: another filter in front of the picker's."""
    def edit(conf):
        filters = manager(conf)["http_filters"]
        at_picker = next(i for i, f in enumerate(filters) if f["name"] == "envoy.filters.http.ext_proc")
        filters.insert(at_picker, {"name": name, "typed_config": config})
    return edit


def subset_of_header(conf):
    """An edit: a request's x-subset is the text that a gateway tells the picker of the endpoints it may name."""
    before_asking("subset", **{"@type": f"{HTTP}.header_to_metadata.v3.Config", "request_rules": [
        {"header": "x-subset", "on_header_present": {"metadata_namespace": "envoy.lb.subset_hint", "key": SUBSET, "type": "STRING"}, "remove": True}]})(conf)


def subset_list(endpoints):
    """An edit: the same as a list, the same one for each request."""
    return before_asking("subset", **{"@type": f"{HTTP}.set_metadata.v3.Config", "metadata": [
        {"metadata_namespace": "envoy.lb.subset_hint", "value": {SUBSET: endpoints}, "allow_overwrite": True}]})


def patient(conf):
    """A busy machine's picker is not dead because it is slow. A test of what is slow sets its own times."""
    if "message_timeout" in asking(conf):
        asking(conf)["message_timeout"] = "30s"
    for check in cluster(conf, "kvroute")["health_checks"]:
        check["timeout"] = "10s"
    for c in conf["static_resources"]["clusters"]:
        c["connect_timeout"] = "30s"


# ---- processes --------------------------------------------------------------------------------------------------------------


class Envoy:
    """The program with a configuration: the clients' port is `port`. `edits` are functions that change the configuration."""

    patience = (patient,)

    def __init__(self, mode, pickers, workers=(), edits=(), concurrency=1, healthy=True, limits=()):
        self.port, self.admin = free_ports(), free_ports()
        PORTS.pop(self.port, None)
        PORTS.pop(self.admin, None)
        self.conf = conf = configuration(mode)
        for edit in (*self.patience, *edits):
            edit(conf)
        conf["admin"]["address"]["socket_address"]["port_value"] = self.admin
        conf["static_resources"]["listeners"][0]["address"]["socket_address"].update(address="127.0.0.1", port_value=self.port)
        at(conf, "kvroute", [p.grpc if isinstance(p, Picker) else p for p in pickers])
        if not any(isinstance(p, Picker) and p.tls for p in pickers):
            cluster(conf, "kvroute").pop("transport_socket", None)
        if any(c["name"] == "workers" for c in conf["static_resources"]["clusters"]):
            at(conf, "workers", [w if isinstance(w, int) else w.port for w in workers])
        self.lines, self.log = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")
        self.file = tempfile.NamedTemporaryFile("w", suffix=".json", prefix="envoy")
        json.dump(conf, self.file)
        self.file.flush()
        self.args = [ENVOY, "-c", self.file.name, "--concurrency", str(concurrency), "--use-dynamic-base-id", "--log-level", "warn", "--file-flush-interval-msec", "20"]
        limit = ["prlimit", *(f"--{what}={value}" for what, value in limits)] if limits else []
        self.begin, self.pickers = [*limit, *self.args], len(pickers) if healthy else 0
        self.run()

    def run(self):
        """Again, too, after kill(): at the same port, with the same configuration."""
        self.p = subprocess.Popen(self.begin, stdout=self.lines, stderr=self.log)
        wait_for("Envoy", lambda: self.p.poll() is not None or call(self.admin, "GET", "/ready").status == 200, 30)
        assert self.p.poll() is None, self.text()
        wait_for("pickers", lambda: self.healthy() >= self.pickers, 30)

    def text(self):
        return read_log(self.log)

    def accesses(self):
        """The access log's lines that are whole."""
        return [json.loads(line) for line in read_log(self.lines).splitlines() if line.startswith("{") and line.endswith("}")]

    def access(self, name):
        """The line of the request of that id."""
        return wait_for(f"the line of {name}", lambda: [d for d in self.accesses() if d.get("id") == name])[-1]

    def stats(self, name):
        """The value of a statistic, 0 where there is none."""
        text = call(self.admin, "GET", f"/stats?filter=^{name}$").body.decode()
        return sum(int(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))

    def healthy(self, name="kvroute"):
        """How many pickers (or others) it takes for healthy."""
        return self.stats(f"cluster.{name}.membership_healthy")

    def asking(self):
        """Streams to pickers that are open."""
        return self.stats("cluster.kvroute.upstream_rq_active")

    def ask(self, body, headers=None, path="/v1/completions", method="POST", **kw):
        return call(self.port, method, path, body, headers, **kw)

    def complete(self, prompt, max_tokens=2, headers=None, timeout=60, **body):
        return self.ask({"prompt": prompt, "max_tokens": max_tokens, **body}, headers, timeout=timeout)

    def stop(self):
        if self.p.poll() is None:
            self.p.send_signal(signal.SIGTERM)
        try:
            self.p.wait(20 * SLOW)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self):
        self.p.kill()
        self.p.wait()


class Picker(Process):
    """kvroute epp; or, with `data`, kvroute serve, which is asked both ways."""

    get, post, metric, views, view, idle, overlap = (from_e2e["Serve"].__dict__[k] for k in ("get", "post", "metric", "views", "view", "idle", "overlap"))

    def __init__(self, workers, *extra, ports=None, tls=None, ready=True, wait=True, data=False, **kw):
        self.grpc, self.health, self.admin, self.port = ports or (free_ports(), free_ports(), free_ports(), free_ports())
        for port in self.ports:
            PORTS.pop(port, None)
        self.tls = tls is not None and tls != "off"
        args = [*(["serve", "--port", self.port] if data else ["epp"]), "--host", "127.0.0.1"]
        args += ["--ext-proc-port", self.grpc, "--ext-proc-tls", "auto" if self.tls else "off", "--ext-proc-health-port", self.health, "--admin-port", self.admin,
                 "--health-interval", 0.3, "--health-timeout", 10]
        for w in workers:
            args += ["--worker", w if isinstance(w, str) else w.spec()]
        super().__init__(*args, *extra, **kw)
        if not wait:
            return
        self.up("picker", lambda: call(self.admin, "GET", "/health").status == 200)
        if ready:
            self.up("ready", lambda: call(self.admin, "GET", "/ready").status == 200, 20)

    @property
    def ports(self):
        return self.grpc, self.health, self.admin, self.port

    def booked(self):
        """How many requests are booked."""
        return sum(load["active_requests"] for load in self.get("/loads"))


class Sink:
    """A worker that answers each POST with what it got: method, path, headers, the body's length and SHA-256, trailers."""

    def __init__(self):
        self.got = []
        sink = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def reply(self, status, data):
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_GET(self):
                if self.path == "/v1/models":
                    self.reply(200, b'{"object":"list","data":[{"id":"m","object":"model"}]}')
                else:
                    self.reply(200 if self.path == "/health" else 404, b"{}")

            def do_POST(self):
                body, trailers = b"", {}
                if self.headers.get("Transfer-Encoding") == "chunked":
                    while n := int(self.rfile.readline().split(b";")[0], 16):
                        body += self.rfile.read(n)
                        self.rfile.readline()
                    while (line := self.rfile.readline().strip()):
                        k, v = line.decode().split(":", 1)
                        trailers[k.lower()] = v.strip()
                else:
                    body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                got = {"path": self.path, "headers": {k.lower(): v for k, v in self.headers.items()}, "bytes": len(body), "sha256": hashlib.sha256(body).hexdigest(),
                       "trailers": trailers}
                sink.got.append(got)
                self.reply(200, json.dumps(got).encode())

            def log_message(self, *a):
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *a):
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def spec(self, extra=""):
        return f"http://127.0.0.1:{self.port},block-size=16{extra}"

    def close(self):
        self.server.shutdown()
        self.server.server_close()


def refused_port():
    """A port on which nobody listens, and a socket that keeps it so."""
    s = socket.socket()
    s.bind(("127.0.0.1", 0))
    return s.getsockname()[1], s


# ---- fixtures ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def envoy_is_here():
    if not ENVOY:
        pytest.skip("no Envoy here (scripts/envoy.sh fetches it)")


@pytest.fixture(params=MODES)
def mode(request):
    return request.param


@pytest.fixture
def gateway(start):
    """gateway(mode, workers, option...) starts a picker and an Envoy. Returns: both. With pickers=2: Envoy and the list of pickers."""
    def make(mode, workers, *options, pickers=1, edits=(), listed=None, concurrency=1, **kw):
        # as the file has it: TLS where it says so
        tls = TLS if "transport_socket" in cluster(configuration(mode), "kvroute") else None
        ps = [start(Picker, workers, *options, tls=tls, **kw) for _ in range(pickers)]
        e = start(Envoy, mode, ps, workers if listed is None else listed, edits, concurrency)
        return e, ps[0] if pickers == 1 else ps
    return make


@pytest.fixture
def sink():
    made = []

    def make(cls=Sink):
        made.append(cls())
        return made[-1]
    yield make
    for s in made:
        s.close()
