# SPDX-License-Identifier: Apache-2.0
"""What token ids made here save: time to the first token through the router minus direct, and the engine's CPU, of chats whose tokens an engine is
asked for and of chats whose tokens the router makes; in turns, over one engine. And what long prompts cost small ones beside them.

usage: measure.py KVROUTE FOLDER [first|beside|memory ...]    (all of them without a word)

FOLDER: a model's (tokenizer.json, chat template). Needs Python with fastapi, uvicorn, transformers: that of a vLLM environment. KVR_SAMPLES: of
each row (15); KVR_ROUNDS: of the rows beside long prompts (3). Nothing is judged; what is printed is medians, and ratios within one run."""
import http.client
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../scripts"))
from ports import free_ports  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
SAMPLES = int(os.environ.get("KVR_SAMPLES", "15"))
ROUNDS = int(os.environ.get("KVR_ROUNDS", "3"))
WORDS = ("the of and to in is that for it was on are as with his they at be this from have or by one had not but what all were when we there can "
         "an your which their said if do will each about how up out them then she many some so these would other into has more two like him see "
         "time could no make than first been its who now people my made over did down only way find use may water long little very after words").split()


def get(port, path):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    c.request("GET", path)
    r = c.getresponse()
    return r.status, r.read()


def wait(port, path="/health"):
    for _ in range(1200):
        try:
            if get(port, path)[0] == 200:
                return
        except OSError:
            pass
        time.sleep(0.05)
    raise SystemExit(f"nothing answers on port {port}")


def cpu(pid):
    """Seconds, of all its threads."""
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss(pid):
    with open(f"/proc/{pid}/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmRSS")) / 1024


class Client:
    """One connection that is kept."""

    def __init__(self, port):
        self.c = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self.c.connect()
        self.c.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ms(self, body):
        data = json.dumps(body)
        t0 = time.perf_counter()
        self.c.request("POST", "/v1/chat/completions", data, {"Content-Type": "application/json"})
        r = self.c.getresponse()
        answer = r.read()
        ms = (time.perf_counter() - t0) * 1e3
        assert r.status == 200, answer[:500]
        return ms


def text(r, n):
    """About n tokens: words, and now and then a number or a name that no vocabulary has whole."""
    return " ".join(r.choice(WORDS) if r.random() < 0.9 else f"{r.randrange(10 ** 6)}" if r.random() < 0.5 else f"x{r.randrange(10 ** 9):x}"
                    for _ in range(max(1, int(n / 1.3))))


def conversation(r, tokens):
    """Turns of some 400 tokens, the last one the user's."""
    turns = max(1, tokens // 800)
    messages = [{"role": "system", "content": text(r, min(200, tokens // 4))}]
    for _ in range(turns):
        messages += [{"role": "user", "content": text(r, 350)}, {"role": "assistant", "content": text(r, 400)}]
    return messages + [{"role": "user", "content": text(r, 50)}]


def chat(messages):
    return {"model": "m", "max_tokens": 1, "messages": messages}


class Rig:
    def __init__(self, kvroute, folder, quick=False):
        self.kvroute, self.folder, self.processes = kvroute, folder, []
        self.engine = free_ports()
        self.engine_pid = self.start([sys.executable, os.path.join(HERE, "idle_engine.py" if quick else "engine.py"), folder, self.engine])
        wait(self.engine)

    def start(self, cmd):
        p = subprocess.Popen([str(a) for a in cmd], stdout=subprocess.DEVNULL, stderr=None if "-v" in sys.argv else subprocess.DEVNULL)
        self.processes.append(p)
        return p.pid

    def router(self, *flags):
        port, admin = free_ports(), free_ports()
        pid = self.start([self.kvroute, "serve", "--host", "127.0.0.1", "--port", port, "--admin-port", admin, "--worker",
                          f"http://127.0.0.1:{self.engine},block-size=16", "--max-body-size", "64MiB", "--tokenizer-dir", self.folder, *flags])
        wait(port)
        return port, admin, pid

    def stop(self):
        for p in reversed(self.processes):
            p.terminate()
        for p in self.processes:
            p.wait()


def state(admin):
    return next((t["state"] for t in json.loads(get(admin, "/tokenizers")[1])), "none")


def earn(port, admin):
    """Trust."""
    c, i = Client(port), 0
    while state(admin) != "trusted":
        assert state(admin) != "refused", get(admin, "/tokenizers")[1]
        i += 1
        c.ms(chat([{"role": "user", "content": f"question {i}"}]))
        time.sleep(0.02)
        assert i < 3000, "no trust was earned"


def first(kvroute, folder):
    rig = Rig(kvroute, folder)
    try:
        asks, _, _ = rig.router("--tokenizer", "engine")
        makes, admin, _ = rig.router("--tokenizer-check", "0")
        earn(makes, admin)
        ways = {"direct": Client(rig.engine), "asks": Client(asks), "makes": Client(makes)}
        print("time to the first token, ms: the engine alone, and what the router adds when it asks for tokens and when it makes them; median of "
              f"{SAMPLES}, in turns\nengine's CPU, ms a request\n")
        print(f"{'tokens':>7} {'turn':>6} | {'direct':>8} {'+asks':>8} {'+makes':>8} {'ratio':>6} | {'CPU direct':>10} {'asks':>8} {'makes':>8}")
        for tokens, samples in ((1000, SAMPLES), (8000, SAMPLES), (80000, max(3, SAMPLES // 3))):
            r = random.Random(f"first {tokens}")
            took = {(turn, w): [] for turn in ("first", "next") for w in ways}
            spent = {k: 0.0 for k in took}
            for i in range(samples):
                order = list(ways)[i % 3:] + list(ways)[:i % 3]
                talks = {w: conversation(r, tokens) for w in order}  # of one shape, each with a text of its own
                for turn in ("first", "next"):
                    for w in order:
                        before = cpu(rig.engine_pid)
                        took[turn, w].append(ways[w].ms(chat(talks[w])))
                        spent[turn, w] += cpu(rig.engine_pid) - before
                        talks[w] = talks[w] + [{"role": "assistant", "content": text(r, 100)}, {"role": "user", "content": text(r, 50)}]
            for turn in ("first", "next"):
                m = {w: statistics.median(took[turn, w]) for w in ways}
                c = {w: 1e3 * spent[turn, w] / samples for w in ways}
                plus = {w: statistics.median(a - b for a, b in zip(took[turn, w], took[turn, "direct"])) for w in ("asks", "makes")}
                print(f"{tokens:7} {turn:>6} | {m['direct']:8.2f} {plus['asks']:8.2f} {plus['makes']:8.2f} {plus['asks'] / max(plus['makes'], 0.01):6.1f} |"
                      f" {c['direct']:10.1f} {c['asks']:8.1f} {c['makes']:8.1f}", flush=True)
    finally:
        rig.stop()


def alone(makes, bodies):
    """What the router itself adds is best seen of an engine that costs nothing."""
    c = Client(makes)
    return [c.ms(b) for b in bodies]


def router_alone(kvroute, folder):
    rig = Rig(kvroute, folder, quick=True)
    try:
        makes, admin, _ = rig.router("--tokenizer", "local", "--tokenizer-check", "0")
        earn(makes, admin)
        by_load, _, _ = rig.router("--router-mode", "round-robin")
        print("\nthe same over an engine that costs nothing: what making the tokens adds to routing without them, ms, median")
        for tokens, samples in ((1000, 10 * SAMPLES), (8000, 4 * SAMPLES), (80000, SAMPLES)):
            r = random.Random(f"alone {tokens}")
            a, b, plus = Client(makes), Client(by_load), {"first": [], "next": []}
            for _ in range(samples):
                talk, other = conversation(r, tokens), conversation(r, tokens)
                for turn in ("first", "next"):
                    plus[turn].append(a.ms(chat(talk)) - b.ms(chat(other)))
                    more = [{"role": "assistant", "content": text(r, 100)}, {"role": "user", "content": text(r, 50)}]
                    talk, other = talk + more, other + more
            print(f"{tokens:7} first {statistics.median(plus['first']):7.2f}   next {statistics.median(plus['next']):7.2f}", flush=True)
    finally:
        rig.stop()


def small_ones(port, seconds):
    """Small chats at 200 a second, whatever comes back when; ms of each."""
    c, r, out = Client(port), random.Random("small"), []
    end, due = time.perf_counter() + seconds, time.perf_counter()
    while due < end:
        due += 0.005
        time.sleep(max(0, due - time.perf_counter()))
        out.append(c.ms(chat([{"role": "user", "content": text(r, 30)}])))
    return sorted(out)


LARGE = """
import socket, sys, threading, time
port, pause, seconds, size = PORT, PAUSE, SECONDS, SIZE
with open(sys.argv[1], "rb") as f: base = f.read()
done = []
def send(k):
    s, n, end = socket.create_connection(("127.0.0.1", port)), 0, time.time() + seconds
    while time.time() < end:
        t, n = time.time(), n + 1
        body = b'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"%d %d %b"}]}' % (k, n, base[n % 997:][:size])
        s.sendall(b"POST /v1/chat/completions HTTP/1.1\\r\\nHost: h\\r\\nContent-Type: application/json\\r\\nContent-Length: %d\\r\\n\\r\\n%b" % (len(body), body))
        answer = b""
        while not answer.endswith(b"}]}"): answer += s.recv(1 << 16) or b"cut}]}"
        assert answer.startswith(b"HTTP/1.1 200"), answer[:300]
        done.append(1)
        time.sleep(max(0, pause - (time.time() - t)))
threads = [threading.Thread(target=send, args=(k,)) for k in range(SEED, SEED + 8)]
for t in threads: t.start()
for t in threads: t.join()
print(len(done))
"""


def beside(kvroute, folder):
    rig = Rig(kvroute, folder, quick=True)
    try:
        makes, admin, pid = rig.router("--tokenizer", "local", "--tokenizer-check", "0")
        earn(makes, admin)
        without, _, pid_without = rig.router("--router-mode", "round-robin")
        with tempfile.NamedTemporaryFile("w") as words:
            words.write(text(random.Random("large"), 110000))
            words.flush()
            print("\nsmall chats, 200 a second, alone and beside 8 connections with prompts of 400 kB; ms; by a router that makes tokens, and by one that "
                  "needs none")
            for pause in (None, 4.0, 1.0):
                for i in range(ROUNDS):
                    seed = int(1000 * (pause or 0)) + 10 * i  # no prompt comes twice
                    beside_large(makes, pid, pause, "makes", words.name, seed)
                    beside_large(without, pid_without, pause, "without", words.name, seed)
    finally:
        rig.stop()


def beside_large(port, pid, pause, word, words, seed):
    seconds, larges = 12, None
    if pause is not None:
        code = LARGE.replace("PORT", str(port)).replace("PAUSE", str(pause)).replace("SECONDS", str(seconds)).replace("SIZE", "400000").replace("SEED", str(seed))
        larges = subprocess.Popen([sys.executable, "-c", code, words], stdout=subprocess.PIPE, text=True)
        time.sleep(2)
    before = cpu(pid)
    t = small_ones(port, seconds - 3)
    used = (cpu(pid) - before) / (seconds - 3)
    n = int(larges.communicate()[0]) if larges else 0
    at = [t[min(len(t) - 1, int(q * len(t)))] for q in (.5, .99)]
    print(f"{'alone' if pause is None else f'{n / seconds:5.1f} large/s':>14} {word:>8}: p50 {at[0]:6.2f}  p99 {at[1]:6.2f}  most {t[-1]:6.2f}   "
          f"router {100 * used:3.0f} % of a core", flush=True)


def memory(kvroute, folder):
    rig = Rig(kvroute, folder, quick=True)
    try:
        _, _, without = rig.router("--tokenizer", "engine")
        makes, admin, pid = rig.router("--tokenizer", "local", "--tokenizer-check", "0")
        earn(makes, admin)
        loaded = rss(pid)
        c, r = Client(makes), random.Random("churn")
        churn = []
        for i in range(12 * SAMPLES):
            c.ms(chat([{"role": "user", "content": f"{i} " + text(r, 50000)}]))
            if i % (3 * SAMPLES) == 0:
                churn.append(rss(pid))
        page = get(admin, "/metrics")[1].decode()
        kept = next(float(line.split()[-1]) for line in page.splitlines() if line.startswith("kvroute_tokenizer_segment_bytes{"))
        print(f"\nRSS, MiB: without a tokenizer {rss(without):.0f}, with {loaded:.0f}; while {12 * SAMPLES} prompts of 50,000 tokens pass: "
              + ", ".join(f"{x:.0f}" for x in churn) + f", {rss(pid):.0f} at the end; segments hold {kept / 2 ** 20:.1f} of 64 MiB", flush=True)
    finally:
        rig.stop()


if __name__ == "__main__":
    kvroute, folder, *what = [a for a in sys.argv[1:] if a != "-v"]
    for name, run in (("first", first), ("alone", router_alone), ("beside", beside), ("memory", memory)):
        if not what or name in what:
            run(kvroute, folder)
