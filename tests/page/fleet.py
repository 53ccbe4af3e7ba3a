# SPDX-License-Identifier: Apache-2.0
"""A fleet with one of each that an operator should be told of: a worker that is down, a blind one, a slow one, a drained one, and a queue. Runs a command with its
addresses in the environment (PAGE_URL, PAGE_KEYED_URL, PAGE_KEY), and ends with its status; without one it stays until Enter."""
import contextlib
import http.client
import os
import subprocess
import sys
import tempfile
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../e2e"))
os.environ.setdefault("KVROUTE", os.path.join(HERE, "../../build/release/kvroute"))
from conftest import Mock, Serve, call, wait_for  # noqa: E402
from ports import free_ports  # noqa: E402

SLOW_FACTOR, SLOW_SEEN = 1.5, 10  # as words.js has them
DOCUMENTS = [f"document {i}: " + "".join(f"word {i * k} " for k in range(150)) for i in range(6)]


def ask(s, model, prompt, request_id=None, max_tokens=8):
    body = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "stream": True, "stream_options": {"include_usage": True}}
    return call(s.port, "POST", "/v1/completions", body, {"x-request-id": request_id} if request_id else None, timeout=600)


def wait_in_vain(s):
    with contextlib.suppress(OSError, http.client.HTTPException):
        ask(s, "stuck", "x")


def slow_is_known(s):
    m = s.get("/workers")[2]["ttft_model"]
    return m["factor"] >= SLOW_FACTOR and m["observations"] >= SLOW_SEEN


def teach(s):
    """Requests until the router knows the slow worker for what it is."""
    known = threading.Event()

    def client(k):
        n = 0
        while not known.is_set():
            ask(s, "mock", DOCUMENTS[(k + n) % len(DOCUMENTS)] + f"question {k} {n}")
            n += 1
    clients = [threading.Thread(target=client, args=(k,)) for k in range(8)]
    for c in clients:
        c.start()
    try:
        wait_for("the slow worker", lambda: slow_is_known(s), 120)
    finally:
        known.set()
        for c in clients:
            c.join()


def main():
    made, keys = [], tempfile.NamedTemporaryFile("w", suffix=".keys")

    def make(cls, *args, **kw):
        made.append(cls(*args, **kw))
        return made[-1]
    try:
        small = ("--num-gpu-blocks", 900)
        spill = (*small, "--host-kv-blocks", 600, "--kv-offload-events", "self-describing")
        nixl = ("--model", "big", "--kv-protocol", "vllm-nixl")
        mocks = [make(Mock, *spill, speedup=5), make(Mock, *spill, speedup=5), make(Mock, *small, speedup=0.5),
                 make(Mock, *small, "--no-tell-event-sources", "--no-tell-cache-config", with_events=False, speedup=5),
                 make(Mock, *small, speedup=5)]
        legs = [make(Mock, *nixl, "--role", role, speedup=5).spec(f",role={role},kv-protocol=vllm-nixl") for role in ("prefill", "decode")]
        stuck = make(Mock, "--model", "stuck", "--fault-hang")
        gone = f"http://127.0.0.1:{free_ports()}"
        s = make(Serve, [*(m.spec(f",metrics=http://127.0.0.1:{m.port}/metrics") for m in mocks), *legs, stuck, gone],
                 "--router-queue-requests", 4, "--queue-timeout", 3600)
        keys.write("# of operators\nopen sesame\n")
        keys.flush()
        keyed = make(Serve, [mocks[0]], "--admin-key-file", keys.name, ready=False)
        teach(s)
        assert call(s.admin, "PATCH", "/workers/5", {"state": "draining"}).status == 200
        ask(s, "big", DOCUMENTS[0], "of-two-legs")
        ask(s, "mock", DOCUMENTS[1], "of-one-leg")
        for _ in range(6):  # four are taken by the worker that does not answer, two wait
            threading.Thread(target=wait_in_vain, args=(s,), daemon=True).start()
        wait_for("the one that is down", lambda: s.get("/workers")[8]["status"] == "down")
        wait_for("the queue", lambda: s.get("/status")["recent"]["waiting"] == 2)
        where = {"PAGE_URL": f"http://127.0.0.1:{s.admin}/", "PAGE_KEYED_URL": f"http://127.0.0.1:{keyed.admin}/", "PAGE_KEY": "open sesame"}
        if len(sys.argv) > 1:
            return subprocess.run(sys.argv[1:], env={**os.environ, **where}).returncode
        input(f"{where}\nEnter ends it: ")
        return 0
    finally:
        for p in reversed(made):
            p.kill()


if __name__ == "__main__":
    os._exit(main())  # clients of the queue wait for an answer that does not come
