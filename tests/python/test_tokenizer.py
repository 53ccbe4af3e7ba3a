# SPDX-License-Identifier: Apache-2.0
"""kvroute.Tokenizer with its library. The expected token ids are made by tests/e2e/token_parts.py."""
import json
import os
import shutil
import sys
import threading
import time

import pytest

import kvroute

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from token_parts import ids_of, make_folder  # noqa: E402

LIBRARY = os.environ["TOKENIZER_LIBRARY"]
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello, wörld 東京"}]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}}]


@pytest.fixture
def folder(tmp_path):
    return make_folder(tmp_path / "model")


@pytest.fixture
def tokenizer(folder):
    return kvroute.Tokenizer(folder, lib=LIBRARY)


def test_a_text_has_the_special_tokens_of_a_completion(tokenizer):
    assert tokenizer.text('Once "upon"\n wörld') == ids_of({"prompt": 'Once "upon"\n wörld'})
    assert tokenizer.text("x", add_special_tokens=False) == ids_of({"prompt": "x", "add_special_tokens": False}) == [120]


def test_a_chat_has_the_ids_of_its_prompt(tokenizer):
    assert tokenizer.chat(CHAT) == ids_of({"messages": CHAT})
    assert tokenizer.chat(tuple(CHAT), TOOLS) == tokenizer.chat(CHAT, tools=TOOLS) == ids_of({"messages": CHAT, "tools": TOOLS})
    for more in ({"add_generation_prompt": False}, {"chat_template_kwargs": {"enable_thinking": True}}, {"documents": [{"title": "a", "text": "b"}]},
                 {"add_generation_prompt": False, "continue_final_message": True}):
        assert tokenizer.chat(CHAT, **more) == ids_of({"messages": CHAT, **more}), more


def test_what_the_engine_makes_of_a_chat_is_made_of_it(folder, tokenizer):
    switched = tokenizer.chat(CHAT, chat_template_kwargs={"enable_thinking": False})
    assert tokenizer.chat(CHAT, reasoning_effort="none") == switched
    assert tokenizer.chat(CHAT, reasoning_effort="low") == tokenizer.chat(CHAT, chat_template_kwargs={"enable_thinking": True}) != switched
    template = "{% for m in messages %}{{ m.reasoning or '-' }}{% endfor %}"
    other = kvroute.Tokenizer(make_folder(os.path.join(folder, "other"), template), lib=LIBRARY)
    said = [{"role": "assistant", "content": "x", "reasoning_content": "old"}, {"role": "assistant", "content": "x", "reasoning": "new", "reasoning_content": "old"}]
    assert bytes(other.chat(said)) == b"oldnew"


def test_the_profile_may_be_a_dict_or_json(folder, tokenizer):
    chat = [{"role": "developer", "content": "x"}, {"role": "user", "content": "y"}]
    profile = {"developer_to_system": False}
    as_it_is = kvroute.Tokenizer(folder, LIBRARY, profile).chat(chat)
    assert as_it_is == kvroute.Tokenizer(folder, lib=LIBRARY, profile=json.dumps(profile)).chat(chat) != tokenizer.chat(chat)


def test_what_only_an_engine_knows_is_refused_with_a_label(tokenizer):
    for body, label in (({"messages": CHAT, "chat_template": "x"}, "member"), ({"messages": [{"content": "x"}]}, "messages"), ({"messages": []}, "messages"),
                        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]}, "part"),
                        ({"messages": CHAT, "tools": "x"}, "tools"), ({"messages": CHAT, "chat_template_kwargs": {"max_length": 3}}, "chat_template_kwargs")):
        with pytest.raises(kvroute.TokenizerError) as e:
            tokenizer.chat(**body)
        assert e.value.label == label and str(e.value).startswith(label) and e.value.code in (2, 11), (label, e.value)


def test_what_is_not_allowed_is_named(tokenizer):
    for call, words in ((lambda: tokenizer.text(b"x"), "text: bad value"), (lambda: tokenizer.text("x", add_special_tokens=1), "True, False"),
                        (lambda: tokenizer.chat("x"), "messages: bad value"), (lambda: tokenizer.chat(CHAT, temperature=1), "member: bad value 'temperature'"),
                        (lambda: tokenizer.chat(CHAT, chat_template_kwargs={"x": float("nan")}), "")):
        with pytest.raises(ValueError, match=words):
            call()
    with pytest.raises(TypeError):
        tokenizer.chat([{"role": "user", "content": {1, 2}}])


def test_a_folder_that_cannot_be_used_is_named(tmp_path):
    with pytest.raises(kvroute.TokenizerError) as e:
        kvroute.Tokenizer(make_folder(tmp_path / "bad", model={"type": "Unknown"}), lib=LIBRARY)
    assert e.value.label and str(e.value)


def test_the_library_is_found_beside_the_package_and_by_the_program(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("kvroute.tokenizer.INSTALLED", ())
    (tmp_path / "bin").mkdir()
    (tmp_path / "lib" / "kvroute").mkdir(parents=True)
    program = tmp_path / "bin" / "kvroute"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    shutil.copy(LIBRARY, tmp_path / "lib" / "kvroute")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    t = kvroute.Tokenizer(folder)
    assert os.path.realpath(t.lib) == str(tmp_path / "lib" / "kvroute" / "libkvr_tokenizer.so") and t.text("x") == [256, 120]
    package = tmp_path / "package"
    package.mkdir()
    shutil.copy(LIBRARY, package)
    monkeypatch.setattr("kvroute.tokenizer.__file__", str(package / "tokenizer.py"))
    assert kvroute.Tokenizer(folder).lib == str(package / "libkvr_tokenizer.so")


def test_threads_share_a_tokenizer_and_no_call_holds_the_interpreter(tokenizer):
    """While one thread is in a long call of the compiled part, another one runs; and many in calls at once have their own answers."""
    question, running, ticks, during = json.dumps({"prompt": "wörld " * 400_000}).encode(), threading.Event(), [0], []

    def encode():
        running.set()
        before = ticks[0]
        n = len(tokenizer._tokenizer.ids(question))
        during.append((ticks[0] - before, n))
    t = threading.Thread(target=encode)
    t.start()
    running.wait(60)
    while t.is_alive():
        ticks[0] += 1
        time.sleep(0)
    t.join()
    assert during[0][1] == 7 * 400_000 + 1 and during[0][0] > 10  # with the lock held: at most at its ends
    wrong = []

    def ask(i):
        for k in range(50):
            q = [{"role": "user", "content": f"{i} {k} wörld"}]
            if tokenizer.chat(q) != ids_of({"messages": q}):
                wrong.append((i, k))
    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []
