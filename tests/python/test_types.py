# SPDX-License-Identifier: Apache-2.0
"""The stubs, held against strict mypy: what is right passes, every wrong line is refused, and they say what the package does."""
import importlib.util
import os
import re
import subprocess

import pytest

import kvroute

HERE = os.path.dirname(os.path.abspath(__file__))
SITE = os.path.dirname(os.path.dirname(os.path.abspath(kvroute.__file__)))

pytestmark = pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed")


def mypy(tmp_path, module, *args):
    env = {**os.environ, "MYPYPATH": SITE, "PYTHONPATH": SITE, "MYPY_CACHE_DIR": str(tmp_path)}
    env.pop("LD_PRELOAD", None)
    p = subprocess.run(["/usr/bin/python3", "-m", module, *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300,
                       cwd=os.path.join(HERE, "types"), env=env)
    return p.returncode, p.stdout


@pytest.mark.parametrize("version", ["3.9", "3.11"])
def test_right_use_is_accepted(tmp_path, version):
    rc, text = mypy(tmp_path, "mypy", "--strict", "--python-version", version, "good.py")
    assert rc == 0, text


def test_every_wrong_line_is_refused_and_no_other(tmp_path):
    _, text = mypy(tmp_path, "mypy", "--strict", "bad.py")
    refused = {int(n) for n in re.findall(r"^bad\.py:(\d+): error", text, re.M)}
    with open(os.path.join(HERE, "types", "bad.py"), encoding="utf-8") as f:
        wrong = {n for n, line in enumerate(f, 1) if line.rstrip().endswith("# bad")}
    assert wrong and refused == wrong, text


def test_the_stubs_say_what_the_package_has(tmp_path):
    rc, text = mypy(tmp_path, "mypy.stubtest", "kvroute", "--ignore-missing-stub")
    assert rc == 0, text
