# SPDX-License-Identifier: Apache-2.0
"""An engine's front end, as vLLM serves one: FastAPI, pydantic, transformers, one process. It renders and encodes as vLLM's chat does and answers
one token at once, without a model behind it: what is left of a request's time is the front end's.

usage: engine.py FOLDER PORT"""
import asyncio
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, ConfigDict
from transformers import AutoTokenizer

FOLDER, PORT = sys.argv[1], int(sys.argv[2])
tokenizer = AutoTokenizer.from_pretrained(FOLDER)
pool = ThreadPoolExecutor(1)  # as vLLM's renderer has by default
app = FastAPI()


class Chat(BaseModel):
    model_config = ConfigDict(extra="allow")
    messages: list[dict[str, Any]] | None = None
    prompt: str | None = None
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class Tokens(BaseModel):
    count: int
    max_model_len: int
    tokens: list[int]


def seen_by_template(m):
    """What vLLM makes of a message: parts are one text, arguments are objects."""
    m = {k: v for k, v in m.items() if v is not None or k == "content"}
    if isinstance(m.get("content"), list):
        m["content"] = "\n".join(p["text"] for p in m["content"] if p["text"])
    m["content"] = m.get("content") or ""
    calls = [{**c, "function": {**c["function"], "arguments": json.loads(c["function"].get("arguments") or "{}")}} for c in m.pop("tool_calls", [])]
    return {**m, "tool_calls": calls} if calls else m


def dumped(tool):
    """What is left of a tool: its declared members, in their order, also those that are not given."""
    f = tool["function"]
    kept = {k: f.get(k) for k in ("name", "description", "parameters")}
    return {"type": "function", "function": {**kept, **({"strict": f["strict"]} if "strict" in f else {})}}


def encode(q):
    if q.messages is None:
        return tokenizer(q.prompt, add_special_tokens=q.add_special_tokens is not False)["input_ids"]
    text = tokenizer.apply_chat_template([seen_by_template(m) for m in q.messages], tools=[dumped(t) for t in q.tools] if q.tools else None, tokenize=False, add_generation_prompt=q.add_generation_prompt,
                                         continue_final_message=q.continue_final_message, **(q.chat_template_kwargs or {}))
    return tokenizer(text, add_special_tokens=False)["input_ids"]


async def ids_of(q):
    try:
        return await asyncio.get_running_loop().run_in_executor(pool, encode, q)
    except Exception as e:  # a template that raises, a chat that cannot be: the client's mistake
        raise HTTPException(400, str(e)) from e


@app.get("/health")
async def health():
    return {}


@app.get("/v1/models")
async def models():
    return {"object": "list", "data": [{"id": "m", "object": "model", "root": FOLDER, "parent": None, "max_model_len": 1 << 20}]}


@app.post("/tokenize")
async def tokenize(q: Chat):
    ids = await ids_of(q)
    return Tokens(count=len(ids), max_model_len=1 << 20, tokens=ids)


@app.post("/v1/chat/completions/render")
async def render(q: Chat):
    return {"token_ids": await ids_of(q)}


@app.post("/v1/completions/render")
async def render_text(q: Chat):
    return [{"token_ids": await ids_of(q)}]


@app.post("/v1/chat/completions")
async def chat(q: Chat):
    n = len(await ids_of(q))
    usage = {"prompt_tokens": n, "completion_tokens": 1, "total_tokens": n + 1, "prompt_tokens_details": {"cached_tokens": 0}}
    choice = {"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "length"}
    return {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}


uvicorn.run(app, host="127.0.0.1", port=PORT, log_level="warning")
