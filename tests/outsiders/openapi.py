# SPDX-License-Identifier: Apache-2.0
"""Schemathesis against every port of running programs (make test-openapi): requests that each OpenAPI document allows and that it forbids.

Nothing answers 500, with a status or a body that the document does not have, or takes what it says is wrong. KVROUTE: the program; SCHEMATHESIS: the
folder of scripts/openapi.sh; PORTS="admin data": only these; EXAMPLES=20: requests of each kind; SEED=1."""
import json
import os
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../e2e"))
from conftest import Indexer, Mock, Publish, Select, Serve, call, free_ports, wait_for  # noqa: E402

OUT = os.environ.get("OPENAPI_OUT", os.path.join(HERE, "../../build/outsiders/openapi-report"))
CONFIG = """
[phases.coverage]
unexpected-methods = ["get", "put", "post", "delete", "options", "patch", "trace"]
[phases.stateful]
enabled = false
[checks]
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "501", "502", "503", "504", "529"]
negative_data_rejection.expected-statuses = ["400", "401", "403", "404", "405", "409", "412", "413", "415", "422", "501", "503"]
# What a schema cannot say, as which members go together, is told with these.
positive_data_acceptance.expected-statuses = ["2xx", "400", "401", "403", "404", "409", "412", "422", "501", "502", "503", "504", "529"]
[output.sanitization]
enabled = false
"""


def documented(port, engines):
    """The port's document; what engines may answer besides is taken out: mocks stand for them."""
    doc = call(port, "GET", "/openapi.json").json()
    for path in doc["paths"].values() if engines else ():
        for method, o in path.items():
            if method != "parameters":
                o["responses"].pop("default", None)
    return doc


def judge(name, port, folder, engines=False):
    """Returns: whether nothing was found."""
    with open(os.path.join(folder, "schemathesis.toml"), "w") as f:
        f.write(CONFIG)
    with open(os.path.join(folder, f"{name}.json"), "w") as f:
        json.dump(documented(port, engines), f)
    begun = time.monotonic()
    bodies = ["--exclude-checks", "negative_data_rejection"] if engines else []  # which engines judge
    with open(os.path.join(OUT, f"{name}.txt"), "w+") as out:
        run = subprocess.run([os.path.join(os.environ["SCHEMATHESIS"], "bin/schemathesis"), "--config-file", os.path.join(folder, "schemathesis.toml"),
                              "run", os.path.join(folder, f"{name}.json"), "--url", f"http://127.0.0.1:{port}", "--no-color", "--continue-on-failure", "--suppress-health-check", "all", *bodies,
                              "-n", os.environ.get("EXAMPLES", "20"), "--seed", os.environ.get("SEED", "1")], stdout=out, stderr=out, cwd=folder)
        out.seek(0)
        text = out.read()
    print(f"{'ok  ' if run.returncode == 0 else 'FAIL'} {name}: {time.monotonic() - begun:.0f} s"
          + ("" if run.returncode == 0 else f", {os.path.relpath(out.name)}\n" + text[text.find("= SUMMARY ="):]), flush=True)
    return run.returncode == 0


def programs(made):
    """The ports, with what stands behind them."""
    def start(cls, *args, **kw):
        made.append(cls(*args, **kw))
        return made[-1]
    mocks = [start(Mock, "--model", "m", "--runtime-lora", "--enable-scale-out") for _ in range(2)]
    serve = start(Serve, mocks, "--serve-indexer", "--replica-sync-port", free_ports())
    select = start(Select, "--replica-sync-port", free_ports())
    assert call(select.port, "POST", "/workers", {"worker_id": 1, "endpoint": "http://127.0.0.1:9", "block_size": 16}).status == 201
    indexer = start(Indexer, "--test-endpoints", "--accept-events")
    publish = start(Publish, mocks[0])
    wait_for("publish", lambda: call(publish.port, "GET", "/ready").status == 200)
    return {"publish": publish.port, "indexer": indexer.port, "data": serve.port, "admin": serve.admin, "select": select.port}


def main():
    os.makedirs(OUT, exist_ok=True)
    made, failed, passed = [], 0, 0
    try:
        ports = programs(made)
        with tempfile.TemporaryDirectory() as folder:
            for name in os.environ.get("PORTS", " ".join(ports)).split():
                good = judge(name, ports[name], folder, engines=name == "data")
                passed, failed = passed + good, failed + (not good)
    finally:
        for p in reversed(made):
            p.stop()
    print(f"{passed} passed, {failed} failed")
    return failed


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
