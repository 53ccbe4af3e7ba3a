# SPDX-License-Identifier: Apache-2.0
"""Includes point down only, along the arrows that tests/links.cmake draws among the folders of src/ - those that programs are linked by, so
this adds what a linker does not see: types, macros, inline functions. A room's room.h and internal.h are its own; its
folders may use the header that it has for others."""
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Public headers (include/kvroute) by the folder whose they are.
PUBLIC_OF = {"api": "base", "error": "base", "alloc": "base", "clock": "base", "types": "base", "hash": "hash", "event": "base",
             "index": "index", "load": "load", "local_index": "recover", "select": "select", "generation_model": "select", "disagg": "select", "ttft_model": "select",
             "queue": "queue", "router": "router", "pair": "router", "kvroute": "router"}
LIBRARY = {"base", "hash", "index", "load", "select", "queue", "recover", "router"}
FORBIDDEN_BELOW = re.compile(r"(sys/socket|netinet/|arpa/|uv|zmq|llhttp|simdjson|yaml|sys/epoll|fcntl|sys/stat)")
PRIVATE = ("/room.h", "internal.h")


def rooms():
    """folder -> the folders that it may use, itself among them."""
    below, of = {}, {}
    for name, rest in re.findall(r"^room\((\S+?)(?:\s+(.*?))?\)$", open(os.path.join(ROOT, "tests/links.cmake")).read(), re.M):
        own, _, uses = rest.partition("USES")
        folders = own.split()[1:] or [name]
        below[name] = set(folders).union(*(below[u] for u in uses.split()))
        of.update(dict.fromkeys(folders, below[name]))
    return of


def room(folder):
    """A room of `serve` may have folders of its own; elsewhere each folder is one."""
    return folder.split("/")[:3] if folder.startswith("app/serve/") else [folder]


def violations():
    may = rooms()
    for folder, _, files in os.walk(os.path.join(ROOT, "src")):
        rel = os.path.relpath(folder, os.path.join(ROOT, "src"))
        for name in files:
            path = os.path.join(folder, name)
            where = os.path.relpath(path, ROOT)
            if rel not in may:
                yield f"{where}: folder '{rel}' has no place in tests/links.cmake"
                continue
            for n, line in enumerate(open(path), 1):
                m = re.match(r'\s*#\s*include\s+["<]([^">]+)[">]', line)
                if not m:
                    continue
                inc = m.group(1)
                if rel.split("/")[0] in LIBRARY and FORBIDDEN_BELOW.match(inc):
                    yield f"{where}:{n}: the library includes {inc}"
                target = PUBLIC_OF.get(inc[8:].removesuffix(".h"), "nowhere") if inc.startswith("kvroute/") else os.path.dirname(inc)
                if (target in may or inc.startswith("kvroute/")) and target not in may[rel] and target != "/".join(room(rel)):
                    yield f"{where}:{n}: {rel} includes {inc}, which is not below it"
                if target in may and inc.endswith(PRIVATE) and room(target) != room(rel):
                    yield f"{where}:{n}: {inc} is private to its room"


def seen_through(name, chain=()):
    """The headers that an include brings with it, each with the way to it."""
    path = os.path.join(ROOT, "src", name)
    if not os.path.exists(path):
        return
    for inc in re.findall(r'^#include "([^"]+)"', open(path).read(), re.M):
        if inc not in chain:
            yield chain + (inc,)
            yield from seen_through(inc, chain + (inc,))


def leaks():
    """A header for others that includes its room's state shows it to them."""
    for folder, _, files in os.walk(os.path.join(ROOT, "src/app/serve")):
        for name in files:
            rel = os.path.relpath(os.path.join(folder, name), os.path.join(ROOT, "src"))
            for way in seen_through(rel):
                if way[-1].endswith("/room.h") and room(os.path.dirname(way[-1])) != room(os.path.dirname(rel)) and len(way) > 1:
                    yield f"src/{rel}: sees {way[-1]} through {way[-2]}"
                    break


bad = [*violations(), *leaks()]
print("\n".join(bad) if bad else "includes point down only")
sys.exit(1 if bad else 0)
