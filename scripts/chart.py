#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Draws docs/images/chart.svg from the tables of docs/routers.md: time to the first token beside the best of the others, and what the
routers cost and hit over engines with host memory. From bench/history.jsonl: docs/images/ratios.svg, and what docs/performance.md says first.
--check: only says whether they are what these say."""
import math
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../bench"))
from figures import LEAST, last_recorded, short, table  # noqa: E402

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
PAGE = "docs/performance.md"
FIRST, LAST = "<!-- what scripts/chart.py writes -->\n", "<!-- its end -->\n"
ROWS = ("conv-60", "conv-95", "hot-120", "siblings-48", "tail-50", "trace-x4", "trace-x8")
# Legible on white and on black alike (4 to 1 and more); a viewer that knows its theme gets the text in that theme's ink.
STYLE = """text{font:13px system-ui,sans-serif;fill:#6e7781}.t{font-weight:600}.k{fill:#1f77d0}.o{fill:#9aa3b0}.n{font-size:12px}
@media(prefers-color-scheme:light){text{fill:#4b5563}}@media(prefers-color-scheme:dark){text{fill:#aab4c2}.k{fill:#4c9ff0}.o{fill:#6c7684}}"""


def number(cell):
    return float(re.search(r"[\d.,]+", cell)[0].replace(",", ""))


def tables():
    with open(os.path.join(ROOT, "docs/routers.md"), encoding="utf-8") as f:
        lines = [[c.strip(" *") for c in line.strip().strip("|").split("|")] for line in f if line.startswith("|")]
    first = {r[0].strip("`"): r for r in lines if len(r) == 8 and re.fullmatch(r"`[\w-]+`", r[0])}
    ttft = [(row, number(first[row][3]), number(first[row][4])) for row in ROWS]  # of the 99th percentile
    at = next(i for i, r in enumerate(lines) if r[0] == "`host-12`")
    costs = [(r[1], number(r[2]), number(r[7])) for r in lines[at:at + 4] if r[1] != "kvroute-no-tiers"]
    return ttft, costs


def bar(x, y, width, kind, label):
    return f'<rect class="{kind}" x="{x}" y="{y}" width="{max(width, 1):.1f}" height="12" rx="2"/><text class="n" x="{x + width + 5:.1f}" y="{y + 11}">{label}</text>'


def draw():
    ttft, costs = tables()
    out = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 286" width="860" height="286" role="img" '
           'aria-label="kvroute beside other routers: time to the first token, CPU and hit rate">', f"<style>{STYLE}</style>",
           '<text class="t" x="0" y="16">First token, 99th percentile, against the best other router</text>']
    for i, (row, ours, theirs) in enumerate(ttft):
        y, most = 32 + i * 34, max(ours, theirs)
        out.append(f'<text x="0" y="{y + 17}">{row}</text>')
        out.append(bar(92, y, 230 * ours / most, "k", f"{ours:,.0f} ms"))
        out.append(bar(92, y + 14, 230 * theirs / most, "o", f"{theirs:,.0f} ms"))
    for j, (title, which, digits, unit) in enumerate((("CPU of the router for a request", 2, 1, " ms"), ("Hit rate of the engines", 1, 0, " %"))):
        top, most = 16 + j * 112, max(c[which] for c in costs)
        out.append(f'<text class="t" x="450" y="{top}">{title}</text>')
        for i, c in enumerate(costs):
            y = top + 14 + i * 24
            out.append(f'<text x="450" y="{y + 11}">{c[0]}</text>')
            out.append(bar(560, y, 210 * c[which] / most, "k" if c[0] == "kvroute" else "o", f"{c[which]:.{digits}f}{unit}"))
    out.append('<rect class="k" x="450" y="238" width="12" height="12" rx="2"/><text x="468" y="249">kvroute</text>')
    out.append('<rect class="o" x="540" y="238" width="12" height="12" rx="2"/><text x="558" y="249">others, same engines and client</text>')
    out.append('<text class="n" x="450" y="272">docs/routers.md has all rows, also those where others are ahead</text></svg>')
    return "\n".join(out) + "\n"


def beside_peers():
    """Of the figures recorded last: [(name, what there is of it)], in their order."""
    return [(name, one) for name, one in last_recorded().items() if re.search("haproxy|nginx|dynamo|smg", one.get("to", ""))]


def draw_ratios():
    """Bars from 1 on, by halves and doubles: to the right we are ahead."""
    rows, middle, unit = beside_peers(), 520, 75
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 {len(rows) * 18 + 26}" width="860" height="{len(rows) * 18 + 26}" role="img" '
           'aria-label="the best peer\'s figure against kvroute\'s">', f"<style>{STYLE}</style>",
           '<text class="t" x="0" y="14">The best peer\'s figure / kvroute\'s: to the right kvroute needs less</text>']
    for i, (name, one) in enumerate(rows):
        y, length = 24 + i * 18, max(-2, min(3, math.log2(one["ratio"]))) * unit
        end = middle + length + 5 if length >= 0 else middle + 5
        out.append(f'<text class="n" x="0" y="{y + 11}">{name}: {short(one["figure"])}</text><rect class="{"k" if length >= 0 else "o"}" '
                   f'x="{middle + min(length, 0):.1f}" y="{y}" width="{max(abs(length), 1):.1f}" height="13" rx="2"/>'
                   f'<text class="n" x="{end:.1f}" y="{y + 11}">{one["ratio"]:.2f}</text>')
    return "\n".join(out) + "\n</svg>\n"


def together(rows):
    """What differs by the way of routing, by the option or by the workload is one row: {what: {which: figure}}"""
    out = {}
    for name, one in rows.items():
        what, _, which = name.partition(": ")
        out.setdefault(what, {})[which] = one
    return out


def first_screen():
    """How often we are ahead, and each figure: bold where the best peer needs less."""
    rows, peers = last_recorded(), [one["ratio"] for _, one in beside_peers()]
    goals = [one["figure"] <= max(one["goal"], LEAST) for one in rows.values() if "goal" in one]

    def behind(one):
        return f"**{short(one['figure'])}**" if one in [p for _, p in beside_peers()] and one["ratio"] < 1 else short(one["figure"])

    def same(cells):
        return cells[0] if len(set(cells)) == 1 else " / ".join(c or "-" for c in cells)
    body = [[what + ("" if "kv" in ones or not any(ones) else ": " + ", ".join(ones)), same([behind(o) for o in ones.values()]),
             same([short(o["figure"] * o["ratio"]) if o.get("to", "goal") not in ("goal", "1,000 steps, us") else "" for o in ones.values()]),
             same([short(o.get("goal")) for o in ones.values()])] for what, ones in together(rows).items()]
    return (f"kvroute is ahead of the best peer in {sum(r >= 1 for r in peers)} figures of {len(peers)}; of {len(goals)} goals "
            f"{sum(goals)} are met.\nBold: a peer needs less. Three figures: round-robin / predicted / kv.\n\n{table(['', 'kvroute', 'best beside it', 'goal'], body)}\n")


def written():
    """Returns: {file: what it should hold}"""
    with open(os.path.join(ROOT, PAGE), encoding="utf-8") as f:
        head, rest = f.read().split(FIRST)
    return {"docs/images/chart.svg": draw(), "docs/images/ratios.svg": draw_ratios(), PAGE: head + FIRST + first_screen() + LAST + rest.split(LAST)[1]}


def main():
    for name, text in written().items():
        path = os.path.join(ROOT, name)
        if "--check" in sys.argv[1:]:
            with open(path, encoding="utf-8") as f:
                if f.read() != text:
                    sys.exit(f"{name} is not what docs/routers.md and bench/history.jsonl say: scripts/chart.py writes it")
        else:
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)


if __name__ == "__main__":
    main()
