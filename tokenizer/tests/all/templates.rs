// SPDX-License-Identifier: Apache-2.0
//! What a template may cost, and what is refused.
use kvr_tokenizer::{Asked, Kind, Profile, Template, Tokenizer};
use crate::models::{train, Folder};
use serde_json::{json, Map, Value as Json};

fn ask(t: &Tokenizer, question: &Json) -> Result<usize, (Kind, &'static str)> {
    match t.ask(question.to_string().as_bytes(), usize::MAX) {
        Ok(Asked::Ids(ids)) => Ok(ids.len()),
        Ok(Asked::Later(_)) => unreachable!("nothing is too long for the caller"),
        Err(e) => Err((e.kind, e.label)),
    }
}

fn chat(n: usize) -> Json {
    json!({"messages": vec![json!({"role": "user", "content": "x"}); n]})
}

#[test]
fn a_template_that_goes_over_all_messages_for_each_is_given_up() {
    let folder = Folder::new("fuel", &train("bytes"), Some("{% for m in messages %}{% for n in messages %}{{ n.content }}{% endfor %}{% endfor %}"));
    let t = Tokenizer::load(folder.path(), &Json::Null).unwrap();
    assert!(ask(&t, &chat(100)).is_ok());
    assert_eq!(ask(&t, &chat(16384)), Err((Kind::Unsupported, "template_too_long")));
    let folder = Folder::new("linear", &train("bytes"), Some("{% for m in messages %}{% if m.role == 'user' and not loop.last %}<s>{{ m.content|trim }}{% endif %}{% endfor %}"));
    let t = Tokenizer::load(folder.path(), &Json::Null).unwrap();
    assert!(ask(&t, &chat(16384)).is_ok());
}

#[test]
fn hostile_questions_are_refused_or_answered() {
    let folder = Folder::new("hostile", &train("bytes"), Some("{% for m in messages %}<s>{{ m.role }}: {{ m.content }}{{ x }}{% endfor %}"));
    let t = Tokenizer::load(folder.path(), &Json::Null).unwrap();
    let deep = format!("{{\"messages\":{}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    for (body, label) in [
        ("", "json"),
        ("[]", "json"),
        ("{\"messages\":\"\\ud800\"}", "json"),
        ("{\"messages\":[]}", "messages"),
        ("{\"messages\":[{\"content\":\"x\"}]}", "messages"),
        ("{\"messages\":[{\"role\":\"user\",\"content\":7}]}", "messages"),
        ("{\"messages\":[{\"role\":\"user\",\"content\":12345678901234567890123}]}", "number"),
        ("{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}", "part"),
        ("{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"chat_template\":\"x\"}", "member"),
        ("{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"add_generation_prompt\":\"yes\"}", "member"),
        ("{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"continue_final_message\":true}", "continue_final_message"),
        ("{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[7]}", "tool"),
        ("{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"chat_template_kwargs\":{\"namespace\":1}}", "chat_template_kwargs"),
        ("{\"prompt\":[1,2]}", "prompt"),
        (deep.as_str(), "json"),
    ] {
        match t.ask(body.as_bytes(), usize::MAX) {
            Err(e) => assert_eq!(e.label, label, "{}", &body[..body.len().min(200)]),
            Ok(_) => panic!("answered: {}", &body[..body.len().min(200)]),
        }
    }
    assert!(t.ask(b"\xff\xfe", 0).is_err());
    // of two members of one name the last counts, at the place of the first, as Python's reader has it
    let twice = br#"{"messages":[{"role":"user","content":"a","content":"b"}],"messages":[{"role":"system","content":"c"}]}"#;
    let once = br#"{"messages":[{"role":"system","content":"c"}]}"#;
    let ids = |b: &[u8]| match t.ask(b, usize::MAX).unwrap() {
        Asked::Ids(ids) => ids,
        Asked::Later(_) => unreachable!(),
    };
    assert_eq!(ids(twice), ids(once));
}

#[test]
fn a_template_outside_the_compared_set_is_refused_and_named() {
    let folder = Folder::new("lint", &train("bytes"), Some("{{ messages|groupby('role')|list|length }}"));
    let t = Tokenizer::load(folder.path(), &Json::Null).unwrap();
    assert!(t.info()["template"].as_str().unwrap().contains("filter groupby"), "{}", t.info());
    assert_eq!(ask(&t, &chat(1)), Err((Kind::Unsupported, "template")));
}

fn text(template: &str, content: &str) -> String {
    let t = Template::new(template).unwrap();
    let as_they_come = Profile::from_json(&json!({"raw": true})).unwrap();
    t.render(json!({"messages": [{"role": "user", "content": content}]}).as_object().unwrap(), &as_they_come, &Map::new()).unwrap().whole()
}

#[test]
fn the_last_character_of_a_text_is_the_last_of_its_loop() {
    let template = "{% for c in messages[0].content %}{{ c }}{{ loop.revindex }}{% if not loop.last %},{% endif %}{% endfor %}";
    assert_eq!(text(template, "aéb"), "a3,é2,b1");
}

#[test]
fn what_safe_gives_is_printed_and_no_more() {
    assert_eq!(text("{% set c = messages[0].content|safe %}{{ '<' ~ c ~ '&' }}{{ c if c is string }}", "<b>"), "<<b>&<b>");
    for template in ["{{ (messages[0].content|safe) + '<' }}", "{% set c = messages[0].content|safe %}{{ [c] }}", "{{ messages|map('safe')|join }}", "{{ messages|map(messages[0].role)|join }}"] {
        assert!(!Template::new(template).unwrap().unverified.is_empty(), "{template}");
    }
}
