# SPDX-License-Identifier: Apache-2.0
"""A short run of tests/soak/disagg.py for each protocol: clients leave, mocks are killed and come back, transfers fail, and nothing is left behind."""
import os
import subprocess
import sys

import pytest
from conftest import BINARY, SLOW
from leg_fleets import AT_ONCE

SOAK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../soak/disagg.py")


@pytest.mark.parametrize("protocol", ["vllm-nixl", "trtllm", "none", *AT_ONCE])
def test_nothing_is_left_behind_and_no_answer_is_anothers(protocol):
    r = subprocess.run([sys.executable, SOAK, "--protocol", protocol, "--requests", "250", "--kills", "3", "--lease", "2"], capture_output=True, text=True,
                       env={**os.environ, "KVROUTE": BINARY}, timeout=100 * SLOW)
    print(r.stdout, r.stderr)
    assert r.returncode == 0, r.stdout + r.stderr[-4000:]
