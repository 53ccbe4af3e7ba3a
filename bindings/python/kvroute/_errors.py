# SPDX-License-Identifier: Apache-2.0
from . import _kvroute

ENOMEM, EINVAL, EPARENT, ENOTFOUND, ESEQUENCE, EEXISTS, ELENGTH, ELIMIT, EUNSUPPORTED = 1, 2, 3, 4, 5, 7, 8, 10, 11
ENOENDPOINTS, EOVERLOADED, EQUEUEFULL, ESHUTDOWN, ETIMEDOUT = 12, 18, 19, 20, 21


class KvrouteError(Exception):
    """An error of the library; `code` is its number in kvroute/error.h. leg: of a pair, "prefill" or "decode"; else None."""

    leg = None

    def __init__(self, code, text=None):
        self.code = abs(code)
        super().__init__(text or _kvroute.error_text(self.code))


class NoEndpoints(KvrouteError):
    """Nobody is eligible for a request."""


class QueueTimeout(KvrouteError, TimeoutError):
    """A request waited for its turn for longer than it was given."""


class TokenizerError(KvrouteError):
    """A prompt whose token ids are not made here, or a folder or a library that cannot be used. `label` says why in one word or two, and
    never quotes a prompt; the message may."""

    def __init__(self, code, text):
        self.label = text.split(":")[0]
        super().__init__(code, text)


_KINDS = {ENOENDPOINTS: NoEndpoints, ETIMEDOUT: QueueTimeout}


def make(code):
    """The exception that stands for an error of the library."""
    if -code == ENOMEM:
        return MemoryError("kvroute")
    return _KINDS.get(-code, KvrouteError)(code)


def check(rc):
    """rc, or the exception it stands for."""
    if rc < 0:
        raise make(rc)
    return rc


_kvroute.on_error(make)
