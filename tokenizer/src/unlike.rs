// SPDX-License-Identifier: Apache-2.0
//! Constructs that minijinja renders, but not as Jinja2 does: a template with one of them is not rendered here. Found by comparing
//! (tests/all/matrix.rs). What only shows when a template runs cannot be seen here, and these differences are left, which no known template
//! has: the order of a boolean and a number, both from the question; a subscript computed from the question that is the name of a method of a
//! dictionary and none of its keys; `.title`, `.format`, `.count` and `.index` of a text or a list, not called; under `~`, a list that the
//! template has put together, of what is undefined or of texts with characters that repr() escapes, and a slice of none.
use crate::functions::GLOBALS;
use crate::lint::{exprs, stmt_exprs, stmts, DICT_ATTRS};
use minijinja::machinery::ast::{BinOpKind, Call, CallArg, CompareOpKind, Expr, Macro, Slice, Stmt, UnaryOpKind};
use minijinja::machinery::{tokenize, Token};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Value, ValueKind};
use regex::Regex;
use std::collections::{BTreeMap, BTreeSet};

/// Methods and members of texts, lists and numbers that are unlikely names of a member.
pub const OTHER_ATTRS: [&str; 29] = [
    "upper", "lower", "strip", "lstrip", "rstrip", "split", "rsplit", "splitlines", "startswith", "endswith", "replace", "join", "find", "rfind",
    "capitalize", "casefold", "removeprefix", "removesuffix", "partition", "append", "extend", "insert", "remove", "sort", "reverse", "encode",
    "real", "imag", "conjugate",
];
/// What these give is printed with an address.
const ITERATORS: [&str; 8] = ["map", "select", "reject", "selectattr", "rejectattr", "reverse", "items", "batch"];
const JINJA_GLOBALS: [&str; 4] = ["lipsum", "cycler", "joiner", "self"];

pub fn look(source: &str, root: &Stmt) -> Vec<String> {
    let mut bad = BTreeSet::new();
    look_at_text(source, &mut bad);
    let names = Names::of(root);
    let (mut divides, mut concatenates, mut odd_float, mut computed_subscript) = (false, false, false, false);
    stmts(root, &mut |s| {
        look_at_statement(s, &names, &mut bad);
        stmt_exprs(s, &mut |e| {
            look_at_expression(e, &names, &mut bad);
            match e {
                Expr::BinOp(b) if matches!(b.op, BinOpKind::Div) => divides = true,
                Expr::BinOp(b) if matches!(b.op, BinOpKind::Concat) => concatenates = true,
                Expr::Filter(f) if matches!(f.name, "float" | "round") => divides = true,
                Expr::Filter(f) if f.name == "map" && f.args.iter().any(|a| matches!(pos(a), Some(Expr::Const(c)) if c.value.as_str() == Some("float"))) => divides = true,
                Expr::Const(c) => odd_float |= is_odd_float(&c.value),
                Expr::GetItem(g) => computed_subscript |= !matches!(&g.subscript_expr, Expr::Const(_) | Expr::UnaryOp(_)),
                _ => {}
            }
        })
    });
    if divides && computed_subscript {
        bad.insert("a subscript that may be a float".into());
    }
    if concatenates && (divides || odd_float) {
        bad.insert("`~` with what may be an odd float".into());
    }
    bad.into_iter().collect()
}

fn look_at_text(source: &str, bad: &mut BTreeSet<String>) {
    if source.contains(['\u{1c}', '\u{1d}', '\u{1e}', '\u{1f}']) {
        bad.insert("white space that only Python knows".into());
    }
    if Regex::new(r"\{%[-+]?\s*raw\s*[-+]?%\}").is_ok_and(|r| r.is_match(source)) {
        bad.insert("statement raw".into()); // the line end behind it
    }
    let Ok(syntax) = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build() else { return };
    for (token, span) in tokenize(source, false, syntax).map_while(Result::ok) {
        if !matches!(token, Token::Str(_) | Token::String(_)) {
            continue;
        }
        let mut chars = source[span.start_offset as usize..span.end_offset as usize].chars();
        while let Some(c) = chars.next() {
            let known = |c: char| matches!(c, '\\' | '\'' | '"' | 'n' | 'r' | 't' | 'b' | 'f' | 'x' | 'u' | '0'..='7');
            if c == '\\' && !chars.next().is_some_and(known) {
                bad.insert("an escape in a text".into());
            }
        }
    }
}

/// What a template defines.
struct Names<'b, 'a> {
    macros: BTreeMap<&'a str, &'b Macro<'a>>,
    /// Set from a call of namespace().
    namespaces: BTreeSet<&'a str>,
    sets_messages: bool,
    /// Always defined where they are used: loops' targets, and what is never set from something that may be undefined.
    defined: BTreeSet<&'a str>,
}

impl<'b, 'a> Names<'b, 'a> {
    fn of(root: &'b Stmt<'a>) -> Names<'b, 'a> {
        let mut n = Names { macros: BTreeMap::new(), namespaces: BTreeSet::new(), sets_messages: false, defined: ["messages", "tools", "documents", "add_generation_prompt"].into() };
        let mut doubtful = BTreeSet::new();
        stmts(root, &mut |s| match s {
            Stmt::Macro(m) => {
                n.macros.insert(m.name, m);
                let given = m.args.len().saturating_sub(m.defaults.len());
                n.sets_messages |= m.args.iter().any(|a| var(a) == Some("messages"));
                doubtful.extend(m.args[..given].iter().filter_map(var)); // one that is not given; of the others this file sees to it
                n.defined.extend(m.args[given..].iter().filter_map(var));
            }
            Stmt::ForLoop(l) => exprs(&l.target, &mut |e| n.defined.extend(var(e))),
            Stmt::Set(s) => {
                exprs(&s.target, &mut |e| n.sets_messages |= var(e) == Some("messages"));
                if matches!(&s.expr, Expr::Call(c) if var(&c.expr) == Some("namespace")) {
                    n.namespaces.extend(var(&s.target));
                }
                if n.may_be_undefined(&s.expr) {
                    doubtful.extend(var(&s.target));
                } else {
                    n.defined.extend(var(&s.target));
                }
            }
            Stmt::SetBlock(s) => n.defined.extend(var(&s.target)),
            _ => {}
        });
        n.defined.retain(|d| !doubtful.contains(d));
        n
    }

    fn may_be_undefined(&self, e: &Expr) -> bool {
        match e {
            Expr::Var(v) => !self.defined.contains(v.id),
            Expr::GetAttr(g) => var(&g.expr) != Some("loop"),
            Expr::GetItem(_) => true,
            Expr::IfExpr(i) => self.may_be_undefined(&i.true_expr) || i.false_expr.as_ref().is_none_or(|x| self.may_be_undefined(x)),
            Expr::BinOp(b) if matches!(b.op, BinOpKind::ScAnd | BinOpKind::ScOr) => self.may_be_undefined(&b.left) || self.may_be_undefined(&b.right),
            Expr::Filter(f) if matches!(f.name, "first" | "last") => true,
            Expr::Filter(f) if matches!(f.name, "default" | "d") => f.args.first().is_some_and(|a| pos(a).is_none_or(|e| self.may_be_undefined(e))),
            _ => false,
        }
    }

    /// A loop, a macro, a namespace, a function: Python has types of its own for them.
    fn is_special(&self, e: &Expr) -> bool {
        match e {
            Expr::Var(v) => v.id == "loop" || self.macros.contains_key(v.id) || self.namespaces.contains(v.id) || GLOBALS.contains(&v.id),
            Expr::Call(c) => var(&c.expr) == Some("namespace"),
            _ => false,
        }
    }

    /// An argument that may be undefined for a parameter with a default: Jinja2 passes it, minijinja takes the default.
    fn may_pass_undefined(&self, c: &Call) -> bool {
        let Some(m) = var(&c.expr).and_then(|name| self.macros.get(name)) else { return false };
        let has_default = |i: usize| i + m.defaults.len() >= m.args.len() && i < m.args.len() && !is_same_undefined(m, i);
        c.args.iter().enumerate().any(|(i, a)| match a {
            CallArg::Pos(e) => has_default(i) && self.may_be_undefined(e),
            CallArg::Kwarg(name, e) => m.args.iter().position(|a| var(a) == Some(name)).is_some_and(has_default) && self.may_be_undefined(e),
            CallArg::PosSplat(_) | CallArg::KwargSplat(_) => !m.defaults.is_empty(),
        })
    }
}

fn var<'a>(e: &Expr<'a>) -> Option<&'a str> {
    match e {
        Expr::Var(v) => Some(v.id),
        _ => None,
    }
}

fn pos<'b, 'a>(a: &'b CallArg<'a>) -> Option<&'b Expr<'a>> {
    match a {
        CallArg::Pos(e) => Some(e),
        _ => None,
    }
}

/// Whether a macro does the same with its parameter's default as with what is undefined: both are empty, and it only asks for the truth, what
/// is in it, and goes over it.
fn is_same_undefined(m: &Macro, i: usize) -> bool {
    let (Some(name), default) = (var(&m.args[i]), &m.defaults[i + m.defaults.len() - m.args.len()]) else { return false };
    let is_list = matches!(default, Expr::List(l) if l.items.is_empty()) || matches!(default, Expr::Const(c) if c.value.len() == Some(0));
    let is_false = is_list || matches!(default, Expr::Const(c) if !c.value.is_true());
    let is_it = |e: &Expr| usize::from(var(e) == Some(name));
    fn truth(e: &Expr, is_it: &dyn Fn(&Expr) -> usize) -> usize {
        match e {
            Expr::UnaryOp(u) if matches!(u.op, UnaryOpKind::Not) => truth(&u.expr, is_it),
            Expr::BinOp(b) if matches!(b.op, BinOpKind::ScAnd | BinOpKind::ScOr) => truth(&b.left, is_it) + truth(&b.right, is_it),
            e => is_it(e),
        }
    }
    let (mut uses, mut harmless) = (0, 0);
    for s in &m.body {
        stmts(s, &mut |s| {
            match s {
                Stmt::IfCond(c) => harmless += truth(&c.expr, &is_it),
                Stmt::ForLoop(l) if is_list => harmless += is_it(&l.iter),
                _ => {}
            }
            stmt_exprs(s, &mut |e| {
                uses += is_it(e);
                match e {
                    Expr::BinOp(b) if is_list && matches!(b.op, BinOpKind::In) => harmless += is_it(&b.right),
                    Expr::Compare(c) if is_list && c.ops.len() == 1 && matches!(c.ops[0].op, CompareOpKind::In | CompareOpKind::NotIn) => harmless += is_it(&c.ops[0].expr),
                    Expr::IfExpr(i) => harmless += truth(&i.test_expr, &is_it),
                    _ => {}
                }
            })
        });
    }
    is_false && uses == harmless
}

fn mentions(e: &Expr, names: &BTreeSet<&str>) -> bool {
    let mut found = false;
    exprs(e, &mut |e| found |= var(e).is_some_and(|v| names.contains(v)));
    found
}

fn asks_for_length(body: &[Stmt]) -> bool {
    let mut found = false;
    let is_one = |name: &str| matches!(name, "last" | "length" | "revindex" | "revindex0");
    body.iter().for_each(|s| {
        stmts(s, &mut |s| {
            stmt_exprs(s, &mut |e| match e {
                Expr::GetAttr(g) => found |= is_one(g.name),
                Expr::GetItem(g) => found |= !matches!(&g.subscript_expr, Expr::Const(c) if c.value.as_str().is_none_or(|s| !is_one(s))),
                _ => {}
            })
        })
    });
    found
}

fn look_at_statement(s: &Stmt, names: &Names, bad: &mut BTreeSet<String>) {
    match s {
        Stmt::ForLoop(l) if l.recursive && asks_for_length(&l.body) => {
            bad.insert("a recursive loop that asks for its length".into()); // of a text it has none: rewrite.rs does not see its calls
        }
        Stmt::EmitExpr(e) if names.is_special(&e.expr) => {
            bad.insert("a function, macro, loop or namespace that is printed".into());
        }
        Stmt::EmitExpr(e) if matches!(&e.expr, Expr::Filter(f) if ITERATORS.contains(&f.name) && !matches!(&f.expr, Some(Expr::Const(_)))) => {
            bad.insert("an iterator that is printed".into());
        }
        Stmt::WithBlock(w) => {
            let targets: BTreeSet<&str> = w.assignments.iter().filter_map(|(t, _)| var(t)).collect();
            if w.assignments.iter().any(|(_, e)| mentions(e, &targets)) {
                bad.insert("statement with, of which one name uses another".into());
            }
        }
        Stmt::Macro(m) => {
            let args: BTreeSet<&str> = m.args.iter().filter_map(var).collect();
            if m.defaults.iter().any(|e| mentions(e, &args)) {
                bad.insert("a macro with a default that uses an argument".into());
            }
        }
        Stmt::CallBlock(c) if names.may_pass_undefined(&c.call) => {
            bad.insert("a macro whose argument may be undefined and has a default".into());
        }
        _ => {}
    }
}

fn look_at_expression(e: &Expr, names: &Names, bad: &mut BTreeSet<String>) {
    let mut add = |what: &str| {
        bad.insert(what.into());
    };
    let is_dict_list = |e: &Expr| matches!(e, Expr::Call(c) if matches!(&c.expr, Expr::GetAttr(g) if matches!(g.name, "keys" | "values" | "items")));
    match e {
        Expr::Slice(s) if is_odd_slice(s, names) => add("a slice that goes backwards and may be empty"),
        Expr::List(l) if l.items.iter().any(is_range) => add("a range in a list"),
        Expr::Tuple(l) if l.items.iter().any(is_range) => add("a range in a list"),
        Expr::Map(m) if m.values.iter().any(is_range) => add("a range in a dictionary"),
        Expr::GetItem(g) if is_dict_list(&g.expr) => add("a subscript of keys(), values() or items()"),
        Expr::GetItem(g) => match &g.subscript_expr {
            Expr::Const(c) if c.value.as_str().is_some_and(|s| DICT_ATTRS.contains(&s) || OTHER_ATTRS.contains(&s)) => add("a subscript that is a method's name"),
            Expr::Const(c) if c.value.is_number() && !c.value.is_integer() => add("a subscript that is a float"),
            _ => {}
        },
        Expr::Var(v) if JINJA_GLOBALS.contains(&v.id) => add(&format!("variable {}", v.id)),
        Expr::BinOp(b) if matches!(b.op, BinOpKind::Concat) && (is_list(&b.left) || is_list(&b.right)) => add("`~` beside a list or a dictionary"),
        Expr::BinOp(b) if matches!(b.op, BinOpKind::Pow) => add("operator **"),
        Expr::BinOp(b) if matches!(b.op, BinOpKind::Lt | BinOpKind::Lte | BinOpKind::Gt | BinOpKind::Gte) && (is_boolean(&b.left) || is_boolean(&b.right)) => {
            add("the order of a boolean");
        }
        Expr::Compare(c) => {
            let orders = c.ops.iter().any(|o| matches!(o.op, CompareOpKind::Lt | CompareOpKind::Lte | CompareOpKind::Gt | CompareOpKind::Gte));
            if orders && (is_boolean(&c.expr) || c.ops.iter().any(|o| is_boolean(&o.expr))) {
                add("the order of a boolean");
            }
        }
        Expr::Test(t) if names.is_special(&t.expr) && !matches!(t.name, "defined" | "undefined" | "none") => add("a test of a function, macro, loop or namespace"),
        Expr::Filter(f) => {
            if f.expr.as_ref().is_some_and(|e| names.is_special(e)) {
                add("a filter of a function, macro, loop or namespace");
            }
            if f.name == "map" && f.args.iter().any(|a| matches!(a, CallArg::Kwarg(name, _) if *name != "attribute" && *name != "default")) {
                add("filter map with names of arguments");
            }
            if f.name == "join" && f.args.iter().any(|a| matches!(pos(a), Some(Expr::Const(c)) if c.value.is_none())) {
                add("filter join with none");
            }
        }
        Expr::Call(c) if names.may_pass_undefined(c) => add("a macro whose argument may be undefined and has a default"),
        _ => {}
    }
}

/// Backwards: only the whole of what cannot be an empty list, of which minijinja would panic.
fn is_odd_slice(s: &Slice, names: &Names) -> bool {
    let is_forwards = s.step.as_ref().is_none_or(|e| matches!(e, Expr::Const(c) if c.value.as_i64().is_some_and(|n| n > 0)));
    let is_fixed = matches!(&s.step, Some(Expr::Const(_))) || matches!(&s.step, Some(Expr::UnaryOp(u)) if matches!(&u.expr, Expr::Const(_)));
    let is_full = matches!(&s.expr, Expr::Const(c) if c.value.len() != Some(0)) || (var(&s.expr) == Some("messages") && !names.sets_messages);
    !is_forwards && (!is_fixed || !is_full || s.start.is_some() || s.stop.is_some())
}

fn is_range(e: &Expr) -> bool {
    matches!(e, Expr::Call(c) if var(&c.expr) == Some("range"))
}

fn is_list(e: &Expr) -> bool {
    is_range(e) || matches!(e, Expr::List(_) | Expr::Tuple(_) | Expr::Map(_)) || matches!(e, Expr::Const(c) if matches!(c.value.kind(), ValueKind::Seq | ValueKind::Map))
}

fn is_boolean(e: &Expr) -> bool {
    match e {
        Expr::Const(c) => matches!(c.value.kind(), ValueKind::Bool),
        Expr::UnaryOp(u) => matches!(u.op, UnaryOpKind::Not),
        Expr::Test(_) | Expr::Compare(_) => true,
        Expr::BinOp(b) => matches!(b.op, BinOpKind::Eq | BinOpKind::Ne | BinOpKind::Lt | BinOpKind::Lte | BinOpKind::Gt | BinOpKind::Gte | BinOpKind::In),
        _ => false,
    }
}

fn is_odd_float(v: &Value) -> bool {
    v.is_number() && !v.is_integer() && f64::try_from(v.clone()).is_ok_and(|f| f != 0.0 && !(1e-4..1e16).contains(&f.abs()))
}
