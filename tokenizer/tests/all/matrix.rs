// SPDX-License-Identifier: Apache-2.0
//! The constructs of chat templates, one by one, against what Jinja2 made of them (vectors/jinja.json, recorded by vectors/record.py).
use kvr_tokenizer::{compared, Fail, Profile, Template};
use serde_json::{json, Map, Value as Json};

const VECTORS: &str = include_str!("../vectors/jinja.json");

struct Vectors {
    chat: Map<String, Json>,
    specials: Map<String, Json>,
    odd: Json,
    /// A template and its text, or none where Jinja2 raises, or prints an address.
    cases: Vec<(String, Option<String>)>,
}

fn vectors() -> Vectors {
    let json: Json = serde_json::from_str(VECTORS).unwrap();
    let mut arguments = json["variables"].as_object().unwrap().clone();
    let mut chat = Map::new();
    for name in ["messages", "tools"] {
        chat.insert(name.into(), arguments.shift_remove(name).unwrap());
    }
    chat.insert("chat_template_kwargs".into(), arguments.into());
    let case = |c: &Json| (c[0].as_str().unwrap().to_string(), c[1].as_str().map(String::from));
    let specials = json!({"bos_token": "<s>"}).as_object().unwrap().clone();
    Vectors { chat, specials, odd: json["odd"].clone(), cases: json["cases"].as_array().unwrap().iter().map(case).collect() }
}

fn render(template: &str, v: &Vectors) -> Result<String, Fail> {
    let as_they_come = Profile::from_json(&json!({"raw": true, "drop_none": false, "alias_reasoning": false}))?;
    let mut chat = v.chat.clone();
    if template.contains("odd.") {
        chat["chat_template_kwargs"]["odd"] = v.odd.clone();
    }
    Ok(Template::new(template)?.render(&chat, &as_they_come, &v.specials)?.whole())
}

/// Rendered, and not as Jinja2 does: only a run shows them, no known template has them (src/unlike.rs).
const LISTED: [&str; 5] = [
    "{{ messages[2].t > messages[2].zero }}",
    "{{ ['a', 'b'][messages[2].one] }}",
    "{{ 'a'.title is defined }}",
    "{{ words.index is defined }}",
    "{% set l = [] + unprintable %}{{ 'a' ~ l }}",
];

#[test]
fn templates_have_the_text_that_jinja2_makes_or_are_refused() {
    let v = vectors();
    let (mut equal, mut both, mut refused, mut only_there, mut listed, mut wrong) = (0, 0, 0, 0, 0, vec![]);
    let (mut marked_equal, mut marked) = (0, 0); // with `safe`
    for (template, want) in &v.cases {
        let Ok(got) = std::panic::catch_unwind(|| render(template, &v)) else {
            wrong.push(format!("{template:?}\n    panics"));
            continue;
        };
        match (got, want) {
            (Ok(got), Some(want)) if got == *want => {
                equal += 1;
                marked_equal += usize::from(template.contains("safe"));
            }
            (Err(_), None) => both += 1,
            (Err(_), Some(_)) if template.contains("safe") => marked += 1, // most of these cases are there to be refused
            (Err(e), Some(_)) => {
                refused += 1;
                if std::env::var("KVR_SHOW").is_ok() {
                    println!("REFUSED {template:?} {want:?} {e}");
                }
            }
            (Ok(_), None) => only_there += 1, // the engine refuses such a chat: no ids of it are ever used
            (Ok(_), Some(_)) if LISTED.contains(&template.as_str()) => listed += 1,
            (Ok(got), want) => wrong.push(format!("{template:?}\n    Jinja2 {want:?}\n    here   {got:?}")),
        }
    }
    println!("{} templates: {equal} equal, {both} raise in both, {refused} refused here, {only_there} raise in Jinja2 only", v.cases.len());
    println!("with `safe`: {marked_equal} of those that are equal, {marked} refused beside those");
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!(listed, LISTED.len(), "a difference that is listed is gone: take it off the list");
    assert!(equal > 4400 && refused < 700 && marked_equal > 500, "{equal} equal, {refused} refused: what is refused proves nothing");
}

#[test]
fn templates_of_six_families_are_rendered() {
    let folder = std::env::var("KVR_TEMPLATES").unwrap_or(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/templates").into());
    let mut n = 0;
    for file in std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().path()) {
        let t = Template::new(&std::fs::read_to_string(&file).unwrap()).unwrap();
        assert!(t.unverified.is_empty(), "{file:?}: {:?}", t.unverified);
        n += 1;
    }
    assert!(n >= 6);
}

/// Names that lint.rs passes without a case that shows them equal.
#[test]
fn what_the_lint_passes_has_been_compared() {
    let v = vectors();
    let equal: Vec<&str> = v.cases.iter().filter(|(t, want)| want.is_some() && render(t, &v).ok() == *want).map(|(t, _)| t.as_str()).collect();
    for (kind, names) in compared() {
        let is_shown = |name: &&&str| {
            let shown = match kind {
                "filter" => [format!("|{name}"), format!("| {name}"), format!("('{name}'")],
                "test" => [format!("is {name}"), format!("is not {name}"), format!("'{name}'")],
                _ => [format!(".{name}("), format!("{{ {name}("), format!("= {name}(")],
            };
            equal.iter().any(|t| shown.iter().any(|s| t.contains(s.as_str())))
        };
        let missing: Vec<_> = names.iter().filter(|n| !is_shown(n)).collect();
        let missing: Vec<_> = missing.into_iter().filter(|n| **n != "raise_exception").collect(); // gives no text
        assert!(missing.is_empty(), "no template shows that the {kind}s {missing:?} are as Jinja2 has them");
    }
}
