# SPDX-License-Identifier: Apache-2.0
"""one_answer.py KVROUTE [OPTION...]: a mock engine and `serve` of that program, with its OPTIONs; a prompt is answered through them, and the
second time it is known where its blocks are. Ports are fixed: the machine is the test's own."""
import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

KVROUTE, *OPTIONS = sys.argv[1:]
WORKER = "http://127.0.0.1:18101,events=tcp://127.0.0.1:18102,replay=tcp://127.0.0.1:18103"
ENDS = time.monotonic() + 60


def ask(path, body=None):
    data = body and json.dumps(body).encode()
    request = urllib.request.Request("http://127.0.0.1:8080" + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.headers, answer.read()


def until(said, condition):
    while True:
        try:
            found = condition()
            if found:
                return found
        except (urllib.error.URLError, ConnectionError):
            pass
        assert time.monotonic() < ENDS, said
        time.sleep(0.05)


def completion():
    headers, body = ask("/v1/completions", {"model": "mock", "prompt": list(range(100, 164)), "max_tokens": 4})
    assert json.loads(body)["choices"][0]["text"], body
    return int(headers["x-kvroute-overlap-blocks"])


programs = [subprocess.Popen([KVROUTE, *options]) for options in (
    ["mock", "--port", "18101", "--kv-events", "tcp://127.0.0.1:18102", "--kv-replay", "tcp://127.0.0.1:18103", "--speedup-ratio", "50"],
    ["serve", "--lame-duck-time", "0", "--worker", WORKER, *OPTIONS])]
try:
    until("the router is not ready", lambda: ask("/ready"))
    blocks = until("the events did not come", completion)
    print(f"answered; {blocks} blocks of the prompt were known")
finally:
    for p in programs:
        p.send_signal(signal.SIGTERM)
    ends = [p.wait(60) for p in programs]
assert ends == [0, 0], ends
