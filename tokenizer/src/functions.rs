// SPDX-License-Identifier: Apache-2.0
//! Filters, tests, methods and functions of templates, where Python's differ from minijinja's.
use crate::python;
use minijinja::value::{from_args, Kwargs, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};

/// Functions that templates may call.
pub const GLOBALS: &[&str] = &["raise_exception", "strftime_now", "namespace", "range", "dict"];

pub fn add(env: &mut Environment<'static>) {
    env.set_unknown_method_callback(method);
    env.add_filter("tojson", tojson);
    env.add_filter("trim", trim);
    env.add_filter("string", |v: &Value| python::str(v));
    let length = |v: &Value| if v.is_undefined() { Ok(0) } else { v.len().ok_or_else(|| bad_op("no length")) };
    env.add_filter("length", length);
    env.add_filter("count", length);
    env.add_test("sequence", |v: &Value| matches!(v.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Undefined));
    env.add_test("iterable", |v: &Value| {
        matches!(v.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Iterable | ValueKind::Undefined)
    });
    env.add_test("callable", |v: &Value| v.kind() == ValueKind::Plain);
    env.add_function("raise_exception", |m: String| -> Result<String, Error> { Err(bad_op(m).with_source(Raised)) });
    env.add_function("strftime_now", strftime_now);
}

/// The source of an error that the template itself has raised.
#[derive(Debug)]
pub struct Raised;

impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("raised")
    }
}

impl std::error::Error for Raised {}

/// An error of a macro has that of its body as source.
pub fn is_raised(e: &Error) -> bool {
    let mut source = std::error::Error::source(e);
    while let Some(s) = source {
        if s.is::<Raised>() {
            return true;
        }
        source = s.source();
    }
    false
}

fn bad_op(m: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, m.into())
}

fn tojson(v: &Value, ascii: Option<bool>, kw: Kwargs) -> Result<Value, Error> {
    let ascii: Option<bool> = ascii.or(kw.get("ensure_ascii")?);
    let indent: Option<Value> = kw.get("indent")?;
    let sort: Option<bool> = kw.get("sort_keys")?;
    let seps: Option<Vec<String>> = kw.get("separators")?;
    kw.assert_all_used()?;
    let indent = match indent {
        None => None,
        Some(v) if v.is_none() => None,
        Some(v) if v.kind() == ValueKind::String => Some(v.as_str().unwrap().to_string()),
        Some(v) => Some(" ".repeat(usize::try_from(v).map_err(|_| bad_op("tojson: indent"))?)),
    };
    let (item, key) = match &seps {
        Some(s) if s.len() == 2 => (s[0].as_str(), s[1].as_str()),
        Some(_) => return Err(bad_op("tojson: separators")),
        None if indent.is_some() => (",", ": "),
        None => (", ", ": "),
    };
    let mut out = String::new();
    let d = python::Dump { ascii: ascii.unwrap_or(false), indent, item, key, sort: sort.unwrap_or(false) };
    python::dumps(v, &d, 0, &mut out).map_err(bad_op)?;
    Ok(Value::from(out))
}

fn trim(v: &Value, chars: Option<Value>) -> String {
    let s = python::str(v);
    python::strip(&s, chars.as_ref().and_then(|c| c.as_str()), true, true).to_string()
}

fn method(state: &mut State, v: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if let (ValueKind::String, Some(s)) = (v.kind(), v.as_str()) {
        match name {
            "strip" | "lstrip" | "rstrip" => {
                let (chars,): (Option<Value>,) = from_args(args)?;
                return Ok(Value::from(python::strip(s, chars.as_ref().and_then(|c| c.as_str()), name != "rstrip", name != "lstrip")));
            }
            "split" if args.is_empty() || (args.len() == 1 && args[0].is_none()) => {
                return Ok(Value::from(s.split(python::is_space).filter(|x| !x.is_empty()).map(Value::from).collect::<Vec<_>>()));
            }
            "title" => {
                let mut out = String::with_capacity(s.len());
                let mut inside = false; // after a cased character, whatever it is: "it's" becomes "It'S"
                for c in s.chars() {
                    if inside {
                        out.extend(c.to_lowercase());
                    } else {
                        out.extend(c.to_uppercase());
                    }
                    inside = c.is_lowercase() || c.is_uppercase();
                }
                return Ok(Value::from(out));
            }
            "removeprefix" => {
                let (p,): (String,) = from_args(args)?;
                return Ok(Value::from(s.strip_prefix(p.as_str()).unwrap_or(s)));
            }
            "removesuffix" => {
                let (p,): (String,) = from_args(args)?;
                return Ok(Value::from(if p.is_empty() { s } else { s.strip_suffix(p.as_str()).unwrap_or(s) }));
            }
            _ => {}
        }
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, v, name, args)
}

fn strftime_now(format: String) -> Result<String, Error> {
    let c = std::ffi::CString::new(format).map_err(|_| bad_op("strftime_now"))?;
    let mut buf = [0u8; 256];
    unsafe {
        let now = libc::time(std::ptr::null_mut());
        let mut tm = std::mem::zeroed();
        libc::localtime_r(&now, &mut tm);
        let n = libc::strftime(buf.as_mut_ptr().cast(), buf.len(), c.as_ptr(), &tm);
        Ok(String::from_utf8_lossy(&buf[..n]).into_owned())
    }
}
