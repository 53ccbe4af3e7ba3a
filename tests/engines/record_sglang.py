# SPDX-License-Identifier: Apache-2.0
"""Writes tests/vectors/sglang_chats.json: what SGLang's own code (sglang_here.py) makes of chats, as text, for templates that show what they are given.
`whole` is the text with what is put behind it, null where SGLang refuses the chat.

    ENGINES_DIR/sglang/venv/bin/python tests/engines/record_sglang.py"""
import copy
import json
import os
import random

from chats import chat
from harness import DIR, ROOT
from sglang_here import Sglang
from test_tokens_like_sglang import SOURCE, other

REST = "{{ tools | tojson }}{{ add_generation_prompt }}{% if reasoning_effort is defined %}{{ reasoning_effort }}{% endif %}{{ thinking }}{{ enable_thinking }}"
TEMPLATES = {
    "text": "{% for m in messages %}{{ m | tojson }}\n{% endfor %}" + REST,
    "parts": "{% for m in messages %}{{ m | tojson }}{% if m.content is not string %}{% for p in m.content %}{{ p.text }};{% endfor %}{% endif %}\n{% endfor %}" + REST,
    "parts of another name": "{% for x in messages %}{{ x | tojson }}{% if x.content is not string %}{% for p in x.content %}{{ p.text }};{% endfor %}{% endif %}\n{% endfor %}" + REST,
    "a word": "{# no image #}{% for m in messages %}{{ m | tojson }}\n{% endfor %}" + REST,
    "bare tools": "{% if tools and tools[0].function %}{{ raise_exception('functions') }}{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}" + REST,
    "alternating": "{% for m in messages %}{% if m.role == 'assistant' and loop.last %}{{ raise_exception('last') }}{% endif %}{{ m.content }}{% endfor %}" + REST,
}
SIZE_MAX = 4000  # of a question, in bytes
ASK, SAY = {"role": "user", "content": "Ask"}, {"role": "assistant", "content": "Say "}
TOOL = {"type": "function", "function": {"parameters": {"type": "object", "properties": {"b": {"type": ["string", "null"]}, "a": {}}}, "name": "f", "x": 1, "strict": True}}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"b\": 1.0, \"a\": null}"}}


def called(**more):
    return {"messages": [ASK, {"role": "assistant", "tool_calls": [{**CALL, **more}]}, {"role": "tool", "content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]}]}


CHATS = [
    {"messages": [ASK]}, {"messages": [ASK, SAY]}, {"messages": [ASK, SAY], "continue_final_message": True}, {"messages": [SAY], "continue_final_message": True},
    {"messages": [ASK, {**SAY, "content": ""}], "continue_final_message": True}, {"messages": [ASK, {**SAY, "content": [{"type": "text", "text": "p"}]}]},
    {"messages": [ASK, {**SAY, "content": [{"type": "text", "text": "p"}]}], "continue_final_message": True}, {"messages": [ASK], "add_generation_prompt": True},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": t, "x": 1} for t in ("a", "", "b")], "name": "gone"}]}, {"messages": [{"role": "user", "content": []}]},
    {"messages": [{"role": "user", "content": None}]}, {"messages": [{"role": "User", "content": "x"}]}, {"messages": [{"role": "Developer", "content": "x", "name": "n"}, ASK]},
    {"messages": [{"role": "other", "content": "x"}]}, {"messages": [{"role": "system"}, ASK]}, {"messages": [{"role": "tool", "content": []}, ASK]},
    {"messages": [ASK, {"role": "assistant", "content": [{"type": "thinking", "thinking": "t"}, {"type": "text", "text": "p"}], "reasoning_content": "r", "phase": "commentary"}, ASK]},
    {"messages": [ASK, {"role": "assistant", "content": None, "tool_calls": []}, ASK]}, {"messages": [ASK, {"role": "assistant", "prefix": True, "content": "x"}, ASK]},
    called(), called(index=3, x=1), called(id=None), called(function={"name": "f"}), called(function={"name": "f", "arguments": ""}), called(function={"name": "f", "arguments": "[]"}),
    called(function={"arguments": {"k": None}}), {"messages": [ASK], "tools": [TOOL]}, {"messages": [ASK], "tools": []}, {"messages": [ASK], "tools": [TOOL], "tool_choice": "none"},
    {"messages": [ASK], "tools": [TOOL, {"function": {"name": "g"}}], "tool_choice": {"type": "function", "function": {"name": "g"}}},
    {"messages": [ASK], "tools": [TOOL], "tool_choice": "required"}, {"messages": [ASK], "reasoning_effort": "low"}, {"messages": [ASK], "reasoning_effort": "none"},
    {"messages": [ASK], "reasoning_effort": "high", "chat_template_kwargs": {"thinking": False}}, {"messages": [ASK], "documents": [{"text": "gone"}]},
]


class Recorded(Sglang):
    """whole(body): the text, with what is put behind it."""

    def whole(self, body):
        said = []
        apply, append = self.tokenizer.apply_chat_template, self.serving._append_assistant_prefix_to_prompt_ids

        def rendered(*args, **kw):
            text = apply(*args, **kw)
            said[:] = [text]
            return text

        def appended(ids, prefix):
            said.append(prefix)
            return append(ids, prefix)
        self.tokenizer.apply_chat_template, self.serving._append_assistant_prefix_to_prompt_ids = rendered, appended
        try:
            self.chat(copy.deepcopy(body))
            return "".join(said)
        except Exception:  # whatever it is: no 200
            return None
        finally:
            self.tokenizer.apply_chat_template, self.serving._append_assistant_prefix_to_prompt_ids = apply, append


def main():
    r, out = random.Random("vectors"), []
    for name, template in TEMPLATES.items():
        there = Recorded(SOURCE, os.path.join(DIR, "model"), template)
        chats = CHATS if name != "alternating" else CHATS[:8]
        chats = chats + [other(r, chat(r)) for _ in range(6)]
        made = [{"question": q, "whole": there.whole(q)} for q in chats if len(json.dumps(q)) < SIZE_MAX]
        out.append({"name": name, "template": template, "format": there.format, "chats": made})
    note = "Written by tests/engines/record_sglang.py from the code of SGLang 0.5.23 with transformers 5.19."
    with open(os.path.join(ROOT, "tests/vectors/sglang_chats.json"), "w", encoding="utf-8") as f:
        json.dump({"note": note, "templates": out}, f, ensure_ascii=True, indent=None, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()
