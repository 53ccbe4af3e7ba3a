# SPDX-License-Identifier: Apache-2.0
"""Recorded streams of real engines and of their publishers (tests/vectors/engines, made by scripts/engines/record.py), sent again byte by byte.

A scripted worker gives the recorded answers; before each request the events come that had come then. What the router predicts at that
moment must be what the engine said it reused, request by request, and every view must be whole at the end."""
import glob
import json
import os

import pytest

from conftest import Engine, Serve, call, free_ports, wait_for
from http_parts import Handler, HttpServer

VECTORS = sorted(glob.glob(os.path.join(os.path.dirname(__file__), "../vectors/engines/*.jsonl")))


def read(path):
    with open(path, encoding="utf-8") as f:
        head, *lines = map(json.loads, f)
    return head, lines


class RecordedWorker(HttpServer):
    """Answers with what was recorded: `now` is the request's line. What a router may ask besides, it does not have."""

    def __init__(self):
        self.now = None
        worker = self

        class Answers(Handler):
            def do_GET(self):
                if self.path == "/health":
                    self.answer(200, b"")
                elif self.path == "/v1/models":
                    self.answer(200, {"object": "list", "data": [{"id": "tiny", "object": "model", "max_model_len": 2048, "parent": None},
                                                                 {"id": "ad1", "object": "model", "parent": "tiny"}]})
                else:
                    self.answer(404, b"{}")

            def do_POST(self):
                self.body()
                line = worker.now
                if self.path == "/tokenize":
                    tokens = line.get("tokens") or []
                    self.answer(200, {"count": len(tokens), "max_model_len": 2048, "tokens": tokens})
                else:
                    self.answer(line["status"], line["answer"].encode(), line["type"])
        super().__init__(Answers)


class Replayed:
    """A router in front of a recorded engine, and the engine's streams."""

    def __init__(self, head, worker, zctx, start):
        self.worker, self.block = worker, head["block_size"]
        events, replay = free_ports(head["ranks"]), free_ports(head["ranks"])
        self.streams = [Engine(zctx, events=events + r, replay=replay + r) for r in range(head["ranks"])]
        spec = (f"http://127.0.0.1:{worker.port},block-size={self.block},dp-size={head['ranks']},"
                f"events=tcp://127.0.0.1:{events},replay=tcp://127.0.0.1:{replay}")
        self.serve = start(Serve, [spec], ready=False)
        self.until("views", lambda: all(self.view(r).get("trusted") for r in range(head["ranks"])), 20)

    def view(self, rank):
        return self.serve.view(rank=rank)

    def until(self, what, check, timeout=10):
        def step():
            for e in self.streams:
                e.serve_replay(0)
            return check()
        wait_for(what, step, timeout)

    def publish(self, line):
        topic, seq, payload = map(bytes.fromhex, line["frames"])
        e = self.streams[line["rank"]]
        e.seq = int.from_bytes(seq, "big")
        e.sent.append((e.seq, payload))
        e.pub.send_multipart([topic, seq, payload])

    def settle(self):
        self.until("the events", lambda: all(self.view(r).get("next_sequence", 0) > e.sent[-1][0] for r, e in enumerate(self.streams) if e.sent))

    def request(self, line):
        """Returns the tokens that the router predicted to be cached."""
        self.worker.now = line
        a = call(self.serve.port, "POST", line["path"], line["body"], {"x-kvroute-worker": "1", "x-kvroute-dp-rank": str(line["rank"])})
        assert a.status == line["status"], (a.status, a.body)
        assert a.body.decode() == line["answer"]
        most = (line.get("prompt_tokens", 1) - 1) // self.block * self.block  # an engine computes at least one token
        return min(int(a.headers.get("x-kvroute-overlap-blocks", 0)) * self.block, most)

    def ask(self, line):
        q = dict(line["question"])
        return self.serve.overlap(q.pop("token_ids"), **q).get((1, 0))

    def close(self):
        for e in self.streams:
            e.close()


@pytest.fixture
def replayed(zctx, start):
    made = []

    def make(head):
        worker = RecordedWorker()
        made.append(worker)
        made.append(Replayed(head, worker, zctx, start))
        return made[-1]
    yield make
    for x in reversed(made):
        x.close()


def short(line):
    body = {k: (v if len(str(v)) < 60 else str(v)[:40] + "...") for k, v in line["body"].items()}
    return f"{line['path']} {body}"


def test_there_are_vectors():
    assert len(VECTORS) >= 9


@pytest.mark.parametrize("path", VECTORS, ids=lambda p: os.path.basename(p)[:-6])
def test_predictions_are_what_the_engine_reported(path, replayed):
    head, lines = read(path)
    r = replayed(head)
    wrong, hits = [], 0
    for n, line in enumerate(lines):
        if line["kind"] == "frames":
            r.publish(line)
            continue
        r.settle()
        if line["kind"] == "ask":
            hits += line["blocks"]
            if r.ask(line) != line["blocks"]:
                wrong.append(f"line {n + 2}: {r.ask(line)} blocks instead of {line['blocks']}: {line['question']}")
            continue
        got = r.request(line)
        if line["predict"] and got != line["cached_tokens"]:
            wrong.append(f"line {n + 2}: predicted {got}, the engine had {line['cached_tokens']} of {line['prompt_tokens']}: {short(line)}")
        hits += line["predict"] and line["cached_tokens"] > 0
    r.settle()
    assert not wrong, "\n".join(wrong)
    assert hits > 5
    for rank in range(head["ranks"]):
        view = r.view(rank)
        assert view["trusted"] and view.get("view", "whole") == "whole", view
