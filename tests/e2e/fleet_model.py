# SPDX-License-Identifier: Apache-2.0
"""Fake publishers with faults, and the naive model of what an indexer must answer after them."""
import random
import struct
import time

import msgpack
import zmq

BS = 4


class Held:
    """What one (worker, rank) holds: name -> (parent's name or None, tokens of the block)."""

    def __init__(self):
        self.blocks = {}

    def stored(self, names, tokens, parent):
        for i, n in enumerate(names):
            self.blocks.setdefault(n, (parent, tuple(tokens[i * BS:i * BS + BS])))
            parent = n

    def removed(self, names):
        gone = set(names)
        for n in list(self.blocks):  # parents come before their children
            if n in gone or self.blocks[n][0] in gone:
                gone.add(n)
                self.blocks.pop(n)

    def depth(self, tokens):
        at = {v: n for n, v in self.blocks.items()}
        parent, d = None, 0
        for i in range(0, len(tokens) - BS + 1, BS):
            n = at.get((parent, tuple(tokens[i:i + BS])))
            if n is None:
                break
            parent, d = n, d + 1
        return d


class Publisher:
    """One engine: its truth, its batches, its replay buffer; sends with faults when asked to."""

    def __init__(self, ctx, rng, worker, prompts, topic=False, events=None, replay=None):
        self.ctx, self.rng, self.worker, self.prompts, self.topic = ctx, rng, worker, prompts, topic
        self.pub = ctx.socket(zmq.XPUB)  # which tells of subscriptions
        self.pub.xpub_verbose = True
        self.router = ctx.socket(zmq.ROUTER)
        for s in (self.pub, self.router):
            s.linger = 0
            s.sndhwm = 0
        self.subscribed = 0
        self.events = self.pub.bind_to_random_port("tcp://127.0.0.1")
        self.replay_port = self.router.bind_to_random_port("tcp://127.0.0.1")
        self.held, self.buffer, self.seq, self.life, self.late, self.names = Held(), [], 0, 0, [], {}

    def close(self):
        self.pub.close()
        self.router.close()

    def subscriptions(self):
        """How many have come so far: what is sent before reaches nobody, though the connection is there."""
        while self.pub.poll(0, zmq.POLLIN):
            self.subscribed += self.pub.recv()[:1] == b"\x01"
        return self.subscribed

    def name(self, prompt, i):
        """One name per prefix and life: prompts that begin alike share their first blocks."""
        prefix = (self.life, tuple(self.prompts[prompt][:(i + 1) * BS]))
        return self.names.setdefault(prefix, (self.worker << 32) + len(self.names) + 1)

    def event(self):
        r, p = self.rng, self.rng.randrange(len(self.prompts))
        have = self.held.depth(self.prompts[p])
        total = len(self.prompts[p]) // BS
        if r.random() < 0.01:
            self.held = Held()
            return ["AllBlocksCleared"]
        if have and r.random() < 0.35:
            frm = r.randrange(have)
            names = [self.name(p, i) for i in range(frm, have)]
            self.held.removed(names)
            return ["BlockRemoved", list(reversed(names)), "GPU"]
        if have < total:
            to = r.randint(have + 1, total)
            names = [self.name(p, i) for i in range(have, to)]
            tokens = self.prompts[p][have * BS:to * BS]
            parent = self.name(p, have - 1) if have else None
            self.held.stored(names, tokens, parent)
            return ["BlockStored", names, parent, tokens, BS, None, "GPU", None]
        return ["Ignored"]

    def restart(self):
        """The engine process died: empty cache, empty buffer, sequences from 0."""
        self.held, self.buffer, self.seq, self.late = Held(), [], 0, []
        self.life += 1

    def send(self, seq, payload):
        self.pub.send_multipart([b"", struct.pack(">Q", seq), payload])

    def batch(self, faults=True, events=10):
        r = self.rng
        if faults and r.random() < 0.004:
            self.restart()
        payload = msgpack.packb([time.time(), [self.event() for _ in range(r.randint(1, events))], None])
        seq = self.seq
        self.seq += 1
        self.buffer.append((seq, payload))
        fault = r.random() if faults else 1
        if fault < 0.03:
            return  # lost on the way
        if fault < 0.05:
            self.late.append((seq, payload))  # overtaken by the next one
            return
        self.send(seq, payload)
        if fault < 0.07:
            self.send(seq, payload)  # twice
        for s, p in self.late:
            self.send(s, p)
        self.late = []

    def answer_replays(self):
        while self.router.poll(0):
            identity, _, start = self.router.recv_multipart()
            (start,) = struct.unpack(">Q", start)
            head = [identity, b""] + ([b""] if self.topic else [])
            for seq, payload in self.buffer:
                if seq >= start:
                    self.router.send_multipart(head + [struct.pack(">Q", seq), payload])
            self.router.send_multipart(head + [b"\xff" * 8, b""])


class Fleet:
    def __init__(self, seed, n, prompts=40, blocks=24):
        self.rng = random.Random(seed)
        self.ctx = zmq.Context()
        self.ctx.max_sockets = 4096
        system = [self.rng.randrange(1000) for _ in range(6 * BS)]
        self.prompts = []
        for _ in range(prompts):  # half of them share a beginning
            body = [self.rng.randrange(1000) for _ in range(blocks * BS)]
            self.prompts.append(system + body[len(system):] if self.rng.random() < 0.5 else body)
        self.list = [Publisher(self.ctx, self.rng, i + 1, self.prompts, topic=i % 2 == 1) for i in range(n)]

    def close(self):
        for p in self.list:
            p.close()
        self.ctx.destroy(linger=0)

    def answer_replays(self):
        for p in self.list:
            p.answer_replays()

    def run(self, batches, faults=True):
        """That many batches of every publisher, in random turns."""
        turns = [p for p in self.list for _ in range(batches)]
        self.rng.shuffle(turns)
        for i, p in enumerate(turns):
            p.batch(faults)
            if i % 20 == 0:
                self.answer_replays()
        for p in self.list if faults else []:  # a batch that is lost is missed when the next one comes
            p.batch(faults=False)

    def expected(self, tokens):
        return {(p.worker, 0): d * BS for p in self.list if (d := p.held.depth(tokens))}

    def drained(self, indexer):
        """Has the indexer applied every batch, and does it trust every view?"""
        self.answer_replays()
        ls = indexer.listeners()
        return all((l := ls.get((p.worker, 0))) and l["view"] == "whole" and l["next_sequence"] == p.seq for p in self.list)

    def check(self, indexer):
        for p in self.prompts:
            got, want = indexer.scores(p), self.expected(p)
            assert got == want, {k: (got.get(k), want.get(k)) for k in {*got, *want} if got.get(k) != want.get(k)}
