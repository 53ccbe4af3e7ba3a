# SPDX-License-Identifier: Apache-2.0
"""The compiled part, and how Python's values become its arguments."""
import glob
import importlib.machinery
import importlib.util
import os
import sys
import threading
import weakref


def _load_backend():
    """cffi's backend: the installed one, or the one in the wheel when it is of this Python."""
    try:
        import _cffi_backend  # noqa: F401
        return
    except ImportError:
        pass
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_backend")
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        for path in glob.glob(os.path.join(here, "_cffi_backend" + suffix)):
            spec = importlib.util.spec_from_file_location("_cffi_backend", path)
            module = importlib.util.module_from_spec(spec)
            sys.modules["_cffi_backend"] = module
            spec.loader.exec_module(module)
            return
    raise ImportError("kvroute needs cffi with this version of Python: python3 -m pip install cffi")


_load_backend()
from ._kvroute import ffi, lib  # noqa: E402

version = ffi.string(lib.kvr_version()).decode()
MASK = (1 << 64) - 1
MEDIA = {None: 0, "": 0, "GPU": 0, "DEVICE": 0, "CPU": 1, "CPU_PINNED": 1, "CPU_TIER1": 1, "CPU_TIER2": 2, "DISK": 2, "NVME": 2, "STORAGE": 2,
         "EXTERNAL": 3, "NETWORK": 3, "REMOTE": 3, "SHARED": 3}
TIERS = ("device", "host_pinned", "disk", "external")


def tokens_of(tokens):
    """uint32_t[], a length, without a copy when there is a buffer of 4-byte integers."""
    try:
        view = memoryview(tokens)
    except TypeError:
        view = None
    if view is not None:
        if view.itemsize == 4 and view.format in "IiLl" and view.contiguous and view.ndim == 1:
            return ffi.from_buffer("uint32_t[]", view, require_writable=False), view.shape[0]
        if view.format in ("b", "B", "c"):
            raise TypeError("tokens: bytes are ambiguous; give integers, or a buffer of 4-byte integers")
        tokens = view.tolist()
    if isinstance(tokens, (str, dict)):
        raise TypeError(f"tokens: a list of integers is needed, not {type(tokens).__name__}")
    tokens = list(tokens)
    return ffi.new("uint32_t[]", tokens), len(tokens)


def hash_of(value):
    """An engine's block hash as 64 bits: signed or unsigned, or bytes, of which the last eight count."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return int.from_bytes(bytes(value)[-8:], "big")
    return int(value) & MASK


def hashes_of(values):
    values = [hash_of(v) for v in values]
    return ffi.new("uint64_t[]", values or [0]), len(values)


def text_of(value):
    """char *, length; None and "" are NULL."""
    if not value:
        return ffi.NULL, 0
    data = value if isinstance(value, bytes) else str(value).encode()
    return ffi.new("char[]", data), len(data)


def tier_of(medium):
    try:
        return MEDIA[medium]
    except (KeyError, TypeError):
        raise ValueError(f"medium: bad value {medium!r}; allowed: None, {', '.join(m for m in MEDIA if m)}") from None


class PerThread:
    """One C object for each thread that asks for it, freed with the owner."""

    def __init__(self, owner, make, free):
        self._local, self._make, self._all, self._lock = threading.local(), make, [], threading.Lock()
        self.finalizer = weakref.finalize(owner, PerThread._free_all, self._all, free)

    @staticmethod
    def _free_all(made, free):
        while made:
            free(made.pop())

    def get(self):
        p = getattr(self._local, "p", None)
        if p is None:
            p = self._make()
            if p == ffi.NULL:
                raise MemoryError("kvroute")
            with self._lock:
                self._all.append(p)
            self._local.p = p
        return p
