# SPDX-License-Identifier: Apache-2.0
"""The only worker is removed while a request is somewhere on its way: the request is answered, and the router goes on."""
import http.client
import json
import threading

import pytest
from conftest import Mock, Serve, call, free_ports, read_sse, stays, wait_for
from http_parts import Handler, HttpServer
from test_large_bodies import numbers, upload
from test_proxy import upstream  # noqa: F401 (fixture)
from test_queue import busy_serve, occupy

PROMPT = [7] * 64
SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
BUSY = b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"


def plain(body):
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


OK = plain(b'{"choices":[],"usage":{"prompt_tokens":64,"completion_tokens":1}}')
TOKENS = plain(b'{"tokens":%s}' % numbers(64))


class Story:
    """A router and its only worker, whose answers are told one after the other. A step may remove the worker before it answers."""

    def __init__(self, start, upstream, *options):
        self.steps, self.worker = [], upstream(self.answer)
        self.s = start(Serve, [self.worker.spec()], "--no-router-kv-events", "--queue-timeout", 30, *options)

    def answer(self, n):
        step = self.steps.pop(0)
        return step() if callable(step) else step

    def remove(self):
        assert call(self.s.admin, "DELETE", "/workers/1").status == 200

    def removed_then(self, answer):
        def step():
            self.remove()
            return answer
        return step

    def come_back(self):
        assert self.s.post("/workers", {"worker_id": 1, "endpoint": self.worker.spec()}).status in (200, 201)

    def waits(self):
        wait_for("waiting for a worker", lambda: self.s.metric("requests_without_worker") == 1)

    def ask(self, **body):
        """Posts on a thread. Returns: what waits for the answer."""
        out = []
        t = threading.Thread(target=lambda: out.append(self.s.complete(body.pop("prompt", PROMPT), **body)))
        t.start()

        def answer():
            t.join()
            return out[0]
        return answer

    def still_serves(self):
        self.steps[:] = [OK]
        assert self.s.complete(PROMPT).status == 200
        wait_for("no load booked", self.s.idle)


@pytest.mark.parametrize("mode", ["kv", "round-robin"])
@pytest.mark.parametrize("answer", [BUSY, None], ids=["refuses", "breaks off"])
def test_a_worker_that_fails_a_request_and_was_removed_meanwhile_crashed_the_router(start, upstream, answer, mode):
    story = Story(start, upstream, "--router-mode", mode)
    story.steps = [story.removed_then(answer)]
    r = story.s.complete(PROMPT)
    assert r.status == (503 if answer else 502) and "failed on 1 worker(s)" in r.json()["error"]["message"]
    wait_for("recorded", lambda: [(d["worker_id"], d["status"]) for d in story.s.get("/decisions")] == [(1, r.status)])
    story.come_back()
    story.still_serves()


def test_a_worker_removed_before_its_answer_still_answers(start, upstream):
    story = Story(start, upstream)
    story.steps = [story.removed_then(OK)]
    assert story.s.complete(PROMPT).status == 200
    assert story.s.get("/workers") == []
    story.come_back()
    story.still_serves()


@pytest.mark.parametrize("whole", [True, False], ids=["ends", "breaks off"])
def test_a_worker_removed_in_the_middle_of_a_stream(start, upstream, whole):
    story = Story(start, upstream)
    event = b'data: {"choices":[{"text":"a"}]}\n\n'
    story.steps = [[SSE + event, story.remove, event, b"data: [DONE]\n\n" if whole else b'data: {"cho']]
    if not whole:
        story.steps = [[b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
                        b"%x\r\n%s\r\n" % (len(event), event), story.remove, b"9\r\ndata: {"]]
    c, r = read_sse(story.s.port, {"prompt": PROMPT, "max_tokens": 9, "stream": True})
    text = r.read()
    c.close()
    assert text.startswith(event) and (text.endswith(b"[DONE]\n\n") if whole else b"broke off the answer" in text)
    story.come_back()
    story.still_serves()


@pytest.mark.parametrize("answer", [TOKENS, plain(b"{}"), None], ids=["tokens", "no tokens", "breaks off"])
def test_a_worker_removed_while_it_tokenizes(start, upstream, answer):
    story = Story(start, upstream, "--tokenizer", "engine")
    story.steps = [story.removed_then(answer), OK]
    answered = story.ask(prompt="a text")
    story.waits()
    story.come_back()
    r = answered()
    assert r.status == 200 and r.headers["x-kvroute-reason"] == ("load" if answer == TOKENS else "load-tokenize-failed")
    story.still_serves()


def test_a_worker_removed_between_two_questions_for_the_tokens_of_a_truncated_prompt(start, upstream):
    """The second question finds nobody to ask, and the request must not go on with a number of tokens that are not there."""
    story = Story(start, upstream, "--tokenizer", "engine")
    story.steps = [story.removed_then(TOKENS), OK]
    answered = story.ask(prompt="a text", truncate_prompt_tokens=20)
    story.waits()
    story.come_back()
    assert answered().status == 200
    story.still_serves()


def test_a_worker_removed_while_the_place_of_an_image_is_asked_for(start, upstream):
    story = Story(start, upstream, "--tokenizer", "engine")
    story.steps = [story.removed_then(TOKENS), OK]
    parts = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "http://h/i.png"}}]
    out = []
    t = threading.Thread(target=lambda: out.append(call(story.s.port, "POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": parts}]})))
    t.start()
    story.waits()
    story.come_back()
    t.join()
    assert out[0].status == 200
    story.still_serves()


class Between(HttpServer):
    """Forwards questions to an index; `before` is called with the path of each first."""

    def __init__(self, port, before):
        class Answers(Handler):
            def do_GET(self):
                before(self.path)
                kind = {k: v for k, v in self.headers.items() if k.lower() == "content-type"}
                r = call(port, self.command, self.path, self.body() or None, kind)
                self.answer(r.status, r.body, r.headers["content-type"])
            do_POST = do_GET
        super().__init__(Answers)


def test_a_worker_removed_while_an_index_elsewhere_is_asked(start):
    m = start(Mock)
    owner = start(Serve, [m], "--serve-indexer")
    asked, consumers = [], []

    def before(path):
        if "query" in path:
            asked.append(path)
            assert call(consumers[0].admin, "DELETE", "/workers/1").status == 200
    between = Between(owner.admin, before)
    try:
        s = start(Serve, [f"http://127.0.0.1:{m.port}"], "--use-remote-indexer", between.url, "--queue-timeout", 30)
        consumers.append(s)
        out = []
        t = threading.Thread(target=lambda: out.append(s.complete(PROMPT)))
        t.start()
        wait_for("waiting for a worker", lambda: s.metric("requests_without_worker") == 1)
        assert asked
        assert s.post("/workers", {"worker_id": 1, "endpoint": f"http://127.0.0.1:{m.port}"}).status in (200, 201)
        t.join()
        assert out[0].status == 200
        wait_for("no load booked", s.idle)
    finally:
        between.close()


def test_a_worker_removed_while_requests_wait_for_one(start, upstream):
    story = Story(start, upstream)
    story.remove()
    answered = story.ask()
    story.waits()
    c = http.client.HTTPConnection("127.0.0.1", story.s.port)
    c.request("POST", "/v1/completions", json.dumps({"prompt": PROMPT}))
    wait_for("two wait", lambda: story.s.metric("requests_without_worker") == 2)
    c.close()
    wait_for("one has left", lambda: story.s.metric("requests_without_worker") == 1 == story.s.metric("client_gone_total"))
    story.steps = [OK]
    story.come_back()
    assert answered().status == 200
    story.still_serves()


def test_a_worker_removed_while_requests_wait_in_the_queue(start):
    s = busy_serve(start, "--router-queue-threshold", 0, "--queue-timeout", 60)
    held = occupy(s)
    waiting = [http.client.HTTPConnection("127.0.0.1", s.port, timeout=60) for _ in range(3)]
    for i, c in enumerate(waiting):
        c.request("POST", "/v1/completions", json.dumps({"prompt": [i + 50] * 64, "max_tokens": 1}))
    wait_for("queued", lambda: s.metric("router_queue_pending_requests") == 3)
    waiting.pop().close()  # its place is given up, with the worker or without
    assert call(s.admin, "DELETE", "/workers/1").status == 200
    wait_for("waiting for a worker", lambda: s.metric("requests_without_worker") + s.metric("router_queue_pending_requests") == 2)
    m = start(Mock)
    assert s.post("/workers", {"worker_id": 2, "endpoint": f"http://127.0.0.1:{m.port}"}).status in (200, 201)
    assert [c.getresponse().status for c in waiting] == [200, 200]
    for c in held + waiting:
        c.close()
    wait_for("no load booked", s.idle)


def test_a_worker_removed_while_bodies_are_read_and_prompts_hashed(start, upstream):
    """On threads: wherever the removal meets them."""
    m = start(Mock, with_events=False)
    s = start(Serve, [m], "--no-router-kv-events", "--max-prompt-tokens", 2 << 20)
    body = b'{"model":"mock","max_tokens":1,"prompt":' + numbers(300 << 10) + b"}"
    for _ in range(4):
        asked = [upload(s.port, "/v1/completions", body) for _ in range(3)]
        assert call(s.admin, "DELETE", "/workers/1").status == 200
        asked.pop().close()
        assert s.post("/workers", {"worker_id": 1, "endpoint": f"http://127.0.0.1:{m.port}"}).status in (200, 201)
        for c in asked:
            assert c.recv(64).startswith(b"HTTP/1.1 ")
            c.close()
    wait_for("no load booked", s.idle)
    assert s.complete("still here").status == 200


@pytest.mark.parametrize("path, says", [("/v1/models", {"data": [{"id": "old"}]}), ("/metrics", b'vllm:cache_config_info{block_size="64",num_gpu_blocks="77"} 1.0\n')], ids=["models", "metrics"])
def test_what_an_engine_answered_late_was_believed_of_the_one_that_has_its_id_now(start, path, says):
    asked, free, over = threading.Event(), threading.Event(), threading.Event()

    class Late(Handler):
        def do_GET(self):
            if self.path == path:
                asked.set()
                free.wait(60)
                try:
                    self.answer(200, says)
                finally:  # nobody may listen any more
                    over.set()
            else:
                self.answer(200, {"data": []})
    old, m = HttpServer(Late), start(Mock)
    s = start(Serve, [f"{old.url},id=1"], "--health-interval", 60, ready=False)
    assert asked.wait(60)
    assert s.post("/workers", {"worker_id": 1, "endpoint": m.spec().split(",")[0]}).status == 201
    models = lambda: [x["id"] for x in call(s.port, "GET", "/v1/models").json()["data"]]  # noqa: E731
    wait_for("its models", lambda: models() == ["mock"])
    if path == "/v1/models":
        wait_for("what it says", lambda: "16384 blocks" in s.text())
    free.set()
    assert over.wait(60)
    stays("its own", lambda: models() == ["mock"] and "77 blocks" not in s.text(), 0.5)
    old.close()
