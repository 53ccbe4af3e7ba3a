# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus that reads routers of tests, with the rules of deploy/prometheus, whose times may be shorter."""
import json
import os
import re
import shutil
import subprocess
import tempfile
import urllib.parse
import urllib.request

import pytest

from conftest import free_ports, read_log, wait_for

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
DEPLOY = os.path.join(ROOT, "deploy")
RULES = os.path.join(DEPLOY, "prometheus/kvroute.rules.yml")


def tool(name):
    """A program of Prometheus: on PATH, or where scripts/prometheus.sh has put it."""
    found = shutil.which(name) or os.path.join(ROOT, "build/prometheus/usr/bin", name)
    if not os.path.exists(found):
        pytest.skip(f"NO {name.upper()}: alerts and dashboard are NOT tested; scripts/prometheus.sh fetches it")
    return found


def promtool(*args, stdin=None, cwd=None):
    p = subprocess.run([tool("promtool"), *args], input=stdin, capture_output=True, text=True, cwd=cwd, timeout=120)
    return p.returncode, p.stdout + p.stderr


DURATION = re.compile(r"\[(\d+)(s|m|h|d)\]|(?<=offset )(\d+)(s|m|h|d)|(?<=for: )(\d+)(s|m|h|d)")
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def scaled(text, factor, least_window=4, longest_for=60):
    """Rules whose windows and `for:` are so many times shorter. A window still has the samples that a rate needs."""
    def shorter(m):
        n, unit = next((m[i], m[i + 1]) for i in (1, 3, 5) if m[i])
        seconds = int(n) * SECONDS[unit] / factor
        return f"[{max(seconds, least_window):.0f}s]" if m[1] else f"{min(max(seconds, 1), longest_for):.0f}s"
    return DURATION.sub(shorter, text)


def expressions(text):
    """The names of metrics in an expression of PromQL, without what rules have recorded."""
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', '""', text)  # values of labels
    return {n for n in re.findall(r"[a-zA-Z_:][a-zA-Z0-9_:]*", bare) if re.match(r"kvroute_|process_", n)}


class Prometheus:
    """Scrapes each second, or each `every` seconds. job kvroute: `targets`, ports on loopback; job kvroute-tls: those that speak TLS."""

    def __init__(self, targets, rules=None, tls_targets=(), every=1):
        self.port, self.dir = free_ports(), tempfile.mkdtemp(prefix="kvroute-prometheus-")
        self.log = open(os.path.join(self.dir, "log"), "w+")
        lines = [f"global: {{scrape_interval: {every}s, evaluation_interval: {every}s, scrape_timeout: {every}s}}", "scrape_configs:", "  - job_name: kvroute",
                 "    static_configs:", f"      - targets: {json.dumps([f'127.0.0.1:{t}' for t in targets])}"]
        if tls_targets:
            lines += ["  - job_name: kvroute-tls", "    scheme: https", "    tls_config: {insecure_skip_verify: true}", "    static_configs:",
                      f"      - targets: {json.dumps([f'127.0.0.1:{t}' for t in tls_targets])}"]
        if rules:
            with open(os.path.join(self.dir, "rules.yml"), "w") as f:
                f.write(rules)
            lines.append("rule_files: [rules.yml]")
        config = os.path.join(self.dir, "prometheus.yml")
        with open(config, "w") as f:
            f.write("\n".join(lines) + "\n")
        self.p = subprocess.Popen([tool("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={self.dir}/data", "--log.level=warn",
                                   f"--web.listen-address=127.0.0.1:{self.port}"], stdout=self.log, stderr=subprocess.STDOUT,
                                  env={**os.environ, "GOMAXPROCS": "1"})
        try:
            wait_for("prometheus", self.is_ready, 30)
        except AssertionError:
            self.stop()
            raise

    def is_ready(self):
        assert self.p.poll() is None, read_log(self.log)
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=5) as r:
            return r.status == 200

    def get(self, path, **query):
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=20) as r:
                return json.load(r)["data"]
        except urllib.error.HTTPError as e:
            raise RuntimeError(f"{query}: {e.read().decode()[:500]}") from e

    def query(self, text):
        """[(labels, value)] of an instant vector, or of a scalar."""
        d = self.get("query", query=text)
        rows = [{"metric": {}, "value": d["result"]}] if d["resultType"] == "scalar" else d["result"]
        return [(r["metric"], float(r["value"][1])) for r in rows]

    def rules(self):
        return [r for g in self.get("rules")["groups"] for r in g["rules"]]

    def firing(self):
        """{(alert, instance): [annotations]}"""
        out = {}
        for a in self.get("alerts")["alerts"]:
            if a["state"] == "firing":
                out.setdefault((a["labels"]["alertname"], a["labels"].get("instance")), []).append(a["annotations"])
        return out

    def stop(self):
        self.p.terminate()
        try:
            self.p.wait(20)
        except subprocess.TimeoutExpired:
            self.p.kill()
            self.p.wait()
        self.log.close()
        shutil.rmtree(self.dir, ignore_errors=True)
