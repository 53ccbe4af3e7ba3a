// SPDX-License-Identifier: Apache-2.0
//! A chat template: compiled once, rendered for each question as transformers' `apply_chat_template` renders it.
use crate::depth::is_too_deep;
use crate::request::{self, ContentFormat, Engine, Profile};
use crate::values::value;
use crate::{bad, functions, lint, markup, python, question, rewrite, sglang, unlike, unsupported, Fail, Kind, Res};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind};
use serde_json::{Map, Value as Json};

pub struct Template {
    env: Environment<'static>,
    content: ContentFormat,
    content_of_sglang: ContentFormat,
    /// Constructs that were not compared with Jinja2's: a template that has any is not rendered here.
    pub unverified: Vec<String>,
    /// It may write the date.
    pub dates: bool,
    concatenates: bool, // `~` prints floats in a way of its own
    knows_developer: bool,
    knows_content: bool,
}

/// A chat as text.
pub struct Prompt {
    pub text: String,
    /// What is encoded by itself, as a text is, and put behind: SGLang's way with a final message that is gone on with.
    pub tail: Option<String>,
}

impl Prompt {
    pub fn whole(self) -> String {
        self.text + self.tail.as_deref().unwrap_or("")
    }
}

/// With one of these in its text SGLang takes a template for one of "openai".
const MEDIA: [&str; 4] = ["image", "audio", "video", "vision"];

/// Instructions of one rendering: 16,384 messages take a fifth of it in the longest templates known. A template with a loop over messages
/// within another would hold up whoever renders: beyond it the engine is asked.
const FUEL: u64 = 10_000_000;

/// The template has refused the chat, by raise_exception. Where it fails otherwise, Jinja2 may not.
const RAISED: &str = "template_raised";

/// Arguments of `apply_chat_template` itself: as members of chat_template_kwargs they do more than the template knows of.
const ARGUMENTS: [&str; 13] = [
    "conversation",
    "messages",
    "tools",
    "chat_template",
    "add_generation_prompt",
    "continue_final_message",
    "tokenize",
    "padding",
    "truncation",
    "max_length",
    "return_tensors",
    "return_dict",
    "tokenizer_kwargs",
];

impl Template {
    pub fn new(source: &str) -> Res<Template> {
        let unified = source.replace("\r\n", "\n").replace('\r', "\n"); // Jinja2 does so before it reads
        let mut env = Environment::new();
        let compiled = || -> Result<(Environment<'static>, lint::Lint), Error> {
            let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?;
            if is_too_deep(&unified, &syntax) {
                return Err(functions::bad_op("its expressions are too long"));
            }
            let plain = rewrite::plain_generation(&unified, &syntax);
            env.set_syntax(syntax.clone());
            env.set_recursion_limit(200);
            env.set_fuel(Some(FUEL));
            env.set_formatter(|out, _, v| match v.kind() {
                ValueKind::String => out.write_str(v.as_str().unwrap_or("")).map_err(Error::from),
                _ => out.write_str(&functions::printed(v)?).map_err(Error::from),
            });
            functions::add(&mut env);
            env.add_template_owned("chat", rewrite::counted_loops(&plain, &syntax))?;
            let tree = minijinja::machinery::parse(&plain, "chat", syntax)?;
            let mut look = lint::look(&tree);
            look.unverified.extend(unlike::look(&unified, &tree));
            look.unverified.extend(markup::look(&tree));
            Ok((env, look))
        }();
        let (env, look) = compiled.or_else(|e| unsupported("template", format!("it does not compile: {e}")))?;
        Ok(Template {
            env,
            content: look.content,
            content_of_sglang: if MEDIA.iter().any(|w| source.contains(w)) { ContentFormat::OpenAi } else { look.content_of_sglang },
            unverified: look.unverified,
            dates: source.contains("strftime_now"),
            concatenates: look.concatenates,
            knows_developer: source.contains("\"developer\"") || source.contains("'developer'"),
            knows_content: source.contains("content"),
        })
    }

    /// The form of `content` that the engine takes the template for, unless it was told.
    pub fn content_format(&self, p: &Profile) -> ContentFormat {
        p.content.unwrap_or(if p.engine == Engine::Sglang { self.content_of_sglang } else { self.content })
    }

    /// `question`: a chat's members. `specials`: the template's variables of special tokens.
    pub fn render(&self, question: &Map<String, Json>, p: &Profile, specials: &Map<String, Json>) -> Res<Prompt> {
        if !self.unverified.is_empty() {
            return unsupported("template", format!("it uses {}", self.unverified.join(", ")));
        }
        match p.engine {
            Engine::Vllm => self.render_for_vllm(question, p, specials),
            Engine::Sglang => self.render_for_sglang(question, p, specials),
        }
    }

    fn render_for_vllm(&self, question: &Map<String, Json>, p: &Profile, specials: &Map<String, Json>) -> Res<Prompt> {
        let none = Json::Null;
        let get = |k: &str| question.get(k).unwrap_or(&none);
        let Some(list) = get("messages").as_array().filter(|l| !l.is_empty()) else {
            return bad("messages", "`messages` is no list, or an empty one");
        };
        let mut messages = request::messages(list, p, self.content, self.knows_developer)?;
        let goes_on = question::flag(question, "continue_final_message")?.unwrap_or(false);
        let generation = question::flag(question, "add_generation_prompt")?.unwrap_or(true);
        if goes_on && generation {
            return bad("continue_final_message", "it excludes add_generation_prompt, which is true by default");
        }
        let last = match messages.last_mut() {
            Some(m) if goes_on && self.knows_content => Some(mark_final(m)?),
            _ if goes_on => return bad("continue_final_message", ""),
            _ => None,
        };
        let mut variables = specials.clone();
        self.take_arguments(get("chat_template_kwargs"), &mut variables)?;
        for name in ["documents", "reasoning_effort"] {
            if !get(name).is_null() {
                variables.insert(name.into(), get(name).clone());
            }
        }
        variables.insert("messages".into(), messages.into());
        variables.insert("tools".into(), request::tools(get("tools"), p)?);
        variables.insert("add_generation_prompt".into(), generation.into());
        let mut text = self.run(variables)?;
        if let Some(last) = last {
            cut_final(&mut text, &last)?;
        }
        Ok(Prompt { text, tail: None })
    }

    fn render_for_sglang(&self, question: &Map<String, Json>, p: &Profile, specials: &Map<String, Json>) -> Res<Prompt> {
        let mut view = sglang::view(question, self.content_format(p))?;
        if p.alias_reasoning {
            view.messages.iter_mut().filter_map(Json::as_object_mut).for_each(request::alias_reasoning);
        }
        let mut variables = specials.clone();
        self.take_arguments(&Json::Object(view.arguments), &mut variables)?;
        variables.insert("messages".into(), view.messages.into());
        variables.insert("add_generation_prompt".into(), true.into());
        let with_tools = |tools: Json| {
            let mut all = variables.clone();
            all.insert("tools".into(), tools);
            self.run(all)
        };
        let has_tools = !view.tools.is_null();
        let text = match with_tools(view.tools) {
            Err(e) if has_tools && e.label == RAISED => with_tools(view.bare_tools)?,
            other => other?,
        };
        Ok(Prompt { text, tail: view.tail })
    }

    /// `tools is defined` and `documents is defined` hold when there are none.
    fn run(&self, mut variables: Map<String, Json>) -> Res<String> {
        check_documents(variables.entry("documents").or_insert(Json::Null))?;
        if self.concatenates && variables.values().any(odd_float) {
            return unsupported("number", "a float that `~` prints unlike Python");
        }
        let rendered = self.env.get_template("chat").and_then(|t| t.render(value(Json::Object(variables))));
        rendered.or_else(|e| match e.kind() {
            ErrorKind::OutOfFuel => unsupported("template_too_long", ""),
            _ if e.detail().is_some_and(|d| d.starts_with(functions::UNLIKE)) => unsupported("value", e.to_string()),
            _ if functions::is_raised(&e) => Err(Fail { kind: Kind::Template, label: RAISED, detail: e.to_string() }),
            _ => Err(Fail { kind: Kind::Template, label: "template_failed", detail: e.to_string() }),
        })
    }

    fn take_arguments(&self, arguments: &Json, variables: &mut Map<String, Json>) -> Res<()> {
        let members = match arguments {
            Json::Null => return Ok(()),
            Json::Object(members) => members,
            _ => return bad("chat_template_kwargs", ""),
        };
        for (name, v) in members {
            if ARGUMENTS.contains(&name.as_str()) || functions::GLOBALS.contains(&name.as_str()) || name.starts_with("return_") {
                return unsupported("chat_template_kwargs", name.as_str());
            }
            variables.insert(name.clone(), v.clone());
        }
        Ok(())
    }
}

fn check_documents(documents: &Json) -> Res<()> {
    match documents {
        Json::Null => Ok(()),
        Json::Array(list) if list.iter().all(Json::is_object) => Ok(()),
        _ => bad("documents", "`documents` is no list of objects"),
    }
}

fn odd_float(j: &Json) -> bool {
    match j {
        Json::Number(n) if n.is_f64() => n.as_f64().is_some_and(|f| f != 0.0 && !(1e-4..1e16).contains(&f.abs())),
        Json::Array(a) => a.iter().any(odd_float),
        Json::Object(o) => o.values().any(odd_float),
        _ => false,
    }
}

/* ---- continue_final_message: a mark behind the final message's text, and the rendered text up to it --------------------------------- */

const MARK: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// Returns: the text as it was.
fn mark_final(m: &mut Json) -> Res<String> {
    let mark = |s: &mut String| {
        let old = s.clone();
        s.push_str(MARK);
        old
    };
    match m.get_mut("content") {
        Some(Json::String(s)) => return Ok(mark(s)),
        Some(Json::Array(parts)) => {
            for p in parts.iter_mut().rev() {
                if let Some(Json::String(s)) = p.get_mut("text") {
                    return Ok(mark(s));
                }
            }
        }
        _ => {}
    }
    bad("continue_final_message", "there is no text to go on with")
}

fn cut_final(out: &mut String, text: &str) -> Res<()> {
    let lost = || Fail { kind: Kind::Template, label: "continue_final_message", detail: "the final message is not in the rendered chat".into() };
    let at = out.rfind(MARK.trim()).ok_or_else(lost)?;
    if !out.contains(python::strip(text, None, true, true)) {
        return Err(lost());
    }
    let whole = out[at..].starts_with(MARK); // else the template has trimmed the text, and the white space before the mark is not the text's
    out.truncate(at);
    if !whole {
        out.truncate(python::strip(out, None, false, true).len());
    }
    Ok(())
}
