# SPDX-License-Identifier: Apache-2.0
"""On PYTHONPATH of an engine of the tests. KVROUTE_ENGINE_SPAWN=1 starts engines without it, as vLLM does.

Its processes are forked where vLLM's CPU platform has each of them import thousands of modules anew (`spawn`): that is most of what a start
costs (44 s of processor time become 19). vLLM forks by itself on other platforms; here it does not because of thread bindings, which these
engines switch off.

Attention is computed without AMX: vLLM 0.32's kernel for it ends the engine's process at the first prompt on some virtual machines whose
processor has AMX, and a test must not depend on the machine that it happens to run on."""
import importlib.abc
import importlib.util
import multiprocessing
import sys

_get_context = multiprocessing.get_context
multiprocessing.get_context = lambda method=None: _get_context("fork" if method == "spawn" else method)


class _WithoutAmx(importlib.abc.MetaPathFinder):
    """Lets torch.cpu be loaded as it is, and then say that there is no AMX."""

    def find_spec(self, name, path, target=None):
        if name != "torch.cpu":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def load_and_deny(module):
            load(module)
            module._is_amx_tile_supported = lambda: False

        spec.loader.exec_module = load_and_deny
        return spec


sys.meta_path.insert(0, _WithoutAmx())
