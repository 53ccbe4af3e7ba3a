// SPDX-License-Identifier: Apache-2.0
//! A question for ids: the body of an engine's /tokenize, which is a chat (`messages` and what else makes its prompt) or a text (`prompt`).
//! Members that do not make the prompt are left alone; those of which only the engine knows what they do are refused.
use crate::{bad, unsupported, Res};
use memchr::memchr2;
use serde_json::{Map, Value as Json};

pub enum Question {
    Chat(Map<String, Json>),
    Text { text: String, specials: bool },
}

/// With these the engine renders or encodes otherwise than the folder says.
const ONLY_THE_ENGINE: [&str; 4] = ["chat_template", "mm_processor_kwargs", "media_io_kwargs", "prompt_embeds"];

impl Question {
    pub fn parse(body: &[u8]) -> Res<Question> {
        check_numbers(body)?;
        let Ok(json) = serde_json::from_slice::<Json>(body) else { return bad("json", "") };
        let Json::Object(members) = json else { return bad("json", "") };
        for name in ONLY_THE_ENGINE {
            if members.get(name).is_some_and(|v| !v.is_null()) {
                return unsupported("member", name);
            }
        }
        if members.contains_key("messages") {
            return Ok(Question::Chat(members));
        }
        let specials = flag(&members, "add_special_tokens")?.unwrap_or(true);
        match members.get("prompt") {
            Some(Json::String(text)) => Ok(Question::Text { text: text.clone(), specials }),
            _ => bad("prompt", "neither `messages` nor a text as `prompt`"),
        }
    }
}

/// A member that engines take as a boolean. Theirs reads "yes" and 1 as true, too: such are for the engine.
pub fn flag(members: &Map<String, Json>, name: &str) -> Res<Option<bool>> {
    match members.get(name) {
        None | Some(Json::Null) => Ok(None),
        Some(Json::Bool(b)) => Ok(Some(*b)),
        Some(_) => unsupported("member", name),
    }
}

/// Numbers that are others in Python: integers of more digits than fit 64 bits, -0, and floats that are not read as the nearest one.
pub fn check_numbers(json: &[u8]) -> Res<()> {
    let mut i = 0;
    while i < json.len() {
        match json[i] {
            b'"' => {
                i = behind_string(json, i + 1);
                continue;
            }
            b'-' | b'0'..=b'9' => {
                let from = i;
                while i < json.len() && matches!(json[i], b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E') {
                    i += 1;
                }
                check_number(&json[from..i])?;
                continue;
            }
            _ => {}
        }
        i += 1;
    }
    Ok(())
}

/// Where a string ends whose first character is at `i`: prompts are long, and nearly all of a question.
fn behind_string(json: &[u8], mut i: usize) -> usize {
    while let Some(n) = json.get(i..).and_then(|rest| memchr2(b'"', b'\\', rest)) {
        match json[i + n] {
            b'"' => return i + n + 1,
            _ => i += n + 2,
        }
    }
    json.len()
}

fn check_number(text: &[u8]) -> Res<()> {
    let text = std::str::from_utf8(text).unwrap_or("");
    if text == "-0" {
        return unsupported("number", "-0"); // a float here
    }
    if text.split(|c: char| !c.is_ascii_digit()).any(|digits| digits.len() > 18) {
        return unsupported("number", "more than 18 digits");
    }
    let is_float = text.contains(['.', 'e', 'E']);
    match (serde_json::from_str::<f64>(text), text.parse::<f64>()) {
        (Ok(here), Ok(nearest)) if is_float && here.to_bits() != nearest.to_bits() => unsupported("number", "a float that is read as another"),
        _ => Ok(()),
    }
}
