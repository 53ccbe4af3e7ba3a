# SPDX-License-Identifier: Apache-2.0
"""under_load.py COMMAND: requests one after the other on four threads, each on a connection of its own, and one long answer, while a command
replaces kvroute.service's process. None may fail."""
import http.client
import json
import subprocess
import sys
import threading
import time

answered, failed, over = [], [], threading.Event()


def complete(n, **more):
    connection = http.client.HTTPConnection("127.0.0.1", 8080, timeout=60)
    try:
        connection.request("POST", "/v1/completions", json.dumps({"model": "mock", "prompt": [n] * 32, "max_tokens": 2, **more}),
                           {"Content-Type": "application/json"})
        answer = connection.getresponse()
        body = answer.read()
        (answered if answer.status == 200 and (not more or b"data: [DONE]" in body) else failed).append((answer.status, body[-200:]))
    except OSError as e:
        failed.append(repr(e))
    finally:
        connection.close()


def many(seed):
    n = seed
    while not over.is_set():
        complete(n)
        n += 4


def main_pid():
    return subprocess.run(["systemctl", "show", "-P", "MainPID", "kvroute"], check=True, capture_output=True, text=True).stdout.strip()


def until(said, condition):
    ends = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < ends, said
        time.sleep(0.05)


first = main_pid()
threads = [threading.Thread(target=many, args=(seed,)) for seed in range(4)]
threads.append(threading.Thread(target=complete, args=(9,), kwargs={"stream": True, "max_tokens": 1000}))
for thread in threads:
    thread.start()
until("nothing is answered", lambda: len(answered) > 100 or failed)
subprocess.run(sys.argv[1], shell=True, check=True)
until("the process is the old one", lambda: main_pid() != first)
before = len(answered)
until("the new one does not answer", lambda: len(answered) > max(before + 1000, 10000) or failed)
over.set()
for thread in threads:
    thread.join()
print(f"{len(answered)} answered, {len(failed)} failed")
assert not failed, failed[:5]
