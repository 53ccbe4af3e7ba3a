// SPDX-License-Identifier: Apache-2.0
//! Token ids of a chat request or a text, as an engine makes them, behind a C ABI (include/kvr_tokenizer.h).
//!
//!     question --engine's view--> messages --template--> text --segments--> ids
//!      (JSON)    (request.rs)                (Jinja)            (tokenizer.rs)
//!
//!     capi.rs        the C ABI: no panic and no text of a prompt crosses it
//!     folder.rs      what a model's folder has: tokenizer.json, its configuration, special tokens, templates
//!     question.rs    a question's members; what is refused because only the engine knows it
//!     request.rs     what vLLM makes of messages and tools before its template sees them;  sglang.rs  what SGLang makes of them
//!     template.rs    Jinja templates;  rewrite.rs  what of them is written otherwise;  values.rs  what they are given;  functions.rs  Python's filters, tests and methods;  texts.rs  those of texts and numbers;
//!     python.rs      str(), repr(), json.dumps()
//!     lint.rs        what a template's syntax tree tells: constructs that were not compared with Jinja2's;  unlike.rs  that are known to differ;
//!                    depth.rs  how deep it can be;  markup.rs  where the texts of the filter `safe` go
//!     tokenizer.rs   text to ids, segment by segment;  cuts.rs  where a text may be cut;  cache.rs  ids by content
//!     encoder.rs     the engines' own library, and a faster one where both agree;  hooks.rs  what tests need
mod cache;
mod capi;
mod cuts;
mod depth;
mod encoder;
mod folder;
mod functions;
mod hooks;
mod lint;
mod markup;
mod python;
mod question;
mod request;
mod rewrite;
mod sglang;
mod template;
mod texts;
mod tokenizer;
mod unlike;
mod values;

pub use lint::compared;
pub use question::Question;
pub use request::{ContentFormat, Engine, Profile};
pub use template::{Prompt, Template};
pub use tokenizer::{Asked, Job, Tokenizer};

/// Why a question is not answered here; whatever it is, the engine can be asked. `label` is one of a small fixed set and safe to log and to
/// count by; `detail` may hold a prompt's text and is for the person who has asked.
#[derive(Debug)]
pub struct Fail {
    pub kind: Kind,
    pub label: &'static str,
    pub detail: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Bad,         // the question is malformed: the engine will say so to the client
    Unsupported, // how the engine would render or encode this is not known here
    Template,    // the template has raised: the engine's will, too
}

pub type Res<T> = Result<T, Fail>;

pub fn bad<T>(label: &'static str, detail: impl Into<String>) -> Res<T> {
    Err(Fail { kind: Kind::Bad, label, detail: detail.into() })
}

pub fn unsupported<T>(label: &'static str, detail: impl Into<String>) -> Res<T> {
    Err(Fail { kind: Kind::Unsupported, label, detail: detail.into() })
}

impl std::fmt::Display for Fail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.detail.as_str() {
            "" => f.write_str(self.label),
            detail => write!(f, "{}: {detail}", self.label),
        }
    }
}
