#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records what transformers' apply_chat_template makes of random chats (tests/engines/chats.py) with the templates named on the command
line, or tags.jinja: chats.json, which tests/all/chats.rs renders again. Needs a Python with jinja2 and transformers.

    /path/to/python tokenizer/tests/vectors/record_chats.py
"""
import json
import os
import random
import sys

import jinja2
import tokenizers
import transformers

HERE = os.path.dirname(os.path.abspath(__file__))
TESTS = os.path.join(HERE, "../../../tests")
sys.path.insert(0, os.path.join(TESTS, "engines"))
from chats import chat  # noqa: E402

CHATS = 60


def handed_over(q):
    """As an engine does it: texts in one piece, arguments as objects."""
    for m in q["messages"]:
        if not isinstance(m["content"], str):
            m["content"] = "\n".join(p["text"] for p in m["content"] or [])
        for c in m.get("tool_calls") or []:
            c["function"]["arguments"] = json.loads(c["function"]["arguments"])
    return q


def questions(name):
    """Chats in which tools are more frequent than elsewhere."""
    r = random.Random(name)
    while True:
        q = chat(r)
        if ("tools" in q or r.random() < 0.2) and len(json.dumps(q)) < 3000:
            yield handed_over(q)


def render(tokenizer, template, q):
    """The text, or None where the template raises."""
    arguments = {**(q.get("chat_template_kwargs") or {}), **{k: q[k] for k in ("documents", "reasoning_effort") if k in q}}
    try:
        return tokenizer.apply_chat_template(q["messages"], tools=q.get("tools"), chat_template=template, tokenize=False,
                                             add_generation_prompt=q.get("add_generation_prompt", True),
                                             continue_final_message=q.get("continue_final_message", False), **arguments)
    except Exception:
        return None


def main(names):
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(tokenizers.models.WordLevel({"x": 0}, "x")), bos_token="<s>")
    cases = []
    for name in names:
        with open(os.path.join(TESTS, "templates", name), encoding="utf-8") as f:
            template = f.read()
        for _, q in zip(range(CHATS), questions(name)):
            cases.append(json.dumps([name, q, render(tokenizer, template, q)]))
    with open(os.path.join(HERE, "chats.json"), "w", encoding="ascii") as f:
        f.write('{"jinja2": "%s", "transformers": "%s",\n"cases": [\n%s\n]}\n' % (jinja2.__version__, transformers.__version__, ",\n".join(cases)))
    print(len(cases), "chats,", sum(c.endswith("null]") for c in cases), "raise")


if __name__ == "__main__":
    main(sys.argv[1:] or ["tags.jinja"])
