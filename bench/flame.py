#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Where the time goes: samples a program under load with perf (Debian: linux-perf, as root), draws a flame graph, prints the ten items
that take most. usage: flame.py proxy|ingest OUT.svg [SECONDS]

proxy: `kvroute serve` with events, half of the time small requests, half streams; ingest: bench_ingest without its engines' process.
"""
import collections
import html
import itertools
import os
import re
import subprocess
import sys
import tempfile

WIDTH, ROW, LEAST = 1200, 17, 0.004  # narrower frames are left out
# The ink is dark on light colours in either theme; what is outside the frames has the theme's.
STYLE = """text{font:11px system-ui,sans-serif;fill:#16202c}.t{font-size:13px;fill:#6e7781}
@media(prefers-color-scheme:dark){.t{fill:#aab4c2}}"""


def sampled(args, data):
    # A stack of 16 KiB is enough for what is walked; the sample of a sleeping machine says nothing: cpu-clock runs where counters do not
    return ["perf", "record", "-q", "-e", "cpu-clock", "-F", "997", "--call-graph", "dwarf,16384", "-o", data, *args]


def of_proxy(data, seconds):
    sys.argv[1:2] = [os.environ.get("KVROUTE", "build/release/kvroute")]  # parts reads it
    import bench_serve as b
    with tempfile.TemporaryDirectory() as folder, b.all_ended():
        mocks, loads = b.Mocks(1000000), b.loads(folder)
        proxy = b.kvroute(mocks, "kv", *b.WAYS["kv"], events=True)
        loads["small"].run(proxy.url, 1, b.THEIRS)
        perf = subprocess.Popen(sampled(["-p", str(proxy.p.pid)], data))
        for kind in ("small", "stream"):
            loads[kind].run(proxy.url, seconds // 2, b.THEIRS)
        perf.send_signal(2)
        perf.wait()


def of_ingest(data, seconds):
    subprocess.run(sampled(["build/release/bench/bench_ingest", str(4 * seconds)], data), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def name_of(frame):
    """The function; of a library without symbols its name, and nothing where the stack is lost."""
    m = re.match(r"\s*[0-9a-f]+ (.*) \((.*)\)$", frame)
    name = m[1].split("+0x")[0].removesuffix(".constprop.0").removesuffix(".isra.0").strip()
    return os.path.basename(m[2]).split(".so")[0].strip("[]").replace("unknown", "") if name == "[unknown]" else name


def stacks(data):
    """Returns: {(outermost, ..., innermost): samples}"""
    out = subprocess.run(["perf", "script", "--no-inline", "-F", "comm,pid,tid,ip,sym,dso", "-i", data], capture_output=True, text=True, check=True).stdout
    found, left_out = collections.Counter(), set(re.findall(r"^engines +(\d+)/", out, re.M))
    for one in out.split("\n\n"):
        head, *frames = one.strip().splitlines() or [""]
        m = re.match(r"(.*?) +(\d+)/\d+", head)
        if m and frames and m[2] not in left_out:
            found[(m[1], *[k for k, _ in itertools.groupby(filter(None, map(name_of, reversed(frames))))])] += 1
    return found


def item(stack):
    """What a sample counts for: the function, or the whole of the kernel's work for one kind of call."""
    if "entry_SYSCALL_64_after_hwframe" in stack:
        caller = stack[stack.index("entry_SYSCALL_64_after_hwframe") - 1]
        return f"system call {re.sub('^(__GI_)?_*(libc_)?', '', caller)}"
    for name in stack:
        if name in ("asm_exc_page_fault", "exc_page_fault"):
            return "page faults"
        if name.startswith(("asm_sysvec", "asm_common_interrupt", "ret_from_fork")):
            return "interrupts"
    return stack[-1].removeprefix("__GI___")


def frames(found, depth=0):
    """Nested: [(name, samples, its frames)], those that call most first."""
    groups = collections.defaultdict(collections.Counter)
    for stack, n in found.items():
        if len(stack) > depth:
            groups[stack[depth]][stack] += n
    return [(name, sum(g.values()), frames(g, depth + 1)) for name, g in sorted(groups.items(), key=lambda kv: -sum(kv[1].values()))]


def height(tree, total):
    return 1 + max((height(t, total) for _, n, t in tree if n >= LEAST * total), default=0)


def draw(tree, total, title):
    rows = height(tree, total)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {rows * ROW + 8}" width="{WIDTH}" role="img" aria-label="{title}">',
           f'<style>{STYLE}</style><text class="t" x="0" y="14">{title}</text>']

    def put(level, x, tree):
        for name, n, inner in tree:
            if n < LEAST * total:
                continue
            width, y = n / total * WIDTH, (rows - 1 - level) * ROW + 6
            shade = 25 + sum(map(ord, name)) * 7 % 30
            label = html.escape(name[:int((width - 4) / 6.8)]) if width > 25 else ""
            out.append(f'<g><title>{html.escape(name)}: {100 * n / total:.1f} %</title><rect x="{x:.1f}" y="{y}" width="{max(width - 0.5, 0.5):.1f}" '
                       f'height="{ROW - 1}" fill="hsl({shade},80%,68%)"/><text x="{x + 3:.1f}" y="{y + 12}">{label}</text></g>')
            put(level + 1, x, inner)
            x += width
    put(0, 0, tree)
    return "\n".join(out) + "\n</svg>\n"


def main():
    what, out, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 8
    with tempfile.TemporaryDirectory() as folder:
        data = os.path.join(folder, "perf.data")
        {"proxy": of_proxy, "ingest": of_ingest}[what](data, seconds)
        found = stacks(data)
    total, own = sum(found.values()), collections.Counter()
    for stack, n in found.items():
        own[item(stack)] += n
    with open(out, "w", encoding="utf-8") as f:
        f.write(draw(frames(found), total, f"{what}: {total:,} samples of CPU time; frames below {100 * LEAST:.1f} % are left out"))
    for name, n in own.most_common(10):
        print(f"{100 * n / total:5.1f} % {name}")


if __name__ == "__main__":
    main()
