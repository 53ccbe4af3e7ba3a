# SPDX-License-Identifier: Apache-2.0
"""What a gateway in a cluster does with the manifests of deploy/kubernetes/picker, as far as it can be done without a cluster."""
import os

import pytest
import yaml
from conftest import ROOT, Process, free_ports, wait_for

from kube_parts import PODS, POOLS, Kube, pod


@pytest.fixture
def cluster(tmp_path):
    k = Kube(tmp_path)
    yield k
    k.stop()


def manifest(file, kind):
    with open(os.path.join(ROOT, "deploy/kubernetes/picker", file), encoding="utf-8") as f:
        return next(o for o in yaml.safe_load_all(f) if o["kind"] == kind)


def test_a_request_goes_to_a_pod_of_the_pool_that_is_there(gateway, start, cluster):
    """The pool of the manifest and its port; then a pod goes, and the other one has what comes."""
    port, pods = free_ports(), {f"127.0.1.{i}": f"vllm-{i}" for i in (1, 2)}
    pool = manifest("pool.yaml", "InferencePool")
    pool["metadata"].update(namespace="fleet", uid="the pool's")
    pool["spec"]["targetPorts"] = [{"number": port}]
    cluster.put(POOLS, pool)
    for ip, name in pods.items():
        start(Process, "mock", "--host", ip, "--port", port)
        cluster.put(PODS, pod(name, ip))
    told = yaml.safe_load(manifest("kvroute.yaml", "ConfigMap")["data"]["kvroute.yaml"])
    ask = [a for k in ("discovery", "kubernetes-pool") for a in (f"--{k}", told[k])]
    envoy, picker = gateway("duplex", [], *cluster.options[2:], *ask)
    wait_for("both pods", lambda: sum(w["schedulable"] for w in picker.get("/workers")) == 2)
    r = envoy.complete([1] * 64, headers={"x-request-id": "first"})
    assert r.status == 200 and r.headers["x-kvroute-worker"]
    served = envoy.access("first")["upstream"].rsplit(":", 1)[0]
    cluster.delete(PODS, pods.pop(served))
    wait_for("one pod", lambda: [w["endpoint"] for w in picker.get("/workers")] == [f"http://{ip}:{port}" for ip in pods])
    r = envoy.complete([1] * 64, headers={"x-request-id": "second"})
    assert r.status == 200 and envoy.access("second")["upstream"] == f"{next(iter(pods))}:{port}"
