# SPDX-License-Identifier: Apache-2.0
"""A real Kubernetes API server on a real etcd (scripts/kube.sh; make test-kube): the manifests of deploy/kubernetes are accepted, and their role is
enough and no more; pods come, change and go, tokens end, the server is restarted and forgets versions. Each time the workers are right within two
seconds of when the server could be asked. There is no kubelet: what it would write of a pod is written here."""
import base64
import json
import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
sys.path.insert(0, os.path.join(ROOT, "tests/e2e"))
from conftest import Select, free_ports, start, wait_for  # noqa: E402, F401  (start is a fixture)
from test_start import manifests  # noqa: E402
from tls_parts import Authority  # noqa: E402

KUBE = os.environ.get("KUBE", os.path.join(ROOT, "build/kube"))
GROUPS = {"v1": "/api/v1"}
PLURALS = {"NetworkPolicy": "networkpolicies"}


def crd(group, kind, schema=None):
    """Of a kind that the server does not have by itself."""
    plural = kind.lower() + "s"
    spec = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.{group}", "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/pull/1111"}},
            "spec": {"group": group, "scope": "Namespaced", "names": {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"},
                     "versions": [{"name": "v1", "served": True, "storage": True, "subresources": {"status": {}},
                                   "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": schema or spec, "status": spec}}}}]}}


POOL = {"type": "object", "required": ["selector", "targetPorts"], "properties": {
    "selector": {"type": "object", "properties": {"matchLabels": {"type": "object", "additionalProperties": {"type": "string"}}}},
    "targetPorts": {"type": "array", "minItems": 1, "maxItems": 8, "items": {"type": "object", "properties": {"number": {"type": "integer"}}}},
    "appProtocol": {"type": "string", "default": "http"},
    "endpointPickerRef": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}}


class Cluster:
    """etcd and kube-apiserver, and who may do everything there."""

    def __init__(self, folder):
        self.folder, self.ca = folder, Authority(folder, "cluster")
        self.cert, self.key = self.ca.sign("apiserver")
        self.signing = folder / "accounts.key"
        subprocess.run(["openssl", "genrsa", "-out", self.signing, "2048"], check=True, capture_output=True)
        (folder / "tokens.csv").write_text('admin,admin,1,"system:masters"\n')
        self.port, (client, peer) = free_ports(), (free_ports(), free_ports())
        self.store = f"http://127.0.0.1:{client}"
        self.etcd = self.run("etcd", "--data-dir", folder / "etcd", "--listen-client-urls", self.store, "--advertise-client-urls", self.store, "--unsafe-no-fsync",
                             "--listen-peer-urls", f"http://127.0.0.1:{peer}", "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}",
                             "--initial-cluster", f"default=http://127.0.0.1:{peer}")
        self.up()

    def run(self, name, *args):
        with open(self.folder / f"{name}.log", "ab") as log:
            return subprocess.Popen([os.path.join(KUBE, name), *map(str, args)], stdout=log, stderr=log)

    def up(self):
        self.server = self.run(
            "kube-apiserver", "--etcd-servers", self.store, "--secure-port", self.port, "--bind-address", "127.0.0.1", "--endpoint-reconciler-type", "none",
            "--tls-cert-file", self.cert, "--tls-private-key-file", self.key, "--cert-dir", self.folder / "certs", "--token-auth-file", self.folder / "tokens.csv",
            "--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", self.signing, "--service-account-signing-key-file", self.signing,
            "--service-cluster-ip-range", "10.0.0.0/24", "--authorization-mode", "RBAC", "--disable-admission-plugins", "ServiceAccount", "--allow-privileged")
        wait_for("the API server", lambda: self.ask("GET", "/readyz", plain=True) == b"ok", 90)

    def down(self):
        self.server.kill()
        self.server.wait(60)

    def stop(self):
        for p in (self.server, self.etcd):
            p.kill()
            p.wait()

    @property
    def url(self):
        return f"https://127.0.0.1:{self.port}"

    def ask(self, method, path, body=None, token="admin", plain=False, kind="application/json"):
        r = urllib.request.Request(self.url + path, json.dumps(body).encode() if body is not None else None, method=method,
                                   headers={"Authorization": f"Bearer {token}", "Content-Type": kind})
        with urllib.request.urlopen(r, timeout=30, context=ssl.create_default_context(cafile=self.ca.file)) as answer:
            data = answer.read()
        return data if plain else json.loads(data)

    def path(self, o, space="fleet"):
        base = GROUPS.get(o["apiVersion"], f"/apis/{o['apiVersion']}")
        plural = PLURALS.get(o["kind"], o["kind"].lower() + "s")
        return f"{base}/{plural}" if o["kind"] in ("Namespace", "CustomResourceDefinition") else f"{base}/namespaces/{space}/{plural}"

    def make(self, o, space="fleet"):
        return self.ask("POST", self.path(o, space) + "?fieldValidation=Strict", o)

    def token(self, secret):
        """Of the role's account, good until the secret is gone."""
        uid = self.make({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": secret}})["metadata"]["uid"]
        spec = {"boundObjectRef": {"kind": "Secret", "apiVersion": "v1", "name": secret, "uid": uid}}
        return self.ask("POST", "/api/v1/namespaces/fleet/serviceaccounts/kvroute/token",
                        {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec})["status"]["token"]

    # ---- pods

    PODS = "/api/v1/namespaces/fleet/pods"

    def pod(self, name, ip, ready=True, **labels):
        self.make({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "vllm", **labels}},
                   "spec": {"nodeName": "n1", "containers": [{"name": "engine", "image": "vllm"}]}})
        self.status(name, ip, ready)

    def status(self, name, ip, ready):
        conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
        self.ask("PATCH", f"{self.PODS}/{name}/status", {"status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "conditions": conditions}},
                 kind="application/strategic-merge-patch+json")

    def label(self, name, **labels):
        self.ask("PATCH", f"{self.PODS}/{name}", {"metadata": {"labels": labels}}, kind="application/merge-patch+json")

    def delete(self, name, grace=0):
        self.ask("DELETE", f"{self.PODS}/{name}?gracePeriodSeconds={grace}")

    def truth(self, ports=(8000,), selector="app=vllm"):
        pods = self.ask("GET", f"{self.PODS}?labelSelector={selector.replace('=', '%3D')}")["items"]
        return {f"http://{p['status']['podIP']}:{port}" for p in pods for port in ports
                if "deletionTimestamp" not in p["metadata"] and {"Ready": "True"} == {c["type"]: c["status"] for c in p["status"].get("conditions", [])}}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    if not os.access(os.path.join(KUBE, "kube-apiserver"), os.X_OK):
        pytest.skip("scripts/kube.sh builds the API server")
    c = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        c.make({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "fleet"}})
        for o in (crd("inference.networking.k8s.io", "InferencePool", POOL), crd("gateway.networking.k8s.io", "HTTPRoute")):
            c.make(o)
        for what in ("inference.networking.k8s.io/v1/namespaces/fleet/inferencepools", "gateway.networking.k8s.io/v1/namespaces/fleet/httproutes"):
            wait_for(what, lambda what=what: c.ask("GET", f"/apis/{what}")["items"] == [], 60)
        for o in manifests("picker"):
            c.make(o)
        yield c
    finally:
        c.stop()


@pytest.fixture
def router(cluster, start, tmp_path):  # noqa: F811
    """A selection service that finds its workers as the picker of the manifests does; its token is the account's."""
    class Router:
        token = tmp_path / "token"

        def __init__(self):
            self.token.write_text(cluster.token(f"s{time.monotonic_ns()}"))
            self.r = start(Select, "--discovery", "kubernetes", "--kubernetes-api", cluster.url, "--kubernetes-ca", cluster.ca.file, "--kubernetes-token-file",
                           self.token, "--kubernetes-namespace", "fleet", "--kubernetes-pool", "qwen")

        def chosen(self):
            return {w["endpoint"] for w in self.r.get("/workers") if w["state"] == "active"}

        def right(self, **how):
            """Within two seconds."""
            t0, want = time.monotonic(), cluster.truth(**how)
            wait_for("the truth", lambda: self.chosen() == want)
            assert time.monotonic() - t0 < 2
            return want
    for p in cluster.ask("GET", cluster.PODS)["items"]:
        cluster.delete(p["metadata"]["name"])
    return Router()


def test_the_manifests_are_accepted(cluster):
    """Those of the picker are, by the fixture; those of the router in a namespace of their own."""
    cluster.make({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "routers"}})
    for o in manifests("router"):
        assert cluster.make(o, "routers")["metadata"]["uid"]
    with pytest.raises(urllib.error.HTTPError) as refused:  # it would have told
        cluster.make({**next(o for o in manifests("router") if o["kind"] == "Role"), "rule": []}, "routers")
    assert refused.value.code == 400


def test_the_role_allows_what_is_asked_and_nothing_else(cluster):
    token = cluster.token("role")
    for path in (cluster.PODS, "/apis/inference.networking.k8s.io/v1/namespaces/fleet/inferencepools", "/apis/discovery.k8s.io/v1/namespaces/fleet/endpointslices"):
        assert "items" in cluster.ask("GET", path, token=token)
    for method, path in (("GET", "/api/v1/namespaces/fleet/secrets"), ("GET", "/api/v1/namespaces/routers/pods"), ("GET", "/api/v1/pods"),
                         ("GET", f"{cluster.PODS}/x"), ("DELETE", f"{cluster.PODS}/x")):
        with pytest.raises(urllib.error.HTTPError) as refused:
            cluster.ask(method, path, token=token)
        assert refused.value.code == 403


def test_pods_come_change_and_go(cluster, router):
    router.right()
    for i in range(5):
        cluster.pod(f"vllm-{i}", f"127.0.4.{i}", ready=i < 4)
    assert len(router.right()) == 4
    cluster.status("vllm-4", "127.0.4.4", True)
    assert len(router.right()) == 5
    cluster.status("vllm-0", "127.0.4.0", False)
    router.right()
    cluster.delete("vllm-1", grace=30)
    router.right()
    assert len(router.r.get("/workers")) == 5  # two drain
    cluster.delete("vllm-1")
    cluster.label("vllm-2", app="retired")
    router.right()
    wait_for("they are gone", lambda: len(router.r.get("/workers")) == 3)
    cluster.label("vllm-2", app="vllm")
    cluster.delete("vllm-3")
    cluster.pod("vllm-3", "127.0.4.3")  # another life at the address
    assert len(router.right()) == 3
    assert router.r.metric("kubernetes_lists_total", resource="pods") == 1 and router.r.metric("kubernetes_errors_total", resource="pods") == 0


def test_a_pool_changes_goes_and_comes_back(cluster, router):
    path = "/apis/inference.networking.k8s.io/v1/namespaces/fleet/inferencepools"
    cluster.pod("a", "127.0.4.1", tier="gold")
    cluster.pod("b", "127.0.4.2")
    router.right()
    cluster.ask("PATCH", f"{path}/qwen", {"spec": {"selector": {"matchLabels": {"app": "vllm", "tier": "gold"}}, "targetPorts": [{"number": 8000}, {"number": 8001}]}},
                kind="application/merge-patch+json")
    assert router.right(ports=(8000, 8001), selector="tier=gold") == {"http://127.0.4.1:8000", "http://127.0.4.1:8001"}
    cluster.ask("DELETE", f"{path}/qwen")
    wait_for("no workers", lambda: not router.r.get("/workers"))
    cluster.make(next(o for o in manifests("picker") if o["kind"] == "InferencePool"))
    assert len(router.right()) == 2


def test_a_server_that_was_restarted_and_has_forgotten_versions(cluster, router):
    cluster.pod("a", "127.0.4.1")
    cluster.pod("b", "127.0.4.2")
    router.right()
    router.r.p.send_signal(signal.SIGSTOP)
    cluster.down()
    cluster.up()
    cluster.delete("a")  # it misses what follows
    for i in range(300):
        cluster.pod(f"many-{i}", f"127.0.5.{i % 250}", ready=i < 200)
    cluster.down()
    cluster.up()
    for i in range(0, 300, 3):
        cluster.delete(f"many-{i}")
    router.r.p.send_signal(signal.SIGCONT)
    wait_for("the truth", lambda: router.chosen() == cluster.truth(), 20)
    assert router.r.metric("kubernetes_lists_total", resource="pods") == 2  # the version was too old
    told = router.r.text()
    cluster.down()
    wait_for("it is told", lambda: "what is known of them stays" in router.r.text()[len(told):] or router.r.metric("kubernetes_errors_total", resource="pods") > 1, 30)
    assert len(router.chosen()) > 100
    cluster.up()
    wait_for("it watches again", lambda: router.r.metric("kubernetes_watching", resource="pods") == 1, 40)
    cluster.delete("b")
    router.right()


def test_a_token_that_ends_is_replaced(cluster, router):
    cluster.pod("a", "127.0.4.1")
    router.right()
    old = router.token.read_text()
    router.token.write_text(cluster.token("newer"))
    cluster.ask("DELETE", f"/api/v1/namespaces/fleet/secrets/{json.loads(base64.b64decode(old.split('.')[1] + '=='))['kubernetes.io']['secret']['name']}")

    def refused():
        try:
            cluster.ask("GET", cluster.PODS, token=old)
        except urllib.error.HTTPError as e:
            return e.code == 401
        return False
    wait_for("the old one is not taken", refused, 60)
    cluster.down()
    cluster.up()
    wait_for("it watches again", lambda: router.r.metric("kubernetes_watching", resource="pods") == 1, 40)
    cluster.pod("b", "127.0.4.2")
    router.right()
    assert "the token is not taken any more, and there is a new one" in router.r.text() and old not in router.r.text()


def test_a_thousand_pods_in_pages(cluster, router):
    for i in range(1000):
        cluster.pod(f"p-{i}", f"127.6.{i // 250}.{i % 250}")
    router.right()
    again = type(router)()
    wait_for("all by a list", lambda: len(again.chosen()) == 1000, 20)
    assert again.r.metric("kubernetes_lists_total", resource="pods") == 1
    for i in range(0, 1000, 2):
        cluster.delete(f"p-{i}")
    router.right()
    again.right()
