# SPDX-License-Identifier: Apache-2.0
"""On PYTHONPATH of an engine of the tests. KVROUTE_ENGINE_SPAWN=1 starts engines without it, as vLLM does.

Its processes are forked where vLLM's CPU platform has each of them import thousands of modules anew (`spawn`): that is most of what a start
costs (44 s of processor time become 19). vLLM forks by itself on other platforms; here it does not because of thread bindings, which these
engines switch off.

Attention is computed without AMX: vLLM 0.32's kernel for it ends the engine's process at the first prompt on some virtual machines whose
processor has AMX, and a test must not depend on the machine that it happens to run on.

Threads that move prompts sleep between two looks, where NIXL has them look without end: two engines have more of them than two cores can run, and
a token of 5 ms took seconds."""
import importlib.abc
import importlib.util
import multiprocessing
import sys

_get_context = multiprocessing.get_context
multiprocessing.get_context = lambda method=None: _get_context("fork" if method == "spawn" else method)


class _Changed(importlib.abc.MetaPathFinder):
    """Lets a module be loaded as it is, and then changes it."""

    def __init__(self, name, change):
        self.name, self.change = name, change

    def find_spec(self, name, path, target=None):
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def load_and_change(module):
            load(module)
            self.change(module)

        spec.loader.exec_module = load_and_change
        return spec


def _without_amx(module):
    module._is_amx_tile_supported = lambda: False


def _workers_wait(module):
    module.SpinCondition.__init__.__defaults__ = (0,)  # busy_loop_s


def _transfers_wait(module):
    class Config(module.nixlBind.nixlAgentConfig):
        def __setattr__(self, name, value):
            super().__setattr__(name, 100 if name == "pthrDelay" else value)  # microseconds between two looks, not 0

    module.nixlBind.nixlAgentConfig = Config


sys.meta_path[:0] = [_Changed("torch.cpu", _without_amx), _Changed("nixl_cu13._api", _transfers_wait)]
