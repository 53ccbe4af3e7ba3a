# SPDX-License-Identifier: Apache-2.0
"""Free ports of loopback for tests, benchmarks and labs that run beside each other.

Each process has a block of ports of its own, below those that the kernel gives to whoever connects: a port that is free when it is asked
for is still free when the program that it is meant for listens on it. The block's first port is held as long as the process lives.
"""
import os
import socket
import sys

BLOCK = 500
FIRST = [first for first in range(10000, 32000, BLOCK) if first not in (18000, 18500, 19000, 19500)]  # scripts/demo.sh looks for its ports there
_guard, _first, _next = None, 0, 0


def _claim():
    global _guard, _first, _next
    for k in range(len(FIRST)):
        guard, first = socket.socket(), FIRST[(os.getpid() + k) % len(FIRST)]
        try:
            guard.bind(("127.0.0.1", first))
        except OSError:
            guard.close()
            continue
        _guard, _first, _next = guard, first, first + 1
        return
    raise RuntimeError("too many processes ask for ports: no block is free")


def free_ports(n=1):
    """The first of n consecutive free ports."""
    global _next
    if _guard is None:
        _claim()
    while True:
        port = _next if _next + n <= _first + BLOCK else _first + 1
        _next = port + n
        taken = []
        try:
            for i in range(n):
                taken.append(socket.socket())
                taken[-1].bind(("127.0.0.1", port + i))
            return port
        except OSError:
            continue
        finally:
            for s in taken:
                s.close()


if __name__ == "__main__":
    first = free_ports(int(sys.argv[1]))
    print(*range(first, first + int(sys.argv[1])))
