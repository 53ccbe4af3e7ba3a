#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Draws docs/images/chart.svg from the tables of docs/routers.md: time to the first token beside the best of the others, and what the
routers cost and hit over engines with host memory. --check: only says whether the picture is the tables'."""
import os
import re
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
OUT = os.path.join(ROOT, "docs/images/chart.svg")
ROWS = ("conv-60", "conv-95", "hot-120", "siblings-48", "tail-50", "trace-x4", "trace-x8")
# Legible on white and on black alike; a viewer that knows its theme gets the text in that theme's ink.
STYLE = """text{font:13px system-ui,sans-serif;fill:#5b6472}.t{font-weight:600}.k{fill:#1f77d0}.o{fill:#9aa3b0}.n{font-size:12px}
@media(prefers-color-scheme:dark){text{fill:#aab4c2}.k{fill:#4c9ff0}.o{fill:#6c7684}}"""


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


def main():
    if "--check" in sys.argv[1:]:
        with open(OUT, encoding="utf-8") as f:
            sys.exit(0 if f.read() == draw() else "docs/images/chart.svg is not what docs/routers.md says: scripts/chart.py draws it")
    with open(OUT, "w", encoding="utf-8") as f:
        f.write(draw())


if __name__ == "__main__":
    main()
