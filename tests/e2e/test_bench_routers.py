# SPDX-License-Identifier: Apache-2.0
"""The lab of `make bench-routers` (docs/routers.md), with kvroutes only: no wheels, no times."""
import json
import os
import signal
import subprocess
import sys

import pytest

from conftest import BINARY, wait_for

LAB = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../bench/routers")
sys.path.insert(0, LAB)
import table  # noqa: E402
from routers import known, of_other_binary  # noqa: E402
from processes import Failed, samples  # noqa: E402


def lab(*args, **kw):
    kw.setdefault("env", {**os.environ, "ENGINES_DIR": "/nowhere"})
    return subprocess.run(["/usr/bin/python3", os.path.join(LAB, "run.py"), "--kvroute", BINARY, "--nice", "0", "--wheels", "/nowhere", *map(str, args)],
                          capture_output=True, text=True, timeout=240, **kw)


def of_session(sid):
    """Processes of a lab, each of which has a session of its own: by what they are children of, or by their environment."""
    found = []
    for pid in (d for d in os.listdir("/proc") if d.isdigit()):
        try:
            with open(f"/proc/{pid}/environ", "rb") as f:
                if f"LAB_TEST={sid}".encode() in f.read().split(b"\0"):
                    found.append(int(pid))
        except OSError:
            continue
    return found


def test_runs_of_kvroutes_have_all_figures(tmp_path):
    r = lab("--rows", "hot-55", "--routers", "kvroute,kvroute-2,direct", "--rounds", 1, "--seconds", 1, "--seed", 3, "--json", tmp_path / "o.json",
            "--also", f"other={BINARY},--router-mode round-robin", "--logs", tmp_path / "logs")
    assert r.returncode == 0, r.stdout + r.stderr
    out = json.loads((tmp_path / "o.json").read_text())
    runs = out["runs"]["hot-55"]
    assert list(runs) == ["kvroute", "kvroute-2", "direct", "other"] and all(len(v) == 1 for v in runs.values())
    first = runs["kvroute"][0]
    for name, (one,) in runs.items():
        assert one["failures"] == 0 and one["requests"] == first["requests"] > 0 and one["seed"] == 3, (name, one)
        assert sum(one["engines"]["requests"]) == one["requests"] and 1 <= one["balance_requests"] <= 4
        assert abs(one["hit_pct"] - one["hit_pct_of_answers"]) < 0.01 and 0 < one["ttft_mean_ms"] <= one["ttft_p99_ms"] <= one["e2e_p99_ms"]
        assert (one["cpu_ms_per_request"] is None) == (name == "direct") and one["client_cpu_ms_per_request"] > 0
    assert first["hit_pct"] > 0 and sum(first["engines"]["tokens"]) == sum(runs["other"][0]["engines"]["tokens"])  # the same prompts
    again = json.loads(json.dumps(out))
    for run in (run for runs in again["runs"]["hot-55"].values() for run in runs):
        run["seed"] = 4
    (tmp_path / "p.json").write_text(json.dumps(again))
    both = lab("--merge", tmp_path / "o.json", "--merge", tmp_path / "p.json")
    assert both.returncode == 0 and "2 rounds" in both.stdout and "| hot-55 | hit rate, % |" in both.stdout, both.stdout + both.stderr
    twice = lab("--merge", tmp_path / "o.json", "--merge", tmp_path / "o.json")
    assert twice.returncode != 0 and "seed 3 is in another file too" in twice.stderr
    assert "| kvroute-2 |" in r.stdout and "| hot-55 | hit rate, % |" in r.stdout and "**hot-55**" in r.stdout


def test_nothing_is_left_after_a_signal(tmp_path):
    env = {**os.environ, "LAB_TEST": str(os.getpid())}
    p = subprocess.Popen(["/usr/bin/python3", os.path.join(LAB, "run.py"), "--kvroute", BINARY, "--nice", "0", "--routers", "kvroute", "--rows", "uniform-30",
                          "--seconds", "120"], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for("engines, router and client", lambda: len(of_session(os.getpid())) == 7, 60)
        p.send_signal(signal.SIGTERM)
        assert p.wait(60) == 128 + signal.SIGTERM
        assert of_session(os.getpid()) == []
    finally:
        p.kill()
        p.wait()


WRONG = [
    (["--rows", "conv"], ["--rows", "'conv'", "conv-60"]),
    (["--routers", "kvroute,x"], ["--routers", "'x'", "round-robin"]),
    (["--rows", "trace-x4"], ["--trace"]),
    (["--rounds", "0"], ["--rounds", "above 0"]),
    (["--also", "x"], ["--also", "NAME=BINARY"]),
    (["--also", "kvroute=/bin/true"], ["--also", "'kvroute'"]),
    (["--vllm", 0], ["--vllm: bad value"]),
    (["--vllm", 1, "--rows", "hot-55"], ["--rows: bad value 'hot-55'; allowed: vllm-conv-2"]),
    (["--vllm", 1], ["no engine is set up"]),
    (["--merge", "/nowhere.json"], ["--merge: '/nowhere.json' is no file of --json"]),
    (["--routers", "smg"], ["smg: left out", "/nowhere/smg"]),
]
EACH = """
import io, json, run, sys
for args in json.load(sys.stdin):
    sys.argv[1:], sys.stderr = args, io.StringIO()
    try:
        said = f"status {run.main()}"
    except run.Failed as e:
        said = str(e)
    print(json.dumps(sys.stderr.getvalue() + said))
"""


def test_bad_values_are_named():
    """One process tries them all."""
    cases = [["--kvroute", BINARY, "--nice", "0", "--wheels", "/nowhere", *map(str, args)] for args, _ in WRONG]
    r = subprocess.run(["/usr/bin/python3", "-c", EACH], input=json.dumps(cases), capture_output=True, text=True, timeout=240, cwd=LAB,
                       env={**os.environ, "ENGINES_DIR": "/nowhere"})
    said = [json.loads(line) for line in r.stdout.splitlines()]
    assert len(said) == len(WRONG), r.stderr
    for (args, words), text in zip(WRONG, said):
        assert all(w in text for w in words) and "status" not in text, (args, text)


def test_the_list_says_what_can_run():
    r = lab("--list")
    assert r.returncode == 0 and "| conv-60 | 2,560 |" in r.stdout
    assert any(l.startswith("| kvroute |") and l.endswith("| yes |") for l in r.stdout.splitlines())
    assert any(l.startswith("| smg |") and "/nowhere/smg/bin/smg is not there" in l for l in r.stdout.splitlines())


def test_rows_and_routers_are_those_of_the_page():
    with open(os.path.join(LAB, "../../docs/routers.md")) as f:
        page = f.read()
    from rows import rows
    for name in [r.name for r in rows()] + list(known("k", "w")):
        assert f"`{name}`" in page, name


def test_summaries_tell_who_is_best_and_by_how_much():
    runs = lambda **kw: [{k: v[i] for k, v in kw.items()} for i in range(len(next(iter(kw.values()))))]
    results = {"row": {"kvroute": runs(hit_pct=[60, 80, 70], ttft_mean_ms=[20, 30, 25], failures=[0, 1, 0]),
                       "a": runs(hit_pct=[84, 85, 90], ttft_mean_ms=[50, 40, 60], failures=[0, 0, 0]),
                       "b": runs(hit_pct=[65, 75, 72], ttft_mean_ms=[28, 28, 27], failures=[0, 0, 0])}}
    rows = table.of_row(results["row"]).splitlines()
    assert rows[2].startswith("| kvroute | 70.0 (60.0 to 80.0) | **25.0 (20.0 to 30.0)** | - |") and rows[2].endswith("| 1 |")
    assert rows[3].startswith("| a | **85.0 (84.0 to 90.0)** | 50.0 (40.0 to 60.0) | - |")
    text = table.summary(results, "kvroute", ["a", "b", "c"]).splitlines()
    assert text[2] == "| row | hit rate, % | a: 85.0 (84.0 to 90.0) | 70.0 (60.0 to 80.0) | **behind** 1.21 x |"
    assert text[3] == "| row | TTFT mean, ms | b: 28.0 (27.0 to 28.0) | 25.0 (20.0 to 30.0) | ahead 1.12 x (spreads overlap) |"
    assert text[5] == "Of 2 figures kvroute is ahead in 1, equal in 0, behind in 1."
    assert len(text) == 6 and table.summary(results, "nobody", ["a"]) == ""
    assert table.verdict([1.0], [1.0], True) == "equal" and table.verdict([0.0], [2.0], True) == "**behind**"


def test_parts_of_options_and_metrics():
    other = of_other_binary("old=/bin/true,--cost time --router-temperature 0")
    assert other.name == "old" and other.binary == "/bin/true" and other.args == ["--cost", "time", "--router-temperature", "0"]
    with pytest.raises(Failed):
        of_other_binary("=x")
    assert samples('# TYPE a gauge\na{x="1"} 2\na{x="2"} 3.5\nab 7\na 1\n', "a") == 6.5
