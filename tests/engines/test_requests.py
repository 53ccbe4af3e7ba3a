# SPDX-License-Identifier: Apache-2.0
"""Requests as users send them: each kind three times, and each time the router must have known how much of it is cached."""
import uuid

import pytest
from harness import BLOCK, blocks, cached, post, predicted, prompt_tokens, tokens, wait_until, words, worker

COMPLETIONS, CHAT, RESPONSES, MESSAGES = "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"


def completion(**more):
    return COMPLETIONS, lambda text: {"prompt": text, "max_tokens": 2, **more}


def chat(**more):
    return CHAT, lambda text: {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": text}], "max_tokens": 2, **more}


def response(**more):
    return RESPONSES, lambda text: {"input": text, "max_output_tokens": 2, **more}


def items(*after):
    return RESPONSES, lambda text: {"input": [{"role": "user", "content": text}, *after], "max_output_tokens": 2}


def message(content=None, **more):
    return MESSAGES, lambda text: {"messages": [{"role": "user", "content": content(text) if content else text}], "max_tokens": 2, **more}


USAGE = {"stream": True, "stream_options": {"include_usage": True}}
KINDS = {
    "plain": completion(), "chat": chat(), "stream": completion(**USAGE), "chat stream": chat(**USAGE),
    "truncated to the room": completion(truncate_prompt_tokens=-1), "truncated": completion(truncate_prompt_tokens=70),
    "truncated on the left": completion(truncate_prompt_tokens=70, truncation_side="left"),
    "truncated on the right": completion(truncate_prompt_tokens=70, truncation_side="right"),
    "truncated chat": chat(truncate_prompt_tokens=70), "truncated chat, special tokens": chat(truncate_prompt_tokens=70, add_special_tokens=True),
    "truncation without effect": completion(truncate_prompt_tokens=2000), "no special tokens": completion(add_special_tokens=False),
    "special tokens": chat(add_special_tokens=True), "no generation prompt": chat(add_generation_prompt=False),
    "documents": chat(documents=[{"title": "a", "text": "b"}]), "effort": chat(reasoning_effort="high"),
    "template arguments": chat(chat_template_kwargs={"bos_token": "zz"}), "echo": completion(echo=True), "logprobs": completion(logprobs=1),
    "best_of": completion(best_of=2), "a member that nobody knows": completion(member_of_tomorrow=1),
    "one string in a list": (COMPLETIONS, lambda text: {"prompt": [text], "max_tokens": 2}),
    "tokens": (COMPLETIONS, lambda text: {"prompt": tokens(text, 150), "max_tokens": 2}),
    "tokens in a list": (COMPLETIONS, lambda text: {"prompt": [tokens(text, 150)], "max_tokens": 2}),
    "truncated tokens": (COMPLETIONS, lambda text: {"prompt": tokens(text, 150), "max_tokens": 2, "truncate_prompt_tokens": 70}),
    "responses": response(), "responses with instructions": response(instructions="be kind"), "responses stream": response(stream=True),
    "responses truncated": response(truncation="auto"), "responses with effort": response(reasoning={"effort": "low"}),
    "responses items": items({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "yes"}]},
                             {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]}),
    "responses gone on with": items({"type": "message", "role": "assistant", "status": "incomplete",
                                     "content": [{"type": "output_text", "text": "and so"}]}),
    "messages": message(), "messages stream": message(stream=True), "messages with system": message(system="be kind"),
    "messages with system blocks": message(system=[{"type": "text", "text": "x-anthropic-billing-header: 1"}, {"type": "text", "text": "be"}]),
    "messages in blocks": message(lambda text: [{"type": "text", "text": text}, {"type": "text", "text": "more"}]),
    "messages without thinking": message(thinking={"type": "disabled"}), "messages with effort": message(output_config={"effort": "low"}),
}


def test_each_kind_is_predicted_exactly(fleet, engines, settle):
    wrong, fresh = {}, [sum(w.stored.values()) for w in settle(fleet, engines)]
    for kind, (path, make) in KINDS.items():
        body, found = {"model": "tiny", **make(words(uuid.uuid4().hex, 120))}, []
        for _ in range(3):
            r = post(fleet, path, body)
            assert r.status == 200, (kind, r.body)
            found.append((predicted(r), cached(r)))
            at = worker(r) - 1
            fresh[at] += prompt_tokens(r) // BLOCK - cached(r) // BLOCK  # blocks that its events must tell
            settle(fleet, engines, stored={engines[at]: fresh[at]})
        if any(p != c for p, c in found) or not found[0][1] < found[1][1]:
            wrong[kind] = found
    assert not wrong


@pytest.mark.parametrize("more", [{"truncate_prompt_tokens": 0}, {"truncate_prompt_tokens": 10 ** 6}, {"suffix": "x"}, {"prompt_embeds": "AAAA"}],
                         ids=["nothing is left", "too much", "suffix", "embeddings"])
def test_what_the_engine_refuses_is_refused_by_it(fleet, more):
    r = post(fleet, COMPLETIONS, {"model": "tiny", "prompt": words(1, 60), "max_tokens": 2, **more})
    assert r.status == 400 and r.headers["x-kvroute-reason"]


def test_several_prompts_are_routed_by_the_first(fleet, engines, settle):
    body = {"model": "tiny", "prompt": [words(uuid.uuid4().hex, 80) for _ in range(2)], "max_tokens": 2}
    answers = []
    for n in range(3):
        had = blocks(fleet)
        answers.append(post(fleet, COMPLETIONS, body))
        wait_until("the blocks", lambda had=had: n or blocks(fleet) > had)
        settle(fleet, engines)
    assert len({r.headers["x-kvroute-worker"] for r in answers}) == 1 and answers[2].headers["x-kvroute-reason"] == "kv"
