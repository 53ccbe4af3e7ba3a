# SPDX-License-Identifier: Apache-2.0
"""`kvroute doctor` compares the token ids of a model's folder with an engine's. The engine renders and encodes by itself (token_parts.py)."""
import json
import os
import subprocess

import pytest
from conftest import BINARY, Mock, Serve
from token_parts import TEMPLATE, developers_as_they_come, engine_fixture, folder_fixture, make_folder  # noqa: F401 (fixtures)

LIBRARY = os.environ["TOKENIZER_LIBRARY"]


def url(engine):
    return f"http://127.0.0.1:{engine.port}"


def run(*args):
    r = subprocess.run([BINARY, "doctor", "--json", *map(str, args)], capture_output=True, text=True, timeout=120)
    assert "Sanitizer" not in r.stderr, r.stderr
    return r


def finding(*args):
    r = run("--tokenizer-lib", LIBRARY, *args)
    found = [f for f in json.loads(r.stdout)["findings"] if f["check"] == "tokenizer"]
    assert len(found) == 1, r.stdout + r.stderr
    return found[0]


def counts(f):
    """Questions that agree, and all that were compared."""
    agree, all_ = f["detail"].split(" questions")[0].split(" of ")
    return int(agree), int(all_)


def all_agree(f):
    agree, all_ = counts(f)
    return f["verdict"] == "ok" and agree == all_ >= 18


def test_a_folder_that_agrees(engine, folder):
    f = finding("--tokenizer-dir", folder, url(engine()))
    assert all_agree(f) and " questions have the engine's ids (/v1/chat/completions/render)" in f["detail"], f
    assert folder[:100] in f["detail"] and not f.get("advice")


def test_an_engine_without_render_is_asked_over_tokenize(engine, folder):
    e = engine(no_render=True)
    f = finding("--tokenizer-dir", f"m={folder}", url(e))
    assert f["verdict"] == "ok" and "(/tokenize)" in f["detail"] and e.asked["/v1/chat/completions/render"] == 1


def test_a_folder_with_another_template_is_named_with_the_place(engine, tmp_path):
    other = make_folder(tmp_path / "other", TEMPLATE.replace("<|end|>\n", "<|end|>"))
    f = finding("--tokenizer-dir", other, url(engine()))
    # <|bos|><|user|>Hello, who are you?<|end|> is 22 ids; a line's end is 10, <|assistant|> 260
    assert f["verdict"] == "problem" and 0 < counts(f)[0] < counts(f)[1]
    assert f["detail"].endswith("a user's message: token 22 is 260 here and 10 there, of 23 and 24"), f


def test_one_question_that_differs_is_enough(engine, folder):
    def change(ids, q):
        return [*ids[:-1], 7] if q.get("prompt") == "Once upon a time" else ids
    f = finding("--tokenizer-dir", folder, url(engine(change=change)))
    assert f["verdict"] == "problem" and counts(f)[0] == counts(f)[1] - 1
    assert "a text without special tokens: token 15 is 101 here and 7 there, of 16 and 16" in f["detail"], f


def test_the_profile_that_agrees_is_named(engine, folder):
    e = engine(change=developers_as_they_come)
    f = finding("--tokenizer-dir", folder, url(e))
    assert f["verdict"] == "ok" and "--tokenizer-profile '{" in f["advice"] and '"developer_to_system":false' in f["advice"], f
    profile = f["advice"].split("'")[1]
    f = finding("--tokenizer-dir", folder, "--tokenizer-profile", profile, url(e))
    assert all_agree(f) and not f.get("advice")
    f = finding("--tokenizer-dir", folder, "--tokenizer-profile", '{"developer_to_system":true}', url(e))
    assert f["verdict"] == "problem" and counts(f)[0] == counts(f)[1] - 1 and "a developer's message: token " in f["detail"]


def test_the_folder_that_the_engine_tells_is_looked_at_without_an_option(engine, folder, tmp_path):
    assert finding(url(engine(root=folder)))["verdict"] == "ok"
    other = make_folder(tmp_path / "other", TEMPLATE.replace("<|end|>\n", "<|end|>"))
    assert finding(url(engine(root=other)))["verdict"] == "unknown"  # nobody has said that it is the engine's
    r = run("--tokenizer-lib", LIBRARY, url(engine(root="/nonexistent")))
    assert "tokenizer" not in [f["check"] for f in json.loads(r.stdout)["findings"]]


def test_the_exit_status_is_that_of_the_comparison(start, folder):
    """A mock with the folder's tokens, where nothing else is wrong, and one whose tokens are bytes."""
    good, bytes_alone = start(Mock, "--tokenizer-lib", LIBRARY, "--tokenizer-dir", folder), start(Mock)
    for args in ((), ("--tokenizer-dir", folder)):
        r = run("--tokenizer-lib", LIBRARY, *args, url(good))
        f = [f for f in json.loads(r.stdout)["findings"] if f["check"] == "tokenizer"]
        assert r.returncode == 0 and len(f) == 1 and all_agree(f[0]), r.stdout
    r = run("--tokenizer-lib", LIBRARY, "--tokenizer-dir", folder, url(bytes_alone))
    found = {f["check"]: f["verdict"] for f in json.loads(r.stdout)["findings"] if f["verdict"] == "problem"}
    assert r.returncode == 1 and found == {"tokenizer": "problem"}, r.stdout


def test_an_engine_that_cannot_be_asked(engine, folder):
    f = finding("--tokenizer-dir", folder, url(engine(no_render=True, no_tokenize=True)))
    assert f["verdict"] == "unknown" and "neither" in f["detail"]


def test_an_engine_that_takes_no_chats_cannot_be_compared(engine, folder):
    def texts_alone(ids, q):
        if "messages" in q:
            raise KeyError("messages")  # 400
        return ids
    f = finding("--tokenizer-dir", folder, url(engine(no_render=True, change=texts_alone)))
    assert f["verdict"] == "unknown" and "takes chats" in f["detail"]


def test_without_prompts_nothing_is_asked(engine, folder):
    e = engine()
    r = run("--no-probe", "--tokenizer-lib", LIBRARY, "--tokenizer-dir", folder, url(e))
    assert "tokenizer" not in [f["check"] for f in json.loads(r.stdout)["findings"]] and e.asked == {}


def test_the_engines_of_a_router(start, engine, folder):
    good, bad = engine(), engine(change=lambda ids, q: [1, *ids])
    s = start(Serve, [good.spec(), bad.spec()], "--model", "m", "--tokenizer", "engine")
    r = run("--tokenizer-lib", LIBRARY, "--tokenizer-dir", folder, f"http://127.0.0.1:{s.admin}")
    found = {f["subject"]: f["verdict"] for f in json.loads(r.stdout)["findings"] if f["check"] == "tokenizer"}
    assert found == {"worker 1": "ok", "worker 2": "problem"}


@pytest.mark.parametrize("args, said", [
    (("--tokenizer-dir", "/nonexistent"), "--tokenizer-dir: '/nonexistent' has no tokenizer.json"),
    (("--tokenizer-lib", "/nonexistent.so"), "--tokenizer-lib: there is no /nonexistent.so"),
    (("--tokenizer-dir", "=x"), "allowed: [MODEL=]DIR"),
    (("--tokenizer-profile", "[]"), "--tokenizer-profile: '[]': allowed: a JSON object"),
])
def test_a_wrong_option_is_named(args, said):
    r = run(*args, "http://127.0.0.1:9")
    assert r.returncode == 2 and said in r.stderr and r.stdout == ""


def test_a_folder_that_cannot_be_used_is_named(engine, tmp_path):
    folder = make_folder(tmp_path / "model", model={"type": "Unknown"})
    f = finding("--tokenizer-dir", folder, url(engine()))
    assert f["verdict"] == "problem" and "cannot be used" in f["detail"]
