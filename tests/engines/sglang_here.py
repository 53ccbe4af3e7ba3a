# SPDX-License-Identifier: Apache-2.0
"""What SGLang's own code makes of a chat: its request classes, its message processing and its /tokenize, of the release that
scripts/engines/sglang.sh unpacks, around a tokenizer of transformers. Parts of it that need a GPU are left empty: chats do not use them."""
import importlib.abc
import importlib.machinery
import os
import sys
import types

LEFT_EMPTY = ("IPython", "gguf", "aiter", "sglang.srt.layers")


class Empty(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__class_getitem__": classmethod(lambda cls, _: cls)})


class EmptyModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if any(name == n or name.startswith(n + ".") for n in LEFT_EMPTY):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return Empty(spec.name)

    def exec_module(self, module):
        pass


class Sglang:
    """chat(body), tokenize(question): ids; ValueError (pydantic's, too) where it would answer 400."""

    def __init__(self, source, folder, template):
        os.environ["HF_HUB_OFFLINE"] = "1"
        if source not in sys.path:
            sys.meta_path.insert(0, EmptyModules())
            sys.path.insert(0, source)
        from sglang.srt.entrypoints.openai import protocol, serving_chat, serving_tokenize
        from sglang.srt.parser import jinja_template_utils as utils
        from sglang.srt.parser.template_detection import detect_reasoning_pattern
        from transformers import AutoTokenizer
        self.protocol = protocol
        serving_chat.get_serving = lambda: types.SimpleNamespace(default_chat_template_kwargs=None, trust_request_chat_template=False, allow_auto_truncate=False)
        serving_chat.get_model = lambda: types.SimpleNamespace(context_length=None, revision=None)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        tokenizer.chat_template = template
        config = types.SimpleNamespace(hf_config=types.SimpleNamespace(model_type="llama", architectures=["LlamaForCausalLM"]), is_multimodal=False,
                                       context_len=1 << 20, get_default_sampling_params=dict)
        manager = types.SimpleNamespace(tokenizer=tokenizer, model_config=config, config_value=lambda _: None, server_args=None, served_model_name="tiny", model_path=folder)
        force, reasoning = detect_reasoning_pattern(template)[:2]
        templates = types.SimpleNamespace(
            chat_template_name=None, python_chat_template=None, force_reasoning=force, reasoning_config=reasoning,
            jinja_template_content_format=utils.detect_jinja_template_content_format(template),
            jinja_template_may_reorder_tool_results=utils.jinja_template_may_reorder_tool_results(template))
        self.tokenizing = serving_tokenize.OpenAIServingTokenize(manager, templates)
        self.serving = self.tokenizing.chat_serving
        self.tokenizer, self.format = tokenizer, templates.jinja_template_content_format

    def chat(self, body):
        request = self.protocol.ChatCompletionRequest.model_validate(body)
        why = self.serving._validate_request(request)
        if why:
            raise ValueError(why)
        effort = (request.chat_template_kwargs or {}).pop("reasoning_effort", None)  # as the request is taken in, before its messages
        if effort is not None:
            request.reasoning_effort = effort
        return self.serving._process_messages(request, False).prompt_ids

    def tokenize(self, question):
        request = self.protocol.TokenizeRequest.model_validate(question)
        if request.messages is None:
            return self.tokenizer.encode(request.prompt, add_special_tokens=request.add_special_tokens)
        return self.tokenizing._tokenize_chat_request(request)
