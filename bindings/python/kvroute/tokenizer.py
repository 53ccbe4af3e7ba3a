# SPDX-License-Identifier: Apache-2.0
import json
import os
import shutil

from . import _kvroute
from ._check import bad, flag, json_of
from ._errors import EINVAL, ENOTFOUND, EUNSUPPORTED, TokenizerError

NAME = "libkvr_tokenizer.so"
INSTALLED = ("/usr/local/lib/kvroute", "/usr/lib/kvroute")
CACHE_BYTES = 64 << 20
CODES = {0: EUNSUPPORTED, -1: EINVAL, -2: EUNSUPPORTED, -3: EUNSUPPORTED, -4: EUNSUPPORTED}  # 0: the library itself cannot be used
# Members of a chat, besides messages and tools, that make its prompt. The others of a body do not, and are not taken.
MEMBERS = ("add_generation_prompt", "add_special_tokens", "chat_template", "chat_template_kwargs", "continue_final_message", "documents",
           "media_io_kwargs", "mm_processor_kwargs", "reasoning_effort")


def _library(lib):
    """The file: given, or beside the package, or where the program on PATH finds it, or where it was installed."""
    if lib is not None:
        return os.fspath(lib)
    folders = [os.path.dirname(os.path.abspath(__file__))]
    program = shutil.which("kvroute")
    if program:
        beside = os.path.dirname(os.path.realpath(program))
        folders += [beside, os.path.join(beside, "../lib/kvroute"), os.path.join(beside, "../tokenizer")]
    folders += INSTALLED
    for folder in folders:
        path = os.path.join(folder, NAME)
        if os.path.exists(path):
            return path
    raise TokenizerError(ENOTFOUND, f"library: there is no {NAME} in {', '.join(folders)}; give it as lib=")


def _options(profile):
    if isinstance(profile, (str, bytes, bytearray)):
        profile = json_of("profile", profile)
    if profile is not None and not isinstance(profile, dict):
        raise bad("profile", profile, "None, a dict, or a JSON object")
    return json.dumps({"cache_bytes": CACHE_BYTES, **(profile or {})}).encode()


def _said(answer):
    """What the compiled part gives, or the exception it stands for."""
    if isinstance(answer, tuple):
        code, text = answer
        raise TokenizerError(CODES.get(code, EUNSUPPORTED), text if code else f"library: {text}")
    return answer


def _message(m):
    """The old name of a message's reasoning is written as the engine's chat has it."""
    if not isinstance(m, dict) or "reasoning_content" not in m:
        return m
    out = {k: v for k, v in m.items() if k not in ("reasoning", "reasoning_content")}
    out["reasoning"] = m["reasoning_content"] if m.get("reasoning") is None else m["reasoning"]
    return out


def _arguments(members):
    """What the engine puts among the arguments of the template."""
    arguments, effort = members.get("chat_template_kwargs"), members.pop("reasoning_effort", None)
    documents = members.pop("documents", None)
    if (effort is None and documents is None) or not isinstance(arguments, (dict, type(None))):
        return
    arguments = dict(arguments or {})
    if documents is not None:
        arguments["documents"] = documents
    if effort is not None:
        arguments.setdefault("enable_thinking", effort != "none")
        arguments["reasoning_effort"] = effort
    members["chat_template_kwargs"] = arguments


class Tokenizer:
    """Token ids of texts and chats, as an engine makes them, from a model's folder.

    dir: the folder, with a tokenizer.json and its chat template. lib: libkvr_tokenizer.so, which is no part of the wheel (`make
    tokenizer`); else it is looked for beside the package, where the program `kvroute` finds it, and where it is installed. profile: what
    the engine does with a chat before its template, a dict or JSON; else what vLLM 0.32 does. docs/guides/tokens.md has both.

    Nobody compares these ids with an engine's: `kvroute doctor` does, for a folder. Any number of threads may use one tokenizer at once; no
    call holds the interpreter lock. What only an engine knows (images, a template in the request, ...) raises TokenizerError."""

    def __init__(self, dir, lib=None, profile=None):
        self.dir = os.fspath(dir)
        if not os.path.isfile(os.path.join(self.dir, "tokenizer.json")):
            raise bad("dir", self.dir, "a model's folder with a tokenizer.json")
        options = _options(profile)
        self.lib = _library(lib)
        self._tokenizer = _said(_kvroute.tokenizer_open(os.fsencode(self.lib), os.fsencode(self.dir), options))

    def _ids(self, question):
        return _said(self._tokenizer.ids(json.dumps(question, allow_nan=False).encode()))

    def chat(self, messages, tools=None, **members):
        """Ids of the prompt that a chat makes: what an engine computes for such a body of /v1/chat/completions.

        members: others that make the prompt: add_generation_prompt, add_special_tokens, chat_template_kwargs, continue_final_message,
        documents, reasoning_effort."""
        for name in members:
            if name not in MEMBERS:
                raise bad("member", name, ", ".join(MEMBERS))
        if not isinstance(messages, (list, tuple)):
            raise bad("messages", messages, "a list of messages")
        question = {"messages": [_message(m) for m in messages], **{k: v for k, v in members.items() if v is not None}}
        if tools is not None:
            question["tools"] = tools
        _arguments(question)
        return self._ids(question)

    def text(self, text, *, add_special_tokens=True):
        """Ids of the prompt of a completion."""
        if not isinstance(text, str):
            raise bad("text", text, "a str")
        return self._ids({"prompt": text, "add_special_tokens": flag("add_special_tokens", add_special_tokens)})
