# SPDX-License-Identifier: Apache-2.0
"""docs/start/mocks.md and docs/start/kubernetes.md as their readers go through them."""
import os
import re
import subprocess

import pytest
import yaml

from conftest import BINARY, call, free_ports, wait_for
from pages import Page, Reader, headers, shows

ROOT = os.path.join(os.path.dirname(__file__), "../..")
PORTS = ("8001", "8002", "5557", "5558", "5567", "5568", "8080", "9090")


@pytest.fixture
def reader(tmp_path):
    first = free_ports(len(PORTS))
    free = {p: str(first + i) for i, p in enumerate(PORTS)}
    r = Reader(tmp_path, BINARY, free, wait_for, KVROUTE_URL=f"http://127.0.0.1:{free['8080']}", KVROUTE_ADMIN_URL=f"http://127.0.0.1:{free['9090']}")
    r.free = free
    yield r
    r.close()


def test_every_command_of_the_page_with_mocks_does_what_it_says(reader):
    page = Page(os.path.join(ROOT, "docs/start/mocks.md"))
    engines, router, first_hit, compare, doctor = page.commands
    found, hit, table, healthy = page.shown
    reader.leave_running(engines)
    for port in ("8001", "8002"):
        wait_for("a mock", lambda p=port: call(int(reader.free[p]), "GET", "/health").status == 200, 20)
    says = reader.leave_running(router)
    wait_for("what the router has found", lambda: shows([reader.ports(line) for line in found], says()), 20)
    wait_for("all views", lambda: all(v["view"] == "whole" for w in call(int(reader.free["9090"]), "GET", "/workers").json() for v in w["views"] or [{"view": ""}]), 20)
    text = reader.run(first_hit).stdout
    shows(hit, text)
    first, second = headers(text)
    assert first["x-kvroute-overlap-blocks"] == "0" and second["x-kvroute-worker"] == first["x-kvroute-worker"]
    assert int(second["x-kvroute-overlap-blocks"]) * 16 == int(re.findall(r'"cached_tokens":(\d+)', text)[-1]) > 0
    told = re.sub(r" +", " ", reader.run(compare).stdout)
    shows([re.sub(r" +", " ", line) for line in table], told)
    p = reader.run(doctor)
    assert p.returncode == 0
    shows(healthy, p.stdout)


def manifests(folder):
    """What `kubectl kustomize` would make of a folder of deploy/kubernetes."""
    folder = os.path.join(ROOT, "deploy/kubernetes", folder)
    with open(os.path.join(folder, "kustomization.yaml"), encoding="utf-8") as f:
        (kustomization,) = yaml.safe_load_all(f)
    for r in kustomization["resources"]:
        if r.endswith(".yaml"):
            with open(os.path.join(folder, r), encoding="utf-8") as f:
                yield from yaml.safe_load_all(f)
        else:
            yield from manifests(os.path.join(folder, r))


def service_links(objects):
    """What a kubelet tells containers of the services of their namespace."""
    env = {}
    for (kind, name), o in objects.items():
        if kind != "Service" or o["spec"].get("clusterIP") == "None":
            continue
        name, port = name.upper().replace("-", "_"), o["spec"]["ports"][0]["port"]
        at = f"tcp://10.96.3.4:{port}"
        env.update({f"{name}_SERVICE_HOST": "10.96.3.4", f"{name}_SERVICE_PORT": str(port), f"{name}_PORT": at, f"{name}_PORT_{port}_TCP": at})
    assert "KVROUTE_PORT" in env
    return env


@pytest.mark.parametrize("folder", ["router", "picker"])
def test_the_manifests_fit_together_and_start_what_they_say(folder, tmp_path):
    """What a cluster would read of them: names that lead to each other, the options of the container and the file that is mounted for it."""
    all_of, by = list(manifests(folder)), {}
    for o in all_of:
        by[(o["kind"], o["metadata"]["name"])] = o
    assert len(by) == len(all_of)
    spec = by["Deployment", "kvroute"]["spec"]
    pod, labels = spec["template"]["spec"], spec["template"]["metadata"]["labels"]
    (container,) = pod["containers"]
    config = by["ConfigMap", pod["volumes"][0]["configMap"]["name"]]["data"]["kvroute.yaml"]
    options = yaml.safe_load(config)
    ports = {p["name"]: p["containerPort"] for p in container["ports"]}
    assert spec["selector"]["matchLabels"].items() <= labels.items() and container["volumeMounts"][0]["name"] == pod["volumes"][0]["name"]
    assert pod["terminationGracePeriodSeconds"] > options["lame-duck-time"] + options["drain-timeout"]
    for (kind, _), o in by.items():
        if kind == "Service":
            assert o["spec"]["selector"].items() <= labels.items() and all(p["targetPort"] in ports for p in o["spec"]["ports"])
    for probe in (container["readinessProbe"], container["livenessProbe"]):
        assert probe["httpGet"]["port"] in ports if "httpGet" in probe else probe["grpc"]["port"] == ports["health"] == options["ext-proc-health-port"]
    peers = by["Service", options["kubernetes-peers"]]["spec"]
    assert peers["clusterIP"] == "None" and peers["publishNotReadyAddresses"] and ports["sync"] == options["replica-sync-port"]
    assert ("ServiceAccount", pod["serviceAccountName"]) in by
    binding = by["RoleBinding", "kvroute"]
    assert ("Role", binding["roleRef"]["name"]) in by and binding["subjects"] == [{"kind": "ServiceAccount", "name": pod["serviceAccountName"]}]
    if folder == "picker":
        pool, route = by["InferencePool", options["kubernetes-pool"]], by["HTTPRoute", "qwen"]
        asked = pool["spec"]["endpointPickerRef"]
        (port,) = [p for p in by["Service", asked["name"]]["spec"]["ports"] if p["port"] == asked["port"]["number"]]
        assert port["name"] == "ext-proc" and port["appProtocol"] == "http2"
        assert route["spec"]["rules"][0]["backendRefs"] == [{"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": options["kubernetes-pool"]}]
    secrets = {v["name"]: v["secret"]["secretName"] for v in pod["volumes"] if "secret" in v}
    (keys,) = [m["mountPath"] for m in container["volumeMounts"] if m["name"] in secrets]
    assert options["admin-host"] == "0.0.0.0" and options["admin-key-file"] == f"{keys}/keys" and ports["admin"] == 9090
    (tmp_path / "keys").write_text("a-key-of-the-secret\n")
    command, (file, args) = container["args"][0], (tmp_path / "kvroute.yaml", container["args"][1:])
    file.write_text(config.replace(f"{keys}/keys", str(tmp_path / "keys")))
    args = [a.replace("/etc/kvroute/kvroute.yaml", str(file)) for a in args]
    # the program starts beside its own service even where links are on, as they are unless a pod says otherwise
    assert pod["enableServiceLinks"] is False
    p = subprocess.run([BINARY, command, *args, "--check"], env={**os.environ, **service_links(by)}, capture_output=True, text=True, timeout=60, check=False)
    if "this build has none" in p.stderr:
        pytest.skip("built without nghttp2")
    assert p.returncode == 0, p.stderr
    if command == "serve":
        p = subprocess.run([BINARY, "check", str(file)], capture_output=True, text=True, timeout=60, check=False)
        assert p.returncode == 0 and "nothing is wrong" in p.stdout, p.stdout + p.stderr


@pytest.mark.parametrize("file", ["compose", "gateway"])
def test_mocks_of_the_compose_files_tell_cached_tokens(file):
    """What the dashboard's hit rate is made of."""
    with open(os.path.join(ROOT, f"deploy/compose/{file}.yaml"), encoding="utf-8") as f:
        services = yaml.safe_load(f)["services"]
    commands = [s["command"].split() for name, s in services.items() if name.startswith("mock")]
    assert len(commands) == 2 and all("--enable-prompt-tokens-details" in c for c in commands)


def test_the_gateway_of_the_compose_file_fits_envoys_file():
    """One network: what Envoy's file names at 127.0.0.1 is what the containers open there, and the picker takes its options."""
    def read(name):
        with open(os.path.join(ROOT, "deploy", name), encoding="utf-8") as f:
            return yaml.safe_load(f)
    services, envoy = read("compose/gateway.yaml")["services"], read("envoy/buffered.yaml")["static_resources"]
    assert services["envoy"]["volumes"] == ["../envoy/buffered.yaml:/etc/envoy/envoy.yaml:ro"]
    port = envoy["listeners"][0]["address"]["socket_address"]["port_value"]
    assert f"127.0.0.1:{port}:{port}" in services["envoy"]["ports"]
    at = {c["name"]: [e["endpoint"]["address"]["socket_address"] for e in c["load_assignment"]["endpoints"][0]["lb_endpoints"]] for c in envoy["clusters"]}
    commands = {name: s["command"].split() for name, s in services.items() if s.get("network_mode") == "service:envoy"}
    assert len(commands) == len(services) - 1
    mocks = [int(c[c.index("--port") + 1]) for c in commands.values() if c[0] == "mock"]
    picker = commands["picker"]
    assert [a["port_value"] for a in at["workers"]] == mocks == [int(a.rsplit(":", 1)[1]) for a in picker if a.startswith("http")]
    assert not any("transport_socket" in c for c in envoy["clusters"]) and picker[picker.index("--ext-proc-tls") + 1] == "off"
    p = subprocess.run([BINARY, *picker, "--check"], capture_output=True, text=True, timeout=60, check=False)
    if "this build has none" in p.stderr:
        pytest.skip("built without nghttp2")
    assert p.returncode == 0 and f"pool; ext_proc on 0.0.0.0:{at['kvroute'][0]['port_value']}, admin on 0.0.0.0:9090;" in p.stdout, p.stdout + p.stderr
