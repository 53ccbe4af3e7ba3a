# SPDX-License-Identifier: Apache-2.0
"""KV-cache-aware routing for LLM inference, in Python.

    hashing     compute_block_hash_for_seq, compute_seq_hash_for_block
    index       RadixTree, KvIndexer, ApproxKvIndexer, OverlapScores
    engine      LocalIndexer: what an engine holds, for routers that have lost events
    selection   KvRouter, KvRouterConfig
    recordings  KvRecorder

Every call that does work in C releases the interpreter lock. Tokens are taken without a copy from anything that offers a buffer
of 4-byte unsigned or signed integers (array('I'), numpy.uint32, numpy.int32, memoryview); lists are copied."""
from ._errors import KvrouteError, NoEndpoints
from .hashing import compute_block_hash_for_seq, compute_seq_hash_for_block
from .index import ApproxKvIndexer, KvIndexer, OverlapScores, RadixTree
from .local import LocalIndexer
from .recorder import KvRecorder
from .router import KvRouter, KvRouterConfig
from ._c import version as __version__

__all__ = ["ApproxKvIndexer", "KvIndexer", "KvRecorder", "KvRouter", "KvRouterConfig", "KvrouteError", "LocalIndexer", "NoEndpoints",
           "OverlapScores", "RadixTree", "compute_block_hash_for_seq", "compute_seq_hash_for_block"]
