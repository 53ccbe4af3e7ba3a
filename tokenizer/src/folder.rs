// SPDX-License-Identifier: Apache-2.0
//! What a model's folder has for a tokenizer.
use crate::{bad, unsupported, Res};
use serde_json::{Map, Value as Json};
use std::io::{ErrorKind, Read};
use std::path::Path;

/// Larger files are no tokenizers: the largest known one is 35 MB.
const FILE_MAX: u64 = 256 << 20;

pub struct Folder {
    pub tokenizer: Vec<u8>, // tokenizer.json
    pub json: Json,         // the same, parsed
    pub specials: Map<String, Json>,
    pub template: Option<String>,
    pub tool_template: Option<String>,
}

impl Folder {
    pub fn read(dir: &Path) -> Res<Folder> {
        let Some(tokenizer) = read(&dir.join("tokenizer.json"))? else {
            return unsupported("no_tokenizer_json", format!("{} has no tokenizer.json", dir.display()));
        };
        let json = parse(&tokenizer, &dir.join("tokenizer.json"))?;
        let config = read_json(&dir.join("tokenizer_config.json"))?;
        let map = read_json(&dir.join("special_tokens_map.json"))?;
        let (template, tool_template) = templates(dir, &config)?;
        Ok(Folder { tokenizer, json, specials: specials(&config, &map), template, tool_template })
    }
}

fn read(path: &Path) -> Res<Option<Vec<u8>>> {
    let wrong = |e: std::io::Error| bad("folder", format!("{}: {e}", path.display()));
    let file = match std::fs::File::open(path) {
        Ok(f) => f,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return wrong(e),
    };
    let mut bytes = vec![];
    match file.take(FILE_MAX + 1).read_to_end(&mut bytes) {
        Err(e) => wrong(e),
        Ok(n) if n as u64 > FILE_MAX => bad("folder", format!("{} is larger than {FILE_MAX} bytes", path.display())),
        Ok(_) => Ok(Some(bytes)),
    }
}

fn parse(bytes: &[u8], path: &Path) -> Res<Json> {
    serde_json::from_slice(bytes).or_else(|e| bad("folder", format!("{}: {e}", path.display())))
}

fn read_json(path: &Path) -> Res<Json> {
    read(path)?.map_or(Ok(Json::Null), |b| parse(&b, path))
}

/// A special token is a string, or an object with its flags.
fn token_text(v: &Json) -> Option<&str> {
    v.as_str().or(v.get("content").and_then(Json::as_str))
}

/// The template's variables `bos_token` and so on: those that are set.
fn specials(config: &Json, map: &Json) -> Map<String, Json> {
    const SLOTS: [&str; 7] = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
    let mut out = Map::new();
    for slot in SLOTS {
        let v = config.get(slot).filter(|v| !v.is_null()).or(map.get(slot).filter(|v| !v.is_null()));
        if let Some(s) = v.and_then(token_text) {
            out.insert(slot.into(), s.into());
        }
    }
    for (name, v) in config.get("extra_special_tokens").and_then(Json::as_object).into_iter().flatten() {
        if let Some(s) = token_text(v) {
            out.insert(name.clone(), s.into());
        }
    }
    out
}

/// The template, and the one for requests with tools where there is one of its own.
fn templates(dir: &Path, config: &Json) -> Res<(Option<String>, Option<String>)> {
    if let Some(bytes) = read(&dir.join("chat_template.jinja"))? {
        return match String::from_utf8(bytes) {
            Ok(s) => Ok((Some(s), None)),
            Err(_) => bad("folder", format!("{} is not UTF-8", dir.join("chat_template.jinja").display())),
        };
    }
    let (mut plain, mut tools) = (None, None);
    match config.get("chat_template") {
        Some(Json::String(s)) => plain = Some(s.clone()),
        Some(Json::Array(named)) => {
            for t in named {
                let text = t.get("template").and_then(Json::as_str).map(String::from);
                match t.get("name").and_then(Json::as_str) {
                    Some("default") => plain = text,
                    Some("tool_use") => tools = text,
                    _ => {}
                }
            }
        }
        _ => {}
    }
    Ok((plain, tools))
}
