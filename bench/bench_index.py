#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The index, events into it, questions to the indexer and choosing. Runs bench_index and the peers in turns on workload files, then the
other programs of build/release/bench, and prints medians side by side.

  bench_index.py [--rounds N] [--peers DIR] [--json FILE] [--sizes WORKLOAD...] [--lanes WORKLOAD] [--churn WORKLOAD SECONDS] WORKLOAD...

DIR holds bench-dynamo and bench-smg (make bench-peers builds them); without it only kvroute runs. Any wrong answer of
kvroute is an error; those of a peer are shown. Each program runs alone; the turns spread the machine's moods evenly.
--sizes puts workloads side by side, of kvroute alone; --lanes and --churn are what bench_index says of them.
"""
import argparse
import json
import mmap
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time

from figures import Row, medians, report, short, table

BENCH = "build/release/bench/"
KVROUTE = "build/release/kvroute"
INDEX = BENCH + "bench_index"
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
# workload, key, name, goal
READER = ("mixed_p999_ns", "reader beside a writer p99.9, ns", None)
LANDS = [(w, *row) for w, *rows in (
    ("w1", ("apply_ns_per_block", "apply, ns a block", 22), ("query_ns", "query, ns", 280), READER, ("rss_bytes_per_pair", "bytes a pair, RSS", 21),
     ("worst_batch_fill_ms", "worst batch while filling, ms", 0.5)),
    ("w7", ("apply_ns_per_block", "apply, ns a block", 12), ("query_ns", "query, ns", 1500), READER, ("rss_bytes_per_pair", "bytes a pair, RSS", None),
     ("worst_batch_fill_ms", "worst batch while filling, ms", 0.5)),
    ("trace", ("apply_ns_per_block", "apply, ns a block", 19), ("query_ns", "query, ns", 250), READER, ("rss_bytes_per_pair", "bytes a pair, RSS", None)),
    ("one2", ("query_ns", "query, ns", 120)),
    ("one50", ("query_ns", "query, ns", 300), ("worst_batch_fill_ms", "worst batch while filling, ms", 1))) for row in rows]
# program and arguments, what is read of it, name, goal
OTHERS = [
    (["bench_ingest"], r"ingest_cpu_ns_per_pair (\S+)", "events from ZMQ, CPU ns a pair", 120),
    (["bench_ingest"], r"ingest_rss_bytes_per_pair (\S+)", "events flat out, RSS bytes a pair", 12),
    (["bench_schedule", "1000", "all"], r"p50 (\S+) us", "choose and book among 1,000, us", 8),
    (["bench_schedule", "10000", "all"], r"p50 (\S+) us", "choose and book among 10,000, us", 60),
]


def said_by(command):
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=1800).stdout


def run(command):
    return {k: float(v) for k, v in (line.split() for line in said_by(command).splitlines() if len(line.split()) == 2)}


def touch_memory(mib):
    """Takes that much memory in pages of 2 MiB and gives it back: the worst page, ms, when this is done twice. The host of a virtual
    machine may take back what is free for some seconds; the next to touch it then waits 10 to 20 ms for each such page, at a place
    in its work that chance chooses."""
    page, took = 2 << 20, []
    with mmap.mmap(-1, mib << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as m:
        m.madvise(mmap.MADV_HUGEPAGE)
        for at in range(0, len(m), page):
            start = time.perf_counter()
            m[at] = 1
            took.append((time.perf_counter() - start) * 1e3)
    return max(took)


def programs(peers):
    out = {"kvroute": lambda f: run([INDEX, "run", f])}
    if not peers:
        return out
    for name, command in [("dynamo compressed", ["bench-dynamo", "compressed"]), ("dynamo positional", ["bench-dynamo", "positional"]),
                          ("smg chain index", ["bench-smg"])]:
        command = [os.path.join(peers, command[0])] + command[1:]

        def both(f, command=command):
            return {**run(command + [f]), **run(command + [f, "memory"])}
        out[name] = both
    return out


def beside(name, results):
    info, body = results["kvroute"], []
    for title, key in ROWS:
        others = [r[key] for n, r in results.items() if n != "kvroute" and key in r and not r["wrong_answers"]]
        ours = info.get(key)
        body.append([title, *[short(r.get(key)) for r in results.values()], f"{min(others) / ours:.1f}" if others and ours and key != "wrong_answers" else ""])
    return (f"{name}: {info['pairs']:.0f} (block, holder) pairs, {info['holders_per_block']:.2f} holders a block, {info['query_mean_blocks']:.0f} blocks "
            f"and {info['query_mean_holders']:.0f} holders a query\n\n{table(['figure', *results, 'best peer / kvroute'], body)}\n")


def in_turns(programs_and_files, rounds):
    """{name: (program, file)}, medians of each."""
    samples = {name: [] for name in programs_and_files}
    for r in range(rounds):
        for name, (program, f) in programs_and_files.items():
            print(f"{os.path.basename(f)}: round {r + 1} of {rounds}, {name}", file=sys.stderr)
            touch_memory((os.path.getsize(f) >> 20) + 256)
            samples[name].append(program(f))
    return {name: medians(s) for name, s in samples.items()}


def sizes(files, rounds):
    """The workloads in turns, a column each."""
    results = in_turns({os.path.basename(f): (programs(None)["kvroute"], f) for f in files}, rounds)
    rows = [("pairs", "pairs"), ("blocks a query", "query_mean_blocks"), ("holders a query", "query_mean_holders")] + ROWS
    print(table(["figure", *results], [[title, *[short(r.get(key)) for r in results.values()]] for title, key in rows]), flush=True)
    return results


def said(title, results):
    print(f"{title}:\n" + "\n".join(f"    {k} {v:.4g}" for k, v in results.items()) + "\n", flush=True)


def questions(rounds):
    """The indexer on a core of its own: CPU of a question of 2,048 tokens, and how often eight connections get an answer."""
    from parts import Load, all_ended, cpu_seconds, free_ports, get, spawn, until
    if not shutil.which("wrk"):
        print("questions to the indexer: left out: wrk is not installed (apt-get install wrk)")
        return []
    samples, cores = [], os.cpu_count()
    with tempfile.TemporaryDirectory() as folder, all_ended():
        prompts = [[random.Random(i).randrange(120000) for _ in range(2048)] for i in range(200)]
        engines = [(free_ports(), free_ports()) for _ in range(4)]
        for port, events in engines:
            spawn(KVROUTE, "mock", "--port", port, "--speedup", 1e6, "--num-gpu-blocks", 65536, "--events", f"tcp://127.0.0.1:{events}")
        port = free_ports()
        p = spawn(KVROUTE, "indexer", "--port", port, "--threads", 1, "--block-size", 16, "--model", "mock", "--workers",
                  ",".join(f"{i + 1}=tcp://127.0.0.1:{events}" for i, (_, events) in enumerate(engines)), cpu=cores - 1)
        until("the indexer", lambda: get(port, "/ready") is not None)
        ask = Load(folder, "ask", [{"model_name": "mock", "token_ids": t} for t in prompts], 8)
        held = Load(folder, "held", [{"model": "mock", "prompt": t, "max_tokens": 1} for t in prompts], 1)
        for engine, _ in engines:
            until("a mock", lambda engine=engine: get(engine, "/health") is not None)
            held.run(f"http://127.0.0.1:{engine}/v1/completions", 1)
        for turn in range(rounds + 1):  # the first one is for warmth
            cpu, seconds = cpu_seconds(p.pid), 3 if turn else 1
            answers, _, _ = ask.run(f"http://127.0.0.1:{port}/query", seconds)
            samples += [{"cpu": (cpu_seconds(p.pid) - cpu) * 1e6 / answers, "wall": seconds * 1e6 / answers}] if turn else []
    figures = medians(samples)
    return [("/query of 2,048 tokens, CPU us", figures["cpu"], 20), ("/query, 8 connections, us an answer", figures["wall"], 16.7)]


def others(rounds):
    """What has no peer here is beside the machine's own pace: a thousand multiplications, each of which waits for the one before."""
    samples = []
    for r in range(rounds):
        print(f"events, choosing: round {r + 1} of {rounds}", file=sys.stderr)
        out = {tuple(c): said_by([BENCH + c[0], *c[1:]]) for c, *_ in OTHERS}
        samples.append({"pace": run([INDEX, "floor"])["floor_chain_us"], **{name: float(re.search(what, out[tuple(c)])[1]) for c, what, name, _ in OTHERS}})
    figures = medians(samples)
    rows = [(name, figures[name], goal) for *_, name, goal in OTHERS] + questions(rounds)
    return [Row(name, now, {} if "bytes" in name else {"1,000 steps, us": figures["pace"]}, goal) for name, now, goal in rows]


def landed(of_workloads, of_sizes, floor):
    """Rows of what the index shall reach: beside the peers, else beside what a wait for memory costs here."""
    rows = []
    for w, key, name, goal in LANDS:
        results = of_workloads.get(w) or ({"kvroute": of_sizes[w]} if w in of_sizes else None)
        if results:
            peers = {n: r[key] for n, r in results.items() if n != "kvroute" and key in r and not r["wrong_answers"]}
            against = {} if peers or "bytes" in key else {"2 MiB, ms": floor["touch_ms"]} if "_ms" in key else {"a miss, ns": floor["floor_miss_ns"]}
            rows.append(Row(f"{name}: {w}", results["kvroute"][key], peers or against, goal))
    return rows


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
    all_results, of_sizes, wrong = {}, {}, 0
    touch_memory(512)
    floor = medians([{"touch_ms": touch_memory(256), **run([INDEX, "floor"])} for _ in range(a.rounds)])
    said("floor", floor)
    for f in a.workloads:
        results = in_turns({name: (start, f) for name, start in programs(a.peers).items()}, a.rounds)
        wrong += results["kvroute"]["wrong_answers"]
        all_results[os.path.basename(f)] = results
        print(beside(os.path.basename(f), results), flush=True)
    rows = others(a.rounds)
    if a.sizes:
        of_sizes = sizes(a.sizes, a.rounds)
        wrong += sum(r["wrong_answers"] for r in of_sizes.values())
    report(f"Index, events, indexer, choosing: medians of {a.rounds} rounds in turns", landed(all_results, of_sizes, floor) + rows)
    if of_sizes:
        all_results["sizes"] = of_sizes
    if a.lanes:
        all_results["lanes"] = medians([run([INDEX, "lanes", a.lanes]) for _ in range(a.rounds)])
        said("lanes", all_results["lanes"])
    if a.churn:
        all_results["churn"] = run([INDEX, "churn", *a.churn])
        said("churn", all_results["churn"])
    if a.json:
        with open(a.json, "w", encoding="utf-8") as out:
            json.dump(all_results, out, indent=1, sort_keys=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
