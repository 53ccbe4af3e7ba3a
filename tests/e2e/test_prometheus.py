# SPDX-License-Identifier: Apache-2.0
"""What operators look at, with a real Prometheus over a running fleet: every panel of the dashboard shows something, every rule can be
evaluated and finds its metrics, none of the alerts speaks of a healthy fleet, and the documents have every metric and alert."""
import json
import math
import os
import re
import threading

import pytest

import metrics_page
from conftest import Mock, Serve, call, free_ports, wait_for
from prom_parts import DEPLOY, ROOT, RULES, Prometheus, expressions, promtool, scaled
from test_metrics import families
from test_traces import Collector
from tls_parts import Authority, context

DASHBOARD = os.path.join(DEPLOY, "grafana/kvroute.json")
# Families whose names were given before this page was one of Prometheus' kind: times in ms.
OLD_NAMES = re.compile(r"kvroute_(router_overhead_\w+|choice_(gain|regret)|(ttft|generation)_model_\w+)_ms")
KEYS = """keys:
- {name: alice, key: alices-secret-key}
- {name: bob, key: bobs-secret-key, requests_per_second: 0.001}
"""
MODELS = "models: {chat: {targets: [{model: gone, weight: 1}], fallback: [mock]}}\n"
# Who asks in turn, by the key: one that may, one that may not any more, nobody, and one that is not known.
ASKERS = ["alices-secret-key"] * 6 + ["bobs-secret-key", None, "nobodys-secret-key"]
# What only another fleet, or trouble, has samples of: these queries must end in `or vector(0)`, so that the panel says so.
NOT_HERE = {"kvroute_event_plane_up", "kvroute_event_plane_dropped_total", "kvroute_remote_indexer_up",
            "kvroute_kv_events_filtered_total", "kvroute_choice_regret_ms_bucket"}


def read(path):
    with open(path) as f:
        return f.read()


def panels():
    return [p for p in json.loads(read(DASHBOARD))["panels"] if p["type"] != "row"]


def filled(text):
    """A panel's query as Grafana sends it with everything chosen."""
    text = text.replace("$__rate_interval", "4s")
    return re.sub(r"\$(job|instance|model|worker)\b", ".*", text)


class Traffic:
    """Texts and tokens, streams and plain answers, the same prompts again, until it is stopped."""

    def __init__(self, s, legs):
        self.s, self.legs, self.over = s, legs, threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        i = 0
        while not self.over.is_set():
            prompt = f"conversation {i % 5}: " + "what was said before, " * 12 + f"and {i}" if i % 2 else list(range(100 * (i % 7), 100 * (i % 7) + 90))
            more = {"stream": True, "stream_options": {"include_usage": True}} if i % 3 else {}
            key = ASKERS[i % len(ASKERS)]
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            self.s.complete(prompt, max_tokens=6, model="chat" if i % 4 == 1 else "mock", headers=headers, **more)
            if i % 5 == 0:
                self.legs.complete(f"{i} asks for two legs, " * 4, max_tokens=4)
            i += 1
            self.over.wait(0.03)  # neither fleet nor machine is to be busy

    def stop(self):
        self.over.set()
        self.thread.join()


def peer(i, ports):
    """Options of one of two routers that tell each other what they book."""
    return ["--router-replica-sync", "--replica-sync-port", ports + i, "--replica-sync-peers", f"tcp://127.0.0.1:{ports + 1 - i}"]


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """A router that is protected and watched as an operator's is, another one with prefill and decode workers, requests to both, and a
    Prometheus with the rules, twenty times as fast."""
    made, folder = [], tmp_path_factory.mktemp("prometheus")
    ca = Authority(folder, "ca")
    tls, (cert, key) = context(ca.file), ca.sign("router", days=60)
    (folder / "keys.yaml").write_text(KEYS)
    (folder / "models.yaml").write_text(MODELS)
    (folder / "found").write_text("")
    collector, sync = Collector(), free_ports(2)
    try:
        made.append(a := Mock())
        made.append(b := Mock())
        made.append(s := Serve([m.spec(f",metrics=http://127.0.0.1:{m.port}/metrics") for m in (a, b)], "--engine-metrics-interval", "0.5",
                               "--tls-cert", cert, "--tls-key", key, "--admin-tls-cert", cert, "--admin-tls-key", key, "--api-key-file", folder / "keys.yaml",
                               "--models-file", folder / "models.yaml", "--access-log", folder / "access.log", *collector.options(), *peer(0, sync),
                               tls=tls, admin_tls=tls))
        sides = [Mock("--role", role, "--kv-protocol", "vllm-nixl", with_events=role == "prefill") for role in ("prefill", "decode")]
        made += sides
        made.append(legs := Serve([m.spec(f",role={role},block-size=16,kv-protocol=vllm-nixl") for m, role in zip(sides, ("prefill", "decode"))],
                                  "--tokenizer", "bytes", *peer(1, sync), "--record-events", folder / "events.jsonl",
                                  "--discovery", "file", "--discovery-target", folder / "found"))
        made.append(t := Traffic(s, legs))
        made.append(p := Prometheus([legs.admin], scaled(read(RULES), 20), tls_targets=[s.admin]))
        yield s, p, t
    finally:
        for x in reversed(made):
            x.stop()
        collector.close()
    assert not collector.errors, collector.errors


def helps(s):
    """{family: what its HELP says}"""
    return dict(re.findall(r"^# HELP (\S+) (.*)$", call(s.admin, "GET", "/metrics").body.decode(), re.M))


def page(s):
    return families(call(s.admin, "GET", "/metrics").body)


def exported(s):
    """Names of samples."""
    out = {"up"}
    for name, (kind, _) in page(s).items():
        out |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"} if kind == "histogram" else {name}
    return out


def test_rules_and_the_example_are_what_promtool_takes():
    folder = os.path.dirname(RULES)
    assert promtool("check", "config", "prometheus.yml", cwd=folder)[0] == 0, promtool("check", "config", "prometheus.yml", cwd=folder)
    rc, said = promtool("test", "rules", "kvroute.test.yml", cwd=folder)
    assert rc == 0 and "SUCCESS" in said, said


def test_the_page_is_what_promtool_takes(scene):
    s, _, _ = scene
    _, said = promtool("check", "metrics", stdin=call(s.admin, "GET", "/metrics").body.decode())
    wrong = [l for l in said.splitlines() if l and not (OLD_NAMES.fullmatch(l.split()[0]) and "abbreviated units" in l)]
    assert not wrong, "\n".join(wrong)


def test_every_panel_shows_something(scene):
    _, p, _ = scene
    left = {}
    for panel in panels():
        for query in (filled(t["expr"]) for t in panel["targets"]):
            elsewhere = bool(expressions(query) & NOT_HERE)
            assert not elsewhere or query.endswith(" or vector(0)"), query
            left[query if elsewhere else query.removesuffix(" or vector(0)")] = panel["title"]
    assert len(left) > 80 and not any("$" in e for e in left)

    def all_show():
        for e in list(left):
            if any(not math.isnan(v) for _, v in p.query(e)):
                del left[e]
        return not left
    try:
        wait_for("every panel", all_show, 20)
    except AssertionError:
        pytest.fail("\n".join(f"{panel}: {expr}" for expr, panel in left.items()))


def test_every_rule_can_be_evaluated_and_what_is_recorded_has_data(scene):
    _, p, _ = scene
    wait_for("evaluations", lambda: all(r["health"] == "ok" for r in p.rules()))
    names = {r["name"] for r in p.rules() if r["type"] == "recording"}
    assert len(names) > 8
    for name in names:
        wait_for(name, lambda n=name: any(not math.isnan(v) for _, v in p.query(n)), 20)
    assert all(r["health"] == "ok" for r in p.rules()), [r for r in p.rules() if r["health"] != "ok"]


def test_no_alert_speaks_of_a_healthy_fleet(scene):
    _, p, _ = scene
    wait_for("a while", lambda: p.query("count_over_time(up[10m]) > 8"), 30)  # longer than each `for:` of those for blind workers
    assert not p.firing(), p.firing()


def test_every_metric_of_the_dashboard_and_the_rules_is_exported(scene):
    s, p, _ = scene
    have = exported(s)
    asked = {n: panel["title"] for panel in panels() for t in panel["targets"] for n in expressions(filled(t["expr"]))}
    for r in p.rules():
        asked.update({n: r["name"] for n in expressions(r["query"])})
    variables = json.loads(read(DASHBOARD))["templating"]["list"]
    asked.update({n: v["name"] for v in variables if v["type"] == "query" for n in expressions(v["query"]["query"])})
    assert len(asked) > 80
    assert not {n: where for n, where in asked.items() if n not in have}


def test_every_alert_says_what_to_do_and_has_a_unit_test():
    rules, tests, docs = read(RULES), read(os.path.join(DEPLOY, "prometheus/kvroute.test.yml")), read(os.path.join(ROOT, "docs/guides/alerts.md"))
    alerts = re.findall(r"- alert: (\w+)", rules)
    assert len(alerts) > 20 and len(set(alerts)) == len(alerts)
    for name in alerts:
        body = re.search(rf"- alert: {name}\n(.*?)(?=\n      (?:- alert|#)|\Z)", rules, re.S)[1]
        assert all(k in body for k in ("severity:", "summary:", "description:")) and f"docs/guides/alerts.md#{name.lower()}" in body, name
        assert re.search(rf'alertname="{name}"', tests), f"no unit test of {name}"
        assert re.search(rf"^### {name}$", docs, re.M), f"docs/guides/alerts.md has no section {name}"
    assert set(re.findall(r"^### (\w+)$", docs, re.M)) == set(alerts)


FOR_GATEWAYS = "kvroute_grpc_"  # with --ext-proc-port alone


def test_the_document_has_every_metric_and_no_other(scene):
    s, _, traffic = scene
    written = read(metrics_page.PAGE).split(metrics_page.BEGIN)[1].split(metrics_page.END)[0]
    rows = re.findall(r"^\| `([a-z0-9_]+)(?:{([\w,]*)})?` \| (.*) \|$", written, re.M)
    told = {name: (metrics_page.read_labels(labels), meaning) for name, labels, meaning in rows}
    unsaid = {}
    for router in (s, traffic.legs):
        have, said = page(router), helps(router)
        assert sorted(set(have) - set(told)) == [] and sorted(n for n in set(told) - set(have) if not n.startswith(FOR_GATEWAYS)) == []
        for name, (kind, samples) in have.items():
            labels = {k for _, pairs in samples for k, _ in pairs}
            said_labels, meaning = told[name]
            said_kind = "counter" if name.endswith("_total") else "histogram" if "le" in said_labels else "gauge"
            assert said_kind == kind and meaning.replace("\\|", "|").replace("&lt;", "<") == said[name], f"{name}: scripts/metrics_page.py writes the page"
            unsaid.update({name: labels} if not labels <= said_labels else {})
    assert not unsaid, f"labels that the page does not have: {unsaid}"


def test_dashboard_has_no_two_panels_in_one_place_and_no_source_of_its_own():
    taken = set()
    for p in panels():
        g = p["gridPos"]
        cells = {(x, y) for x in range(g["x"], g["x"] + g["w"]) for y in range(g["y"], g["y"] + g["h"])}
        assert not cells & taken and g["x"] + g["w"] <= 24, p["title"]
        taken |= cells
        assert all(t["datasource"]["uid"] == "${datasource}" for t in p["targets"]) and p["description"]
    ids = [p["id"] for p in json.loads(read(DASHBOARD))["panels"]]
    assert len(set(ids)) == len(ids)
