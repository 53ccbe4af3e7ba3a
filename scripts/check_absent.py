# SPDX-License-Identifier: Apache-2.0
"""The program links without NATS (-DKVR_NATS=OFF): what the files of src/net/nats give to others, src/net/nats/absent.c gives too.

    scripts/check_absent.py [BUILD]      BUILD: a build folder with NATS, by default build/asan"""
import os
import subprocess
import sys
import tempfile

from check_circles import ROOT, objects, symbols

ROOM = "src/net/nats/"


def main():
    found = dict(objects(sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, "build/asan")))
    with tempfile.TemporaryDirectory() as folder:
        absent = os.path.join(folder, "absent.o")
        subprocess.run(["cc", "-std=gnu11", "-D_GNU_SOURCE", f"-I{ROOT}/src", f"-I{ROOT}/include", "-c", f"{ROOT}/{ROOM}absent.c", "-o", absent], check=True)
        of = symbols([*found.values(), absent])
    given = set().union(*(of[o][0] for f, o in found.items() if f.startswith(ROOM)))
    needed = set().union(*(of[o][1] for f, o in found.items() if not f.startswith(ROOM)))
    lacking = sorted((given & needed) - of[absent][0])
    for name in lacking:
        print(f"{ROOM}absent.c lacks {name}")
    print(f"{len(given & needed)} functions of {ROOM}, {len(lacking)} lacking without NATS")
    sys.exit(1 if lacking or not given else 0)


if __name__ == "__main__":
    main()
