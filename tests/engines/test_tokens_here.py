# SPDX-License-Identifier: Apache-2.0
"""Token ids made here against vLLM's: what its renderer and its tokenizer make of random chats, over templates of six families."""
import collections
import glob
import os
import random

import pytest
from chats import chat, text
from harness import DIR, ROOT, Engine, Serve, post, wait_until
from tokens_library import Refused, Tokenizer

LIBRARY = os.path.join(ROOT, "build/tokenizer/libkvr_tokenizer.so")
CHATS = int(os.environ.get("KVR_OPS", "400"))  # of each family
TEMPLATES = sorted(glob.glob(os.path.join(ROOT, "tests/templates/*.jinja")))
PROFILE = {"drop_none": False, "alias_reasoning": False}  # of vLLM 0.32 with transformers 5.19
pytestmark = pytest.mark.skipif(not os.path.exists(LIBRARY), reason="make tokenizer")


@pytest.fixture(scope="module")
def trusting():
    """An engine that takes a template with a request, tools and long prompts, and tells what it renders."""
    e = Engine(extra=["--trust-request-chat-template", "--enable-scale-out", "--enable-auto-tool-choice", "--tool-call-parser", "hermes",
                      "--max-model-len", 65536], env={"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"})
    e.wait()
    yield e
    e.stop()


def asked_form(q):
    """As the router asks: what chat takes and /tokenize does not is among the template's arguments, a message has the new name of reasoning."""
    q = {**q, "messages": [{("reasoning" if k == "reasoning_content" else k): v for k, v in m.items()} for m in q["messages"]]}
    for name in ("documents", "reasoning_effort"):
        if name in q:
            q["chat_template_kwargs"] = {**(q.get("chat_template_kwargs") or {}), name: q.pop(name)}
    return q


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda p: os.path.basename(p))
def test_chats_of_six_families_have_the_ids_that_vllm_computes(trusting, path):
    with open(path, encoding="utf-8") as f:
        template = f.read()
    here = Tokenizer(LIBRARY, os.path.join(DIR, "model"), chat_template=template, **PROFILE)
    r, count = random.Random(os.path.basename(path)), collections.Counter()
    for i in range(CHATS):
        q = chat(r)
        a = post(trusting, "/v1/chat/completions/render", {"model": "tiny", "max_tokens": 1, "chat_template": template, **q})
        try:
            ids = here.ids(asked_form(q))
            assert ids == here.ids(asked_form(q)) == here.ids(asked_form(q), plain=True)
        except Refused as e:
            count["to the engine: " + e.label] += 1
            if a.status == 200:
                count["only here refused: " + e.label] += 1
            continue
        if a.status != 200:
            count["only the engine refuses"] += 1  # its answer does not depend on ids then
            continue
        there = a.json()["token_ids"]
        at = next((k for k, (x, y) in enumerate(zip(ids, there)) if x != y), min(len(ids), len(there)))
        assert ids == there, f"chat {i}: {len(ids)} ids here, {len(there)} there, first difference at {at}\n{q}\n{here.render(asked_form(q))[-2000:]}"
        count["equal"] += 1
    print(f"{os.path.basename(path)}: {dict(count)}")
    assert count["equal"] > CHATS / 3, count


def test_texts_have_the_ids_that_vllm_computes(trusting):
    here, r = Tokenizer(LIBRARY, os.path.join(DIR, "model")), random.Random("texts")
    for _ in range(CHATS):
        q = {"prompt": text(r, r.choice([1, 5, 50]))}
        if r.random() < 0.3:
            q["add_special_tokens"] = r.random() < 0.5
        a = post(trusting, "/v1/completions/render", {"model": "tiny", "max_tokens": 1, **q})
        if a.status == 200:
            assert here.ids(q) == here.ids(q, plain=True) == a.json()[0]["token_ids"], q


def test_a_router_beside_vllm_earns_trust_and_makes_the_tokens_itself(start, engines, settle):
    engine, r = engines[0], random.Random("router")
    serve = start(Serve, [engine], "--tokenizer-lib", LIBRARY, "--tokenizer-check", 2)
    wait_until("the view", lambda: serve.view().get("trusted"))
    wait_until("the probes", lambda: serve.metric("tokenizer_checks_total", judge="probes", model="tiny") >= 1, 30)
    for i in range(8):
        assert post(serve, "/v1/chat/completions", {"model": "tiny", "max_tokens": 1, "messages": [{"role": "user", "content": f"first {i}"}]}).status == 200
    state = wait_until("trust", lambda: next(t for t in serve.get("/tokenizers") if t["model"] == "tiny" and t["state"] == "trusted"), 30)
    print(state)
    asked = serve.metric("tokenize_requests_total")
    sent = 0
    for _ in range(60):
        q = chat(r)
        a = post(serve, "/v1/chat/completions", {"model": "tiny", "max_tokens": 1, **q})
        sent += a.status == 200
    made = serve.metric("tokens_total", **{"from": "local"})
    assert made > 20 and serve.metric("tokenize_requests_total") - asked <= 60 - made + 5, (made, sent)
    assert serve.metric("tokenizer_checks_total", result="different") == 0
    assert serve.metric("tokenizer_checks_total", judge="usage", result="equal") > 10
    settle(serve, [engine])
    q = {"model": "tiny", "max_tokens": 1, "messages": [{"role": "user", "content": "once more " * 40}]}
    post(serve, "/v1/chat/completions", q)
    settle(serve, [engine])
    a = post(serve, "/v1/chat/completions", q)
    assert int(a.headers["x-kvroute-overlap-blocks"]) > 0 and a.headers["x-kvroute-reason"] == "kv"


def without_names(answer):
    """What differs between any two answers."""
    return {k: v for k, v in answer.items() if k not in ("id", "created", "system_fingerprint")}


def test_an_answer_is_the_same_when_ids_are_forwarded(start, engines):
    engine, r = engines[0], random.Random("forwarded")
    serve = start(Serve, [engine], "--tokenizer-lib", LIBRARY, "--tokenizer-probes", 1, "--forward-token-ids")
    wait_until("the probes", lambda: serve.metric("tokenizer_checks_total", judge="probes", model="tiny") >= 1, 30)
    post(serve, "/v1/chat/completions", {"model": "tiny", "max_tokens": 1, "messages": [{"role": "user", "content": "first"}]})
    wait_until("trust", lambda: any(t["model"] == "tiny" and t["state"] == "trusted" for t in serve.get("/tokenizers")), 30)
    members = [{}, {"logprobs": 3}, {"n": 2}, {"stop": ["e"]}, {"seed": 7, "temperature": 1.0}, {"add_special_tokens": False}, {"return_token_ids": True},
               {"echo": True}, {"prompt_logprobs": 2}, {"min_tokens": 4, "logprobs": 1}, {"ignore_eos": True}]
    for i in range(3 * len(members)):
        q = {"model": "tiny", "max_tokens": 6, "temperature": 0, "prompt": text(r, r.choice([2, 20])), **members[i % len(members)]}
        first, direct, routed = (post(to, "/v1/completions", q) for to in (engine, engine, serve))  # the first fills the engine's cache
        assert (routed.status, first.status) == (direct.status, direct.status)
        if direct.status == 200:
            assert without_names(routed.json()) == without_names(direct.json()), q
    forwarded = serve.metric("token_ids_forwarded_total")
    print(f"{3 * len(members)} completions, ids forwarded of {forwarded:.0f}")
    assert forwarded >= 3 * (len(members) - 2) - 3
