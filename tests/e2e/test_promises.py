# SPDX-License-Identifier: Apache-2.0
"""Limits of docs/reference/threat-model.md that no other file looks at."""
import os
import stat

import pytest

from conftest import Mock, Serve, call, wait_for
from test_proxy import raw


@pytest.fixture(scope="module")
def served():
    m = Mock()
    s = Serve([m])
    yield s
    s.stop()
    m.stop()


@pytest.mark.parametrize("more,status", [
    (b"".join(b"X-%d: y\r\n" % i for i in range(124)), 200), (b"".join(b"X-%d: y\r\n" % i for i in range(127)), 431), (b"X: " + b"y" * 60_000 + b"\r\n", 200),
    (b"X: " + b"y" * 70_000 + b"\r\n", 431), (b"y" * 70_000 + b": x\r\n", 431)], ids=["126 headers", "129 headers", "60 KB", "a long value", "a long name"])
def test_a_head_has_128_headers_and_64_kib_at_most(served, more, status):
    out = raw(served.port, b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + more + b"\r\n")
    assert int(out.split(b" ")[1]) == status, out[:200]


@pytest.mark.parametrize("shape", [b'[' * 1100 + b']' * 1100, b'{"a":' * 1100 + b'1' + b'}' * 1100, b'[' * 200_000])
@pytest.mark.parametrize("member", [b"prompt", b"metadata"])
def test_a_body_of_more_than_1024_levels_is_refused_at_once(served, member, shape):
    body = b'{"model": "mock", "' + member + b'": ' + shape + b"}"
    assert call(served.port, "POST", "/v1/completions", body).status == 400
    assert call(served.admin, "POST", "/overlap_scores", body).status == 400
    assert served.complete([1, 2]).status == 200


def test_what_is_kept_of_views_is_for_its_owner_only(start, tmp_path):
    m = start(Mock)
    old = os.umask(0)
    try:
        s = start(Serve, [m], "--data-dir", tmp_path / "views")
    finally:
        os.umask(old)
    assert s.complete(list(range(64))).status == 200
    wait_for("a copy", lambda: any((tmp_path / "views").rglob("view.kvr")))
    s.stop()  # so that nothing is on its way
    modes = {str(p): stat.S_IMODE(p.stat().st_mode) for p in [tmp_path / "views", *(tmp_path / "views").rglob("*")]}
    assert all(mode == (0o700 if os.path.isdir(p) else 0o600) for p, mode in modes.items()) and len(modes) > 3, modes
