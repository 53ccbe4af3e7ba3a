// SPDX-License-Identifier: Apache-2.0
//! Python's methods and Jinja2's filters of texts and numbers, where minijinja's differ: tests/all/matrix.rs compares them.
//!
//! What would need Unicode tables that Rust's library does not have, or integers without bound, is an error that begins with `UNLIKE`: then
//! the question goes to the engine.
use crate::functions::{bad_op, unlike};
use crate::python::{self, is_space};
use minijinja::value::{Value, ValueKind};
use minijinja::Error;
use std::cmp::Ordering;

/// The first character of a word as str.title() and str.capitalize() have it: title case, which is upper case but for these.
fn title_case(c: char) -> Result<char, Error> {
    let mut upper = c.to_uppercase();
    match (upper.next(), upper.next()) {
        (Some(u), None) if !matches!(c, '\u{1c4}'..='\u{1cc}' | '\u{1f1}'..='\u{1f3}' | '\u{10d0}'..='\u{10ff}' | '\u{1f80}'..='\u{1fff}') => Ok(u),
        _ => Err(unlike("title case of a character of its own")),
    }
}

pub fn capitalize(s: &str) -> Result<String, Error> {
    let Some(first) = s.chars().next() else { return Ok(String::new()) };
    let mut out = String::with_capacity(s.len());
    out.push(title_case(first)?);
    out.extend(s.to_lowercase().chars().skip(first.to_lowercase().count())); // of the whole: a sigma looks at what is before it
    Ok(out)
}

/// str.title(): a word begins behind whatever has no case: "it's" becomes "It'S".
pub fn title(s: &str) -> Result<String, Error> {
    let mut out = String::with_capacity(s.len());
    let mut inside = false;
    for c in s.chars() {
        match (inside, c) {
            (true, 'Σ') => return Err(unlike("a sigma that may be a final one")),
            (true, c) => out.extend(c.to_lowercase()),
            (false, c) => out.push(if c.is_alphabetic() { title_case(c)? } else { c }),
        }
        inside = c.is_lowercase() || c.is_uppercase() || ('\u{1c4}'..='\u{1f3}').contains(&c);
    }
    Ok(out)
}

/// Jinja2's filter: words are what is between white space and ( { [ < -.
pub fn title_words(s: &str) -> String {
    let separates = |c: char| is_space(c) || matches!(c, '-' | '(' | '{' | '[' | '<');
    let mut out = String::with_capacity(s.len());
    for part in s.split_inclusive(separates) {
        let word = part.trim_end_matches(separates);
        let mut rest = word.chars();
        out.extend(rest.next().into_iter().flat_map(char::to_uppercase));
        out.push_str(&rest.as_str().to_lowercase());
        out.push_str(&part[word.len()..]);
    }
    out
}

/// str.splitlines(): the lines with their ends, and the ends' lengths.
fn lines(s: &str) -> Vec<(&str, usize)> {
    let mut out = vec![];
    let mut from = 0;
    let mut chars = s.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        if !matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}') {
            continue;
        }
        let mut end = c.len_utf8();
        if c == '\r' && chars.next_if(|(_, n)| *n == '\n').is_some() {
            end = 2;
        }
        out.push((&s[from..at + end], end));
        from = at + end;
    }
    if from < s.len() {
        out.push((&s[from..], 0));
    }
    out
}

pub fn split_lines(s: &str, keep_ends: bool) -> Vec<&str> {
    lines(s).into_iter().map(|(line, end)| if keep_ends { line } else { &line[..line.len() - end] }).collect()
}

/// Jinja2's filter.
pub fn indent(s: &str, by: &str, first: bool, blank: bool) -> String {
    let text = format!("{s}\n");
    let mut out = String::from(if first { by } else { "" });
    for (i, line) in split_lines(&text, false).into_iter().enumerate() {
        if i > 0 {
            out.push('\n');
            out.push_str(if blank || !line.is_empty() { by } else { "" });
        }
        out.push_str(line);
    }
    out
}

/// Jinja2's filter: int(), else int(float()), else the default.
pub fn int(v: &Value, default: Value) -> Result<Value, Error> {
    let whole = |f: f64| match f.trunc() {
        t if !t.is_finite() => Ok(default.clone()),
        t if t.abs() < 1e18 => Ok(Value::from(t as i64)),
        _ => Err(unlike("an integer of more than 18 digits")),
    };
    match v.kind() {
        ValueKind::Undefined => Err(bad_op("int of what is undefined")),
        ValueKind::Bool => Ok(Value::from(i64::from(v.is_true()))),
        ValueKind::Number if !python::is_float(v) => Ok(v.clone()),
        ValueKind::Number => whole(f64::try_from(v.clone()).unwrap_or(f64::NAN)),
        ValueKind::String => {
            let s = python::strip(v.as_str().unwrap_or(""), None, true, true);
            if !s.is_ascii() || s.contains('_') {
                return Err(unlike("digits of other scripts"));
            }
            let digits = s.strip_prefix(['+', '-']).unwrap_or(s);
            if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) {
                return s.parse::<i64>().ok().filter(|_| digits.len() <= 18).map(Value::from).ok_or_else(|| unlike("an integer of more than 18 digits"));
            }
            s.parse().map_or(Ok(default.clone()), whole)
        }
        _ => Ok(default),
    }
}

/// A number, or a boolean, which is one in Python.
fn number(v: &Value) -> Option<f64> {
    match v.kind() {
        ValueKind::Bool => Some(f64::from(v.is_true())),
        ValueKind::Number => f64::try_from(v.clone()).ok(),
        _ => None,
    }
}

/// Of the tests lt, le, gt, ge; the operators are minijinja's.
pub fn order(a: &Value, b: &Value) -> Result<Ordering, Error> {
    match (number(a), number(b), a.as_str(), b.as_str()) {
        (Some(_), Some(_), ..) if a.is_integer() && b.is_integer() => Ok(a.cmp(b)),
        (Some(x), Some(y), ..) => x.partial_cmp(&y).ok_or_else(|| unlike("what is no number")),
        (.., Some(x), Some(y)) => Ok(x.cmp(y)),
        _ => Err(bad_op("these have no order")),
    }
}

/// a % b == rest.
pub fn leaves(a: &Value, b: &Value, rest: i64) -> Result<bool, Error> {
    let whole = |v: &Value| if v.kind() == ValueKind::Bool { Some(i64::from(v.is_true())) } else { v.as_i64().filter(|_| v.is_integer()) };
    match (whole(a), whole(b), number(a), number(b)) {
        (_, _, _, Some(0.0)) => Err(bad_op("division by zero")),
        (Some(x), Some(y), ..) => Ok(i128::from(x).rem_euclid(i128::from(y)) == i128::from(rest)),
        (_, _, Some(x), Some(y)) => Ok(x.rem_euclid(y) == rest as f64),
        _ => Err(bad_op("no number")),
    }
}
