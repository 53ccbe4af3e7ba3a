# SPDX-License-Identifier: Apache-2.0
"""Large bodies: other requests are answered meanwhile, what a prompt may be is limited, and memory comes back."""
import json
import random
import select
import socket
import threading

import pytest
from conftest import SLOW, Indexer, Mock, Select, Serve, call, wait_for
from http_parts import Handler, HttpServer
from test_proxy import upstream  # noqa: F401

MIB = 1 << 20


def numbers(n):
    return b"[" + b",".join([b"7"] * n) + b"]"


def upload(port, path, body, but=0):
    """A connection over which all of a request has left but for its last bytes."""
    s = socket.create_connection(("127.0.0.1", port), timeout=60 * SLOW)
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    s.sendall(head + (body[:-but] if but else body))
    return s


def answers_meanwhile(port, path, body):
    """Is /health answered before a large body is, although it was asked later? In some of the tries there is time for that."""
    for _ in range(20):
        large = upload(port, path, body, but=1)
        small = socket.create_connection(("127.0.0.1", port), timeout=60 * SLOW)
        ask = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        small.sendall(ask)  # it lives, and is idle
        assert small.recv(4096).startswith(b"HTTP/1.1 200")
        large.sendall(body[-1:])
        small.sendall(ask)
        readable, _, _ = select.select([large, small], [], [], 60 * SLOW)
        status = large.recv(4096).split(b" ")[1]
        assert status == b"400", status  # what is wrong with it comes last
        large.close()
        small.close()
        if readable == [small]:
            return True
    return False


def test_health_is_answered_while_a_large_body_is_read(start):
    s = start(Serve, [], ready=False)
    assert answers_meanwhile(s.port, "/v1/completions", b'{"prompt":' + numbers(4 * MIB) + b"}}")
    s2 = start(Select)
    s2.worker(1)
    assert answers_meanwhile(s2.port, "/select", b'{"token_ids":' + numbers(4 * MIB) + b"}}")
    i = start(Indexer, "--threads", 1)
    assert answers_meanwhile(i.port, "/query", b'{"model_name":"m","token_ids":' + numbers(3 * MIB) + b"}}")


def test_clients_that_leave_while_their_body_is_read_are_counted(start):
    """What is told of a request that has ended is read when the thread that reads its body has written the last of it."""
    m = start(Mock, with_events=False)
    s = start(Serve, [m], "--no-router-kv-events")
    body = b'{"model":"mock","max_tokens":1,"prompt":' + numbers(MIB) + b"}"
    for _ in range(12):
        upload(s.port, "/v1/completions", body).close()
    wait_for("all have ended", lambda: s.metric("requests_total") == 12)
    assert s.metric("client_gone_total") > 0
    assert s.complete("x").status == 200


def test_prompts_have_limits_and_the_answer_names_them(start):
    m = start(Mock, with_events=False)
    s = start(Serve, [m], "--no-router-kv-events", "--max-prompt-tokens", 1000, "--max-messages", 50, "--max-prompt-text", 2000)

    def error(path, body):
        r = call(s.port, "POST", path, body)
        e = r.json()["error"]
        assert r.status == 413 and e["type"] == "invalid_request_error" and e["code"] == 413, r.body
        return e["message"]
    assert s.complete([1] * 1000, max_tokens=1).status == 200
    assert "more than 1000 tokens, which is --max-prompt-tokens" in error("/v1/completions", {"prompt": [1] * 1001})
    assert "more than 1000 tokens" in error("/v1/completions", {"prompt": [[1] * 1001]})
    assert "more than 1000 tokens" in error("/v1/chat/completions", {"messages": [], "nvext": {"token_data": [1] * 1001}})
    assert "more than 1000 tokens" in error("/generate", {"input_ids": [1] * 1001})
    messages = [{"role": "user", "content": "a"}] * 50
    assert call(s.port, "POST", "/v1/chat/completions", {"messages": messages, "max_tokens": 1}).status == 200
    assert "more than 50 entries, which is --max-messages" in error("/v1/chat/completions", {"messages": messages + messages[:1]})
    assert s.complete("a" * 2000, max_tokens=1).status == 200
    assert "more than 2000 bytes, which is --max-prompt-text" in error("/v1/completions", {"prompt": "a" * 2001})
    assert "more than 2000 bytes" in error("/v1/chat/completions", {"messages": [{"content": "a" * 100}] * 30})
    assert "--max-prompt-text" in error("/v1/completions", {"prompt": "b" * (MIB // 2)})  # read on a thread
    assert s.metric("prompt_tokens_refused_total") == 4 and s.metric("prompt_messages_refused_total") == 1
    assert s.metric("prompt_texts_refused_total") == 3
    wait_for("no load booked", s.idle)


def test_questions_have_the_same_limit(start):
    s = start(Select, "--max-prompt-tokens", 1000)
    s.worker(1)
    for path in ("/select", "/select_and_reserve", "/overlap_scores", "/potential_loads", "/query"):
        e = s.ask(path, {"token_ids": [1] * 1001}, 413)["error"]
        assert "token_ids" in e and "1000" in e and "--max-prompt-tokens" in e
    e = s.ask("/select", {"block_hashes": [1] * 1001, "isl_tokens": 4004}, 413)["error"]
    assert "block_hashes" in e and "--max-prompt-tokens" in e
    assert s.metric("prompt_tokens_refused_total") == 6
    wait_for("no load booked", s.idle)
    i = start(Indexer, "--max-prompt-tokens", 1000)
    e = i.post("/query", {"model_name": "m", "token_ids": [1] * 1001}, 413)["error"]
    assert "token_ids" in e and "1000" in e and "--max-prompt-tokens" in e
    assert "block_hashes" in i.post("/query_by_hash", {"model_name": "m", "block_hashes": [1] * 1001}, 413)["error"]
    assert i.metric("kvroute_indexer_prompts_refused_total") == 2


class Tokenizer(HttpServer):
    """A worker that answers completions, and /tokenize with what it is told."""

    def __init__(self):
        self.tokens, me = [], self

        class Answers(Handler):
            def do_GET(self):
                self.answer(200, {"data": []})

            def do_POST(self):
                self.body()
                self.answer(200, b'{"tokens":%s}' % me.tokens if self.path == "/tokenize" else b'{"choices":[]}')
        super().__init__(Answers)


@pytest.fixture
def tokenizer():
    t = Tokenizer()
    yield t
    t.close()


def test_a_worker_that_makes_too_many_tokens_is_not_believed(start, tokenizer):
    s = start(Serve, [tokenizer.url], "--tokenizer", "engine", "--no-router-kv-events", "--max-prompt-tokens", 300000, "--max-body-size", "2MiB")

    def reason(n):
        tokenizer.tokens = numbers(n)
        r = s.complete(f"prompt {n}")
        assert r.status == 200
        return r.headers["x-kvroute-reason"]
    assert reason(1000) == "load"
    assert reason(300000) == "kv"  # read on a thread
    assert reason(300001) == "load-tokenize-failed"
    assert reason(4 * MIB) == "load-tokenize-failed"  # longer than a body may be
    assert s.metric("tokenize_failures_total") == 2
    wait_for("no load booked", s.idle)


def test_a_client_that_leaves_while_its_body_is_read_leaves_nothing_behind(start):
    m = start(Mock, with_events=False)
    s = start(Serve, [m], "--no-router-kv-events")
    body = b'{"prompt":' + numbers(2 * MIB) + b"}"
    for _ in range(3):
        gone = [upload(s.port, "/v1/completions", body) for _ in range(4)]
        for g in gone:
            g.close()
    wait_for("nothing in flight", lambda: s.metric("client_gone_total") == s.metric("requests_total") and s.idle())
    assert s.complete("still here").status == 200
    s2, i = start(Select), start(Indexer, "--threads", 1)
    s2.worker(1)
    for port, path in ((s2.port, "/select"), (i.port, "/query")):
        for g in [upload(port, path, body.replace(b"prompt", b"token_ids")) for _ in range(4)]:
            g.close()
    assert s2.ask("/select", {"token_ids": [1] * 8})["worker_id"] == 1 and s2.idle()
    i.post("/query", {"model_name": "m", "token_ids": [1]}, 404)


def rss_settles(p, limit_kb):
    wait_for(f"at most {limit_kb} kB", lambda: p.rss_kb() <= limit_kb)


def test_the_memory_of_large_bodies_comes_back(start):
    m = start(Mock, with_events=False)
    s = start(Serve, [m], "--no-router-kv-events")
    i = start(Indexer, "--threads", 1)
    large, small = b'{"model_name":"m","prompt":' + numbers(2 * MIB) + b"}", b'{"model_name":"m","token_ids":[1]}'
    j = {"Content-Type": "application/json"}
    call(s.port, "POST", "/v1/completions", b'{"prompt":[')  # whatever it keeps for small ones is there
    assert call(i.port, "POST", "/query", small, j).status == 404
    before = s.rss_kb(), i.rss_kb()
    for _ in range(3):
        assert call(s.port, "POST", "/v1/completions", large[:-2] + b",8]x").status == 400
        assert call(i.port, "POST", "/query", large.replace(b"prompt", b"token_ids"), j).status in (404, 413)
    rss_settles(s, before[0] + 24 * 1024)  # the sanitizer keeps 8 MiB of freed memory, and its own accounts
    rss_settles(i, before[1] + 24 * 1024)


def test_memory_of_a_body_is_kept_for_the_next_one_and_given_back_when_none_comes(start):
    s = start(Serve, [start(Mock, with_events=False)], "--router-mode", "round-robin", "--threads", 1)
    body = b'{"max_tokens":1,"prompt":' + numbers(20 * 1024) + b"}"
    spare = lambda: s.metric("http_request_bodies_spare_bytes", port="data")

    def kept_after_one():
        assert call(s.port, "POST", "/v1/completions", body).status == 200
        return spare()
    one = wait_for("memory that is kept", kept_after_one)
    assert len(body) <= one < 4 * len(body)
    for _ in range(5):
        assert call(s.port, "POST", "/v1/completions", body).status == 200
    assert spare() <= one, "the same memory, again and again"
    assert s.metric("http_request_bodies_bytes", port="data") == 0, "it counts as a body while there is one in it"
    wait_for("nothing kept", lambda: spare() == 0, 30)


def test_bodies_are_passed_on_as_they_came_whatever_memory_they_are_read_into(start, upstream):
    """On one connection, one behind the other without a pause, in pieces of any size: the memory of the first is the next one's."""
    rng, u = random.Random(7), upstream()
    s = start(Serve, [u.spec()], "--router-mode", "round-robin", "--threads", 1)
    sizes = [200_000, 190_000, 200_000, 30_000, 700_000, 210_000, 70_000, 200_000, 33_000, 33_000]
    bodies = [b'{"prompt":"' + bytes(rng.choices(b"abcdefgh", k=n)) + b'"}' for n in sizes]
    head = "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
    sent = b"".join(head.format(len(b)).encode() + b for b in bodies)
    c = socket.create_connection(("127.0.0.1", s.port), timeout=60 * SLOW)

    def send():
        at = 0
        while at < len(sent):
            n = rng.choice([1, 100, 5_000, 65_536, 65_537, 300_000])
            c.sendall(sent[at:at + n])
            at += n
    writer = threading.Thread(target=send)
    writer.start()
    got = b""
    while got.count(b"HTTP/1.1 200") < len(bodies):
        piece = c.recv(65536)
        assert piece, got[-300:]
        got += piece
    writer.join()
    assert [b for _, b in u.requests] == bodies


def test_many_small_messages_are_no_large_prompt(start):
    """{"messages":[{},{},...]}: what is made of it is bounded before it is made."""
    m = start(Mock, with_events=False)
    s = start(Serve, [m], "--no-router-kv-events", "--max-messages", 10 ** 7)
    body = json.dumps({"messages": [{}] * (2 * MIB)}, separators=(",", ":"))
    before = s.rss_kb()
    r = call(s.port, "POST", "/v1/chat/completions", body)
    assert r.status == 413 and "--max-prompt-text" in r.json()["error"]["message"]
    rss_settles(s, before + 32 * 1024)
