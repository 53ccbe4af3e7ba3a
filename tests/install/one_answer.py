# SPDX-License-Identifier: Apache-2.0
"""A mock engine and `serve` of a program; a prompt is answered through them, and the second time it is known where its blocks are. `epp`
beside them says by gRPC that it can choose. With --meanwhile a command runs while an answer is open, and then the next `serve` begins:
nothing of the answer is lost. Ports are fixed: the machine is the test's own."""
import argparse
import json
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("kvroute")
parser.add_argument("--config", help="of serve")
parser.add_argument("--meanwhile", metavar="COMMAND")
args = parser.parse_args()


def request(path, body=None):
    data = body and json.dumps(body).encode()
    return urllib.request.urlopen(urllib.request.Request("http://127.0.0.1:8080" + path, data, {"Content-Type": "application/json"}), timeout=60)


def until(said, condition):
    ends = time.monotonic() + 60
    while True:
        try:
            found = condition()
            if found:
                return found
        except (urllib.error.URLError, ConnectionError):
            pass
        assert time.monotonic() < ends, said
        time.sleep(0.05)


def is_ready():
    with request("/ready") as answer:
        return answer.status == 200


def known_blocks():
    with request("/v1/completions", {"model": "mock", "prompt": list(range(100, 164)), "max_tokens": 4}) as answer:
        assert json.load(answer)["choices"][0]["text"]
        return int(answer.headers["x-kvroute-overlap-blocks"])


def picks():
    """What grpc.health.v1 is asked by hand, and answers: SERVING."""
    def frame(kind, flags, stream, body):
        return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body

    def message(data):
        return b"\0" + len(data).to_bytes(4, "big") + data

    head = {":method": "POST", ":scheme": "http", ":path": "/grpc.health.v1.Health/Check", ":authority": "x", "content-type": "application/grpc", "te": "trailers"}
    fields = b"".join(b"\0" + bytes([len(k)]) + k.encode() + bytes([len(v)]) + v.encode() for k, v in head.items())
    with socket.create_connection(("127.0.0.1", 9002), timeout=60) as s:
        s.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + frame(1, 4, 1, fields) + frame(0, 1, 1, message(b"\n\x09readiness")))
        with s.makefile("rb") as answer:
            while at := answer.read(9):
                body = answer.read(int.from_bytes(at[:3], "big"))
                if at[3] == 0:
                    return body == message(b"\x08\1")
    return False


def start(*options, **how):
    running.append(subprocess.Popen([args.kvroute, *options], **how))
    return running[-1]


def serve():
    server = start("serve", "--lame-duck-time", "0", *(["--config", args.config] if args.config else []),
                   "--worker", WORKER, stderr=log)
    until("the router is not ready", is_ready)
    return server


def accepts():
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", 8080)) == 0


def replaced(mock, server):
    with request("/v1/completions", {"model": "mock", "prompt": [1, 2, 3], "max_tokens": 6000, "stream": True}) as answer:
        lines = [answer.readline()]  # of some seconds of them
        mock.send_signal(signal.SIGSTOP)  # so that the answer is not over before the command is
        subprocess.run(args.meanwhile, shell=True, check=True)
        server.send_signal(signal.SIGTERM)
        until("the port is not free", lambda: not accepts())
        mock.send_signal(signal.SIGCONT)
        serve()
        lines += answer.readlines()
    tokens = [line for line in lines if line.startswith(b"data: {")]
    assert b"data: [DONE]\n" in lines and len(tokens) >= 6000, len(tokens)
    assert server.wait(60) == 0
    log.seek(0)
    said = log.read()
    assert "stopped: 1 answers finished since the end began, 0 cut off" in said, said
    print("an answer was open meanwhile, and came whole")


WORKER = "http://127.0.0.1:18101,events=tcp://127.0.0.1:18102,replay=tcp://127.0.0.1:18103"
running = []
log = tempfile.TemporaryFile("w+", prefix="serve")  # what every serve says
try:
    mock = start("mock", "--port", "18101", "--kv-events", "tcp://127.0.0.1:18102", "--kv-replay", "tcp://127.0.0.1:18103", "--speedup-ratio", "20")
    server = serve()
    blocks = until("the events did not come", known_blocks)
    print(f"answered; {blocks} blocks of the prompt were known")
    start("epp", "--lame-duck-time", "0", "--admin-port", "9091", "--ext-proc-tls", "off", "--worker", WORKER)
    until("the picker is not ready", picks)
    print("the picker can choose")
    if args.meanwhile:
        replaced(mock, server)
        assert until("the events did not come again", known_blocks)
finally:
    for process in running:
        process.send_signal(signal.SIGTERM)
    ends = [process.wait(60) for process in running]
    log.seek(0)
    print(log.read(), end="")
assert not any(ends), ends
