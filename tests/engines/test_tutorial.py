# SPDX-License-Identifier: Apache-2.0
"""docs/start/vllm.md as its reader goes through it: the commands of its `sh` blocks, one block after the other in a shell of its own, and what the page says
that they print. Programs that run until they are ended stay in the background, as in terminals of their own.

Other than the reader has it: nothing is installed, the model is the tiny one, with what a small CPU needs, and ports are free ones."""
import os
import re
import signal
import subprocess

import pytest
from harness import BLOCK, DIR, ROOT, ports, wait_until

BINARY = os.path.abspath(os.environ["KVROUTE"])
CPU = f"--served-model-name tiny --block-size {BLOCK} --max-model-len 2048 --max-num-seqs 16 --enforce-eager --dtype bfloat16 --num-gpu-blocks-override 2000"
MODEL = "Qwen/Qwen3-0.6B"
PORTS = ("8000", "5557", "5558", "8080", "9090")


class Page:
    """The page's commands, and for each fenced block without a language the lines that it shows."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as f:
            text = f.read()
        blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)
        self.commands = [body for kind, body in blocks if kind == "sh"]
        self.shown = [body.splitlines() for kind, body in blocks if kind == ""]


def pattern(line):
    """What a shown line must look like: its numbers are others elsewhere, `...` stands for anything, and a line of the log has its time and
    level before it, as the page says."""
    return re.compile(r"(?:[\d-]+T[\d:.]+Z (?:info|warning|error) )?" + re.sub(r"\\\.\\\.\\\.", ".*", re.sub(r"\d+", r"\\d+", re.escape(line.strip()))))


def signal_group(p, number):
    """Returns: whether there is anybody in the group. 0 only asks."""
    p.poll()  # one that has ended is in it until it is waited for
    try:
        os.killpg(p.pid, number)
    except ProcessLookupError:
        return False
    return True


class Reader:
    def __init__(self, directory):
        free = dict(zip(PORTS, (str(ports()) for _ in PORTS)))
        self.ports = lambda text: re.sub(r"(?<=[: ])(" + "|".join(PORTS) + r")\b", lambda m: free[m[0]], text)
        bin_dir = directory / "bin"
        bin_dir.mkdir()
        (bin_dir / "kvroute").symlink_to(BINARY)
        self.env = {**os.environ, "PATH": f"{bin_dir}:{DIR}/venv/bin:{os.environ['PATH']}", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
                    "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "",
                    "KVROUTE_PORT": free["8080"], "KVROUTE_ADMIN_PORT": free["9090"]}
        self.directory, self.background = directory, []

    def script(self, block):
        block = re.sub(r"^pip install .*\n", "", self.ports(block), flags=re.M)
        return block.replace(MODEL, f"{DIR}/model {CPU}")

    def leave_running(self, block):
        """Returns what it has printed so far, as a function."""
        path = self.directory / f"terminal{len(self.background)}"
        with open(path, "wb") as out:
            self.background.append(subprocess.Popen(["bash", "-c", self.script(block)], stdout=out, stderr=subprocess.STDOUT, env=self.env, cwd=self.directory,
                                                    stdin=subprocess.DEVNULL, start_new_session=True))
        return lambda: path.read_text(errors="replace")

    def run(self, block):
        p = subprocess.run(["bash", "-c", self.script(block)], env=self.env, cwd=self.directory, capture_output=True, text=True, timeout=120, check=False)
        print(f"$ {block}{p.stdout}{p.stderr}")
        return p

    def close(self):
        for p in reversed(self.background):
            signal_group(p, signal.SIGTERM)
            try:
                wait_until("its end", lambda: not signal_group(p, 0), 20)
            except AssertionError:
                signal_group(p, signal.SIGKILL)
            p.wait()


@pytest.fixture
def reader(alone, tmp_path):
    r = Reader(tmp_path)
    yield r
    r.close()


def shows(lines, text):
    missing = [line for line in lines if not any(pattern(line).fullmatch(printed.strip()) for printed in text.splitlines())]
    assert not missing, "not printed: " + "\n".join(missing) + f"\n--- but\n{text[-6000:]}"


def headers(text):
    """Those of the router's of each answer, in the order of the answers."""
    answers = []
    for name, value in re.findall(r"^(x-kvroute-[\w-]+): *(.*?)\r?$", text, re.M):
        if not answers or name in answers[-1]:
            answers.append({})
        answers[-1][name] = value
    return answers


def test_every_command_of_the_page_does_what_the_page_says(reader):
    page = Page(os.path.join(ROOT, "docs/start/vllm.md"))
    engine, router, first_hit, doctor = page.commands
    found, hit, healthy = page.shown
    engine_says = reader.leave_running(engine)
    wait_until("the engine", lambda: "Application startup complete" in engine_says() or reader.background[0].poll() is not None, 200)
    assert reader.background[0].poll() is None, engine_says()[-3000:]
    router_says = reader.leave_running(router)
    wait_until("what the router has found", lambda: shows([reader.ports(line) for line in found], router_says()) is None, 20)
    text = reader.run(first_hit).stdout
    shows(hit, text)
    first, second = headers(text)
    assert first["x-kvroute-overlap-blocks"] == "0" and second["x-kvroute-reason"] == "kv"
    assert int(second["x-kvroute-overlap-blocks"]) * BLOCK == int(re.findall(r'"cached_tokens":(\d+)', text)[-1]) > 0
    p = reader.run(doctor)
    assert p.returncode == 0
    shows([reader.ports(line) for line in healthy], p.stdout + p.stderr)
