// SPDX-License-Identifier: Apache-2.0
//! What an engine makes of a chat's messages and tools before the template sees them: profiles, and vLLM's `parse_chat_messages`, `_postprocess_messages` and
//! the dump of its tools, then what transformers' `render_jinja_template` does to messages. Releases differ: `Profile` has what differs, and the
//! router finds out by asking the engine.
use crate::question::check_numbers;
use crate::{bad, unsupported, Res};
use serde_json::{json, Map, Value as Json};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ContentFormat {
    String,
    OpenAi,
}

/// Whose view of a chat the template gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Engine {
    Vllm,
    Sglang, // sglang.rs; of the other members of a profile `content` and `alias_reasoning` count
}

#[derive(Clone, Debug)]
pub struct Profile {
    pub engine: Engine,
    /// Messages and tools as they come, with nothing made of them: for comparing with transformers alone.
    pub raw: bool,
    /// --chat-template-content-format. None: what the template looks like.
    pub content: Option<ContentFormat>,
    /// transformers 5: members that are null are not in a message.
    pub drop_none: bool,
    /// transformers 5: `reasoning_content` and `thinking` are filled from each other.
    pub alias_reasoning: bool,
    /// vLLM 0.3x: where the template has no word of "developer", such messages become system messages, and those become one.
    pub developer_to_system: bool,
    /// vLLM 0.3x: calls and tools have the members that it declares, in its order: of a call the arguments come before the name and others
    /// behind, a tool's function has name, description and parameters (null when absent), `strict` when given, and no others. Before: a
    /// call's members are in the client's order, and others of a tool stay, behind.
    pub typed: bool,
}

impl Profile {
    pub fn from_json(v: &Json) -> Res<Profile> {
        let on = |k: &str| v.get(k).and_then(Json::as_bool).unwrap_or(true);
        let content = match v.get("content_format").and_then(Json::as_str) {
            None | Some("auto") => None,
            Some("string") => Some(ContentFormat::String),
            Some("openai") => Some(ContentFormat::OpenAi),
            Some(other) => return bad("options", format!("content_format is auto, string or openai, not {other}")),
        };
        let engine = match v.get("engine").and_then(Json::as_str) {
            None | Some("vllm") => Engine::Vllm,
            Some("sglang") => Engine::Sglang,
            Some(other) => return bad("options", format!("engine is vllm or sglang, not {other}")),
        };
        Ok(Profile {
            engine,
            raw: v.get("raw").and_then(Json::as_bool).unwrap_or(false),
            content,
            drop_none: on("drop_none"),
            alias_reasoning: on("alias_reasoning"),
            developer_to_system: on("developer_to_system"),
            typed: on("typed"),
        })
    }
}

/// `format`: of the template. `knows_developer`: the template's text has the word in quotes.
pub fn messages(list: &[Json], p: &Profile, format: ContentFormat, knows_developer: bool) -> Res<Vec<Json>> {
    let mut out = Vec::with_capacity(list.len());
    for m in list {
        let Some(m) = m.as_object() else { return bad("messages", "a message is no object") };
        out.push(if p.raw { m.clone() } else { message(m, p, p.content.unwrap_or(format))? });
    }
    if !p.raw && p.developer_to_system && !knows_developer && out.iter().any(|m| role(m) == "developer") {
        out = one_system_message(out);
    }
    for m in &mut out {
        if p.drop_none {
            m.retain(|_, v| !v.is_null());
        }
    }
    if p.alias_reasoning {
        out.iter_mut().for_each(alias_reasoning);
    }
    Ok(out.into_iter().map(Json::Object).collect())
}

fn role(m: &Map<String, Json>) -> &str {
    m.get("role").and_then(Json::as_str).unwrap_or("")
}

/// A member that is there and not null.
pub fn some<'a>(m: &'a Map<String, Json>, name: &str) -> Option<&'a Json> {
    m.get(name).filter(|v| !v.is_null())
}

fn message(m: &Map<String, Json>, p: &Profile, format: ContentFormat) -> Res<Map<String, Json>> {
    let Some(role) = m.get("role").and_then(Json::as_str) else { return bad("messages", "a message without a role") };
    let texts = texts(m.get("content"), format)?;
    if role == "system" && texts.iter().any(|t| t.starts_with("x-anthropic-billing-header")) {
        return unsupported("billing_header", ""); // some releases take such a line out
    }
    let mut n = Map::new();
    n.insert("role".into(), role.into());
    n.insert(
        "content".into(),
        match format {
            ContentFormat::OpenAi if role != "tool" => texts.iter().map(|t| json!({"type": "text", "text": t})).collect(),
            _ => texts.join("\n").into(),
        },
    );
    match role {
        "assistant" => assistant(m, p, &mut n)?,
        "tool" => {
            if let Some(id) = m.get("tool_call_id") {
                n.insert("tool_call_id".into(), id.clone());
            }
        }
        _ => {}
    }
    for name in ["name", "task"] {
        if let Some(v @ Json::String(_)) = m.get(name) {
            n.insert(name.into(), v.clone());
        }
    }
    if role == "developer" {
        n.insert("tools".into(), m.get("tools").cloned().unwrap_or(Json::Null));
    }
    Ok(n)
}

fn assistant(m: &Map<String, Json>, p: &Profile, n: &mut Map<String, Json>) -> Res<()> {
    match some(m, "tool_calls") {
        None => {}
        Some(Json::Array(calls)) if calls.is_empty() => {}
        Some(Json::Array(calls)) => {
            n.insert("tool_calls".into(), calls.iter().map(|c| tool_call(c, p)).collect::<Res<_>>()?);
        }
        Some(_) => return bad("messages", "`tool_calls` is no list"),
    }
    if let Some(r) = some(m, "reasoning").or(some(m, "reasoning_content")) {
        n.insert("reasoning".into(), r.clone());
        n.insert("reasoning_content".into(), r.clone());
    }
    Ok(())
}

fn texts(content: Option<&Json>, format: ContentFormat) -> Res<Vec<&str>> {
    let mut out = vec![];
    match content {
        None | Some(Json::Null) => {}
        Some(Json::String(s)) => out.push(s.as_str()),
        Some(Json::Array(parts)) => {
            for p in parts {
                out.extend(part_text(p, format)?.filter(|s| format == ContentFormat::OpenAi || !s.is_empty())); // texts that are joined lose empty ones
            }
        }
        _ => return bad("messages", "`content` is neither text nor a list"),
    }
    Ok(out)
}

fn part_text(part: &Json, format: ContentFormat) -> Res<Option<&str>> {
    if let Some(s) = part.as_str() {
        return Ok(Some(s));
    }
    let Some(p) = part.as_object() else { return bad("messages", "a part of a content is neither text nor an object") };
    if some(p, "uuid").is_some() {
        return unsupported("part", "uuid"); // then its other members say what it is
    }
    let field = match p.get("type").and_then(Json::as_str).unwrap_or("") {
        "text" | "input_text" | "output_text" => "text",
        "refusal" => "refusal",
        "thinking" => "thinking",
        kind => return unsupported("part", kind),
    };
    if format == ContentFormat::OpenAi && p.keys().any(|k| k != "type" && k != field) {
        return unsupported("part", "members beside its text, which the template may see");
    }
    match p.get(field) {
        None | Some(Json::Null) => Ok(None),
        Some(Json::String(s)) => Ok(Some(s)),
        _ => bad("messages", "a part without text"),
    }
}

/// The arguments become an object; what is none becomes an empty one, as in vLLM since 0.3x (before, the engine refuses the request).
fn tool_call(call: &Json, p: &Profile) -> Res<Json> {
    let (Some(c), Some(f)) = (call.as_object(), call.get("function").and_then(Json::as_object)) else { return unsupported("tool_call", "") };
    let arguments = match f.get("arguments") {
        Some(v @ Json::Object(_)) => v.clone(),
        Some(Json::String(s)) => {
            check_numbers(s.as_bytes())?;
            match serde_json::from_str(s) {
                Ok(v @ Json::Object(_)) => v,
                Ok(_) => json!({}),
                Err(_) if s.is_empty() => json!({}),
                Err(_) => return unsupported("tool_arguments", ""), // Python's reader takes a bit more: NaN, lone surrogates
            }
        }
        _ => json!({}),
    };
    let (mut c, mut f) = (c.clone(), f.clone());
    f.insert("arguments".into(), arguments);
    if !p.typed {
        c.insert("function".into(), f.into());
        return Ok(c.into());
    }
    if !c.get("id").is_some_and(Json::is_string) || !f.get("name").is_some_and(Json::is_string) || c.get("type").and_then(Json::as_str) != Some("function") {
        return unsupported("tool_call", "");
    }
    c.insert("function".into(), first(&f, &["arguments", "name"]).into());
    Ok(first(&c, &["id", "function", "type"]).into())
}

/// These members in front, the others behind in their order.
fn first(m: &Map<String, Json>, names: &[&str]) -> Map<String, Json> {
    let mut out: Map<String, Json> = names.iter().filter_map(|n| m.get(*n).map(|v| (n.to_string(), v.clone()))).collect();
    for (name, v) in m {
        out.entry(name.clone()).or_insert_with(|| v.clone());
    }
    out
}

fn one_system_message(list: Vec<Map<String, Json>>) -> Vec<Map<String, Json>> {
    let mut said = vec![];
    let (mut move_needed, mut seen) = (false, 0);
    let mut out: Vec<Map<String, Json>> = vec![];
    let mut systems: Vec<Map<String, Json>> = vec![];
    for (i, mut m) in list.into_iter().enumerate() {
        if role(&m) == "developer" {
            m.insert("role".into(), "system".into());
            m.remove("tools");
        }
        if role(&m) != "system" {
            out.push(m);
            continue;
        }
        move_needed |= i > 0 || !said.is_empty();
        seen += 1;
        let text = match m.get("content") {
            Some(Json::String(s)) => s.clone(),
            Some(Json::Array(parts)) => parts.iter().filter_map(|p| p.get("text").and_then(Json::as_str)).collect::<Vec<_>>().join("\n"),
            _ => String::new(),
        };
        if !text.is_empty() {
            said.push(text);
        }
        systems.push(m);
    }
    let mut merged = systems;
    if move_needed || seen > 1 {
        let mut one = Map::new();
        one.insert("role".into(), "system".into());
        one.insert("content".into(), said.join("\n\n").into());
        merged = vec![one];
    }
    merged.append(&mut out);
    merged
}

pub fn alias_reasoning(m: &mut Map<String, Json>) {
    let found = ["reasoning_content", "thinking", "reasoning"].iter().find_map(|k| some(m, k).cloned());
    if let Some(r) = found {
        m.entry("thinking").or_insert_with(|| r.clone());
        m.insert("reasoning_content".into(), r);
    }
}

/// pydantic dumps declared members first, in their order and null when absent, then the others.
pub fn tools(list: &Json, p: &Profile) -> Res<Json> {
    match list {
        Json::Array(t) if !p.raw => Ok(Json::Array(t.iter().map(|t| tool(t, p)).collect::<Res<_>>()?)),
        Json::Array(_) | Json::Null => Ok(list.clone()),
        _ => bad("tools", "`tools` is no list"),
    }
}

fn tool(t: &Json, p: &Profile) -> Res<Json> {
    let (Some(t), Some(f)) = (t.as_object(), t.get("function").and_then(Json::as_object)) else { return unsupported("tool", "") };
    let mut function = Map::new();
    for name in ["name", "description", "parameters"] {
        function.insert(name.into(), f.get(name).cloned().unwrap_or(Json::Null));
    }
    if p.typed {
        function.extend(some(f, "strict").map(|v| ("strict".to_string(), v.clone())));
    } else {
        for (name, v) in f {
            function.entry(name.clone()).or_insert_with(|| v.clone());
        }
    }
    let mut out = Map::new();
    out.insert("type".into(), some(t, "type").cloned().unwrap_or_else(|| "function".into()));
    out.insert("function".into(), function.into());
    if !p.typed {
        for (name, v) in t {
            out.entry(name.clone()).or_insert_with(|| v.clone());
        }
    }
    Ok(Json::Object(out))
}
