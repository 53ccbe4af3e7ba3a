# SPDX-License-Identifier: Apache-2.0
"""Figures of several rounds: medians, spreads, and who is best. All tables are Markdown."""
import os
import sys
from statistics import median

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from figures import spread, table  # noqa: E402

# key, heading, digits, whether more is better; those that count for the summary
FIGURES = [
    ("hit_pct", "hit rate, %", 1, True),
    ("ttft_mean_ms", "TTFT mean, ms", 1, False),
    ("ttft_p50_ms", "TTFT p50", 1, False),
    ("ttft_p99_ms", "TTFT p99", 0, False),
    ("e2e_p50_ms", "end to end p50, ms", 0, False),
    ("balance_requests", "requests, max/mean", 2, False),
    ("balance_tokens", "tokens, max/mean", 2, False),
    ("cpu_ms_per_request", "router CPU, ms/request", 2, False),
]
MORE = [("failures", "failed", 0, False)]


def values(runs, key):
    return [r[key] for r in runs if r.get(key) is not None]


def of_row(results):
    """results: {router: [run, ...]}, in the order in which they are printed. The best of each figure is bold."""
    body = []
    best = {key: best_of({n: values(runs, key) for n, runs in results.items()}, more, digits) for key, _, digits, more in FIGURES}
    for name, runs in results.items():
        cells = [f"**{text}**" if name in best[key] else text
                 for key, text in ((key, spread(values(runs, key), digits)) for key, _, digits, _ in FIGURES)]
        body.append([name, *cells, *[f"{sum(values(runs, key)):.0f}" for key, *_ in MORE]])
    return table(["router", *[f[1] for f in FIGURES], *[m[1] for m in MORE]], body)


def best_of(by_name, more_is_better, digits):
    """Who has the best median, as it is printed; nobody when all are alike."""
    medians = {n: round(median(v), digits) for n, v in by_name.items() if v}
    if len(set(medians.values())) < 2:
        return []
    best = (max if more_is_better else min)(medians.values())
    return [n for n, m in medians.items() if m == best]


def overlap(a, b):
    """Whether the spreads of both touch: then they are not told apart."""
    return len(a) > 1 and len(b) > 1 and min(a) <= max(b) and min(b) <= max(a)


def verdict(ours, best, more_is_better):
    """How far ours is from the best of the others."""
    a, b = median(ours), median(best)
    if a == b:
        return "equal"
    if (a > b) == more_is_better:
        better, worse, word = a, b, "ahead"
    else:
        better, worse, word = b, a, "**behind**"
    high, low = (better, worse) if more_is_better else (worse, better)
    if low <= 0:
        return word
    return f"{word} {high / low:.2f} x" + (" (spreads overlap)" if overlap(ours, best) else "")


def summary(all_results, ours, rivals):
    """For each row and figure: the best of `rivals`, and where `ours` is."""
    body, count = [], {"ahead": 0, "equal": 0, "**behind**": 0}
    for row, results in all_results.items():
        for key, heading, digits, more in FIGURES:
            mine = values(results.get(ours, []), key)
            others = {n: values(results[n], key) for n in rivals if n in results and values(results[n], key)}
            if not mine or not others:
                continue
            best = (max if more else min)(others, key=lambda n: median(others[n]))
            said = verdict(mine, others[best], more)
            count[said.split()[0]] += 1
            body.append([row, heading, f"{best}: {spread(others[best], digits)}", spread(mine, digits), said])
    if not body:
        return ""
    return (table(["row", "figure", "best of the others", ours, f"{ours} is"], body) +
            f"\n\nOf {len(body)} figures {ours} is ahead in {count['ahead']}, equal in {count['equal']}, behind in {count['**behind**']}.")
