// SPDX-License-Identifier: Apache-2.0
//! How deep a template's syntax tree can be, from its tokens. The parser bounds what is nested, but a chain (1 + 1 + ..., a.b.c ...) is read in
//! a loop and becomes a tree as deep as it is long, which is then walked, compiled and freed by recursion: too long a one would overflow
//! the stack, which no caller survives.
use minijinja::machinery::{tokenize, Token};
use minijinja::syntax::SyntaxConfig;

/// Links of chains, all levels of nesting in one another together. The longest known has 40.
const LINKS_MAX: usize = 250;
/// `elif` is an `if` within the one before.
const ELIFS_MAX: usize = 250;

pub fn is_too_deep(source: &str, syntax: &SyntaxConfig) -> bool {
    let (mut levels, mut elifs, mut comprised) = (vec![0], 0, 0); // links by level; `comprised`: their sum
    for (token, _) in tokenize(source, false, syntax.clone()).map_while(Result::ok) {
        let opens = matches!(token, Token::BracketOpen | Token::ParenOpen | Token::BraceOpen);
        match token {
            Token::BlockStart | Token::VariableStart => (levels, comprised) = (vec![0], 0),
            Token::BracketClose | Token::ParenClose | Token::BraceClose if levels.len() > 1 => comprised -= levels.pop().unwrap_or(0),
            Token::Comma | Token::Colon => comprised -= levels.last_mut().map_or(0, std::mem::take),
            Token::Ident("elif") => elifs += 1,
            Token::Ident("and" | "or" | "not" | "is" | "in" | "if" | "else") | Token::Pipe | Token::Dot | Token::Tilde => comprised += link(&mut levels),
            Token::Ident(_) | Token::Str(_) | Token::String(_) | Token::Int(_) | Token::Int128(_) | Token::Float(_) | Token::TemplateData(_) => {}
            Token::BlockEnd | Token::VariableEnd | Token::Assign => {}
            _ => comprised += link(&mut levels), // operators and what opens
        }
        if opens {
            levels.push(0);
        }
        if comprised > LINKS_MAX || elifs > ELIFS_MAX {
            return true;
        }
    }
    false
}

fn link(levels: &mut [usize]) -> usize {
    if let Some(l) = levels.last_mut() {
        *l += 1;
    }
    1
}
