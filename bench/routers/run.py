#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Public routers and kvroute in turns over the same four mock engines, with the same client. docs/routers.md explains it.

Each run has fresh engines and a fresh router. A round is one run of each router with one seed; every second round goes through them
backwards. `scripts/bench_routers.sh` installs the routers and calls this.
"""
import argparse
import datetime
import json
import os
import platform
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [HERE, os.path.join(HERE, "../../scripts")]

import table
from engines import Mocks, Vllms
from measure import measure
from processes import Failed, Lab, Priority, stop_on_signals
from routers import known, of_other_args, of_other_binary
from rows import rows, vllm_rows

PLAIN = ["kvroute", "kvroute-linear", "sglang-router", "smg", "smg-unguarded", "vllm-router", "vllm-router-kv", "round-robin"]


def options():
    p = argparse.ArgumentParser(prog="bench_routers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rows", help="names, comma-separated (all; those of a trace when there is one)")
    p.add_argument("--routers", help="names, comma-separated, or all (" + ",".join(PLAIN) + ")")
    p.add_argument("--kvroute-args", action="append", default=[], metavar="ARGS", help="kvroute with these arguments too; repeatable")
    p.add_argument("--also", action="append", default=[], metavar="NAME=BINARY[,ARGS]", help="another kvroute too; repeatable")
    p.add_argument("--rounds", type=int, default=3, help="runs of each router and row (3)")
    p.add_argument("--seed", type=int, default=1, help="of the first round; the next has the next (1)")
    p.add_argument("--seconds", type=float, default=16, help="of arrivals, in rows without a trace (16)")
    p.add_argument("--vllm", type=int, metavar="N", help="N real vLLM engines of `make engines` in place of mocks, and rows of their own")
    p.add_argument("--trace", metavar="FILE", help="Mooncake trace, for the rows of one")
    p.add_argument("--ours", default="kvroute", help="whom the summary compares with the best of the others (kvroute)")
    p.add_argument("--nice", type=int, default=-10, help="nice value of all processes of the lab; 0: leave it (-10)")
    p.add_argument("--kvroute", default=os.path.join(ROOT, "build/release/kvroute"), metavar="BINARY", help="engines, client and ours")
    p.add_argument("--wheels", default=os.environ.get("ROUTERS_DIR", os.path.join(ROOT, "build/routers")), metavar="DIR", help="where the routers are")
    p.add_argument("--json", metavar="FILE", help="every run's figures")
    p.add_argument("--merge", action="append", default=[], metavar="FILE", help="run nothing: the tables of earlier --json files together; repeatable")
    p.add_argument("--logs", metavar="DIR", help="keep the logs of the last run here")
    p.add_argument("--list", action="store_true", help="rows and routers, and whether they can run")
    return p.parse_args()


def pick(what, text, there):
    """The named ones of a dictionary, in its order."""
    names = [n for n in text.split(",") if n]
    unknown = [n for n in names if n not in there]
    if unknown or not names:
        raise Failed(f"--{what}: bad value '{','.join(unknown) or text}'; allowed: {', '.join(there)}")
    return {n: there[n] for n in there if n in names}


def choose(o):
    if o.rounds < 1 or o.seconds <= 0:
        raise Failed(f"--{'rounds' if o.rounds < 1 else 'seconds'}: bad value; allowed: above 0")
    if o.vllm is not None and o.vllm < 1:
        raise Failed("--vllm: bad value; allowed: above 0")
    all_rows = {r.name: r for r in (vllm_rows if o.vllm else rows)(o.seconds)}
    default_rows = [n for n, r in all_rows.items() if o.trace or not r.trace]
    chosen = pick("rows", o.rows or ",".join(default_rows), all_rows)
    if any(r.trace for r in chosen.values()) and not (o.trace and os.path.isfile(o.trace)):
        raise Failed("--trace: rows of a trace need the file of one")
    there = known(os.path.abspath(o.kvroute), os.path.abspath(o.wheels))
    more = {}
    for r in [of_other_args(os.path.abspath(o.kvroute), a) for a in o.kvroute_args] + [of_other_binary(a) for a in o.also]:
        if r.name in there or r.name in more:
            raise Failed(f"--also, --kvroute-args: there is a '{r.name}' already")
        more[r.name] = r
    routers = dict(there) if o.routers == "all" else pick("routers", o.routers or ",".join(PLAIN), {**there, **more})
    routers.update(more)
    return all_rows, chosen, there, routers


def listing(all_rows, there):
    print(table.table(["row", "blocks of each engine", "what"], [[r.name, f"{r.blocks:,}", r.meaning] for r in all_rows.values()]))
    print()
    print(table.table(["router", "what", "here"], [[r.name, r.meaning, r.missing() or "yes"] for r in there.values()]))


def machine():
    model = next((l.split(":", 1)[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), platform.machine())
    return {"cpu": model, "cores": os.cpu_count(), "date": datetime.date.today().isoformat(), "load": os.getloadavg()[0]}


def say(text):
    print(text, file=sys.stderr, flush=True)


def print_row(row, runs):
    """`row`: vars() of a Row; `runs`: of each router."""
    print(f"\n**{row['name']}**: {row['meaning']} (`{row['workload']}`; {row['blocks']:,} blocks an engine, x {row['speedup']:g}; "
          f"{max(map(len, runs.values()), default=0)} rounds)\n\n{table.of_row(runs)}")
    client = table.values([r for v in runs.values() for r in v], "client_cpu_ms_per_request")
    print(f"\nThe client took {table.spread(client, 2)} ms of CPU for a request.", flush=True)


def print_summary(o, results, peers):
    """Against the peers, where there are some."""
    routers = dict.fromkeys(r for runs in results.values() for r in runs)
    text = table.summary(results, o.ours, [r for r in routers if r in peers] or [r for r in routers if r != o.ours])
    if text:
        print(f"\n**{o.ours} and the best of the others**\n\n{text}")


def merge(o):
    """What several calls have measured, as if it had been one. A run is told by its seed."""
    rows, results = {}, {}
    for path in o.merge:
        try:
            with open(path) as f:
                said = json.load(f)
            rows.update(said["rows"])
            for row, routers in said["runs"].items():
                for router, runs in routers.items():
                    there = results.setdefault(row, {}).setdefault(router, [])
                    twice = {r["seed"] for r in there} & {r["seed"] for r in runs}
                    if twice:
                        raise Failed(f"--merge: '{path}': {row}, {router}: seed {min(twice)} is in another file too")
                    there += runs
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
            raise Failed(f"--merge: '{path}' is no file of --json: {e!r}") from None
    for name, runs in results.items():
        print_row(rows[name], runs)
    print_summary(o, results, {n for n, r in known(o.kvroute, o.wheels).items() if r.peer})
    return 0


def one(o, logs, priority, fleet, row, router, seed):
    """Its figures; a second try when something could not be started (somebody took a port), then None."""
    for attempt in (1, 2):
        try:
            return measure(Lab(logs, priority), os.path.abspath(o.kvroute), fleet, row, router, seed, o.trace and os.path.abspath(o.trace))
        except Failed as e:
            say(f"{row.name}, {router.name}: {e}{'; again' if attempt == 1 else ''}")
    return None


def run(o, logs, fleet, chosen, routers, write):
    priority = Priority(o.nice)
    m = machine()
    say(f"{m['cpu']}, {m['cores']} core(s), {m['date']}, load {m['load']:.1f}; {priority.says()}")
    results = {n: {} for n in chosen}
    for row in chosen.values():
        for n in range(o.rounds):
            order = list(routers.values())
            for router in order if n % 2 == 0 else order[::-1]:
                t = time.monotonic()
                figures = one(o, logs, priority, fleet, row, router, o.seed + n)
                if not figures:
                    continue
                results[row.name].setdefault(router.name, []).append(figures)
                say(f"{row.name}, round {n + 1} of {o.rounds}, {router.name}: hit {figures['hit_pct']:.1f} %, TTFT mean {figures['ttft_mean_ms']:.1f} ms, "
                    f"p99 {figures['ttft_p99_ms']:.0f}, {figures['failures']} of {figures['requests'] + figures['failures']} failed, {time.monotonic() - t:.0f} s")
            write(m, results)
        results[row.name] = {n: results[row.name][n] for n in routers if n in results[row.name]}
        print_row(vars(row), results[row.name])
    return results


def main():
    o = options()
    if o.merge:
        return merge(o)
    all_rows, chosen, there, routers = choose(o)
    if o.list:
        listing(all_rows, there)
        return 0
    for name, r in list(routers.items()):
        why = r.missing()
        if why:
            say(f"{name}: left out: {why}")
            del routers[name]
    if not os.access(o.kvroute, os.X_OK) or not routers:
        raise Failed(f"--kvroute: '{o.kvroute}' is no program, or nothing is left to run")
    stop_on_signals()

    def write(m, results):
        if o.json:
            with open(o.json + ".part", "w") as f:
                json.dump({"machine": m, "rows": {r.name: vars(r) for r in chosen.values()}, "runs": results}, f, indent=1)
            os.replace(o.json + ".part", o.json)
    with tempfile.TemporaryDirectory(prefix="kvroute-routers-") as temporary:
        fleet = Vllms(o.vllm) if o.vllm else Mocks(os.path.abspath(o.kvroute))
        try:
            results = run(o, o.logs or temporary, fleet, chosen, routers, write)
        finally:
            fleet.stop()
    print_summary(o, results, {n for n, r in routers.items() if r.peer})
    return 0 if all(len(v) == o.rounds for r in results.values() for v in r.values()) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as e:
        sys.exit(f"bench_routers: {e}")
