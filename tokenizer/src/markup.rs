// SPDX-License-Identifier: Apache-2.0
//! Where the texts go that the filter `safe` gives. In Jinja2 such a text is a Markup, which escapes what it is put together with by
//! `+`, `%`, join() and others; here it is a text like any. Both print the same, and `~` and tests do not tell them apart: a template
//! is rendered where its Markups get no further than that.
//!
//! A name that is ever given a Markup counts as one wherever it is used. Every place that is not listed as harmless is taken for one
//! that is not.
use crate::lint::{exprs, stmt_exprs, stmts};
use minijinja::machinery::ast::{BinOpKind, CallArg, Expr, Filter, Stmt, UnaryOpKind};
use std::collections::BTreeSet;

/// Filters that give a Markup of a Markup, with the text that they give of a text.
const KEEP: [&str; 7] = ["safe", "string", "trim", "upper", "lower", "default", "d"];
/// Filters that make no difference between the two and give something else. `replace` takes all it is given as texts.
const END: [&str; 4] = ["tojson", "length", "count", "replace"];
/// Filters whose arguments may be Markups, too.
const WITH_ARGUMENTS: [&str; 3] = ["replace", "default", "d"];
const TESTS: [&str; 10] = ["defined", "undefined", "none", "string", "mapping", "sequence", "iterable", "number", "true", "false"];

pub fn look(root: &Stmt) -> Option<String> {
    let mut flow = Flow::default();
    while flow.give_names(root) {}
    let harmless = harmless(root);
    let mut lost = false;
    stmts(root, &mut |s| {
        stmt_exprs(s, &mut |e| lost |= flow.may_be_markup(e) && !harmless.contains(&address(e)));
    });
    lost.then(|| "filter safe, of whose text more is made than what is printed".into())
}

fn address(e: &Expr) -> usize {
    e as *const Expr as usize
}

#[derive(Default)]
struct Flow<'a> {
    names: BTreeSet<&'a str>,
}

impl<'a> Flow<'a> {
    /// Returns: whether there is a new one.
    fn give_names(&mut self, root: &Stmt<'a>) -> bool {
        let before = self.names.len();
        stmts(root, &mut |s| match s {
            Stmt::Set(s) => self.give(&s.target, &s.expr),
            Stmt::WithBlock(w) => w.assignments.iter().for_each(|(target, e)| self.give(target, e)),
            Stmt::SetBlock(s) => {
                if let Some(filter) = &s.filter {
                    self.give(&s.target, filter);
                }
            }
            _ => {}
        });
        self.names.len() > before
    }

    fn give(&mut self, target: &Expr<'a>, e: &Expr<'a>) {
        if let (Expr::Var(v), true) = (target, self.may_be_markup(e)) {
            self.names.insert(v.id);
        }
    }

    fn may_be_markup(&self, e: &Expr) -> bool {
        match e {
            Expr::Var(v) => self.names.contains(v.id),
            Expr::Filter(f) => f.name == "safe" || (KEEP.contains(&f.name) && (f.expr.as_ref().is_some_and(|e| self.may_be_markup(e)) || arguments(f).any(|e| self.may_be_markup(e)))),
            Expr::IfExpr(i) => self.may_be_markup(&i.true_expr) || i.false_expr.as_ref().is_some_and(|e| self.may_be_markup(e)),
            Expr::BinOp(b) if matches!(b.op, BinOpKind::ScAnd | BinOpKind::ScOr) => self.may_be_markup(&b.left) || self.may_be_markup(&b.right),
            _ => false, // what is made of a Markup elsewhere is none, or its place is not harmless
        }
    }
}

fn arguments<'b, 'a>(f: &'b Filter<'a>) -> impl Iterator<Item = &'b Expr<'a>> {
    f.args.iter().filter_map(|a| match a {
        CallArg::Pos(e) | CallArg::Kwarg(_, e) => Some(e),
        _ => None,
    })
}

/// Addresses of expressions of which it makes no difference whether they are a Markup, or of which the whole is one then, too.
fn harmless(root: &Stmt) -> BTreeSet<usize> {
    let mut places = BTreeSet::new();
    stmts(root, &mut |s| {
        in_statement(s, &mut |e| {
            places.insert(address(e));
        });
        stmt_exprs(s, &mut |e| {
            in_expression(e, &mut |e| {
                places.insert(address(e));
            })
        });
    });
    places
}

fn in_statement(s: &Stmt, add: &mut dyn FnMut(&Expr)) {
    let name = |target: &Expr, e: Option<&Expr>, add: &mut dyn FnMut(&Expr)| {
        if matches!(target, Expr::Var(_)) {
            add(target);
            e.into_iter().for_each(add);
        }
    };
    match s {
        Stmt::EmitExpr(e) => add(&e.expr),
        Stmt::IfCond(i) => add(&i.expr),
        Stmt::ForLoop(l) => {
            exprs(&l.target, &mut |e| add(e));
            add(&l.iter); // its characters are texts
            l.filter_expr.iter().for_each(add);
        }
        Stmt::Set(s) => name(&s.target, Some(&s.expr), add),
        Stmt::SetBlock(s) => name(&s.target, s.filter.as_ref(), add),
        Stmt::FilterBlock(b) => add(&b.filter),
        Stmt::WithBlock(w) => w.assignments.iter().for_each(|(target, e)| name(target, Some(e), add)),
        Stmt::Macro(m) => m.args.iter().for_each(add), // what it is called with is in no harmless place
        Stmt::CallBlock(c) => c.macro_decl.args.iter().for_each(add),
        _ => {}
    }
}

fn in_expression(e: &Expr, add: &mut dyn FnMut(&Expr)) {
    use BinOpKind::*;
    match e {
        Expr::BinOp(b) if matches!(b.op, Concat | ScAnd | ScOr | Eq | Ne | Lt | Lte | Gt | Gte | In) => {
            add(&b.left);
            add(&b.right);
        }
        Expr::Compare(c) => {
            add(&c.expr);
            c.ops.iter().for_each(|o| add(&o.expr));
        }
        Expr::UnaryOp(u) if matches!(u.op, UnaryOpKind::Not) => add(&u.expr),
        Expr::IfExpr(i) => {
            add(&i.test_expr);
            add(&i.true_expr);
            i.false_expr.iter().for_each(add);
        }
        Expr::Filter(f) if KEEP.contains(&f.name) || END.contains(&f.name) => {
            f.expr.iter().for_each(&mut *add);
            if WITH_ARGUMENTS.contains(&f.name) {
                arguments(f).for_each(add);
            }
        }
        Expr::Test(t) if TESTS.contains(&t.name) => add(&t.expr),
        _ => {}
    }
}
