// SPDX-License-Identifier: Apache-2.0
//! What SGLang makes of a chat before the template sees it: the members that its requests declare, in the order in which it dumps them, texts
//! of a content joined by a space, a final message of the assistant, the tools of the choice. request.rs has vLLM's.
//!
//! SGLang's chat leaves out members of a request that its /tokenize knows, and the other way round. Ids are those of its chat; where
//! /tokenize would answer otherwise, the question is refused, so that an engine that is asked can say whether they are right.
use crate::question::{check_numbers, flag};
use crate::request::{some, ContentFormat};
use crate::{bad, unsupported, Res};
use serde_json::{json, Map, Value as Json};

pub struct View {
    pub messages: Vec<Json>,
    /// What continues the prompt: the final message's text, which the template does not see.
    pub tail: Option<String>,
    /// As they are first given to the template.
    pub tools: Json,
    /// Their functions alone: what it is given when it has raised.
    pub bare_tools: Json,
    /// chat_template_kwargs, with what `reasoning_effort` does to them.
    pub arguments: Map<String, Json>,
}

pub fn view(question: &Map<String, Json>, format: ContentFormat) -> Res<View> {
    for name in ["reasoning", "input_ids"] {
        if some(question, name).is_some() {
            return unsupported("member", name); // they make another prompt, and /tokenize does not know them
        }
    }
    let Some(list) = question.get("messages").and_then(Json::as_array).filter(|l| !l.is_empty()) else {
        return bad("messages", "`messages` is no list, or an empty one");
    };
    let mut messages = list.iter().map(|m| message(m, format)).collect::<Res<Vec<_>>>()?;
    let goes_on = flag(question, "continue_final_message")?.unwrap_or(false);
    let tail = final_message(&mut messages, goes_on);
    check_generation(question, goes_on, tail.is_some())?;
    if messages.is_empty() {
        return bad("messages", "there is nothing but the message to go on with");
    }
    let tools = chosen(tools(question.get("tools"))?, question.get("tool_choice"))?;
    let bare_tools = tools.iter().map(|t| t["function"].clone()).collect();
    Ok(View {
        messages: messages.into_iter().map(Json::Object).collect(),
        tail: tail.filter(|t| goes_on && !t.is_empty()),
        tools: if tools.is_empty() { Json::Null } else { tools.into() },
        bare_tools,
        arguments: arguments(question)?,
    })
}

/// A chat of SGLang's does not look at `add_generation_prompt`; its /tokenize does.
fn check_generation(question: &Map<String, Json>, goes_on: bool, assistant_is_last: bool) -> Res<()> {
    let Some(generation) = flag(question, "add_generation_prompt")? else { return Ok(()) };
    let specials = flag(question, "add_special_tokens")?.unwrap_or(false);
    if goes_on && !specials || generation && !assistant_is_last && !specials {
        return Ok(());
    }
    unsupported("add_generation_prompt", "")
}

/* ---- messages ------------------------------------------------------------------------------------------------------------------------ */

/// Beside "user", which it wants in this case; these in any.
const ROLES: [&str; 7] = ["system", "assistant", "tool", "function", "developer", "latest_reminder", "root"];

fn message(m: &Json, format: ContentFormat) -> Res<Map<String, Json>> {
    let Some(m) = m.as_object() else { return bad("messages", "a message is no object") };
    let Some(said) = m.get("role").and_then(Json::as_str) else { return bad("messages", "a message without a role") };
    let role = said.to_lowercase();
    let content = content(m.get("content"), &role, format)?;
    let mut n = Map::new();
    n.insert("role".into(), role.as_str().into());
    if said == "user" {
        if some(m, "content").is_none() {
            return bad("messages", "a user's message without content");
        }
        n.insert("content".into(), content);
        return Ok(n); // it declares no other members
    }
    if !ROLES.contains(&role.as_str()) {
        return bad("messages", "a role that is not known");
    }
    let behind = content.is_array() || (role == "tool" && m.get("content").is_some_and(Json::is_array) && format == ContentFormat::OpenAi);
    if !behind {
        n.insert("content".into(), content.clone());
    }
    others(m, &role, &mut n)?;
    if behind {
        n.insert("content".into(), content); // a list is put in again, at the end
    }
    Ok(n)
}

fn others(m: &Map<String, Json>, role: &str, n: &mut Map<String, Json>) -> Res<()> {
    if some(m, "reasoning").is_some() {
        return unsupported("reasoning", ""); // left out by SGLang; in a question it may have been reasoning_content, which is not
    }
    if some(m, "tools").is_some() {
        return unsupported("tool", "of a message");
    }
    for name in ["tool_call_id", "name", "phase", "reasoning_content"] {
        match some(m, name) {
            None => {}
            Some(v @ Json::String(_)) => {
                n.insert(name.into(), v.clone());
            }
            Some(_) => return bad("messages", format!("`{name}` is no text")),
        }
    }
    match some(m, "tool_calls") {
        None => {}
        Some(Json::Array(calls)) => {
            n.insert("tool_calls".into(), calls.iter().map(|c| tool_call(c, role == "assistant")).collect::<Res<_>>()?);
        }
        Some(_) => return bad("messages", "`tool_calls` is no list"),
    }
    if let Some(prefix) = flag(m, "prefix")? {
        n.insert("prefix".into(), prefix.into());
    }
    Ok(())
}

fn content(content: Option<&Json>, role: &str, format: ContentFormat) -> Res<Json> {
    let parts = match content {
        None | Some(Json::Null) => return Ok("".into()),
        Some(v @ Json::String(_)) => return Ok(v.clone()),
        Some(Json::Array(parts)) => parts,
        _ => return bad("messages", "`content` is neither text nor a list"),
    };
    let texts = parts.iter().filter_map(|p| part(p, role).transpose()).collect::<Res<Vec<&str>>>()?;
    Ok(match format {
        ContentFormat::OpenAi if role != "tool" => texts.iter().map(|t| json!({"type": "text", "text": t})).collect(),
        _ => texts.join(" ").into(),
    })
}

/// None: a part that the template does not see.
fn part<'a>(part: &'a Json, role: &str) -> Res<Option<&'a str>> {
    let Some(p) = part.as_object() else { return bad("messages", "a part of a content is no object") };
    match (p.get("type").and_then(Json::as_str).unwrap_or(""), p.get("text")) {
        ("text", Some(Json::String(s))) => Ok(Some(s)),
        ("text", _) => bad("messages", "a part without text"),
        ("thinking" | "reasoning", _) if role == "assistant" => Ok(None),
        (kind, _) => unsupported("part", kind),
    }
}

/// All declared members of a call, null where absent. Arguments of the assistant's become an object, or SGLang refuses the request.
fn tool_call(call: &Json, parse: bool) -> Res<Json> {
    let (Some(c), Some(f)) = (call.as_object(), call.get("function").and_then(Json::as_object)) else { return unsupported("tool_call", "") };
    let text = |v: Option<&Json>| match v {
        None | Some(Json::Null) => Ok(Json::Null),
        Some(v @ Json::String(_)) => Ok(v.clone()),
        _ => unsupported("tool_call", ""),
    };
    let index = match c.get("index") {
        None | Some(Json::Null) => Json::Null,
        Some(v) if v.is_i64() || v.is_u64() => v.clone(),
        _ => return unsupported("tool_call", ""),
    };
    if !matches!(c.get("type"), None | Some(Json::String(_))) || c.get("type").is_some_and(|t| t != "function") {
        return unsupported("tool_call", "");
    }
    let arguments = match f.get("arguments") {
        Some(v @ Json::Object(_)) => v.clone(),
        Some(Json::String(s)) if parse => {
            check_numbers(s.as_bytes())?;
            match serde_json::from_str(s) {
                Ok(v @ Json::Object(_)) => v,
                Ok(_) => return bad("tool_arguments", "no object"),
                Err(_) => return unsupported("tool_arguments", ""),
            }
        }
        other => text(other)?,
    };
    Ok(json!({"id": text(c.get("id"))?, "index": index, "type": "function", "function": {"name": text(f.get("name"))?, "arguments": arguments}}))
}

/// The assistant's text at the end is the prompt's, behind the template's, or a user's message. Returns: that text.
fn final_message(messages: &mut Vec<Map<String, Json>>, goes_on: bool) -> Option<String> {
    let last = messages.last_mut().filter(|m| m["role"] == "assistant")?;
    let text = last["content"].as_str()?.to_string();
    if goes_on {
        messages.pop();
    } else {
        *last = Map::from_iter([("role".to_string(), "user".into()), ("content".to_string(), text.as_str().into())]);
    }
    Some(text)
}

/* ---- tools --------------------------------------------------------------------------------------------------------------------------- */

fn tools(list: Option<&Json>) -> Res<Vec<Json>> {
    match list {
        None | Some(Json::Null) => Ok(vec![]),
        Some(Json::Array(list)) => list.iter().map(tool).collect(),
        _ => bad("tools", "`tools` is no list"),
    }
}

/// A function has the client's order, with what is declared and absent behind, as null; the rest of a tool is declared.
fn tool(t: &Json) -> Res<Json> {
    let (Some(t), Some(f)) = (t.as_object(), t.get("function").and_then(Json::as_object)) else { return unsupported("tool", "") };
    let kind = match t.get("type") {
        None => "function",
        Some(Json::String(s)) => s,
        _ => return unsupported("tool", ""),
    };
    if !f.get("name").is_some_and(Json::is_string) || [t, f].iter().any(|m| some(m, "defer_loading").is_some()) {
        return unsupported("tool", "");
    }
    let mut function = Map::new();
    for (name, v) in f {
        match (name.as_str(), v) {
            ("name" | "description", Json::String(_)) | ("strict", Json::Bool(_)) => {}
            ("parameters", v) if !v.is_null() => check_schema(v)?,
            ("name" | "description" | "parameters", _) => return unsupported("tool", "null, which /tokenize leaves out"),
            ("strict", Json::Null) => continue,
            ("strict", _) => return unsupported("tool", ""),
            _ => continue,
        }
        function.insert(name.clone(), v.clone());
    }
    for name in ["description", "parameters"] {
        function.entry(name).or_insert(Json::Null);
    }
    Ok(json!({"type": kind, "function": function, "defer_loading": null}))
}

/// SGLang writes the names of types in a schema anew (varchar, int32 ...), all but these.
fn check_schema(schema: &Json) -> Res<()> {
    const TYPES: [&str; 7] = ["string", "number", "integer", "boolean", "array", "object", "null"];
    let known = |v: &Json| v.as_str().is_none_or(|s| TYPES.contains(&s));
    match schema {
        Json::Array(list) => list.iter().try_for_each(check_schema),
        Json::Object(members) => {
            let kind = members.get("type");
            let list = kind.and_then(Json::as_array);
            let twice = list.is_some_and(|l| (1..l.len()).any(|i| l[..i].contains(&l[i])));
            if kind.is_some_and(|v| !known(v)) || list.is_some_and(|l| !l.iter().all(known)) || twice {
                return unsupported("tool_schema", "a type by another name");
            }
            members.values().try_for_each(check_schema)
        }
        _ => Ok(()),
    }
}

/// "none" takes the tools away; the choice of one leaves that one.
fn chosen(mut tools: Vec<Json>, choice: Option<&Json>) -> Res<Vec<Json>> {
    match choice {
        None | Some(Json::Null) => {}
        Some(Json::String(s)) if s == "auto" || s == "required" => {}
        Some(Json::String(s)) if s == "none" => tools.clear(),
        Some(Json::Object(o)) => {
            let Some(name) = o.get("function").and_then(|f| f.get("name")).filter(|n| n.is_string()) else { return unsupported("tool_choice", "") };
            tools.retain(|t| t["function"]["name"] == *name);
        }
        _ => return unsupported("tool_choice", ""),
    }
    Ok(tools)
}

/* ---- arguments of the template ------------------------------------------------------------------------------------------------------- */

fn arguments(question: &Map<String, Json>) -> Res<Map<String, Json>> {
    const EFFORTS: [&str; 8] = ["none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max"];
    let mut members = match question.get("chat_template_kwargs") {
        None | Some(Json::Null) => Map::new(),
        Some(Json::Object(members)) => members.clone(),
        _ => return bad("chat_template_kwargs", ""),
    };
    for name in ["reasoning_effort", "documents"] {
        if members.contains_key(name) {
            return unsupported("chat_template_kwargs", name); // in a question it may have been a member of the request, which does other things
        }
    }
    match question.get("reasoning_effort") {
        None | Some(Json::Null) => {}
        Some(Json::String(effort)) if EFFORTS.contains(&effort.as_str()) => {
            for name in ["thinking", "enable_thinking"] {
                members.entry(name).or_insert((effort != "none").into());
            }
            members.insert("reasoning_effort".into(), effort.as_str().into());
        }
        _ => return unsupported("member", "reasoning_effort"),
    }
    Ok(members)
}
