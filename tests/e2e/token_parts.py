# SPDX-License-Identifier: Apache-2.0
"""A model's folder, and an engine that serves that model: it renders and encodes by itself, in the few lines below, so that tokens made by
the router are judged by somebody else."""
import json
import os
import re
import threading

import pytest
from http_parts import Handler, HttpServer

SPECIALS = ["<|bos|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"]
FIRST_SPECIAL = 256
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}"
    "{{ c.function.arguments | tojson }}{% endfor %}<|end|>\n{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if documents %}{{ documents | tojson }}{% endif %}{% if enable_thinking is defined %}[{{ enable_thinking }}]{% endif %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}")


def byte_names():
    """The letters that byte-level tokenizers write bytes as (GPT-2's table)."""
    shown = [*range(ord("!"), ord("~") + 1), *range(0xa1, 0xad), *range(0xae, 0x100)]
    return {b: chr(b) if b in shown else chr(256 + n) for b in range(256) for n in [sum(1 for x in range(b) if x not in shown)]}


def make_folder(path, template=TEMPLATE, **more):
    """A byte-level tokenizer whose ids are the bytes, with special tokens behind them."""
    os.makedirs(path, exist_ok=True)
    names = byte_names()
    added = [dict(id=FIRST_SPECIAL + i, content=s, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
             for i, s in enumerate(SPECIALS)]
    level = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=True)
    bos = {"SpecialToken": {"id": "<|bos|>", "type_id": 0}}
    tokenizer = dict(
        version="1.0", truncation=None, padding=None, added_tokens=added, normalizer=None, pre_tokenizer=level, decoder=level,
        post_processor=dict(type="TemplateProcessing", single=[bos, {"Sequence": {"id": "A", "type_id": 0}}],
                            pair=[{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                            special_tokens={"<|bos|>": dict(id="<|bos|>", ids=[FIRST_SPECIAL], tokens=["<|bos|>"])}),
        model=dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix=None, end_of_word_suffix=None, fuse_unk=False,
                   byte_fallback=False, ignore_merges=False, vocab={names[b]: b for b in range(256)}, merges=[]))
    tokenizer.update(more)
    with open(os.path.join(path, "tokenizer.json"), "w") as f:
        json.dump(tokenizer, f)
    with open(os.path.join(path, "tokenizer_config.json"), "w") as f:
        json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|bos|>", "eos_token": "<|end|>"}, f)
    with open(os.path.join(path, "chat_template.jinja"), "w") as f:
        f.write(template)
    return str(path)


def encode(text):
    out = []
    for piece in re.split("(" + "|".join(map(re.escape, SPECIALS)) + ")", text):
        out += [FIRST_SPECIAL + SPECIALS.index(piece)] if piece in SPECIALS else list(piece.encode())
    return out


def said(m):
    content = m.get("content")
    if isinstance(content, list):
        content = "\n".join(t for t in (p if isinstance(p, str) else p["text"] for p in content) if t)
    return content or ""


def one_system(messages):
    """Messages of developers are the system's where the template does not know them, and those are one, in front."""
    if not any(m["role"] == "developer" for m in messages):
        return messages
    system = [said(m) for m in messages if m["role"] in ("system", "developer")]
    rest = [m for m in messages if m["role"] not in ("system", "developer")]
    return [{"role": "system", "content": "\n\n".join(s for s in system if s)}, *rest]


def render(q):
    """TEMPLATE, with what vLLM makes of messages and tools."""
    out = "<|bos|>"
    goes_on = q.get("continue_final_message")
    messages = one_system(q["messages"])
    for i, m in enumerate(messages):
        out += f"<|{m['role']}|>{said(m)}"
        if goes_on and i == len(messages) - 1:
            return out
        for c in m.get("tool_calls") or []:
            arguments = json.loads(c["function"]["arguments"] or "{}")
            out += c["function"]["name"] + json.dumps(arguments, ensure_ascii=False)
        out += "<|end|>\n"
    if q.get("tools"):
        tools = [{"type": t["type"], "function": {"name": t["function"]["name"], "description": t["function"].get("description"),
                                                  "parameters": t["function"].get("parameters"),
                                                  **{k: v for k, v in t["function"].items() if k == "strict" and v is not None}}} for t in q["tools"]]
        out += json.dumps(tools, ensure_ascii=False)
    arguments = q.get("chat_template_kwargs") or {}
    documents = q.get("documents") or arguments.get("documents")
    if documents:
        out += json.dumps(documents, ensure_ascii=False)
    if "enable_thinking" in arguments:
        out += f"[{arguments['enable_thinking']}]"
    if q.get("add_generation_prompt", True):
        out += "<|assistant|>"
    return out


def render_sglang(q, is_chat):
    """TEMPLATE, with what SGLang makes of messages and tools. Its chat does not know add_generation_prompt; its /tokenize does."""
    messages = []
    generation = None if is_chat else q.get("add_generation_prompt")
    if generation is False and q.get("continue_final_message"):
        raise TypeError("continue_final_message needs add_generation_prompt")
    for m in q["messages"]:
        content = m.get("content")
        text = " ".join(p["text"] for p in content) if isinstance(content, list) else content or ""
        calls = [] if m["role"] == "user" else m.get("tool_calls") or []
        messages.append({"role": m["role"], "content": text, "tool_calls": calls})
    tail = ""
    if messages[-1]["role"] == "assistant" and (generation is None or q.get("continue_final_message")):
        last = messages.pop()["content"]
        if not q.get("continue_final_message"):
            messages.append({"role": "user", "content": last, "tool_calls": []})
        else:
            tail = last
    out = "<|bos|>"
    for m in messages:
        out += f"<|{m['role']}|>{m['content']}"
        for c in m["tool_calls"]:
            out += c["function"]["name"] + json.dumps(json.loads(c["function"]["arguments"]), ensure_ascii=False)
        out += "<|end|>\n"
    choice = q.get("tool_choice") or "auto"
    tools = [t for t in q.get("tools") or [] if choice in ("auto", "required") or choice != "none" and choice["function"]["name"] == t["function"]["name"]]
    if tools:
        known = ("name", "description", "parameters", "strict")
        functions = [{**{k: v for k, v in t["function"].items() if k in known}} for t in tools]
        for f in functions:
            for k in ("description", "parameters"):
                f.setdefault(k, None)
        out += json.dumps([{"type": "function", "function": f, "defer_loading": None} for f in functions], ensure_ascii=False)
    arguments = dict(q.get("chat_template_kwargs") or {})
    if q.get("reasoning_effort"):
        arguments.setdefault("enable_thinking", q["reasoning_effort"] != "none")
    if arguments.get("documents"):
        out += json.dumps(arguments["documents"], ensure_ascii=False)
    if "enable_thinking" in arguments:
        out += f"[{arguments['enable_thinking']}]"
    return out + ("" if generation is False else "<|assistant|>") + tail


def ids_of(q, sglang=False, is_chat=True):
    if "messages" in q and sglang:
        return encode(render_sglang(q, is_chat))
    if "messages" in q:
        return encode(render(q))
    if isinstance(q["prompt"], list) and q["prompt"] and isinstance(q["prompt"][0], int):
        return q["prompt"]
    prompt = q["prompt"][0] if isinstance(q["prompt"], list) else q["prompt"]
    return ([FIRST_SPECIAL] if q.get("add_special_tokens", True) else []) + encode(prompt)


def developers_as_they_come(ids, q):
    """For TokenEngine's `change`: another release of vLLM, where a developer's message stays one."""
    messages = q.get("messages", ())
    if not any(m["role"] == "developer" for m in messages):
        return ids
    return encode("<|bos|>" + "".join(f"<|{m['role']}|>{m['content']}<|end|>\n" for m in messages) + "<|assistant|>")


class TokenEngine(HttpServer):
    """Speaks as vLLM does: /health, /v1/models, /tokenize, the two render paths, chats and completions.

    asked: how often each path; generated: the bodies that it was to answer; change(ids, question) may return other ids, of /tokenize and render;
    count_off is added to usage; no_render: 403; no_tokenize: 404.
    adapters: name -> root, of the first model. sglang: speaks as SGLang does; no_messages: as its /tokenize was before it knew chats."""

    def __init__(self, root=None, models=("m",), change=lambda ids, q: ids, no_render=False, no_tokenize=False, sglang=False,
                 no_messages=False, port=0, adapters=None):
        self.asked, self.questions, self.generated, self.change, self.count_off = {}, [], [], change, 0
        self.adapters = adapters or {}
        self.root, self.models, self.no_render, self.no_tokenize = root, models, no_render, no_tokenize
        self.sglang, self.no_messages = sglang, no_messages
        self.lock, self.closed = threading.Lock(), False
        engine = self

        class Answers(Handler):
            def reply(self, status, answer):
                if engine.closed:  # a connection that was kept goes with the engine
                    self.close_connection = True
                    return
                self.answer(status, answer)

            def do_GET(self):
                models = [{"id": m, "object": "model", "root": engine.root, "parent": None, "max_model_len": 1 << 20} for m in engine.models]
                models += [{"id": a, "object": "model", "root": root, "parent": engine.models[0]} for a, root in engine.adapters.items()]
                answers = {"/health": {}, "/v1/models": {"object": "list", "data": models}}
                self.reply(200 if self.path in answers else 404, answers.get(self.path, {}))

            def do_POST(self):
                q = json.loads(self.body())
                try:
                    self.reply(*engine.answer(self.path, q))
                except (KeyError, TypeError, AttributeError) as e:
                    self.reply(400, {"error": {"message": f"malformed: {e!r}"}})
        super().__init__(Answers, port)

    def spec(self):
        return f"http://127.0.0.1:{self.port},block-size=16"

    def answer(self, path, q):
        with self.lock:
            self.asked[path] = self.asked.get(path, 0) + 1
            if path == "/tokenize":
                self.questions.append(q)
        if self.sglang and path.endswith("/render"):
            return 404, {"detail": "Not Found"}
        if self.no_messages and path == "/tokenize" and "messages" in q:
            return 400, {"message": "prompt: Field required"}
        if path.endswith("/render") and self.no_render or path == "/tokenize" and self.no_tokenize:
            return (404, {"detail": "Not Found"}) if path == "/tokenize" else (403, {"error": "switched off"})  # as vLLM 0.32 without its switch
        if path in ("/tokenize", "/v1/chat/completions/render", "/v1/completions/render"):
            ids = self.change(ids_of(q, self.sglang, False), q)
            if path == "/tokenize":
                return 200, {"count": len(ids), "max_model_len": 1 << 20, "tokens": ids}
            return 200, {"token_ids": ids} if "messages" in q else [{"token_ids": ids}]
        self.generated.append(q)
        n = len(ids_of(q, self.sglang)) + self.count_off
        usage = {"prompt_tokens": n, "completion_tokens": 1, "total_tokens": n + 1, "prompt_tokens_details": {"cached_tokens": 0}}
        choice = {"index": 0, "message": {"role": "assistant", "content": "x"}, "text": "x", "finish_reason": "stop"}
        return 200, {"id": "1", "object": "x", "created": 1, "model": q.get("model"), "choices": [choice], "usage": usage}

    def close(self):
        self.closed = True
        super().close()


@pytest.fixture(name="folder")
def folder_fixture(tmp_path):
    """A folder with TEMPLATE."""
    return make_folder(tmp_path / "model")


@pytest.fixture(name="engine")
def engine_fixture():
    """engine(...) makes a TokenEngine that is closed at the end of the test."""
    made = []

    def make(*args, **kw):
        made.append(TokenEngine(*args, **kw))
        return made[-1]
    yield make
    for e in made:
        e.close()
