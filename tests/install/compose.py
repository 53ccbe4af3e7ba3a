# SPDX-License-Identifier: Apache-2.0
"""Starts the services of a Compose file, as JSON, as processes: who is well is asked as there, the load goes through the router, and
Prometheus, with its file, sees it. Grafana is left out."""
import json
import os
import shlex
import signal
import subprocess
import sys
import time
import urllib.request

SERVICES = json.load(open(sys.argv[1]))["services"]
IMAGE = ["/opt/kvroute/kvroute", "doctor", "--health", "http://127.0.0.1:9090"]  # the health check of deploy/container/Dockerfile
running = []


def command(service):
    said = SERVICES[service]["command"]
    return ["/opt/kvroute/kvroute", *(shlex.split(said) if isinstance(said, str) else said)]


def until(said, condition):
    ends = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < ends, said
        time.sleep(0.1)


def is_well(service):
    check = SERVICES[service].get("healthcheck", {"test": ["CMD", *IMAGE]})["test"]
    return subprocess.run(check[1:], stdout=subprocess.DEVNULL).returncode == 0


def get(url):
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read().decode()


def is_scraped():
    try:
        targets = json.loads(get("http://127.0.0.1:9091/api/v1/targets"))["data"]["activeTargets"]
    except OSError:
        return False
    return [t["health"] for t in targets] == ["up"]


with open("/etc/hosts", "a", encoding="utf-8") as hosts:
    hosts.write(f"127.0.0.1 localhost {' '.join(SERVICES)}\n")
try:
    for name in ("mock1", "mock2", "router"):
        running.append(subprocess.Popen(command(name)))
        until(f"{name} is not well", lambda: is_well(name))
    subprocess.run([*command("load"), "--no-progress"], check=True)
    counted = [line for line in get("http://127.0.0.1:9090/metrics").splitlines() if line.startswith("kvroute_worker_requests_total")]
    print("\n".join(counted))
    assert len(counted) == 2 and all(float(line.split()[-1]) > 0 for line in counted)
    if os.path.exists("prometheus"):
        running.append(subprocess.Popen(["./prometheus", "--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/tmp/prometheus",
                                         "--web.listen-address=127.0.0.1:9091", "--log.level=error"]))
        until("Prometheus does not reach the router", is_scraped)
        print("Prometheus has the rules and reaches the router")
    else:
        print("Prometheus was left out: scripts/prometheus.sh did not bring it")
finally:
    for process in running:
        process.send_signal(signal.SIGTERM)
    for process in running:
        process.wait(120)
