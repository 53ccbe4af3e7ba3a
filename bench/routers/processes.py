# SPDX-License-Identifier: Apache-2.0
"""Processes of a lab: each in a session of its own, all of them ended whatever happens; their CPU time."""
import ctypes
import http.client
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request

PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)


class Failed(Exception):
    """Something that was started is not there, or does not answer."""


os.environ.setdefault("KVROUTE_LAME_DUCK_TIME", "0")  # no balancer watches
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def stop_on_signals():
    """A signal ends the lab as an exception does: through its `finally`. It has to wait while a process is started: an exception in a
    hook of fork() would be lost, and one before the process is noted would leave it behind."""
    def handler(signum, _frame):
        raise SystemExit(128 + signum)
    for s in ENDING:
        signal.signal(s, handler)


# ---- HTTP --------------------------------------------------------------------------------------------------

def ask(url, body=None, method=None, timeout=5):
    """(status, bytes of the answer); status 0: no answer."""
    data = json.dumps(body).encode() if body is not None else None
    r = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(r, timeout=timeout) as f:
            return f.status, f.read()
    except urllib.error.HTTPError as e:
        with e:
            return e.code, e.read()
    except (OSError, ValueError, http.client.HTTPException) as e:
        return 0, str(e).encode()


def ask_json(url, body=None):
    """What it answers, or None."""
    status, answer = ask(url, body)
    try:
        return json.loads(answer) if status == 200 else None
    except ValueError:
        return None


def samples(text, name):
    """Sum of a metric's samples in Prometheus' text."""
    total = 0.0
    for line in text.splitlines():
        if line.startswith(name) and line[len(name):len(name) + 1] in ("{", " "):
            total += float(line.rsplit(None, 1)[1])
    return total


def wait_for(what, check, alive=lambda: None, seconds=40):
    """Asks until check() is true. alive() raises when there is no use in waiting."""
    end = time.monotonic() + seconds
    while not check():
        alive()
        if time.monotonic() > end:
            raise Failed(f"{what}: not after {seconds} s")
        time.sleep(0.02)


# ---- processes ---------------------------------------------------------------------------------------------

class Priority:
    """The lab's processes before those of others: a session's autogroup, else the process itself. Says when it may not."""

    def __init__(self, nice):
        self.nice = nice
        self.how = self._try() if nice else None

    def _try(self):
        """In a child that ends at once: what may be done here."""
        r, w = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.setsid()
            os.write(w, {"autogroup": b"a", "process": b"p"}.get(self.apply(), b"-"))
            os._exit(0)
        os.close(w)
        said = os.read(r, 1)
        os.close(r)
        os.waitpid(pid, 0)
        return {b"a": "autogroup", b"p": "process"}.get(said)

    def apply(self):
        """Of the process that calls, which has a session of its own."""
        try:
            with open("/proc/sys/kernel/sched_autogroup_enabled") as f:
                grouped = f.read().strip() == "1"
        except OSError:
            grouped = False
        try:
            if grouped:
                with open("/proc/self/autogroup", "w") as f:
                    f.write(str(self.nice))
                return "autogroup"
            os.setpriority(os.PRIO_PROCESS, 0, self.nice)
            return "process"
        except OSError:
            return None

    def says(self):
        if not self.nice:
            return "priority: as started"
        if self.how:
            return f"priority: the lab's processes run at nice {self.nice} ({self.how}), before others of this machine"
        return f"priority: nice {self.nice} is not permitted here, other work on this machine is in the figures"


class Lab:
    """The processes of one run."""

    def __init__(self, logs, priority):
        self.logs, self.priority, self.running = logs, priority, {}
        os.makedirs(logs, exist_ok=True)

    def _prepare(self):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        os.setsid()
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # nothing outlives a lab that is killed
        if self.priority.how:
            self.priority.apply()

    def log(self, name):
        return os.path.join(self.logs, name + ".log")

    def start(self, name, argv):
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        try:
            with open(self.log(name), "wb") as f:
                self.running[name] = subprocess.Popen([str(a) for a in argv], stdin=subprocess.DEVNULL, stdout=f, stderr=subprocess.STDOUT,
                                                      cwd=self.logs, preexec_fn=self._prepare)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def end_of_log(self, name, size=600):
        with open(self.log(name), "rb") as f:
            return f.read()[-size:].decode(errors="replace").strip()

    def alive(self):
        for name, p in self.running.items():
            if p.poll() is not None:
                raise Failed(f"{name} ended with {p.returncode}: {self.end_of_log(name)}")

    def stop(self):
        """Asks all of them to end, waits, then insists."""
        groups = {name: p.pid for name, p in self.running.items()}
        for sig, patience in ((signal.SIGTERM, 1.5), (signal.SIGKILL, 10)):
            for pgid in groups.values():
                try:
                    os.killpg(pgid, sig)
                except ProcessLookupError:
                    pass
            end = time.monotonic() + patience
            while time.monotonic() < end and any(p.poll() is None for p in self.running.values()):
                time.sleep(0.01)
        self.running = {}

    # -- CPU --

    def cpu_s(self, names):
        """Seconds on a processor of all threads of these process groups."""
        groups = {self.running[n].pid for n in names}
        total = 0.0
        for pid in (d for d in os.listdir("/proc") if d.isdigit()):
            try:
                with open(f"/proc/{pid}/stat") as f:
                    fields = f.read().rsplit(")", 1)[1].split()
                if int(fields[2]) in groups:
                    total += _cpu_of(pid, fields)
            except (OSError, IndexError):
                continue  # it ended
        return total


def _cpu_of(pid, fields):
    """schedstat counts nanoseconds; without it the ticks of stat."""
    total = 0.0
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            try:
                with open(f"/proc/{pid}/task/{thread}/schedstat") as f:
                    total += int(f.read().split()[0]) / 1e9
            except FileNotFoundError:
                if not os.path.exists(f"/proc/{pid}/schedstat"):
                    raise
    except FileNotFoundError:
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total
