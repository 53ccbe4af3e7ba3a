# SPDX-License-Identifier: Apache-2.0
"""What `make bench` prints beside what was recorded: tables, ratios, marks; no times."""
import json
import os
import sys

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../bench"))
import figures  # noqa: E402
from figures import Row  # noqa: E402


@pytest.fixture
def history(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "HISTORY", str(tmp_path / "history.jsonl"))
    return tmp_path / "history.jsonl"


def cells(text, name):
    return next([c.strip() for c in l.strip("|").split("|")] for l in text.splitlines() if l.startswith(f"| {name} |"))


def test_a_ratio_that_fell_by_five_percent_is_marked(history):
    figures.record([Row("small", 10, {"haproxy": 12, "nginx": 8}), Row("other", 10, {"haproxy": 12})])
    last = figures.last_recorded()
    assert last["small"]["ratio"] == 0.8 and last["small"]["to"] == "haproxy, nginx"
    slower = figures.compared([Row("small", 20, {"haproxy": 20, "nginx": 15}), Row("other", 20, {"haproxy": 23})], last)  # the machine is slower
    assert cells(slower, "small")[-1] == "**fell 6 %**" and cells(slower, "other")[-1] == ""
    assert cells(slower, "small")[1:6] == ["20", "20", "15", "0.75", f"10; 0.8 ({last['small']['commit']})"]
    better = figures.compared([Row("small", 5, {"haproxy": 12, "nginx": 8})], last)
    assert cells(better, "small")[-1] == ""


def test_ratios_to_others_than_before_are_not_compared(history):
    figures.record([Row("small", 10, {"haproxy": 12})])
    assert cells(figures.compared([Row("small", 10, {"nginx": 5})], figures.last_recorded()), "small")[-1] == ""


def test_each_figure_is_beside_the_last_line_that_has_it(history):
    figures.record([Row("a", 1, {"x": 1}), Row("b", 1, {"x": 1})])
    figures.record([Row("a", 2, {"x": 1})])
    last = figures.last_recorded()
    assert last["a"]["figure"] == 2 and last["b"]["figure"] == 1
    assert "(" not in cells(figures.compared([Row("new", 1, {})], last), "new")[-2]


def test_a_goal_stands_in_for_who_is_not_there_and_none_is_divided_by_nothing(history):
    text = figures.compared([Row("faults", 0, {}, 0), Row("bytes", 24, {}, 12), Row("plain", 3, {})], {})
    assert cells(text, "faults")[3] == "1" and cells(text, "bytes")[3] == "0.5" and cells(text, "plain")[2:4] == ["", ""]
    figures.record([Row("faults", 0, {}, 0)])
    assert cells(figures.compared([Row("faults", 8, {}, 0)], figures.last_recorded()), "faults")[-1] == "**fell 99 %**"


def test_a_line_is_written_only_when_asked(history, monkeypatch, capsys):
    rows = [Row("small", 10, {"haproxy": 12}, 11)]
    monkeypatch.delenv("RECORD", raising=False)
    figures.report("a run", rows)
    assert not history.exists()
    monkeypatch.setenv("RECORD", "1")
    figures.report("a run", rows)
    line = json.loads(history.read_text())
    assert set(line) == {"commit", "date", "machine", "figures"} and line["figures"] == {"small": {"figure": 10, "ratio": 1.2, "to": "haproxy", "goal": 11}}
    assert "/" not in line["machine"] and os.uname().nodename not in line["machine"]
    figures.report("a run", rows)
    assert len(history.read_text().splitlines()) == 2 and "10; 1.2 (" in capsys.readouterr().out.splitlines()[-2]


def test_the_history_is_readable():
    kept = os.path.join(os.path.dirname(figures.__file__), "history.jsonl")
    for name, one in figures.last_recorded(kept).items():
        assert name and one["figure"] >= 0 and one["commit"]
