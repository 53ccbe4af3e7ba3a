// SPDX-License-Identifier: Apache-2.0
//! What a template's syntax tree tells: constructs whose output was not compared with Jinja2's, and the form of `content` it wants.
use crate::functions::GLOBALS;
use crate::request::ContentFormat;
use crate::unlike::OTHER_ATTRS;
use minijinja::machinery::ast::{BinOpKind, CallArg, CallBlock, Expr, Filter, Stmt};
use std::collections::BTreeSet;

const FILTERS: &[&str] = &[
    "tojson", "trim", "length", "count", "upper", "lower", "default", "d", "join", "first", "last", "list", "string", "items",
    "selectattr", "rejectattr", "select", "reject", "map", "replace", "int", "float", "reverse", "dictsort", "abs", "indent",
    "title", "capitalize", "round", "sum", "batch", "safe",
];
const TESTS: &[&str] = &[
    "defined", "undefined", "none", "string", "mapping", "sequence", "iterable", "number", "integer", "float", "boolean", "true",
    "false", "eq", "equalto", "ne", "in", "odd", "even", "lt", "gt", "le", "ge", "==", "!=", "divisibleby", "callable",
];
const METHODS: &[&str] = &[
    "strip", "lstrip", "rstrip", "split", "startswith", "endswith", "replace", "upper", "lower", "title", "capitalize", "join", "items",
    "keys", "values", "get", "format", "find", "rfind", "count", "splitlines", "removeprefix", "removesuffix",
];

/// Of each kind the names that are not refused: tests/all/matrix.rs looks that each was compared.
#[doc(hidden)]
pub fn compared() -> [(&'static str, &'static [&'static str]); 4] {
    [("filter", FILTERS), ("test", TESTS), ("method", METHODS), ("function", GLOBALS)]
}

pub const DICT_ATTRS: &[&str] = &["items", "keys", "values", "get", "pop", "copy", "update", "clear", "setdefault", "popitem", "fromkeys"];

pub fn exprs<'a, 'b>(e: &'b Expr<'a>, f: &mut dyn FnMut(&'b Expr<'a>)) {
    f(e);
    let args = |v: &'b [CallArg<'a>], f: &mut dyn FnMut(&'b Expr<'a>)| {
        for a in v {
            match a {
                CallArg::Pos(e) | CallArg::Kwarg(_, e) | CallArg::PosSplat(e) | CallArg::KwargSplat(e) => exprs(e, f),
            }
        }
    };
    match e {
        Expr::Var(_) | Expr::Const(_) => {}
        Expr::Slice(s) => {
            exprs(&s.expr, f);
            for o in [&s.start, &s.stop, &s.step].into_iter().flatten() {
                exprs(o, f);
            }
        }
        Expr::UnaryOp(u) => exprs(&u.expr, f),
        Expr::BinOp(b) => {
            exprs(&b.left, f);
            exprs(&b.right, f);
        }
        Expr::Compare(c) => {
            exprs(&c.expr, f);
            for o in &c.ops {
                exprs(&o.expr, f);
            }
        }
        Expr::IfExpr(i) => {
            exprs(&i.test_expr, f);
            exprs(&i.true_expr, f);
            if let Some(x) = &i.false_expr {
                exprs(x, f);
            }
        }
        Expr::Filter(x) => {
            if let Some(x) = &x.expr {
                exprs(x, f);
            }
            args(&x.args, f);
        }
        Expr::Test(x) => {
            exprs(&x.expr, f);
            args(&x.args, f);
        }
        Expr::GetAttr(g) => exprs(&g.expr, f),
        Expr::GetItem(g) => {
            exprs(&g.expr, f);
            exprs(&g.subscript_expr, f);
        }
        Expr::Call(c) => {
            exprs(&c.expr, f);
            args(&c.args, f);
        }
        Expr::List(l) => l.items.iter().for_each(|x| exprs(x, f)),
        Expr::Tuple(l) => l.items.iter().for_each(|x| exprs(x, f)),
        Expr::Map(m) => m.keys.iter().chain(m.values.iter()).for_each(|x| exprs(x, f)),
    }
}

pub fn stmts<'a, 'b>(s: &'b Stmt<'a>, f: &mut dyn FnMut(&'b Stmt<'a>)) {
    f(s);
    let all = |v: &'b [Stmt<'a>], f: &mut dyn FnMut(&'b Stmt<'a>)| v.iter().for_each(|x| stmts(x, f));
    match s {
        Stmt::Template(t) => all(&t.children, f),
        Stmt::ForLoop(l) => {
            all(&l.body, f);
            all(&l.else_body, f);
        }
        Stmt::IfCond(i) => {
            all(&i.true_body, f);
            all(&i.false_body, f);
        }
        Stmt::WithBlock(w) => all(&w.body, f),
        Stmt::SetBlock(b) => all(&b.body, f),
        Stmt::FilterBlock(b) => all(&b.body, f),
        Stmt::AutoEscape(b) => all(&b.body, f),
        Stmt::Macro(m) => all(&m.body, f),
        Stmt::CallBlock(c) => all(&c.macro_decl.body, f),
        _ => {}
    }
}

pub fn stmt_exprs<'a, 'b>(s: &'b Stmt<'a>, f: &mut dyn FnMut(&'b Expr<'a>)) {
    match s {
        Stmt::EmitExpr(e) => exprs(&e.expr, f),
        Stmt::ForLoop(l) => {
            exprs(&l.target, f);
            exprs(&l.iter, f);
            if let Some(x) = &l.filter_expr {
                exprs(x, f);
            }
        }
        Stmt::IfCond(i) => exprs(&i.expr, f),
        Stmt::Set(s) => {
            exprs(&s.target, f);
            exprs(&s.expr, f);
        }
        Stmt::SetBlock(b) => {
            if let Some(x) = &b.filter {
                exprs(x, f);
            }
        }
        Stmt::FilterBlock(b) => exprs(&b.filter, f),
        Stmt::Macro(m) => m.args.iter().chain(m.defaults.iter()).for_each(|x| exprs(x, f)),
        Stmt::CallBlock(c) => exprs_call(c, f),
        Stmt::WithBlock(w) => w.assignments.iter().for_each(|(a, b)| {
            exprs(a, f);
            exprs(b, f);
        }),
        _ => {}
    }
}

fn exprs_call<'a, 'b>(c: &'b CallBlock<'a>, f: &mut dyn FnMut(&'b Expr<'a>)) {
    exprs(&c.call.expr, f);
    for a in &c.call.args {
        match a {
            CallArg::Pos(e) | CallArg::Kwarg(_, e) | CallArg::PosSplat(e) | CallArg::KwargSplat(e) => exprs(e, f),
        }
    }
}

pub struct Lint {
    /// Constructs outside the compared set.
    pub unverified: Vec<String>,
    /// It has `~`.
    pub concatenates: bool,
    /// What vLLM's `auto` takes it for, and SGLang.
    pub content: ContentFormat,
    pub content_of_sglang: ContentFormat,
}

pub fn look(root: &Stmt) -> Lint {
    let (unverified, concatenates) = lint(root);
    Lint { unverified, concatenates, content: content_format(root), content_of_sglang: content_format_of_sglang(root) }
}

/// Names of constructs that are not in the set whose output was compared with Jinja2.
fn lint(root: &Stmt) -> (Vec<String>, bool) {
    let mut concat = false;
    let mut bad = BTreeSet::new();
    let mut called = BTreeSet::new(); // addresses of GetAttr nodes that are called
    let mut own: BTreeSet<String> = GLOBALS.iter().map(|s| s.to_string()).collect();
    own.insert("caller".into());
    stmts(root, &mut |s| match s {
        Stmt::Macro(m) => {
            own.insert(m.name.to_string());
        }
        Stmt::Set(s) => {
            if let Expr::Var(v) = &s.target {
                own.insert(v.id.to_string());
            }
        }
        Stmt::AutoEscape(_) | Stmt::Do(_) | Stmt::Block(_) | Stmt::Extends(_) | Stmt::Include(_) | Stmt::Import(_) | Stmt::FromImport(_) => {
            bad.insert("statement".into());
        }
        _ => {}
    });
    stmts(root, &mut |s| {
        stmt_exprs(s, &mut |e| match e {
            Expr::Call(c) => match &c.expr {
                Expr::Var(v) if !own.contains(v.id) => {
                    bad.insert(format!("function {}", v.id));
                }
                Expr::GetAttr(g) => {
                    called.insert(&**g as *const _ as usize);
                    if !METHODS.contains(&g.name) && g.name != "cycle" {
                        bad.insert(format!("method {}", g.name));
                    }
                }
                _ => {}
            },
            Expr::Var(v) if v.id == "varargs" || v.id == "kwargs" => {
                bad.insert(v.id.to_string());
            }
            Expr::BinOp(b) if matches!(b.op, BinOpKind::Concat) => concat = true,
            Expr::Filter(x) if !FILTERS.contains(&x.name) => {
                bad.insert(format!("filter {}", x.name));
            }
            Expr::Filter(x) => bad.extend(look_at_named(x)),
            Expr::Test(x) if !TESTS.contains(&x.name) => {
                bad.insert(format!("test {}", x.name));
            }
            _ => {}
        })
    });
    // `x.items` without a call is a bound method in Jinja2 and a look-up here
    stmts(root, &mut |s| {
        stmt_exprs(s, &mut |e| {
            if let Expr::GetAttr(g) = e {
                if (DICT_ATTRS.contains(&g.name) || OTHER_ATTRS.contains(&g.name)) && !called.contains(&(&**g as *const _ as usize)) {
                    bad.insert(format!("attribute {}", g.name));
                }
            }
        })
    });
    (bad.into_iter().collect(), concat)
}

/// What `map` and its like are told by name to use: a list of what `safe` gives is none that could be printed.
fn look_at_named(f: &Filter) -> Option<String> {
    let (kind, known, at) = match f.name {
        "map" => ("filter", FILTERS, 0),
        "select" | "reject" => ("test", TESTS, 0),
        "selectattr" | "rejectattr" => ("test", TESTS, 1),
        _ => return None,
    };
    let name = match f.args.get(at) {
        Some(CallArg::Pos(Expr::Const(c))) => c.value.as_str().unwrap_or("of no name"),
        Some(CallArg::Pos(_)) => "of a computed name",
        _ => return None,
    };
    (!known.contains(&name) || name == "safe").then(|| format!("{kind} {name}"))
}

/// `var` or `var[key]`, through filters, tests and slices.
fn over(e: &Expr, var: &str, key: Option<&str>) -> bool {
    match e {
        Expr::Filter(f) => f.expr.as_ref().is_some_and(|x| over(x, var, key)),
        Expr::Test(t) => over(&t.expr, var, key),
        Expr::Slice(s) => over(&s.expr, var, key),
        Expr::GetItem(g) if key.is_some() => {
            matches!(&g.expr, Expr::Var(v) if v.id == var) && matches!(&g.subscript_expr, Expr::Const(c) if c.value.as_str() == key)
        }
        Expr::GetAttr(g) if key.is_some() => matches!(&g.expr, Expr::Var(v) if v.id == var) && Some(g.name) == key,
        Expr::Var(v) if key.is_none() => v.id == var,
        _ => false,
    }
}

/// vLLM's `auto`: "openai" when a loop goes over `content` of an element of `messages`.
fn content_format(root: &Stmt) -> ContentFormat {
    let mut lists: Vec<String> = vec!["messages".into()];
    let mut i = 0;
    while i < lists.len() {
        let name = lists[i].clone();
        stmts(root, &mut |s| {
            if let Stmt::Set(s) = s {
                if let Expr::Var(t) = &s.target {
                    if over(&s.expr, &name, None) && !lists.iter().any(|l| l == t.id) {
                        lists.push(t.id.to_string());
                    }
                }
            }
        });
        i += 1;
    }
    let mut items: Vec<String> = vec![];
    stmts(root, &mut |s| {
        if let Stmt::ForLoop(l) = s {
            if let Expr::Var(t) = &l.target {
                if lists.iter().any(|v| over(&l.iter, v, None)) {
                    items.push(t.id.to_string());
                }
            }
        }
    });
    let mut found = false;
    stmts(root, &mut |s| {
        if let Stmt::ForLoop(l) = s {
            found |= items.iter().any(|v| over(&l.iter, v, Some("content")));
        }
    });
    if found {
        ContentFormat::OpenAi
    } else {
        ContentFormat::String
    }
}

/// SGLang: "openai" when a loop goes over `content` of something called `message`, `msg` or `m`. (Some words in the text decide before:
/// template.rs.)
fn content_format_of_sglang(root: &Stmt) -> ContentFormat {
    let mut found = false;
    stmts(root, &mut |s| {
        if let Stmt::ForLoop(l) = s {
            found |= ["message", "msg", "m"].iter().any(|v| over(&l.iter, v, Some("content")));
        }
    });
    if found {
        ContentFormat::OpenAi
    } else {
        ContentFormat::String
    }
}
