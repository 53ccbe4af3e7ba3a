# SPDX-License-Identifier: Apache-2.0
"""A page of the documents as its reader goes through it: its `sh` blocks, one after the other in a shell of its own, and what it says that
they print. Programs that run until they are ended stay in the background, as in terminals of their own."""
import os
import re
import signal
import subprocess


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
    level before it."""
    return re.compile(r"(?:[\d-]+T[\d:.]+Z (?:info|warning|error) )?" + re.sub(r"\\\.\\\.\\\.", ".*", re.sub(r"\d+", r"\\d+", re.escape(line.strip()))))


def shows(lines, text):
    missing = [line for line in lines if not any(pattern(line).fullmatch(printed.strip()) for printed in text.splitlines())]
    assert not missing, "not printed: " + "\n".join(missing) + f"\n--- but\n{text[-6000:]}"
    return True


def headers(text):
    """Those of the router's of each answer, in the order of the answers."""
    answers = []
    for name, value in re.findall(r"^(x-kvroute-[\w-]+): *(.*?)\r?$", text, re.M):
        if not answers or name in answers[-1]:
            answers.append({})
        answers[-1][name] = value
    return answers


def signal_group(p, number):
    """Returns: whether there is anybody in the group. 0 only asks."""
    p.poll()  # one that has ended is in it until it is waited for
    try:
        os.killpg(p.pid, number)
    except ProcessLookupError:
        return False
    return True


class Reader:
    """free: the page's ports, and those that are taken in their places."""

    def __init__(self, directory, binary, free, wait_for, edit=lambda block: block, path="", **env):
        self.ports = lambda text: re.sub(r"(?<=[: ])(" + "|".join(free) + r")\b", lambda m: free[m[0]], text)
        bin_dir = directory / "bin"
        bin_dir.mkdir()
        (bin_dir / "kvroute").symlink_to(os.path.abspath(binary))
        self.env = {**os.environ, "PATH": f"{bin_dir}:{path}{os.environ['PATH']}", "KVROUTE_PORT": free["8080"], "KVROUTE_ADMIN_PORT": free["9090"], **env}
        self.script = lambda block: edit(self.ports(block))
        self.directory, self.background, self.wait_for = directory, [], wait_for

    def leave_running(self, block):
        """Returns what it has printed so far, as a function."""
        path = self.directory / f"terminal{len(self.background)}"
        with open(path, "wb") as out:
            self.background.append(subprocess.Popen(["bash", "-c", self.script(block)], stdout=out, stderr=subprocess.STDOUT, env=self.env, cwd=self.directory,
                                                    stdin=subprocess.DEVNULL, start_new_session=True))
        return lambda: path.read_text(errors="replace")

    def run(self, block):
        p = subprocess.run(["bash", "-c", self.script(block)], env=self.env, cwd=self.directory, capture_output=True, text=True, timeout=240, check=False)
        print(f"$ {block}{p.stdout}{p.stderr}")
        return p

    def close(self):
        for p in reversed(self.background):
            signal_group(p, signal.SIGTERM)
            try:
                self.wait_for("its end", lambda: not signal_group(p, 0), 20)
            except AssertionError:
                signal_group(p, signal.SIGKILL)
            p.wait()
