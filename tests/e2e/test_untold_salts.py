# SPDX-License-Identifier: Apache-2.0
"""vLLM before 0.17 tells neither salts nor images in its events: blocks of a salted prompt look like those of a plain one. Such a worker is
named, in the log, by a metric and by doctor, and nobody else is."""
import json
import subprocess

import pytest

from conftest import BINARY, SLOW, Mock, Publish, Serve

T = list(range(100, 116))
WORDS = "events tell neither salts nor images"


def untold(s):
    return s.metric("kv_events_filtered_total", reason="untold_keys")


def source(e):
    return f",block-size=4,events=tcp://127.0.0.1:{e.events},replay=tcp://127.0.0.1:{e.replay_port}"


def follow(start, e, told):
    m = start(Mock, with_events=False)
    s = start(Serve, [f"http://127.0.0.1:{m.port}" + told], "--restore-timeout", "5", ready=False)
    e.until("trusted", lambda: s.view().get("trusted"))
    return s


def test_an_engine_that_tells_no_salts_is_not_named(start, engine):
    e = engine()
    s = follow(start, e, source(e))
    e.stored([1, 2], T[:8])
    e.stored([3], T[8:12], parent=2)
    e.until("stored", lambda: s.overlap(T).get((1, 0)) == 3)
    assert untold(s) == 2 and s.text().count(WORDS) == 1
    assert s.overlap(T, cache_salt="a") == {(1, 0): 0}
    args = [BINARY, "doctor", "--json", "--no-probe", f"http://127.0.0.1:{start(Mock, with_events=False).port}" + source(e)]
    with subprocess.Popen(args, stdout=subprocess.PIPE, text=True) as p:
        e.until("examined", lambda: p.poll() is not None, 40 * SLOW)
        found = [f for f in json.load(p.stdout)["findings"] if f["check"] == "salts and images"]
    assert [f["verdict"] for f in found] == ["unknown"] and "0.17" in found[0]["advice"]


@pytest.mark.parametrize("old", [True, False])
def test_a_sidecar_says_of_its_engine_what_the_engine_shows(start, engine, old):
    e = engine()
    p = start(Publish, e, block_size=4)
    e.until("whole", lambda: p.status()["trust"] == "trusted")
    s = follow(start, e, ",block-size=4" + p.source())
    told = ["BlockStored", [1, 2], None, T[:8], 4, None, "GPU", None]
    e.send(e.batch(told if old else told + [[None, None]]))
    e.until("stored", lambda: s.overlap(T).get((1, 0)) == 2)
    assert untold(s) == old and (WORDS in s.text()) == old and (WORDS in p.text()) == old
