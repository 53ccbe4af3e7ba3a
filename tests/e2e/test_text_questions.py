# SPDX-License-Identifier: Apache-2.0
"""Questions of the indexer and of the selection service whose prompt is text (--tokenizer-dir). The expected tokens are made by
token_parts.py."""
import json
import os
import signal
import socket
import subprocess
import threading

import pytest
from conftest import BINARY, Indexer, Select, call, free_ports, wait_for
from token_parts import TEMPLATE, encode, ids_of, make_folder

LIBRARY = os.environ["TOKENIZER_LIBRARY"]
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello, wörld 東京"}]


@pytest.fixture
def one(start, engine, tmp_path):
    """An indexer with a folder for the model `m`, and an engine whose blocks of 4 tokens are those of a chat and of a text."""
    folder = make_folder(tmp_path / "model")
    ix, e = start(Indexer, "--tokenizer-lib", LIBRARY, "--tokenizer-dir", f"m={folder}"), engine()
    ix.register(7, e)
    e.until("trusted", ix.trusted)
    return ix, e


def whole(ids):
    return len(ids) // 4 * 4


def stored(ix, e, ids, first=1):
    e.stored(list(range(first, first + len(ids) // 4)), ids[:whole(ids)])
    wait_for("stored", lambda: ix.scores(ids) == {(7, 0): whole(ids)})


def test_a_chat_is_found_by_its_messages(one):
    ix, e = one
    ids = ids_of({"messages": CHAT})
    stored(ix, e, ids)
    assert ix.post("/query", {"model_name": "m", "messages": CHAT})["scores"] == {"7": {"0": whole(ids)}}
    tools = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}}]
    other = ids_of({"messages": CHAT, "tools": tools})
    same = next(i for i, (a, b) in enumerate(zip(ids, other)) if a != b)
    assert ix.post("/query", {"model_name": "m", "messages": CHAT, "tools": tools})["scores"] == {"7": {"0": same // 4 * 4}}
    spaced = b" \n" + json.dumps({"messages": CHAT, "model_name": "m"}, indent=1).encode()
    assert call(ix.port, "POST", "/query", spaced, {"Content-Type": "application/json"}).json()["scores"] == {"7": {"0": whole(ids)}}
    assert ix.metric('kvroute_indexer_texts_total{result="made"}') == 3


def test_a_text_is_found_with_its_special_token_once(one):
    ix, e = one
    ids = ids_of({"prompt": "Once upon a time, wörld"})
    stored(ix, e, ids)
    ask = {"model_name": "m", "text": "Once upon a time, wörld"}
    assert ix.post("/query", ask)["scores"] == {"7": {"0": whole(ids)}}
    assert ix.post("/query", {**ask, "add_special_tokens": False})["scores"] == {}


@pytest.mark.parametrize("size", [20_000, 400_000])
def test_a_long_text_is_tokenized_beside_the_loop(one, size):
    ix, e = one
    text = "a long text, wörld " * (size // 19)
    ids = ids_of({"prompt": text})
    e.stored([1, 2], ids[:8])
    wait_for("stored", lambda: ix.scores(ids[:8]) == {(7, 0): 8})
    assert ix.post("/query", {"model_name": "m", "text": text})["scores"] == {"7": {"0": 8}}


@pytest.mark.parametrize("body, said", [
    ({"model_name": "other", "text": "x"}, "--tokenizer-dir"),
    ({"text": "x"}, "--tokenizer-dir"),
    ({"model_name": "m", "text": 5}, "`text`"),
    ({"model_name": "m", "text": "x", "messages": CHAT}, "allowed: one of them"),
    ({"model_name": "m", "messages": "x"}, "`messages`"),
    ({"model_name": "m", "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]}, "not text"),
    ({"model_name": "m", "messages": CHAT, "chat_template": "x"}, "member: chat_template"),
    ({"model_name": "m", "text": "x", "truncate_prompt_tokens": 3}, "truncate_prompt_tokens"),
])
def test_what_cannot_be_tokenized_is_refused_and_named(one, body, said):
    ix, _ = one
    assert said in ix.post("/query", body, 422)["error"]
    assert ix.metric('kvroute_indexer_texts_total{result="refused"}') == 1
    assert ix.metric('kvroute_indexer_texts_total{result="made"}') == 0


def test_a_text_of_too_many_tokens_is_refused(start, engine, tmp_path):
    ix = start(Indexer, "--tokenizer-lib", LIBRARY, "--tokenizer-dir", make_folder(tmp_path / "model"), "--max-prompt-tokens", 100)
    ix.register(7, engine())
    assert "--max-prompt-tokens" in ix.post("/query", {"model_name": "m", "text": "x" * 200}, 413)["error"]
    assert ix.post("/query", {"model_name": "m", "text": "x" * 90})["scores"] == {}


def test_clients_that_leave_while_their_text_is_tokenized(one):
    ix, e = one
    body = json.dumps({"model_name": "m", "text": "some words " * 50_000}).encode()
    head = f"POST /query HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()

    def leave():
        with socket.create_connection(("127.0.0.1", ix.port)) as s:
            s.sendall(head + body)
    threads = [threading.Thread(target=leave) for _ in range(16)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert ix.post("/query", {"model_name": "m", "text": "y"})["scores"] == {}


# ---- folders that change -----------------------------------------------------------------------------------------------

def other_template(folder):
    """Gives the folder another template. Returns what makes its ids of messages: one token more than those of TEMPLATE."""
    with open(os.path.join(folder, "chat_template.jinja"), "w") as f:
        f.write(TEMPLATE.replace("{{ bos_token }}", "{{ bos_token }}A"))
    return lambda messages: [*encode("<|bos|>A"), *ids_of({"messages": messages})[1:]]


def break_folder(folder):
    """Returns what mends it."""
    path = os.path.join(folder, "tokenizer.json")
    whole_file = open(path).read()

    def write(text):
        with open(path, "w") as f:
            f.write(text)
    write(whole_file[:1000])
    return lambda: write(whole_file)


@pytest.fixture
def two(start, engine, tmp_path):
    """An indexer with a folder of its own for each of the models `m` and `n`, and no blocks."""
    folders = {name: make_folder(tmp_path / name) for name in "mn"}
    ix, e = start(Indexer, "--tokenizer-lib", LIBRARY, *(f for name in "mn" for f in ("--tokenizer-dir", f"{name}={folders[name]}"))), engine()
    for i, name in enumerate("mn"):
        ix.register(i, e, model=name)
    e.until("trusted", ix.trusted)
    return ix, e, folders


def held_of(ix, model):
    """Tokens of a chat that the model's worker holds."""
    scores = ix.post("/query", {"model_name": model, "messages": CHAT})["scores"]
    return sum(n for ranks in scores.values() for n in ranks.values())


class Asking:
    """Threads that ask without a break; their answers are collected."""

    def __init__(self, ask, threads=4):
        self.ended, self.seen, self.failed = threading.Event(), set(), []

        def run(k):
            n = 0
            while not self.ended.is_set():
                n += 1
                try:
                    self.seen.add(ask(k, n))
                except Exception as e:  # pylint: disable=broad-except
                    self.failed.append(e)
                    return
        self.threads = [threading.Thread(target=run, args=(k,)) for k in range(threads)]

    def __enter__(self):
        for t in self.threads:
            t.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        for t in self.threads:
            t.join()


def test_the_folders_of_an_indexer_are_read_again_on_sighup_under_load(two):
    ix, e, folders = two
    before = ids_of({"messages": CHAT})
    e.stored(list(range(1, 1 + len(before) // 4)), before[:whole(before)])
    wait_for("stored", lambda: held_of(ix, "m") == whole(before))
    with Asking(lambda k, n: held_of(ix, "m")) as asking:
        after = other_template(folders["m"])(CHAT)
        ix.p.send_signal(signal.SIGHUP)
        wait_for("the other template", lambda: held_of(ix, "m") == 0, 20)
        e.stored(list(range(501, 501 + len(after) // 4)), after[:whole(after)])
        wait_for("blocks of the other template", lambda: held_of(ix, "m") == whole(after), 20)
        assert held_of(ix, "n") == whole(before)  # its folder is as it was
    assert not asking.failed and asking.seen <= {0, whole(before), whole(after)}


def test_a_folder_of_an_indexer_that_cannot_be_read_again_stays_as_it_was(two):
    ix, e, folders = two
    ids = ids_of({"messages": CHAT})
    e.stored(list(range(1, 1 + len(ids) // 4)), ids[:whole(ids)])
    wait_for("stored", lambda: held_of(ix, "m") == held_of(ix, "n") == whole(ids))
    mend = break_folder(folders["m"])
    other_template(folders["n"])
    ix.p.send_signal(signal.SIGHUP)
    wait_for("the other folder", lambda: held_of(ix, "n") == 0, 20)  # it is behind the broken one
    said = [line for line in ix.text().splitlines() if folders["m"] in line]
    assert len(said) == 1 and "kvroute indexer: --tokenizer-dir" in said[0] and "stays in use" in said[0], said
    assert held_of(ix, "m") == whole(ids)
    mend()
    other_template(folders["m"])
    ix.p.send_signal(signal.SIGHUP)
    wait_for("the mended folder", lambda: held_of(ix, "m") == 0, 20)


@pytest.mark.parametrize("flags, said", [
    (["--tokenizer-dir", "/nowhere"], "has no tokenizer.json"),
    (["--tokenizer-dir", "=/nowhere"], "[MODEL=]DIR"),
    (["--tokenizer-dir", "FOLDER", "--tokenizer-lib", "/nowhere.so"], "there is no /nowhere.so"),
    (["--tokenizer-dir", "FOLDER", "--tokenizer-lib", LIBRARY, "--tokenizer-profile", "[1]"], "--tokenizer-profile: '[1]': allowed"),
    (["--tokenizer-dir", "FOLDER", "--tokenizer-lib", LIBRARY, "--tokenizer-profile", '{"typed":1}'], 'member "typed": allowed'),
    (["--tokenizer-dir", "BROKEN", "--tokenizer-lib", LIBRARY], "BROKEN"),
])
def test_a_wrong_folder_or_library_is_named_at_the_start(flags, said, tmp_path):
    broken = tmp_path / "BROKEN"
    broken.mkdir()
    (broken / "tokenizer.json").write_text("{")
    names = {"FOLDER": make_folder(tmp_path / "model"), "BROKEN": str(broken)}
    r = subprocess.run([BINARY, "indexer", "--port", str(free_ports()), *[names.get(f, f) for f in flags]], capture_output=True, text=True,
                       timeout=60)
    assert r.returncode == 1 and said in r.stderr, r.stderr


# ---- the selection service ---------------------------------------------------------------------------------------------

@pytest.fixture
def select(start, engine, tmp_path):
    """A selection service with a folder for all models, and a worker that has the blocks of CHAT."""
    folder, e = make_folder(tmp_path / "model"), engine()
    s = start(Select, "--tokenizer-lib", LIBRARY, "--tokenizer-dir", folder, "--max-prompt-tokens", 1_000_000)
    s.folder = folder
    s.worker(1, kv_events_endpoints={"0": f"tcp://127.0.0.1:{e.events}"}, replay_endpoint=f"tcp://127.0.0.1:{e.replay_port}")
    s.worker(2)
    ids = ids_of({"messages": CHAT})
    e.until("trusted", lambda: s.views()[(1, 0)]["trusted"])
    e.stored(list(range(1, 1 + len(ids) // 4)), ids[:whole(ids)])
    wait_for("stored", lambda: s.overlap(ids)[(1, 0)] == len(ids) // 4)
    return s


def test_a_worker_is_selected_by_a_chat(select):
    ids = ids_of({"messages": CHAT})
    r = select.ask("/select", {"messages": CHAT})
    assert r == select.ask("/select", {"token_ids": ids})
    assert r["worker_id"] == 1 and r["overlap"]["longest_matched"] == whole(ids)
    r = select.ask("/select_and_reserve", {"messages": CHAT, "selection_id": "a"})
    assert r["isl_tokens"] == len(ids) and r["effective_prefill_tokens"] == len(ids) - whole(ids)
    assert select.ask("/query", {"messages": CHAT}) == select.ask("/query", {"token_ids": ids})
    assert select.ask("/overlap_scores", {"messages": CHAT}) == select.ask("/overlap_scores", {"token_ids": ids})
    assert select.ask("/potential_loads", {"messages": CHAT}) == select.ask("/potential_loads", {"token_ids": ids})


@pytest.mark.parametrize("size", [100, 20_000, 400_000])
def test_a_worker_is_selected_by_a_text(select, size):
    text = "wörld " * (size // 7)
    assert select.ask("/select_and_reserve", {"text": text})["isl_tokens"] == len(encode(text)) + 1
    assert select.ask("/request", {"method": "new", "text": text})


def test_texts_that_select_cannot_tokenize_are_refused(select):
    assert "--max-prompt-tokens" in select.ask("/select", {"text": "x" * 1_000_001}, 413)["error"]
    assert "member: chat_template" in select.ask("/select", {"messages": CHAT, "chat_template": "x"}, 400)["error"]
    assert "`text`" in select.ask("/select", {"text": 1}, 400)["error"]
    assert "block_hashes" in select.ask("/query_by_hash", {"text": "x"}, 400)["error"]


def test_select_without_a_folder_says_so(start):
    s = start(Select)
    s.worker(1)
    assert "--tokenizer-dir" in s.ask("/select", {"text": "x"}, 400)["error"]


def isl(select, messages=None):
    """Tokens of a chat's prompt. Its booking is ended."""
    r = select.ask("/select_and_reserve", {"messages": messages or CHAT})
    select.ask(f"/reservations/{r['selection_id']}", method="DELETE")
    return r["isl_tokens"]


def test_the_folder_of_select_is_read_again_on_sighup_under_load(select):
    before = len(ids_of({"messages": CHAT}))
    with Asking(lambda k, n: isl(select)) as asking:
        after = len(other_template(select.folder)(CHAT))
        select.p.send_signal(signal.SIGHUP)
        wait_for("the other template", lambda: isl(select) == after, 20)
    assert not asking.failed and asking.seen <= {before, after}
    long = [{"role": "user", "content": "wörld " * 20_000}]
    assert isl(select, long) == len(ids_of({"messages": long})) + 1  # on a thread


def test_a_folder_of_select_that_cannot_be_read_again_stays_as_it_was(select):
    before = len(ids_of({"messages": CHAT}))
    mend = break_folder(select.folder)
    select.p.send_signal(signal.SIGHUP)
    wait_for("a warning that names the folder", lambda: f"kvroute select: --tokenizer-dir: '{select.folder[:200]}': " in select.text(), 20)
    assert "stays in use" in select.text()
    assert isl(select) == before
    mend()
    after = len(other_template(select.folder)(CHAT))
    select.p.send_signal(signal.SIGHUP)
    wait_for("the mended folder", lambda: isl(select) == after, 20)
