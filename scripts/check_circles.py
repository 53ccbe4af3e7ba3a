# SPDX-License-Identifier: Apache-2.0
"""No circle of files larger than two (in src/net/http three, in src/index none): which file calls which is read from the object files of
a build. (Of folders there is none, or tests/links.cmake would not link.)

    scripts/check_circles.py [BUILD]      BUILD: a build folder, by default build/asan

A file is its .c and its .h. It depends on another one when its object needs a symbol that the other's defines, so a call through a
pointer that was handed down does not count: that is how what is below tells what is above."""
import collections
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LARGEST = 2
# Folders with a bound of their own: the index is layers (its internal.h has the map), request and answer of HTTP are one structure.
ROOMS = {"src/index": 1, "src/net/http": 3}


def objects(build):
    """(source file within the tree, object file) of everything below src/ that was built."""
    for folder, _, files in os.walk(os.path.join(build, "CMakeFiles")):
        for name in files:
            path = os.path.join(folder, name)
            if name.endswith(".o") and "/src/" in path:
                source = "src/" + path.split("/src/", 1)[1].removesuffix(".o")
                if os.path.exists(os.path.join(ROOT, source)):  # not of a file that is gone
                    yield source, path


def symbols(paths):
    """path -> (defined, needed) of object files."""
    found = {p: (set(), set()) for p in paths}
    out = subprocess.run(["nm", "-A", "--format=posix", *paths], capture_output=True, text=True, check=True).stdout
    for line in out.splitlines():
        path, rest = line.split(": ", 1)
        name, kind = rest.split()[:2]
        if kind in "TDBRVW":
            found[path][0].add(name)
        elif kind == "U":
            found[path][1].add(name)
    return found


def circles(edges):
    """Strongly connected components with more than one member (Tarjan), each sorted."""
    index, low, stack, on, out = {}, {}, [], set(), []

    def visit(v):
        index[v] = low[v] = len(index)
        stack.append(v)
        on.add(v)
        for w in edges.get(v, ()):
            if w not in index:
                visit(w)
                low[v] = min(low[v], low[w])
            elif w in on:
                low[v] = min(low[v], index[w])
        if low[v] == index[v]:
            group = []
            while not group or group[-1] != v:
                group.append(stack.pop())
                on.discard(group[-1])
            if len(group) > 1:
                out.append(sorted(group))
    for v in list(edges):
        if v not in index:
            visit(v)
    return out


def most(circle):
    """How large a circle of these files may be."""
    rooms = {os.path.dirname(f) for f in circle}
    return ROOMS.get(rooms.pop(), LARGEST) if len(rooms) == 1 else LARGEST


def main():
    build = sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, "build/asan")
    known = dict(objects(build))
    if not known:
        sys.exit(f"{build} has no objects of src/: build it first")
    found = symbols(list(known.values()))
    home = {name: source for source, path in known.items() for name in found[path][0]}
    edges = collections.defaultdict(set)
    for source, path in known.items():
        edges[source] |= {home[name] for name in found[path][1] if name in home and home[name] != source}
    bad = [c for c in circles(edges) if len(c) > most(c)]
    for c in bad:
        print(f"a circle of {len(c)} files, of which {most(c)} is the most:")
        print("\n".join(f"  {f} needs {', '.join(sorted(edges[f] & set(c)))}" for f in c))
    print("no circle of files" if not bad else f"{len(bad)} circles", f"({len(known)} files)")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
