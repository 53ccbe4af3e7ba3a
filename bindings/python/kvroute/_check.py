# SPDX-License-Identifier: Apache-2.0
"""Values from callers: each is as it must be, or ValueError names it and says what is allowed."""
import json
import math
import operator

MASK = (1 << 64) - 1
U32 = (1 << 32) - 1
MEDIA = {None: 0, "": 0, "GPU": 0, "DEVICE": 0, "CPU": 1, "CPU_PINNED": 1, "CPU_TIER1": 1, "CPU_TIER2": 2, "DISK": 2, "NVME": 2, "STORAGE": 2,
         "EXTERNAL": 3, "NETWORK": 3, "REMOTE": 3, "SHARED": 3}
TIERS = ("device", "host_pinned", "disk", "external")


def bad(name, value, allowed):
    return ValueError(f"{name}: bad value {str(value)[:80]!r}; allowed: {allowed}")


def json_of(name, text):
    """What a JSON text holds."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as e:  # too deep is bad too
        raise ValueError(f"{name}: not JSON: {e}") from None


def whole(name, value, low=0, high=MASK):
    """An integer of that range."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or not low <= number <= high:
        raise bad(name, value, f"a whole number, {low} to {'2^64 - 1' if high == MASK else '2^32 - 1' if high == U32 else high}")
    return number


def real(name, value, low=0.0, high=math.inf, above=False):
    """A finite number of that range; `above`: more than `low`."""
    try:
        number = math.nan if isinstance(value, (bool, str, bytes)) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number) or not low <= number <= high or (above and number == low):
        least = f"more than {low:g}" if above else f"{low:g} or more"
        raise bad(name, value, f"a number, {least}" if high == math.inf else f"a number, {least}, at most {high:g}")
    return number


def flag(name, value):
    if not isinstance(value, bool):
        raise bad(name, value, "True, False")
    return value


def one_of(name, value, allowed):
    if not isinstance(value, str) or value not in allowed:
        raise bad(name, value, ", ".join(allowed))
    return value


def tier_of(medium):
    try:
        return MEDIA[medium]
    except (KeyError, TypeError):
        raise bad("medium", medium, f"None, {', '.join(m for m in MEDIA if m)}") from None


def worker(value):
    return whole("worker_id", value)


def block_size(value, name="block_size"):
    return whole(name, value, 1, 65536)
