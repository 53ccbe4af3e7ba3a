# SPDX-License-Identifier: Apache-2.0
"""A protected and watched router as an operator runs it, all of it at once: TLS, keys, limits, a canary, an access log, traces. Certificates, keys and
the file of models change under load without a failing request; and what went wrong is found in the log, the trace and the metrics."""
import collections
import json
import signal
import threading

from conftest import Mock, Serve, call, wait_for
from http_parts import Handler, HttpServer
from tls_parts import Authority, context, put

ALICE, BOB, CAROL = (f"sk-{name}-0123456789" for name in ("alice", "bob", "carol"))
PROMPT = list(range(1000, 1064))


class Collector(HttpServer):
    """Keeps the spans that it gets."""

    def __init__(self):
        outer = self
        self.spans = []

        class Answers(Handler):
            def do_POST(self):
                told = json.loads(self.body())
                outer.spans += [s for r in told["resourceSpans"] for x in r["scopeSpans"] for s in x["spans"]]
                self.answer(200, {})
        super().__init__(Answers)


def keys(extra=""):
    return f"keys:\n  - {{name: alice, key: {ALICE}}}\n  - {{name: bob, key: {BOB}, requests_per_second: 0.001, burst_requests: 3}}\n{extra}"


def models(weight):
    return f"models:\n  m:\n    targets:\n      - {{model: old, weight: {100 - weight}}}\n      - {{model: new, weight: {weight}}}\n"


def test_an_operators_day(start, tmp_path):
    collector, ca = Collector(), Authority(tmp_path, "ca")
    at, pairs = (tmp_path / "cert.pem", tmp_path / "key.pem"), [ca.sign("one"), ca.sign("two")]
    put(pairs[0], at)
    (tmp_path / "keys.yaml").write_text(keys())
    (tmp_path / "models.yaml").write_text(models(5))
    c = context(ca.file)
    old, new, spare = (start(Mock, "--model", name, with_events=False) for name in ("old", "new", "old"))
    s = start(Serve, [old, new, spare], "--no-router-kv-events", "--tls-cert", at[0], "--tls-key", at[1], "--api-key-file", tmp_path / "keys.yaml",
              "--models-file", tmp_path / "models.yaml", "--access-log", tmp_path / "access.log", "--otlp-endpoint", f"http://127.0.0.1:{collector.port}",
              "--trace-sample", 1, tls=c)

    def ask(key, session=None, **headers):
        return call(s.port, "POST", "/v1/completions", {"model": "m", "prompt": PROMPT, "max_tokens": 2},
                    {"Authorization": f"Bearer {key}", **({"x-session-id": session} if session else {}), **headers})

    def lines():
        return [json.loads(l) for l in (tmp_path / "access.log").read_text().splitlines()]

    def again(text):
        n = s.text().count("SIGHUP: read again")
        s.p.send_signal(signal.SIGHUP)
        wait_for(text, lambda: s.text().count("SIGHUP: read again") > n)
    try:
        # the canary: of 400 sessions those that the draw gives, and each stays where it is
        went = {f"s{i}": ask(ALICE, f"s{i}").headers["x-kvroute-model"] for i in range(400)}
        share = collections.Counter(went.values())
        assert set(share) == {"old", "new"} and 4 <= share["new"] <= 44, share
        assert all(ask(ALICE, i).headers["x-kvroute-model"] == went[i] for i in list(went)[:40])
        # a tenant that has had its share
        assert [ask(BOB).status for _ in range(4)] == [200, 200, 200, 429]
        assert ask("sk-nobody-0123456789").status == 401
        # everything changes under load; a bad file changes nothing
        stop, failed, done = threading.Event(), [], [0]

        def load():
            while not stop.is_set():
                a = ask(ALICE)
                failed.extend([a.status, a.body] if a.status != 200 else [])
                done[0] += 1
        threads = [threading.Thread(target=load) for _ in range(2)]
        for t in threads:
            t.start()
        try:
            for i in range(1, 5):
                put(pairs[i % 2], at)
                (tmp_path / "keys.yaml").write_text(keys(f"  - {{name: carol, key: {CAROL}}}\n" if i % 2 else ""))
                (tmp_path / "models.yaml").write_text(models(50 if i % 2 else 5))
                again("new files")
                assert ask(CAROL).status == (200 if i % 2 else 401)
            (tmp_path / "models.yaml").write_text("models:\n  m: {alias_off: old}\n")
            again("a bad file")
            assert "models.yaml:2" in s.text() and "alias_off" in s.text()
            assert s.metric("config_last_reload_successful", file="models") == 0 and s.metric("config_last_reload_successful", file="api-keys") == 1
            # a worker is lost: the others go on, and the one request that met it was sent again
            spare.kill()
            wait_for("down", lambda: [w["status"] for w in s.get("/workers")] == ["up", "up", "down"])
        finally:
            stop.set()
            for t in threads:
                t.join()
        assert failed == [] and done[0] > 0
        # why was it refused, who was it, where did it go
        a = ask(BOB, **{"x-request-id": "the-one-that-was-refused"})
        assert a.status == 429 and int(a.headers["retry-after"]) >= 1
        ask(ALICE, **{"x-request-id": "the-one-that-was-answered"})
        wait_for("the log", lambda: {l.get("id") for l in lines()} >= {"the-one-that-was-refused", "the-one-that-was-answered"})
        told = {l["id"]: l for l in lines() if l.get("id")}
        refused, answered = told["the-one-that-was-refused"], told["the-one-that-was-answered"]
        assert (refused["status"], refused["key"], refused["ending"]) == (429, "bob", "refused"), refused
        assert (answered["status"], answered["key"], answered["model"], answered["ending"]) == (200, "alice", "m", "ok") and answered["served_model"] in ("old", "new")
        assert sum(l["status"] == 401 for l in lines()) >= 3
        wait_for("the trace", lambda: any(x["traceId"] == answered["trace_id"] for x in collector.spans), 30)
        names = {x["name"] for x in collector.spans if x["traceId"] == answered["trace_id"]}
        assert len(names) >= 3, names
        assert s.metric("key_refused_total", key="bob") >= 2 and s.metric("access_log_dropped_lines_total") == 0
        for secret in (ALICE, BOB, CAROL):
            assert secret not in s.text() + (tmp_path / "access.log").read_text() + json.dumps(collector.spans)
    finally:
        collector.close()
