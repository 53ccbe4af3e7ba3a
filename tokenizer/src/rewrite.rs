// SPDX-License-Identifier: Apache-2.0
//! What of a template is written otherwise before it is compiled. Both go by tokens, and change nothing else of the text.
use minijinja::machinery::{tokenize, Token};
use minijinja::syntax::SyntaxConfig;

/// The filter that counted_loops puts behind what a loop goes over; functions.rs has it.
pub const COUNTED: &str = "kvr_counted";

/// `{% generation %}` marks what the model has said and changes no text: it becomes a scope of its own, with the tag's white-space control.
pub fn plain_generation(source: &str, syntax: &SyntaxConfig) -> String {
    let mut out = String::with_capacity(source.len());
    let mut copied = 0;
    let tokens: Vec<_> = tokenize(source, false, syntax.clone()).map_while(Result::ok).collect();
    for three in tokens.windows(3) {
        let [(Token::BlockStart, _), (Token::Ident(name @ ("generation" | "endgeneration")), at), (Token::BlockEnd, _)] = three else { continue };
        out.push_str(&source[copied..at.start_offset as usize]);
        out.push_str(if *name == "generation" { "with" } else { "endwith" });
        copied = at.end_offset as usize;
    }
    out + &source[copied..]
}

/// minijinja does not know how long a loop over a text is, or over what some filters give: `loop.last` and its like are none then. Behind
/// the filter it does.
pub fn counted_loops(source: &str, syntax: &SyntaxConfig) -> String {
    let mut out = String::with_capacity(source.len());
    let mut copied = 0;
    let tokens: Vec<_> = tokenize(source, false, syntax.clone()).map_while(Result::ok).collect();
    for i in 1..tokens.len() {
        if !matches!([&tokens[i - 1].0, &tokens[i].0], [Token::BlockStart, Token::Ident("for")]) {
            continue;
        }
        let Some((from, to)) = what_it_goes_over(&tokens[i..]) else { continue };
        let (from, to) = (tokens[i + from].1.end_offset as usize, tokens[i + to].1.start_offset as usize);
        out.push_str(&source[copied..from]);
        out.push_str(&format!(" ({})|{COUNTED} ", &source[from..to]));
        copied = to;
    }
    out + &source[copied..]
}

/// Of the tokens of a `for`. Returns: where its `in` is, and where the `if`, the `recursive` or the end is.
fn what_it_goes_over<T>(tokens: &[(Token, T)]) -> Option<(usize, usize)> {
    let (mut depth, mut from) = (0, None);
    for (i, (token, _)) in tokens.iter().enumerate().skip(1) {
        let is_first = from == Some(i - 1);
        let is_member = matches!(tokens[i - 1].0, Token::Dot);
        match (token, from) {
            (Token::ParenOpen | Token::BracketOpen | Token::BraceOpen, _) => depth += 1,
            (Token::ParenClose | Token::BracketClose | Token::BraceClose, _) => depth -= 1,
            (Token::Ident("in"), None) if depth == 0 => from = Some(i),
            (Token::Ident("if" | "recursive"), Some(from)) if depth == 0 && !is_first && !is_member => return Some((from, i)),
            (Token::BlockEnd, from) => return from.filter(|_| !is_first).map(|from| (from, i)),
            _ => {}
        }
    }
    None
}
