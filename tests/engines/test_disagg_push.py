# SPDX-License-Identifier: Apache-2.0
"""Two real engines that get a request at once: vLLM's NixlPushConnector on the CPU, where the engine that computes the prompt writes it into the
memory of the one that answers. Each engine keeps two cores busy with looking for the other's writes, so on fewer than four a request may
take minutes."""
import os

import pytest

from harness import scrape
from pair_parts import EXPIRED, bodies, fleet_of, leave_at_any_moment, let_go, same_as_alone

pytestmark = pytest.mark.skipif((os.cpu_count() or 1) < 4, reason="two engines that poll for each other's writes need four cores")


def test_a_prompt_is_written_into_the_decode_engine(start, pushing):
    pushes, _ = pushing
    s, expired = fleet_of(start, pushing, "vllm-nixl-push"), scrape(pushes, EXPIRED)
    for path, body in bodies(1, 12):
        same_as_alone(s, pushes, path, body)
    let_go(pushes, expired)
    assert s.idle()


def test_clients_that_leave_leave_engines_that_serve_on(start, pushing):
    pushes, _ = pushing
    s = fleet_of(start, pushing, "vllm-nixl-push")
    leave_at_any_moment(s)
    for path, body in bodies(5, 4):
        same_as_alone(s, pushes, path, body)
