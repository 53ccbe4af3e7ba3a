# SPDX-License-Identifier: Apache-2.0
"""Workers that are pods. Whatever the API server does to its watches, the workers of a router are, a moment later, the pods that are ready."""
import http.client
import json
import os
import socket

import pytest
import yaml

import kube_parts
from conftest import SLOW, Mock, Process, Select, Serve, call, free_ports, stays, wait_for
from kube_parts import PODS, POOLS, SLICES, Kube, addresses, pod, pool, slice_of, status, truth


@pytest.fixture
def kube(tmp_path):
    k = Kube(tmp_path)
    yield k
    k.stop()


@pytest.fixture
def fleet(kube):
    """Three pods that are ready, and their pool."""
    for i in (1, 2, 3):
        kube.put(PODS, pod(f"vllm-{i}", f"127.0.1.{i}"))
    kube.put(POOLS, pool())
    return kube


BY_POOL = ["--kubernetes-pool", "qwen"]


def select(start, kube, *more):
    return start(Select, *kube.options, *(more or BY_POOL))


def chosen(r):
    return {w["endpoint"] for w in r.get("/workers") if w["state"] == "active"}


def all_of(r):
    return {w["endpoint"] for w in r.get("/workers")}


def settled(r, kube, **how):
    """The workers are the truth, and nobody else is one."""
    wait_for("the truth", lambda: chosen(r) == all_of(r) == truth(kube, **how))


def watching(r, resource="pods"):
    wait_for(f"a watch of {resource}", lambda: r.metric("kubernetes_watching", resource=resource) == 1)


def test_pods_come_change_and_go(start, fleet):
    r = select(start, fleet)
    settled(r, fleet)
    fleet.put(PODS, pod("vllm-4", "", ready=False, phase="Pending"))
    fleet.put(PODS, pod("vllm-5", "127.0.1.5", ready=False))  # never ready: no worker yet
    fleet.put(PODS, pod("other", "127.0.1.6", labels={"app": "postgres"}))
    fleet.put(PODS, pod("vllm-4", "127.0.1.4"))
    settled(r, fleet)
    fleet.delete(PODS, "vllm-2")
    settled(r, fleet)
    assert r.metric("kubernetes_pods") == 4 and r.metric("kubernetes_pods_ready") == 3 and r.metric("discovery_refused_total") == 0


def test_a_pod_that_is_not_ready_any_more_gets_nothing_new_and_stays_until_it_is_gone(start, fleet):
    r = select(start, fleet)
    settled(r, fleet)
    a, b = pod("vllm-1", "127.0.1.1", ready=False), pod("vllm-2", "127.0.1.2", deleting=True)
    a["metadata"]["uid"], b["metadata"]["uid"] = (fleet.objects[PODS][o["metadata"]["name"]]["metadata"]["uid"] for o in (a, b))
    fleet.put(PODS, a)
    fleet.put(PODS, b)
    wait_for("two that drain", lambda: chosen(r) == truth(fleet) == {"http://127.0.1.3:8000"})
    assert len(all_of(r)) == 3
    a["status"] = pod("x", "127.0.1.1")["status"]
    fleet.put(PODS, a)
    fleet.delete(PODS, "vllm-2")
    settled(r, fleet)


def test_an_operators_drain_ended_when_the_pod_was_not_ready_for_a_moment(start, fleet):
    r = select(start, fleet)
    settled(r, fleet)
    pods = {i: fleet.objects[PODS][f"vllm-{i}"] for i in (1, 2)}
    state = lambda: {w["endpoint"].split("/")[2].split(":")[0]: w["state"] for w in r.get("/workers")}  # noqa: E731
    first = next(w["worker_id"] for w in r.get("/workers") if "127.0.1.1" in w["endpoint"])
    assert r.ask(f"/workers/{first}", {"state": "draining"}, method="PATCH") is not None
    for ready, want in ((False, "draining"), (True, "active")):
        for i, p in pods.items():
            fleet.put(PODS, {**p, "status": pod("x", f"127.0.1.{i}", ready=ready)["status"]})
        wait_for("the second", lambda: state()["127.0.1.2"] == want)
    assert state()["127.0.1.1"] == "draining"
    assert r.ask(f"/workers/{first}", {"state": "active"}, method="PATCH") is not None and state()["127.0.1.1"] == "active"


def test_streams_of_a_pod_that_is_deleted_run_on(start, kube):
    port = free_ports()
    m = start(Mock, "--host", "127.0.0.1", port=port, speedup=1)
    kube.put(PODS, pod("vllm-1", "127.0.0.1"))
    r = start(Serve, [], *kube.options, "--kubernetes-selector", "app=vllm", "--kubernetes-ports", port, "--discovery-worker",
              f"events=tcp://{{host}}:{m.events},replay=tcp://{{host}}:{m.replay}")
    c = http.client.HTTPConnection("127.0.0.1", r.port, timeout=30 * SLOW)
    c.request("POST", "/v1/completions", json.dumps({"prompt": list(range(64)), "max_tokens": 60, "stream": True}))
    stream = c.getresponse()
    assert stream.readline().startswith(b"data: ")
    kube.put(PODS, pod("vllm-1", "127.0.0.1", deleting=True, uid=kube.objects[PODS]["vllm-1"]["metadata"]["uid"]))
    wait_for("it drains", lambda: not chosen(r) and len(all_of(r)) == 1)
    kube.delete(PODS, "vllm-1")
    wait_for("it is gone", lambda: not all_of(r))
    assert stream.read().endswith(b"data: [DONE]\n\n")
    c.close()
    wait_for("nothing is booked", r.idle)


def views_begun(r):
    """How many views were begun and have become whole, here from what the mock, which stays the same, still has of its events."""
    return r.text().count("view=whole was=unknown")


def test_another_pod_at_the_address_is_another_worker_life(start, kube):
    """Its view is not that of the pod before; a pod that only changed keeps its own."""
    port = free_ports()
    m = start(Mock, port=port)
    kube.put(PODS, pod("vllm-1", "127.0.0.1"))
    r = start(Serve, [], *kube.options, "--kubernetes-selector", "app=vllm", "--kubernetes-ports", port, "--discovery-worker",
              f"events=tcp://{{host}}:{m.events}")
    tokens = list(range(1, 129))
    assert r.complete(tokens).status == 200
    wait_for("its events", lambda: set(r.overlap(tokens).values()) == {8})
    kube.put(PODS, {**kube.objects[PODS]["vllm-1"], "spec": {"nodeName": "n1"}})
    kube.put(PODS, pod("vllm-2", "127.0.1.2"))
    wait_for("both", lambda: len(all_of(r)) == 2)
    assert 8 in r.overlap(tokens).values() and views_begun(r) == 1
    kube.put(PODS, pod("vllm-1", "127.0.0.1"))
    wait_for("a view of its own", lambda: len(all_of(r)) == 2 and views_begun(r) == 2)
    kube.delete(PODS, "vllm-2")
    wait_for("the other one is gone", lambda: len(all_of(r)) == 1)
    others = list(range(1001, 1129))
    assert r.complete(others).status == 200
    wait_for("its events", lambda: set(r.overlap(others).values()) == {8})
    kube.stop()  # nobody tells of what follows but a list
    kube.put(PODS, pod("vllm-1", "127.0.0.1"))
    kube.forget()
    kube.start()
    wait_for("a view of its own again", lambda: len(all_of(r)) == 1 and views_begun(r) == 3, 20)


def test_labels_annotations_and_ports_make_a_worker(start, fleet):
    fleet.put(POOLS, pool(ports=(8000, 8001)))
    fleet.put(PODS, pod("vllm-1", "127.0.1.1", labels={"llm-d.ai/role": "prefill"}))
    fleet.put(PODS, pod("vllm-2", "127.0.1.2", labels={"llm-d.ai/role": "decode"}, notes={"kvroute.io/worker": "taint={pod},role=both"}))
    fleet.put(PODS, pod("vllm-3", "127.0.1.3", notes={"inference.networking.k8s.io/active-ports": "8001"}))
    fleet.put(PODS, pod("vllm-4", "fd00::4", labels={"llm-d.ai/role": "prefill-decode"}))
    fleet.put(PODS, pod("vllm-5", "127.0.1.5", notes={"kvroute.io/worker": "api-key-file=/etc/passwd"}))
    fleet.put(PODS, pod("vllm-6", "127.0.1.6", notes={"inference.networking.k8s.io/active-ports": "all"}))
    r = select(start, fleet, *BY_POOL, "--discovery-worker", "events=tcp://{host}:{5557+rank},taint=rank-{rank}-of-{pod}")
    want = {f"http://{a}:{p}" for a in ("127.0.1.1", "127.0.1.2", "[fd00::4]") for p in (8000, 8001)} | {"http://127.0.1.3:8001"}
    wait_for("all ports", lambda: all_of(r) == want)
    ws = {w["endpoint"]: w for w in r.get("/workers")}
    a, b, c = (ws[f"http://{x}"] for x in ("127.0.1.1:8001", "127.0.1.2:8000", "[fd00::4]:8001"))
    assert (a["role"], b["role"], c["role"]) == ("prefill", "both", "both")
    assert a["taints"] == ["rank-1-of-vllm-1"] and b["taints"] == ["rank-0-of-vllm-2", "vllm-2"]
    assert [list(w["kv_events_endpoints"].values()) for w in (a, b, c)] == [["tcp://127.0.1.1:5558"], ["tcp://127.0.1.2:5557"], ["tcp://[fd00::4]:5558"]]
    said = r.text()
    assert "pod vllm-5: its annotation kvroute.io/worker names keys or files" in said and "passwd" not in said
    assert "pod vllm-6: its annotation inference.networking.k8s.io/active-ports is no list of ports" in said
    assert r.metric("kubernetes_unread_total") == 2


def test_a_thousand_pods_in_pages(start, kube):
    kube.page = 90  # servers may give less than they are asked for
    for i, a in enumerate(addresses(1000)):
        kube.put(PODS, pod(f"vllm-{i}", a))
    kube.put(POOLS, pool())
    r = select(start, kube)
    wait_for("all", lambda: len(all_of(r)) == 1000, 20)
    settled(r, kube)
    assert kube.count("list", PODS) == 12 and r.metric("kubernetes_lists_total", resource="pods") == 1
    for i in range(0, 1000, 7):
        kube.delete(PODS, f"vllm-{i}")
    settled(r, kube)
    kube.forget()
    for i in range(0, 1000, 14):
        kube.put(PODS, pod(f"vllm-{i}", f"127.9.{i // 250}.{1 + i % 250}"))
    settled(r, kube)


def test_watches_that_are_cut_or_end_lose_nothing(start, fleet):
    r = select(start, fleet)
    settled(r, fleet)
    watching(r)

    def half_a_line(h, _):
        kube_parts.begin(h)
        kube_parts.piece(h, b'{"type":"DELETED","object":{"metadata":{"name":"vllm-1","uid":"')
        h.connection.shutdown(socket.SHUT_RDWR)

    def at_once(h, _):
        kube_parts.begin(h)
        kube_parts.end(h)
    for broken in (half_a_line, at_once):
        fleet.instead("watch", PODS, broken)
        fleet.cut()
        wait_for("it was asked", lambda: not fleet.answers)
        fleet.put(PODS, pod(f"new-{broken.__name__.replace('_', '-')}", f"127.0.2.{len(broken.__name__)}"))
        settled(r, fleet)
    fleet.put(PODS, pod("vllm-9", "127.0.1.9"))
    settled(r, fleet)
    assert r.metric("kubernetes_lists_total", resource="pods") == 1  # each went on from where the one before had ended


def test_a_version_that_is_too_old_twice_has_pods_listed_again(start, fleet):
    r = select(start, fleet)
    settled(r, fleet)
    watching(r)
    known = {w["endpoint"]: w["worker_id"] for w in r.get("/workers")}

    def too_old(h, _):
        status(h, 410, "too old resource version")
    fleet.instead("watch", PODS, too_old)
    fleet.forget()  # the watch that runs is told so, too
    fleet.delete(PODS, "vllm-1")
    fleet.put(PODS, pod("vllm-7", "127.0.1.7"))
    settled(r, fleet)
    wait_for("three lists", lambda: r.metric("kubernetes_lists_total", resource="pods") == 3)
    assert {u: i for u, i in known.items() if "1.1:" not in u}.items() <= {w["endpoint"]: w["worker_id"] for w in r.get("/workers")}.items()


def test_a_bookmark_moves_the_version_on(start, fleet):
    r = select(start, fleet)
    settled(r, fleet)
    watching(r)
    before = r.metric("kubernetes_events_total", resource="pods")
    fleet.bookmark()
    wait_for("it is heard", lambda: r.metric("kubernetes_events_total", resource="pods") == before + 1)
    fleet.cut()
    watching(r)
    wait_for("the watch after it", lambda: fleet.asked[-1][2].get("resourceVersion") == str(fleet.rv) or fleet.asked[-2][2].get("resourceVersion") == str(fleet.rv))
    assert r.metric("kubernetes_lists_total", resource="pods") == 1


def test_a_token_that_is_not_taken_any_more_is_read_again(start, fleet):
    r = select(start, fleet)
    settled(r, fleet)
    watching(r)
    fleet.tokens = {"second"}
    fleet.token_file.write_text("second\n")
    fleet.cut()
    fleet.put(PODS, pod("vllm-8", "127.0.1.8"))
    settled(r, fleet)
    assert "the token is not taken any more, and there is a new one" in r.text() and "second" not in r.text()


def test_who_is_refused_is_told_what_the_role_lacks_and_goes_on_when_it_has_it(start, fleet):
    fleet.forbidden = {("list", PODS)}
    r = select(start, fleet)
    wait_for("it is told", lambda: 'cannot list resource "pods"' in r.text())
    assert f"cannot list {PODS}: 403 Forbidden: pods is forbidden" in r.text() and "its role needs list and watch" in r.text()
    assert not all_of(r) and r.metric("kubernetes_errors_total", resource="pods") >= 1
    fleet.forbidden = set()
    settled(r, fleet)
    assert "pods: the API server tells of them again" in r.text()


def test_a_server_that_asks_for_patience_is_given_it(start, fleet):
    fleet.instead("list", PODS, lambda h, _: status(h, 429, "too many requests", Retry_After="2"))
    r = select(start, fleet)
    wait_for("it is refused", lambda: "429" in r.text())
    stays("patience", lambda: fleet.count("list", PODS) == 1, 1)
    settled(r, fleet)


def test_labels_and_selectors_change(start, fleet):
    r = select(start, fleet)
    settled(r, fleet)
    fleet.put(PODS, pod("vllm-1", "127.0.1.1", labels={"app": "retired"}))
    settled(r, fleet)
    fleet.put(PODS, pod("vllm-1", "127.0.1.1"))
    settled(r, fleet)
    fleet.put(PODS, pod("vllm-2", "127.0.1.2", labels={"tier": "gold"}))
    lists = fleet.count("list", PODS)
    fleet.put(POOLS, pool({"app": "vllm", "tier": "gold"}, ports=(8000, 8002)))
    settled(r, fleet, selector={"app": "vllm", "tier": "gold"}, ports=(8000, 8002))
    fleet.put(POOLS, {**fleet.objects[POOLS]["qwen"], "status": {"parents": []}})
    fleet.put(PODS, pod("vllm-3", "127.0.1.3", labels={"tier": "gold"}))
    settled(r, fleet, selector={"app": "vllm", "tier": "gold"}, ports=(8000, 8002))
    assert fleet.count("list", PODS) == lists + 1  # not for the status


def test_a_pool_that_is_deleted_has_no_workers_until_it_is_back(start, fleet):
    r = select(start, fleet)
    settled(r, fleet)
    fleet.delete(POOLS, "qwen")
    wait_for("none", lambda: not all_of(r))
    assert "there is no InferencePool qwen in namespace fleet" in r.text()
    fleet.put(POOLS, pool())
    settled(r, fleet)
    fleet.put(POOLS, pool(appProtocol="kubernetes.io/h2c"))
    wait_for("it is told", lambda: "InferencePool qwen: its appProtocol is not http" in r.text())
    settled(r, fleet)  # as before
    fleet.put(POOLS, pool())
    fleet.put(PODS, pod("vllm-4", "127.0.1.4"))
    settled(r, fleet)


def test_while_the_server_is_away_workers_stay(start, fleet):
    r = select(start, fleet)
    settled(r, fleet)
    watching(r)
    fleet.stop()
    wait_for("it is told", lambda: "cannot be asked: connection refused; what is known of them stays" in r.text())
    assert all_of(r) == truth(fleet)
    fleet.delete(PODS, "vllm-1")
    fleet.put(PODS, pod("vllm-4", "127.0.1.4"))
    fleet.forget()
    fleet.start()
    wait_for("the truth", lambda: chosen(r) == all_of(r) == truth(fleet), 15)


def test_a_server_that_cannot_be_trusted_is_not_told_the_token(start, kube, tmp_path):
    (tmp_path / "other").mkdir()
    other = Kube(tmp_path / "other")
    r = select(start, kube, "--kubernetes-selector", "app=vllm", "--kubernetes-ports", "8000", "--kubernetes-api", f"https://127.0.0.1:{other.port}")
    wait_for("it is told", lambda: "cannot be asked" in r.text() and "certificate" in r.text())
    assert not other.asked
    other.stop()


def test_an_endpoint_picker_finds_its_pods(start, fleet):
    admin = free_ports()
    p = start(Process, "epp", "--host", "127.0.0.1", "--ext-proc-port", free_ports(), "--admin-port", admin, *fleet.options, *BY_POOL)
    wait_for("its admin port", lambda: p.p.poll() is not None or call(admin, "GET", "/health").status == 200)
    if p.p.poll() is not None and "nghttp2" in p.text():
        p.expect = None
        pytest.skip("built without nghttp2")
    wait_for("the truth", lambda: {w["endpoint"] for w in call(admin, "GET", "/workers").json()} == truth(fleet))


def test_routers_behind_a_service_are_followed(start, kube):
    port = free_ports()
    kube.put(SLICES, slice_of("kvroute-a", "127.0.3.1", ("127.0.3.2", False), "127.0.0.1"))
    kube.put(SLICES, slice_of("kvroute-6", "fd00::1", family="IPv6"))
    kube.put(SLICES, slice_of("other", "127.0.3.9", service="other"))
    r = start(Serve, [], *kube.options, "--kubernetes-selector", "app=vllm", "--kubernetes-ports", "8000", "--kubernetes-peers", "kvroute",
              "--replica-sync-port", port, "--replica-sync-host", "127.0.0.1", ready=False)

    def peers(*want):
        wait_for(f"peers {want}", lambda: r.metric("replica_sync_peers") == len(want))
        for a in want:
            assert f"router tcp://{a}:{port} is followed" in r.text()
    peers("127.0.3.1")
    kube.put(SLICES, slice_of("kvroute-a", "127.0.3.1", "127.0.3.2"))
    kube.put(SLICES, slice_of("kvroute-b", "127.0.3.2", "127.0.3.3"))
    peers("127.0.3.1", "127.0.3.2", "127.0.3.3")
    kube.put(SLICES, slice_of("kvroute-a"))
    peers("127.0.3.2", "127.0.3.3")
    kube.delete(SLICES, "kvroute-b")
    wait_for("the other family", lambda: f"router tcp://[fd00::1]:{port} is followed" in r.text())


def test_two_routers_of_a_service_share_bookings(start, kube):
    """127.0.0.1 is this machine's own address, as a pod's is its own: each follows the other one alone."""
    port = free_ports()
    kube.put(SLICES, slice_of("kvroute-a", "127.0.3.1", "127.0.3.2"))
    a, b = (start(Serve, [], *kube.options, "--kubernetes-selector", "app=vllm", "--kubernetes-ports", "8000", "--kubernetes-peers", "kvroute",
                  "--replica-sync-port", port, "--replica-sync-host", f"127.0.3.{i}", ready=False) for i in (1, 2))
    for r in (a, b):
        wait_for("the other one is heard", lambda r=r: r.metric("replica_sync_live_peers") >= 1)


def test_no_more_is_asked_than_the_role_allows(start, fleet):
    """The Role of deploy/kubernetes, all of which is needed."""
    port = free_ports()
    r = start(Serve, [], *fleet.options, *BY_POOL, "--kubernetes-peers", "kvroute", "--replica-sync-port", port, "--replica-sync-host", "127.0.0.1", ready=False)
    for resource in ("pods", "inferencepools", "endpointslices"):
        watching(r, resource)
    with open(os.path.join(os.path.dirname(__file__), "../../deploy/kubernetes/rbac/kvroute.yaml"), encoding="utf-8") as f:
        (role,) = [o for o in yaml.safe_load_all(f) if o["kind"] == "Role"]
    allowed = {(verb, "/apis/".join(("", f"{group}/v1")) if group else "/api/v1", resource)
               for rule in role["rules"] for verb in rule["verbs"] for group in rule["apiGroups"] for resource in rule["resources"]}
    assert allowed == {(verb, *path.split("/namespaces/fleet/")) for verb, path, _ in fleet.asked}


def test_what_cannot_be_is_refused(start, tmp_path):
    def refused(*args, env=None):
        p = start(Serve, [], *args, wait=False, env={"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1", **(env or {})})
        p.expect = None
        p.p.wait(20)
        assert p.p.returncode != 0
        return p.text()
    on = ["--discovery", "kubernetes", "--kubernetes-namespace", "fleet"]
    by = ["--kubernetes-selector", "app=vllm", "--kubernetes-ports", "8000"]
    assert "needs one of kubernetes-pool and kubernetes-selector" in refused(*on)
    assert "need discovery kubernetes" in refused("--kubernetes-pool", "qwen")
    assert "one is missing" in refused(*on, *by[:2])
    assert "kubernetes-peers needs replica-sync-port" in refused(*on, *by, "--kubernetes-peers", "x")
    assert "--kubernetes-selector: bad value 'app in (a)'" in refused(*on, "--kubernetes-selector", "app in (a)", *by[2:])
    assert "--kubernetes-ports: bad value '80,80'" in refused(*on, *by[:2], "--kubernetes-ports", "80,80")
    assert "unknown key 'event'" in refused(*on, *by, "--discovery-worker", "event=x")
    assert "use --kubernetes-namespace" in refused("--discovery", "kubernetes", *by)
    assert "use --kubernetes-api" in refused(*on, *by, env={"KUBERNETES_SERVICE_HOST": ""}) or os.path.exists("/var/run/secrets/kubernetes.io")
    assert "ca.pem" in refused(*on, *by, "--kubernetes-ca", tmp_path / "ca.pem")
