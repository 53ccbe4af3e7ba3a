# SPDX-License-Identifier: Apache-2.0
"""What the picker learns of answers: when a prompt is computed, what was cached, and when it is over, in each way that Envoy shows them."""
import asyncio
import http.client
import json
import os
import re

import pytest
import yaml

from clients import one
from conftest import HTTP, ROOT, Mock, Sink, asking, before_asking, cluster, manager, processing, read_sse, route, stays, wait_for


def prefill_tokens(picker):
    return sum(load["active_prefill_tokens"] for load in picker.get("/loads"))


def test_a_prompt_is_computed_at_the_first_piece_and_not_at_the_head(gateway, start, mode):
    """vLLM sends the head of a stream before it computes."""
    envoy, picker = gateway(mode, [start(Mock, "--fault-bare-stream")])
    c, r = read_sse(envoy.port, {"prompt": [1] * 640, "max_tokens": 5, "stream": True})
    assert r.status == 200
    wait_for("booked", lambda: picker.booked() == 1)
    stays("to be computed", lambda: prefill_tokens(picker) == 640, 0.5)
    c.close()
    wait_for("idle", picker.idle)


def test_the_first_piece_marks_the_prompt_as_computed(gateway, start, mode):
    envoy, picker = gateway(mode, [start(Mock, speedup=0.5)])
    c, r = read_sse(envoy.port, {"prompt": [1] * 640, "max_tokens": 3000, "stream": True})
    assert r.read1(100)
    wait_for("computed", lambda: picker.booked() == 1 and prefill_tokens(picker) == 0)
    c.close()
    wait_for("idle", picker.idle)
    assert picker.metric("time_to_first_token_seconds_count") >= 1


def auto(conf):
    """buffered.yaml that shows no answers unless the picker asks for them."""
    asking(conf)["processing_mode"]["response_body_mode"] = "NONE"
    asking(conf)["allow_mode_override"] = True


def test_answers_are_asked_for_on_paths_that_generate_and_no_others(gateway, start):
    m = start(Mock)
    envoy, picker = gateway("buffered", [m], "--ext-proc-watch", "auto", edits=[auto])
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    assert envoy.complete([1] * 64, **usage).status == 200
    wait_for("usage", lambda: picker.metric("usage_answers_total") == 1)
    sent = envoy.stats("http.clients.ext_proc.stream_msgs_sent")
    assert envoy.ask(None, path="/v1/models", method="GET").status == 200
    assert envoy.stats("http.clients.ext_proc.stream_msgs_sent") - sent <= 2  # heads alone
    wait_for("idle", picker.idle)


def test_where_answers_are_not_shown_their_end_is_heard(gateway, start):
    """BUFFERED, NONE: nothing of an answer comes, but Envoy closes the stream at its end."""
    m = start(Mock, speedup=0.5)
    envoy, picker = gateway("buffered", [m], edits=[processing(response_body_mode="NONE")])
    c, r = read_sse(envoy.port, {"prompt": [1] * 640, "max_tokens": 3000, "stream": True})
    r.read1(100)
    stays("booked", lambda: picker.booked() == 1, 0.5)
    c.close()
    wait_for("idle", picker.idle)
    assert envoy.complete([1] * 640, max_tokens=4).status == 200
    wait_for("idle", picker.idle)


def test_where_the_end_is_not_heard_a_lease_frees_the_booking_and_a_warning_says_so_once(gateway, start):
    """FULL_DUPLEX_STREAMED, NONE: Envoy closes the stream behind the head of the answer."""
    m = start(Mock)
    edits = [processing(response_body_mode="NONE", response_trailer_mode="SKIP")]
    envoy, picker = gateway("duplex", [m], "--ext-proc-unseen-secs", 1, edits=edits)
    for i in range(3):
        assert envoy.complete([i] * 64, max_tokens=4).status == 200
    wait_for("streams", lambda: envoy.asking() == 0)
    wait_for("idle", picker.idle)
    assert picker.metric("ext_proc_unseen_total") == 3
    warned = [line for line in picker.text().splitlines() if " warning " in line and re.search("unseen|end of (answers|responses)|FULL_DUPLEX", line)]
    assert len(warned) == 1, picker.text()


def observer():
    """The filter of docs/guides/gateway.md."""
    with open(os.path.join(ROOT, "docs/guides/gateway.md"), encoding="utf-8") as f:
        return next(filters[0] for text in re.findall(r"```yaml\n(.*?)```", f.read(), re.S) if (filters := yaml.safe_load(text))[0]["name"] == "observer")


def observed(where="behind"):
    """An edit: no answers for the picker's filter, and one that observes, before or behind it."""
    def edit(conf):
        asking(conf)["processing_mode"].update(response_body_mode="NONE", response_trailer_mode="SKIP")
        asking(conf)["message_timeout"] = "30s"  # of heads of answers: they have one behind a duplex request, too
        filters = manager(conf)["http_filters"]
        at = next(i for i, f in enumerate(filters) if f["name"] == "envoy.filters.http.ext_proc")
        filters.insert(at + (where == "behind"), observer())
    return edit


USAGE = {"stream": True, "stream_options": {"include_usage": True}}


@pytest.mark.parametrize("where", ["before", "behind"])
def test_a_second_filter_that_observes_learns_usage_and_the_end(gateway, start, mode, where):
    """NONE, and a filter in observability_mode: its stream is joined by x-request-id, and nothing is answered on it."""
    envoy, picker = gateway(mode, [start(Mock)], "--ext-proc-unseen-secs", 300, "--threads", 2, edits=[observed(where)])
    for i in range(6):
        r = envoy.complete([i] * 64, max_tokens=6, **USAGE)
        assert r.status == 200 and r.body.endswith(b"data: [DONE]\n\n")
    assert envoy.complete([9] * 64, max_tokens=6).status == 200
    wait_for("usage", lambda: picker.metric("usage_answers_total") == 7)
    wait_for("idle", picker.idle)
    assert picker.metric("ext_proc_observed_total") == 7 and picker.metric("client_gone_total") == 0
    assert envoy.stats("http.clients.ext_proc.spurious_msgs_received") == envoy.stats("http.clients.ext_proc.streams_failed") == 0
    wait_for("no streams", lambda: envoy.asking() == 0)


def test_a_prompt_is_computed_and_a_client_leaves_in_sight_of_the_filter_that_observes(gateway, start, mode):
    envoy, picker = gateway(mode, [start(Mock, speedup=0.5)], "--ext-proc-unseen-secs", 300, edits=[observed()])
    c, r = read_sse(envoy.port, {"prompt": [1] * 640, "max_tokens": 3000, "stream": True})
    assert r.read1(100)
    wait_for("computed", lambda: picker.booked() == 1 and prefill_tokens(picker) == 0)
    c.close()
    wait_for("idle", picker.idle)
    assert picker.metric("client_gone_total") == 1


def test_a_stream_outlives_the_picker_that_observes_it(gateway, start, mode):
    envoy, picker = gateway(mode, [start(Mock, speedup=1)], edits=[observed()])
    c, r = read_sse(envoy.port, {"prompt": [1] * 64, "max_tokens": 400, "stream": True})
    had = r.read1(100)
    wait_for("observed", lambda: picker.metric("ext_proc_observed_total") == 1)
    picker.kill()
    assert (had + r.read()).endswith(b"data: [DONE]\n\n")
    c.close()


def test_many_answers_on_several_threads_are_each_told_by_the_filter_that_observes(gateway, start, mode):
    envoy, picker = gateway(mode, [start(Mock), start(Mock)], "--ext-proc-unseen-secs", 300, "--threads", 3, edits=[observed()], concurrency=3)

    async def everybody():
        return await asyncio.gather(*(one(envoy.port, json.dumps({"prompt": [i] * 64, "max_tokens": 40, **USAGE}).encode()) for i in range(60)))
    assert not [x for x in asyncio.run(everybody()) if x[0] != 200 or not x[2].endswith(b"data: [DONE]\n\n")]
    wait_for("idle", picker.idle)
    assert picker.metric("usage_answers_total") == picker.metric("ext_proc_observed_total") == 60


def test_an_id_that_is_missing_is_the_pickers_for_a_filter_behind_it(gateway, start):
    def nameless(conf):
        manager(conf)["generate_request_id"] = False
    for where, told in ("behind", 1), ("before", 0):
        envoy, picker = gateway("buffered", [start(Mock)], edits=[observed(where), nameless])
        assert envoy.complete([1] * 64, max_tokens=6, **USAGE).status == 200
        wait_for("idle", picker.idle)
        assert picker.metric("ext_proc_observed_total") == told and picker.metric("ext_proc_observers_unknown_total") == 1 - told


def test_an_id_that_is_changed_on_the_way_joins_nothing_and_the_booking_ends_all_the_same(gateway, start):
    """The filter that observes, one that sets another id, the picker's."""
    rename = before_asking("rename", **{"@type": f"{HTTP}.header_mutation.v3.HeaderMutation", "mutations": {"request_mutations": [
        {"append": {"header": {"key": "x-request-id", "value": "other"}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}}]}})
    envoy, picker = gateway("buffered", [start(Mock)], edits=[observed("before"), rename])
    assert envoy.complete([1] * 64, max_tokens=6, **USAGE).status == 200
    wait_for("idle", picker.idle)
    wait_for("counted", lambda: picker.metric("ext_proc_observers_unknown_total") == 1)
    assert picker.metric("ext_proc_observed_total") == 0 and picker.metric("usage_answers_total") == 0


def test_what_the_picker_refuses_is_nobodys_for_the_filter_that_observes(gateway, start, mode):
    for where in "behind", "before":
        envoy, picker = gateway(mode, [start(Mock)], edits=[observed(where)])
        assert envoy.ask({"prompt": "x", "model": "nobody"}).status == 404
        wait_for("no streams", lambda: envoy.asking() == 0)
        assert picker.idle() and picker.metric("ext_proc_observed_total") == 0


class Moves(Sink):
    """Says of each POST that it is to be asked for elsewhere: here, where it answers."""

    def __init__(self):
        super().__init__()
        answer = self.server.RequestHandlerClass.reply

        def reply(handler, status, data):
            if handler.command == "GET" or handler.path.endswith("?again"):
                answer(handler, status, b'{"choices":[{"text":"x"}],"usage":{"prompt_tokens":64,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":0}}}')
                return
            handler.send_response(307)
            handler.send_header("Location", f"http://{handler.headers['Host']}/v1/completions?again")
            handler.send_header("Content-Length", "0")
            handler.end_headers()
        self.server.RequestHandlerClass.reply = reply


@pytest.mark.parametrize("where", ["before", "behind"])
def test_a_request_that_envoy_redirects_itself_is_booked_and_observed_anew(gateway, sink, where):
    """Its second round has the id of the first."""
    def follow(conf):
        route(conf)["internal_redirect_policy"] = {"max_internal_redirects": 1, "redirect_response_codes": [307]}
    worker = sink(Moves)
    envoy, picker = gateway("buffered", [worker], edits=[observed(where), follow])
    assert envoy.complete([1] * 64).status == 200 and [x["path"] for x in worker.got] == ["/v1/completions", "/v1/completions?again"]
    assert worker.got[0]["headers"]["x-request-id"] == worker.got[1]["headers"]["x-request-id"]
    wait_for("idle", picker.idle)
    assert picker.metric("ext_proc_decisions_total") == 2 and picker.metric("ext_proc_observed_total") == picker.metric("usage_answers_total") == 1


@pytest.mark.parametrize("kill", [False, True])
def test_of_two_pickers_with_priorities_one_gets_both_streams(gateway, start, mode, kill):
    def priorities(conf):
        cluster(conf, "kvroute")["load_assignment"]["endpoints"] = [{"priority": 0}, {"priority": 1}]
    envoy, pickers = gateway(mode, [start(Mock)], "--ext-proc-unseen-secs", 300, pickers=2, edits=[observed(), priorities])
    if kill:
        pickers.pop(0).kill()
        wait_for("noticed", lambda: envoy.healthy() == 1, 20)
    for i in range(6):
        assert envoy.complete([i] * 64, max_tokens=6, **USAGE).status == 200
    wait_for("idle", pickers[0].idle)
    assert [p.metric("usage_answers_total") for p in pickers] == [6, 0][:len(pickers)]


def test_an_answer_that_is_no_stream_is_computed_at_its_end(gateway, start, mode):
    envoy, picker = gateway(mode, [start(Mock, speedup=2)])
    c = http.client.HTTPConnection("127.0.0.1", envoy.port, timeout=60)
    c.request("POST", "/v1/completions", json.dumps({"prompt": [1] * 640, "max_tokens": 100}))
    wait_for("decided", lambda: picker.metric("ext_proc_decisions_total") == 1)
    r = c.getresponse()
    r.read()
    wait_for("idle", picker.idle)
    assert picker.metric("usage_answers_total") == 1
    c.close()
