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
HTML = re.compile(r'"[^"]*<(!doctype|html|head|body|style|script|table|form|div|span|p|h[1-6])\b[^"]*>', re.I)
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


def wrong_in_asset(f, text):
    """Its first line is the licence's, and the lines of a page become one."""
    if "SPDX-License-Identifier: " not in text.split("\n")[0]:
        yield f"{f}:1: the SPDX line is the first one"
    for n, line in enumerate(text.splitlines(), 1):
        if len(line) > 160 or line != line.rstrip() or "\t" in line:
            yield f"{f}:{n}: line longer than 160 characters, a tab, or blanks at its end"
        if f.endswith(".html") and re.search(r"(?<!:)//", line):
            yield f"{f}:{n}: a comment would hide what follows it when the lines are one: use /* */"
    if not text.endswith("\n"):
        yield f"{f}: its last line has no end"


for f in files:
    path = os.path.join(ROOT, f)
    if f.endswith(".md"):
        bad += [f"{f}:{n}: prose beyond column 120" for n in wide_prose(open(path, errors="replace").read())]
    asset = f.endswith((".html", "/openapi.yaml")) or "/help/" in f  # embedded by cmake/Embed.cmake
    if not asset and not f.endswith((".c", ".h", ".cc", ".py", ".sh", ".cmake")) and os.path.basename(f) not in ("CMakeLists.txt", "Makefile", "run"):
        continue
    text = open(path, errors="replace").read()
    if "SPDX-License-Identifier: Apache-2.0" not in text[:300]:
        bad.append(f"{f}: no SPDX line")
    if asset:
        bad += wrong_in_asset(f, text)
    if f.endswith((".c", ".h", ".cc")):
        for n, line in enumerate(text.splitlines(), 1):
            if REFUSED.search(re.sub(r'"(\\.|[^"])*"|/\*.*?\*/|^\s*\*.*', "", line)):
                bad.append(f"{f}:{n}: refused: {line.strip()[:80]}")
            if re.search(r"fprintf\(stderr|fputs\(.*stderr|perror\(", line) and f.startswith("src/") and not f.endswith(("replay/replay.c", "cli/file_lines.c")) and not re.search("usage|help_|assertion failed", line):
                bad.append(f"{f}:{n}: lines on stderr are the log's: use kvr_log (usage, findings of a check and the progress of a replay are not lines of a log)")
            if f.startswith("src/app/") and STATIC.search(line):
                bad.append(f"{f}:{n}: state of a program belongs to its struct, not to a file or function: {line.strip()[:80]}")
            if re.search(r"# (HELP|TYPE) ", line) and f.startswith("src/") and not f.endswith("wire/prom_page.c"):
                bad.append(f"{f}:{n}: metrics are written by wire/prom_page.h")
            if f.startswith("src/") and (HTML.search(line) or '"usage: ' in line):
                bad.append(f"{f}:{n}: pages and help texts are files of their own (cmake/Embed.cmake): {line.strip()[:80]}")
            if len(line) > 160:
                bad.append(f"{f}:{n}: line longer than 160 characters")
print("\n".join(bad) if bad else "source is as agreed")
sys.exit(1 if bad else 0)
