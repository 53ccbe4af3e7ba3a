# SPDX-License-Identifier: Apache-2.0
"""A page of the documents as its reader goes through it: its `sh` blocks, one after the other in a shell of its own, and what it says that
they print. Programs that run until they are ended stay in the background, as in terminals of their own. `pages.py PAGE` goes through a page
that is for one shell, here, with the programs of the PATH; it needs nothing that Python does not have."""
import os
import re
import signal
import subprocess
import sys


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


# ---- pages for one shell ----------------------------------------------------------------------------------------


def steps(path):
    """Each `sh` block with the `text` block below it, which is all that it prints."""
    with open(path, encoding="utf-8") as f:
        page = f.read()
    blocks = re.findall(r"^```sh\n(.*?)^```\n```text\n(.*?)^```$", page, re.M | re.S)
    assert len(blocks) == page.count("```sh") > 0, "a block of commands does not say what it prints"
    return blocks


def matches(said, told):
    """Line by line, blanks as they come; "..." stands for anything, in a line of its own for any number of lines."""
    parts = [r"(?:.*\n)*?" if line.strip() == "..." else r"\s+".join(r".*?".join(map(re.escape, word.split("..."))) for word in line.split()) + r"\s*\n"
             for line in told.splitlines()]
    return re.fullmatch("".join(parts), said)


def go_through(path, directory, edit=lambda text: text, env=None):
    """All steps in one shell, in that directory. What it says on stderr is in the directory beside it."""
    log = os.path.join(os.path.dirname(os.path.abspath(directory)), "stderr")
    with open(log, "w+", encoding="utf-8") as err:
        p = subprocess.Popen(["bash"], cwd=directory, env=env, text=True, start_new_session=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err)
        try:
            for commands, told in steps(path):
                commands, told, said = edit(commands), edit(told), ""
                p.stdin.write(f"{commands}\necho; echo ended $?\n")
                p.stdin.flush()
                while not (end := re.search(r"\nended (\d+)\n$", said)):
                    line = p.stdout.readline()
                    assert line, f"the shell has ended\n{said}"
                    said += line
                said = re.sub(r"^\n", "", said[:end.start()] + "\n", flags=re.M)
                assert matches(said, told), f"{commands}\nsaid:\n{said}\nbut the page says:\n{told}\n{open(log, encoding='utf-8').read()[-3000:]}"
                print(f"$ {commands}{said}")
        finally:
            signal_group(p, signal.SIGKILL)
            p.wait()


if __name__ == "__main__":
    os.makedirs("hour", exist_ok=True)
    go_through(sys.argv[1], "hour")
