# SPDX-License-Identifier: Apache-2.0
"""The next process takes the ports of the running one over, and what it knows of the engines' caches."""
import contextlib
import os
import signal
import socket
import struct
import threading
import time

import pytest

from conftest import SLOW, Mock, Process, Select, Serve, call, free_ports, freeze, read_sse, wait_for
from handover_parts import Load, replaced_in_place, taken


def test_a_hand_over_refuses_nobody(start, tmp_path):
    m = start(Mock)
    args = ("--handover", tmp_path / "ports", "--lame-duck-time", 1)
    s = start(Serve, [m], *args, "--threads", 1)
    load = Load(s.port, pause=0.02)
    for threads in (1, 2, 2, 3):
        load.until(160)
        after = start(Serve, [m], *args, "--threads", threads, ports=(s.port, s.admin), wait=False)
        assert s.p.wait(60 * SLOW) == 0, after.text()
        assert "the ports are handed over" not in after.text() and ", 0 cut off" in s.text()
        wait_for("taken", lambda: "the ports are taken over" in after.text())
        s = after
    load.until(160)
    load.end()
    s.stop()
    assert not os.path.exists(tmp_path / "ports")


def test_replaced_in_place_twice_under_load(start, tmp_path):
    replaced_in_place(start, tmp_path, 800, 0.02)  # test_handover_load.py asks without a pause


def test_a_process_that_is_not_ready_takes_nothing(start, tmp_path):
    args = ("--handover", tmp_path / "ports")
    s = start(Serve, [start(Mock)], *args)
    late = start(Serve, [f"http://127.0.0.1:{free_ports()}"], *args, ports=(s.port, s.admin), wait=False)
    wait_for("asked", lambda: "another process gets ready" in s.text())
    assert s.complete("x").status == 200
    late.kill()
    wait_for("gone", lambda: "gone without taking" in s.text())
    assert s.complete("x").status == 200
    right = start(Serve, [start(Mock)], *args, ports=(s.port, s.admin), wait=False)
    assert s.p.wait(30 * SLOW) == 0
    assert right.complete("x").status == 200


def test_ports_of_a_process_that_dies_meanwhile_are_taken_at_once(start, tmp_path):
    args = ("--handover", tmp_path / "ports")
    s = start(Serve, [start(Mock)], *args)
    late = start(Serve, [f"http://127.0.0.1:{free_ports()}"], *args, ports=(s.port, s.admin), wait=False)
    wait_for("asked", lambda: "another process gets ready" in s.text())
    s.kill()
    wait_for("answers", lambda: call(late.port, "GET", "/ready").status == 503)
    wait_for("told", lambda: "has ended by itself" in late.text())


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_signal_beside_a_hand_over_cut_the_streams_that_were_open(start, tmp_path, when):
    m = start(Mock, speedup=2)
    args = ("--handover", tmp_path / "ports", "--lame-duck-time", 1)
    s = start(Serve, [m], *args)
    c, answer = read_sse(s.port, {"prompt": "x", "max_tokens": 600, "stream": True})
    assert answer.readline().startswith(b"data: ")
    frozen = start(Mock)
    freeze(frozen.p)  # so the next one is not ready yet
    after = start(Serve, [m, frozen], *args, ports=(s.port, s.admin), wait=False)
    wait_for("asked", lambda: "another process gets ready" in s.text())
    if when == "before":
        s.p.terminate()
    wait_for("told", lambda: when == "after" or "SIGTERM" in s.text())
    frozen.p.send_signal(signal.SIGCONT)
    wait_for("taken", lambda: "the ports are taken over" in after.text(), 30)
    if when == "after":
        wait_for("handed over", lambda: "the ports are handed over" in s.text())
        s.p.terminate()
    assert answer.read().endswith(b"data: [DONE]\n\n") and s.p.wait(30 * SLOW) == 0
    assert after.complete("x").status == 200
    c.close()


def test_the_next_process_could_not_start_while_one_that_offers_its_ports_drained(start, tmp_path):
    m, path = start(Mock, speedup=2), tmp_path / "ports"
    args = ("--handover", path, "--lame-duck-time", 0)
    s = start(Serve, [m], *args)
    c, answer = read_sse(s.port, {"prompt": "x", "max_tokens": 600, "stream": True})
    s.p.terminate()
    wait_for("drains", lambda: "draining" in s.text())
    beside = start(Serve, [m], *args, ports=(s.port, s.admin))
    assert answer.read().endswith(b"data: [DONE]\n\n") and s.p.wait(30 * SLOW) == 0
    after = start(Serve, [m], *args, ports=(s.port, s.admin), wait=False)  # what the first one left is not removed by it
    taken(beside, after)
    c.close()


def test_what_does_not_fit_is_refused(start, tmp_path):
    m = start(Mock)
    path = tmp_path / "ports"
    s = start(Serve, [m], "--handover", path, "--threads", 2)

    def refused(*args, **kw):
        p = start(Serve, [m], *args, wait=False, expect=1, **kw)
        p.p.wait(20 * SLOW)
        return p.text()
    assert "2 data loops; allowed: --threads of at least as many" in refused("--handover", path, ports=(s.port, s.admin))
    assert "allowed: the same --port and --admin-port" in refused("--handover", path, "--threads", 2)
    assert "allowed: a path that this user may write to" in refused("--handover", "/proc/nowhere")
    assert "allowed: a path" in refused("--handover", "x" * 200)
    stale = tmp_path / "stale"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as u:
        u.bind(str(stale))
    t = start(Serve, [m], "--handover", stale)  # nobody is there any more
    assert oct(os.stat(stale).st_mode & 0o777) == "0o600" and t.complete("x").status == 200
    assert s.complete("x").status == 200


def test_a_second_one_that_asked_made_the_running_one_spin(start, tmp_path):
    path = tmp_path / "ports"
    s = start(Serve, [start(Mock)], "--handover", path)
    ask = lambda: socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # noqa: E731
    with ask() as one, ask() as two:
        one.connect(str(path))
        assert one.recv(64) == b"kvroute listeners 2"
        two.connect(str(path))
        used = lambda: sum(map(int, open(f"/proc/{s.p.pid}/stat").read().split()[13:15])) / os.sysconf("SC_CLK_TCK")  # noqa: E731
        before = used()
        time.sleep(1)
        assert used() - before < 0.5
        one.send(b"taken\0" * 9)  # no word of ours
        assert two.recv(64) == b"kvroute listeners 2", "now it is its turn"
    assert s.complete("x").status == 200


def test_strangers_at_the_path_of_a_hand_over(start, tmp_path):
    path, kept = tmp_path / "ports", tmp_path / "kept"
    s = start(Serve, [start(Mock)], "--handover", path)
    assert path.stat().st_mode & 0o777 == 0o600
    for junk in (b"", b"take", b"taken\0", b"x" * 60000, None):
        for _ in range(20):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as c:
                c.connect(str(path))
                if junk is not None:
                    c.send(junk)
    assert s.complete("x").status == 200 and path.is_socket()
    kept.write_text("mine")
    other = start(Process, "select", "--port", free_ports(), "--handover", kept, expect=None)
    assert other.p.wait(20 * SLOW) != 0 and kept.read_text() == "mine"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
def test_sockets_of_another_user_are_not_taken(start, tmp_path):
    path = tmp_path / "ports"
    with socket.create_server(("0.0.0.0", 0)) as theirs, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as offer:
        offer.bind(str(path))
        os.seteuid(65534)
        try:
            offer.listen(4)
        finally:
            os.seteuid(0)

        def give():
            c, _ = offer.accept()
            with c, contextlib.suppress(OSError):
                socket.send_fds(c, [b"kvroute listeners 2"], [theirs.fileno()])
                c.recv(1)
        t = threading.Thread(target=give, daemon=True)
        t.start()
        p = start(Process, "select", "--host", "127.0.0.1", "--port", theirs.getsockname()[1], "--handover", path, expect=None)
        assert p.p.wait(20 * SLOW) != 0 and "allowed: a path that this user may write to" in p.text()


def test_select_hands_its_port_over(start, tmp_path):
    s = start(Select, "--handover", tmp_path / "ports")
    s.worker(1)
    after = Process("select", "--host", "127.0.0.1", "--port", s.port, "--handover", tmp_path / "ports")
    try:
        wait_for("asked", lambda: "another process gets ready" in s.text())
        assert call(s.port, "GET", "/workers").json()  # the new one knows no worker yet, and waits
    finally:
        after.kill()


# ---- views -------------------------------------------------------------------------------------------------------------------

T = list(range(100, 140))  # ten blocks of four


@pytest.fixture
def rig(start, engine, tmp_path):
    """rig(before): a router of an engine that cannot say again what it has published, and how to make the next one. before(e): what the
    engine has done before the first one hears it."""
    def make(before=None, replay=False, options=()):
        m, e = start(Mock, with_events=False), engine()
        if before:
            before(e)
        spec = f"http://127.0.0.1:{m.port},block-size=4,events=tcp://127.0.0.1:{e.events}"
        if replay:
            spec += f",replay=tcp://127.0.0.1:{e.replay_port}"
        args = ([spec], "--handover", tmp_path / "ports", "--restore-timeout", 20 if replay else min(SLOW, 3), *options)
        s = start(Serve, *args, ready=not replay)  # the replay is answered by who waits
        e.heard_by(1)

        def follow(s, *more):
            return start(Serve, *args, *more, ports=(s.port, s.admin), wait=False)
        return e, s, follow
    return make


def known(s):
    return s.overlap(T).get((1, 0)), s.view()["view"], s.view()["next_sequence"]


def test_a_view_goes_on_where_the_engine_has_no_replay(rig):
    e, s, follow = rig()
    e.stored([1, 2, 3], T[:12])
    e.stored([4], T[12:16], parent=3)
    wait_for("seen", lambda: known(s) == (4, "whole", 2))
    for _ in range(2):
        after = follow(s)
        taken(s, after)
        assert known(after) == (4, "whole", 2)
        assert after.metric("view_takeovers_total") == 1 and after.metric("view_takeover_failures_total") == 0
        s = after
    e.removed([4])
    wait_for("gone on with", lambda: known(s) == (3, "whole", 3))
    e.stored([5], T[12:16], parent=3, drop=True)
    e.stored([6], T[16:20])
    wait_for("a gap is one", lambda: s.view()["view"] == "partial")


def test_what_is_published_while_the_view_is_on_its_way_is_not_lost(rig):
    """Batches go on through the whole of the hand-over: both hear each of them, and the content is of one place and goes on from it."""
    e, s, follow = rig()
    over, sent = threading.Event(), []

    def publish():
        while not over.is_set() and len(sent) < len(T) * 1000:
            k = len(sent)
            e.stored([1000 + k], [7, 7, 7, k], parent=None)
            sent.append(k)
            time.sleep(0.001)  # a pace that an engine may have
    t = threading.Thread(target=publish, daemon=True)
    t.start()
    wait_for("some", lambda: s.view()["blocks"] > 100)
    after = follow(s)
    taken(s, after)
    over.set()
    t.join()
    wait_for("all", lambda: after.view()["next_sequence"] == len(sent))
    v = after.view()
    assert (v["view"], v["blocks"]) == ("whole", len(sent)), v
    for k in (0, 50, len(sent) - 1):
        assert after.overlap([7, 7, 7, k])[(1, 0)] == 1


def test_a_partial_view_is_worth_more_than_none(rig):
    e, s, follow = rig(before=lambda e: e.stored([9], T[20:24]))
    e.stored([1, 2], T[:8])
    wait_for("seen", lambda: known(s) == (2, "partial", 2))
    after = follow(s)
    taken(s, after)
    assert known(after) == (2, "partial", 2)
    e.removed([2])
    wait_for("gone on with", lambda: known(after) == (1, "partial", 3))


def test_a_partial_view_that_knows_less_is_not_taken(start, rig, tmp_path):
    """The engine can say more again than the first process has heard, which had no replay endpoint."""
    def before(e):
        e.stored([9], T[36:40], keep=False)
        for k in range(5):
            e.stored([k + 1], T[4 * k:4 * k + 4], parent=k or None)
    e, s, _ = rig(before=before)
    e.stored([8], T[24:28])
    wait_for("seen", lambda: (s.view()["view"], s.view()["blocks"]) == ("partial", 1))
    m = start(Mock, with_events=False)
    spec = f"http://127.0.0.1:{m.port},block-size=4,events=tcp://127.0.0.1:{e.events},replay=tcp://127.0.0.1:{e.replay_port}"
    after = start(Serve, [spec], "--handover", tmp_path / "ports", "--restore-timeout", min(SLOW, 3), ports=(s.port, s.admin), wait=False)
    e.until("taken", lambda: s.p.poll() == 0, 60)
    wait_for("taken", lambda: "the ports are taken over" in after.text())
    assert known(after) == (5, "partial", 7) and "it knows less" in after.text()


def test_blocks_under_names_of_our_own_are_not_given(rig):
    e, s, follow = rig(before=lambda e: e.stored([9], T[20:24]))
    e.stored([8], T[24:28])
    wait_for("partial", lambda: s.view()["view"] == "partial")
    s.complete(T, max_tokens=1)  # all of it is computed: events would tell
    s.complete(T, max_tokens=1)
    wait_for("supposed", lambda: s.metric("view_supposed_blocks") > 0)
    after = follow(s)
    taken(s, after)
    assert after.metric("view_takeover_failures_total") == 1 and not after.overlap(T).get((1, 0))


def test_what_the_stream_remembers_goes_along(rig):
    """Later blocks of a salted chain do not name the salt again, and a block that the engine has twice is given up once."""
    e, s, follow = rig()
    store = lambda names, parent, tokens, *more: e.send(e.batch(["BlockStored", names, parent, tokens, 4, None, "GPU", *more]))  # noqa: E731
    store([1], None, T[:4], None, [["dynamo-cache-salt:tenant"]])
    store([8], None, T[20:24])
    store([8], None, T[20:24])
    wait_for("seen", lambda: s.view()["next_sequence"] == 3)
    after = follow(s)
    taken(s, after)
    store([2, 3], 1, T[4:12], None, [[], []])
    e.removed([8])
    wait_for("heard", lambda: after.view()["next_sequence"] == 5)
    assert after.overlap(T[:12], cache_salt="tenant")[(1, 0)] == 3 and not after.overlap(T[:12]).get((1, 0))
    assert after.overlap(T[20:24])[(1, 0)] == 1
    e.removed([8])
    wait_for("gone", lambda: not after.overlap(T[20:24]).get((1, 0)))
    assert after.view()["view"] == "whole"


def test_the_view_of_a_hybrid_model_is_not_given(rig):
    e, s, follow = rig()
    for group, kind in ((0, "full_attention"), (1, "sliding_window")):
        e.send(e.batch(["BlockStored", [1], None, T[:4], 4, None, "GPU", None, None, group, kind, 8 if group else None]))
    wait_for("seen", lambda: s.view()["view"] == "whole")
    after = follow(s)
    taken(s, after)
    assert after.metric("view_takeover_failures_total") == 1 and not after.overlap(T).get((1, 0))


def test_a_replay_that_reaches_back_needs_no_help(rig):
    e, s, follow = rig(replay=True)
    e.until("ready", lambda: call(s.port, "GET", "/ready").status == 200)
    e.stored([1, 2], T[:8])
    e.until("seen", lambda: known(s) == (2, "whole", 1))
    after = follow(s)
    e.until("taken", lambda: s.p.poll() == 0, 60)
    wait_for("taken", lambda: "the ports are taken over" in after.text())
    assert known(after) == (2, "whole", 1) and after.metric("view_takeovers_total") == 0


def test_a_replay_that_does_not_reach_back_goes_on_from_the_view(rig):
    e, s, follow = rig(replay=True)
    e.until("ready", lambda: call(s.port, "GET", "/ready").status == 200)
    e.stored([1, 2], T[:8])
    e.stored([3], T[8:12], parent=2)
    e.until("seen", lambda: known(s) == (3, "whole", 2))
    del e.sent[0]  # the engine's buffer
    after = follow(s)
    e.until("taken", lambda: s.p.poll() == 0, 60)
    e.until("whole", lambda: after.view()["view"] == "whole")
    assert known(after) == (3, "whole", 2) and after.metric("view_takeovers_total") == 1


def test_the_view_of_another_engine_is_not_taken(start, engine, rig, tmp_path):
    e, s, _ = rig()
    e.stored([1, 2, 3], T[:12])
    wait_for("seen", lambda: known(s)[0] == 3)
    m, other = start(Mock, with_events=False), engine()
    after = start(Serve, [f"http://127.0.0.1:{m.port},block-size=4,events=tcp://127.0.0.1:{other.events}"], "--handover", tmp_path / "ports",
                  ports=(s.port, s.admin), wait=False)
    taken(s, after)
    assert "its view is not taken over: it is of another events endpoint" in after.text()
    assert not after.overlap(T).get((1, 0)) and after.metric("view_takeover_failures_total") == 1


def test_questions_of_strangers_are_answered_with_nothing(rig, tmp_path):
    e, s, _ = rig()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as c:
        c.connect(str(tmp_path / "ports"))
        c.recv(64)
        for junk in (b"?", b"?x", b"?" + bytes(24), b"?" + struct.pack("QQQ", 1, (1 << 32) + 5, 0), b"?" + struct.pack("QQQ", 1, 7, 0), b"?" + b"\xff" * 24):
            c.send(junk)
            assert c.recv(64) == b"-"
        c.send(b"?" + struct.pack("QQQ", 1, 0, 1))
        assert c.recv(64) in (b"-", b".")
        e.stored([1], T[:4])
        wait_for("seen", lambda: known(s)[0] == 1)
        c.send(b"?" + struct.pack("QQQ", 1, 0, 9))
        assert c.recv(64) == b".", "not there yet"
        c.send(b"?" + struct.pack("QQQ", 1, 0, 1))
        text, fds, _, _ = socket.recv_fds(c, 64, 4)
        assert text == b"+" and len(fds) == 1 and os.pread(fds[0], 8, 0) == b"KVRSNAP\0"
        os.close(fds[0])
    assert s.complete("x").status == 200


def test_the_data_directory_goes_along(start, tmp_path):
    """It is the next one's when the first has let go of it; killed, that one goes on from there."""
    m = start(Mock)
    args = ([m], "--handover", tmp_path / "ports", "--data-dir", tmp_path / "data", "--lame-duck-time", 1)
    s = start(Serve, *args)
    assert s.complete(T[:16] * 4).status == 200
    wait_for("seen", lambda: s.view()["blocks"] == 4)
    for turn in range(2):
        after = start(Serve, *args, ports=(s.port, s.admin), wait=False)
        taken(s, after)
        assert s.text().count("--data-dir") == turn  # that it has it; nothing failed
        wait_for("its turn", lambda: f"'{tmp_path / 'data'}' is this process's now" in after.text())
        wait_for("a snapshot", lambda: after.metric("data_dir_snapshots_total") > 0)
        assert after.complete([turn] * 64).status == 200  # what comes after it is in the journal
        wait_for("written", lambda: after.metric("data_dir_journal_batches_total") > 0)
        s = after
    wait_for("seen", lambda: s.view()["blocks"] == 12)
    wait_for("pending", lambda: s.metric("data_dir_journal_bytes_total") > 0)
    s.kill()
    again = start(Serve, *args, ports=(s.port, s.admin))
    assert "blocks and" in again.text() and again.view()["blocks"] == 12 and again.metric("data_dir_restored_views_total") == 1


def test_a_drained_worker_stays_drained(start, tmp_path):
    mocks = [start(Mock), start(Mock)]
    args = ([mocks[0], mocks[1].spec(",state=draining")], "--handover", tmp_path / "ports")
    s = start(Serve, *args)
    for worker, state in ((1, "draining"), (2, "active")):
        assert call(s.admin, "PATCH", f"/workers/{worker}", {"state": state}).status == 200
    after = start(Serve, *args, ports=(s.port, s.admin), wait=False)
    taken(s, after)
    assert [w["state"] for w in sorted(after.get("/workers"), key=lambda w: w["worker_id"])] == ["draining", "active"]
    assert {after.complete(f"x{i}").headers["x-kvroute-worker"] for i in range(8)} == {"2"}
