# SPDX-License-Identifier: Apache-2.0
"""make_hybrid.py DIR: a Gemma 3 of four layers with random weights in DIR/model-hybrid, three of them with a window of 64 tokens.

Its engine keeps two kinds of cache groups. The tokenizer is DIR/model's."""
import os
import shutil
import sys

import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig


def main():
    model, out = (os.path.join(sys.argv[1], d) for d in ("model", "model-hybrid"))
    torch.manual_seed(5)
    config = Gemma3TextConfig(
        vocab_size=2048, hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=2, num_key_value_heads=2, head_dim=32,
        max_position_embeddings=4096, bos_token_id=0, eos_token_id=3, pad_token_id=1, query_pre_attn_scalar=32, sliding_window=64,
        layer_types=["sliding_attention"] * 3 + ["full_attention"])
    Gemma3ForCausalLM(config).to(torch.bfloat16).save_pretrained(out)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(os.path.join(model, name), out)


main()
