#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs bench_index and the peers in turns on workload files and prints medians side by side.

  table.py [--rounds N] [--peers DIR] [--json FILE] [--sizes WORKLOAD...] [--lanes WORKLOAD] [--churn WORKLOAD SECONDS] WORKLOAD...

DIR holds bench-dynamo and bench-smg (make bench-peers builds them); without it only kvroute runs. Any wrong answer of
kvroute is an error; those of a peer are shown. Each program runs alone; the turns spread the machine's moods evenly.
--sizes puts workloads side by side, of kvroute alone; --lanes and --churn are what bench_index says of them.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

BENCH = "build/release/bench/bench_index"
ROWS = [
    ("apply, ns per block", "apply_ns_per_block"),
    ("fill, ns per block", "fill_ns_per_block"),
    ("worst batch of 512 while filling, ms", "worst_batch_fill_ms"),
    ("worst batch of 512, steady, ms", "worst_batch_ms"),
    ("query, ns", "query_ns"),
    ("query in batches of 16, ns", "query_batch16_ns"),
    ("query p50, ns", "query_p50_ns"),
    ("query p99, ns", "query_p99_ns"),
    ("reader beside a writer p99, ns", "mixed_p99_ns"),
    ("reader beside a writer p99.9, ns", "mixed_p999_ns"),
    ("that writer, ns per block", "mixed_apply_ns_per_block"),
    ("bytes per (block, holder), own account", "bytes_per_pair"),
    ("bytes per (block, holder), RSS", "rss_bytes_per_pair"),
    ("remove all, s", "remove_all_seconds"),
    ("RSS left after that, % of growth", "remove_all_rss_left_percent"),
    ("wrong answers", "wrong_answers"),
]


def run(command):
    out = subprocess.run(command, check=True, capture_output=True, text=True, timeout=1800).stdout
    return {k: float(v) for k, v in (line.split() for line in out.splitlines() if len(line.split()) == 2)}


def programs(peers):
    out = {"kvroute": lambda f: run([BENCH, "run", f])}
    if not peers:
        return out
    for name, command in [("dynamo compressed", ["bench-dynamo", "compressed"]), ("dynamo positional", ["bench-dynamo", "positional"]),
                          ("smg chain index", ["bench-smg"])]:
        command = [os.path.join(peers, command[0])] + command[1:]

        def both(f, command=command):
            return {**run(command + [f]), **run(command + [f, "memory"])}
        out[name] = both
    return out


def median_of(samples):
    keys = {k for s in samples for k in s}
    return {k: statistics.median(s[k] for s in samples if k in s) for k in keys}


def table(name, results):
    info = results["kvroute"]
    lines = [f"{name}: {info['pairs']:.0f} (block, holder) pairs, {info['holders_per_block']:.2f} holders a block, "
             f"{info['query_mean_blocks']:.0f} blocks and {info['query_mean_holders']:.0f} holders a query", "",
             "| figure | " + " | ".join(results) + " | best peer / kvroute |", "|---|" + "---|" * (len(results) + 1)]
    for title, key in ROWS:
        cells = [f"{r[key]:.4g}" if key in r else "" for r in results.values()]
        others = [r[key] for n, r in results.items() if n != "kvroute" and key in r and not r["wrong_answers"]]
        ours = results["kvroute"].get(key)
        ratio = f"{min(others) / ours:.1f}" if others and ours and key != "wrong_answers" else ""
        lines.append(f"| {title} | " + " | ".join(cells) + f" | {ratio} |")
    return "\n".join(lines) + "\n"


def sizes(files, rounds):
    """The workloads in turns, a column each."""
    samples = {f: [] for f in files}
    for r in range(rounds):
        for f in files:
            print(f"sizes: round {r + 1} of {rounds}, {os.path.basename(f)}", file=sys.stderr)
            samples[f].append(run([BENCH, "run", f]))
    results = {os.path.basename(f): median_of(s) for f, s in samples.items()}
    rows = [("pairs", "pairs"), ("blocks a query", "query_mean_blocks"), ("holders a query", "query_mean_holders")] + ROWS
    print("| figure | " + " | ".join(results) + " |\n|---|" + "---|" * len(results))
    for title, key in rows:
        print(f"| {title} | " + " | ".join(f"{r[key]:.4g}" for r in results.values()) + " |")
    print(f"\n(medians of {rounds} turns)\n", flush=True)
    return results


def said(title, results):
    print(f"{title}:\n" + "\n".join(f"    {k} {v:.4g}" for k, v in results.items()) + "\n", flush=True)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--peers")
    ap.add_argument("--json")
    ap.add_argument("--sizes", nargs="+", default=[])
    ap.add_argument("--lanes")
    ap.add_argument("--churn", nargs=2)
    ap.add_argument("workloads", nargs="*")
    a = ap.parse_args()
    all_results, wrong = {}, 0
    for f in a.workloads:
        samples = {name: [] for name in programs(a.peers)}
        for r in range(a.rounds):
            for name, start in programs(a.peers).items():
                print(f"{os.path.basename(f)}: round {r + 1} of {a.rounds}, {name}", file=sys.stderr)
                samples[name].append(start(f))
        results = {name: median_of(s) for name, s in samples.items()}
        wrong += results["kvroute"]["wrong_answers"]
        all_results[os.path.basename(f)] = results
        print(table(os.path.basename(f), results) + f"\n(medians of {a.rounds} turns)\n", flush=True)
    if a.sizes:
        all_results["sizes"] = sizes(a.sizes, a.rounds)
        wrong += sum(r["wrong_answers"] for r in all_results["sizes"].values())
    if a.lanes:
        all_results["lanes"] = median_of([run([BENCH, "lanes", a.lanes]) for _ in range(a.rounds)])
        said("lanes", all_results["lanes"])
    if a.churn:
        all_results["churn"] = run([BENCH, "churn", *a.churn])
        said("churn", all_results["churn"])
    if a.json:
        with open(a.json, "w", encoding="utf-8") as out:
            json.dump(all_results, out, indent=1, sort_keys=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
