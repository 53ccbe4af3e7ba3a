# SPDX-License-Identifier: Apache-2.0
"""A template that writes the date, over midnight: an engine and a router in a time zone whose next day begins while chats go through both."""
import collections
import os
import shutil
import time

import pytest
from harness import DIR, ROOT, Engine, Serve, cached, post, predicted, prompt_tokens, wait_until, words
from tokens_library import Tokenizer

LIBRARY = os.path.join(ROOT, "build/tokenizer/libkvr_tokenizer.so")
TEMPLATE = os.path.join(ROOT, "tests/templates/headers.jinja")
TRUST = 75  # seconds before midnight at which the engine has to be up: within the last 60 nothing is compared
PROFILE = {"drop_none": False, "alias_reasoning": False}
pytestmark = pytest.mark.skipif(not os.path.exists(LIBRARY), reason="make tokenizer")


def zone_of(midnight):
    """A time zone with a midnight at that moment."""
    since = int(midnight) % 86400
    west = since if since < 43200 else since - 86400
    return f"MID{'-' if west < 0 else ''}{abs(west) // 3600}:{abs(west) // 60 % 60:02}:{abs(west) % 60:02}"


@pytest.fixture
def dated(alone, tmp_path, monkeypatch):
    """An engine that is up in time before its midnight, a folder with its template, and the moment of midnight; this process has its days."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(DIR, "model", name), tmp_path)
    shutil.copy(TEMPLATE, tmp_path / "chat_template.jinja")
    engine, took = None, 50
    while engine is None:
        begin = int(time.time())
        midnight = begin + TRUST + 10 + took
        engine = Engine(extra=["--chat-template", TEMPLATE], env={"TZ": zone_of(midnight)}).wait()
        if time.time() > midnight - TRUST:  # too late: another one has the time that this one has taken
            took = int(time.time()) - begin
            engine.stop()
            engine = None
    monkeypatch.setenv("TZ", zone_of(midnight))
    time.tzset()
    yield engine, str(tmp_path), midnight
    engine.stop()
    monkeypatch.undo()
    time.tzset()


def tokenized(engine, q):
    return post(engine, "/tokenize", {"model": "tiny", **q}).json()["tokens"]


def trusted(serve):
    return next((t for t in serve.get("/tokenizers") if t["model"] == "tiny" and t["state"] == "trusted"), None)


def user(content):
    return {"messages": [{"role": "user", "content": content}]}


def send(serve, q):
    a = post(serve, "/v1/chat/completions", {"model": "tiny", "max_tokens": 1, **q})
    assert a.status == 200, a.body
    return a


def test_tokens_are_those_of_the_engine_on_both_sides_of_midnight_and_trust_is_kept(dated, start, settle):
    engine, folder, midnight = dated
    serve = start(Serve, [engine], "--tokenizer-lib", LIBRARY, "--tokenizer-dir", folder, "--tokenizer-probes", 2, "--tokenizer-check", 1,
                  env={"TZ": os.environ["TZ"]})
    wait_until("the view", lambda: serve.view().get("trusted"))
    wait_until("the probes", lambda: serve.metric("tokenizer_checks_total", judge="probes", model="tiny") >= 1, 30)
    for i in range(2):
        send(serve, user(f"first {i}"))
    assert wait_until("trust", lambda: trusted(serve), 30)["library"]["dates"] is True
    here, same = Tokenizer(LIBRARY, folder, **PROFILE), user(words("the same", 200))
    asked, prompts, rounds = serve.metric("tokenize_requests_total"), set(), collections.Counter()
    while time.time() < midnight + 62:
        day, q = time.strftime("%d"), user(f"{sum(rounds.values())} " + words(sum(rounds.values()), 20))
        ids, mine = tokenized(engine, q), here.ids(q)
        counted = prompt_tokens(send(serve, q))
        answers = []
        for _ in range(2):
            settle(serve, [engine], last=True)
            answers.append(send(serve, same))
        prompt = tokenized(engine, same)
        if time.strftime("%d") != day:  # midnight was in between
            continue
        assert mine == ids and counted == len(ids)
        assert [predicted(a) for a in answers] == [cached(a) for a in answers] and cached(answers[1]) > 100
        prompts.add(tuple(prompt))
        rounds[day] += 1
    print(f"rounds of each day: {dict(rounds)}")
    assert len(rounds) == 2 and min(rounds.values()) > 5
    assert len(prompts) == 2  # the date is in the prompt
    compared = serve.metric("tokenizer_checks_total", judge="engine", result="equal")

    def compared_again():
        send(serve, user(f"behind midnight {time.monotonic()}"))
        return serve.metric("tokenizer_checks_total", judge="engine", result="equal") > compared
    wait_until("a comparison on the next day", compared_again, 30)
    assert trusted(serve) and trusted(serve)["last_difference"] is None
    assert all(serve.metric("tokenizer_checks_total", judge=j, result="different") == 0 for j in ("probes", "engine", "usage", "events"))
    assert serve.metric("tokenize_requests_total") == asked and "tokens are asked of the engine" not in serve.text()
