# SPDX-License-Identifier: Apache-2.0
"""A few seconds of the mixed hostile load (tests/hostile/hostile.py has the long ones), with few descriptors: the well-behaved client sees none of it."""
import os
import subprocess
import sys

import pytest

from conftest import BINARY

SCRIPT = os.path.join(os.path.dirname(__file__), "../hostile/hostile.py")


@pytest.mark.parametrize("program, how", [("serve", []), ("serve", ["--tls"]), ("serve", ["--keys"]), ("serve", ["--tls", "--keys"]), ("indexer", []), ("select", [])])
def test_a_well_behaved_client_beside_hostile_ones(program, how):
    args = ["--program", program, *how, "--limit", "files", "--seconds", "6", "--threads", "8", "--rss-max-mib", "1500"]
    p = subprocess.run([sys.executable, SCRIPT, *args], env={**os.environ, "KVROUTE": BINARY}, capture_output=True, text=True, timeout=600)
    print(p.stdout[-8000:], p.stderr[-4000:])
    assert p.returncode == 0 and p.stdout.rstrip().endswith("held")
