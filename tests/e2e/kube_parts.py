# SPDX-License-Identifier: Apache-2.0
"""A Kubernetes API server, as far as pods, pools and slices are listed and watched: pages, versions, selectors, bookmarks, tokens, TLS; and
what real ones do to those who watch: cut lines, versions that are too old, refusals, an end. What it holds is the truth that a router's
workers are compared with."""
import base64
import http.server
import itertools
import json
import socket
import ssl
import threading
import time
import urllib.parse
import uuid

from tls_parts import Authority

PODS = "/api/v1/namespaces/fleet/pods"
POOLS = "/apis/inference.networking.k8s.io/v1/namespaces/fleet/inferencepools"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/fleet/endpointslices"
KINDS = {PODS: "Pod", POOLS: "InferencePool", SLICES: "EndpointSlice"}


def pod(name, ip, ready=True, labels=None, notes=None, uid=None, deleting=False, phase="Running"):
    """As an API server has it, as far as anybody here reads it, and some of what nobody does."""
    meta = {"name": name, "namespace": "fleet", "uid": uid or str(uuid.uuid4()), "labels": {"app": "vllm", **(labels or {})},
            "creationTimestamp": "2026-11-01T00:00:00Z", "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": {}}}]}
    if notes:
        meta["annotations"] = notes
    if deleting:
        meta.update(deletionTimestamp="2026-11-01T00:01:00Z", deletionGracePeriodSeconds=30)
    conditions = [{"type": t, "status": "True" if ready or t == "PodScheduled" else "False"} for t in ("PodScheduled", "ContainersReady", "Ready")]
    status = {"phase": phase, "conditions": conditions, **({"podIP": ip, "podIPs": [{"ip": ip}]} if ip else {})}
    return {"metadata": meta, "spec": {"containers": [{"name": "engine", "image": "vllm"}]}, "status": status}


def pool(selector=None, ports=(8000,), **spec):
    return {"metadata": {"name": "qwen", "namespace": "fleet", "uid": str(uuid.uuid4())},
            "spec": {"selector": {"matchLabels": {"app": "vllm"} if selector is None else selector}, "targetPorts": [{"number": p} for p in ports],
                     "endpointPickerRef": {"name": "kvroute", "port": {"number": 9002}}, **spec}}


def slice_of(name, *addresses, service="kvroute", family="IPv4"):
    """addresses: those that are ready; (address, False) is not."""
    ready = [a if isinstance(a, tuple) else (a, True) for a in addresses]
    return {"metadata": {"name": name, "namespace": "fleet", "uid": str(uuid.uuid4()), "labels": {"kubernetes.io/service-name": service}},
            "addressType": family, "endpoints": [{"addresses": [a], "conditions": {"ready": r}} for a, r in ready], "ports": [{"port": 7000}]}


class Kube:
    def __init__(self, folder, page=500):
        self.page, self.rv, self.oldest = page, 100, 0
        self.objects = {path: {} for path in KINDS}
        self.log = []  # (version, path, type, object, the object before)
        self.tokens, self.forbidden = {"first"}, set()
        self.asked, self.answers = [], []  # (verb, path, query); answers: what the next questions get instead, (verb, path, fn(handler))
        self.changed = threading.Condition()
        self.ca, self.token_file = Authority(folder, "cluster"), folder / "token"
        self.token_file.write_text("first")
        cert, key = self.ca.sign("apiserver")
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.load_cert_chain(cert, key)
        self.port, self.server = 0, None
        self.start()

    # ---- the server

    def start(self):
        kube = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self):
                self.request = kube.tls.wrap_socket(self.request, server_side=True)
                with kube.changed:
                    kube.connections.add(self.request)
                super().setup()

            def do_GET(self):
                kube.answer(self)

            def log_message(self, *a):
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads, block_on_close, allow_reuse_address = True, False, True

            def handle_error(self, request, address):
                pass  # clients leave
        self.connections, self.running = set(), True
        self.server = Server(("127.0.0.1", self.port), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self):
        """As a server that is killed: what is open breaks off, and nobody listens."""
        with self.changed:
            self.running = False
            self.changed.notify_all()
        self.server.shutdown()
        self.server.server_close()
        self.cut()

    def cut(self):
        """All connections, wherever they are."""
        with self.changed:
            gone, self.connections = self.connections, set()
        for c in gone:
            try:
                c.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    @property
    def options(self):
        return ["--discovery", "kubernetes", "--kubernetes-api", f"https://127.0.0.1:{self.port}", "--kubernetes-ca", self.ca.file,
                "--kubernetes-token-file", self.token_file, "--kubernetes-namespace", "fleet"]

    # ---- what it holds

    def put(self, path, o):
        with self.changed:
            self.rv += 1
            o = json.loads(json.dumps(o))
            o["metadata"]["resourceVersion"] = str(self.rv)
            before = self.objects[path].get(o["metadata"]["name"])
            self.objects[path][o["metadata"]["name"]] = o
            self.log.append((self.rv, path, "MODIFIED" if before else "ADDED", o, before))
            self.changed.notify_all()

    def delete(self, path, name):
        with self.changed:
            self.rv += 1
            o = json.loads(json.dumps(self.objects[path].pop(name)))
            o["metadata"]["resourceVersion"] = str(self.rv)
            self.log.append((self.rv, path, "DELETED", o, o))
            self.changed.notify_all()

    def forget(self):
        """Versions of before are too old from now on."""
        with self.changed:
            self.rv += 1
            self.oldest, self.log = self.rv, []
            self.changed.notify_all()

    def bookmark(self):
        with self.changed:
            self.rv += 1
            self.log.append((self.rv, None, "BOOKMARK", None, None))
            self.changed.notify_all()

    def instead(self, verb, path, fn):
        """The next question of that kind is answered by fn(handler, query)."""
        with self.changed:
            self.answers.append((verb, path, fn))

    def count(self, verb, path):
        with self.changed:
            return sum(a[:2] == (verb, path) for a in self.asked)

    # ---- answers

    def answer(self, h):
        url = urllib.parse.urlsplit(h.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        verb = "watch" if query.get("watch") == "1" else "list"
        with self.changed:
            self.asked.append((verb, url.path, query))
            here = next((a for a in self.answers if a[:2] == (verb, url.path)), None)
            if here:
                self.answers.remove(here)
        if h.headers.get("Authorization", "")[7:] not in self.tokens:
            status(h, 401, "Unauthorized")
        elif here:
            here[2](h, query)
        elif (verb, url.path) in self.forbidden:
            resource = url.path.rsplit("/", 1)[1]
            status(h, 403, f'{resource} is forbidden: User "system:serviceaccount:fleet:kvroute" cannot {verb} resource "{resource}"')
        elif url.path not in KINDS:
            status(h, 404, "the server could not find the requested resource")
        elif verb == "watch":
            self.watch(h, url.path, query)
        else:
            self.list(h, url.path, query)

    def list(self, h, path, query):
        with self.changed:
            rv, after = self.rv, ""
            if "continue" in query:
                rv, after = json.loads(base64.b64decode(query["continue"]))
            if rv < self.oldest:
                status(h, 410, "The provided continue parameter is too old")
                return
            names = sorted(n for n, o in self.objects[path].items() if n > after and matches(o, query))
            names, rest = names[:min(self.page, int(query["limit"]))], names[min(self.page, int(query["limit"])):]
            more = base64.b64encode(json.dumps([rv, names[-1]]).encode()).decode() if rest else ""
            body = {"kind": KINDS[path] + "List", "metadata": {"resourceVersion": str(rv), **({"continue": more, "remainingItemCount": len(rest)} if more else {})},
                    "items": [self.objects[path][n] for n in names]}
        reply(h, 200, body)

    def watch(self, h, path, query):
        at, until = int(query["resourceVersion"]), time.monotonic() + int(query["timeoutSeconds"])
        begin(h)
        while True:
            with self.changed:
                if at < self.oldest:
                    line(h, {"type": "ERROR", "object": {"kind": "Status", "status": "Failure", "reason": "Expired", "code": 410, "message": f"too old resource version: {at}"}})
                    end(h)
                    return
                news = [e for e in self.log if e[0] > at and e[1] in (path, None)]
                if not news:
                    if not self.running or time.monotonic() > until:
                        break
                    self.changed.wait(0.2)
            for rv, _, kind, o, before in news:
                at = rv
                if kind == "BOOKMARK":
                    line(h, {"type": kind, "object": {"kind": KINDS[path], "metadata": {"resourceVersion": str(rv), "creationTimestamp": None}}})
                    continue
                was, is_ = before is not None and matches(before, query), kind != "DELETED" and matches(o, query)
                if was or is_:
                    line(h, {"type": "MODIFIED" if was and is_ else "ADDED" if is_ else "DELETED", "object": {"kind": KINDS[path], **o}})
        if self.running:
            end(h)


def matches(o, query):
    meta = o["metadata"]
    labels = [pair.split("=", 1) for pair in query.get("labelSelector", "").split(",") if pair]
    return (all(meta.get("labels", {}).get(k) == v for k, v in labels) and
            query.get("fieldSelector", f"metadata.name={meta['name']}") == f"metadata.name={meta['name']}")


def reply(h, code, body, **headers):
    data = json.dumps(body).encode()
    h.send_response(code)
    for k, v in {"Content-Type": "application/json", "Content-Length": str(len(data)), **headers}.items():
        h.send_header(k.replace("_", "-"), v)
    h.end_headers()
    h.wfile.write(data)


def status(h, code, message, **headers):
    reply(h, code, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}, **headers)


def begin(h):
    h.send_response(200)
    h.send_header("Content-Type", "application/json")
    h.send_header("Transfer-Encoding", "chunked")
    h.end_headers()
    h.wfile.flush()


def piece(h, data):
    h.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
    h.wfile.flush()


def line(h, o):
    piece(h, json.dumps(o).encode() + b"\n")


def end(h):
    h.wfile.write(b"0\r\n\r\n")
    h.wfile.flush()


# ---- what a router should have made of it


def truth(kube, ports=(8000,), selector=None):
    """url -> chosen, of pods that are ready. Those that once were have to be told apart by who asks."""
    want = selector or {"app": "vllm"}
    found = set()
    for o in list(kube.objects[PODS].values()):
        ready = {"type": "Ready", "status": "True"} in o["status"]["conditions"] and "deletionTimestamp" not in o["metadata"]
        if ready and "podIP" in o["status"] and all(o["metadata"]["labels"].get(k) == v for k, v in want.items()):
            found |= {f"http://{o['status']['podIP']}:{p}" for p in ports}
    return found


def addresses(n):
    """Addresses of this machine at which nobody listens."""
    return [f"127.{1 + i // 60000}.{i // 250 % 240}.{1 + i % 250}" for i in itertools.islice(itertools.count(1), n)]
