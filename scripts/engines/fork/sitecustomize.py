# SPDX-License-Identifier: Apache-2.0
"""On PYTHONPATH of an engine: its processes are forked where vLLM's CPU platform has each of them import thousands of modules anew (`spawn`).

That is most of what a start costs (44 s of processor time become 19). vLLM forks by itself on other platforms; here it does not because of thread
bindings, which these engines switch off. KVROUTE_ENGINE_SPAWN=1 starts them as vLLM does."""
import multiprocessing

_get_context = multiprocessing.get_context
multiprocessing.get_context = lambda method=None: _get_context("fork" if method == "spawn" else method)
