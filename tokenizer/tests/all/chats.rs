// SPDX-License-Identifier: Apache-2.0
//! Whole chats against what transformers' apply_chat_template made of them: vectors/chats.json, recorded by vectors/record_chats.py.
use kvr_tokenizer::{Profile, Template};
use serde_json::{json, Value as Json};

const VECTORS: &str = include_str!("../vectors/chats.json");

fn template(name: &str) -> Template {
    let path = format!("{}/../tests/templates/{name}", env!("CARGO_MANIFEST_DIR"));
    Template::new(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn a_template_that_marks_json_as_safe_gives_the_text_that_transformers_gives() {
    let vectors: Json = serde_json::from_str(VECTORS).unwrap();
    let as_they_come = Profile::from_json(&json!({"raw": true, "drop_none": false, "alias_reasoning": false})).unwrap();
    let specials = json!({"bos_token": "<s>"}).as_object().unwrap().clone();
    let (mut equal, mut with_calls, mut refused) = (0, 0, vec![]);
    for case in vectors["cases"].as_array().unwrap() {
        let there = case[2].as_str();
        match template(case[0].as_str().unwrap()).render(case[1].as_object().unwrap(), &as_they_come, &specials) {
            Ok(here) => {
                assert_eq!(Some(here.whole().as_str()), there, "{}", case[1]);
                with_calls += usize::from(there.is_some_and(|t| t.contains("\n<parameter=") && t.contains("</enum>")));
                equal += 1;
            }
            Err(e) => refused.push(e.label),
        }
    }
    println!("{equal} equal, of them {with_calls} with calls and schemas; {} refused", refused.len());
    assert!(refused.iter().all(|l| *l == "number"), "{refused:?}"); // floats that `~` prints unlike Python
    assert!(equal > 40 && with_calls > 5, "{equal} equal, {with_calls} with calls");
}
