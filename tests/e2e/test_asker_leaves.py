# SPDX-License-Identifier: Apache-2.0
"""Who asks an index that is elsewhere, over the admin port, and leaves before it has answered."""
import signal
import time

import pytest

from conftest import Mock, SLOW, Serve, call, freeze, stays


@pytest.mark.parametrize("body", [{"token_ids": [1] * 64}, {"token_ids": [1] * 200_000}], ids=["small", "read on a thread"])
def test_an_asker_who_leaves_before_the_index_answers_ends_nothing(start, body):
    m = start(Mock, "--model", "m")
    index = start(Serve, [m.spec(",model=m")], "--serve-indexer")
    s = start(Serve, [m.spec(",model=m")], "--use-remote-indexer", f"http://127.0.0.1:{index.admin}")
    assert s.post("/overlap_scores", {"model_name": "m", **body}).status == 200
    freeze(index.p)
    try:
        for _ in range(3):
            with pytest.raises(OSError):
                call(s.admin, "POST", "/overlap_scores", {"model_name": "m", **body}, timeout=0.5 / SLOW)
        stays("the router", lambda: s.p.poll() is None, 3)  # longer than it waits for the index
        assert call(s.admin, "GET", "/health").status == 200
    finally:
        index.p.send_signal(signal.SIGCONT)
    began = time.monotonic()
    while s.post("/overlap_scores", {"model_name": "m", **body}).status != 200:
        assert time.monotonic() - began < 20 * SLOW
