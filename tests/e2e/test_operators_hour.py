# SPDX-License-Identifier: Apache-2.0
"""docs/guides/operators-hour.md: its commands, in one shell, print what the page says. tests/install has it with installed programs."""
import os
import re

from conftest import BINARY, SLOW, free_ports
from pages import go_through

PAGE = os.path.join(os.path.dirname(__file__), "../../docs/guides/operators-hour.md")
PORTS = ("8001", "8002", "8003", "8080", "9090", "5557", "5558", "5567", "5568", "5577", "5578")
REQUESTS = "10000" if SLOW == 1 else "1000"  # with a sanitizer they would take a minute


def test_the_hour_goes_as_the_page_says(tmp_path):
    taken = {port: str(n) for n, port in enumerate(PORTS, free_ports(len(PORTS)))}
    ports = re.compile(r"(?<=[:\s])(" + "|".join(PORTS) + r")\b")
    env = {k: v for k, v in os.environ.items() if k != "KVROUTE_LAME_DUCK_TIME"} | {"PATH": f"{os.path.dirname(BINARY)}:{os.environ['PATH']}"}
    directory = tmp_path / "hour"
    directory.mkdir()
    go_through(PAGE, directory, lambda text: ports.sub(lambda m: taken[m[1]], text).replace("10000", REQUESTS), env)
