# SPDX-License-Identifier: Apache-2.0
"""An engine's own classes judge what we say of its tiers: random requests go through them, their events through test_tier_vectors, and
before each request both say what it would be served. Never more than the classes; how often and by how much less is counted."""
import os
import random
import subprocess

ROOT = os.path.dirname(os.path.abspath(__file__)) + "/../../.."
BINARY = os.environ.get("KVROUTE_TIERS", f"{ROOT}/build/release/unit/test_tier_vectors")


class Ours:
    """test_tier_vectors as a process; `record` keeps the lines, as a vector."""

    def __init__(self, block_size, record=None):
        self.p = subprocess.Popen([BINARY, "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.record = record
        self.line(f"B {block_size}")

    def line(self, text):
        self.p.stdin.write(text + "\n")
        if self.record is not None:
            self.record.append(text)

    def event(self, payload):
        self.line("E " + payload.hex())

    def ask(self, tokens):
        self.line("Q " + ",".join(map(str, tokens)))
        self.p.stdin.flush()
        answer = self.p.stdout.readline().split()
        assert answer and answer[0] == "Q", "test_tier_vectors has ended"
        return tuple(map(int, answer[1:]))

    def expect(self, device, total, less=False):
        if self.record is not None:
            self.record.append(f"= {device} {total}" + (" less" if less else ""))

    def close(self):
        self.p.stdin.close()
        assert self.p.wait(60) == 0


class Prompts:
    """A tree of prompts: of each, some go on with another one's beginning, as conversations and templates do."""

    def __init__(self, rng, block, most, tokens):
        self.rng, self.block, self.most, self.tokens, self.kept = rng, block, most, tokens, []

    def next(self):
        rng = self.rng
        base = []
        if self.kept and rng.random() < 0.8:
            base = rng.choice(self.kept[-60:] if rng.random() < 0.7 else self.kept)
            base = base[:rng.randrange(len(base) + 1)] if rng.random() < 0.5 else base
        room = self.most * self.block - len(base)
        if rng.random() < 0.25 and len(base) > self.block:
            p = base
        elif room <= 8:
            p = base[:self.most * self.block // 2] + [rng.randrange(self.tokens) for _ in range(8)]
        else:
            p = base + [rng.randrange(self.tokens) for _ in range(rng.randrange(1, min(room, 12 * self.block)))]
        if len(p) % self.block == 0:
            p = p + [7]  # engines compute at least one token, and not all of them ask for the blocks before a block's last one
        self.kept.append(p)
        del self.kept[:-400]
        return p


class Figures:
    def __init__(self):
        self.asked = self.equal = self.more = self.less = self.device_off = self.lower = self.lower_seen = 0
        self.worst, self.why = [], {}

    def note(self, tokens, ours, theirs, why=None):
        device, total = theirs
        self.asked += 1
        self.device_off += ours[0] != device
        self.lower += total - device
        self.lower_seen += ours[3] - ours[0]
        if ours[3] > total or ours[0] > device:
            self.more += 1
            reason = why and why(tokens)
            self.why[reason] = self.why.get(reason, 0) + 1
            if not reason:
                self.worst.append((len(tokens), ours, theirs))
        elif (ours[0], ours[3]) == theirs:
            self.equal += 1
        else:
            self.less += 1

    def __str__(self):
        why = f" ({', '.join(f'{k} {n}' for k, n in self.why.items())})" if self.why else ""
        return (f"{self.asked} prompts: equal {self.equal}, less {self.less}, more {self.more}{why}; the device off {self.device_off}; "
                f"blocks of lower tiers {self.lower_seen} of {self.lower}")


def judge(stack, block, requests, seed=1, record=None, before=None, most=40, tokens=1 << 16):
    """stack: .ask(tokens), .add(tokens, answer), .step() -> batches, .idle(); .why(tokens), where it has it: what explains more than it serves."""
    rng = random.Random(seed)
    prompts, figures, ours = Prompts(rng, block, most, tokens), Figures(), Ours(block, record)
    made = 0
    while made < requests or not stack.idle():
        for _ in range(rng.randrange(3) if made < requests else 0):
            p = prompts.next()
            theirs = stack.ask(p)
            said = ours.ask(p[:-1])  # the last token is computed, whatever there is
            ours.expect(*theirs, less=said[0] != theirs[0] or said[3] != theirs[1])
            figures.note(p, said, theirs, getattr(stack, "why", None))
            stack.add(p, rng.randrange(1, 6))
            made += 1
        for payload in stack.step():
            ours.event(payload)
        if before:
            before(stack, ours, rng)
    ours.close()
    return figures
