// SPDX-License-Identifier: Apache-2.0
//! Filters, tests, methods and functions of templates, where Python's differ from minijinja's.
use crate::values::is_of_the_question;
use crate::{python, rewrite, texts};
use minijinja::value::{from_args, Kwargs, Rest, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};

/// Functions that templates may call.
pub const GLOBALS: &[&str] = &["raise_exception", "strftime_now", "namespace", "range", "dict"];

pub fn add(env: &mut Environment<'static>) {
    env.set_unknown_method_callback(method);
    env.add_filter("tojson", tojson);
    env.add_filter("trim", trim);
    env.add_filter("string", printed);
    env.add_filter("safe", printed); // markup.rs sees to what makes them differ
    let length = |v: &Value| if v.is_undefined() { Ok(0) } else { v.len().ok_or_else(|| bad_op("no length")) };
    env.add_filter("length", length);
    env.add_filter("count", length);
    env.add_filter(rewrite::COUNTED, counted);
    add_texts(env);
    env.add_test("sequence", |v: &Value| match v.kind() {
        ValueKind::Iterable => Err(unlike("whether an iterator is a sequence")), // a range is one, what a filter gives is none
        k => Ok(matches!(k, ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Undefined)),
    });
    env.add_test("iterable", |v: &Value| {
        matches!(v.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Iterable | ValueKind::Undefined)
    });
    env.add_test("callable", |v: &Value| matches!(v.kind(), ValueKind::Plain | ValueKind::Undefined));
    env.add_function("raise_exception", |m: String| -> Result<String, Error> { Err(bad_op(m).with_source(Raised)) });
    env.add_function("strftime_now", strftime_now);
}

fn add_texts(env: &mut Environment<'static>) {
    env.add_filter("upper", |v: &Value| Ok::<_, Error>(printed(v)?.to_uppercase()));
    env.add_filter("lower", |v: &Value| Ok::<_, Error>(printed(v)?.to_lowercase()));
    env.add_filter("title", |v: &Value| Ok::<_, Error>(texts::title_words(&printed(v)?)));
    env.add_filter("capitalize", |v: &Value| texts::capitalize(&printed(v)?));
    env.add_filter("replace", |v: &Value, old: &Value, new: &Value, n: Option<i64>| {
        let (s, old, new) = (printed(v)?, printed(old)?, printed(new)?);
        Ok::<_, Error>(usize::try_from(n.unwrap_or(-1)).map_or_else(|_| s.replace(&old, &new), |n| s.replacen(&old, &new, n)))
    });
    env.add_filter("indent", |v: &Value, args: Rest<Value>, kw: Kwargs| {
        let Some(s) = v.as_str() else { return Err(bad_op("indent of what is no text")) };
        let arg = |i: usize, name: &str| Ok::<Option<Value>, Error>(args.get(i).cloned().or(kw.get(name)?));
        let by = match arg(0, "width")? {
            None => " ".repeat(4),
            Some(w) if w.as_str().is_some() => w.as_str().unwrap_or("").into(),
            Some(w) => spaces(w)?,
        };
        let (first, blank) = (arg(1, "first")?, arg(2, "blank")?);
        kw.assert_all_used()?;
        Ok(texts::indent(s, &by, first.is_some_and(|v| v.is_true()), blank.is_some_and(|v| v.is_true())))
    });
    env.add_filter("int", |v: &Value, default: Option<Value>| texts::int(v, default.unwrap_or(Value::from(0))));
    env.add_filter("reverse", |v: &Value| match v.kind() {
        ValueKind::Map => Ok(v.try_iter()?.collect::<Vec<_>>().into_iter().rev().collect()),
        _ => v.reverse(),
    });
    env.add_test("lt", |a: &Value, b: &Value| texts::order(a, b).map(|o| o.is_lt()));
    env.add_test("le", |a: &Value, b: &Value| texts::order(a, b).map(|o| o.is_le()));
    env.add_test("gt", |a: &Value, b: &Value| texts::order(a, b).map(|o| o.is_gt()));
    env.add_test("ge", |a: &Value, b: &Value| texts::order(a, b).map(|o| o.is_ge()));
    env.add_test("odd", |v: &Value| texts::leaves(v, &Value::from(2), 1));
    env.add_test("even", |v: &Value| texts::leaves(v, &Value::from(2), 0));
    env.add_test("divisibleby", |v: &Value, n: &Value| texts::leaves(v, n, 0));
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

pub fn bad_op(m: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, m.into())
}

/// An error with this in front: Python makes something of it that is not made here.
pub const UNLIKE: &str = "unlike Python: ";

pub fn unlike(what: &str) -> Error {
    bad_op(format!("{UNLIKE}{what}"))
}

/// str(v). Python prints what kind of iterator one is, and its address.
pub fn printed(v: &Value) -> Result<String, Error> {
    match v.kind() {
        ValueKind::Iterable => Err(unlike("an iterator is printed")),
        ValueKind::Seq if v.len() == Some(0) && !is_of_the_question(v) => Err(unlike("an empty list is printed")), // or a slice of none, which is nothing
        _ => Ok(python::str(v)),
    }
}

/// What a loop goes over, so that its length is known.
fn counted(v: Value) -> Result<Value, Error> {
    let is_known = |v: &Value| v.try_iter().is_ok_and(|i| i.size_hint().1 == Some(i.size_hint().0));
    match v.kind() {
        ValueKind::String => Ok(v.try_iter()?.collect()),
        ValueKind::Iterable if !is_known(&v) => Ok(v.try_iter()?.collect()),
        _ => Ok(v),
    }
}

fn spaces(n: Value) -> Result<String, Error> {
    match usize::try_from(n) {
        Ok(n) if n <= 1000 => Ok(" ".repeat(n)),
        _ => Err(unlike("an indent that is no small number")),
    }
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
        Some(v) => Some(spaces(v)?),
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
            "title" => return texts::title(s).map(Value::from),
            "capitalize" => return texts::capitalize(s).map(Value::from),
            "splitlines" => {
                let (keep_ends,): (Option<bool>,) = from_args(args)?;
                return Ok(texts::split_lines(s, keep_ends.unwrap_or(false)).into_iter().map(Value::from).collect());
            }
            "format" if s.contains([':', '!']) => return Err(unlike("a format that may say more than where")),
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
