# SPDX-License-Identifier: Apache-2.0
"""libkvr_tokenizer.so (tokenizer/include/kvr_tokenizer.h) from Python."""
import ctypes
import json


class Buf(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("len", ctypes.c_size_t), ("cap", ctypes.c_size_t)]


class Refused(Exception):
    def __init__(self, code, why):
        super().__init__(why)
        self.code, self.label = code, why.split(":")[0]


class Tokenizer:
    def __init__(self, path, folder, **options):
        self.lib = ctypes.CDLL(path)
        self.lib.kvr_tok_load.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(Buf)]
        for name in ("kvr_tok_plain", "kvr_tok_render"):
            getattr(self.lib, name).argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(Buf)]
        self.lib.kvr_tok_ask.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(Buf)]
        self.handle = ctypes.c_void_p()
        self._call(self.lib.kvr_tok_load, folder.encode(), json.dumps(options).encode(), ctypes.byref(self.handle))

    def _call(self, function, *args):
        b = Buf()
        code = function(*args, ctypes.byref(b))
        out = ctypes.string_at(b.data, b.len) if b.len else b""
        self.lib.kvr_tok_buf_free(ctypes.byref(b))
        if code:
            raise Refused(code, out.decode())
        return out

    def ids(self, question, plain=False):
        q = json.dumps(question).encode()
        if plain:
            out = self._call(self.lib.kvr_tok_plain, self.handle, q, len(q))
        else:
            job = ctypes.c_void_p()
            out = self._call(self.lib.kvr_tok_ask, self.handle, q, len(q), 1 << 60, ctypes.byref(job))
        return list(memoryview(out).cast("I"))

    def render(self, question):
        q = json.dumps(question).encode()
        return self._call(self.lib.kvr_tok_render, self.handle, q, len(q)).decode()
