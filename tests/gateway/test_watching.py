# SPDX-License-Identifier: Apache-2.0
"""What the picker learns of answers: when a prompt is computed, what was cached, and when it is over, in each way that Envoy shows them."""
import http.client
import json
import re

import pytest

from conftest import Mock, asking, before_asking, manager, processing, read_sse, stays, wait_for


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


def test_a_second_filter_that_observes_learns_usage_and_the_end(gateway, start):
    """BUFFERED, NONE, and a filter in observability_mode: its stream is joined by x-request-id, and nothing is answered on it."""
    m = start(Mock)

    def observe(conf):
        asking(conf)["processing_mode"]["response_body_mode"] = "NONE"
        picks = next(f for f in manager(conf)["http_filters"] if f["name"] == "envoy.filters.http.ext_proc")
        before_asking("observer", **{
            "@type": picks["typed_config"]["@type"], "grpc_service": picks["typed_config"]["grpc_service"], "observability_mode": True,
            "failure_mode_allow": True, "response_attributes": ["upstream.address"],
            "processing_mode": {"request_header_mode": "SEND", "response_header_mode": "SEND", "response_body_mode": "STREAMED"}})(conf)
    envoy, picker = gateway("buffered", [m], edits=[observe])
    for i in range(3):
        r = envoy.complete([i] * 64, max_tokens=6, stream=True, stream_options={"include_usage": True})
        assert r.status == 200 and r.body.endswith(b"data: [DONE]\n\n")
    wait_for("usage", lambda: picker.metric("usage_answers_total") == 3)
    wait_for("idle", picker.idle)
    assert envoy.stats("http.clients.ext_proc.spurious_msgs_received") == 0


def test_an_answer_that_is_no_stream_is_computed_at_its_end(gateway, start, mode):
    envoy, picker = gateway(mode, [start(Mock, speedup=2)])
    c = http.client.HTTPConnection("127.0.0.1", envoy.port, timeout=60)
    c.request("POST", "/v1/completions", json.dumps({"prompt": [1] * 640, "max_tokens": 100}))
    wait_for("booked", lambda: picker.booked() == 1)
    r = c.getresponse()
    r.read()
    wait_for("idle", picker.idle)
    assert picker.metric("usage_answers_total") == 1
    c.close()
