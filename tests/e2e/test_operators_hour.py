# SPDX-License-Identifier: Apache-2.0
"""docs/guides/operators-hour.md: its commands, in one shell, print what the page says. KVROUTE_HOUR_SHELL: a command that runs bash where the
program is installed, instead of KVROUTE's folder on the PATH here."""
import os
import re
import shlex
import signal
import subprocess

import pytest
from conftest import BINARY, SLOW, free_ports

PAGE = os.path.join(os.path.dirname(__file__), "../../docs/guides/operators-hour.md")
INSTALLED = os.environ.get("KVROUTE_HOUR_SHELL")
PORTS = ("8001", "8002", "8003", "8080", "9090", "5557", "5558", "5567", "5568", "5577", "5578")
REQUESTS = 10000 if INSTALLED or SLOW == 1 else 1000  # with a sanitizer they would take a minute


def steps():
    """Each block of commands with what it is to print ("..." stands for anything) under its heading."""
    with open(PAGE, encoding="utf-8") as f:
        page = f.read()
    blocks = re.findall(r"^```sh\n(.*?)^```\n```text\n(.*?)^```$", page, re.M | re.S)
    assert len(blocks) == page.count("```sh") > 5, "a block of commands says nothing of what it prints"
    taken = {port: str(n) for n, port in enumerate(PORTS, free_ports(len(PORTS)))}
    ports = re.compile(r"(?<=[:\s])(" + "|".join(PORTS) + r")\b")
    return [tuple(ports.sub(lambda m: taken[m[1]], part).replace("10000", str(REQUESTS)) for part in block) for block in blocks]


def matches(said, told):
    """Line by line, blanks as they come; a line of its own that says "..." is any number of lines."""
    parts = [r"(?:.*\n)*?" if line.strip() == "..." else r"\s+".join(r".*?".join(map(re.escape, word.split("..."))) for word in line.split()) + r"\s*\n"
             for line in told.splitlines()]
    return re.fullmatch("".join(parts), said)


@pytest.fixture
def shell(tmp_path):
    env = {k: v for k, v in os.environ.items() if k != "KVROUTE_LAME_DUCK_TIME"} | {"PATH": f"{os.path.dirname(BINARY)}:{os.environ['PATH']}"}
    p = subprocess.Popen(shlex.split(INSTALLED) if INSTALLED else ["bash"], cwd=tmp_path, env=env, text=True, start_new_session=True, stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, stderr=open(tmp_path.parent / "stderr", "w", encoding="utf-8"))
    yield p
    os.killpg(p.pid, signal.SIGKILL)
    p.wait()


def test_the_hour_goes_as_the_page_says(shell, tmp_path):
    log = tmp_path.parent / "stderr"
    shell.stdin.write(f"set -o pipefail; exec 2>{log}\n" if not INSTALLED else "set -o pipefail\n")
    for commands, told in steps():
        shell.stdin.write(f"{commands}\necho; echo ended $?\n")
        shell.stdin.flush()
        said = ""
        while not (end := re.search(r"\nended (\d+)\n$", said)):
            line = shell.stdout.readline()
            assert line, f"the shell has ended\n{said}\n{log.read_text()[-3000:]}"
            said += line
        said = re.sub(r"^\n", "", said[:end.start()] + "\n", flags=re.M)
        assert matches(said, told), f"{commands}\nsaid:\n{said}\nbut the page says:\n{told}\n{log.read_text()[-3000:]}"
