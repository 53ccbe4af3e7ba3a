# SPDX-License-Identifier: Apache-2.0
from ._c import ffi, lib

ENOMEM, EINVAL, EPARENT, ENOTFOUND, ESEQUENCE, ELENGTH, EFORMAT, ENOENDPOINTS, ESHUTDOWN = 1, 2, 3, 4, 5, 8, 9, 12, 20


class KvrouteError(Exception):
    """An error of the library; `code` is its number in kvroute/error.h."""

    def __init__(self, code, text=None):
        self.code = abs(code)
        super().__init__(text or ffi.string(lib.kvr_strerror(self.code)).decode())


class NoEndpoints(KvrouteError):
    """Nobody is eligible for a request."""


def check(rc):
    """rc, or the exception it stands for."""
    if rc >= 0:
        return rc
    if -rc == ENOMEM:
        raise MemoryError("kvroute")
    if -rc == ENOENDPOINTS:
        raise NoEndpoints(rc)
    raise KvrouteError(rc)
