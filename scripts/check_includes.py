# SPDX-License-Identifier: Apache-2.0
"""Includes point down only: each folder of src/ may use the layers below it, and no sibling's private header."""
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Each folder with what it may include besides itself. Public headers (include/kvroute) follow the same order.
ALLOWED = {
    "base": set(),
    "hash": {"base"},
    "index": {"base", "hash"},
    "load": {"base", "hash"},
    "select": {"base"},
    "queue": {"base"},
    "recover": {"base", "hash", "index"},
    "router": {"base", "hash", "index", "load", "select", "queue", "recover"},
    "wire": {"base", "hash", "index", "load", "select", "queue", "recover", "router"},
    "net": {"base", "hash", "index", "load", "select", "queue", "recover", "router", "wire"},
    "store": {"base", "hash", "index", "load", "select", "queue", "recover", "router", "wire", "net"},
    "token": {"base"},
    "traffic": {"base", "wire"},
    "sim": {"traffic", "base", "hash", "index", "load", "select", "queue", "recover", "router"},
    "app": {"sim", "traffic", "token", "base", "hash", "index", "load", "select", "queue", "recover", "router", "wire", "net", "store"},
    "cli": {"base", "wire", "app"},
}
PUBLIC_OF = {"api": "base", "error": "base", "alloc": "base", "clock": "base", "types": "base", "hash": "hash", "event": "base",
             "index": "index", "load": "load", "local_index": "recover", "select": "select", "generation_model": "select", "disagg": "select", "ttft_model": "select",
             "queue": "queue", "router": "router", "pair": "router", "kvroute": "router"}
LIBRARY = {"base", "hash", "index", "load", "select", "queue", "recover", "router"}
FORBIDDEN_BELOW = re.compile(r"<(sys/socket|netinet/|arpa/|uv|zmq|llhttp|simdjson|yaml|sys/epoll|fcntl|sys/stat)")


def violations():
    for folder, _, files in os.walk(os.path.join(ROOT, "src")):
        rel = os.path.relpath(folder, os.path.join(ROOT, "src"))
        layer = rel.split(os.sep)[0]
        for name in files:
            path = os.path.join(folder, name)
            where = os.path.relpath(path, ROOT)
            if layer not in ALLOWED:
                yield f"{where}: folder '{layer}' has no place in the layers"
                continue
            for n, line in enumerate(open(path), 1):
                m = re.match(r'\s*#\s*include\s+["<]([^">]+)[">]', line)
                if not m:
                    continue
                inc = m.group(1)
                if layer in LIBRARY and FORBIDDEN_BELOW.match(f"<{inc}"):
                    yield f"{where}:{n}: the library includes {inc}"
                if inc.startswith("kvroute/"):
                    target = PUBLIC_OF.get(inc[8:].removesuffix(".h"))
                    if target is None:
                        yield f"{where}:{n}: unknown public header {inc}"
                    elif target != layer and target not in ALLOWED[layer] and layer != "cli":
                        yield f"{where}:{n}: {layer} includes {inc}, which is above it"
                elif "/" in inc and inc.split("/")[0] in ALLOWED:
                    target = inc.split("/")[0]
                    if target != layer and target not in ALLOWED[layer]:
                        yield f"{where}:{n}: {layer} includes {inc}, which is above it"
                    if inc.endswith("internal.h") and not inc.startswith(rel):
                        yield f"{where}:{n}: {inc} is private to its folder"
                    if target == layer == "app" and inc.split("/")[1] != rel.split(os.sep)[1]:
                        yield f"{where}:{n}: one program includes another's header"


bad = list(violations())
print("\n".join(bad) if bad else "includes point down only")
sys.exit(1 if bad else 0)
