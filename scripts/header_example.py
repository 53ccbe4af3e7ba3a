# SPDX-License-Identifier: Apache-2.0
"""Writes the example in a public header's comment as a program: header_example.py HEADER OUT HOLDS; HOLDS is true at its end."""
import sys

lines = open(sys.argv[1], encoding="utf-8").read().split("EXAMPLE", 1)[1].split("*/", 1)[0].splitlines()[1:]
body = [line[7:] for line in lines if line.startswith(" *     ") or line == " *"]
if len(body) < 5:
    sys.exit("no example found in " + sys.argv[1])
with open(sys.argv[2], "w", encoding="utf-8") as out:
    out.write("#include <stdio.h>\n#include <kvroute/kvroute.h>\n\nint main(void)\n{\n")
    out.write("".join("    " + line + "\n" for line in body) + f"    return {sys.argv[3]} ? 0 : 1;\n}}\n")
