# SPDX-License-Identifier: Apache-2.0
"""Runs pytest in forks of a process that has loaded it, which saves half a second of a core for each file. Used by tests/run.py.

A line of stdin is JSON: {"args": pytest's, "env": the environment, "out": a file for stdout and stderr}. A line of stdout is the process's
number. That process leads a session of its own, and its parent is whoever is the subreaper above: the one between them has ended."""
import http.client
import http.server
import json
import os
import socket
import ssl
import subprocess
import sys
import threading

import jsonschema
import msgpack
import pytest
import xxhash
import zmq

USED = (http.client, http.server, jsonschema, msgpack, socket, ssl, subprocess, threading, xxhash, zmq)  # by most tests: loaded here
# What pytest makes of the tests' files is kept with what else is built: the next run of a file does not read and rewrite it again.
sys.dont_write_bytecode, sys.pycache_prefix = False, os.path.join(os.getcwd(), "build/pycache")


def in_child(job):
    os.setsid()
    with open(job["out"], "ab") as out:
        for stream in (1, 2):
            os.dup2(out.fileno(), stream)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.environ.clear()
    os.environ.update(job["env"])
    sys.path[0] = os.getcwd()  # as python3 -m pytest has it
    sys.exit(pytest.main(job["args"]))


for line in iter(sys.stdin.readline, ""):
    between = os.fork()
    if between == 0:
        child = os.fork()
        if child == 0:
            in_child(json.loads(line))
        os.write(1, f"{child}\n".encode())
        os._exit(0)
    os.waitpid(between, 0)
    os.write(1, b"ended\n")  # the one between: now the child is the subreaper's
