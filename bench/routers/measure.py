# SPDX-License-Identifier: Apache-2.0
"""One run: engines with empty caches, a fresh router, the client; what each of them says afterwards."""
import json
import os
import subprocess

from engines import COUNTERS, MODEL, counters, reset
from ports import free_ports
from processes import Failed

CLIENT_TIMEOUT_S = 30


def max_of_mean(v):
    return max(v) * len(v) / sum(v) if sum(v) else None


def run_client(lab, kvroute, row, urls, seed, trace):
    report = os.path.join(lab.logs, "report.json")
    if os.path.exists(report):
        os.remove(report)
    lab.start("client", [kvroute, "replay", "--url", ",".join(urls), "--workload", f"{row.workload},seed={seed}", "--prompts", "text", "--model", MODEL,
                         "--timeout", CLIENT_TIMEOUT_S, "--no-progress", "--json", report, *(["--trace", trace] if row.trace else [])])
    client = lab.running.pop("client")
    try:
        _, status, usage = os.wait4(client.pid, 0)  # its CPU time comes with its end
        client.returncode = os.waitstatus_to_exitcode(status)
    except BaseException:
        lab.running["client"] = client  # so that it is ended
        raise
    try:
        with open(report) as f:
            said = json.load(f)[0]
    except (OSError, ValueError):
        raise Failed(f"the client ended with {client.returncode}: {lab.end_of_log('client')}") from None
    return said, usage.ru_utime + usage.ru_stime


def measure(lab, kvroute, fleet, row, router, seed, trace):
    """The figures of one run (table.FIGURES, and more)."""
    try:
        engines = fleet.start(lab, row, router)
        first = free_ports(router.ports)
        ports = range(first, first + router.ports)
        router.start(lab, ports, engines)
        router.ready(lab, ports, engines)
        reset(engines)
        before, cpu = counters(engines), lab.cpu_s(router.names())
        said, client_cpu = run_client(lab, kvroute, row, router.urls(ports, engines), seed, trace)
        cpu, after = lab.cpu_s(router.names()) - cpu, counters(engines)
        lab.alive()
    except subprocess.SubprocessError as e:
        raise Failed(str(e)) from None
    finally:
        lab.stop()
    delta = {k: [b - a for a, b in zip(before[k], after[k])] for k in COUNTERS}
    done = said["successes"]
    per_request = lambda s: 1000 * s / done if done else None
    return {"seed": seed, "requests": done, "failures": said["errors"], "first_error": said["first_error"], "wall_s": said["wall_s"],
            "hit_pct": 100 * (sum(delta["cached"]) + sum(delta["read"])) / max(1, sum(delta["tokens"])), "hit_pct_of_answers": said["cached_token_ratio_pct"],
            "ttft_mean_ms": said["ttft_mean_ms"], "ttft_p50_ms": said["ttft_p50_ms"], "ttft_p90_ms": said["ttft_p90_ms"],
            "ttft_p99_ms": said["ttft_p99_ms"], "e2e_p50_ms": said["e2e_p50_ms"], "e2e_p99_ms": said["e2e_p99_ms"],
            "balance_requests": max_of_mean(delta["requests"]), "balance_tokens": max_of_mean(delta["tokens"]), "engines": delta,
            "cpu_ms_per_request": per_request(cpu) if router.names() else None, "client_cpu_ms_per_request": per_request(client_cpu)}
