# SPDX-License-Identifier: Apache-2.0
"""The access log: one line for each request of the data port, whatever becomes of it, and no line is lost or split."""
import json
import os
import re
import signal
import socket
import threading

import pytest

from conftest import Mock, Serve, call, free_ports, read_log, read_sse, wait_for
from test_failures import SSE, chunk
from test_proxy import upstream  # noqa: F401 (fixture)

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
PROMPT = "the same words again and again " * 20
# Every member that a line may have, as docs/guides/observe.md tells them.
MEMBERS = set("""time id client key method path protocol status ending model served_model stream prompt_tokens predicted_cached_tokens
cached_tokens completion_tokens worker_id dp_rank prefill_worker_id prefill_dp_rank overlap_blocks overlap_tiers reason attempts tokenize_ms queue_ms
choose_us connect_ms slo_ttft_ms ttft_ms worker_ttft_ms itl_mean_ms itl_max_ms total_ms bytes_in bytes_out session trace_id""".split())
COMBINED = re.compile(rb'(\S+) - (\S+) \[(\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d \+0000)\] "((?:[^"\\]|\\.)*)" (\d{3}) (\d+) "-" "-"((?: [a-z_]+=(?:[^ "]+|"(?:[^"\\]|\\.)*"))*)')


DOC = open(os.path.join(os.path.dirname(__file__), "../../docs/guides/observe.md"), encoding="utf-8").read()


def unique(pairs):
    assert len({k for k, _ in pairs}) == len(pairs), pairs
    return dict(pairs)


def lines_of(file):
    """Whole lines only, each strictly UTF-8 and JSON with each member once."""
    data = file.read_bytes() if file.exists() else b""
    whole = data[:data.rfind(b"\n") + 1].decode()
    found = [json.loads(l, object_pairs_hook=unique) for l in whole.splitlines()]
    assert all(set(l) <= MEMBERS for l in found), found
    return [l for l in found if l.get("path") not in ("/health", "/ready")]


class Log:
    def __init__(self, folder):
        self.file = folder / "access.log"

    def options(self, *more):
        return ["--access-log", self.file, *more]

    def lines(self, n):
        """Waits until there are n lines: they are written by a thread, a moment later."""
        wait_for(f"{n} lines", lambda: len(lines_of(self.file)) >= n)
        found = lines_of(self.file)
        assert len(found) == n, found
        return found


@pytest.fixture
def log(tmp_path):
    return Log(tmp_path)


def test_a_plain_answer_and_a_stream_have_a_line_with_what_is_known_of_them(start, log):
    s = start(Serve, [start(Mock)], *log.options())
    first = s.complete(PROMPT, model="mock")
    again = s.complete(PROMPT, headers={"x-request-id": "mine", "x-session-id": "secret-session"}, model="mock")
    c, r = read_sse(s.port, {"prompt": PROMPT, "max_tokens": 6, "stream": True, "stream_options": {"include_usage": True}})
    body = r.read()
    c.close()
    one, two, stream = log.lines(3)
    assert first.status == again.status == 200
    assert (one["status"], one["ending"], one["method"], one["path"], one["protocol"]) == (200, "ok", "POST", "/v1/completions", "HTTP/1.1")
    assert one["id"] == first.headers["x-request-id"] and one["client"] == "127.0.0.1" and one["attempts"] == 1 and not one["stream"]
    assert one["cached_tokens"] == 0 and one["reason"] == first.headers["x-kvroute-reason"] and one["worker_id"] == 1 and one["dp_rank"] == 0
    assert one["bytes_out"] == len(first.body) and one["bytes_in"] > len(PROMPT) and one["completion_tokens"] == 2
    assert two["id"] == "mine" and re.fullmatch("[0-9a-f]{16}", two["session"]) and two["model"] == "mock"
    usage = again.json()["usage"]
    assert two["prompt_tokens"] == usage["prompt_tokens"] and two["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"]
    assert two["overlap_blocks"] == int(again.headers["x-kvroute-overlap-blocks"])
    assert stream["stream"] and stream["ending"] == "ok" and stream["bytes_out"] == len(body) and stream["completion_tokens"] == 6
    assert stream["itl_max_ms"] >= stream["itl_mean_ms"] >= 0 and stream["total_ms"] >= stream["ttft_ms"] >= stream["worker_ttft_ms"] > 0
    text = log.file.read_text()
    assert "secret-session" not in text and "again and again" not in text


def test_whether_a_client_got_the_first_token_when_it_would_have_it_is_told(start, log):
    s = start(Serve, [start(Mock)], *log.options())
    asked = (60_000, 0.001, None)
    for ms in asked:
        c, r = read_sse(s.port, {"prompt": PROMPT, "max_tokens": 2, "stream": True}, {} if ms is None else {"x-slo-ttft-ms": str(ms)})
        r.read()
        c.close()
    assert tuple(line.get("slo_ttft_ms") for line in log.lines(3)) == asked
    assert tuple(d.get("slo_ttft_ms") for d in reversed(s.get("/decisions"))) == asked
    assert [s.metric("slo_ttft_total", outcome=o) for o in ("kept", "missed")] == [1, 1]
    for bad in ("0", "-1", "soon", "nan", "1e10", "1." + "0" * 40 + "x"):  # the last began as a number, and was taken for one
        assert s.complete(PROMPT, headers={"x-slo-ttft-ms": bad}).status == 400


def test_what_the_router_answers_or_refuses_itself_has_a_line(start, log):
    s = start(Serve, [start(Mock)], *log.options("--max-body-size", "4KiB"))
    asked = [("GET", "/v1/models", None), ("GET", "/nowhere?key=secret", None), ("GET", "/v1/completions", None), ("POST", "/v1/completions", b"no"),
             ("POST", "/v1/completions", {"prompt": "x", "model": "another"}), ("POST", "/v1/completions", b"x" * 5000)]
    answers = [call(s.port, m, p, b).status for m, p, b in asked]
    assert answers == [200, 404, 405, 400, 404, 413]
    found = log.lines(len(asked))
    assert [(l["method"], l["path"], l["status"]) for l in found] == [(m, p.split("?")[0], a) for (m, p, _), a in zip(asked, answers)]
    assert [l["ending"] for l in found] == ["ok"] + 4 * ["refused"] + ["malformed"]
    assert found[4]["model"] == "another" and "secret" not in log.file.read_text()


def test_what_is_no_request_at_all_has_a_line(start, log):
    s = start(Serve, [], *log.options(), ready=False)
    for bad, status in ((b"GET /x\"y\x1bz HTTP/1.1\r\nHost: a\r\n\r\n", 400), (b"GET /a HTTP/1.1\r\nHost : a\r\n\r\n", 400),
                        (b"GET /b HTTP/1.1\r\nHost: a\r\nx: " + b"y" * 70000 + b"\r\n\r\n", 431)):
        with socket.create_connection(("127.0.0.1", s.port), 30) as c:
            c.sendall(bad)
            assert c.recv(4000).startswith(b"HTTP/1.1 %d" % status)
    found = log.lines(3)
    assert [(l["status"], l["ending"], l["client"]) for l in found] == [(400, "malformed", "127.0.0.1")] * 2 + [(431, "malformed", "127.0.0.1")]


def test_a_client_that_goes_away_is_told_as_gone(start, log):
    s = start(Serve, [start(Mock, speedup=0.5)], *log.options())
    c, r = read_sse(s.port, {"prompt": PROMPT, "max_tokens": 10000, "stream": True})
    r.read1(100)
    c.sock.shutdown(socket.SHUT_RDWR)
    c.close()
    (l,) = log.lines(1)
    assert (l["ending"], l["status"]) == ("client_gone", 499) and l["bytes_out"] > 0


def test_a_worker_that_dies_in_mid_stream_is_told_as_broken(start, upstream, log):  # noqa: F811
    u = upstream([SSE + chunk(b'data: {"choices":[{"text":"a"}]}\n\n')])
    s = start(Serve, [u.spec()], *log.options())
    c, r = read_sse(s.port, {"prompt": "x", "max_tokens": 5, "stream": True})
    body = r.read()
    assert b"error" in body
    c.close()
    (l,) = log.lines(1)
    assert (l["ending"], l["status"], l["attempts"], l["bytes_out"]) == ("broken", 502, 1, len(body))


def test_attempts_are_counted_and_a_request_that_no_worker_took_says_so(start, upstream, log):  # noqa: F811
    bad, good = upstream(b"HTTP/1.1 503 Bad\r\nContent-Length: 0\r\n\r\n"), upstream(OK)
    s = start(Serve, [bad.spec(), good.spec()], "--router-mode", "round-robin", *log.options())
    while True:  # until the first worker was asked first
        assert s.complete("x").status == 200
        if s.metric("retries_total"):
            break
    n = int(s.metric("requests_total"))
    last = log.lines(n)[-1]
    assert (last["attempts"], last["worker_id"], last["ending"], last["status"]) == (2, 2, "ok", 200)
    alone = start(Serve, [bad.spec()], "--access-log", log.file.with_name("alone"), "--max-retries", 0)
    assert alone.complete("x").status == 503
    wait_for("its line", lambda: lines_of(log.file.with_name("alone")))
    (l,) = lines_of(log.file.with_name("alone"))
    assert (l["ending"], l["status"], l["attempts"]) == ("worker_failed", 503, 1)


@pytest.mark.parametrize("option, fault, ending", [("--first-token-timeout", "--fault-hang", "timeout_first_token"), ("--queue-timeout", None, "timeout_queue"),
                                                   ("--total-timeout", "--fault-hang", "timeout_total")])
def test_the_time_that_was_up_is_named(start, log, option, fault, ending):
    s = start(Serve, [start(Mock, fault)] if fault else [], option, 0.3, *log.options(), ready=bool(fault))
    assert s.complete("x").status in (503, 504)
    (l,) = log.lines(1)
    assert l["ending"] == ending and l["status"] in (503, 504)


def test_both_workers_of_two_legs_are_told(pair, log):
    s, _, _ = pair(*log.options())
    r = s.complete("x" * 100, model="m")
    assert r.status == 200
    (l,) = log.lines(1)
    assert l["prefill_worker_id"] == int(r.headers["x-kvroute-prefill-worker"]) and l["worker_id"] == int(r.headers["x-kvroute-worker"])
    assert l["cached_tokens"] == 32 and l["completion_tokens"] == 4


def test_two_processes_hashed_a_session_alike(start, tmp_path):
    """The seed of the tables whose keys clients choose is this one too, of each process and from the kernel."""
    m, seen = start(Mock), set()
    for i in range(3):
        file = tmp_path / f"{i}.log"
        s = start(Serve, [m], "--access-log", file, env={"KVR_SEED": ""})
        s.complete("x", headers={"x-session-id": "one"})
        wait_for("a line", lambda: lines_of(file))
        seen.add(lines_of(file)[0]["session"])
    assert len(seen) == 3, seen


def ask_much(s, clients, each):
    def ask():
        with socket.create_connection(("127.0.0.1", s.port), 60) as c:
            f = c.makefile("rb")
            for _ in range(each):
                c.sendall(b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n")
                length = 0
                while (head := f.readline()) != b"\r\n":
                    if head.lower().startswith(b"content-length:"):
                        length = int(head.split(b":")[1])
                f.read(length)
    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for t in threads:
        t.start()
    return threads


def test_no_line_is_lost_or_split_when_the_file_is_rotated_under_load(start, log):
    s = start(Serve, [], "--threads", 2, *log.options(), ready=False)
    clients, each, rotations = 4, 700, 0
    threads = ask_much(s, clients, each)
    while any(t.is_alive() for t in threads):
        if log.file.exists():
            log.file.rename(log.file.with_name(f"old.{rotations}"))
            rotations += 1
            s.p.send_signal(signal.SIGHUP)
            wait_for("opened anew", log.file.exists)
    for t in threads:
        t.join()
    s.stop()  # what waits is written at the end
    files = [log.file, *(log.file.with_name(f"old.{i}") for i in range(rotations))]
    assert all(f.read_bytes()[-1:] in (b"", b"\n") for f in files)
    assert rotations > 1 and sum(len(lines_of(f)) for f in files) == clients * each


def test_a_file_that_was_moved_is_noticed_without_a_signal(start, log):
    s = start(Serve, [], *log.options(), ready=False)
    log.file.rename(log.file.with_name("old"))
    wait_for("opened anew", log.file.exists)
    assert call(s.port, "GET", "/v1/models").status == 200
    log.lines(1)


def test_a_full_disk_costs_lines_and_no_request(start):
    s = start(Serve, [], "--access-log", "/dev/full", ready=False)
    for t in ask_much(s, 4, 2000):
        t.join()
    wait_for("lines are dropped", lambda: s.metric("access_log_dropped_lines_total") > 0)
    assert s.metric("access_log_write_errors_total") > 0
    assert s.text().count("cannot write: file=/dev/full") == 1 and "No space left" in s.text()


def test_lines_go_on_whole_when_a_disk_that_was_full_is_no_longer(start, log):
    s = start(Serve, [], *log.options(), ready=False, limits=[("fsize", 20000)])
    asked = 0
    while not s.metric("access_log_write_errors_total"):
        assert call(s.port, "GET", f"/v1/models/{asked}").status == 404
        asked += 1
    log.file.rename(log.file.with_name("old"))
    s.p.send_signal(signal.SIGHUP)
    wait_for("the rest", lambda: len(lines_of(log.file)) + len(lines_of(log.file.with_name("old"))) == asked)
    paths = [l["path"] for f in (log.file.with_name("old"), log.file) for l in lines_of(f)]
    assert paths == [f"/v1/models/{i}" for i in range(asked)] and s.metric("access_log_dropped_lines_total") == 0


def pairs_of(text):
    return {k.decode(): v for k, v in re.findall(rb' ([a-z_]+)=([^ "]+|"(?:[^"\\]|\\.)*")', text)}


HOSTILE = b'/v1/models/a"b\\c\' status=200\\" }{"'


def test_hostile_text_cannot_end_a_member_or_a_line(start, log):
    for kind in ("json", "combined"):
        log.file = log.file.with_name(kind)
        s = start(Serve, [start(Mock)], *log.options("--access-log-format", kind))
        s.complete("x", headers={"x-request-id": 'i"d\\=', "authorization": "Bearer sk-secret", "cookie": "c=secret"}, model='m"\n\x1b[31m\u202e')
        with socket.create_connection(("127.0.0.1", s.port), 30) as c:
            c.sendall(b"GET " + HOSTILE.replace(b" ", b"%20") + b" HTTP/1.1\r\nHost: a\r\n\r\n")
            assert c.recv(4000).startswith(b"HTTP/1.1 404")
        s.stop()
        raw = log.file.read_bytes()
        assert b"secret" not in raw and not re.search(rb"[\x00-\x09\x0b-\x1f\x7f-\xff]", raw)
        if kind == "json":
            asked, path = lines_of(log.file)
            assert asked["id"] == 'i"d\\=' and asked["model"].startswith('m"\\x0a\\x1b[31m\\xe2') and path["path"] == HOSTILE.replace(b" ", b"%20").decode()
            continue
        matches = [COMBINED.fullmatch(l) for l in raw.splitlines()]
        assert all(matches), raw
        asked, path = [m for m in matches if b"/v1/" in m[4]]
        assert pairs_of(asked[7])["id"] == b'"i\\"d\\\\="' and path[5] == b"404" and path[1] == b"127.0.0.1"


def test_standard_output_can_be_the_log(start):
    s = start(Serve, [], "--access-log", "-", ready=False)
    assert call(s.port, "GET", "/v1/models").status == 200
    wait_for("its line", lambda: '"path":"/v1/models"' in read_log(s.log))


def test_a_share_of_the_lines_keeps_every_error(start, log):
    s = start(Serve, [], *log.options("--access-log-sample", 0), ready=False)
    for path in ("/v1/models", "/none", "/v1/models", "/none"):
        call(s.port, "GET", path)
    assert [l["status"] for l in log.lines(2)] == [404, 404]


def test_a_log_that_cannot_be_written_is_said_at_the_start(start, tmp_path):
    s = start(Serve, [], "--access-log", tmp_path / "none" / "log", wait=False, expect=1)
    s.p.wait(20)
    assert "--access-log" in s.text() and "No such file" in s.text() and "allowed" in s.text()
    os.mkfifo(tmp_path / "pipe")
    s = start(Serve, [], "--access-log", tmp_path / "pipe", wait=False, expect=1, ports=(free_ports(), free_ports()))
    s.p.wait(20)
    assert "--access-log" in s.text()


def test_the_documentation_tells_each_member_and_its_lines_are_lines():
    table = DOC.split("| member | meaning |")[1].split("\n\n")[0]
    assert {m for row in table.splitlines()[2:] for m in re.findall("`([a-z_]+)`", row.split("|")[1])} == MEMBERS
    (line,) = re.findall("(?m)^\\{.*", DOC)
    told = json.loads(line, object_pairs_hook=unique)
    assert set(told) == MEMBERS - {"key", "slo_ttft_ms", "prefill_worker_id", "prefill_dp_rank", "overlap_tiers"}
    (combined,) = re.findall('(?m)^10.0.0.7 - .*', DOC)
    m = COMBINED.fullmatch(combined.encode())
    assert m and set(pairs_of(m[7])) <= {k.encode().decode() for k in MEMBERS}
