#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""prepare.py DIR: what the tokenizer library's fuzz targets start from, made of what other tests have: two folders of models, a question,
seeds of both targets, dictionaries."""
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "../../..")
sys.path.insert(0, os.path.join(ROOT, "tests/e2e"))
from token_parts import SPECIALS, byte_names, make_folder  # noqa: E402

MERGES = "t h|th e|i n|Ġ the|Ġ t|e r|r o|ro u|o n|1 2|12 3|Ċ Ċ|Ġ Ġ|ĠĠ ĠĠ|a a|aa aa|Ã ©|< |".split("|")[:-1]
PARTS = ["{{", "}}", "{%", "%}", "{#", "#}", "{%-", "-%}", "{% raw %}", "{% endraw %}", "{% for x in y %}", "{% endfor %}", "{% if a %}", "{% elif b %}", "{% else %}",
         "{% endif %}", "{% macro m(a, b=1) %}", "{% endmacro %}", "{% call m() %}", "{% endcall %}", "{% set x = x ~ x %}", "{% set x %}", "{% endset %}", "{% with a = 1 %}",
         "{% generation %}", "{% endgeneration %}", "{% filter upper %}", "messages", "tools", "loop.", "namespace()", "range(9)", "[::-1]", "[1:]", " is ", " not ", " in ", " ~ ",
         "'\\\\ud800'", ".format(1)", "|dictsort", ".split('')", ".splitlines()", "9223372036854775807", "strftime_now('%Q%')", "** 99", "// 0", "1e400", "|safe", "|tojson(indent=2)"]
FILTERS = ("trim length upper lower default join first last list string items selectattr rejectattr select reject map replace int float reverse dictsort abs indent title "
           "capitalize round sum batch unique min max sort").split()
MEMBERS = ["messages", "role", "content", "type", "text", "tools", "function", "name", "parameters", "arguments", "tool_calls", "tool_call_id", "prompt", "documents",
           "chat_template_kwargs", "add_generation_prompt", "continue_final_message", "add_special_tokens", "reasoning", "reasoning_content", "tool_choice", "system", "user",
           "assistant", "tool", "developer"]
PIECES = ["null", "true", "-0", "1e999", "999999999999999999", "\\\\ud800", "[[[[[[[[", "\\xef\\xbb\\xbf", "\\xff", "\\xc3\\xa9", "\\xf0\\x9f\\x98\\x80", "\\xe2\\x96\\x81", "e\\xcc\\x81"]


def pieces_model():
    """As Llama 2's: words begin with U+2581, bytes where no piece fits."""
    pieces = ["<unk>", *(f"<0x{b:02X}>" for b in range(256)), "▁", *(chr(c) for c in range(33, 127)), "é", "▁▁"]
    merges = [m.split(" ") for m in "▁ ▁|t h|th e|▁ the|▁ t|i n|e r|a a|aa aa|1 2|< |".split("|")[:-1]]
    merges = [m for m in merges if all(m)]
    vocab = {p: i for i, p in enumerate(dict.fromkeys(pieces + ["".join(m) for m in merges]))}
    return dict(type="BPE", dropout=None, unk_token="<unk>", continuing_subword_prefix=None, end_of_word_suffix=None, fuse_unk=True, byte_fallback=True,
                ignore_merges=False, vocab=vocab, merges=[" ".join(m) for m in merges])


def bytes_model():
    names = byte_names()
    merges = [m for m in (m.split(" ") for m in MERGES) if len(m) == 2 and all(m)]
    vocab = {names[b]: b for b in range(256)}
    for m in merges:
        vocab.setdefault("".join(m), len(vocab))
    return dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix=None, end_of_word_suffix=None, fuse_unk=False, byte_fallback=False,
                ignore_merges=False, vocab=vocab, merges=[" ".join(m) for m in merges])


def added(first):
    return [dict(id=first + i, content=s, single_word=False, lstrip=i == 4, rstrip=i == 5, normalized=False, special=True) for i, s in enumerate(SPECIALS)]


def post(first):
    return dict(type="TemplateProcessing", single=[{"SpecialToken": {"id": SPECIALS[0], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                pair=[{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                special_tokens={SPECIALS[0]: dict(id=SPECIALS[0], ids=[first], tokens=[SPECIALS[0]])})


def make_folders(out):
    b, p = bytes_model(), pieces_model()
    first_b, first_p = len(b["vocab"]), len(p["vocab"])
    make_folder(os.path.join(out, "bytes"), model=b, normalizer={"type": "NFC"}, added_tokens=added(first_b), post_processor=post(first_b))
    meta = dict(type="Metaspace", replacement="▁", prepend_scheme="first", split=False)
    make_folder(os.path.join(out, "pieces"), model=p, pre_tokenizer=meta, decoder=None, added_tokens=added(first_p), post_processor=post(first_p))


def read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as f:
        return f.read()


def questions():
    """Chats that other tests have recorded, and texts."""
    for chat in json.loads(read("tokenizer/tests/vectors/chats.json"))["cases"][::4]:
        yield chat[1]
    for family in json.loads(read("tests/vectors/sglang_chats.json"))["templates"]:
        yield from (c["question"] for c in family["chats"][::5])
    for prompt in ("the token in 123 aaaa", "<|user|>é\u0301 <|end|> \n\n<|tool|>", " lead  and trail ", ""):
        yield {"prompt": prompt}
        yield {"prompt": prompt, "add_special_tokens": False}
    yield {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}, {"role": "assistant", "content": "the <|end|>"}], "continue_final_message": True,
           "add_generation_prompt": False}


def templates():
    folder = os.path.join(ROOT, "tests/templates")
    yield from (read("tests/templates", name) for name in sorted(os.listdir(folder)))
    yield from (case[0] for case in json.loads(read("tokenizer/tests/vectors/jinja.json"))["cases"][::20])


def write(path, data):
    with open(path, "wb") as f:
        f.write(data)


def seed(out):
    for target in ("questions", "folders"):
        os.makedirs(os.path.join(out, "seeds", target), exist_ok=True)
    for i, q in enumerate(questions()):
        text = json.dumps(q, ensure_ascii=i % 2 == 0).encode(errors="replace")
        if len(text) < 4000:
            write(os.path.join(out, "seeds/questions", f"q{i}"), bytes([i % 8 + (128 if i % 3 == 0 else 0)]) + text)
    for i, t in enumerate(templates()):
        write(os.path.join(out, "seeds/folders", f"t{i}"), bytes([i % 3]) + b"\xff\xff" + t.encode(errors="replace"))
    for i, name in enumerate(("bytes", "pieces")):
        for k, options in enumerate((0, 3)):
            write(os.path.join(out, "seeds/folders", f"f{i}{k}"), bytes([options]) + read(out, name, "tokenizer.json").encode() + b"\xff" +
                  read(out, name, "tokenizer_config.json").encode())


def dictionary(out, name, words):
    with open(os.path.join(out, name), "w", encoding="ascii") as f:
        for w in words:
            f.write('"' + w.replace('"', '\\"') + '"\n')


def main(out):
    os.makedirs(out, exist_ok=True)
    make_folders(out)
    write(os.path.join(out, "question.json"), json.dumps({"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "the <|end|> in 123"}, {
        "role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": [1, null, \"x\"]}"}}]}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "array"}}}}}]}).encode())
    seed(out)
    dictionary(out, "questions.dict", [f'"{m}":' for m in MEMBERS] + [f'"{m}"' for m in MEMBERS] + PIECES)
    kinds = [f'"{k}"' for k in ("type", "Sequence", "BPE", "Unigram", "WordPiece", "WordLevel", "Replace", "Regex", "String", "Split", "ByteLevel", "Metaspace", "Prepend", "Strip",
                                "Precompiled", "NFC", "NFKC", "Lowercase", "pattern", "content", "behavior", "vocab", "merges", "dropout", "normalizer", "pre_tokenizer")]
    dictionary(out, "folders.dict", PARTS + ["|" + f for f in FILTERS] + ["." + m + "()" for m in ("items", "keys", "strip", "upper", "split", "title", "join")] + kinds + PIECES)


if __name__ == "__main__":
    main(sys.argv[1])
