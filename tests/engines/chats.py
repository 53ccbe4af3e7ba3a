# SPDX-License-Identifier: Apache-2.0
"""Random chats as clients send them: scripts, odd white space, models' markup in what users say, tools, calls and results, content in parts,
reasoning, documents, arguments of templates. A seed gives the same chats again."""
import json

WORDS = ("the of and router cache block token prefix engine naïve café Straße Ünïcödé 東京 日本語 中文测试 한국어 Привет мир γειά שלום مرحبا ไทย हिन्दी 😀 👩‍👩‍👧‍👦 🇩🇪 "
         "e\u0301 \u200b \u200d ﬁ ½ 𝒳 don't I'll we've x=1; for(i=0;i<n;i++) {\"a\":1} http://x.y/z?q=%20 3.14159 1234567890 1e-5 $9.99 #tag @user snake_case "
         "CamelCase ALLCAPS <b>&amp;</b> 'q' \"q\" C:\\dir").split(" ")
SPACES = [" "] * 30 + ["\n", "\n\n", "  ", "\t", "\r\n", "\u3000", "\xa0", "\x1c", "\x85", "   \n  ", "\u2028", "\x0b", "\n \n"]
MARKUP = ["<|im_start|>", "<|im_end|>", "<s>", "</s>", "<|eot_id|>", "[INST]", "[/INST]", "<think>", "</think>", "<tool_call>", "<|im_end", "|>", "<0x41>", "<tool_response>", "</tool_response>"]


def text(r, n=None):
    n = r.choice([0, 1, 3, 10, 30, 120]) if n is None else n
    s = "".join((r.choice(MARKUP) if r.random() < 0.03 else r.choice(WORDS)) + r.choice(SPACES) for _ in range(n))
    how = r.random()
    return s.strip() if how < 0.5 else "\n" + s if how < 0.6 else s + "\x1f " if how < 0.65 else s


def value(r, depth=0):
    kinds = [lambda: None, lambda: True, lambda: False, lambda: r.randrange(-10**6, 10**6),
             lambda: r.choice([1.0, 0.5, 1e-5, 1e16, 1.5e300, 0.1, -0.0, 123456789.123]), lambda: text(r, 3)]
    if depth < 2:
        kinds += [lambda: [value(r, depth + 1) for _ in range(r.randrange(4))],
                  lambda: {text(r, 1).strip() or "k": value(r, depth + 1) for _ in range(r.randrange(4))}]
    return r.choice(kinds)()


def schema(r, depth=0):
    properties = {}
    for i in range(r.randrange(1, 4)):
        p = {"type": r.choice(["string", "integer", "array", ["string", "null"], "object"]), "description": text(r, 4)}
        if r.random() < 0.3:
            p["enum"] = [text(r, 1) for _ in range(3)]
        if p["type"] == "array":
            p["items"] = {"type": "string"}
        if p["type"] == "object" and depth < 2:
            p.update(schema(r, depth + 1))
        properties[r.choice(["city", "Älter", "query", "B", "a"]) + str(i)] = p
    return {"type": "object", "properties": properties, "required": list(properties)[:1]}


def tool(r, i):
    f = {"name": f"fn_{i}", "description": text(r, 8), "parameters": schema(r)}
    if r.random() < 0.3:
        f = dict(reversed(f.items()))
    if r.random() < 0.1:
        del f["description"]
    if r.random() < 0.1:
        f["strict"] = True
    return {"type": "function", "function": f}


def content(r):
    if r.random() < 0.25:
        return [{"type": "text", "text": text(r)} for _ in range(r.randrange(1, 4))]
    return text(r)


def calls(r):
    def arguments():
        return {k: value(r) for k in r.sample(["city", "unit", "n", "x y", "ключ"], r.randrange(4))}
    return [{"id": f"{r.randrange(10**9):09d}", "type": "function",
             "function": {"name": f"fn_{c}", "arguments": json.dumps(arguments(), ensure_ascii=r.random() < 0.5)}} for c in range(r.choice([1, 1, 1, 2]))]


def chat(r):
    """A body of /v1/chat/completions without its model."""
    m = []
    if r.random() < 0.6:
        m.append({"role": "system", "content": content(r)})
    tools = [tool(r, i) for i in range(r.randrange(1, 4))] if r.random() < 0.4 else None
    turns = r.randrange(1, 8)
    for i in range(turns):
        m.append({"role": r.choice(["user"] * 30 + ["developer"]), "content": content(r)})
        if i == turns - 1 and r.random() < 0.7:
            break
        if tools and r.random() < 0.5:
            made = calls(r)
            m.append({"role": "assistant", "content": r.choice([None, "", text(r)]), "tool_calls": made})
            m += [{"role": "tool", "tool_call_id": c["id"], "content": content(r)} for c in made]
            if r.random() < 0.2:
                continue
        answer = {"role": "assistant", "content": content(r)}
        if r.random() < 0.2:
            answer[r.choice(["reasoning", "reasoning_content"])] = text(r)
        if r.random() < 0.1:
            answer["content"] = f"<think>\n{text(r)}\n</think>\n\n{text(r)}"
        if r.random() < 0.05:
            answer["tool_calls"] = []
        m.append(answer)
    q = {"messages": m}
    if tools:
        q["tools"] = tools
    if m[-1]["role"] == "assistant" and m[-1]["content"] and r.random() < 0.5:
        q.update(continue_final_message=True, add_generation_prompt=False)
    elif r.random() < 0.2:
        q["add_generation_prompt"] = False
    if r.random() < 0.2:
        q["chat_template_kwargs"] = r.choice([{"enable_thinking": False}, {"thinking": True}, {"tools_in_user_message": False}, {"date_string": "1 Jan 2030"},
                                              {"builtin_tools": ["fn_0", "code_interpreter"]}])
    if r.random() < 0.1:
        q["documents"] = [{"title": text(r, 2), "text": text(r, 10)}]
    if r.random() < 0.05:
        q["reasoning_effort"] = r.choice(["low", "high"])
    return q
