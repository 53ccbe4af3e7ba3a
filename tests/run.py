# SPDX-License-Identifier: Apache-2.0
"""Builds with sanitizers, runs every test, counts: the last line is "N passed, N failed"."""
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SUPPRESSIONS = os.path.join(ROOT, "scripts/tsan.supp")
ENV = {
    "asan": {"ASAN_OPTIONS": "quarantine_size_mb=8:detect_leaks=1:handle_abort=1", "UBSAN_OPTIONS": "print_stacktrace=1", "KVROUTE_SLOW": "3"},
    "tsan": {"TSAN_OPTIONS": f"suppressions={SUPPRESSIONS} exitcode=66 handle_abort=1 history_size=4", "KVROUTE_SLOW": "5", "KVR_OPS": "60000"},
}
# Long, and of one thread each (the threads of test_sim are those of test_replay_offline): the thread sanitizer has nothing to find there.
ONE_THREAD = {"test_http_memory", "test_sim", "test_supposed"}
passed = failed = 0
running = set()  # process groups


def report(name, ok, bad, text, seconds):
    global passed, failed
    passed += ok
    failed += bad
    print(f"{'ok  ' if bad == 0 else 'FAIL'} {name}: {ok} passed, {bad} failed ({seconds:.1f} s)", flush=True)
    if bad:
        said = [line for line in text.splitlines() if line.startswith(("[  ERROR", "[   LINE", "[  FAILED"))]  # what follows may be long
        print("\n".join([*said[:20], text[-6000:]]), flush=True)


def end_group(pid):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def stop(number, _frame):
    """A signal: what runs has groups of its own, to which the terminal sends nothing."""
    for pid in list(running):
        end_group(pid)
    os._exit(128 + number)


def run(cmd, env=None, timeout=900):
    """Runs a command in a session of its own, of which nothing is left when it ends or has taken too long. Returns: status, output, seconds."""
    t0 = time.monotonic()
    with tempfile.TemporaryFile("w+", errors="replace") as out:
        p = subprocess.Popen(cmd, cwd=ROOT, env={**os.environ, **(env or {})}, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        running.add(p.pid)
        try:
            rc, late = p.wait(timeout), ""
        except subprocess.TimeoutExpired:
            rc, late = 124, f"\nended after {timeout} s"
        end_group(p.pid)
        p.wait()
        running.discard(p.pid)
        out.seek(0)
        return rc, out.read() + late, time.monotonic() - t0


def build(preset):
    for cmd in (["scripts/moved.sh", f"build/{preset}"], ["cmake", "--preset", preset], ["cmake", "--build", "--preset", preset]):
        rc, text, _ = run(cmd)
        if rc:
            print(text)
            sys.exit(f"the {preset} build failed")
    print(f"built {preset}", flush=True)


def unit(preset, binary):
    rc, text, seconds = run([os.path.join(ROOT, "build", preset, "unit", binary)], ENV[preset])
    ok, bad = len(re.findall(r"^\[       OK \]", text, re.M)), len(re.findall(r"^\[  FAILED  \] (?!\d+ test)(?!tests?:)", text, re.M)) // 2
    if rc and not bad:
        bad = 1
    if rc == 0 and ok == 0:
        bad, text = 1, text + "\nno test ran"
    return f"{preset} {binary}", ok, bad, text, seconds


def e2e(preset, path):
    env = {**ENV[preset], "KVROUTE": os.path.join(ROOT, "build", preset, "kvroute"), "PYTHONDONTWRITEBYTECODE": "1"}
    rc, text, seconds = run(["/usr/bin/python3", "-m", "pytest", "-q", "-p", "no:cacheprovider", path], env)
    counts = {k: int(n) for n, k in re.findall(r"(\d+) (passed|failed|error)", text.splitlines()[-1] if text else "")}
    bad = counts.get("failed", 0) + counts.get("error", 0)
    if rc and not bad:
        bad = 1
    return f"{preset} {os.path.basename(path)}", counts.get("passed", 0), bad, text, seconds


def python(preset):
    """The wheel: built, installed into a clean environment, tested."""
    env = {**ENV[preset], "KVROUTE": os.path.join(ROOT, "build", preset, "kvroute")}
    rc, text, seconds = run(["bash", "tests/python/run.sh"], env)
    counts = {k: int(n) for n, k in re.findall(r"(\d+) (passed|failed|error)", text.splitlines()[-1] if text else "")}
    bad = counts.get("failed", 0) + counts.get("error", 0)
    return "python package", counts.get("passed", 0) + int("ran in a clean environment" in text), bad or int(rc != 0), text, seconds


def check(name, cmd):
    rc, text, seconds = run(cmd)
    return name, int(rc == 0), int(rc != 0), text, seconds


def main():
    started = time.monotonic()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    for preset in ("asan", "tsan"):
        build(preset)
    report(*check("include directions", ["/usr/bin/python3", "scripts/check_includes.py"]))
    report(*check("refused functions and licence lines", ["/usr/bin/python3", "scripts/check_source.py"]))
    report(*check("consumer project (cmake, pkg-config, static and shared)", ["bash", "tests/consumer/run.sh"]))
    for preset in ("asan", "tsan"):
        report(*check(f"{preset} example of the index's header", [os.path.join("build", preset, "unit", "index_example")]))
    units = sorted(f for f in os.listdir(os.path.join(ROOT, "build/asan/unit")) if f.startswith("test_"))
    scripts = sorted(os.path.join("tests/e2e", f) for f in os.listdir(os.path.join(ROOT, "tests/e2e")) if f.startswith("test_"))
    with ThreadPoolExecutor(2) as pool:  # two cores
        jobs = [pool.submit(unit, p, u) for p in ("asan", "tsan") for u in units if p == "asan" or u not in ONE_THREAD]
        jobs += [pool.submit(e2e, p, s) for p in ("asan", "tsan") for s in scripts]
        jobs.append(pool.submit(python, "asan"))
        for j in jobs:
            report(*j.result())
    print(f"took {time.monotonic() - started:.0f} s")
    print(f"{passed} passed, {failed} failed", flush=True)
    sys.exit(1 if failed else 0)


main()
