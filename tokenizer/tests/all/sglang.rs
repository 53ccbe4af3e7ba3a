// SPDX-License-Identifier: Apache-2.0
//! SGLang's view of chats, as its own code makes it: tests/vectors/sglang_chats.json, which says how it was made.
use crate::models::{train, Folder};
use kvr_tokenizer::{Asked, Question, Tokenizer};
use serde_json::{json, Value as Json};

fn whole(t: &Tokenizer, question: &Json) -> Result<String, &'static str> {
    match Question::parse(question.to_string().as_bytes()).map_err(|e| e.label)? {
        Question::Chat(chat) => t.render(&chat).map(|p| p.whole()).map_err(|e| e.label),
        Question::Text { .. } => unreachable!("a chat"),
    }
}

#[test]
fn chats_are_rendered_as_sglang_renders_them_or_refused() {
    let vectors: Json = serde_json::from_str(include_str!("../../../tests/vectors/sglang_chats.json")).unwrap();
    let (mut equal, mut only_here, mut both) = (0, vec![], 0);
    for set in vectors["templates"].as_array().unwrap() {
        let folder = Folder::new("sglang", &train("bytes"), set["template"].as_str());
        let t = Tokenizer::load(folder.path(), &json!({"engine": "sglang", "alias_reasoning": false})).unwrap();
        assert_eq!(t.info()["content_format"], set["format"], "{}", set["name"]);
        for chat in set["chats"].as_array().unwrap() {
            match (whole(&t, &chat["question"]), chat["whole"].as_str()) {
                (Ok(here), Some(there)) => {
                    assert_eq!(here, there, "{}: {}", set["name"], chat["question"]);
                    equal += 1;
                }
                (Err(label), Some(_)) => only_here.push(label),
                (Err(_), None) => both += 1,
                (Ok(here), None) => panic!("{}: SGLang refuses {}, here it is {here}", set["name"], chat["question"]),
            }
        }
    }
    assert!(equal > 150 && both > 20, "{equal} equal, {both} refused by both");
    only_here.sort();
    only_here.dedup();
    assert!(only_here.iter().all(|l| ["add_generation_prompt", "reasoning", "tool", "tool_schema"].contains(l)), "{only_here:?}");
}

#[test]
fn the_message_that_is_gone_on_with_is_encoded_by_itself() {
    let folder = Folder::new("tail", &train("bytes"), Some("{% for m in messages %}<s>{{ m.content }}{% endfor %}"));
    let t = Tokenizer::load(folder.path(), &json!({"engine": "sglang"})).unwrap();
    let ids = |q: Json| match t.ask(q.to_string().as_bytes(), usize::MAX).unwrap() {
        Asked::Ids(ids) => ids,
        Asked::Later(_) => unreachable!("nothing is too long for the caller"),
    };
    let user = json!({"role": "user", "content": "the quick brown"});
    let two = ids(json!({"messages": [user, {"role": "assistant", "content": "fox jumps"}], "continue_final_message": true}));
    let mut apart = ids(json!({"messages": [user]}));
    apart.extend(t.encode("fox jumps", true).unwrap());
    assert_eq!(two, apart);
    assert!(t.ask(b"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"add_generation_prompt\":false}", 0).is_err());
    assert!(t.ask(b"{\"prompt\":\"x\",\"add_special_tokens\":false}", 0).is_err());
}
