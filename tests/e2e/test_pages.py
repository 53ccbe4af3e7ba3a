# SPDX-License-Identifier: Apache-2.0
"""Man pages and completions: made of the tables of options, clean, and as their readers expect them."""
import os
import pty
import re
import select
import shutil
import subprocess
import time

import pytest

from conftest import BINARY, SLOW

TEXTS = os.path.join(os.path.dirname(__file__), "../../src/cli/help")
COMMANDS = sorted({f.removesuffix(".txt") for f in os.listdir(TEXTS)} - {"kvroute.yaml"})


def run(*args, **kw):
    return subprocess.run([*map(str, args)], capture_output=True, text=True, timeout=60 * SLOW, **kw)


def options(command):
    """All of a command, by its own help."""
    return [n for n in re.findall(r"^  --(?:\[no-\])?(\S+)", run(BINARY, command, "--help", "all").stdout, re.M) if n != "help"]


def needs(program, package):
    return pytest.mark.skipif(not shutil.which(program), reason=f"{program} is not installed (package {package})")


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("man")
    r = run(BINARY, "man", "--dir", folder)
    assert r.returncode == 0 and not r.stdout and not r.stderr, r
    return {f"{p.parent.name}/{p.name}": p for p in folder.glob("*/*")}


# ---- man pages -------------------------------------------------------------------------------------------


def test_there_is_a_page_for_each_command_and_for_the_file(pages):
    assert sorted(pages) == sorted([*(f"man1/kvroute-{c}.1" for c in COMMANDS), "man1/kvroute.1", "man5/kvroute.yaml.5"])
    for page, argument in ("man1/kvroute.1", "kvroute"), ("man1/kvroute-serve.1", "serve"), ("man1/kvroute-hash.1", "kvroute-hash"), \
            ("man5/kvroute.yaml.5", "kvroute.yaml"):
        assert run(BINARY, "man", argument).stdout == pages[page].read_text("ascii")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_page_has_each_option_once(pages, command):
    told = re.findall(r"^\.TP\n\\fB\\-\\-(\S+?)\\fR", pages[f"man1/kvroute-{command}.1"].read_text(), re.M)
    assert [n.replace("\\-", "-") for n in told] == ["help", *options(command)]
    dashes = command.replace("-", "\\-")
    assert pages["man1/kvroute.1"].read_text().count(f".BR kvroute\\-{dashes} (1)") == 1


def test_the_page_of_the_file_has_what_may_be_in_it(pages):
    told = [n.replace("\\-", "-") for n in re.findall(r"^\.TP\n\\fB(\S+?)\\fR:", pages["man5/kvroute.yaml.5"].read_text(), re.M)]
    assert told == [n for n in options("serve") if n not in ("config", "check")]


@needs("man", "man-db")
def test_man_takes_all_pages_without_a_warning(pages):
    for page in pages.values():
        r = run("man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", page)
        assert r.returncode == 0 and not r.stderr, (page, r.stderr)


@needs("mandoc", "mandoc")
def test_mandoc_finds_nothing_but_that_pages_have_no_date(pages):
    said = run("mandoc", "-T", "lint", "-W", "warning", *pages.values()).stdout
    assert [l for l in said.splitlines() if "missing date" not in l] == []


def test_a_page_that_is_not_there_is_named(tmp_path):
    r = run(BINARY, "man", "xyzzy")
    assert r.returncode == 2 and "xyzzy" in r.stderr and not r.stdout
    r = run(BINARY, "man", "--dir", tmp_path / "none")
    assert r.returncode == 1 and "none/man1" in r.stderr


# ---- completions -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("completions")
    made = {}
    for shell in "bash", "zsh", "fish":
        made[shell] = folder / shell
        made[shell].write_text(run(BINARY, "completion", shell).stdout)
    return made


def bash(scripts, *words, cwd=None):
    """What bash offers for the last of the words. It has = as a word of its own."""
    say = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _kvroute; printf "%s\\n" "${COMPREPLY[@]}"'
    r = run("bash", "--norc", "-c", say, "bash", scripts["bash"], "kvroute", *words, cwd=cwd)
    assert r.returncode == 0 and not r.stderr, r
    return r.stdout.split()


def test_bash_completes_commands(scripts):
    assert sorted(bash(scripts, "")) == sorted([*COMMANDS, "help", "version"])
    assert bash(scripts, "pub") == ["publish"] and bash(scripts, "xyzzy") == []


@pytest.mark.parametrize("command", COMMANDS)
def test_bash_completes_every_option(scripts, command):
    assert set(bash(scripts, command, "--")) >= {f"--{n}" for n in ["help", *options(command)]}


@pytest.mark.parametrize("words,offered", [
    (["serve", "--router-mode", ""], "kv round-robin random least-loaded direct"),
    (["serve", "--router-mode", "ra"], "random"),
    (["serve", "--router-mode", "=", "r"], "round-robin random"),
    (["serve", "--router-mode", "="], "kv round-robin random least-loaded direct"),
    (["serve", "--host", "::", "--log-format", "j"], "json"),
    (["serve", "--admin-p"], "--admin-port"),
    (["serve", "--no-router-kv"], "--no-router-kv-events"),
    (["serve", "--help", "tl"], "tls"),
    (["serve", "--port", ""], ""),
    (["completion", ""], "bash zsh fish"),
    (["check", "--kind", "p"], "policy"),
])
def test_bash_completes_options_and_values(scripts, words, offered):
    assert bash(scripts, *words) == offered.split()


def test_bash_completes_files_and_folders_where_they_are_taken(scripts, tmp_path):
    (tmp_path / "some.yaml").write_text("")
    (tmp_path / "some.d").mkdir()
    assert sorted(bash(scripts, "serve", "--config", "so", cwd=tmp_path)) == ["some.d", "some.yaml"]
    assert bash(scripts, "serve", "--data-dir", "so", cwd=tmp_path) == ["some.d"]
    assert sorted(bash(scripts, "check", "so", cwd=tmp_path)) == ["some.d", "some.yaml"]
    assert bash(scripts, "serve", "so", cwd=tmp_path) == []


def test_a_person_at_bash_presses_tab(scripts):
    """The whole way: an interactive bash on a terminal."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(shutil.which("bash"), ["bash", "--norc", "--noprofile", "-i"], {**os.environ, "PS1": "$ ", "TERM": "dumb", "HISTFILE": ""})
    said, deadline = b"", time.monotonic() + 30 * SLOW
    try:
        os.write(terminal, f"source '{scripts['bash']}'; echo rea''dy\n".encode())
        for wanted, typed in (b"ready", b"kvroute ser\t--router-mo\tro\t\n"), (b"kvroute serve --router-mode round-robin", b"exit\n"):
            while wanted not in said:
                assert time.monotonic() < deadline, said
                if select.select([terminal], [], [], 1)[0]:
                    said += os.read(terminal, 4096)
            os.write(terminal, typed)
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)


@needs("fish", "fish")
def test_fish_completes_commands_options_and_values(scripts, tmp_path):
    def fish(line):
        r = run("fish", "--no-config", "-c", 'source $argv[1]; complete -C $argv[2]', scripts["fish"], line, env={**os.environ, "HOME": str(tmp_path)}, cwd=tmp_path)
        assert r.returncode == 0 and not r.stderr, r
        return [l.split("\t")[0] for l in r.stdout.splitlines()]
    assert sorted(fish("kvroute ")) == sorted([*COMMANDS, "help", "version"])
    assert fish("kvroute serve --router-mode r") == ["random", "round-robin"] and fish("kvroute serve --admin-p") == ["--admin-port"]
    assert "tls" in fish("kvroute serve --help ") and sorted(fish("kvroute completion ")) == ["bash", "fish", "zsh"]


@needs("zsh", "zsh")
def test_zsh_takes_its_script(scripts):
    r = run("zsh", "--no-rcs", "-n", scripts["zsh"])
    assert r.returncode == 0 and not r.stderr, r
    r = run("zsh", "--no-rcs", "-c", "autoload -U compinit && compinit -D -u && source $1 && print $_comps[kvroute]", "zsh", scripts["zsh"])
    assert r.stdout.strip() == "_kvroute" and not r.stderr, r


def test_a_shell_that_is_not_known_is_named():
    for words in [], ["tcsh"], ["bash", "zsh"]:
        r = run(BINARY, "completion", *words)
        assert r.returncode == 2 and "bash|zsh|fish" in r.stderr and not r.stdout
