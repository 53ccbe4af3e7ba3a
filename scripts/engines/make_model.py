# SPDX-License-Identifier: Apache-2.0
"""make_model.py DIR: a Llama of two layers with random weights and a byte-level tokenizer in DIR/model, an adapter for it in DIR/model-lora.
make_model.py DIR --slow: one whose prompts take a tenth of a second for 1,000 tokens in DIR/model-slow: for times, where caching must be worth something.

Nothing is downloaded: the tokenizer is trained on texts that every Debian has (and on this tree's), the weights come from a seed."""
import glob
import json
import os
import sys

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

BOS, PAD, TURN, END = "<s>", "</s>", "<|im_start|>", "<|im_end|>"  # numbers 0 to 3, as the configurations say
HIDDEN, LAYERS = 64, 2
TEMPLATE = (
    "{{ bos_token }}"
    "{% if tools %}" + TURN + "system\nTools: {{ tools | tojson }}" + END + "\n{% endif %}"
    "{% for m in messages %}" + TURN + "{{ m.role }}\n{{ m.content }}"
    "{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}" + END + "\n{% endfor %}"
    "{% if add_generation_prompt %}" + TURN + "assistant\n{% endif %}")


def texts():
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
    for pattern in ("/usr/share/common-licenses/*", f"{root}/docs/*.md", f"{root}/README.md"):
        for path in sorted(glob.glob(pattern)):
            if os.path.isfile(path):
                with open(path, errors="ignore", encoding="utf-8") as f:
                    yield f.read()


def make_tokenizer(out):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(texts(), trainers.BpeTrainer(
        vocab_size=2000, special_tokens=[BOS, PAD, TURN, END], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    fast = PreTrainedTokenizerFast(tokenizer_object=t, bos_token=BOS, eos_token=END, pad_token=PAD)
    fast.chat_template = TEMPLATE
    fast.model_max_length = 4096
    fast.save_pretrained(out)


def make_weights(out, hidden=HIDDEN, layers=LAYERS):
    config = LlamaConfig(
        vocab_size=2048, hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=layers, num_attention_heads=hidden // 32,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=4096, bos_token_id=0, eos_token_id=3, pad_token_id=1, tie_word_embeddings=False)
    model = LlamaForCausalLM(config)
    with torch.no_grad():  # as they come, random logits lie so close together that the size of a batch decides which is the largest
        model.lm_head.weight.mul_(20)
    model.to(torch.bfloat16).save_pretrained(out)


def make_adapter(base, out, rank=8):
    os.makedirs(out, exist_ok=True)
    tensors = {}
    for layer in range(LAYERS):
        for part in ("q_proj", "v_proj"):
            name = f"base_model.model.model.layers.{layer}.self_attn.{part}"
            tensors[f"{name}.lora_A.weight"] = torch.randn(rank, HIDDEN) * 0.2
            tensors[f"{name}.lora_B.weight"] = torch.randn(HIDDEN, rank) * 0.2
    save_file(tensors, f"{out}/adapter_model.safetensors")
    with open(f"{out}/adapter_config.json", "w", encoding="utf-8") as f:
        json.dump({"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base, "r": rank, "lora_alpha": 16, "lora_dropout": 0.0,
                   "bias": "none", "target_modules": ["q_proj", "v_proj"], "fan_in_fan_out": False, "inference_mode": True}, f)


def main():
    torch.manual_seed(11)
    if sys.argv[2:] == ["--slow"]:
        model = os.path.join(sys.argv[1], "model-slow")
        make_tokenizer(model)
        make_weights(model, hidden=256, layers=4)
        return
    model = os.path.join(sys.argv[1], "model")
    make_tokenizer(model)
    make_weights(model)
    make_adapter(model, model + "-lora")


main()
