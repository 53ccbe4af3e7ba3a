# SPDX-License-Identifier: Apache-2.0
"""Values that are there already and can be awaited all the same, for code that was written for awaited calls."""


class _Awaitable:
    __slots__ = ()

    def __await__(self):
        return self
        yield  # a generator


class Ready:
    """An awaitable of a value that is there."""

    __slots__ = ("value",)

    def __init__(self, value=None):
        self.value = value

    def __await__(self):
        return self.value
        yield


class Text(_Awaitable, str):
    __slots__ = ()


class List(_Awaitable, list):
    __slots__ = ()


class Dict(_Awaitable, dict):
    __slots__ = ()


class BestWorker(_Awaitable, tuple):
    """(worker_id, dp_rank, overlap_blocks), and what else is known of the decision.

    effective_blocks: overlap with its weights, not rounded. cost. cached_tokens, prefill_tokens: of the prompt, on that rank.
    required_blocks: of the prompt. best_blocks: the best overlap among the candidates. candidates: how many there were.
    waited_secs: in the queue. times: nanoseconds of block_hashing, find_matches, seq_hashing, scheduling, total."""

    NAMES = ("effective_blocks", "cost", "cached_tokens", "prefill_tokens", "required_blocks", "best_blocks", "waited_ns", "candidates")
    STAGES = ("block_hashing", "find_matches", "seq_hashing", "scheduling", "total")

    @classmethod
    def _of(cls, made):
        """Of what the compiled part says."""
        self = cls(made[:3])
        self.__dict__.update(zip(cls.NAMES, made[3]), _times=made[4])
        return self

    @property
    def worker_id(self):
        return self[0]

    @property
    def dp_rank(self):
        return self[1]

    @property
    def overlap_blocks(self):
        return self[2]

    @property
    def waited_secs(self):
        return self.waited_ns / 1e9

    @property
    def times(self):
        return dict(zip(self.STAGES, self._times))


class BestPair(_Awaitable, tuple):
    """(prefill, decode), a BestWorker each: who computes a prompt, and who goes on from it."""

    __slots__ = ()

    @classmethod
    def _of(cls, made):
        return cls(BestWorker._of(leg) for leg in made)

    @property
    def prefill(self):
        return self[0]

    @property
    def decode(self):
        return self[1]
