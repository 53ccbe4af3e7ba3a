# SPDX-License-Identifier: Apache-2.0
"""Tables of figures, all of them Markdown, and what was measured earlier: bench/history.jsonl has a line for each run with RECORD=1.

A figure is the better the less it is. Its ratio is the best figure beside it in the same run (of a peer, else of the machine, else the goal)
against ours: figures of shared machines mean nothing from one day to the next, ratios do. A ratio that fell by 5 % since it was last
recorded is marked, for the eye: nothing fails.
"""
import datetime
import json
import os
import subprocess
from collections import namedtuple
from statistics import median

HERE = os.path.dirname(os.path.abspath(__file__))
HISTORY = os.path.join(HERE, "history.jsonl")
FELL = 0.95
LEAST = 0.1  # of a figure in a ratio: none is divided by nothing
Row = namedtuple("Row", "name now beside goal", defaults=(None,))  # beside: {who: figure}; the unit is in the name


def line(cells):
    return "| " + " | ".join(cells) + " |"


def table(head, rows):
    return "\n".join([line(head), line(["---"] * len(head)), *[line(r) for r in rows]])


def spread(v, digits):
    """median (least to most)"""
    if not v:
        return "-"
    middle = f"{median(v):.{digits}f}"
    return middle if len(v) == 1 else f"{middle} ({min(v):.{digits}f} to {max(v):.{digits}f})"


def medians(samples):
    """Of dicts, key by key; a key that some lack is of those that have it."""
    return {k: median(s[k] for s in samples if k in s) for k in {k: 0 for s in samples for k in s}}


def short(x):
    return "" if x is None else f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.3g}"


def ratio(row):
    """Returns: the ratio and to whom; None, "" where there is nothing beside it, or a difference is lost in noise."""
    against = row.beside or ({} if row.goal is None else {"goal": row.goal})
    if not against or min(row.now, *against.values()) < 0:
        return None, ""
    return max(min(against.values()), LEAST) / max(row.now, LEAST), ", ".join(sorted(against))


def last_recorded(path=None):
    """Returns: {name: {"figure": ..., "ratio": ..., "to": ..., "goal": ..., "commit": ...}}, each of the last line that has it."""
    path, last = path or HISTORY, {}
    if os.path.exists(path):
        with open(path, encoding="utf-8") as f:
            for run in map(json.loads, f):
                last.update({name: {**figure, "commit": run["commit"]} for name, figure in run["figures"].items()})
    return last


def mark(row, then):
    """Only ratios to the same are comparable."""
    now, to = ratio(row)
    last = then.get("ratio") if then.get("to") == to else None
    return f"**fell {100 - 100 * now / last:.0f} %**" if last and now <= FELL * last else ""


def compared(rows, last):
    """The table: ours, who is beside it, the goal, the ratio now and when it was last recorded."""
    peers = list({who: 0 for r in rows for who in r.beside})
    goals = any(r.goal is not None for r in rows)
    body = []
    for r in rows:
        then = last.get(r.name, {})
        body.append([r.name, short(r.now), *[short(r.beside.get(p)) for p in peers], *([short(r.goal)] if goals else []), short(ratio(r)[0]),
                     f"{short(then['figure'])}; {short(then.get('ratio'))} ({then['commit']})" if then else "", mark(r, then)])
    return table(["figure", "kvroute", *peers, *(["goal"] if goals else []), "ratio", "last recorded; ratio", ""], body)


def machine():
    """In words: nothing that names a host."""
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        model = next((l.split(":")[1].strip() for l in f if l.startswith("model name")), "a processor")
    return f"{model}, {os.cpu_count()} cores, {os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2 ** 30:.0f} GiB"


def commit():
    def git(*args):
        return subprocess.run(["git", "-C", HERE, *args], capture_output=True, text=True, check=False).stdout.strip()
    return (git("rev-parse", "--short=8", "HEAD") or "unknown") + ("+" if git("status", "--porcelain", "-uno", "--", "../src", "../include") else "")


def record(rows, path=None):
    figures = {}
    for r in rows:
        now, to = ratio(r)
        figures[r.name] = {"figure": float(f"{r.now:.4g}"), **({"ratio": float(f"{now:.4g}"), "to": to} if to else {}), **({} if r.goal is None else {"goal": r.goal})}
    with open(path or HISTORY, "a", encoding="utf-8") as f:
        f.write(json.dumps({"commit": commit(), "date": str(datetime.date.today()), "machine": machine(), "figures": figures}) + "\n")


def report(title, rows):
    print(f"\n{title}\n{machine()}, {datetime.date.today()}, {commit()}\n\n{compared(rows, last_recorded())}\n", flush=True)
    if os.environ.get("RECORD") == "1":
        record(rows)
