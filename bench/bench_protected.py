# SPDX-License-Identifier: Apache-2.0
"""What protection and watching cost: processor time of the router for each request, in turns, beside HAProxy's for the same requests.
usage: bench_protected.py PATH_OF_KVROUTE

Small completions (64 token ids, one answer token) over kept connections, by wrk, to two mock engines; every row has the same client, the same
engines and the same number of connections. The time is that of the router's process alone (utime + stime), so that the client's own TLS, which
shares the machine, is not in it. Needs Debian's wrk; HAProxy's rows need haproxy, and are left out without it.
"""
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

from parts import KVROUTE, all_ended, free_ports, get, spawn, until

ROUNDS, SECONDS, CONNECTIONS = 5, 3, 32
KEY = "sk-bench-0123456789"
HZ = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / HZ


class Files:
    """What the rows read: a certificate, keys, a script for wrk."""

    def __init__(self, where):
        self.cert, self.key, self.both = (os.path.join(where, n) for n in ("cert.pem", "key.pem", "both.pem"))
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                        "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", self.key, "-out", self.cert], check=True, capture_output=True)
        self.write(self.both, open(self.cert).read() + open(self.key).read())
        self.keys = self.write(os.path.join(where, "keys.yaml"), f"keys:\n  - name: bench\n    key: {KEY}\n    requests_per_second: 1000000\n    burst_requests: 1000000\n")
        body = json.dumps({"model": "mock", "prompt": list(range(1000, 1064)), "max_tokens": 1})
        self.script = self.write(os.path.join(where, "post.lua"), f"""wrk.method = "POST"
wrk.body = '{body}'
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Authorization"] = "Bearer {KEY}"
done = function(summary, latency)
  local e = summary.errors
  io.write("KVR ", summary.requests, " ", e.connect + e.read + e.write + e.status + e.timeout, " ", latency:percentile(50), " ", latency:percentile(99), "\\n")
end
""")
        self.log = os.path.join(where, "access.log")
        self.haproxy = os.path.join(where, "haproxy.cfg")

    @staticmethod
    def write(path, text):
        with open(path, "w") as f:
            f.write(text)
        os.chmod(path, 0o600)
        return path


class Row:
    def __init__(self, name, pid, port, tls):
        self.name, self.pid, self.url, self.runs = name, pid, f"{'https' if tls else 'http'}://127.0.0.1:{port}/v1/completions", []

    def measure(self, files, seconds):
        before = cpu_seconds(self.pid)
        out = subprocess.run(["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "-s", files.script, self.url], capture_output=True, text=True, check=True).stdout
        requests, errors, p50, p99 = map(float, re.search(r"KVR (\S+) (\S+) (\S+) (\S+)", out).groups())
        if errors or not requests:
            sys.exit(f"{self.name}: {errors:.0f} errors in {requests:.0f} requests")
        return (cpu_seconds(self.pid) - before) / requests * 1e6, requests / seconds, p50, p99


def haproxy(files, mocks, tls):
    port = free_ports()
    bind = f"bind 127.0.0.1:{port}" + (f" ssl crt {files.both} alpn http/1.1" if tls else "")
    servers = "".join(f"  server m{i} 127.0.0.1:{m}\n" for i, m in enumerate(mocks))
    files.write(files.haproxy + str(port), f"""global
  maxconn 1000
  nbthread 1
defaults
  mode http
  timeout connect 2s
  timeout client 60s
  timeout server 60s
  http-reuse always
frontend f
  {bind}
  default_backend b
backend b
  balance roundrobin
{servers}""")
    p = spawn("haproxy", "-db", "-f", files.haproxy + str(port))
    until("haproxy", lambda: __import__("socket").create_connection(("127.0.0.1", port), 1).close() is None)
    return Row("HAProxy, TLS" if tls else "HAProxy", p.pid, port, tls)


def routers(files, mocks, collector):
    workers = [f"http://127.0.0.1:{m}" for m in mocks]
    tls = ("--tls-cert", files.cert, "--tls-key", files.key)
    keys = ("--api-key-file", files.keys)
    log = ("--access-log", files.log)
    traces = ("--otlp-endpoint", f"http://127.0.0.1:{collector}", "--trace-sample", "0.01")
    for name, options, over_tls in [("without", (), False), ("TLS", tls, True), ("keys and limits", keys, False), ("access log", log, False),
                                    ("traces of 1 %", traces, False), ("all of it", (*tls, *keys, *log, *traces), True)]:
        port, admin = free_ports(), free_ports()
        p = spawn(KVROUTE, "serve", "--host", "127.0.0.1", "--port", port, "--admin-port", admin, "--no-router-kv-events",
                  *(a for w in workers for a in ("--worker", w)), *options)
        until(name, lambda: '"status":"up"' in get(admin, "/workers").replace(" ", "") and get(admin, "/workers").count('"up"') == len(mocks))
        yield Row(name, p.pid, port, over_tls)


def collect():
    """An OTLP collector that takes everything."""
    import http.server
    import threading

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *a):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


def main():
    if not shutil.which("wrk"):
        print("protection: left out: wrk is not installed (apt-get install wrk)")
        return
    with tempfile.TemporaryDirectory() as where, all_ended():
        files, mocks = Files(where), [free_ports() for _ in range(2)]
        for m in mocks:
            spawn(KVROUTE, "mock", "--port", m, "--model", "mock", "--speedup-ratio", "1000")
        rows = list(routers(files, mocks, collect()))
        if shutil.which("haproxy"):
            rows += [haproxy(files, mocks, tls) for tls in (False, True)]
        for row in rows:
            row.measure(files, 1)
        for _ in range(ROUNDS):
            for row in rows:
                row.runs.append(row.measure(files, SECONDS))
        base = statistics.median(r[0] for r in rows[0].runs)
        print(f"protection: us of processor time for each request ({CONNECTIONS} connections, medians of {ROUNDS} rounds in turns)")
        for row in rows:
            us, rate, p50, p99 = (statistics.median(r[i] for r in row.runs) for i in range(4))
            print(f"  {row.name:16} {us:6.1f} us  {us / base:5.2f} x   {rate:7.0f} requests/s   p50 {p50 / 1000:6.2f} ms   p99 {p99 / 1000:6.2f} ms")


if __name__ == "__main__":
    main()
