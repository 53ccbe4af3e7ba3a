# SPDX-License-Identifier: Apache-2.0
"""Tokens made here: earned against an engine, used, watched, lost. The engine renders and encodes by itself (token_parts.py)."""
import concurrent.futures
import json
import os
import signal
import socket
import subprocess
import threading
import time

import pytest
from conftest import Engine, Mock, Serve, call, wait_for
from token_parts import TEMPLATE, developers_as_they_come, encode, engine_fixture, folder_fixture, ids_of, make_folder  # noqa: F401 (fixtures)

LIBRARY = os.environ["TOKENIZER_LIBRARY"]
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello, wörld 東京"}]


@pytest.fixture
def serve(start):
    def make(engines, *flags, probes=2, check=0, **kw):
        return start(Serve, [e.spec() for e in engines], "--tokenizer-lib", LIBRARY, "--tokenizer-probes", probes, "--tokenizer-check", check,
                     "--tokenize-timeout", 20, "--connect-timeout", 20, *flags, **kw)
    return make


def chat(serve, messages=CHAT, model="m", **more):
    a = call(serve.port, "POST", "/v1/chat/completions", {"model": model, "messages": messages, "max_tokens": 1, **more})
    assert a.status == 200, a.body
    return a.json()


def tokenizer(serve, model="m"):
    return next((t for t in serve.get("/tokenizers") if t["model"] == model), {"state": "none"})


PATIENCE = 60  # for what the tokenizer's threads do: theirs is the least of all priorities


def until(serve, state, model="m"):
    def reached():
        t = tokenizer(serve, model)
        assert t["state"] == state, t
        return t
    return wait_for(f"the state {state}", reached, PATIENCE)


def until_not(serve, state, model="m"):
    wait_for(f"another state than {state}", lambda: tokenizer(serve, model)["state"] != state, PATIENCE)


def probed(serve, model="m"):
    wait_for("the probes", lambda: serve.metric("tokenizer_checks_total", judge="probes", model=model) >= 1, PATIENCE)


def trusted(serve, model="m", n=2):
    """Probes, then the first requests: from then on tokens are made here."""
    probed(serve, model)
    for i in range(n):
        chat(serve, [{"role": "user", "content": f"request {i} before trust"}], model)
        wait_for("the comparison", lambda i=i: serve.metric("tokenizer_checks_total", judge="engine", model=model) >= i + 1, PATIENCE)
    return until(serve, "trusted", model)


def made_here(serve):
    return serve.metric("tokens_total", **{"from": "local"})


def test_a_worker_that_tells_no_tokens_keeps_no_other_one_from_being_asked(serve, engine, folder):
    silent, good = [engine(), engine()], engine()
    for e in silent:
        e.answer = lambda path, q: (503, {})
    s = serve([silent[0], good, silent[1]], "--tokenizer-dir", folder)
    probed(s)
    assert tokenizer(s)["why"] == "the first requests are compared"


def test_a_request_that_names_no_model_has_the_tokenizer_of_the_only_one_there_is(serve, engine, folder):
    a, b = engine(models=("a",)), engine(models=("b",))
    s = serve([a], "--tokenizer-dir", f"a={folder}")
    trusted(s, "a")

    def ask(i):
        body = {"messages": [{"role": "user", "content": f"request {i} of no model"}], "max_tokens": 1}
        assert call(s.port, "POST", "/v1/chat/completions", body).status == 200
    ask(0)
    assert made_here(s) == 1
    s.post("/workers", {"worker_id": 2, "endpoint": f"http://127.0.0.1:{b.port}", "block_size": 16})
    wait_for("its model", lambda: {m["id"] for m in call(s.port, "GET", "/v1/models").json()["data"]} == {"a", "b"}, 20)
    wait_for("a question to an engine", lambda: ask(len(a.generated) + len(b.generated)) or s.metric("tokenize_requests_total") > 2, 20)
    b.count_off, before = 7, made_here(s)  # another tokenizer, whose folder is not here
    for i in range(100, 108):
        ask(i)
    assert made_here(s) == before and tokenizer(s, "a")["state"] == "trusted"


def test_a_chat_is_tokenized_here_after_an_engine_has_agreed(serve, engine, folder):
    e = engine()
    s = serve([e], "--tokenizer-dir", folder)
    t = trusted(s)
    assert t["library"]["segments"] == t["library"]["template"] == "yes" and t["last_difference"] is None
    before = e.asked["/tokenize"]
    for i in range(5):
        chat(s, [*CHAT, {"role": "assistant", "content": f"<|end|> {i}"}, {"role": "user", "content": "ﬁn <|user|>"}])
    assert made_here(s) == 5 and e.asked["/tokenize"] == before
    assert s.metric("tokenizer_checks_total", judge="usage", result="equal") == 5  # the engine counts the same
    chat(s, [*CHAT, {"role": "assistant", "content": "<|end|> 4"}, {"role": "user", "content": "ﬁn <|user|>"}])
    assert made_here(s) == 5 and s.metric("tokens_total", **{"from": "cache"}) == 1
    assert s.metric("tokenizer_segments_total", result="hit") > 5


def test_questions_of_the_admin_port_take_a_text_once_the_model_is_trusted(serve, engine, folder):
    e = engine()
    s = serve([e], "--tokenizer-dir", folder)
    probed(s)
    ask = {"model_name": "m", "messages": CHAT}
    assert call(s.admin, "POST", "/select", ask).status == 503 and b"GET /tokenizers" in call(s.admin, "POST", "/select", ask).body
    trusted(s)
    e.asked.clear()
    assert s.post("/select_and_reserve", ask).json()["isl_tokens"] == len(ids_of({"messages": CHAT}))
    same = {"model_name": "m", "token_ids": ids_of({"messages": CHAT})}
    assert s.post("/query", ask).json() == s.post("/query", same).json()
    assert b"--tokenizer-dir" in call(s.admin, "POST", "/select", {**ask, "model_name": "unknown"}).body
    assert not e.asked.get("/tokenize")


def test_a_request_that_names_no_model_has_the_tokens_of_the_only_one(serve, engine, folder):
    e = engine()
    s = serve([e], "--tokenizer-dir", folder)
    trusted(s)
    asked = e.asked["/tokenize"]
    a = call(s.port, "POST", "/v1/chat/completions", {"messages": CHAT, "max_tokens": 1})
    assert a.status == 200 and made_here(s) == 1 and e.asked["/tokenize"] == asked
    other = engine(models=("m", "n"))
    s = serve([other], "--tokenizer-dir", folder)
    trusted(s)
    assert call(s.port, "POST", "/v1/chat/completions", {"messages": CHAT, "max_tokens": 1}).status == 200
    assert made_here(s) == 0  # which of both the engine takes it for is its own business


def test_tokens_that_are_made_when_the_program_ends_leave_nothing_behind(serve, engine, folder):
    e = engine()
    s = serve([e], "--tokenizer-dir", folder, "--tokenizer-threads", 1)
    trusted(s)
    begun = s.metric("tokenizer_jobs_total", result="begun")
    connections = [socket.create_connection(("127.0.0.1", s.port)) for _ in range(3)]
    for i, c in enumerate(connections):
        body = json.dumps({"model": "m", "max_tokens": 1, "prompt": f"{i} " + os.urandom(1 << 21).hex()}).encode()
        c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    wait_for("what is made", lambda: s.metric("tokenizer_jobs_total", result="begun") == begun + 3, PATIENCE)
    s.p.send_signal(signal.SIGTERM)
    wait_for("the first signal", lambda: "draining" in s.text(), PATIENCE)
    s.p.send_signal(signal.SIGTERM)  # stops at once, while a thread has the first prompt and two wait
    assert s.p.wait(20) == 0, s.text()
    for c in connections:
        c.close()


def test_completions_have_their_special_token_once(serve, engine, folder):
    e = engine()
    s = serve([e], "--tokenizer-dir", folder)
    trusted(s)
    for body in ({"prompt": "Once upon"}, {"prompt": "Once upon", "add_special_tokens": False}, {"prompt": ["Only one"]}):
        a = call(s.port, "POST", "/v1/completions", {"model": "m", "max_tokens": 1, **body})
        assert a.status == 200, a.body
    assert made_here(s) == 3


def test_no_token_that_is_made_here_is_used_before_trust(serve, engine, folder):
    e = engine()
    s = serve([e], "--tokenizer-dir", folder, probes=1000000)
    probed(s)
    for i in range(3):
        chat(s, [{"role": "user", "content": str(i)}])
    assert made_here(s) == 0 and e.asked["/tokenize"] == 3 and tokenizer(s)["state"] == "probing"


def test_an_engine_with_another_template_is_found_out_by_the_probes(serve, engine, tmp_path):
    folder = make_folder(tmp_path / "other", TEMPLATE.replace("<|end|>\n", "<|end|>"))
    e = engine()
    s = serve([e], "--tokenizer-dir", folder)
    t = until(s, "refused")
    assert t["last_difference"]["question"] == "a user's message" and t["last_difference"]["at"] > 0
    assert "otherwise" in t["why"] and str(e.port) in t["last_difference"]["engine"]
    chat(s)
    assert made_here(s) == 0 and e.asked["/tokenize"] == 1
    assert "tokens are asked of the engine from now on" in s.text()


def test_an_engine_that_answers_a_first_request_otherwise_is_not_agreed_with(serve, engine, folder):
    def change(ids, q):
        return [*ids[:-1], 7] if "odd" in str(q) else ids
    e = engine(change=change)
    s = serve([e], "--tokenizer-dir", folder)
    probed(s)
    chat(s, [{"role": "user", "content": "odd"}])
    t = until(s, "refused")
    assert t["last_difference"]["question"] == "a request" and t["last_difference"]["there"] == 7
    assert t["last_difference"]["at"] == t["last_difference"]["tokens_here"] - 1


def test_an_engine_that_differs_later_is_believed_and_tokens_are_asked_of_it(serve, engine, folder):
    e = engine()
    s = serve([e], "--tokenizer-dir", folder, check=1)
    trusted(s)
    e.change = lambda ids, q: [9, *ids]

    chat(s, [{"role": "user", "content": "another"}])  # the first that is made here is checked; a second one could be a second difference
    until(s, "suspect")
    here = made_here(s)
    e.change = lambda ids, q: ids
    for i in range(32):
        chat(s, [{"role": "user", "content": f"agreeing {i}"}])
    assert made_here(s) == here
    until(s, "trusted")
    chat(s, [{"role": "user", "content": "again here"}])
    assert made_here(s) == here + 1
    e.change = lambda ids, q: [9, *ids]

    def refused():
        chat(s, [{"role": "user", "content": f"another {os.urandom(4).hex()}"}])
        return tokenizer(s)["state"] == "refused"
    wait_for("the second difference", refused, PATIENCE)
    assert s.text().count("tokens are asked of the engine until") == 1 and s.text().count("from now on") == 1


def test_what_was_kept_before_a_doubt_is_not_used_after_it(serve, engine, folder):
    e = engine()
    s = serve([e], "--tokenizer-dir", folder)
    trusted(s)
    chat(s)
    chat(s)
    assert s.metric("tokens_total", **{"from": "cache"}) == 1
    e.count_off = 1
    for i in range(3):
        chat(s, [{"role": "user", "content": f"counted {i}"}])
    until(s, "suspect")
    before = e.asked["/tokenize"]
    chat(s)
    assert e.asked["/tokenize"] == before + 1


def test_three_other_counts_in_a_thousand_answers_are_a_doubt(serve, engine, folder):
    e = engine()
    s = serve([e], "--tokenizer-dir", folder)
    trusted(s)
    for i in range(10):
        e.count_off = 1 if i in (3, 6) else 0
        chat(s, [{"role": "user", "content": f"counted {i}"}])
    assert tokenizer(s)["state"] == "trusted"
    e.count_off = -1
    chat(s, [{"role": "user", "content": "the third"}])
    assert "count" in until(s, "suspect")["why"]


@pytest.mark.parametrize("body, reason", [
    ({"messages": [{"role": "user", "content": "x"}], "chat_template": "{{ messages }}"}, "member"),
    ({"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"max_length": 3}}, "chat_template_kwargs"),
    ({"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"n": 123456789012345678901}}, "number"),
    ({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [{"id": "1", "type": "x"}]}]}, "tool_call"),
    ({"messages": [{"role": "system", "content": "x-anthropic-billing-header: cch=1;"}, {"role": "user", "content": "x"}]}, "billing_header"),
])
def test_what_only_the_engine_knows_goes_to_the_engine(serve, engine, folder, body, reason):
    e = engine()
    s = serve([e], "--tokenizer-dir", folder)
    trusted(s)
    before = e.asked["/tokenize"]
    call(s.port, "POST", "/v1/chat/completions", {"model": "m", "max_tokens": 1, **body})
    assert e.asked["/tokenize"] == before + 1 and made_here(s) == 0
    assert s.metric("tokenizer_refusals_total", reason=reason, model="m") == 1


@pytest.mark.parametrize("text", ["kvr-tok-panic-me", "kvr-tok-panic-me " * 10_000], ids=["on the loop", "on a thread"])
def test_a_defect_of_the_library_is_counted_and_the_engine_asked(serve, engine, folder, text):
    e = engine()
    s = serve([e], "--tokenizer-dir", folder, env={"KVR_TOKENIZER_TEST": "1"})
    trusted(s)
    asked = e.asked["/tokenize"]
    chat(s, [{"role": "user", "content": text}])
    assert e.asked["/tokenize"] == asked + 1 and s.metric("tokenizer_refusals_total", reason="panic") == 1
    chat(s, [{"role": "user", "content": "and on it goes"}])
    assert e.asked["/tokenize"] == asked + 1 and tokenizer(s)["state"] == "trusted"


def test_long_prompts_are_made_on_the_threads_of_the_tokenizer(serve, engine, folder):
    e = engine()
    s = serve([e], "--tokenizer-dir", folder, "--tokenizer-threads", 1)
    trusted(s)
    text = "x" * 1_500_000
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        list(pool.map(lambda _: chat(s, [{"role": "user", "content": text}]), range(20)))
    begun, joined = (s.metric("tokenizer_jobs_total", result=r) for r in ("begun", "joined"))
    cached = s.metric("tokens_total", **{"from": "cache"})
    assert begun >= 1 and begun + joined + cached == 20, (begun, joined, cached)
    assert e.asked["/tokenize"] == 2


def test_clients_that_leave_while_their_prompt_is_tokenized(serve, engine, folder):
    import http.client
    e = engine()
    s = serve([e], "--tokenizer-dir", folder, "--tokenizer-threads", 1)
    trusted(s)
    for i in range(10):
        c = http.client.HTTPConnection("127.0.0.1", s.port)
        body = str(i) + "y" * 1_000_000
        import json
        c.request("POST", "/v1/chat/completions", json.dumps({"model": "m", "messages": [{"role": "user", "content": body}]}), {"Content-Type": "application/json"})
        c.close()
    wait_for("all of them gone", lambda: s.metric("client_gone_total") + s.metric("requests_total") >= 10, PATIENCE)
    chat(s)
    assert s.idle()


def test_prompts_that_do_not_turn_up_in_events_are_a_doubt(start, serve, engine, folder, zctx):
    """The engine's answers count as many tokens, and its events tell of others: the third judge."""
    publisher = Engine(zctx)
    try:
        e = engine()
        s = start(Serve, [f"{e.spec()},events=tcp://127.0.0.1:{publisher.events},replay=tcp://127.0.0.1:{publisher.replay_port}"], "--tokenizer-lib", LIBRARY,
                  "--tokenizer-probes", 0, "--tokenizer-check", 0, "--tokenizer-dir", folder, ready=False)
        publisher.until("the view", lambda: s.view()["trusted"])
        until(s, "trusted")

        def doubted(n=[0]):
            n[0] += 1
            q = [{"role": "user", "content": f"{n[0]:08d} " * 20}]
            ids = ids_of({"messages": q})
            chat(s, q)
            wrong = [i + 1 for i in ids]
            publisher.stored(list(range(n[0] * 100, n[0] * 100 + len(ids) // 16)), wrong[:len(ids) // 16 * 16], block_size=16)
            publisher.serve_replay(0.001)
            return tokenizer(s)["state"] == "suspect"
        wait_for("the doubt", doubted, 40)
        assert "events" in tokenizer(s)["why"] and s.metric("tokenizer_checks_total", judge="events", result="different") == 1
    finally:
        publisher.close()


def test_two_models_with_unlike_folders_do_not_mix(serve, engine, folder, tmp_path):
    other = make_folder(tmp_path / "other", TEMPLATE.replace("<|end|>\n", "<|end|>"))

    def change(ids, q):
        return encode_other(q) if q.get("model") == "n" else ids

    def encode_other(q):
        ids, end = ids_of(q), encode("<|end|>\n")
        out = []
        while ids:
            if ids[:2] == end and "messages" in q:
                out, ids = [*out, end[0]], ids[2:]
            else:
                out, ids = [*out, ids[0]], ids[1:]
        return out
    e = engine(models=("m", "n"), change=change)
    s = serve([e], "--tokenizer-dir", f"m={folder}", "--tokenizer-dir", f"n={other}")
    trusted(s)
    trusted(s, "n")
    chat(s)
    chat(s, model="n")
    assert made_here(s) == 2 and s.metric("tokens_total", **{"from": "cache"}) == 0


def test_the_folder_is_found_by_the_root_of_the_model(serve, engine, folder):
    e = engine(root=folder)
    s = serve([e])
    assert trusted(s)["folder"] == folder


def test_the_folder_is_found_in_the_cache_of_the_hub(serve, engine, tmp_path):
    hub = tmp_path / "hub"
    snapshot = hub / "models--org--name" / "snapshots" / "0123abcd"
    make_folder(snapshot)
    os.makedirs(hub / "models--org--name" / "refs")
    (hub / "models--org--name" / "refs" / "main").write_text("0123abcd\n")
    e = engine(root="org/name")
    s = serve([e], env={"HF_HUB_CACHE": str(hub)})
    assert trusted(s)["folder"] == str(snapshot)


@pytest.mark.parametrize("root", ["../../etc", "org/../name", "/nonexistent", "", "a/b/c", "org--name"])
def test_a_root_that_is_no_folder_here_leads_nowhere(serve, engine, root, tmp_path):
    e = engine(root=root)
    s = serve([e], env={"HF_HUB_CACHE": str(tmp_path)})
    chat(s)
    assert s.get("/tokenizers") == [] and e.asked["/tokenize"] == 1


def test_an_engine_without_render_is_asked_over_tokenize(serve, engine, folder):
    e = engine(no_render=True)
    s = serve([e], "--tokenizer-dir", folder)
    trusted(s)
    chat(s)
    assert made_here(s) == 1 and e.asked["/tokenize"] > 10


def test_an_engine_that_cannot_be_asked_is_trusted_only_when_the_operator_says_so(serve, engine, folder):
    e = engine(no_render=True, no_tokenize=True)
    s = serve([e], "--tokenizer-dir", folder)
    wait_for("the probes", lambda: e.asked.get("/tokenize", 0) >= 1, PATIENCE)
    chat(s)
    assert tokenizer(s)["state"] == "probing" and made_here(s) == 0
    s = serve([e], "--tokenizer-dir", folder, "--tokenizer", "local")
    until(s, "trusted")
    chat(s)
    assert made_here(s) == 1 and "its tokens are not compared" in s.text()


@pytest.mark.parametrize("number", [2, 1], ids=["another", "in its place"])
def test_a_worker_that_joins_with_other_tokens_ends_the_trust(serve, engine, folder, number):
    e = engine()
    s = serve([e], "--tokenizer-dir", folder)
    trusted(s)
    other = engine(change=lambda ids, q: [1, *ids])
    assert s.post("/workers", {"worker_id": number, "endpoint": f"http://127.0.0.1:{other.port}", "block_size": 16}).status == 201
    t = until(s, "refused")
    assert str(other.port) in t["last_difference"]["engine"]


def test_an_engine_that_was_removed_while_it_was_asked_ended_the_trust(serve, engine, folder):
    e = engine()
    s = serve([e], "--tokenizer-dir", folder)
    trusted(s)
    asked, removed = threading.Event(), threading.Event()

    def change(ids, question):
        asked.set()
        removed.wait(60)
        return [1, *ids]
    other = engine(change=change)
    assert s.post("/workers", {"worker_id": 2, "endpoint": f"http://127.0.0.1:{other.port}", "block_size": 16}).status == 201
    assert asked.wait(60) and call(s.admin, "DELETE", "/workers/2").status == 200
    removed.set()
    right = engine()  # asked after it
    assert s.post("/workers", {"worker_id": 3, "endpoint": f"http://127.0.0.1:{right.port}", "block_size": 16}).status == 201
    wait_for("its answers", lambda: s.metric("tokenizer_checks_total", judge="probes") >= 2 or tokenizer(s)["state"] == "refused", PATIENCE)
    assert tokenizer(s)["state"] == "trusted"


def test_a_wrong_library_folder_or_profile_is_named_at_the_start(start, folder, tmp_path):
    bad = tmp_path / "libbad.so"
    bad.write_bytes(b"no library")
    other = tmp_path / "libother.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", other], input=b"unsigned kvr_tok_abi(void) { return 99; }", check=True)
    for flags, words in ((("--tokenizer", "local", "--tokenizer-lib", bad), "cannot be loaded"),
                         (("--tokenizer", "local", "--tokenizer-lib", tmp_path / "none.so"), "there is no"),
                         (("--tokenizer", "local", "--tokenizer-lib", other), "has ABI 99, this program needs"),
                         (("--tokenizer-dir", tmp_path), "no tokenizer.json"),
                         (("--tokenizer-profile", "[]"), "--tokenizer-profile: '[]': allowed: a JSON object with engine"),
                         (("--tokenizer-profile", '{"content_format":"list"}'), 'member "content_format": allowed'),
                         (("--tokenizer-profile", '{"drop_nones":true}'), 'member "drop_nones": allowed'),
                         (("--tokenizer", "local", "--tokenizer-lib", "/usr/lib/x86_64-linux-gnu/libm.so.6"), "is no tokenizer library")):
        s = Serve(["http://127.0.0.1:9"], *flags, wait=False, expect=1)
        assert s.p.wait(60) == 1
        assert words in s.text(), s.text()


def test_a_folder_that_cannot_be_used_is_said_and_the_engine_is_asked(serve, engine, tmp_path):
    folder = make_folder(tmp_path / "model", model={"type": "Unknown"})
    e = engine()
    s = serve([e], "--tokenizer-dir", folder)
    assert "cannot" in until(s, "refused")["why"]
    chat(s)
    assert made_here(s) == 0 and e.asked["/tokenize"] == 1


def test_a_template_that_was_not_compared_with_jinja2_is_not_rendered(serve, engine, tmp_path):
    folder = make_folder(tmp_path / "model", TEMPLATE + "{{ messages | groupby('role') | list | length }}")
    e = engine()
    s = serve([e], "--tokenizer-dir", folder)
    probed(s)
    t = tokenizer(s)
    assert "groupby" in t["library"]["template"]
    before = e.asked.get("/tokenize", 0)
    chat(s)
    assert made_here(s) == 0 and e.asked["/tokenize"] == before + 1


# ---- adapters --------------------------------------------------------------------------------------------------

def test_an_adapter_has_its_base_models_folder_and_a_state_of_its_own(serve, engine, folder, tmp_path):
    (tmp_path / "weights").mkdir()
    e = engine(root=folder, adapters={"lora": str(tmp_path / "weights")})
    s = serve([e])
    trusted(s)
    assert tokenizer(s, "lora")["folder"] == folder and tokenizer(s, "lora")["state"] == "probing"
    chat(s, model="lora")
    assert made_here(s) == 0  # the base model's trust is not the adapter's
    trusted(s, "lora")
    e.change = lambda ids, q: ids + [1] if q.get("model") == "lora" else ids
    s2 = serve([e])  # to this one the adapter's ids are other ones from the beginning
    trusted(s2)
    until(s2, "refused", "lora")
    made = made_here(s2)
    chat(s2)
    assert tokenizer(s2)["state"] == "trusted" and made_here(s2) == made + 1


def test_an_adapter_with_a_tokenizer_of_its_own_is_not_judged_by_the_base_models(serve, engine, folder, tmp_path):
    own = make_folder(tmp_path / "own", LONGER)
    e = engine(root=folder, adapters={"lora": own}, change=lambda ids, q: longer(ids, q) if q.get("model") == "lora" else ids)
    s = serve([e])
    for model, where in (("m", folder), ("lora", own)):
        assert trusted(s, model)["folder"] == where
        chat(s, model=model)
    assert made_here(s) == 2
    assert all(s.metric("tokenizer_checks_total", judge=j, result="different") == 0 for j in ("probes", "engine"))


# ---- folders that change ---------------------------------------------------------------------------------------


LONGER = TEMPLATE.replace("{{ bos_token }}", "{{ bos_token }}A")


def longer(ids, q):
    """What an engine makes of LONGER."""
    return [ids[0], ord("A"), *ids[1:]] if "messages" in q else ids


def test_a_folder_is_read_again_on_sighup_under_load_and_earns_trust_anew(serve, engine, folder):
    e = engine()
    s = serve([e], "--tokenizer-dir", folder)
    trusted(s)
    stop, failures = threading.Event(), []

    def ask(k):
        n = 0
        while not stop.is_set():
            n += 1
            a = call(s.port, "POST", "/v1/chat/completions", {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": f"{k} {n} " * 300}]})
            if a.status != 200:
                failures.append((a.status, a.body))
    threads = [threading.Thread(target=ask, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for template, change in [(LONGER, longer), (TEMPLATE, lambda ids, q: ids)]:
        asked = s.metric("tokenizer_checks_total", judge="probes", model="m")
        with open(os.path.join(folder, "chat_template.jinja"), "w") as f:
            f.write(template)
        s.p.send_signal(signal.SIGHUP)
        until_not(s, "trusted")
        e.change, e.count_off = change, int(change is longer)  # only now: an engine that changes while its ids are trusted is another test
        wait_for("the probes", lambda asked=asked: s.metric("tokenizer_checks_total", judge="probes", model="m") > asked, PATIENCE)
        t = until(s, "trusted")
        assert t["last_difference"] is None, t
        made = made_here(s)
        wait_for("tokens made here", lambda made=made: made_here(s) > made + 20, PATIENCE)
    stop.set()
    for t in threads:
        t.join()
    assert not failures
    assert s.metric("tokenizer_checks_total", judge="usage", result="different", model="m") == 0


def test_a_broken_folder_is_refused_on_sighup_and_a_mended_one_trusted(serve, engine, folder):
    e = engine()
    s = serve([e], "--tokenizer-dir", folder)
    trusted(s)
    path = os.path.join(folder, "tokenizer.json")
    with open(path) as f:
        whole = f.read()
    with open(path, "w") as f:
        f.write(whole[:1000])
    s.p.send_signal(signal.SIGHUP)
    assert until(s, "refused")["cannot_load"]
    chat(s)
    with open(path, "w") as f:
        f.write(whole)
    s.p.send_signal(signal.SIGHUP)
    until(s, "probing")
    wait_for("the probes", lambda: s.metric("tokenizer_checks_total", judge="probes", model="m") >= 2, PATIENCE)
    for i in range(2):
        chat(s, [{"role": "user", "content": f"again {i}"}])
    until(s, "trusted")


def test_a_worker_that_comes_back_with_another_root_has_the_folder_of_that_root(serve, engine, folder, tmp_path):
    other = make_folder(tmp_path / "other", LONGER)
    e = engine(root=folder)
    s = serve([e])
    trusted(s)
    port = e.port
    e.close()
    wait_for("the worker is down", lambda: s.get("/workers")[0]["status"] != "up", PATIENCE)
    engine(root=other, change=longer, port=port)
    wait_for("the other folder", lambda: tokenizer(s)["folder"] == other, 30)
    wait_for("the probes", lambda: s.metric("tokenizer_checks_total", judge="probes", model="m") >= 2, PATIENCE)
    for i in range(2):
        chat(s, [{"role": "user", "content": f"again {i}"}])
    assert until(s, "trusted")["last_difference"] is None


# ---- ids that are forwarded ------------------------------------------------------------------------------------

TEXT = "Once upon a time, w\u00f6rld \"quoted\"\n"


def complete(s, **body):
    a = call(s.port, "POST", "/v1/completions", {"model": "m", "max_tokens": 1, **body})
    assert a.status == 200, a.body
    return a.json()


@pytest.mark.parametrize("prompt", [TEXT, [TEXT], TEXT * 5000], ids=["text", "list", "long"])
def test_the_worker_gets_the_ids_of_a_completion_in_place_of_its_text(serve, engine, folder, prompt):
    e = engine()
    s = serve([e], "--tokenizer-dir", folder, "--forward-token-ids", "--max-body-size", "64MiB")
    trusted(s)
    answer = complete(s, prompt=prompt, temperature=0.5, stop=["x", "\u00e4"])
    ids = ids_of({"prompt": prompt})
    assert e.generated[-1] == {"model": "m", "max_tokens": 1, "prompt": ids, "temperature": 0.5, "stop": ["x", "\u00e4"]}
    assert answer["usage"]["prompt_tokens"] == len(ids)
    complete(s, prompt=prompt)  # from the cache
    assert e.generated[-1] == {"model": "m", "max_tokens": 1, "prompt": ids}
    assert s.metric("token_ids_forwarded_total") == 2
    assert s.metric("tokenizer_checks_total", judge="usage", model="m") == 0  # of its own ids the engine's count says nothing


@pytest.mark.parametrize("more", [{"echo": True}, {"prompt_logprobs": 1}, {"truncate_prompt_tokens": 5}, {"suffix": "x"}, {"prompt": [TEXT, TEXT]},
                                  {"prompt": [5, 6, 7]}, {"an_unknown": 1, "prompt": ""}])
def test_a_completion_whose_answer_could_be_another_keeps_its_text(serve, engine, folder, more):
    e = engine()
    s = serve([e], "--tokenizer-dir", folder, "--forward-token-ids")
    trusted(s)
    body = {"model": "m", "max_tokens": 1, "prompt": TEXT, **more}
    e.generated.clear()
    complete(s, **body)
    kept = [ids_of({"prompt": ""})] if body["prompt"] == "" else [body["prompt"]]
    assert [q["prompt"] for q in e.generated] == kept
    assert s.metric("token_ids_forwarded_total") == (1 if body["prompt"] == "" else 0)


def test_ids_are_not_forwarded_unless_the_operator_wants_it(serve, engine, folder):
    e = engine()
    s = serve([e], "--tokenizer-dir", folder)
    trusted(s)
    complete(s, prompt=TEXT)
    assert e.generated[-1]["prompt"] == TEXT and s.metric("token_ids_forwarded_total") == 0


# ---- SGLang -----------------------------------------------------------------------------------------------------

SGLANG_CHATS = [
    {"messages": [*CHAT, {"role": "assistant", "content": " as a user"}]},
    {"messages": [*CHAT, {"role": "assistant", "content": "going "}], "continue_final_message": True},
    {"messages": CHAT, "add_generation_prompt": False, "documents": [{"text": "not seen"}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": ""}]}], "reasoning_effort": "high"},
    {"messages": CHAT, "tools": [{"type": "function", "function": {"parameters": {}, "name": "f"}}]},
    {"messages": CHAT, "tools": [{"type": "function", "function": {"name": "g"}}], "tool_choice": "none"},
]


@pytest.mark.parametrize("flags", [(), ("--tokenizer-profile", '{"engine":"sglang"}')], ids=["looked for", "given"])
def test_an_engine_that_is_an_sglang_has_its_own_prompts(start, engine, folder, flags):
    e = engine(sglang=True)
    s = start(Serve, [e.spec() + ",engine=sglang"], "--tokenizer-lib", LIBRARY, "--tokenizer-probes", 2, "--tokenizer-check", 0, "--tokenizer-dir", folder, *flags)
    assert trusted(s)["library"]["engine"] == "sglang"
    before = e.asked["/tokenize"]
    for q in SGLANG_CHATS:
        chat(s, **q)
    assert made_here(s) == len(SGLANG_CHATS) and e.asked["/tokenize"] == before
    assert s.metric("tokenizer_checks_total", result="different") == 0
    assert s.metric("tokenizer_checks_total", judge="usage", result="equal") >= len(SGLANG_CHATS) - 1


def test_an_sglang_is_asked_for_what_its_chat_computes(start, engine, folder):
    e = engine(sglang=True)
    s = start(Serve, [e.spec() + ",engine=sglang"], "--tokenizer", "engine")
    for q in SGLANG_CHATS:
        chat(s, **q)
        assert ids_of(e.questions[-1], True, False) == ids_of(q, True), q
    assert len(e.questions) == len(SGLANG_CHATS)


def test_an_engine_that_answers_texts_alone_has_not_been_compared(start, serve, engine, folder):
    e = engine(sglang=True, no_messages=True)
    s = serve([e], "--tokenizer-dir", folder)
    wait_for("the probes", lambda: e.asked.get("/tokenize", 0) >= 18, PATIENCE)
    chat(s)
    assert tokenizer(s)["state"] == "probing" and made_here(s) == 0
    s = start(Serve, [e.spec() + ",engine=sglang"], "--tokenizer-lib", LIBRARY, "--tokenizer-dir", folder, "--tokenizer", "local",
              "--tokenizer-profile", '{"engine":"sglang"}')
    until(s, "trusted")
    chat(s)
    assert made_here(s) == 1 and "its tokens are not compared" in s.text()


def test_questions_in_the_form_of_another_engine_are_not_answered_here(start, serve, engine, folder):
    """Of a chat for vLLM the question lacks what decides in SGLang's, and the other way round."""
    e = engine(sglang=True)
    s = serve([e], "--tokenizer-dir", folder)
    assert trusted(s)["library"]["engine"] == "sglang"
    chat(s, **SGLANG_CHATS[-1])
    assert made_here(s) == 0
    s = start(Serve, [engine().spec() + ",engine=sglang"], "--tokenizer-lib", LIBRARY, "--tokenizer-probes", 2, "--tokenizer-dir", folder)
    assert trusted(s)["library"]["engine"] == "vllm"
    chat(s)
    assert made_here(s) == 0


# ---- days ----------------------------------------------------------------------------------------------------------

def zone_of_midnight(seconds):
    """A time zone whose next day begins so many seconds from now."""
    behind = (int(time.time()) + int(seconds)) % 86400
    west = behind if behind < 43200 else behind - 86400
    h, m, s = abs(west) // 3600, abs(west) // 60 % 60, abs(west) % 60
    return f"MID{'' if west >= 0 else '-'}{h}:{m:02}:{s:02}"


def test_a_chat_that_was_tokenized_yesterday_is_tokenized_anew(start, engine):
    """Its template may write the date, here and at the engine."""
    e = engine()
    s = start(Serve, [e.spec()], "--tokenizer", "engine", env={"TZ": zone_of_midnight(15)})
    chat(s)

    def asked_again():
        chat(s)
        return e.asked["/tokenize"] == 2
    wait_for("the next day", asked_again, 60)
    chat(s)
    assert e.asked["/tokenize"] == 2


# ---- workers that are not alike -------------------------------------------------------------------------------------

VLLM, OTHER_VLLM, SGLANG, UNTOLD_SGLANG = {}, {"change": developers_as_they_come}, {"sglang": True, "told": True}, {"sglang": True}


@pytest.mark.parametrize("probes", [0, 2])
@pytest.mark.parametrize("kinds, question", [
    ((VLLM, SGLANG), "content in parts"), ((SGLANG, VLLM), "content in parts"), ((VLLM, UNTOLD_SGLANG), "content in parts"),
    ((VLLM, OTHER_VLLM), "a developer's message"), ((OTHER_VLLM, VLLM), "a developer's message"), ((VLLM, VLLM, SGLANG), "content in parts"),
], ids=["vllm sglang", "sglang vllm", "vllm untold sglang", "vllm other", "other vllm", "vllm vllm sglang"])
def test_workers_of_two_engines_make_no_tokens_here_and_the_reason_says_why(start, engine, folder, kinds, question, probes):
    engines = [engine(**{k: v for k, v in kind.items() if k != "told"}) for kind in kinds]
    specs = [e.spec() + (",engine=sglang" if kind.get("told") else "") for e, kind in zip(engines, kinds)]
    s = start(Serve, specs, "--tokenizer-lib", LIBRARY, "--tokenizer-probes", probes, "--tokenizer-check", 0, "--tokenizer-dir", folder)
    wait_for("an answer of each engine", lambda: all(sum(e.asked.values()) for e in engines), PATIENCE)
    for i in range(4):
        chat(s, [{"role": "user", "content": f"early {i}"}])
    t = until(s, "refused")
    made = made_here(s)  # until the last worker has answered the others were believed, but a vLLM's ids are none of an SGLang's question
    assert made == 0 or kinds[0] is SGLANG or SGLANG not in kinds
    assert "workers" in t["why"] and "unlike" in t["why"], t
    last = t["last_difference"]
    assert last["question"] == question and all(f":{e.port}" in last["engine"] for e in (engines[0], engines[-1])), t
    assert t["why"] in s.text() and "from now on" in s.text()
    for q in SGLANG_CHATS:
        chat(s, **q)
    assert made_here(s) == made and sum(len(e.generated) for e in engines) == 4 + len(SGLANG_CHATS)


def test_a_worker_that_is_alone_may_come_back_as_another_engine_while_it_is_probed(serve, engine, folder):
    e = engine()
    s = serve([e], "--tokenizer-dir", folder)
    probed(s)
    port = e.port
    e.close()
    wait_for("the worker is down", lambda: s.get("/workers")[0]["status"] != "up", PATIENCE)
    engine(change=developers_as_they_come, port=port)
    wait_for("the probes", lambda: s.metric("tokenizer_checks_total", judge="probes", model="m") >= 2, PATIENCE)
    for i in range(2):
        chat(s, [{"role": "user", "content": f"again {i}"}])
    assert until(s, "trusted")["last_difference"] is None


# ---- the mock with a folder --------------------------------------------------------------------------------------

def test_a_mock_with_a_folder_has_its_tokens_and_a_router_agrees(serve, start, folder):
    m = start(Mock, "--tokenizer-lib", LIBRARY, "--tokenizer-dir", folder)
    for q in ({"messages": CHAT}, {"prompt": "a w\u00f6rld"}, {"prompt": "bare", "add_special_tokens": False}):
        assert call(m.port, "POST", "/tokenize", q).json()["tokens"] == ids_of(q)
    s = start(Serve, [m], "--tokenizer-lib", LIBRARY, "--tokenizer-probes", 2)  # the folder is the mock's `root`
    trusted(s, "mock")
    a = chat(s, model="mock")
    assert made_here(s) == 1 and a["usage"]["prompt_tokens"] == len(ids_of({"messages": CHAT}))
