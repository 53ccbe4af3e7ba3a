// SPDX-License-Identifier: Apache-2.0
//! Where a text may be cut so that the ids of the whole are those of its segments, one after the other.
//!
//! Let T be the added tokens that are matched on the raw text (normalized = false), scanned left to right, leftmost-longest, without overlap,
//! as the `tokenizers` library scans. A cut is the *start* of a match whose token is special, not `lstrip`, not `single_word` and does not
//! begin with white space. Between two such cuts:
//!  1. The scan restarted at a cut finds the matches that the scan of the whole text finds from there on: the scan keeps nothing from before
//!     but its position, and an earlier match, or the white space that its `rstrip` takes, ends at or before the cut, because the token of the
//!     cut does not begin with white space. A later token with `lstrip` takes white space back to the end of the cut's token at most.
//!  2. Normalizer, pre-tokenizer and model see one piece between matches at a time and keep nothing from one to the next. Tokens that are
//!     matched on the normalized text (normalized = true) are matched within such a piece.
//!  3. A segment but the first begins with a match, so no piece of it is at offset 0 of the text, where "prepend_scheme": "first" would treat
//!     it otherwise. The first segment may have such a piece: the cache keeps first segments apart.
//! Hence ids(text) is the concatenation of ids(segment), and ids(segment) depends on the segment's bytes alone.
//!
//! Cutting *after* a token, as prefix caches elsewhere do, breaks 1 (the white space that `rstrip` takes is on the other side) and 3.
//!
//! It does not hold for models with dropout, and `single_word` looks at what is beside a match: then nothing is cut.
use aho_corasick::{AhoCorasick, MatchKind};
use serde_json::Value as Json;
use tokenizers::AddedToken;

pub struct Cuts {
    scan: Option<AhoCorasick>,
    cut: Vec<bool>, // by pattern
    pub why_not: Option<String>,
}

impl Cuts {
    /// `model`: of tokenizer.json.
    pub fn new<'a>(added: impl Iterator<Item = &'a AddedToken>, model: Option<&Json>) -> Cuts {
        let (mut names, mut cut, mut why_not) = (vec![], vec![], None);
        for a in added.filter(|a| !a.normalized) {
            if a.single_word {
                why_not = Some(format!("the added token {:?} is single_word", a.content));
            }
            if a.content.is_empty() {
                why_not = Some("an added token is empty".into());
            }
            cut.push(a.special && !a.lstrip && !a.single_word && !a.content.starts_with(char::is_whitespace));
            names.push(a.content.as_str());
        }
        if model.and_then(|m| m.get("dropout")).and_then(Json::as_f64).unwrap_or(0.0) > 0.0 {
            why_not = Some("the model has dropout".into());
        }
        if !cut.iter().any(|c| *c) && why_not.is_none() {
            why_not = Some("no special token can be cut at".into());
        }
        let mut scan = None;
        if why_not.is_none() {
            match AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&names) {
                Ok(s) => scan = Some(s),
                Err(e) => why_not = Some(e.to_string()),
            }
        }
        Cuts { scan, cut, why_not }
    }

    pub fn possible(&self) -> bool {
        self.scan.is_some()
    }

    /// The segments of a text, none of them empty.
    pub fn segments<'t>(&self, text: &'t str) -> Vec<&'t str> {
        let mut out = vec![];
        let mut from = 0;
        if let Some(scan) = &self.scan {
            for m in scan.find_iter(text).filter(|m| self.cut[m.pattern().as_usize()] && m.start() > 0) {
                out.push(&text[from..m.start()]);
                from = m.start();
            }
        }
        if from < text.len() {
            out.push(&text[from..]);
        }
        out
    }
}
