# SPDX-License-Identifier: Apache-2.0
"""A router that is replaced in place beside many requests fails none of them: as test_handover.py and test_systemd.py have it, for longer."""
from handover_parts import listening, replaced_in_place, restarted_by_systemd  # noqa: F401


def test_ten_thousand_requests_beside_two_hand_overs(start, tmp_path):
    replaced_in_place(start, tmp_path, 10000)


def test_ten_thousand_requests_beside_two_restarts_by_systemd(start, listening):  # noqa: F811
    restarted_by_systemd(start, listening, 10000)
