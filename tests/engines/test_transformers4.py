# SPDX-License-Identifier: Apache-2.0
"""Texts and ids made here against those of transformers 4.57, which older engines run: random chats over templates of six
families, as they come and as an engine hands them over, with the profile of that release.

KVR_TRANSFORMERS4 names a folder that has it and its tokenizers (pip install --target FOLDER 'transformers==4.57.1' 'huggingface-hub<1');
without, the test is left out. This file is also the program that runs with that folder in front of the installed packages."""
import collections
import glob
import json
import os
import random
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
LIBRARY = os.path.join(ROOT, "build/tokenizer/libkvr_tokenizer.so")
TEMPLATES = sorted(glob.glob(os.path.join(ROOT, "tests/templates/*.jinja")))
CHATS = int(os.environ.get("KVR_OPS", "400"))  # of each family
FOLDER = os.environ.get("KVR_TRANSFORMERS4", "")


def handed_over(q, as_list):
    """What an engine makes of messages: parts joined, or the texts made parts; arguments that are objects; null content is a text."""
    q = json.loads(json.dumps(q))
    for m in q["messages"]:
        parts = m["content"] if isinstance(m["content"], list) else [{"type": "text", "text": m["content"] or ""}]
        m["content"] = parts if as_list and m["role"] != "tool" else "\n".join(p["text"] for p in parts)
        for c in m.get("tool_calls") or []:
            c["function"]["arguments"] = json.loads(c["function"]["arguments"])
    return q


def there(tokenizer, template, q):
    """The text and its ids, or None where the template raises."""
    arguments = {**(q.get("chat_template_kwargs") or {}), **{k: q[k] for k in ("documents", "reasoning_effort") if k in q}}
    try:
        text = tokenizer.apply_chat_template(q["messages"], tools=q.get("tools"), chat_template=template, tokenize=False,
                                             add_generation_prompt=q.get("add_generation_prompt", True),
                                             continue_final_message=q.get("continue_final_message", False), **arguments)
    except Exception:
        return None
    return text, tokenizer(text, add_special_tokens=False)["input_ids"]


def compare(model):
    import transformers
    from chats import chat
    from tokens_library import Refused, Tokenizer
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(model)
    count, different = collections.Counter(), []
    for path in TEMPLATES:
        with open(path, encoding="utf-8") as f:
            template = f.read()
        here = Tokenizer(LIBRARY, model, chat_template=template, raw=True, drop_none=False, alias_reasoning=False)
        r = random.Random(os.path.basename(path))
        for i in range(CHATS):
            q = chat(r)
            if i % 4:
                q = handed_over(q, i % 4 == 3)
            want = there(tokenizer, template, q)
            try:
                got = here.render(q), here.ids(q)
            except Refused as e:
                count["refused by both" if want is None else "refused here: " + e.label] += 1
                continue
            if want is None:
                count["raised there only"] += 1
            elif got == want:
                count["equal"] += 1
            else:
                different.append([os.path.basename(path), i, "text" if got[0] != want[0] else "ids"])
    print(json.dumps({"release": transformers.__version__, "count": count, "different": different}))


if __name__ == "__main__":
    compare(sys.argv[1])
else:
    import pytest
    from harness import DIR

    @pytest.mark.skipif(not os.path.exists(LIBRARY), reason="make tokenizer")
    @pytest.mark.skipif(not os.path.isdir(os.path.join(FOLDER, "transformers")), reason="KVR_TRANSFORMERS4 names no folder with transformers 4.57")
    def test_chats_have_the_ids_that_transformers_4_computes():
        env = {**os.environ, "PYTHONPATH": FOLDER + os.pathsep + HERE, "USE_TORCH": "0"}
        done = subprocess.run([sys.executable, os.path.abspath(__file__), os.path.join(DIR, "model")], env=env, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout.splitlines()[-1])
        print(found)
        assert found["release"].startswith("4.") and not found["different"], found
        assert found["count"]["equal"] > CHATS * len(TEMPLATES) / 2, found
