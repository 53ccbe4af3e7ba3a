# SPDX-License-Identifier: Apache-2.0
"""Where the two legs of a request meet: what a mock of a prefill worker has to be told of it, and what a router of that mock."""
from conftest import call

AT_ONCE = ["sglang", "vllm-nixl-push", "vllm-mooncake"]


def options_of(protocol, port):
    """Of a prefill mock that is met at that port."""
    if protocol not in AT_ONCE:
        return ()
    return ("--kv-side-port" if protocol == "vllm-nixl-push" else "--bootstrap-port", str(port))


def engine_of(mock_port):
    return call(mock_port, "GET", "/mock/kv").json()["engine_ids"][0]


def keys_of(protocol, mock_port, port):
    """Of the entry of such a worker."""
    if protocol == "vllm-nixl-push":
        return f",kv-addr=127.0.0.1:{port},engine-id={engine_of(mock_port)}"
    return f",bootstrap={port}" if protocol in AT_ONCE else ""
