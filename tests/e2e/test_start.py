# SPDX-License-Identifier: Apache-2.0
"""docs/start/mocks.md and docs/start/kubernetes.md as their readers go through them."""
import os
import re
import subprocess

import pytest

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


def test_the_manifest_starts_a_router_that_finds_its_workers(tmp_path):
    """What a cluster would read of it: the options of the containers and the file that is mounted for them."""
    with open(os.path.join(ROOT, "deploy/kubernetes/kvroute.yaml"), encoding="utf-8") as f:
        text = f.read()
    config = tmp_path / "kvroute.yaml"
    config.write_text(re.sub(r"^    ", "", re.search(r"^  kvroute\.yaml: \|\n(.*?)^---", text, re.M | re.S)[1], flags=re.M))
    (args,) = re.findall(r"^ +args: \[(.*)\]$", text, re.M)
    args = [a.strip().strip('"') for a in args.replace("/etc/kvroute/kvroute.yaml", str(config)).split(",")]
    p = subprocess.run([BINARY, *args, "--check"], capture_output=True, text=True, timeout=60, check=False)
    assert p.returncode == 0, p.stderr
    p = subprocess.run([BINARY, "check", str(config)], capture_output=True, text=True, timeout=60, check=False)
    assert p.returncode == 0 and "nothing is wrong" in p.stdout, p.stdout + p.stderr
    assert "terminationGracePeriodSeconds: 200" in text and "drain-timeout: 180" in text and "lame-duck-time: 10" in text
