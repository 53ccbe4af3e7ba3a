# SPDX-License-Identifier: Apache-2.0
"""What hostile clients and hostile workers do. Each attack is a function of (Target): one round of it, a second or two long, over loopback
sockets. An attack may be refused, cut off or answered: it judges nothing. What is judged is that others do not feel it (hostile.py)."""
import json
import os
import random
import socket
import struct
import threading
import time


class Target:
    """Where the attacks go: ports, a path that takes a body, and one that takes none. `tls`: the context of a client, where the ports speak TLS.
    `key`: what an attacker has where keys are needed; most have none, or another one. `findings`: what must not be."""

    tls = None

    def __init__(self, ports, posts, gets, rng, model="evil", key=None):
        self.ports, self.posts, self.gets, self.rng, self.model, self.key = ports, posts, gets, rng, model, key
        self.stop, self.findings = threading.Event(), []

    def head(self, method, path, length=None, extra=""):
        return head(method, path, length, extra + self.credentials())

    def credentials(self):
        """Of an attacker: his key, none, or what is none."""
        how = self.rng.randrange(8) if self.key else 7
        if how < 3:
            return f"Authorization: Bearer {self.key}\r\n"
        return ["x-api-key: not-a-key-of-anybody\r\n", f"Authorization: Bearer {self.key}x\r\n", f"Authorization: Basic {self.key}\r\n",
                f"api-key: {'k' * 8000}\r\n", ""][how - 3]

    def port(self):
        return self.rng.choice(self.ports)

    def connect(self, port=None, timeout=2.0, receive_buffer=None):
        s = socket.socket()
        s.settimeout(timeout)
        if receive_buffer:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        s.connect(("127.0.0.1", port or self.port()))
        return self.tls.wrap_socket(s) if self.tls and self.rng.random() < 0.9 else s  # the others speak plain HTTP to it

    def bare(self):
        """A connection on which nobody has shaken hands."""
        return socket.create_connection(("127.0.0.1", self.port()), 2)

    def linger_until(self, seconds):
        """A pause in which nothing is read or sent; it ends early when the run does."""
        self.stop.wait(seconds)


def head(method, path, length=None, extra=""):
    body = "" if length is None else f"Content-Length: {length}\r\nContent-Type: application/json\r\n"
    return f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{body}{extra}\r\n".encode()


def completion(model, **more):
    return json.dumps({"model": model, "prompt": "say it again", "max_tokens": 64, **more}).encode()


def send_all(s, data):
    """Sends what is taken; what is not, is not."""
    try:
        s.sendall(data)
        return True
    except OSError:
        return False


def read_some(s, most=1 << 16):
    try:
        return s.recv(most)
    except OSError:
        return b""


# ---- clients ------------------------------------------------------------------------------------------------------------

def slow_reader(t):
    """Streams that are asked for and not read."""
    socks = []
    for _ in range(6):
        s = t.connect(receive_buffer=4096)
        body = completion(t.model, stream=True, max_tokens=20000, ignore_eos=True)
        send_all(s, t.head("POST", t.rng.choice(t.posts), len(body)) + body)
        socks.append(s)
    t.linger_until(t.rng.uniform(1, 8))
    for s in socks:
        s.close()


def pipeliner(t):
    """Thousands of requests one after the other, no answer read."""
    s = t.connect(receive_buffer=4096, timeout=1.0)
    batch = t.head("GET", t.rng.choice(t.gets)) * 200
    for _ in range(100):
        if t.stop.is_set() or not send_all(s, batch):
            break
    s.close()


def huge_body(t):
    """As much as is taken of a body that costs more than it weighs."""
    n = t.rng.choice([1 << 20, 4 << 20, 12 << 20])
    shape = t.rng.randrange(5)
    if shape == 0:
        body = b'{"model":"%s","messages":[%s{}]}' % (t.model.encode(), b"{}," * (n // 3))
    elif shape == 1:
        body = b'{"model":"%s","model_name":"%s","prompt":[%s1],"token_ids":[1]}' % (t.model.encode(), t.model.encode(), b"7," * (n // 2))
    elif shape == 2:
        body = b'{"model_name":"%s","token_ids":[%s1]}' % (t.model.encode(), b"7," * (n // 2))
    elif shape == 3:
        body = b'{"model":"%s","prompt":"%s"}' % (t.model.encode(), b"x" * n)
    else:
        body = b'{"model_name":"%s","block_hashes":[%s1],"sequence_hashes":[1],"isl_tokens":1}' % (t.model.encode(), b"-5," * (n // 3))
    s = t.connect(timeout=10)
    if send_all(s, t.head("POST", t.rng.choice(t.posts), len(body)) + body):
        read_some(s)
    s.close()


def over_the_limit(t):
    """A body that says that it is enormous, and one that grows without end."""
    s = t.connect()
    send_all(s, t.head("POST", t.rng.choice(t.posts), 1 << 40) + b"{" * 65536)
    read_some(s)
    s.close()
    s = t.connect(timeout=5)
    send_all(s, t.head("POST", t.rng.choice(t.posts), extra="Transfer-Encoding: chunked\r\n"))
    chunk = b"10000\r\n" + b"[" * 65536 + b"\r\n"
    for _ in range(400):
        if t.stop.is_set() or not send_all(s, chunk):
            break
    s.close()


def unfinished_bodies(t):
    """Uploads that stop before their end and stay."""
    socks = []
    for _ in range(4):
        s = t.connect(timeout=5)
        send_all(s, t.head("POST", t.rng.choice(t.posts), 6 << 20) + b'{"prompt":"' + b"y" * (5 << 20))
        socks.append(s)
    t.linger_until(t.rng.uniform(0.5, 4))
    for s in socks:
        s.close()


def aborted_upload(t):
    """Uploads that end in a reset."""
    for _ in range(10):
        s = t.connect(timeout=5)
        send_all(s, t.head("POST", t.rng.choice(t.posts), 2 << 20) + b'{"prompt":"' + b"z" * t.rng.randrange(1 << 20))
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.close()


def aborted_answer(t):
    """Streams whose reader resets after the first bytes."""
    for _ in range(10):
        s = t.connect()
        body = completion(t.model, stream=True, max_tokens=500)
        send_all(s, t.head("POST", t.rng.choice(t.posts), len(body)) + body)
        read_some(s, t.rng.choice([1, 200, 4000]))
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.close()


def dribbler(t):
    """A request a byte at a time."""
    s = t.connect()
    body = completion(t.model)
    for b in t.head("POST", t.rng.choice(t.posts), len(body)) + body:
        if t.stop.wait(0.02) or not send_all(s, bytes([b])):
            break
    s.close()


def json_bomb(t):
    """Bodies that are hard on a parser."""
    deep = 60000
    bombs = [
        b"[" * deep, b'{"a":' * deep, b'{"model":' + b"[" * deep + b"]" * deep + b"}",
        b'{"prompt":1e400,"max_tokens":99999999999999999999999,"model":"evil"}', b'{"prompt":[1e400,2],"model":"evil"}',
        b'{' + b",".join(b'"k%d":0' % i for i in range(60000)) + b',"model":"evil"}', b'{"model":"a","model":"evil","prompt":"x","prompt":[1]}',
        b'{"prompt":"\xff\xfe\xfd"}', b'{"prompt":"\\ud800"}', b'{"prompt":' + b"9" * 200000 + b"}", b"\x00" * 5000, b'"' + b"\\u0000" * 20000 + b'"',
        b'{"messages":' + b'[{"role":"user","content":' * 300 + b'"x"' + b"}]" * 300 + b"}",
    ]
    for bomb in t.rng.sample(bombs, 4):
        s = t.connect(timeout=5)
        send_all(s, t.head("POST", t.rng.choice(t.posts), len(bomb)) + bomb)
        read_some(s)
        s.close()


def malformed(t):
    """What is not HTTP, or nearly."""
    shapes = [
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost : a\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + os.urandom(400), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /" + b"a" * 70000 + b" HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20000 + b"\r\n", b"GET / HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff1\r\n", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/9.9\r\nHost: a\r\n\r\n", b"GET / HTTP/1.1\nHost: a\n\n", os.urandom(3000), b"\r\n" * 40000,
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2;x=" + b"e" * 70000 + b"\r\n{}\r\n0\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nAuthorization: Bearer x\r\n\r\n",
    ]
    for shape in t.rng.sample(shapes, 6):
        s = t.connect()
        send_all(s, shape)
        read_some(s)
        s.close()


def idle_connections(t):
    """Connections that say nothing, or half a line."""
    socks = []
    for i in range(12):
        s = t.connect()
        if i % 2:
            send_all(s, b"POST /v1/compl")
        socks.append(s)
    t.linger_until(t.rng.uniform(0.5, 6))
    for s in socks:
        s.close()


def churn(t):
    """Connections that come and go."""
    for _ in range(100):
        if t.stop.is_set():
            return
        t.connect().close()


def ordinary_evil(t):
    """Requests that are well made and go to the evil workers."""
    for _ in range(10):
        body = completion(t.model, stream=t.rng.random() < 0.5)
        s = t.connect(timeout=3)
        send_all(s, t.head("POST", t.rng.choice(t.posts), len(body)) + body)
        read_some(s)
        s.close()


def half_handshakes(t):
    """Records of TLS that begin and do not go on, are too long, or are of no handshake."""
    socks = []
    for _ in range(12):
        s = t.bare()
        send_all(s, t.rng.choice([b"\x16\x03\x01\x02\x00\x01\x00", b"\x16\x03\x03\xff\xff" + b"\x00" * 70000, b"\x17\x03\x03\x00\x10" + b"x" * 16,
                                  b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc" + t.rng.randbytes(16380), b"\x15\x03\x03\x00\x02\x02\x28"]))
        socks.append(s)
    t.linger_until(t.rng.uniform(0.5, 4))
    for s in socks:
        s.close()


def cut_records(t):
    """A session that ends in the middle of a record, or in one that nobody can read; without a goodbye."""
    for _ in range(10):
        s = t.connect()
        body = completion(t.model, stream=True)
        send_all(s, t.head("POST", t.rng.choice(t.posts), len(body)) + body)
        raw = socket.socket(fileno=s.detach())
        send_all(raw, b"\x17\x03\x03\x40\x10" + t.rng.randbytes(t.rng.choice([3, 0x4010])))
        raw.close()


def status_of(answer):
    return int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") and answer[9:12].isdigit() else 0


def strangers_request(t, credentials, path, more=b""):
    """One request of who may not do anything; that it was done is a finding."""
    s = t.connect(timeout=5)
    body = completion(t.model)
    if send_all(s, head("POST", path, len(body), credentials) + body + more):
        status = status_of(read_some(s))
        if 100 < status < 300:
            t.findings.append(f"{path} was answered with {status} to {credentials[:200]!r}")
    s.close()


def key_guesser(t):
    """Keys that might be, and what might be taken for one: prefixes, other cases, empty ones, lists, bytes that are no text."""
    guesses = [t.key[:-1], t.key.upper(), t.key + "\t;", "", "*", "null", "%00", "x" * 4096, t.key + "," + t.key, t.key[::-1], f"{t.rng.getrandbits(256):064x}"]
    for guess in t.rng.sample(guesses, 6):
        strangers_request(t, f"Authorization: Bearer {guess}\r\n", t.rng.choice(t.posts))


def key_elsewhere(t):
    """The key where it is none: in the target, in a trailer, in the body, in the next request, under a name that is nearly that of a header."""
    for how in t.rng.sample(range(5), 3):
        path = t.rng.choice(t.posts) + (f"?api_key={t.key}&authorization=Bearer%20{t.key}" if how == 0 else "")
        if how == 1:
            s, body = t.connect(timeout=5), completion(t.model)
            send_all(s, head("POST", path, extra="Content-Type: application/json\r\nTransfer-Encoding: chunked\r\nTrailer: Authorization\r\n") +
                     b"%x\r\n" % len(body) + body + f"\r\n0\r\nAuthorization: Bearer {t.key}\r\n\r\n".encode())
            if 100 < status_of(read_some(s)) < 300:
                t.findings.append(f"{path}: a key in a trailer was taken")
            s.close()
            continue
        extra = {2: f"X-Authorization: Bearer {t.key}\r\nProxy-Authorization: Bearer {t.key}\r\n", 3: f"Cookie: api-key={t.key}\r\n"}.get(how, "")
        strangers_request(t, extra, path, more=t.head("GET", t.rng.choice(t.gets)) if how == 4 else b"")


def strangers_uploads(t):
    """Bodies of those who have no key, as much as is taken, and they stay."""
    socks = []
    for _ in range(8):
        s = t.connect(timeout=2)
        send_all(s, head("POST", t.rng.choice(t.posts), 7 << 20) + b'{"prompt":"' + b"u" * t.rng.choice([0, 1 << 10, 1 << 20]))
        socks.append(s)
    t.linger_until(t.rng.uniform(0.5, 3))
    for s in socks:
        s.close()


CLIENTS = [slow_reader, pipeliner, huge_body, over_the_limit, unfinished_bodies, aborted_upload, aborted_answer, dribbler, json_bomb, malformed,
           idle_connections, churn, ordinary_evil]
TLS_CLIENTS = [half_handshakes, cut_records]
KEY_CLIENTS = [key_guesser, key_elsewhere, strangers_uploads]


# ---- a worker -----------------------------------------------------------------------------------------------------------

class EvilWorker:
    """A worker that answers each completion in another bad way. Its model is `model`; /health is well, so that it stays in the pool."""

    def __init__(self, rng, model="evil"):
        self.rng, self.model, self.closed = rng, model, False
        self.sock = socket.socket()
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.sock.bind(("127.0.0.1", 0))
        self.sock.listen(256)
        self.port = self.sock.getsockname()[1]
        self.asked = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self.closed = True
        self.sock.close()

    def _accept(self):
        while not self.closed:
            try:
                conn, _ = self.sock.accept()
            except OSError:
                return
            conn.settimeout(5)
            threading.Thread(target=self._serve, args=(conn,), daemon=True).start()

    def _serve(self, c):
        try:
            got = b""
            while b"\r\n\r\n" not in got and len(got) < 1 << 17:
                more = c.recv(1 << 12)
                if not more:
                    return
                got += more
            line = got.split(b"\r\n", 1)[0]
            if line.startswith(b"GET"):
                body = json.dumps({"object": "list", "data": [{"id": self.model, "object": "model"}]}).encode()
                c.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body)
            else:
                self.asked += 1
                self._misbehave(c, self.rng.randrange(14))
        except OSError:
            pass
        finally:
            c.close()

    def _misbehave(self, c, how):
        ok = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        event = b"data: {\"choices\":[{\"text\":\"x\"}]}\n\n"
        chunk = b"%x\r\n" % len(event) + event + b"\r\n"
        if how == 0:  # answers before it has read the body, and reads it slowly afterwards
            c.sendall(ok + chunk)
            for _ in range(20):
                time.sleep(0.05)  # it is slow
                c.recv(4096)
            c.sendall(chunk + b"0\r\n\r\n")
        elif how == 1:  # the whole answer at once, nothing read
            c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        elif how == 2:
            c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif how == 3:
            c.sendall(ok + chunk * 3)
            c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif how == 4:
            c.sendall(b"HTTP/1.1 0 \r\n\r\n")
        elif how == 5:
            c.sendall(b"HTTP/1.1 200 OK\r\n" + b"X-Y: z\r\n" * 20000 + b"\r\n")
        elif how == 6:  # an answer without end
            c.sendall(ok)
            for _ in range(300):
                c.sendall(chunk * 200)
        elif how == 7:
            c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nshort")
        elif how == 8:
            c.sendall(os.urandom(4096))
        elif how == 9:  # says nothing
            c.recv(1 << 20)
            time.sleep(1.5)  # as long as it can
        elif how == 10:
            c.sendall(b"HTTP/1.1 100 Continue\r\n\r\n" * 5000 + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        elif how == 11:
            c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
        elif how == 12:  # one event that has no end
            c.sendall(ok + b"100000\r\ndata: " + b"a" * (0x100000 - 6) + b"\r\n" + b"100000\r\n" + b"b" * 0x100000 + b"\r\n0\r\n\r\n")
        else:  # usage that cannot be, and an upgrade
            body = b'{"usage":{"prompt_tokens":1e400,"prompt_tokens_details":{"cached_tokens":-1}},"choices":[]}'
            c.sendall(b"HTTP/1.1 200 OK\r\nConnection: upgrade\r\nUpgrade: h2c\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


class EvilEvents:
    """KV events of an evil engine: garbage, endless multiparts, numbers that jump, one block under many names."""

    def __init__(self, ctx, rng, port, stop):
        import msgpack
        import zmq
        self.pack, self.zmq, self.rng, self.stop = msgpack.packb, zmq, rng, stop
        self.sock = ctx.socket(zmq.PUB)
        self.sock.linger, self.sock.sndhwm = 0, 100
        self.sock.bind(f"tcp://127.0.0.1:{port}")
        self.seq = 0
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        while not self.stop.wait(0.05):
            how = self.rng.randrange(7)
            if how == 0:
                self._send(os.urandom(300))
            elif how == 1:
                self.sock.send_multipart([os.urandom(64)] * 2000)
            elif how == 2:
                self.seq = self.rng.choice([0, 1 << 63, self.seq + 1000])
            elif how == 3:
                names = [self.rng.randrange(1 << 60) for _ in range(200)]
                for n in names:
                    self._send(self.pack([time.time(), [["BlockStored", [n], None, list(range(16)), 16, None, "GPU", None]], 0]))
            elif how == 4:
                names = [k << 32 for k in range(20000)]
                self._send(self.pack([time.time(), [["BlockStored", names, None, [7] * (16 * len(names)), 16, None, "GPU", None]], 0]))
            elif how == 5:
                self._send(b"\xdd\xff\xff\xff\xff" + b"\x91" * 5000)
            else:
                self._send(self.pack([time.time(), [["AllBlocksCleared"]], 0]))
        self.sock.close()

    def _send(self, payload):
        self.sock.send_multipart([b"", struct.pack(">Q", self.seq & (1 << 64) - 1), payload])
        self.seq += 1
