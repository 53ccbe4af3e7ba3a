# SPDX-License-Identifier: Apache-2.0
"""Causes of the alerts of deploy/prometheus, made with real processes, and how some of them end."""
import random
import signal
import socket
import threading

from conftest import Mock, Serve, call, free_ports, wait_for
from http_parts import Handler, HttpServer
from nats_parts import NatsServer
from tls_parts import Authority


class Odd(HttpServer):
    """A worker that is healthy, cannot tokenize, and closes the connection on completions."""
    stop = HttpServer.close

    def __init__(self):
        class Answers(Handler):
            def do_GET(self):
                self.answer(200, {})

            def do_POST(self):
                self.body()
                if self.path == "/tokenize":
                    self.answer(500, {})
                self.close_connection = True
        super().__init__(Answers)


class Asking:
    """Asks `ask(i)` again and again, whatever comes of it."""

    def __init__(self, ask, pause=0.04):
        self.ask, self.pause, self.over = ask, pause, threading.Event()  # the machine is to do other things too
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        i = 0
        while not self.over.is_set():
            try:
                self.ask(i)
            except OSError:
                pass
            i += 1
            self.over.wait(self.pause)

    def stop(self):
        self.over.set()
        self.thread.join()


class Waiting:
    """Streams that are asked for and wait, as long as it takes, until they are given up."""

    def __init__(self, port, n, model="mock"):
        self.socks = [socket.create_connection(("127.0.0.1", port), 30) for _ in range(n)]
        body = b'{"model":"%s","prompt":"wait","stream":true}' % model.encode()
        for c in self.socks:
            c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    def stop(self):
        for c in self.socks:
            c.close()


class Scene:
    """Starts things, and ends them in reverse. `ends`: of a cause, what ends it."""

    def __init__(self, folder):
        self.folder, self.made, self.ends = folder, [], {}

    def start(self, cls, *args, **kw):
        self.made.append(x := cls(*args, **kw))
        return x

    def stop(self):
        errors = []
        for x in self.made:
            if isinstance(x, Asking):
                x.over.set()  # all at once, as some wait for seconds
        for x in reversed(self.made):
            try:
                x.stop()
            except AssertionError as e:
                errors.append(str(e))
        assert not errors, "\n".join(errors)


def prompt(i):
    return random.Random(i).sample(range(50000), 320)


def again(sc, m, **kw):
    """A worker in the place of another one."""
    m.kill()
    return sc.start(Mock, port=m.port, events=m.events, replay=m.replay, **kw)


def blind(sc):
    """Events stop on their way while the worker serves, so half of the prompts are reused unseen."""
    m = sc.start(Mock, "--drop-events", "1", with_replay=False)
    s = sc.start(Serve, [m])
    sc.start(Asking, lambda i: s.complete(prompt(i if i % 2 else 0), max_tokens=1))
    sc.ends[blind] = lambda: again(sc, m, with_replay=False)
    return s


def wrong_block_size(sc):
    m = sc.start(Mock)
    s = sc.start(Serve, [m.spec(",block-size=32")], ready=False)
    sc.start(Asking, lambda i: s.complete(prompt(i), max_tokens=1))
    return s


def gaps(sc):
    m = sc.start(Mock, "--drop-events", "3", with_replay=False)
    s = sc.start(Serve, [m])
    sc.start(Asking, lambda i: s.complete(prompt(i), max_tokens=1))
    return s


def dead_worker(sc):
    m = sc.start(Mock)
    s = sc.start(Serve, [m], "--model", "mock", "--queue-timeout", "0.2")
    m.kill()
    sc.start(Asking, lambda i: s.complete(prompt(i), max_tokens=1, model="mock"))
    sc.ends[dead_worker] = lambda: again(sc, m)
    return s


def odd_worker(sc):
    o = sc.start(Odd)
    s = sc.start(Serve, [f"{o.url},model=odd"], "--breaker-failures", "2", "--breaker-cooldown", "1", "--queue-timeout", "2",
                 "--tokenizer", "engine")
    sc.start(Asking, lambda i: s.complete(f"text {i}", model="odd"))
    return s


def small_limits(sc):
    """A small index, and room for few bodies."""
    m = sc.start(Mock)
    s = sc.start(Serve, [m], "--index-max-bytes", "256KiB", "--max-bodies-bytes", "64KiB")
    sc.start(Asking, lambda i: (s.complete(random.Random(i).sample(range(50000), 3200), max_tokens=1),
                                call(s.port, "POST", "/v1/completions", b'{"prompt":"' + b"x" * 200000 + b'"}')))
    return s


def ends_soon(sc):
    """Its admin port speaks TLS, with a certificate that ends in five days."""
    cert, key = Authority(sc.folder, "alerts").sign("router", days=5)
    return sc.start(Serve, [], "--admin-tls-cert", cert, "--admin-tls-key", key, ready=False)


def lonely_replica(sc):
    return sc.start(Serve, [], "--router-replica-sync", "--replica-sync-port", free_ports(), "--replica-sync-peers",
                    f"tcp://127.0.0.1:{free_ports()}", ready=False)


def no_remote_index(sc):
    return sc.start(Serve, [], "--use-remote-indexer", f"http://127.0.0.1:{free_ports()}", ready=False)


def no_api_server(sc):
    options = "--discovery", "kubernetes", "--kubernetes-api", f"http://127.0.0.1:{free_ports()}", "--kubernetes-namespace", "fleet"
    return sc.start(Serve, [], *options, "--kubernetes-pool", "qwen", ready=False)


def no_nats(sc):
    n = sc.start(NatsServer)
    s = sc.start(Serve, [], "--event-plane", "nats", "--nats-url", n.url, ready=False)
    n.kill()
    return s


def nobody_there(sc):
    """Requests that wait for a worker to exist: their only one has gone."""
    m = sc.start(Mock)
    s = sc.start(Serve, [m], "--model", "mock", "--queue-timeout", "600")
    m.kill()
    wait_for("it is seen", lambda: s.metric("worker_up") == 0)
    sc.start(Waiting, s.port, 2)
    return s


def late_streams(sc):
    """Each takes more than three seconds to its first token."""
    m = sc.start(Mock, speedup=0.005)
    s = sc.start(Serve, [m])
    for k in range(3):
        sc.start(Asking, lambda i, k=k: s.complete([k, i], max_tokens=1, stream=True))
    return s


def overloaded(sc):
    """One prompt is computed for seconds, and others find its only worker beyond the threshold."""
    m = sc.start(Mock, speedup=0.02)
    s = sc.start(Serve, [m], "--active-prefill-tokens-threshold", "100")
    for k in range(2):
        sc.start(Asking, lambda i, k=k: s.complete(prompt(2 * i + k), max_tokens=1))
    return s


def full_disk(sc):
    """The access log is on a disk without room, and more lines come than can wait."""
    s = sc.start(Serve, [], "--access-log", "/dev/full", ready=False)
    get = b"GET /nothing/" + b"n" * 900 + b" HTTP/1.1\r\nHost: localhost\r\n"

    def fifty(i):
        with socket.create_connection(("127.0.0.1", s.port), 30) as c:
            c.sendall((get + b"\r\n") * 49 + get + b"Connection: close\r\n\r\n")
            while c.recv(1 << 16):
                pass
    sc.start(Asking, fifty)
    return s


def lost_spans(sc):
    """What is said to be a collector takes no spans."""
    m = sc.start(Mock)
    s = sc.start(Serve, [m], "--otlp-endpoint", f"http://127.0.0.1:{m.port}", "--trace-sample", "1")
    sc.start(Asking, lambda i: s.complete(prompt(i), max_tokens=1))
    return s


def few_descriptors(sc):
    """Each stream that waits takes one for its client and one for its worker."""
    m = sc.start(Mock, "--fault-hang")
    s = sc.start(Serve, [m], "--first-token-timeout", "600", limits=[("nofile", 64)])
    sc.start(Waiting, s.port, 30)
    return s


def bad_file(sc):
    """A file of keys with a mistake is read again."""
    keys = sc.folder / "keys.yaml"
    keys.write_text("keys:\n- {name: a, key: a-key-of-a-client}\n")
    s = sc.start(Serve, [], "--api-key-file", keys, ready=False)

    def read(text, result):
        before = s.metric("config_reloads_total", file="api-keys", result=result)
        keys.write_text(text)
        s.p.send_signal(signal.SIGHUP)
        wait_for("it is read", lambda: s.metric("config_reloads_total", file="api-keys", result=result) == before + 1)
    read("keys:\n- {name: a, weight: many}\n", "refused")
    sc.ends[bad_file] = lambda: read("keys:\n- {name: b, key: another-key-of-a-client}\n", "taken")
    return s
