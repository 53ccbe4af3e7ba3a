#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How old may a system be on which a folder of programs and libraries runs? Prints the platform tag that is the lowest true one.

portable.py DIR            manylinux_2_XX_x86_64 (PEP 600), or what is needed and neither in DIR nor on every system: exit 1
portable.py --system NAME  exit 0 where every system has that library

Of each ELF file the versions of glibc's symbols are read that it refers to. The C++ and the compiler's library are the system's, too;
what of them is asked for has to be in those of GCC 11, which systems with glibc 2.34 have (Red Hat 9, of 2022)."""
import os
import platform
import re
import subprocess
import sys

SYSTEM = re.compile(r"(libc|libm|libdl|librt|libpthread|libresolv|libutil|libgcc_s|libstdc\+\+|ld-linux[-\w]*)\.so\.\d+")
NEWEST = {"GLIBCXX": (3, 4, 29), "CXXABI": (1, 3, 13), "GCC": (11, 0)}


def elf_files(folder):
    for at, _, names in os.walk(folder):
        for path in (os.path.join(at, name) for name in names):
            with open(path, "rb") as f:
                if f.read(4) == b"\x7fELF":
                    yield path


def needs(path):
    """The libraries that a file names, and {"GLIBC": {(2, 34), ...}, ...}."""
    text = subprocess.run(["objdump", "-p", path], check=True, capture_output=True, text=True).stdout
    versions = {}
    for name, version in re.findall(r"0x[0-9a-f]+ 0x\d+ \d+ ([A-Z]+)_([\d.]+)$", text.partition("Version References:")[2], re.M):
        versions.setdefault(name, set()).add(tuple(map(int, version.split("."))))
    return re.findall(r"^ +NEEDED +(\S+)$", text, re.M), versions


def main():
    if sys.argv[1] == "--system":
        return 0 if SYSTEM.fullmatch(sys.argv[2]) else 1
    files = list(elf_files(sys.argv[1]))
    inside = {os.path.basename(path) for path in files}
    glibc, wrong = (2, 5), []
    for path in files:
        libraries, versions = needs(path)
        wrong += [f"{path} needs {name}, which is not there" for name in libraries if name not in inside and not SYSTEM.fullmatch(name)]
        wrong += [f"{path} needs {name}_{'.'.join(map(str, v))}, which is too new" for name, newest in NEWEST.items()
                  for v in versions.get(name, ()) if v > newest]
        glibc = max(glibc, *versions.get("GLIBC", {glibc}))
    if not files or wrong:
        print("\n".join(wrong) or f"no program in {sys.argv[1]}", file=sys.stderr)
        return 1
    print(f"manylinux_{glibc[0]}_{glibc[1]}_{platform.machine()}")
    return 0


sys.exit(main())
