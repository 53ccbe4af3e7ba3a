# SPDX-License-Identifier: Apache-2.0
"""The log: lines on stderr as text or as JSON objects, with levels, and no more from one place than anybody can read."""
import json
import os
import re
import subprocess

import pytest

from conftest import BINARY, Serve, wait_for

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
SAME_ID = 60


def fields_of(line):
    """A line as strict JSON: no constant that JSON lacks, no key twice, these keys in this order."""
    def whole(pairs):
        assert [k for k, _ in pairs] == ["time", "level", "message"], line
        return dict(pairs)

    def refuse(constant):
        raise AssertionError(f"{constant} in {line}")
    o = json.loads(line, object_pairs_hook=whole, parse_constant=refuse)
    assert re.fullmatch(TIME, o["time"]) and o["level"] in ("error", "warning", "info", "debug"), line
    return o


def raw_lines(p):
    """What a program wrote, but for the line on stdout that says where it can be reached."""
    data = os.pread(p.log.fileno(), os.fstat(p.log.fileno()).st_size, 0).decode()  # strictly UTF-8
    return [l for l in data.splitlines() if not re.match("kvroute (serve|select): ", l)]


def crowded(tmp_path):
    """A file of workers of which all but the first are refused, each with a line."""
    f = tmp_path / "workers"
    f.write_text("".join(f"http://127.0.0.1:{port},id=7\n" for port in range(1, 1 + SAME_ID)))
    return ["--discovery", "file", "--discovery-target", f]


def refusals(messages):
    """Lines about refused workers, and how many more are said to have been left out."""
    said = [re.search(r"log: (\d+) more lines were left out, of the form '([^']*)'", m) for m in messages]
    return sum("another worker has this id" in m for m in messages), sum(int(m[1]) for m in said if m and "discovery" in m[2])


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_flood_of_lines_is_cut_and_counted(start, tmp_path, form):
    s = start(Serve, [], *crowded(tmp_path), "--log-format", form, ready=False)
    wait_for("all are refused", lambda: s.metric("discovery_refused_total") == SAME_ID - 1)
    s.stop()
    lines = raw_lines(s)
    messages = [fields_of(l)["message"] if form == "json" else re.fullmatch(TIME + " [a-z]+ (.*)", l)[1] for l in lines]
    written, left_out = refusals(messages)
    assert 20 <= written < SAME_ID - 1 and written + left_out == SAME_ID - 1, messages
    assert any("draining" in m for m in messages)  # one place's limit is not another's


def test_json_lines_hold_whatever_a_worker_is_called(start, tmp_path):
    f = tmp_path / "workers"
    f.write_text("")
    s = start(Serve, [], "--discovery", "file", "--discovery-target", f, "--log-format", "json", ready=False)
    f.write_bytes(b'http://127.0.0.1:1,"\\\x1b[2J\xff\xed\xa0\x80=gr\xc3\xbc\xc3\x9f\n')
    wait_for("it is refused", lambda: ":1: worker: " in s.text())
    seen = [o for o in map(fields_of, raw_lines(s)) if ":1: worker: " in o["message"]]
    assert seen and seen[0]["level"] == "warning" and "\\x1b[2J\\xff\\xed\\xa0\\x80" in seen[0]["message"] and '"' in seen[0]["message"]


@pytest.mark.parametrize("level,some", [("error", set()), ("warning", {"warning"}), ("info", {"warning", "info"})])
def test_levels_leave_out_what_is_less_important(start, tmp_path, level, some):
    s = start(Serve, [], *crowded(tmp_path), env={"KVROUTE_LOG_LEVEL": level}, ready=False)
    wait_for("all are refused", lambda: s.metric("discovery_refused_total") == SAME_ID - 1)
    s.stop()
    assert {l.split()[1] for l in raw_lines(s)} == some, s.text()


@pytest.mark.parametrize("command", ["serve", "select", "indexer", "publish", "mock", "replay", "hash", "doctor", "check", "replay-events", "curve-key"])
def test_every_program_says_in_the_asked_form_that_an_option_is_bad(command):
    bad = {"doctor": ["--timeout", "x"], "check": ["--kind", "x"], "replay-events": ["--max-time", "x"], "curve-key": ["--zap"]}.get(command, ["--zap", "1"])
    r = subprocess.run([BINARY, command, *bad], capture_output=True, text=True, env={**os.environ, "KVROUTE_LOG_FORMAT": "json"})
    assert r.returncode == 2, r
    o = fields_of(r.stderr.splitlines()[0])
    assert o["level"] == "error" and o["message"].startswith(f"kvroute {command}: "), r.stderr
    if command == "curve-key":
        return
    flags = subprocess.run([BINARY, command, "--log-format", "json", *bad], capture_output=True, text=True)
    assert flags.returncode == 2 and (fields_of(flags.stderr.splitlines()[0]) | {"time": ""}) == (o | {"time": ""})


@pytest.mark.parametrize("name,value", [("KVROUTE_LOG_FORMAT", "xml"), ("KVROUTE_LOG_LEVEL", "loud")])
def test_a_bad_form_or_level_is_named(name, value):
    r = subprocess.run([BINARY, "curve-key", "x"], capture_output=True, text=True, env={**os.environ, name: value})
    assert r.returncode == 2 and name in r.stderr and value in r.stderr and "allowed" in r.stderr
    flag = name[8:].lower().replace("_", "-")
    for command in "serve", "doctor":
        r = subprocess.run([BINARY, command, f"--{flag}", value], capture_output=True, text=True)
        assert r.returncode == 2 and flag in r.stderr and value in r.stderr and "allowed" in r.stderr


def test_the_configuration_file_chooses_form_and_level(start, tmp_path):
    config = tmp_path / "c.yaml"
    config.write_text("log-format: json\nlog-level: info\n")
    s = start(Serve, [], "--config", config, ready=False)
    s.stop()
    assert [o["message"] for o in map(fields_of, raw_lines(s)) if "there is no worker" not in o["message"]] == [
        "kvroute serve: draining for 180 s at most; a second signal stops at once",
        "kvroute serve: stopped: 0 answers finished since the end began, 0 cut off"]
