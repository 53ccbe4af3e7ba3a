#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of docs/reference/metrics.md from what a running `kvroute serve` (the release build) says of its metrics. --check: only says what
is missing. Labels that a family has only in other fleets stay as they stand in the page."""
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../tests/e2e"))
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
PAGE = os.path.join(ROOT, "docs/reference/metrics.md")
os.environ.setdefault("KVROUTE", os.path.join(ROOT, "build/release/kvroute"))
SHORT = {"RANK": {"dp_rank", "worker_id"}, "PARTITION": {"block_size", "model", "routing_group"}}  # labels that go together, as the page says
BEGIN, END = "<!-- scripts/metrics_page.py writes from here -->\n", "<!-- to here -->\n"
SECTIONS = [
    ("Requests by model", r"(request_(first|duration|ends)|slo_|requests_(running|waiting)|time_to_first|inter_token|time_per_out|queue_wait_|tokenize_seconds|model_names)"),
    ("Requests and tokens by model and worker", r"(requests_total|(predicted_cached|actual_cached|prompt|input|output)_tokens_total|computed_blocks)"),
    ("Workers", r"(worker_|roster_)"),
    ("What engines say of themselves", r"engine_"),
    ("Views and KV events", r"(view_|kv_(?!wait|hit)|events_)"),
    ("The index", r"index_"),
    ("Predictions and choices", r"(kv_hit|best_overlap|overlap_|choice|prefix_moves|blocks_computed|evictions_|prediction|predicted_|prompt_length|usage_|ttft_model|generation_model|input_seq|tiers_|untold_)"),
    ("Tokens of prompts", r"(tokens_total|tokenize|token_ids|multimodal|prompt_(tokens|messages|texts)_refused)"),
    ("Queue, retries, refusals", r"(router_queue|queue_|retries|errors_total|client_gone|overload|breaker|requests_(active|without)|reopened|uncounted|sessions|responses|bindings|model_fallbacks|models_config)"),
    ("The router's own time", r"router_overhead"),
    ("Prefill and decode workers", r"(disagg|prefill_leg|handoff|kv_wait)"),
    ("Ports, access, TLS", r"(http_|access_|tls_|key_|status_)"),
    ("Gateways that ask by external processing", r"(grpc_|ext_proc_)"),
    ("Other routers, event plane, discovery", r"(replica|served|remote|indexer|event_plane|durable|discovery|kubernetes)"),
    ("Files, logs, traces, configuration", r"(record|data_dir|trace|config|log_)"),
    ("The process", r"(process_|build_info|draining)"),
    ("Others", r""),
]


def scrape():
    """The text of /metrics of a small fleet that has answered some requests."""
    from conftest import Mock, Serve, call, free_ports, wait_for
    made = []
    try:
        made.append(m := Mock())
        made.append(s := Serve([m.spec(f",metrics=http://127.0.0.1:{m.port}/metrics")], "--ext-proc-port", free_ports()))
        for i in range(6):
            s.complete("a prompt of some blocks, " * 9, model="mock", stream=bool(i % 2))
        wait_for("an engine's load", lambda: s.metric("engine_metrics_reads_total") > 0)
        return call(s.admin, "GET", "/metrics").body.decode()
    finally:
        for x in reversed(made):
            x.stop()


def families(text):
    """{name: (type, labels, help)}"""
    out = {}
    for kind, name, rest in re.findall(r"^# (HELP|TYPE) (\S+) (.*)$", text, re.M):
        out.setdefault(name, ["", set(), ""])[2 if kind == "HELP" else 0] = rest
    for name, (kind, labels, _) in out.items():  # the page has no column of types
        assert (kind == "counter") == name.endswith("_total"), name
        labels |= {"le"} if kind == "histogram" else set()
    for name, labels in re.findall(r"^(\w+)\{(.*)\} ", text, re.M):
        family = name if name in out else re.sub(r"_(bucket|sum|count)$", "", name)
        out[family][1] |= set(re.findall(r'(\w+)="', labels)) - {"le"}
    return out


def read_labels(text):
    """Of `name{label,...}`, as the page has it, what is in the braces."""
    return {l for word in text.split(",") for l in SHORT.get(word, [word] if word else [])}


def write_labels(labels):
    short = [k for k, s in SHORT.items() if s <= labels]
    words = short + sorted(labels.difference(*(SHORT[k] for k in short)))
    return f"{{{','.join(words)}}}" if words else ""


def tables(have, page):
    for name, labels in re.findall(r"^\| `(\w+)(?:{([\w,]*)})?` \| ", page, re.M):
        if name in have:
            have[name][1] |= read_labels(labels)
    left, out = dict(have), []
    for title, pattern in SECTIONS:
        names = sorted(n for n in left if re.match(pattern, n.removeprefix("kvroute_")))
        if not names:
            continue
        out.append(f"\n## {title}\n\n| metric | meaning |\n|---|---|\n")
        for n in names:
            _, labels, meaning = left.pop(n)
            meaning = meaning.replace("|", "\\|").replace("<", "&lt;")
            out.append(f"| `{n}{write_labels(labels)}` | {meaning} |\n")
    return "".join(out) + "\n"


def main():
    with open(PAGE) as f:
        page = f.read()
    head, rest = page.split(BEGIN)
    old, tail = rest.split(END)
    new = tables(families(scrape()), old)
    if "--check" in sys.argv[1:]:
        sys.exit("docs/reference/metrics.md is not what serve says: scripts/metrics_page.py writes it" if new != old else 0)
    with open(PAGE, "w") as f:
        f.write(head + BEGIN + new + END + tail)


if __name__ == "__main__":
    main()
