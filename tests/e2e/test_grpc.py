# SPDX-License-Identifier: Apache-2.0
"""The gRPC server (src/net/grpc) with another one's client, and with bytes that no client sends. What it serves is tests/grpc/grpc_echo.c.
That ends with an error where a call's end was not told exactly once, or a byte is still counted."""
import concurrent.futures
import json
import os
import signal
import socket
import ssl
import struct
import subprocess
import threading
import time

import pytest
from conftest import BINARY, SLOW, wait_for
from h2_parts import ACK, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, PREFACE, RST_STREAM, SETTINGS, WINDOW_UPDATE, Raw, message

grpc = pytest.importorskip("grpc", reason="python3-grpcio is not installed")
ECHO = os.path.join(os.path.dirname(os.path.abspath(BINARY)), "tests/grpc_echo")
pytestmark = pytest.mark.skipif(not os.path.exists(ECHO), reason="built without nghttp2")


class Echo:
    def __init__(self, **config):
        self.process = subprocess.Popen([ECHO, *(f"{k}={v}" for k, v in config.items())], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline())
        self.channels = []

    def channel(self, **options):
        made = grpc.insecure_channel(f"127.0.0.1:{self.port}", options=[("grpc.use_local_subchannel_pool", 1), *options.items()])
        self.channels.append(made)
        return made

    def count(self):
        """Asked on a connection of its own."""
        with grpc.insecure_channel(f"127.0.0.1:{self.port}", options=[("grpc.use_local_subchannel_pool", 1)]) as c:
            return json.loads(c.unary_unary("/t/count")(b"", timeout=20 * SLOW))

    def wait_count(self, what, check):
        return wait_for(what, lambda: check(self.count()))

    def stop(self, how=signal.SIGUSR1):
        """By now whoever was to be told has been."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        _, said = self.process.communicate(timeout=20 * SLOW)
        assert self.process.returncode == 0, said
        return said


@pytest.fixture
def start():
    servers = []

    def begin(**config):
        servers.append(Echo(**config))
        return servers[-1]

    yield begin
    for s in servers:
        for c in s.channels:
            c.close()
        s.stop()


def code_of(call):
    with pytest.raises(grpc.RpcError) as e:
        call()
    return e.value.code(), e.value.details()


# ---- calls -------------------------------------------------------------------------------------------------


def test_calls_of_each_kind(start):
    s = start()
    c = s.channel(**{"grpc.max_receive_message_length": -1})
    assert c.unary_unary("/t/echo")(b"hello") == b"hello"
    sizes = [0, 1, 4, 16379, 16384, 65536, 3 << 20]
    assert [len(m) for m in c.stream_stream("/t/echo")(iter([b"a" * n for n in sizes]))] == sizes
    assert c.stream_unary("/t/keep")(iter([b"z" * 1000] * 300)) == b"300000"
    assert len(next(iter(c.unary_stream("/t/flood")(b"5000000")))) == 5000000
    said = json.loads(c.unary_unary("/t/count")(b"", metadata=[("x-said", "metadata")]))
    assert said["peer"] == "127.0.0.1" and said["said"] == "metadata"


def test_answers_come_while_the_client_is_still_asking(start):
    """Each message is sent when the answer to the one before is there."""
    c = start().channel()
    ready, sent = threading.Semaphore(1), 200

    def ask():
        for i in range(sent):
            ready.acquire()
            yield str(i).encode()

    got = []
    for answer in c.stream_stream("/t/echo")(ask()):
        got.append(int(answer))
        ready.release()
    assert got == list(range(sent))


def test_a_call_ends_with_a_status_and_its_words(start):
    c = start().channel()
    assert code_of(lambda: c.unary_unary("/t/status")("5 ü 100%\n".encode())) == (grpc.StatusCode.NOT_FOUND, "ü 100%\n")
    assert code_of(lambda: c.unary_unary("/t/status")(b"14"))[0] == grpc.StatusCode.UNAVAILABLE
    assert code_of(lambda: c.unary_unary("/t/open")(b"")) == (grpc.StatusCode.UNIMPLEMENTED, "there is no such thing")
    assert code_of(lambda: c.unary_unary("/t/reset")(b""))[0] == grpc.StatusCode.INTERNAL


def test_the_server_may_end_before_the_client_has(start):
    """The client is told that nobody reads, and the call is over on both sides while its connection goes on."""
    s = start()
    c = s.channel()
    never = threading.Event()

    def ask():
        yield b"first"
        never.wait()

    assert list(c.stream_stream("/t/once")(ask())) == [b"first"]
    s.wait_count("the call's end", lambda n: n["opened"] == n["gone"] + 1)
    never.set()
    assert c.unary_unary("/t/echo")(b"x") == b"x"


def test_ten_thousand_calls_that_their_client_resets_on_one_connection(start):
    """Envoy ends each call with RST_STREAM; nghttp2 would say GOAWAY after the first thousand."""
    s = start()
    raw = Raw(s.port, settings=struct.pack("!HI", 4, 1 << 30))
    for first in range(0, 10000, 500):
        for i in range(first, first + 500):
            raw.call(2 * i + 1, b"/t/echo")
            raw.send(DATA, 0, 2 * i + 1, message(b"x"))
            raw.send(RST_STREAM, 0, 2 * i + 1, struct.pack("!I", 8))
        raw.send(PING, 0, 0, struct.pack("!Q", first))
        kind = None
        while kind != PING:
            kind, flags, _, _ = raw.next()
            assert kind != GOAWAY
    n = s.wait_count("their ends", lambda n: n["opened"] == n["gone"] + 1 and n)
    assert n["resets"] == 10000 and n["goaways"] == 0


def test_calls_one_after_the_other(start):
    s = start()
    call = s.channel().unary_unary("/t/once")
    for i in range(2000):
        assert call(str(i).encode()) == str(i).encode()
    n = s.count()
    assert n["connections_total"] == 2 and n["protocol_errors"] == 0


def test_two_thousand_at_once_on_one_connection(start):
    s = start()
    c = s.channel()
    never = threading.Event()

    def ask():
        yield b"x"
        never.wait()

    # grpcio has a thread for each iterator; raw frames need none
    raw = Raw(s.port, settings=struct.pack("!HI", 4, 1 << 20))
    for i in range(2000):
        raw.call(2 * i + 1, b"/t/echo")
        raw.send(DATA, 0, 2 * i + 1, message(b"%d" % i))
    s.wait_count("all to be open", lambda n: n["streams"] == 2001)
    for i in range(2000):
        raw.send(DATA, END_STREAM, 2 * i + 1, message(b"end"))
    done, got = 0, {}
    while done < 2000:
        kind, flags, stream, body = raw.next()
        if kind == DATA:
            got[stream] = got.get(stream, b"") + body
        done += kind == HEADERS and flags & END_STREAM
    assert got == {2 * i + 1: message(b"%d" % i) + message(b"end") for i in range(2000)}
    never.set()
    assert c.unary_unary("/t/echo")(b"x") == b"x"


# ---- who leaves --------------------------------------------------------------------------------------------


def test_whoever_cancels_or_has_no_time_is_gone(start):
    s = start()
    c = s.channel()
    never = threading.Event()

    def ask():
        yield b"x"
        never.wait()

    call = c.stream_stream("/t/echo")(ask())
    assert next(call) == b"x"
    call.cancel()
    assert code_of(lambda: list(c.stream_stream("/t/keep")(ask(), timeout=0.3)))[0] == grpc.StatusCode.DEADLINE_EXCEEDED
    n = s.wait_count("both to be gone", lambda n: n["opened"] == n["gone"] + 1 and n)
    assert n["held"] == 0 and n["resets"] == 2
    never.set()


def test_a_connection_that_is_lost_ends_its_calls(start):
    s = start()
    raw = Raw(s.port)
    for i in range(50):
        raw.call(2 * i + 1, b"/t/keep")
        raw.send(DATA, 0, 2 * i + 1, message(b"x" * 100) + message(b"y" * 100)[:50])
    s.wait_count("its bytes", lambda n: n["held"] == 50 * 150)
    raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raw.socket.close()
    s.wait_count("their ends", lambda n: n["opened"] == n["gone"] + 1 and n["held"] == 0)


def test_the_server_closes_at_once(start):
    s = start()
    raw = Raw(s.port)
    for i in range(50):
        raw.call(2 * i + 1, b"/t/keep")
        raw.send(DATA, 0, 2 * i + 1, message(b"x" * 100))
    s.wait_count("its bytes", lambda n: n["held"] == 5000)
    s.stop(signal.SIGUSR1)
    assert raw.ends()


# ---- what is not gRPC --------------------------------------------------------------------------------------


def test_a_compressed_message_is_refused(start):
    s = start()
    c = s.channel()
    call = c.unary_unary("/t/echo")
    assert code_of(lambda: call(b"a" * 1000, compression=grpc.Compression.Gzip))[0] == grpc.StatusCode.UNIMPLEMENTED
    assert call(b"a") == b"a" and s.count()["protocol_errors"] == 1


def trailers_of(raw, stream):
    while True:
        kind, flags, at, body = raw.next()
        if kind == HEADERS and at == stream and flags & END_STREAM:
            return body


@pytest.mark.parametrize("bytes_sent, status", [
    (struct.pack("!BI", 0, 0xFFFFFFFF) + b"x", b"8"), (struct.pack("!BI", 0, (64 << 20) + 1), b"8"), (message(b"x", flag=1), b"12"),
    (message(b"x", flag=2), b"13"), (message(b"x", flag=255), b"13"), (message(b"whole") + message(b"cut off")[:7], b"13"), (b"\0\0", b"13")])
def test_what_is_no_message_ends_its_call_alone(start, bytes_sent, status):
    s = start()
    raw = Raw(s.port)
    raw.call(1, b"/t/echo")
    raw.call(3, b"/t/echo")
    raw.send(DATA, END_STREAM, 1, bytes_sent)
    assert status in trailers_of(raw, 1)
    raw.send(DATA, END_STREAM, 3, message(b"fine"))
    assert message(b"fine") == raw.until(DATA, stream=3)
    n = s.wait_count("the ends", lambda n: n["opened"] == n["gone"] + 1 and n)
    assert n["refused"] + n["protocol_errors"] == 1


def test_what_follows_a_refused_message_is_dropped(start):
    s = start()
    raw = Raw(s.port)
    raw.call(1, b"/t/keep")
    raw.send(DATA, 0, 1, message(b"x", flag=7) + message(b"y") * 100)
    assert raw.until(RST_STREAM, stream=1) == bytes(4)  # NO_ERROR, behind the status
    assert s.count()["held"] == 0


@pytest.mark.parametrize("how", [{"content_type": b"application/json"}, {"method": b"GET"}])
def test_a_request_that_is_no_call_is_answered_by_http(start, how):
    s = start()
    raw = Raw(s.port)
    raw.call(1, b"/t/echo", end=True, **how)
    raw.until(HEADERS, stream=1)
    assert s.count()["opened"] == 1


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01" + b"x" * 100, PREFACE + b"x" * 100,
                                  PREFACE + Raw.frame(SETTINGS, 0, 0, b"12345"), PREFACE + Raw.frame(SETTINGS, 0, 0) + Raw.frame(DATA, 0, 1, b"x"),
                                  PREFACE + Raw.frame(SETTINGS, 0, 0) + Raw.frame(HEADERS, END_HEADERS, 1, b"\xff" * 50),
                                  PREFACE + Raw.frame(SETTINGS, 0, 0) + Raw.frame(WINDOW_UPDATE, 0, 0, bytes(4))])
def test_garbage_ends_its_connection_alone(start, sent):
    s = start()
    c = s.channel()
    assert c.unary_unary("/t/echo")(b"x") == b"x"
    raw = Raw(s.port, preface=None)
    raw.socket.sendall(sent)
    assert raw.ends()
    assert c.unary_unary("/t/echo")(b"y") == b"y" and s.count()["protocol_errors"] == 1


def test_many_pings_are_answered_and_those_that_nobody_reads_end_the_connection(start):
    s = start()
    raw = Raw(s.port)
    for i in range(500):
        raw.send(PING, 0, 0, struct.pack("!Q", i))
    for i in range(500):
        while True:
            kind, flags, _, body = raw.next()
            if kind == PING:
                break
        assert flags & ACK and body == struct.pack("!Q", i)


# ---- limits ------------------------------------------------------------------------------------------------


def test_calls_beyond_their_number_are_refused(start):
    s = start(streams_max=10)
    raws = [Raw(s.port), Raw(s.port)]
    for i in range(10):
        raws[i % 2].call(2 * i + 1, b"/t/echo")
    wait_for("all to be open", lambda: connections_see(raws[0], 10))
    raws[0].call(101, b"/t/echo")
    assert raws[0].until(RST_STREAM, stream=101) == struct.pack("!I", 7)  # REFUSED_STREAM
    raws[1].send(DATA, END_STREAM, 3, message(b"x"))
    assert raws[1].until(DATA, stream=3) == message(b"x")
    assert s.count()["refused"] == 1
    assert "no more than 10 calls at once" in s.stop()


def connections_see(raw, n):
    """A PING's answer comes when what was sent before is taken; of the other connection nothing is known, so each has its turn."""
    raw.send(PING, 0, 0, bytes(8))
    while True:
        kind, flags, _, _ = raw.next()
        if kind == PING and flags & ACK:
            return n


def test_connections_beyond_their_number(start):
    """One without a call gives way; where each has one the new one is closed."""
    s = start(connections_max=2)
    busy, idle = Raw(s.port), Raw(s.port)
    busy.call(1, b"/t/echo")
    assert connections_see(busy, True) and connections_see(idle, True)
    second = Raw(s.port)
    assert idle.ends()
    second.call(1, b"/t/echo")
    assert connections_see(second, True)
    assert Raw(s.port).ends()
    busy.send(DATA, END_STREAM, 1, message(b"x"))
    assert busy.until(DATA) == message(b"x")
    assert s.count()["refused"] == 3  # who asks is one, too
    assert "no more than 2 connections" in s.stop()


def test_whoever_does_not_begin_is_closed(start):
    s = start(handshake_timeout_s=0.1)
    silent, half = Raw(s.port, preface=None), Raw(s.port, preface=None)
    half.socket.sendall(PREFACE[:10])
    fine = Raw(s.port)
    assert silent.ends() and half.ends()
    fine.call(1, b"/t/echo")
    fine.send(DATA, END_STREAM, 1, message(b"x"))
    assert fine.until(DATA) == message(b"x")
    assert s.count()["timeouts"] == 2


def test_whoever_takes_no_answer_is_cut_off(start):
    """One that gives no window, one that does not read its socket."""
    s = start(write_timeout_s=0.2)
    closed = Raw(s.port, settings=struct.pack("!HI", 4, 0))
    closed.call(1, b"/t/flood")
    closed.send(DATA, 0, 1, message(b"1000000"))
    assert closed.until(RST_STREAM, stream=1) == struct.pack("!I", 8)
    deaf = Raw(s.port, settings=struct.pack("!HI", 4, 1 << 30))
    deaf.send(WINDOW_UPDATE, 0, 0, struct.pack("!I", 1 << 30))
    deaf.call(1, b"/t/flood")
    deaf.send(DATA, 0, 1, message(b"60000000"))
    n = s.wait_count("the one that does not read", lambda n: n["connections"] == 2 and n)
    assert n["timeouts"] == 2 and n["held"] == 0


def test_what_waits_to_be_sent_is_limited(start):
    s = start(write_max=1 << 20)
    raw = Raw(s.port)
    raw.call(1, b"/t/flood")
    raw.send(DATA, 0, 1, message(b"2000000"))
    assert raw.until(RST_STREAM, stream=1) == struct.pack("!I", 11)  # ENHANCE_YOUR_CALM
    assert s.count()["refused"] == 1


def test_memory_that_is_used_up_makes_clients_wait_and_fails_nobody(start):
    """Twenty bodies of 4 MiB with room for 8: each is kept until it is whole, so some must be let through one by one, and they are. A call
    that holds nothing runs on beside them."""
    s = start(memory_max=8 << 20)
    bodies = s.channel()
    call = bodies.stream_unary("/t/keep")
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        waiting = [pool.submit(lambda: call(iter([b"x" * 65536] * 64), timeout=200 * SLOW)) for _ in range(20)]
        s.wait_count("the memory to be used up", lambda n: n["windows_closed"])
        beside = s.channel().stream_stream("/t/echo")
        assert sum(map(len, beside(iter([b"y" * 10000] * 100)))) == 1000000
        assert {w.result() for w in waiting} == {b"%d" % (4 << 20)}
    n = s.count()
    assert n["held"] == 0 and n["held_shared"] == 0 and n["refused"] == 0 and n["resets"] == 0


# ---- the end -----------------------------------------------------------------------------------------------


def test_drain_lets_calls_run_and_takes_no_new_ones(start):
    s = start()
    c = s.channel()
    go_on = threading.Event()

    def ask():
        yield b"x"
        go_on.wait()
        yield b"y"

    call = c.stream_stream("/t/echo")(ask())
    assert next(call) == b"x"
    idle = Raw(s.port)
    connections_see(idle, True)
    s.process.send_signal(signal.SIGTERM)
    assert struct.unpack("!II", idle.until(GOAWAY)[:8]) == (0x7FFFFFFF, 0)
    ping = idle.until(PING)
    idle.call(1, b"/t/echo")  # on its way when the client had not seen it yet
    idle.send(PING, ACK, 0, ping)
    assert struct.unpack("!II", idle.until(GOAWAY)[:8]) == (1, 0)
    idle.send(DATA, END_STREAM, 1, message(b"late"))
    assert idle.until(DATA, stream=1) == message(b"late")
    assert idle.ends()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", s.port))
    go_on.set()
    assert list(call) == [b"y"]
    s.stop(0)  # it ends by itself; a true signal would disturb its search for leaks


def test_a_connection_that_is_old_is_told_to_go_and_loses_nothing(start):
    s = start(connection_age_s=0.05)
    call = s.channel().unary_unary("/t/echo")
    until = time.monotonic() + 60 * SLOW
    while s.count()["goaways"] < 3 and time.monotonic() < until:
        for i in range(20):
            assert call(str(i).encode(), wait_for_ready=True) == str(i).encode()
    assert s.count()["goaways"] >= 3


# ---- TLS ---------------------------------------------------------------------------------------------------


def client_context(*protocols):
    c = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    c.check_hostname, c.verify_mode = False, ssl.CERT_NONE
    if protocols:
        c.set_alpn_protocols(protocols)
    return c


def test_tls_with_a_certificate_of_its_own(start):
    s = start(tls=1)
    raw = Raw(s.port, tls=client_context("http/1.1", "h2"))
    assert raw.socket.selected_alpn_protocol() == "h2" and raw.socket.version() == "TLSv1.3"
    raw.call(1, b"/t/echo")
    raw.send(DATA, END_STREAM, 1, message(b"x" * 10000))
    assert raw.until(DATA) == message(b"x" * 10000)
    trusted = ssl.DER_cert_to_PEM_cert(raw.socket.getpeercert(True)).encode()
    options = [("grpc.ssl_target_name_override", "kvroute")]
    with grpc.secure_channel(f"127.0.0.1:{s.port}", grpc.ssl_channel_credentials(trusted), options=options) as c:
        assert sum(map(len, c.stream_stream("/t/echo")(iter([b"z" * 100000] * 20)))) == 2000000
        assert json.loads(c.unary_unary("/t/count")(b""))["handshakes_failed"] == 0


def test_tls_without_h2_is_refused(start):
    s = start(tls=1)
    with pytest.raises(OSError):
        Raw(s.port, tls=client_context("http/1.1"))
    without = Raw(s.port, preface=None, tls=client_context())  # who has no ALPN at all finds out after the handshake
    assert without.ends()
    plain = Raw(s.port)
    assert plain.ends()
    raw = Raw(s.port, tls=client_context("h2"))
    raw.call(1, b"/t/count")
    raw.send(DATA, END_STREAM, 1, message(b""))
    assert json.loads(raw.until(DATA)[5:])["handshakes_failed"] == 3
    assert "a client began without TLS" in s.stop()


def test_tls_where_none_is_spoken_is_told(start):
    s = start()
    with pytest.raises(OSError):
        Raw(s.port, tls=client_context("h2"))
    assert s.count()["protocol_errors"] == 1
    assert "with TLS; this port speaks none" in s.stop()
