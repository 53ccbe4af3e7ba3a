# SPDX-License-Identifier: Apache-2.0
"""The one wheel on every CPython that is on this machine: 3.9 to 3.14 from PATH, from pyenv, and what KVROUTE_PYTHONS names (paths,
separated by colons). Each runs the README's examples with nothing but the wheel."""
import glob
import os
import shutil
import subprocess
import zipfile

import pytest

import kvroute

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SITE = os.path.dirname(os.path.dirname(os.path.abspath(kvroute.__file__)))
RUN = r"""
import re, sys
sys.path.insert(0, sys.argv[1])
before = set(sys.modules)
with open(sys.argv[2], encoding="utf-8") as f:
    blocks = re.findall(r"```python\n(.*?)```", f.read(), re.S)
assert blocks
for code in blocks:
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
import kvroute
assert kvroute.__file__.startswith(sys.argv[1]), kvroute.__file__
foreign = [m for m in set(sys.modules) - before if "cffi" in m or "setuptools" in m]
assert not foreign, foreign
print("ran on", sys.version_info[:2])
"""


def version_of(path):
    ask = "import sys; print(sys.implementation.name, *sys.version_info[:2], hasattr(sys, '_is_gil_enabled') and not sys._is_gil_enabled())"
    try:
        said = subprocess.run([path, "-c", ask], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=60).stdout.split()
    except (OSError, subprocess.TimeoutExpired):
        return None
    if len(said) != 4 or said[0] != "cpython" or said[3] == "True":
        return None
    return int(said[1]), int(said[2])


def interpreters():
    named = [p for p in os.environ.get("KVROUTE_PYTHONS", "").split(":") if p]
    names = [shutil.which(f"python3.{minor}") for minor in range(9, 15)]
    found = {}
    for path in named + sorted(glob.glob(os.path.expanduser("~/.pyenv/versions/3.*/bin/python3"))) + ["/usr/bin/python3"] + [n for n in names if n]:
        version = version_of(path)
        if version and version >= (3, 9):
            found.setdefault(version, path)
    return sorted(found.items())


@pytest.mark.parametrize("version, path", interpreters(), ids=lambda v: ".".join(map(str, v)) if isinstance(v, tuple) else "")
def test_the_wheel_serves_every_python_without_a_second_package(version, path):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "LD_PRELOAD"))}
    p = subprocess.run([path, "-I", "-S", "-X", "dev", "-W", "error", "-c", RUN, SITE, os.path.join(ROOT, "bindings", "python", "README.md")],
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, env={**env, "LD_BIND_NOW": "1"})
    assert p.returncode == 0 and f"ran on {version}" in p.stdout, p.stdout


def test_the_wheel_asks_for_no_other_package():
    wheels = glob.glob(os.path.join(ROOT, "build", "wheel-library", "kvroute-*.whl"))
    if not wheels:
        pytest.skip("no wheel in build/wheel-library")
    with zipfile.ZipFile(wheels[0]) as wheel:
        names = wheel.namelist()
        metadata = wheel.read(next(n for n in names if n.endswith("METADATA"))).decode()
    assert "-cp39-abi3-" in os.path.basename(wheels[0])
    assert "Requires-Dist" not in metadata.split("\n\n")[0] and [n for n in names if n.endswith(".so")] == ["kvroute/_kvroute.abi3.so"]
