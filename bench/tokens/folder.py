# SPDX-License-Identifier: Apache-2.0
"""Makes a model's folder with a vocabulary of the size that large models have: byte-level BPE of 128,000 tokens, trained on the texts of this
machine's Python library and documents. Takes some minutes, once. usage: folder.py DIR"""
import glob
import gzip
import json
import os
import random
import sys
import sysconfig

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

VOCABULARY, TEXT_MAX = 128_000, 40_000_000
SPECIALS = ["<|bos|>", "<|start|>", "<|sep|>", "<|end|>"]
# How the byte-level models of the last years split a text: contractions, words with what is before them, three digits, runs of signs, line ends.
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEMPLATE = ("{{ bos_token }}{% for m in messages %}<|start|>{{ m.role }}<|sep|>{{ m.content | trim }}{% for c in m.tool_calls or [] %}"
            "{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}<|end|>{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}"
            "{% if add_generation_prompt %}<|start|>assistant<|sep|>{% endif %}")


def texts():
    files = glob.glob(sysconfig.get_paths()["stdlib"] + "/**/*.py", recursive=True) + glob.glob("/usr/share/doc/**/*", recursive=True)
    files += glob.glob("/usr/share/perl/**/*.pod", recursive=True)
    files = sorted(f for f in files if os.path.isfile(f))
    random.Random(1).shuffle(files)
    left = TEXT_MAX
    for path in files:
        try:
            with gzip.open(path, "rt", errors="ignore") if path.endswith(".gz") else open(path, encoding="utf-8", errors="ignore") as f:
                text = f.read(200_000)
        except OSError:
            continue
        yield text
        left -= len(text)
        if left < 0:
            return


def main(path):
    t = Tokenizer(models.BPE(ignore_merges=True))
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(SPLIT), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    t.train_from_iterator(texts(), trainers.BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=alphabet, show_progress=sys.stderr.isatty()))
    t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIALS])
    t.post_processor = processors.TemplateProcessing(single="<|bos|> $A", pair="<|bos|> $A $B", special_tokens=[("<|bos|>", t.token_to_id("<|bos|>"))])
    os.makedirs(path, exist_ok=True)
    t.save(os.path.join(path, "tokenizer.json"))
    with open(os.path.join(path, "tokenizer_config.json"), "w") as f:
        json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|bos|>", "eos_token": "<|end|>"}, f)
    with open(os.path.join(path, "chat_template.jinja"), "w") as f:
        f.write(TEMPLATE)
    print(f"{path}: {t.get_vocab_size()} tokens")


main(sys.argv[1])
