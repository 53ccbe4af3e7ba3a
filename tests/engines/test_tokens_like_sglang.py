# SPDX-License-Identifier: Apache-2.0
"""Token ids made here against SGLang's: what its own message processing makes of random chats, over templates of six families. Needs what
scripts/engines/sglang.sh sets up."""
import collections
import copy
import glob
import os
import random

import pytest
from chats import chat, text
from harness import DIR, ROOT
from tokens_library import Refused, Tokenizer

LIBRARY = os.path.join(ROOT, "build/tokenizer/libkvr_tokenizer.so")
SOURCE = os.environ.get("KVR_SGLANG", os.path.join(DIR, "sglang", "source"))
CHATS = int(os.environ.get("KVR_OPS", "400"))  # of each family
TEMPLATES = sorted(glob.glob(os.path.join(ROOT, "tests/templates/*.jinja")))
RAISES = "{% if tools and tools[0].function %}{{ raise_exception('functions') }}{% endif %}{% if tools %}{{ tools | tojson }}{% endif %}"
pytestmark = pytest.mark.skipif(not (os.path.exists(LIBRARY) and os.path.exists(SOURCE)), reason="make tokenizer; scripts/engines/sglang.sh")


def other(r, q):
    """The same chat with what SGLang's clients send beside it."""
    q = copy.deepcopy(q)
    for m in q["messages"]:
        if r.random() < 0.1:
            m[r.choice(["name", "phase", "reasoning_content", "x"])] = r.choice(["final_answer", "commentary"])
        if m["role"] == "assistant" and isinstance(m["content"], list) and r.random() < 0.3:
            m["content"].insert(0, {"type": r.choice(["thinking", "reasoning"]), r.choice(["thinking", "text"]): text(r, 3)})
        if m["role"] == "assistant" and "reasoning" in m and r.random() < 0.8:
            m["reasoning_content"] = m.pop("reasoning")
        for c in m.get("tool_calls") or []:
            how = r.random()
            if how < 0.1:
                c["function"]["arguments"] = r.choice(["", "[1]", "null", "{", None, {"a": {"b": None}}])
            elif how < 0.2:
                c.update(r.choice([{"index": 0}, {"x": 1}, {"id": None}]))
        if m["role"] == "tool" and r.random() < 0.1:
            m["role"] = r.choice(["function", "Tool"])
    if q.get("tools"):
        for t in q["tools"]:
            how = r.random()
            if how < 0.1:
                t["function"][r.choice(["x", "strict", "description"])] = r.choice([None, True, "y"])
            elif how < 0.15:
                t.pop("type")
            elif how < 0.2:
                t["function"]["parameters"]["properties"]["v"] = {"type": r.choice(["varchar", "int32", "String", "made-up", "null"])}
        if r.random() < 0.3:
            q["tool_choice"] = r.choice(["auto", "none", "required", {"type": "function", "function": {"name": "fn_0"}}])
    if "add_generation_prompt" in q and r.random() < 0.7:
        del q["add_generation_prompt"]
    if r.random() < 0.05:
        q["tools"] = r.choice([[], None])
    return q


@pytest.mark.parametrize("path", [*TEMPLATES, "raises"], ids=os.path.basename)
def test_chats_of_six_families_have_the_ids_that_sglang_computes(path):
    from sglang_here import Sglang
    if path == "raises":
        with open(TEMPLATES[0], encoding="utf-8") as f:
            template = RAISES + f.read()
    else:
        with open(path, encoding="utf-8") as f:
            template = f.read()
    folder = os.path.join(DIR, "model")
    there = Sglang(SOURCE, folder, template)
    here = Tokenizer(LIBRARY, folder, chat_template=template, engine="sglang", alias_reasoning=False)
    r, count = random.Random(os.path.basename(path)), collections.Counter()
    for i in range(CHATS):
        q = other(r, chat(r))
        answers = {}
        for how in ("chat", "tokenize"):
            try:
                answers[how] = getattr(there, how)(copy.deepcopy(q))
            except Exception:  # whatever it is: no 200
                answers[how] = None
        try:
            ids = here.ids(q)
            assert ids == here.ids(q) == here.ids(q, plain=True)
        except Refused as e:
            count[("refused only here: " if answers["chat"] is not None else "refused by both: ") + e.label] += 1
            continue
        if answers["chat"] is None:
            count["refused only there"] += 1  # its answer does not depend on ids then
            continue
        for how, ids_there in answers.items():
            if ids_there is not None:
                at = next((k for k, (x, y) in enumerate(zip(ids, ids_there)) if x != y), min(len(ids), len(ids_there)))
                assert ids == ids_there, f"chat {i}, {how}: {len(ids)} ids here, {len(ids_there)} there, from {at} on\n{q}\n{here.render(q)}\n{there.tokenizer.decode(ids_there)}"
        count["equal" if answers["tokenize"] is not None else "equal, and /tokenize refuses"] += 1
    print(f"{os.path.basename(path)} ({there.format}): {dict(sorted(count.items()))}")
    assert count["equal"] > CHATS / 4, count


def test_texts_have_the_ids_that_sglang_computes():
    from sglang_here import Sglang
    folder, r = os.path.join(DIR, "model"), random.Random("texts")
    there, here = Sglang(SOURCE, folder, "{{ messages }}"), Tokenizer(LIBRARY, folder, engine="sglang")
    for _ in range(CHATS):
        q = {"prompt": text(r, r.choice([1, 5, 50]))}
        assert here.ids(q) == here.ids(q, plain=True) == there.tokenize(q), q
    with pytest.raises(Refused):
        here.ids({"prompt": "x", "add_special_tokens": False})
