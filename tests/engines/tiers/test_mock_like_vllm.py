# SPDX-License-Identifier: Apache-2.0
"""The mock's host tier against vLLM's classes: the same prompts, one after the other, through `kvroute mock` and through vLLM's scheduler,
block pool and OffloadingConnector. Each answer has the same number of cached tokens, and with each few requests the same blocks come and go on
the device and in the host, told with the same words. MOCK_REQUESTS (300) of each case.

Known to differ, and not compared: the order of a request's events (vLLM takes blocks for what it reads back a pass before those for what
it computes, and tells of copies in the order of a set), and how many names stand in one removal."""
import collections
import os
import random
import sys

import msgpack
import pytest
import zmq

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import judge  # noqa: E402
import vllm_tiers  # noqa: E402
from harness import Mock, call  # noqa: E402
from test_tiers_vllm import MODEL  # noqa: E402

REQUESTS = int(os.environ.get("MOCK_REQUESTS", "300"))
BLOCK = vllm_tiers.BLOCK
DEVICE, HOST = 48, 128
ANSWER = 4  # passes after the prompt's, in which its blocks are copied


class Told:
    """Events with the prompt up to a block's end in the place of the block's name."""

    def __init__(self):
        self.known, self.words = {}, {}

    def take(self, payloads):
        """What comes and goes: (type, medium, prompt) and how often."""
        out = collections.Counter()
        for payload in payloads:
            for e in msgpack.unpackb(payload, raw=False, strict_map_key=False)[1]:
                if e["type"] == "AllBlocksCleared":
                    continue
                names, medium, stored = e["block_hashes"], e.get("medium", "GPU"), e["type"] == "BlockStored"
                if stored and e["token_ids"]:
                    self.learn(e)
                out.update((e["type"], medium, self.known[n]) for n in names)
                self.note(e, medium, len(names) if stored else 1)
        return out

    def learn(self, e):
        path = self.known.get(e["parent_block_hash"], ())
        for i, n in enumerate(e["block_hashes"]):
            path += tuple(e["token_ids"][i * BLOCK:(i + 1) * BLOCK])
            assert self.known.setdefault(n, path) == path

    def note(self, e, medium, names):
        """The members of such an event, and what does not depend on the prompt."""
        told = {k: v for k, v in e.items() if k not in ("block_hashes", "parent_block_hash", "token_ids", "extra_keys")}
        told |= {"names": names if medium != "GPU" else None, "tokens": len(e.get("token_ids") or ()) // max(1, names), "keys": tuple(sorted(e))}
        self.words.setdefault((e["type"], medium), set()).add(tuple(sorted(told.items(), key=lambda kv: kv[0])))


class OfMock:
    def __init__(self, start, zctx, chunk, form):
        self.m = start(Mock, "--num-gpu-blocks", DEVICE, "--host-kv-blocks", HOST, "--kv-offload-chunk", chunk, "--kv-offload-events", form,
                       "--max-num-seqs", 1, "--max-num-batched-tokens", 2048, speedup=10000)
        self.replay = zctx.socket(zmq.DEALER)
        self.replay.linger, self.replay.rcvtimeo = 0, 20_000
        self.replay.connect(f"tcp://127.0.0.1:{self.m.replay}")
        self.next, self.told = 0, Told()

    def ask(self, prompt):
        """Cached tokens."""
        r = call(self.m.port, "POST", "/v1/completions", {"prompt": prompt, "max_tokens": ANSWER, "model": "mock"})
        return r.json()["usage"]["prompt_tokens_details"]["cached_tokens"]

    def since(self):
        """What came and went since the last call of this: engines answer only so many replays a second."""
        return self.told.take(self.heard())

    def heard(self):
        self.replay.send_multipart([b"", self.next.to_bytes(8, "big")])
        while True:
            *_, sequence, payload = self.replay.recv_multipart()
            number = int.from_bytes(sequence, "big", signed=True)
            if number < 0:
                return
            self.next = number + 1
            yield payload


class OfClasses:
    def __init__(self, chunk, form):
        options = {"self_describing_kv_events": True} if form == "self-describing" else {}
        self.stack = vllm_tiers.Stack(MODEL, chunk=chunk, device_blocks=DEVICE, host_blocks=HOST, requests=1, delay=0, **options)
        self.told, self.batches = Told(), []

    def ask(self, prompt):
        cached = self.stack.ask(prompt)[1] * BLOCK
        self.stack.add(prompt, ANSWER)
        while not self.stack.idle():
            self.batches += self.stack.step()
        assert not self.stack.mistakes
        return cached

    def since(self):
        batches, self.batches = self.batches, []
        return self.told.take(batches)


def prompts(n):
    """So long that no answer fills a block, as what it says is not the same."""
    maker = judge.Prompts(random.Random(17), BLOCK, 24, 1 << 14)
    for _ in range(n):
        p = maker.next()
        yield p[:len(p) // BLOCK * BLOCK + 1 + len(p) % 8]


def short(told):
    return [(kind, medium, len(path) // BLOCK, n) for (kind, medium, path), n in told.items()]


@pytest.mark.parametrize("form", ["placeholder", "self-describing"])
@pytest.mark.parametrize("chunk", [1, 4])
def test_the_mock_keeps_and_tells_as_the_classes_do(start, zctx, chunk, form):
    theirs, ours = OfClasses(chunk, form), OfMock(start, zctx, chunk, form)
    gone = 0
    for i, p in enumerate(prompts(REQUESTS)):
        assert (i, ours.ask(p)) == (i, theirs.ask(p))
        if i % 25 == 24:
            told, want = ours.since(), theirs.since()
            assert told == want, (i, short(told - want), short(want - told))
            gone += sum(n for (kind, medium, _), n in want.items() if (kind, medium) == ("BlockRemoved", "CPU"))
    assert gone > 100 and theirs.stack.loaded > 20
    assert ours.told.words == theirs.told.words
