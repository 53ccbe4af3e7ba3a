// SPDX-License-Identifier: Apache-2.0
//! Python's str(), repr(), json.dumps() and str.strip() over template values.
use minijinja::value::{Tuple, Value, ValueKind};
use regex::Regex;
use std::sync::LazyLock;

/// Python's str.isspace() set: Unicode White_Space plus the four information separators.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// repr(float): shortest digits, exponent form below 1e-4 and from 1e16 on.
pub fn float(v: f64) -> String {
    if v.is_nan() {
        return "nan".into();
    }
    if v.is_infinite() {
        return if v < 0.0 { "-inf" } else { "inf" }.into();
    }
    let e = format!("{v:e}"); // d.ddde[-]x with the shortest digits that round-trip
    let (mant, exp) = e.split_once('e').unwrap();
    let exp: i32 = exp.parse().unwrap();
    if v != 0.0 && !(-4..16).contains(&exp) {
        return format!("{mant}e{}{:02}", if exp < 0 { '-' } else { '+' }, exp.abs());
    }
    let s = format!("{v}");
    if s.contains('.') {
        s
    } else {
        s + ".0"
    }
}

pub fn is_float(v: &Value) -> bool {
    v.kind() == ValueKind::Number && !v.is_integer()
}

/// str.isprintable(), up to the Unicode version (Cn shrinks over the years).
fn printable(c: char) -> bool {
    static NOT: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^[\p{C}\p{Z}]$").unwrap());
    let mut b = [0; 4];
    !NOT.is_match(c.encode_utf8(&mut b))
}

fn repr_str(s: &str, out: &mut String) {
    let q = if s.contains('\'') && !s.contains('"') { '"' } else { '\'' };
    out.push(q);
    for c in s.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == q => {
                out.push('\\');
                out.push(c)
            }
            c if (c as u32) < 0x20 || (c as u32) == 0x7f => out.push_str(&format!("\\x{:02x}", c as u32)),
            c if c > '~' && !printable(c) => out.push_str(&match c as u32 {
                u @ 0..=0xff => format!("\\x{u:02x}"),
                u @ 0x100..=0xffff => format!("\\u{u:04x}"),
                u => format!("\\U{u:08x}"),
            }),
            c => out.push(c),
        }
    }
    out.push(q);
}

pub fn repr(v: &Value, out: &mut String) {
    match v.kind() {
        ValueKind::String => repr_str(v.as_str().unwrap_or(""), out),
        ValueKind::Seq => {
            let tuple = v.downcast_object_ref::<Tuple>().is_some();
            let mut n = 0;
            out.push(if tuple { '(' } else { '[' });
            for x in v.try_iter().into_iter().flatten() {
                if n > 0 {
                    out.push_str(", ");
                }
                repr(&x, out);
                n += 1;
            }
            if tuple && n == 1 {
                out.push(',');
            }
            out.push(if tuple { ')' } else { ']' });
        }
        ValueKind::Map => {
            out.push('{');
            for (i, k) in v.try_iter().into_iter().flatten().enumerate() {
                if i > 0 {
                    out.push_str(", ");
                }
                repr(&k, out);
                out.push_str(": ");
                repr(&v.get_item(&k).unwrap_or_default(), out);
            }
            out.push('}');
        }
        ValueKind::Undefined => out.push_str("Undefined"),
        _ => out.push_str(&str(v)),
    }
}

pub fn str(v: &Value) -> String {
    match v.kind() {
        ValueKind::Undefined => String::new(),
        ValueKind::None => "None".into(),
        ValueKind::Bool => if v.is_true() { "True" } else { "False" }.into(),
        ValueKind::Number if is_float(v) => float(f64::try_from(v.clone()).unwrap_or(f64::NAN)),
        ValueKind::Seq | ValueKind::Map => {
            let mut s = String::new();
            repr(v, &mut s);
            s
        }
        _ => v.to_string(),
    }
}

pub struct Dump<'a> {
    pub ascii: bool,
    pub indent: Option<String>,
    pub item: &'a str,
    pub key: &'a str,
    pub sort: bool,
}

fn json_str(s: &str, ascii: bool, out: &mut String) {
    out.push('"');
    for c in s.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 => out.push_str(&format!("\\u{:04x}", c as u32)),
            c if ascii && (c as u32) > 0x7e => {
                let mut b = [0u16; 2];
                for u in c.encode_utf16(&mut b) {
                    out.push_str(&format!("\\u{u:04x}"));
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// json.dumps(v, ...) with the options transformers' `tojson` takes.
pub fn dumps(v: &Value, d: &Dump, depth: usize, out: &mut String) -> Result<(), String> {
    let newline = |out: &mut String, n: usize| {
        if let Some(i) = &d.indent {
            out.push('\n');
            for _ in 0..n {
                out.push_str(i);
            }
        }
    };
    match v.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if v.is_true() { "true" } else { "false" }),
        ValueKind::Number if is_float(v) => {
            let f = f64::try_from(v.clone()).unwrap_or(f64::NAN);
            match f {
                f if f.is_nan() => out.push_str("NaN"),
                f if f.is_infinite() => out.push_str(if f < 0.0 { "-Infinity" } else { "Infinity" }),
                f => out.push_str(&float(f)),
            }
        }
        ValueKind::Number => out.push_str(&v.to_string()),
        ValueKind::String => json_str(v.as_str().unwrap_or(""), d.ascii, out),
        ValueKind::Seq | ValueKind::Iterable => {
            let mut first = true;
            out.push('[');
            for x in v.try_iter().map_err(|e| e.to_string())? {
                if !first {
                    out.push_str(d.item);
                }
                newline(out, depth + 1);
                first = false;
                dumps(&x, d, depth + 1, out)?;
            }
            if !first {
                newline(out, depth);
            }
            out.push(']');
        }
        ValueKind::Map => {
            let mut keys: Vec<Value> = v.try_iter().map_err(|e| e.to_string())?.collect();
            if d.sort {
                keys.sort_by_key(|k| k.to_string());
            }
            out.push('{');
            for (i, k) in keys.iter().enumerate() {
                if i > 0 {
                    out.push_str(d.item);
                }
                newline(out, depth + 1);
                match k.kind() {
                    ValueKind::String => json_str(k.as_str().unwrap_or(""), d.ascii, out),
                    _ => return Err("a key that is not a string".into()),
                }
                out.push_str(d.key);
                dumps(&v.get_item(k).map_err(|e| e.to_string())?, d, depth + 1, out)?;
            }
            if !keys.is_empty() {
                newline(out, depth);
            }
            out.push('}');
        }
        k => return Err(format!("{k} is not JSON serializable")),
    }
    Ok(())
}

/// str.strip() of the given characters, or of white space.
pub fn strip<'a>(s: &'a str, chars: Option<&str>, left: bool, right: bool) -> &'a str {
    let hit = |c: char| chars.map_or(is_space(c), |cs| cs.contains(c));
    let s = if left { s.trim_start_matches(hit) } else { s };
    if right {
        s.trim_end_matches(hit)
    } else {
        s
    }
}
