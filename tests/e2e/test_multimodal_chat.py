# SPDX-License-Identifier: Apache-2.0
"""Chats with images, sounds and files: two that differ in those alone are two prompts, and nothing is predicted that cannot be known."""
import base64
import json

import pytest
from conftest import Mock, Serve, call, wait_for
from http_parts import Handler, HttpServer

LONG = "a text of some length, so that it fills a number of blocks. " * 6
PIXELS = [base64.b64encode(bytes(range(256)) * 8 + bytes([i])).decode() for i in (1, 2)]


def url_part(kind, value, **more):
    return {"type": kind, kind: {"url": value}, **more}


# Two parts of each kind that are not the same.
KINDS = {
    "image_url": [url_part("image_url", f"http://h/{i}.png") for i in (1, 2)],
    "image_url of data": [url_part("image_url", "data:image/png;base64," + p) for p in PIXELS],
    "image_url as text": [{"type": "image_url", "image_url": f"http://h/{i}.png"} for i in (1, 2)],
    "image_url with uuid": [url_part("image_url", "http://h/1.png", uuid=f"u{i}") for i in (1, 2)],
    "uuid alone": [{"type": "image_url", "image_url": None, "uuid": f"u{i}"} for i in (1, 2)],
    "detail": [{"type": "image_url", "image_url": {"url": "http://h/1.png", "detail": d}} for d in ("low", "high")],
    "input_audio": [{"type": "input_audio", "input_audio": {"data": p, "format": "wav"}} for p in PIXELS],
    "audio_url": [url_part("audio_url", f"http://h/{i}.wav") for i in (1, 2)],
    "video_url": [url_part("video_url", f"http://h/{i}.mp4") for i in (1, 2)],
    "image": [{"type": "image", "image": f"file:///{i}"} for i in (1, 2)],
    "image_embeds": [{"type": "image_embeds", "image_embeds": p} for p in PIXELS],
    "input_image": [{"type": "input_image", "image_url": f"http://h/{i}.png"} for i in (1, 2)],
    "input_file": [{"type": "input_file", "file_id": f"f{i}"} for i in (1, 2)],
    "file": [{"type": "file", "file": {"file_data": p}} for p in PIXELS],
    "not known": [{"type": "smell", "of": i} for i in (1, 2)],
    "no type": [{"image_url": {"url": f"http://h/{i}.png"}} for i in (1, 2)],
}


def chat(part, before=LONG, after="What is it?", system=LONG):
    parts = [{"type": "text", "text": before}] * bool(before) + [part] * bool(part) + [{"type": "text", "text": after}]
    return {"messages": [{"role": "system", "content": system}] * bool(system) + [{"role": "user", "content": parts}], "max_tokens": 1}


def ask(s, body):
    r = call(s.port, "POST", "/v1/chat/completions", body)
    assert r.status == 200, r.body
    return int(r.headers["x-kvroute-overlap-blocks"]), r.headers["x-kvroute-reason"]


@pytest.fixture
def predicted(start):
    """A router that predicts from the bytes of the text."""
    return start(Serve, [start(Mock, with_events=False)], "--no-router-kv-events")


@pytest.mark.parametrize("kind", KINDS)
def test_predicted_mode_calls_two_images_two_prompts(predicted, kind):
    s, (one, two) = predicted, KINDS[kind]
    text_blocks = (len(LONG) * 2 + 60) // 16
    assert ask(s, chat(one)) == (0, "load")
    same, _ = ask(s, chat(one))
    other, _ = ask(s, chat(two))
    none, _ = ask(s, chat(None))
    assert same > other and other <= text_blocks and none <= text_blocks
    assert other >= len(LONG) * 2 // 16  # the text before it is shared
    assert ask(s, chat(two))[0] == same  # and what was recorded is its own


def test_predicted_mode_tells_tools_apart(predicted):
    s = predicted
    body = {**chat(None), "tools": [{"type": "function", "function": {"name": "f"}}]}
    ask(s, chat(None))
    assert ask(s, body)[0] == 0
    assert ask(s, body)[0] > 0
    assert ask(s, {**body, "tools": [{"type": "function", "function": {"name": "g"}}]})[0] == 0


@pytest.mark.parametrize("one, two", [({"prompt_embeds": PIXELS[0]}, {"prompt_embeds": PIXELS[1]}),
                                      ({"prompt": [[1] * 64, [2] * 64]}, {"prompt": [[3] * 64, [4] * 64]})], ids=["embeddings", "lists of tokens"])
def test_predicted_mode_tells_other_prompts_apart(start, one, two):
    e = PlaceholderEngine()
    s = start(Serve, [e.url], "--no-router-kv-events", "--block-size", 4)

    def overlap(body):
        r = call(s.port, "POST", "/v1/completions", {"prompt": LONG, "max_tokens": 1, **body})
        assert r.status == 200, r.body
        return int(r.headers["x-kvroute-overlap-blocks"])
    assert [overlap(one), overlap(two)] == [0, 0] and overlap(one) > 0
    e.close()


def test_text_parts_are_the_text_they_are(predicted):
    s = predicted
    ask(s, {"messages": [{"role": "user", "content": LONG}], "max_tokens": 1})
    assert ask(s, {"messages": [{"role": "user", "content": [{"type": "text", "text": LONG}]}], "max_tokens": 1})[0] >= len(LONG) // 16
    assert s.metric("multimodal_prompts_total") == 0


class PlaceholderEngine(HttpServer):
    """An engine whose tokenizer puts one token where an image goes, as engines do; `style`: where that is, or what goes wrong."""
    IMAGE = 70000

    def __init__(self, style="in place"):
        self.style, self.tokenized, self.served = style, [], []
        engine = self

        class Answers(Handler):
            def do_GET(self):
                self.answer(200 if self.path == "/health" else 404)

            def do_POST(self):
                body = json.loads(self.body())
                if self.path == "/tokenize":
                    engine.tokenized.append(body)
                    tokens = engine.tokens(body)
                    self.answer(200 if tokens else 500, {"tokens": tokens})
                else:
                    engine.served.append(body)
                    self.answer(200, {"usage": {"prompt_tokens": 5000, "completion_tokens": 1,
                                                "prompt_tokens_details": {"cached_tokens": 4800}}})
        super().__init__(Answers)

    def tokens(self, body):
        out, images = [], 0
        for m in body["messages"]:
            parts = m["content"] if isinstance(m["content"], list) else [{"type": "text", "text": m["content"]}]
            text = [t for p in parts if p["type"] == "text" for t in p["text"].encode()]
            n = sum(p["type"] != "text" for p in parts)
            images += n
            out.append(60000)
            if self.style == "in place":
                for p in parts:
                    out += list(p["text"].encode()) if p["type"] == "text" else [self.IMAGE]
            elif self.style == "no trace":
                out += text
            else:
                out += [self.IMAGE] * n + text
        if self.style == "fails without" and not images:
            return None
        return ([self.IMAGE] * images if self.style == "at the front" else []) + out + [60001]


@pytest.fixture
def placeholders(start):
    made = []

    def make(style):
        e = PlaceholderEngine(style)
        made.append(e)
        return e, start(Serve, [e.url], "--no-router-kv-events", "--tokenizer", "engine")
    yield make
    for e in made:
        e.close()


@pytest.mark.parametrize("style, known", [("in place", 2 * len(LONG)), ("before the message's text", len(LONG)), ("at the front", 0)])
def test_nothing_is_predicted_beyond_the_first_image(placeholders, style, known):
    """The tokens of two images are equal; so are those of one image asked for twice, but how many it makes nobody says."""
    _, s = placeholders(style)
    one, two = KINDS["image_url"]
    ask(s, chat(None))
    for part in (one, two, one, two):
        blocks, reason = ask(s, chat(part))
        assert blocks == known // 16 and reason == ("kv" if known else "load")
    assert ask(s, chat(None, after="More?"))[0] <= (2 * len(LONG) + 16) // 16  # nothing was recorded that text hits
    assert s.metric("multimodal_prompts_total") == 4 and s.metric("multimodal_unplaced_total") == 0


@pytest.mark.parametrize("style", ["no trace", "fails without"])
def test_an_image_whose_place_is_not_known_is_routed_by_load(placeholders, style):
    _, s = placeholders(style)
    for _ in range(2):
        assert ask(s, chat(KINDS["image_url"][0])) == (0, "load-multimodal")
    assert s.metric("multimodal_unplaced_total") == 2
    assert ask(s, chat(KINDS["image_url"][1]))[0] == 0


def test_tokens_given_beside_an_image_are_not_believed(placeholders):
    e, s = placeholders("in place")
    body = {**chat(KINDS["image_url"][0]), "nvext": {"token_data": list(range(64))}}
    for _ in range(2):
        assert ask(s, body) == (0, "load-multimodal")
    assert not e.tokenized
    text = {**chat(None), "nvext": {"token_data": list(range(64))}}
    ask(s, text)
    assert ask(s, text) == (4, "kv")


def test_a_chat_with_images_reaches_the_engine_unchanged(placeholders):
    e, s = placeholders("in place")
    body = chat(KINDS["image_url of data"][0])
    ask(s, body)
    assert e.served == [body]
    assert e.tokenized[0] == {"messages": body["messages"]} and [len(m["content"]) for m in e.tokenized[1]["messages"]] == [len(LONG), 2]
    ask(s, chat(KINDS["image_url of data"][1]))
    assert len(e.tokenized) == 3  # the chat without the image was known


def test_large_images_are_read_on_a_thread(placeholders, start):
    """Beyond the size that a data loop reads by itself: the same figures, in both ways of making tokens."""
    _, s = placeholders("in place")
    bytes_mode = start(Serve, [start(Mock, with_events=False)], "--no-router-kv-events")
    one, two = (url_part("image_url", "data:image/png;base64," + base64.b64encode(bytes([i]) * (1 << 20)).decode()) for i in (1, 2))
    ask(s, chat(None))
    for part in (one, two):
        assert ask(s, chat(part)) == (2 * len(LONG) // 16, "kv")
    ask(bytes_mode, chat(one))
    same, other = ask(bytes_mode, chat(one))[0], ask(bytes_mode, chat(two))[0]
    assert same > other >= 2 * len(LONG) // 16


def test_what_is_not_known_of_images_is_not_compared(placeholders):
    """The engine reports far more cached tokens than could be predicted; no alarm, no figure comes of it."""
    _, s = placeholders("in place")
    ask(s, chat(KINDS["image_url"][0]))
    ask(s, chat(KINDS["image_url"][0]))
    wait_for("over", lambda: len(s.get("/decisions")) == 2)
    assert s.metric("actual_cached_tokens_total") == s.metric("predicted_cached_tokens_total") == 0
    ask(s, chat(None))
    wait_for("counted", lambda: s.metric("actual_cached_tokens_total") == 4800)


def test_answers_to_images_are_no_evidence_against_a_view(start):
    """An engine's events say of an image what no router can know: its blocks are not looked for."""
    m = start(Mock)
    s = start(Serve, [m])
    wait_for("trusted", lambda: s.view().get("trusted"))
    part = KINDS["image_url of data"][0]
    for i in range(12):
        ask(s, chat(part, before=f"{i} {LONG}", system=""))
    assert ask(s, chat(None))[1] in ("load", "kv")
    wait_for("looked at", lambda: s.metric("view_evidence_total", outcome="fine") == 1)
    assert s.view()["trusted"] and s.metric("view_evidence_total", outcome="missing") == 0 and s.metric("view_evidence_total", outcome="none") == 12


def test_a_full_hit_is_the_same_figure_in_decisions_and_totals(start):
    """An engine computes at least one token, so of a fully cached prompt one block less is cached."""
    s = start(Serve, [start(Mock)])
    prompt = list(range(1, 65))  # four blocks
    s.complete(prompt)
    wait_for("events", lambda: s.metric("index_blocks") >= 4)
    r = s.complete(prompt)
    assert r.headers["x-kvroute-reason"] == "kv"
    wait_for("counted", lambda: s.metric("actual_cached_tokens_total") == 48 and len(s.get("/decisions")) == 2)
    decision = s.get("/decisions")[0]
    assert decision["predicted_cached_tokens"] == decision["actual_cached_tokens"] == s.metric("predicted_cached_tokens_total") == 48
    assert s.get("/status")["decisions"][0]["predicted_cached_tokens"] == s.get("/status")["predicted_cached_tokens"] == 48
