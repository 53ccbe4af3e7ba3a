# SPDX-License-Identifier: Apache-2.0
"""`kvroute hash` of texts and chats. The expected token ids are made by token_parts.py."""
import json
import os
import subprocess

import pytest
from conftest import BINARY
from token_parts import ids_of, make_folder

LIBRARY = os.environ["TOKENIZER_LIBRARY"]
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello, wörld 東京"}]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}}]


@pytest.fixture
def folder(tmp_path):
    return make_folder(tmp_path / "a=model")  # an equals sign is part of the name here


def run(*args, stdin=""):
    r = subprocess.run([BINARY, "hash", *map(str, args)], input=stdin, capture_output=True, text=True, timeout=60)
    assert "Sanitizer" not in r.stderr, r.stderr
    return r


def hash_of(folder, *args, **kw):
    r = run("--block-size", 4, "--tokenizer-lib", LIBRARY, "--tokenizer-dir", folder, *args, **kw)
    assert r.returncode == 0, r.stderr
    return json.loads(r.stdout)


def hash_of_ids(ids, *args):
    return json.loads(run("--block-size", 4, "--tokens", ",".join(map(str, ids)), *args).stdout)


def written(tmp_path, body):
    path = tmp_path / "body.json"
    path.write_text(body if isinstance(body, str) else json.dumps(body))
    return path


def test_a_text_has_the_ids_of_a_completion_and_their_hashes(folder):
    ids = ids_of({"prompt": 'Once "upon"\n wörld'})
    out = hash_of(folder, "--text", 'Once "upon"\n wörld', "--lora-name", "a")
    assert out == hash_of_ids(ids, "--lora-name", "a") and out["token_ids"] == ids and len(out["local_hashes"]) == len(ids) // 4


@pytest.mark.parametrize("body", [{"messages": CHAT}, {"messages": CHAT, "tools": TOOLS, "model": "m", "temperature": 0.5, "stream": True},
                                  {"messages": CHAT, "chat_template_kwargs": {"enable_thinking": False}}])
def test_a_chat_has_the_ids_that_the_router_takes(folder, tmp_path, body):
    assert hash_of(folder, "--messages", written(tmp_path, body)) == hash_of_ids(ids_of(body))


def test_a_chat_may_be_a_list_of_messages_and_come_from_stdin(folder):
    assert hash_of(folder, "--messages", "-", stdin=" \n" + json.dumps(CHAT, indent=1) + "\n") == hash_of_ids(ids_of({"messages": CHAT}))


def test_the_profile_says_what_the_engine_does_with_a_chat(folder, tmp_path):
    chat = [{"role": "developer", "content": "x"}, {"role": "user", "content": "y"}]
    changed = hash_of(folder, "--messages", written(tmp_path, chat))["token_ids"]
    as_it_is = hash_of(folder, "--tokenizer-profile", '{"developer_to_system":false}', "--messages", written(tmp_path, chat))["token_ids"]
    assert changed == ids_of({"messages": chat}) and bytes(i for i in as_it_is if i < 256).startswith(b"<|developer|>x")


@pytest.mark.parametrize("args, code, said", [
    ((), 2, "one of --tokens, --text and --messages"),
    (("--text", "x", "--tokens", "1"), 2, "one of --tokens, --text and --messages"),
    (("--messages", "-", "--text", "x"), 2, "one of --tokens, --text and --messages"),
    (("--text", "x"), 2, "--tokenizer-dir is needed for --text"),
    (("--messages", "-"), 2, "--tokenizer-dir is needed for --messages"),
    (("--text", "x", "--tokenizer-dir", "/nonexistent"), 1, "--tokenizer-dir: '/nonexistent' has no tokenizer.json"),
])
def test_what_is_missing_is_named(args, code, said):
    r = run(*args)
    assert (r.returncode, r.stdout) == (code, "") and said in r.stderr


@pytest.mark.parametrize("body, said", [
    ("{", "--messages: "),
    ("{}", "it has no messages"),
    ({"messages": "x"}, "it has no messages"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]}, "not text"),
    ({"messages": CHAT, "truncate_prompt_tokens": 3}, "truncate_prompt_tokens"),
    ({"messages": CHAT, "chat_template": "x"}, "member: chat_template"),
    ({"messages": [{"content": "x"}]}, "messages"),
])
def test_a_chat_without_ids_is_refused_and_named(folder, tmp_path, body, said):
    r = run("--tokenizer-lib", LIBRARY, "--tokenizer-dir", folder, "--messages", written(tmp_path, body))
    assert (r.returncode, r.stdout) == (1, "") and said in r.stderr


@pytest.mark.parametrize("args, said", [
    (("--tokenizer-lib", "/nonexistent.so"), "--tokenizer-lib: there is no /nonexistent.so"),
    (("--tokenizer-lib", LIBRARY, "--tokenizer-profile", "{" + " " * 2000 + "}"), "--tokenizer-profile"),
    (("--tokenizer-lib", LIBRARY, "--tokenizer-profile", "x"), "--tokenizer-profile: 'x': allowed: a JSON object"),
    (("--tokenizer-lib", LIBRARY, "--tokenizer-profile", "{bad}"), "--tokenizer-profile: '{bad}', member bad: allowed: a JSON object"),
])
def test_a_wrong_library_or_profile_is_named(folder, args, said):
    r = run("--tokenizer-dir", folder, "--text", "x", *args)
    assert (r.returncode, r.stdout) == (1, "") and said in r.stderr


def test_a_file_that_cannot_be_read_is_named(folder, tmp_path):
    r = run("--tokenizer-lib", LIBRARY, "--tokenizer-dir", folder, "--messages", tmp_path / "none.json")
    assert (r.returncode, r.stdout) == (1, "") and "--messages: cannot read" in r.stderr


def test_a_text_that_is_not_utf_8_is_refused(folder):
    r = subprocess.run([BINARY, "hash", "--tokenizer-lib", LIBRARY, "--tokenizer-dir", folder, "--text", b"a\xffb"], capture_output=True, timeout=60)
    assert (r.returncode, r.stdout) == (1, b"") and b"not UTF-8" in r.stderr
