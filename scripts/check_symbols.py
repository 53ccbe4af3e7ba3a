#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The functions of include/kvroute, those that a libkvroute.so exports, and those of debian/libkvroute0.symbols are the same ones.

check_symbols.py LIBRARY     says what differs: exit 1
check_symbols.py --write     adds what is new to the symbols file, with the version of include/kvroute/api.h. What is no longer there is for
                             a person to take out: programs that use it break, and SOVERSION in CMakeLists.txt goes up."""
import glob
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SYMBOLS = os.path.join(ROOT, "debian", "libkvroute0.symbols")
HEAD = "libkvroute.so.0 libkvroute0 #MINVER#\n"


def header_text():
    return "".join(open(path, encoding="utf-8").read() for path in sorted(glob.glob(os.path.join(ROOT, "include", "kvroute", "*.h"))))


def declared(text):
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    return set(re.findall(r"^KVR_API\b[^;{]*?\b(kvr_\w+)\(", text, re.M))


def listed():
    if not os.path.exists(SYMBOLS):
        return {}
    return dict(re.findall(r"^ (\w+)@Base (\S+)$", open(SYMBOLS, encoding="utf-8").read(), re.M))


def exported(library):
    text = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    return {line.split()[-1] for line in text.splitlines()}


def main():
    text = header_text()
    functions, known = declared(text), listed()
    if sys.argv[1] == "--write":
        version = re.search('VERSION_STRING "(.+)"', text).group(1) + "~"  # its commits count, too (scripts/dist.sh)
        rows = {**{name: version for name in functions}, **known}
        with open(SYMBOLS, "w", encoding="utf-8") as f:
            f.write(HEAD + "".join(f" {name}@Base {rows[name]}\n" for name in sorted(rows)))
        return 0
    there = exported(sys.argv[1])
    wrong = [f"{name}: {what}" for names, what in (
        (there - functions, "exported, and in no header of include/kvroute"),
        (functions - there, "in a header, and not exported"),
        (functions - known.keys(), "not in debian/libkvroute0.symbols: scripts/check_symbols.py --write"),
        (known.keys() - functions, "in debian/libkvroute0.symbols, and gone: programs that use it break"),
    ) for name in sorted(names)]
    print("\n".join(wrong) or f"the library exports the {len(functions)} functions of its headers")
    return 1 if wrong else 0


sys.exit(main())
