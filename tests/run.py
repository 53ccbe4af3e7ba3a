# SPDX-License-Identifier: Apache-2.0
"""Builds with sanitizers, runs tests, counts: the last line is "N passed, N failed". What takes minutes for what others show in seconds is
left to --long, which runs that alone; both together are every test. --quick: a minute's look; --pace: writes tests/pace.txt."""
import collections
import contextlib
import ctypes
import json
import os
import queue
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TOKENIZER = os.path.join(ROOT, "build/tokenizer/libkvr_tokenizer.so")  # made by scripts/tokenizer.sh, where there is a cargo
OUTSIDERS = os.path.join(ROOT, "build/outsiders/otelcol")  # made by scripts/otel.sh, where there is a Go
SUPPRESSIONS = os.path.join(ROOT, "scripts/tsan.supp")
ENV = {
    "asan": {"ASAN_OPTIONS": "quarantine_size_mb=8:detect_leaks=1:handle_abort=1:handle_sigill=2", "KVROUTE_SLOW": "3"},  # SIGILL: undefined behaviour
    "release": {"KVR_OPS": "60000"},
    "tsan": {"TSAN_OPTIONS": f"suppressions={SUPPRESSIONS} exitcode=66 handle_abort=1 history_size=4", "KVROUTE_SLOW": "5", "KVR_OPS": "60000"},
}
LEAST_SHARE = 0.15  # of a core; what waits does so with a process or three, which start and end
MORE_THAN_CORES = 0.25  # of a core that is planned twice: tests do not use their shares evenly, and a core that waits is lost
# Every test runs under the address sanitizer. The thread sanitizer is for what several threads do at once: unit tests that start none
# run without it, and the address run of each of them checks that; end-to-end files that it could tell nothing about are these.
THREADED = {**dict.fromkeys((
    "test_durable", "test_early_turn", "test_given_tokens", "test_index_random", "test_index_readers", "test_ingest_plane", "test_ingest_turns", "test_lock",
    "test_line_log", "test_log", "test_metrics_scrape", "test_nats_link", "test_produce", "test_program_memory", "test_recovery", "test_sync", "test_token_pool",
    "test_tokenizer_reload", "test_waiting", "test_zmq_guard"), "*"),
    # of these the tests that start threads:
    "test_local_index": "readers_beside_the_writer", "test_pair": "threads_leave_nothing_booked",
    "test_observed": "on_many_loops_at_once_each_is_freed_once", "test_router": "many_threads_leave_nothing_booked"}
ADDRESS_ONLY = {
    "test_sim": "runs of a simulation share nothing but their queue, and test_replay_offline.py has that under the thread sanitizer",
    "test_alerts.py": "Prometheus and its rules over processes that other files have under the thread sanitizer",
    "test_traces_outsiders.py": "what others read; test_traces.py has the sending under the thread sanitizer",
    "test_blind_in_time.py": "Prometheus and its rules over processes that other files have under the thread sanitizer",
    "test_prometheus.py": "Prometheus and its rules over processes that other files have under the thread sanitizer",
    "test_grpc.py": "a server of one loop, alone; the picker's tests have one on each loop",
    "test_top.py": "words: what top, a program of one thread, says of a router",
    "test_pages.py": "words: man pages and completions",
    "test_cli.py": "words: command lines and what they are answered",
    "test_docs.py": "words: what the documents say",
    "test_start.py": "a page's commands, in front of mocks",
    "test_openapi.py": "words: what each route answers, one after the other",
    "test_page.py": "what the main loop answers, alone, from counters that other files have under the thread sanitizer",
    "test_fields.py": "words: bodies with a wrong field, one after the other",
    "test_doctor.py": "words: what doctor, a program of one thread, says of a deployment",
    "test_doctor_pair.py": "words: what doctor says of two engines",
    "test_first_hour.py": "words: what an operator is told who has made one mistake",
    "test_http_strict.py": "words: malformed messages, one after the other",
    "test_mock.py": "words: one request of a client and the mock's answer",
    "test_engine_vectors.py": "words: messages of real engines, one after the other",
    "test_multimodal.py": "words: bodies with images, one after the other",
    "test_multimodal_chat.py": "words: bodies with images, one after the other",
    "test_check.py": "words: what a check of one thread says of files",
    "test_replay.py": "words: a client of one thread and its table",
    "test_bench_routers.py": "tables of figures; a script",
    "test_bench_figures.py": "tables of figures; a script",
    "test_mock_script.py": "a script",
    "test_http_pressure.py": "bytes in use, which the thread sanitizer multiplies; a connection belongs to one thread",
    "test_room_for_others.py": "descriptors and bytes in use; a connection belongs to one thread",
    "test_discovery_limit.py": "4,096 addresses, all on the main loop",
    "test_kubernetes.py": "what the main loop hears of an API server, alone; test_replicas.py has those who are followed under the thread sanitizer",
    "test_fleet_nats.py": "whole fleets made of parts that test_event_plane.py, test_served_index.py, test_replicas_nats.py and "
                          "test_recover_endpoint.py have under the thread sanitizer",
}
SHORTER = {"test_durable": {"asan": "30000", "tsan": "30000"}, "test_index_random": {"asan": "150000"}, "test_recovery": {"asan": "300000"}}  # KVR_OPS
WHOLE = ("test_index_random", "test_recovery")  # in the long one; test_durable by hand: a million, for the same assertions, is 90 s of a core
# What `make test` leaves to `make test-long`: files, and of others some tests (pytest's -k).
LONG_FILES = {"test_fleet_nats.py", "test_hostile_load.py", "test_disagg_soak.py", "test_blind_in_time.py", "test_alerts.py", "test_evidence_attack.py",
              "test_handover_load.py", "test_discovery_limit.py"}
LONG_TESTS = {
    "test_jetstream_again.py": "buffer_of_unstored_events_that_is_full",  # 68,000 events, for the limit of 65,536
    "test_replicas.py": "two_routers_balance_as_one",  # a ratio of two loads, each of seconds; test_a_router_that_is_killed_at_work is short
    "test_room_for_others.py": "without_descriptors",  # streams of 20,000 tokens; test_http_pressure.py has few descriptors
}
WHEEL_AGAIN = "test_wheel_build"  # builds the wheel a second time, in a copy of the tree
LONG_UNITS = {"tsan": {"test_durable"}, "asan": {"test_sim"}}
# Under the thread sanitizer it runs the files in which threads meet in a way of their own, and of some of them the tests in which they do; the
# others have the same threads with other words, and all of them run under it in the long one.
MEET = {
    "test_proxy.py": ("data loops beside each other", "concurrent or two_loops or predicted_mode or sessions_stick"),
    "test_queue.py": ("a turn that another loop gives", "not siblings and not learnt and not come_true"), "test_limits.py": ("what loops count together", ""),
    "test_fairness.py": ("the queue's tenants", ""), "test_reload.py": ("files read again beside requests", "same_time or changes or wait or signal"),
    "test_removed_worker.py": ("the table beside requests", ""), "test_restart.py": ("the end beside requests", "not second_process"),
    "test_handover.py": ("views given beside requests", ""),
    "test_failures.py": ("breakers", "gone or breaker or slow_reader or killing or kill_9 or drain or deleting"),
    "test_views.py": ("ingest beside look-ups", "restart or reconnect or random or dropped or repaired"),
    "test_trust.py": ("evidence", "never_accused or comes_back"), "test_quality.py": ("predictions and answers", "counted_with_why or moves or by_chance"),
    "test_recover_endpoint.py": ("the recover client", "not bad_answers"), "test_data_dir.py": ("scribe and keeper", "kill or sigterm or disk or anew"),
    "test_recorder.py": ("the recorder", ""), "test_access_log.py": ("the writer's rings", "rotated or go_on_whole or gone or moved"),
    "test_traces.py": ("the exporter", "step or away_or_silent or refuses"), "test_replicas.py": ("sync", "not places_of_others"),
    "test_replicas_nats.py": ("sync over NATS", "shared or late or outage"),
    "test_served_index.py": ("questions over NATS", "nats or concurrent or many"), "test_shards.py": ("indexes elsewhere", ""),
    "test_discovery.py": ("finders", "watched or resolved_again or announce"), "test_publish.py": ("the sidecar", "death or published_again or late"),
    "test_tls.py": ("sessions and certificates", "resumed or reload or under_load or both_ports"), "test_curve.py": ("the door's thread", "hears or share"),
    "test_large_bodies.py": ("the pool's threads", "leave"), "test_early_answers.py": ("bodies under way", "leaves or not_sent_yet"),
    "test_copies.py": ("producers", ""), "test_select.py": ("select", "booked or bounded or come_and_go or leases"),
    "test_disagg_choice.py": ("two legs", "turns or whole or predicted"), "test_requests.py": ("what everybody does", "goes_to or own_paths"),
    "test_tokens_here.py": ("the tokenizer's threads", "threads_of or leave or sighup or doubt or two_models"),
    "test_picker.py": ("a picker on each loop", "many_at_once or who_waits or lets_running"),
}
LONG = {"test_durable", "test_http_memory", "test_sim"}  # left out of the quick look, as is all that is not named here:
SMOKE = ("test_cli.py", "test_requests.py", "test_views.py", "test_indexer.py", "test_select.py", "test_failures.py")
NEEDS_TOKENIZER = ("test_tokens_here.py", "test_text_questions.py", "test_hash_texts.py", "test_doctor_tokens.py",
                   "test_replay_texts.py")
passed = failed = 0
running = set()  # process groups, each with its leader's number
Outcome = collections.namedtuple("Outcome", "name ok bad text seconds cpu alone", defaults=[None])  # alone: the command that runs it so
Job = collections.namedtuple("Job", "name fn args after", defaults=[None])  # after: the name of a job that has to have ended well


def report(o):
    global passed, failed
    passed += o.ok
    failed += o.bad
    print(f"{'ok  ' if o.bad == 0 else 'FAIL'} {o.name}: {o.ok} passed, {o.bad} failed ({o.seconds:.1f} s, {o.cpu:.1f} s of a core)", flush=True)
    if o.bad:
        said = [line for line in o.text.splitlines() if line.startswith(("[  ERROR", "[   LINE", "[  FAILED"))]  # what follows may be long
        print("\n".join([*said[:20], o.text[-12000:], *([f"alone: {o.alone}"] if o.alone else [])]), flush=True)


def end_group(pid):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def stop(number, _frame):
    """A signal: what runs has groups of its own, to which the terminal sends nothing."""
    for pid in list(running):
        end_group(pid)
    os._exit(128 + number)


def wait(pid, out, timeout):
    """Returns: status, output, seconds, processor seconds of a process that leads a session, of which nothing is left when it has ended or
    taken too long."""
    t0 = time.monotonic()
    running.add(pid)
    late = threading.Timer(timeout, end_group, [pid])
    late.start()
    _, status, used = os.wait4(pid, 0)
    late.cancel()
    end_group(pid)
    running.discard(pid)
    seconds = time.monotonic() - t0
    out.seek(0)
    text = out.read() + (f"\nended after {timeout} s" if seconds >= timeout else "")
    return os.waitstatus_to_exitcode(status), text, seconds, used.ru_utime + used.ru_stime


def run(cmd, env=None, timeout=900):
    """Runs a command in a session of its own. Returns: as wait()."""
    with tempfile.TemporaryFile("w+", errors="replace") as out:
        p = subprocess.Popen(cmd, cwd=ROOT, env={**os.environ, **(env or {})}, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        p.returncode, *rest = wait(p.pid, out, timeout)
        return p.returncode, *rest


class Forks:
    """tests/forks.py, started when it is first needed."""

    def __init__(self):
        self.lock, self.p = threading.Lock(), None

    def start(self):
        """Orphans below this process become its children, so that it can wait for them."""
        subreaper = 36
        if ctypes.CDLL(None).prctl(subreaper, 1, 0, 0, 0):
            raise OSError("PR_SET_CHILD_SUBREAPER")
        self.p = subprocess.Popen(["/usr/bin/python3", os.path.join(ROOT, "tests/forks.py")], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}, text=True, start_new_session=True)

    def pytest(self, args, env, timeout=900):
        """With a folder of its own for what tests write: of those that pytest chooses itself, each run removes others'. Returns: as wait()."""
        with tempfile.NamedTemporaryFile("w+", errors="replace") as out, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            args = [*args, f"--basetemp={folder}/pytest"]
            with self.lock:
                if not self.p:
                    self.start()
                self.p.stdin.write(json.dumps({"args": args, "env": {**os.environ, **env}, "out": out.name}) + "\n")
                self.p.stdin.flush()
                pid, ended = int(self.p.stdout.readline()), self.p.stdout.readline()
                assert ended == "ended\n", ended
            return wait(pid, out, timeout)


forks = Forks()


def build(preset, *more):
    """Returns: seconds, processor seconds."""
    times = [0, 0]
    for cmd in (["scripts/moved.sh", f"build/{preset}"], ["cmake", "--preset", preset, "-DKVR_TESTS=ON"], ["cmake", "--build", "--preset", preset, *more]):
        rc, text, *took = run(cmd)
        times = [a + b for a, b in zip(times, took)]
        if rc:
            print(text, flush=True)
            for pid in list(running):
                end_group(pid)
            print(f"the {preset} build failed", flush=True)
            os._exit(1)
    print(f"built {preset} in {times[0]:.0f} s", flush=True)
    return times


def build_beside(preset, *more):
    """While other jobs run."""
    return Outcome(f"build {preset}", 0, 0, "", *build(preset, *more))


def alone(env, cmd):
    return " ".join([*(f"{k}={shlex.quote(v)}" for k, v in env.items()), shlex.join(cmd)])


def unit(preset, binary, whole=False):
    cmd = [os.path.join("build", preset, "unit", binary)]
    starts_none = preset == "asan" and binary not in THREADED and binary not in ADDRESS_ONLY
    env = {**ENV[preset], "KVR_TELL_THREADS": "1"}
    if binary in SHORTER and not whole:
        env["KVR_OPS"] = SHORTER[binary].get(preset, env.get("KVR_OPS", "100000"))
    if preset == "tsan":
        env["KVR_TESTS"] = THREADED[binary]
    rc, text, *times = run(cmd, env)
    ok, bad = len(re.findall(r"^\[       OK \]", text, re.M)), len(re.findall(r"^\[  FAILED  \] (?!\d+ test)(?!tests?:)", text, re.M)) // 2
    if rc and not bad:
        bad = 1
    if rc == 0 and ok == 0:
        bad, text = 1, text + "\nno test ran"
    if starts_none and "threads started: 0\n" not in text:
        bad, text = bad + 1, text + "\nit starts a thread: add it to THREADED in tests/run.py, or the thread sanitizer would never see it"
    return Outcome(f"{preset} {binary}", ok, bad, text, *times, alone(env, cmd))


def counted(name, rc, text, *rest, more=0):
    """Of pytest's line of counts; what comes behind it, of a process that has outlived its test, is a failure."""
    found = list(re.finditer(r"^(?:\d+ \w+, )*\d+ \w+(?:, \d+ \w+)* in [\d.]+s(?: \(.*\))?$", text, re.M))
    counts = {k: int(n) for n, k in re.findall(r"(\d+) (passed|failed|error)", found[-1].group() if found else "")}
    bad = counts.get("failed", 0) + counts.get("error", 0)
    if not counts.get("passed", 0) or text[found[-1].end():].strip():
        bad, text = max(bad, 1), text + "\nno test has passed, or something was said after the counts"
    return Outcome(name, counts.get("passed", 0) + more, bad or int(rc != 0), text, *rest)


def short_tests(preset, name):
    """Which tests of an end-to-end file `make test` runs, as pytest's -k has it: all, when it is empty."""
    rules = [MEET[name][1] if preset == "tsan" and name in MEET else "", f"not ({LONG_TESTS[name]})" if name in LONG_TESTS else ""]
    return " and ".join(f"({r})" for r in rules if r)


def e2e(preset, name, tests=""):
    """`tests`: which of them (pytest's -k)."""
    env = {**ENV[preset], "KVROUTE": os.path.join(ROOT, "build", preset, "kvroute"), "PYTHONDONTWRITEBYTECODE": "1"}
    if name in NEEDS_TOKENIZER:
        env["TOKENIZER_LIBRARY"] = TOKENIZER
    args = ["-q", "-p", "no:cacheprovider", *(["-k", tests] if tests else []), os.path.join("tests/e2e", name)]
    return counted(f"{preset} {name}", *forks.pytest(args, env), alone(env, ["/usr/bin/python3", "-m", "pytest", *args]))


def python(preset, tests):
    """The wheel: built, installed into a clean environment, tested. `tests`: which of them (pytest's -k)."""
    env = {**ENV[preset], "KVROUTE": os.path.join(ROOT, "build", preset, "kvroute")}
    rc, text, *times = run(["bash", "tests/python/run.sh", "-k", tests], env)
    return counted("python package", rc, text, *times, more=int("ran in a clean environment" in text))


def check(name, cmd):
    rc, text, *times = run(cmd)
    return Outcome(name, int(rc == 0), int(rc != 0), text, *times)


def pace():
    """What was measured of each job: seconds, and of them seconds of a core. Those not named are taken for busy all the time."""
    with open(os.path.join(ROOT, "tests/pace.txt")) as f:
        return {name: (float(s), float(cpu)) for name, s, cpu in (line.rsplit(maxsplit=2) for line in f if not line.startswith("#"))}


def run_all(jobs):
    """Runs jobs, the longest first, as many side by side as keep the cores busy and no more: a test that
    mostly waits leaves room for others, and one that computes has a core for itself."""
    known, cores, free, done = pace(), os.cpu_count() or 1, threading.Condition(), queue.SimpleQueue()
    taken, ended = 0.0, set()

    def pace_of(name):
        return known.get(name) or known.get(name.replace("release ", "asan ")) or (1, 1)

    def share(name):
        seconds, cpu = pace_of(name)
        return min(cores, max(LEAST_SHARE, cpu / seconds))

    def one(job):
        nonlocal taken
        try:
            done.put(job.fn(*job.args))
        except Exception:
            done.put(Outcome(job.name, 0, 1, traceback.format_exc(), 0, 0))
        finally:
            with free:
                taken -= share(job.name)
                ended.add(job.name)
                free.notify()

    def start_them():
        nonlocal taken
        waiting = sorted(jobs, key=lambda j: (-any(k.after == j.name for k in jobs), -pace_of(j.name)[0]))
        while waiting:
            with free:
                fits = next((j for j in waiting if taken + share(j.name) <= cores + MORE_THAN_CORES and (not j.after or j.after in ended)), None)
                if not fits:
                    free.wait()
                    continue
                taken += share(fits.name)
            waiting.remove(fits)
            threading.Thread(target=one, args=[fits], daemon=True).start()

    threading.Thread(target=start_them, daemon=True).start()
    for _ in jobs:
        yield done.get()


def write_pace(outcomes):
    """The measured times of a quiet run become those that the next run plans with."""
    known = {**pace(), **{o.name: (o.seconds, o.cpu) for o in outcomes}}
    with open(os.path.join(ROOT, "tests/pace.txt"), "w") as f:
        f.write("# What each job of tests/run.py takes: seconds, and of them seconds of a core (tests/run.py --pace writes it)\n")
        f.writelines(sorted(f"{name} {s:.1f} {cpu:.1f}\n" for name, (s, cpu) in known.items() if s >= 1))


def named(preset, fn, names, after=None):
    return [Job(f"{preset} {n}", fn, (preset, n), after) for n in names]


def checked(name, *cmd, after=None):
    return Job(name, check, (name, list(cmd)), after)


def tests_of(preset):
    """Its unit tests, and its end-to-end files: all of them, short and long."""
    units, scripts = tests_in("tests/unit"), tests_in("tests/e2e")
    return (units, scripts) if preset == "asan" else ([u for u in units if u in THREADED], [s for s in scripts if s not in ADDRESS_ONLY])


def is_long(preset, name):
    return name in LONG_FILES or name in LONG_UNITS[preset] or (preset == "tsan" and name.endswith(".py") and name not in MEET)


def sanitized(long):
    """The tests under the address sanitizer run while what the thread sanitizer needs is built."""
    tsan = "build tsan"
    needed = ["kvroute_bin", "index_example", *tests_of("tsan")[0]]
    jobs = [Job(tsan, build_beside, ("tsan", "-j1", "--target", *needed))]
    for preset, after in ("asan", None), ("tsan", tsan):
        units, scripts = tests_of(preset)
        jobs += named(preset, unit, [n for n in units if is_long(preset, n) == long], after)
        for n in scripts:
            short = short_tests(preset, n)
            if is_long(preset, n) == long:
                jobs.append(Job(f"{preset} {n}", e2e, (preset, n, "" if long else short), after))
            elif long and short:  # what the other one leaves out of it
                jobs.append(Job(f"{preset} {n}", e2e, (preset, n, f"not ({short})"), after))
    if long:
        jobs += [Job(f"asan {n}", unit, ("asan", n, True)) for n in WHOLE] + [Job("python package", python, ("asan", WHEEL_AGAIN))]
    return jobs


def short_jobs():
    tsan, python3 = "build tsan", "/usr/bin/python3"
    return [*sanitized(False), Job("python package", python, ("asan", f"not {WHEEL_AGAIN}")),
            *tokenizer_tests(), checked("include directions", python3, "scripts/check_includes.py"),
            checked("circles of files", python3, "scripts/check_circles.py", "build/asan"),
            checked("a program without NATS lacks nothing", python3, "scripts/check_absent.py", "build/asan"),
            checked("refused functions and licence lines", python3, "scripts/check_source.py"),
            checked("consumer project (cmake, pkg-config, static and shared)", "bash", "tests/consumer/run.sh"),
            checked("asan example of the index's header", "build/asan/unit/index_example"),
            checked("asan example of the pair's header", "build/asan/unit/pair_example"),
            checked("tsan example of the index's header", "build/tsan/unit/index_example", after=tsan)]


def tests_in(folder):
    """The names of a folder's tests, without those of what is optional and not here."""
    names = sorted(f.removesuffix(".c") for f in os.listdir(os.path.join(ROOT, folder)) if f.startswith("test_"))
    needs = {**dict.fromkeys(NEEDS_TOKENIZER, TOKENIZER), "test_traces_outsiders.py": OUTSIDERS}
    return [n for n in names if n not in needs or os.path.exists(needs[n])]


def tokenizer_tests():
    if not os.path.exists(TOKENIZER):
        print("the tokenizer is not built (make tokenizer): its tests are left out", flush=True)
    elif run(["scripts/tokenizer.sh", "--check"])[0]:
        print("there is no cargo for the tokenizer's own tests: they are left out", flush=True)
    else:
        return [checked("the tokenizer's own tests", "scripts/tokenizer.sh", "test")]
    return []


def sanitized_tests(long):
    there = {f.removesuffix(".c") for folder in ("tests/unit", "tests/e2e") for f in os.listdir(os.path.join(ROOT, folder))}
    gone = {*THREADED, *ADDRESS_ONLY, *LONG_FILES, *LONG_TESTS, *MEET} - there
    if gone:
        sys.exit(f"tests/run.py names tests that are not there: {', '.join(sorted(gone))}")
    build("asan")
    return sanitized(True) if long else short_jobs()


def quick_tests():
    """A minute's look at a change: the release build, its unit tests but the longest, and what people do first, end to end."""
    build("release", "--target", "kvroute_bin")
    units = [u for u in tests_in("tests/unit") if u not in LONG]
    rest = "build release"
    return [Job(rest, build_beside, ("release",)), *named("release", unit, units, rest), *named("release", e2e, SMOKE)]


def main():
    started = time.monotonic()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    options = sys.argv[1:]
    outcomes = []
    for o in run_all(quick_tests() if "--quick" in options else sanitized_tests("--long" in options)):
        report(o)
        outcomes.append(o)
    if "--pace" in options:
        write_pace(outcomes)
    for o in outcomes:
        if o.bad:  # again, where one looks first
            print(f"FAIL {o.name}: {' '.join(re.findall(r'^(?:FAILED|ERROR) ([^ ]+)', o.text, re.M)) or o.text[-200:].strip()}")
    print(f"took {time.monotonic() - started:.0f} s")
    print(f"{passed} passed, {failed} failed", flush=True)
    sys.exit(1 if failed else 0)


main()
