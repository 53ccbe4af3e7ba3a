#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the result of table.py --json with gnuplot: plot.py RESULT.json OUT.svg"""
import json
import subprocess
import sys
import tempfile

PANELS = [("apply, ns per block", "apply_ns_per_block"), ("query, ns", "query_ns"), ("RSS bytes per (block, holder)", "rss_bytes_per_pair")]


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as f:
        results = {w: r for w, r in json.load(f).items() if "kvroute" in r}
    names = list(next(iter(results.values())))
    names.sort(key=lambda n: n != "kvroute")
    with tempfile.NamedTemporaryFile("w", suffix=".dat") as data:
        for _, key in PANELS:
            data.write("workload " + " ".join(f'"{n}"' for n in names) + "\n")
            for workload, r in results.items():
                data.write(workload + " " + " ".join(f"{r[n].get(key, 0):.6g}" for n in names) + "\n")
            data.write("\n\n")
        data.flush()
        script = [f'set terminal svg size 960,330 font "sans,11"; set output "{sys.argv[2]}"', "set multiplot layout 1,3",
                  "set style data histogram; set style histogram clustered gap 1; set style fill solid 0.8 noborder",
                  "set logscale y; set grid y; set key top left font ',9'; set boxwidth 0.9"]
        for i, (title, _) in enumerate(PANELS):
            plots = ", ".join(f"'{data.name}' index {i} using {c + 2}:xtic(1) title columnheader({c + 2})" for c in range(len(names)))
            script.append(f'set title "{title}"; plot {plots}' + ("; unset key" if i == 0 else ""))
        subprocess.run(["gnuplot", "-e", "; ".join(script)], check=True)


main()
