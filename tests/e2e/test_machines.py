# SPDX-License-Identifier: Apache-2.0
"""The examples of README and docs that span machines, as they stand there: each machine is a network namespace with the address that the
example gives it. A router predicts exactly what the engines reuse; in no example is anything on loopback that another machine asks."""
import contextlib
import ctypes
import os
import re
import shlex
import subprocess
import tempfile
import warnings

import pytest

from conftest import Mock, Process, call, wait_for
from nats_parts import NATS

ROOT = os.path.join(os.path.dirname(__file__), "../..")
CLONE_NEWNET = 0x40000000
libc = ctypes.CDLL(None, use_errno=True)
skipped = []


def ip(*args):
    subprocess.run(["ip", *args], check=True, capture_output=True, text=True)


class Machine:
    """Whatever is done `with` it is done there: processes that are started, connections that are made."""

    def __init__(self, name):
        self.path, self.back = f"/run/netns/{name}", None

    def __enter__(self):
        self.back = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        there = os.open(self.path, os.O_RDONLY)
        assert libc.setns(there, CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        os.close(there)

    def __exit__(self, *_):
        assert libc.setns(self.back, CLONE_NEWNET) == 0
        os.close(self.back)


@pytest.fixture
def machines():
    """Machines by the last figure of their address, 10.0.0.N, on one switch."""
    names, tag = [], f"kvr{os.getpid()}"
    try:
        try:
            ip("netns", "add", f"{tag}-0")
            names.append(f"{tag}-0")
            ip("-n", f"{tag}-0", "link", "add", "switch", "type", "bridge")
            ip("-n", f"{tag}-0", "link", "set", "switch", "up")
        except (OSError, subprocess.CalledProcessError) as e:
            skipped.append(1)
            warnings.warn(f"{len(skipped)} test(s) of examples on several machines left out: no network namespaces here: {e}")
            pytest.skip(f"no network namespaces here: {e}")
        made = {}
        for n in (1, 2, 7, 9):
            name = f"{tag}-{n}"
            ip("netns", "add", name)
            names.append(name)
            ip("-n", f"{tag}-0", "link", "add", f"v{n}", "type", "veth", "peer", "name", "eth", "netns", name)
            ip("-n", f"{tag}-0", "link", "set", f"v{n}", "master", "switch", "up")
            ip("-n", name, "addr", "add", f"10.0.0.{n}/24", "dev", "eth")
            for dev in ("lo", "eth"):
                ip("-n", name, "link", "set", dev, "up")
            made[n] = Machine(name)
        yield made
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False)


def commands(doc, *words):
    """The commands of a document's code blocks that have all these words, in order: lists of arguments, without the program."""
    text, found = open(os.path.join(ROOT, doc)).read(), []
    for block in re.findall(r"```\w*\n(.*?)```", text, re.S):
        for line in re.sub(r"\\\n", " ", block).splitlines():
            if re.match(r"(build/release/)?kvroute ", line) and all(w in line for w in words):
                found.append([a for a in shlex.split(line, comments=True)[1:] if a not in ("...", "&")])
    assert found, f"{doc} has no such command any more: {words}"
    return found


def run(start, machine, args, *more, up=None):
    with machine:
        p = start(Process, *args, *more)
        if up:
            p.up(" ".join(map(str, args)), lambda: call(up, "GET", "/ready").status == 200, 20)
        return p


def engine(start, machine, *more):
    with machine:
        return start(Mock, "--host", "0.0.0.0", "--kv-events", "tcp://*:5557", "--kv-replay", "tcp://*:5558", *more, port=8000, with_events=False)


def predicts(router, text, port=8080):
    """The second answer to a prompt: what was predicted is what the engine reused, and all that it could."""
    with router:
        body = {"prompt": text * 40 + "end", "max_tokens": 1}
        call(port, "POST", "/v1/completions", body)

        def known():
            r = call(port, "POST", "/v1/completions", body)
            blocks, used = int(r.headers["x-kvroute-overlap-blocks"]), r.json()["usage"]
            assert r.headers["x-kvroute-view"] == "whole", dict(r.headers)
            assert blocks * 16 == used["prompt_tokens_details"]["cached_tokens"] == (used["prompt_tokens"] - 1) // 16 * 16 > 0, (blocks, used)
            return r
        return wait_for("a prediction", known)


def settled(router, port=9090):
    with router:
        wait_for("all are up, and their views whole", lambda: (lambda ws: ws and all(
            w["status"] == "up" and w["views"] and all(v["trusted"] and v["view"] == "whole" for v in w["views"]) for w in ws))(
            call(port, "GET", "/workers").json()))


def test_readme_in_front_of_your_workers(start, machines):
    for n in (1, 2):
        engine(start, machines[n])
    s = run(start, machines[7], commands("README.md", "serve", "id=2,")[0], up=8080)
    settled(machines[7])
    for text in ("one ", "two ", "three "):
        predicts(machines[7], text)
    assert " warning " not in s.text(), s.text()


@pytest.mark.parametrize("doc", ["README.md", "docs/guides/publish.md"])
def test_a_sidecar_beside_an_engine_and_a_router_elsewhere(start, machines, doc):
    """The stream that the sidecar publishes has no replay: a router that comes later is whole by the recover endpoint alone."""
    m = engine(start, machines[1])
    run(start, machines[1], commands(doc, "publish", "--replay", "tcp://127.0.0.1:5557")[0], up=5559)
    with machines[1]:
        call(m.port, "POST", "/v1/completions", {"prompt": "before " * 40 + "end", "max_tokens": 1})
        wait_for("published", lambda: call(5559, "GET", "/status").json()["ranks"][0]["blocks"] > 0)
    serve = commands(doc, "serve", "recover=")[0]
    s = run(start, machines[7], serve, up=8080)
    settled(machines[7])
    predicts(machines[7], "before ")
    predicts(machines[7], "after ")
    s.kill()
    run(start, machines[7], serve, up=8080)
    settled(machines[7])
    predicts(machines[7], "after ")
    if doc == "README.md":
        with machines[7]:
            out = subprocess.run([s.args[0], *commands(doc, "doctor")[0]], capture_output=True, text=True)
        assert out.returncode == 0, out.stdout


@contextlib.contextmanager
def nats(machine):
    with machine, tempfile.TemporaryDirectory() as folder:
        p = subprocess.Popen([NATS, "-js", "-sd", folder], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        p.kill()
        p.wait()


def test_a_fleet_over_nats(start, machines):
    """A sidecar, a router that serves its index, and one on a further machine that asks it."""
    doc = "docs/guides/fleet.md"
    engine(start, machines[1])
    with nats(machines[9]):
        run(start, machines[1], commands(doc, "publish", "--announce")[0], up=5559)
        some = run(start, machines[7], commands(doc, "serve", "--serve-indexer")[0])
        with machines[7]:
            some.up("the serving router", lambda: call(8080, "GET", "/ready").status == 200 and call(9090, "GET", "/workers").json(), 30)
        settled(machines[7])
        many = run(start, machines[2], commands(doc, "serve", "--use-remote-indexer", "--discovery")[0])
        with machines[2]:
            many.up("the asking router", lambda: call(8080, "GET", "/ready").status == 200 and call(9090, "GET", "/workers").json(), 30)
        predicts(machines[7], "here ")
        with machines[2]:
            body = {"prompt": "here " * 40 + "end", "max_tokens": 1}
            r = wait_for("the served index knows", lambda: (lambda r: r if r.headers["x-kvroute-overlap-blocks"] != "0" else None)(
                call(8080, "POST", "/v1/completions", body)))
            assert int(r.headers["x-kvroute-overlap-blocks"]) * 16 == r.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        with machines[7]:
            recover = call(9090, "GET", "/workers").json()[0]["recover_endpoint"]
            host, port = re.match(r"http://([\d.]+):(\d+)/", recover).groups()
            out = subprocess.run(["curl", "-sf", "-o", "/dev/null", f"http://{host}:{port}/kv_recover"])
        assert out.returncode == 0, f"no other machine can ask {recover}"


def test_curve_between_machines(start, machines, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    engine(start, machines[1])
    program = start(Process, "curve-key", "--help").args[0]
    for side in ("publish", "router"):
        out = subprocess.run([program, "curve-key", f"{side}.key"], capture_output=True, text=True, check=True).stdout
        (tmp_path / f"{side}s.pub".replace("publishs", "publishers")).write_text(out)
    run(start, machines[1], commands("docs/guides/fleet.md", "publish", "--zmq-curve-key")[0], up=5559)
    run(start, machines[7], commands("docs/guides/fleet.md", "serve", "--zmq-curve-key")[0], up=8080)
    settled(machines[7])
    predicts(machines[7], "secret ")


def test_prefill_and_decode_on_two_machines(start, machines):
    for n, role in ((1, "prefill"), (2, "decode")):
        run(start, machines[n], ["mock", "--host", f"10.0.0.{n}", "--port", 8000, "--role", role, "--kv-protocol", "vllm-nixl",
                                 "--kv-events", "tcp://*:5557", "--kv-replay", "tcp://*:5558"])
    run(start, machines[7], commands("docs/guides/disaggregation.md", "serve", "role=prefill,events=", "role=decode")[0], up=8080)
    settled(machines[7])
    with machines[7]:
        r = call(8080, "POST", "/v1/completions", {"prompt": "two legs " * 200, "max_tokens": 4})
        assert r.status == 200 and r.headers["x-kvroute-prefill-worker"] == "1" and r.headers["x-kvroute-worker"] == "2", dict(r.headers)


def test_select_for_engines_on_other_machines(start, machines):
    """The lines as they are, curl and all."""
    m = engine(start, machines[1])
    block = next(b for b in re.findall(r"```\n(.*?)```", open(os.path.join(ROOT, "docs/guides/select.md")).read(), re.S) if "/select_and_reserve" in b)
    first, rest = block.split("\n", 1)
    s = run(start, machines[7], shlex.split(first)[1:])
    with machines[7]:
        s.up("select", lambda: call(8092, "GET", "/health").status == 200)
        out = subprocess.run(["bash", "-ec", rest.replace("curl ", "curl -sSf ")], capture_output=True, text=True)
        assert out.returncode == 0, out
        wait_for("a whole view", lambda: call(8092, "GET", "/workers").json()[0]["views"][0]["view"] == "whole")
    tokens = list(range(1, 71))
    with machines[1]:
        call(m.port, "POST", "/v1/completions", {"prompt": tokens, "max_tokens": 1})
    with machines[7]:
        wait_for("its blocks", lambda: call(8092, "POST", "/overlap_scores", {"token_ids": tokens}).json()["workers"][0]["device_blocks"] == 4)
