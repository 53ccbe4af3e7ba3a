# SPDX-License-Identifier: Apache-2.0
"""Refused functions, licence lines, paths of a machine, includes of an .c file by itself: what no compiler says."""
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# natsSubscription_Fetch: see bind_consumer in src/net/nats/jetstream.c
REFUSED = re.compile(r"\b(strcpy|strcat|sprintf|vsprintf|gets|atoi|atol|strtok|alloca|natsSubscription_Fetch(Request)?)\s*\(|atomic_thread_fence|\bvolatile\b")
# A static of src/app that can change: a second router in one process would share it.
STATIC = re.compile(r"^\s*static (?!const\b|inline\b)(?!.*\* ?const \w+(\[|;| =))[^(]*(=.*)?[;{]$|^\s*static [\w ]+[ *]\(\*")
files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.split()
if not files:
    files = [os.path.relpath(os.path.join(d, f), ROOT) for d, _, fs in os.walk(ROOT) for f in fs if "/build" not in d and "/.git" not in d]
bad = []


def wide_prose(text):
    """Numbers of the lines of a document that are prose and longer than 120 columns. Tables, code and a line that is one link cannot be broken."""
    wide, fenced, above = [], False, ""
    for n, line in enumerate(text.splitlines(), 1):
        fence = line.lstrip().startswith("```")
        fenced ^= fence
        code = fenced or fence or (line.startswith("    ") and (not above.strip() or above.startswith("    ")))
        if len(line) > 120 and not code and not line.startswith("|") and " " in line.strip(" *-"):
            wide.append(n)
        above = line
    return wide


for f in files:
    path = os.path.join(ROOT, f)
    if f.endswith(".md"):
        bad += [f"{f}:{n}: prose beyond column 120" for n in wide_prose(open(path, errors="replace").read())]
    if not f.endswith((".c", ".h", ".cc", ".py", ".sh", ".cmake")) and os.path.basename(f) not in ("CMakeLists.txt", "Makefile", "run"):
        continue
    text = open(path, errors="replace").read()
    if "SPDX-License-Identifier: Apache-2.0" not in text[:300]:
        bad.append(f"{f}: no SPDX line")
    if f.endswith((".c", ".h", ".cc")):
        for n, line in enumerate(text.splitlines(), 1):
            if REFUSED.search(re.sub(r'"(\\.|[^"])*"|/\*.*?\*/|^\s*\*.*', "", line)):
                bad.append(f"{f}:{n}: refused: {line.strip()[:80]}")
            if re.search(r"fprintf\(stderr|fputs\(.*stderr|perror\(", line) and f.startswith("src/") and not f.endswith(("replay/replay.c", "cli/file_lines.c")) and "usage" not in line and "assertion failed" not in line:
                bad.append(f"{f}:{n}: lines on stderr are the log's: use kvr_log (usage, findings of a check and the progress of a replay are not lines of a log)")
            if f.startswith("src/app/") and STATIC.search(line):
                bad.append(f"{f}:{n}: state of a program belongs to its struct, not to a file or function: {line.strip()[:80]}")
            if re.search(r"# (HELP|TYPE) ", line) and f.startswith("src/") and not f.endswith("wire/prom_page.c"):
                bad.append(f"{f}:{n}: metrics are written by wire/prom_page.h")
            if len(line) > 160 and not f.endswith("serve/page.c"):  # a page of HTML
                bad.append(f"{f}:{n}: line longer than 160 characters")
print("\n".join(bad) if bad else "source is as agreed")
sys.exit(1 if bad else 0)
