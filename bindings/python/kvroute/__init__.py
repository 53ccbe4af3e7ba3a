# SPDX-License-Identifier: Apache-2.0
"""KV-cache-aware routing for LLM inference, in Python.

    hashing     compute_block_hash_for_seq, compute_seq_hash_for_block
    index       RadixTree, KvIndexer, ApproxKvIndexer, OverlapScores
    engine      KvEventPublisher: events of what an engine holds; LocalIndexer: all of it, for routers that have lost some
    selection   KvRouter, KvRouterConfig, BestWorker; of a worker for the prompt and one that goes on: KvRouterPair, BestPair
    recordings  KvRecorder
    token ids   Tokenizer, with a library that is loaded when one is made

Every call that does work in C releases the interpreter lock. Tokens are taken without a copy from anything that offers a buffer
of 4-byte unsigned or signed integers (array('I'), numpy.uint32, numpy.int32, memoryview); lists are copied."""
from ._await import BestPair, BestWorker
from ._errors import KvrouteError, NoEndpoints, QueueTimeout, TokenizerError
from ._kvroute import version as __version__
from .config import KvRouterConfig
from .hashing import compute_block_hash_for_seq, compute_seq_hash_for_block
from .index import ApproxKvIndexer, KvIndexer, OverlapScores, RadixTree
from .local import LocalIndexer
from .pair import KvRouterPair
from .publisher import KvEventPublisher
from .recorder import KvRecorder
from .router import KvRouter
from .tokenizer import Tokenizer

__all__ = ["ApproxKvIndexer", "BestPair", "BestWorker", "KvEventPublisher", "KvIndexer", "KvRecorder", "KvRouter", "KvRouterConfig",
           "KvRouterPair", "KvrouteError", "LocalIndexer", "NoEndpoints", "OverlapScores", "QueueTimeout", "RadixTree", "Tokenizer", "TokenizerError",
           "compute_block_hash_for_seq", "compute_seq_hash_for_block"]
