// SPDX-License-Identifier: Apache-2.0
//! `strftime_now`: the local time of the process, as Python's datetime.now() has it.
use crate::models::{train, Folder};
use kvr_tokenizer::{Profile, Template, Tokenizer};
use serde_json::{json, Map, Value as Json};

const TEMPLATE: &str = "{% if date_string is not defined %}{% set date_string = strftime_now('%Y-%m-%d') %}{% endif %}{{ date_string }}";

fn render(arguments: Json) -> String {
    let chat = json!({"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": arguments});
    let t = Template::new(TEMPLATE).unwrap();
    assert!(t.dates);
    t.render(chat.as_object().unwrap(), &Profile::from_json(&Json::Null).unwrap(), &Map::new()).unwrap().whole()
}

/// What another process, in another time zone, makes of it: this program, with this one test.
#[test]
#[ignore = "is run by the test below"]
fn says_the_date() {
    println!("date={}", render(Json::Null));
}

fn date_in(zone: &str) -> String {
    let me = std::env::current_exe().unwrap();
    let out = std::process::Command::new(me).args(["--ignored", "--exact", "dates::says_the_date", "--nocapture"]).env("TZ", zone).output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    text.split("date=").nth(1).unwrap_or_else(|| panic!("{text}"))[..10].to_string()
}

#[test]
fn the_date_is_that_of_the_time_zone() {
    let (east, west) = (date_in("EEE-14"), date_in("WWW+12")); // 26 hours apart: never of one day
    assert!(west < east, "{west} {east}");
    assert_eq!(render(json!({"date_string": "1 Jan 2030"})), "1 Jan 2030");
}

#[test]
fn a_tokenizer_says_whether_its_template_writes_the_date() {
    let tokenizer = train("bytes");
    let folder = Folder::new("dates", &tokenizer, Some(TEMPLATE));
    assert_eq!(Tokenizer::load(folder.path(), &Json::Null).unwrap().info()["dates"], true);
    let folder = Folder::new("no-dates", &tokenizer, Some("{{ messages[0].content }}"));
    assert_eq!(Tokenizer::load(folder.path(), &Json::Null).unwrap().info()["dates"], false);
}
