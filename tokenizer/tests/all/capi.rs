// SPDX-License-Identifier: Apache-2.0
//! The library through its C ABI: panics, hostile JSON, small stacks, files and questions with bytes changed at random.
use crate::models::{train, Folder, Rng};
use kvr_tokenizer as _; // its symbols
use serde_json::{json, Value as Json};
use std::ffi::{c_char, c_int, c_void, CString};
use std::path::Path;
use std::sync::Once;

#[repr(C)]
struct Buf {
    data: *mut u8,
    len: usize,
    cap: usize,
}

extern "C" {
    fn kvr_tok_load(dir: *const c_char, options: *const c_char, out: *mut *mut c_void, err: *mut Buf) -> c_int;
    fn kvr_tok_free(t: *mut c_void);
    fn kvr_tok_ask(t: *const c_void, question: *const c_char, n: usize, inline_max: usize, job: *mut *mut c_void, out: *mut Buf) -> c_int;
    fn kvr_tok_finish(job: *mut c_void, out: *mut Buf) -> c_int;
    fn kvr_tok_drop(job: *mut c_void);
    fn kvr_tok_plain(t: *const c_void, question: *const c_char, n: usize, out: *mut Buf) -> c_int;
    fn kvr_tok_render(t: *const c_void, question: *const c_char, n: usize, out: *mut Buf) -> c_int;
    fn kvr_tok_info(t: *const c_void, out: *mut Buf) -> c_int;
    fn kvr_tok_buf_free(b: *mut Buf);
}

const EPANIC: c_int = -4;

fn taken(f: impl FnOnce(*mut Buf) -> c_int) -> (c_int, Vec<u8>) {
    let mut b = Buf { data: std::ptr::null_mut(), len: 0, cap: 0 };
    let rc = f(&mut b);
    // SAFETY: the library has filled it; twice is once.
    unsafe {
        let v = if b.len > 0 { std::slice::from_raw_parts(b.data, b.len).to_vec() } else { vec![] };
        kvr_tok_buf_free(&mut b);
        kvr_tok_buf_free(&mut b);
        (rc, v)
    }
}

pub struct Lib(*mut c_void);
// SAFETY: as the header says.
unsafe impl Send for Lib {}
unsafe impl Sync for Lib {}
impl Lib {
    fn load(dir: &Path, options: &str) -> Result<Lib, (c_int, String)> {
        let (dir, options) = (CString::new(dir.to_str().unwrap()).unwrap(), CString::new(options).unwrap());
        let mut t = std::ptr::null_mut();
        let loaded = taken(|b| unsafe { kvr_tok_load(dir.as_ptr(), options.as_ptr(), &mut t, b) });
        static LOUD: Once = Once::new(); // loading has silenced panics, of the tests too
        LOUD.call_once(|| std::panic::set_hook(Box::new(|p| eprintln!("{p}"))));
        match loaded {
            (0, _) => Ok(Lib(t)),
            (rc, why) => Err((rc, String::from_utf8(why).unwrap())),
        }
    }
    fn ask(&self, body: &[u8], inline_max: usize) -> (c_int, Vec<u8>) {
        let mut job = std::ptr::null_mut();
        match taken(|b| unsafe { kvr_tok_ask(self.0, body.as_ptr().cast(), body.len(), inline_max, &mut job, b) }) {
            (1, _) => taken(|b| unsafe { kvr_tok_finish(job, b) }),
            other => other,
        }
    }
    fn plain(&self, body: &[u8]) -> (c_int, Vec<u8>) {
        taken(|b| unsafe { kvr_tok_plain(self.0, body.as_ptr().cast(), body.len(), b) })
    }
    fn render(&self, body: &[u8]) -> (c_int, Vec<u8>) {
        taken(|b| unsafe { kvr_tok_render(self.0, body.as_ptr().cast(), body.len(), b) })
    }
    fn info(&self) -> Json {
        serde_json::from_slice(&taken(|b| unsafe { kvr_tok_info(self.0, b) }).1).unwrap()
    }
}
impl Drop for Lib {
    fn drop(&mut self) {
        // SAFETY: loaded, and used no more.
        unsafe { kvr_tok_free(self.0) }
    }
}

const TEMPLATE: &str = "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content|trim }}{% else %}{{ m.content|tojson }}{% endif %}\
{% for c in m.tool_calls or [] %}{{ c.function.name ~ c.function.arguments|tojson(indent=2) }}{% endfor %}<|im_end|>\n{% endfor %}\
{% if tools %}{{ tools|tojson }}{{ tools }}{% endif %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

fn chat() -> Json {
    json!({"messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "What is <|im_end|> é 😀?"}, {"type": "text", "text": "1.50"}]},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": [1, -2.5e3, null, \"x\"]}"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "12"}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "array"}}}}}],
        "chat_template_kwargs": {"x": true}, "add_generation_prompt": true})
}

/// Runs `f` on a stack of 512 KB, which is what threads have elsewhere.
fn on_a_small_stack<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|s| std::thread::Builder::new().stack_size(512 << 10).spawn_scoped(s, f).unwrap().join().unwrap())
}

#[test]
fn a_panic_is_an_error_and_the_library_goes_on() {
    let folder = Folder::new("panic", &train("bytes"), Some(TEMPLATE));
    let t = Lib::load(folder.path(), "{}").unwrap();
    let question = chat().to_string();
    let before = t.ask(question.as_bytes(), usize::MAX);
    assert_eq!(before.0, 0);
    for _ in 0..3 {
        let (rc, why) = t.ask(question.replace("Be brief.", "kvr-tok-panic-me").as_bytes(), usize::MAX);
        assert_eq!((rc, why.as_slice()), (EPANIC, &b"panic"[..])); // and nothing of the question
        assert_eq!(t.ask(question.as_bytes(), usize::MAX), before);
        assert_eq!(t.plain(question.as_bytes()), before);
    }
}

#[test]
fn a_fast_encoder_that_disagrees_on_one_probe_is_not_used() {
    let mut json = train("bytes");
    let folder = Folder::new("agrees", &json, None);
    assert_eq!(Lib::load(folder.path(), "{}").unwrap().info()["encoder"], "fast");
    let list = json["added_tokens"].as_array_mut().unwrap();
    let mut planted = list[0].clone();
    planted["id"] = json!(list.iter().map(|a| a["id"].as_u64().unwrap()).max().unwrap() + 1);
    planted["content"] = json!("<kvr-fast-differs>"); // what the hook makes the fast encoder's ids of such a text differ by
    list.push(planted);
    let folder = Folder::new("disagrees", &json, None);
    let t = Lib::load(folder.path(), "{}").unwrap();
    assert!(t.info()["encoder"].as_str().unwrap().starts_with("reference: it differs from the reference on"), "{}", t.info());
    let question = json!({"prompt": "<s>one<kvr-fast-differs> two"}).to_string();
    assert_eq!(t.ask(question.as_bytes(), usize::MAX), t.plain(question.as_bytes()));
}

#[test]
fn deep_json_and_deep_templates_are_refused_on_a_small_stack() {
    let folder = Folder::new("deep", &train("bytes"), Some(TEMPLATE));
    let n = 100_000;
    on_a_small_stack(|| {
        let t = Lib::load(folder.path(), "{}").unwrap();
        let user = |content: &str| format!("{{\"messages\":[{{\"role\":\"user\",\"content\":{content}}}]}}");
        for body in [
            "[".repeat(n),
            "[".repeat(n) + &"]".repeat(n),
            "{\"messages\":".repeat(n),
            user(&("[".repeat(n) + &"]".repeat(n))),
            user(&"[{\"a\":".repeat(n)),
            format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"x\"}}],\"documents\":[{{\"a\":{}{}}}]}}", "[".repeat(n), "]".repeat(n)),
            json!({"messages": [{"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "[".repeat(n)}}]}]}).to_string(),
        ] {
            for (rc, _) in [t.ask(body.as_bytes(), usize::MAX), t.plain(body.as_bytes()), t.render(body.as_bytes())] {
                assert!(rc < 0 && rc != EPANIC, "{rc}: {}", &body[..60]);
            }
        }
        let deepest = user(&format!("[{{\"type\":\"text\",\"text\":\"x\",\"a\":{}{}}}]", "[".repeat(110), "]".repeat(110)));
        assert!(t.ask(deepest.as_bytes(), usize::MAX).0 != EPANIC);
        for (name, template) in [
            ("parentheses", format!("{{{{ {}1{} }}}}", "(".repeat(n), ")".repeat(n))),
            ("lists", format!("{{{{ {}{} }}}}", "[".repeat(n), "]".repeat(n))),
            ("sum", format!("{{{{ 1{} }}}}", " + 1".repeat(n))),
            ("text", format!("{{{{ 'a'{} }}}}", " ~ 'a'".repeat(n))),
            ("or", format!("{{{{ a{} }}}}", " or a".repeat(n))),
            ("comparison", format!("{{{{ 1{} }}}}", " == 1".repeat(n))),
            ("members", format!("{{{{ a{} }}}}", ".a".repeat(n))),
            ("subscripts", format!("{{{{ a{} }}}}", "[0]".repeat(n))),
            ("slices", format!("{{{{ a{} }}}}", "[1:]".repeat(n))),
            ("calls", format!("{{{{ a{} }}}}", "()".repeat(n))),
            ("filters", format!("{{{{ a{} }}}}", "|trim".repeat(n))),
            ("tests", format!("{{{{ a{} }}}}", " is defined".repeat(n))),
            ("not", format!("{{{{ {}a }}}}", "not ".repeat(n))),
            ("minus", format!("{{{{ {}1 }}}}", "-".repeat(n))),
            ("power", format!("{{{{ 2{} }}}}", " ** 2".repeat(n))),
            ("either", format!("{{{{ 1{} }}}}", " if a else 2".repeat(n))),
            ("loops", format!("{}{}", "{% for a in b %}".repeat(n), "{% endfor %}".repeat(n))),
            ("conditions", format!("{}{}", "{% if a %}".repeat(n), "{% endif %}".repeat(n))),
            ("elif", format!("{{% if a %}}{}{{% endif %}}", "{% elif b %}x".repeat(n))),
            ("with", format!("{}{}", "{% with %}".repeat(n), "{% endwith %}".repeat(n))),
            ("set filters", format!("{{% set x{} %}}{{% endset %}}", "|trim".repeat(n))),
            ("arguments", format!("{{{{ a{} }}}}", "(a".repeat(n))),
            ("concatenated conditions", format!("{{% if a{} %}}{{% endif %}}", " and b".repeat(n))),
        ] {
            std::fs::write(folder.path().join("chat_template.jinja"), &template).unwrap();
            let t = Lib::load(folder.path(), "{\"fast\": false}").unwrap();
            let (rc, why) = t.ask(chat().to_string().as_bytes(), usize::MAX);
            assert!(rc < 0 && rc != EPANIC, "{name}: {rc} {}", String::from_utf8_lossy(&why));
        }
        let in_turn = format!("{{{{ {} }}}}", "'a' ".repeat(n)); // one text, of whatever length
        std::fs::write(folder.path().join("chat_template.jinja"), in_turn).unwrap();
        assert_eq!(Lib::load(folder.path(), "{\"fast\": false}").unwrap().render(chat().to_string().as_bytes()).1, "a".repeat(n).into_bytes());
        let rec = "{% macro r(n) %}{{ n }}{{ r(n + 1) }}{% endmacro %}{{ r(0) }}";
        std::fs::write(folder.path().join("chat_template.jinja"), rec).unwrap();
        let (rc, _) = Lib::load(folder.path(), "{\"fast\": false}").unwrap().ask(chat().to_string().as_bytes(), usize::MAX);
        assert!(rc < 0 && rc != EPANIC, "recursion: {rc}");
        std::fs::write(folder.path().join("tokenizer.json"), "[".repeat(n)).unwrap();
        assert!(Lib::load(folder.path(), "{}").is_err_and(|(rc, _)| rc < 0 && rc != EPANIC));
    });
}

/// Python's json.loads: of what it takes, the same, or refused.
#[test]
fn odd_json_is_refused_or_read_as_python_reads_it() {
    let folder = Folder::new("odd", &train("bytes"), Some("{% for m in messages %}{{ m|tojson }}{% endfor %}"));
    let t = Lib::load(folder.path(), "{\"raw\": true, \"drop_none\": false, \"alias_reasoning\": false}").unwrap();
    let read = |v: &[u8]| {
        let body = [b"{\"messages\":[{\"role\":\"user\",\"v\":", v, b"}]}"].concat();
        match t.render(&body) {
            (0, text) => Some(String::from_utf8(text).unwrap().strip_prefix("{\"role\": \"user\", \"v\": ").unwrap().strip_suffix('}').unwrap().to_string()),
            (rc, _) => {
                assert!(rc < 0 && rc != EPANIC);
                None
            }
        }
    };
    // refused: a lone surrogate, no UTF-8, an integer beyond 18 digits, what only Python's reader takes
    for v in [
        &b"\"\\ud800\""[..], b"\"\\udc00\\ud800\"", b"\"\\ud800x\"", b"\"\xff\"", b"\"\xed\xa0\x80\"", b"\"\xc0\x80\"", b"12345678901234567890", b"-12345678901234567890",
        b"1234567890123456789", b"[99999999999999999999999]", b"{\"a\":12345678901234567890}", b"NaN", b"Infinity", b"-Infinity", b"1e400", b"\"\n\"", b"\"\x00\"", b"01", b"+1",
        b".5", b"1.", b"'a'", b"[1,]", b"{\"a\":1,}", b"\"\\x41\"", b"nul", b"", b"1 2", b"/**/1", b"-0", b"[-0]", b"-0 ",
    ] {
        assert_eq!(read(v), None, "{}", String::from_utf8_lossy(v));
    }
    for (v, want) in [
        ("123456789012345678", "123456789012345678"), ("-123456789012345678", "-123456789012345678"), ("0", "0"), ("-0.0", "-0.0"), ("1e5", "100000.0"), ("1E+2", "100.0"),
        ("1.0", "1.0"), ("1e16", "1e+16"), ("1e-7", "1e-07"), ("0.1", "0.1"), ("5e-324", "5e-324"), ("1e-400", "0.0"),
        ("1.7976931348623157e308", "1.7976931348623157e+308"), ("{\"a\":1,\"b\":2,\"a\":3}", "{\"a\": 3, \"b\": 2}"), ("{\"\":{}}", "{\"\": {}}"), ("\"\\ud83d\\ude00\"", "\"😀\""), ("\"\\u0000\\u007f\"", "\"\\u0000\u{7f}\""),
        ("\"\\/\\b\\f\"", "\"/\\b\\f\""), (" [ 1 , null ,true ] ", "[1, null, true]"), ("\"\u{2028}\"", "\"\u{2028}\""),
    ] {
        assert_eq!(read(v.as_bytes()).as_deref(), Some(want), "{v}");
    }
    for (v, want) in [("9007199254740993.0", "9007199254740992.0"), ("2.2250738585072011e-308", "2.225073858507201e-308"), ("0.30000000000000004", "0.30000000000000004")] {
        assert!(read(v.as_bytes()).is_none_or(|got| got == want), "{v}");
    }
    // floats to the last bit: repr() of the nearest one
    let (mut r, mut equal) = (Rng(17), 0);
    for _ in 0..2000 {
        let f = f64::from_bits(r.next());
        if f.is_finite() && f != 0.0 {
            let Some(shown) = read(format!("{f:e}").as_bytes()) else { continue }; // it would be read as another
            equal += 1;
            assert_eq!(shown.parse::<f64>().unwrap().to_bits(), f.to_bits(), "{f:e} became {shown}");
        }
    }
    assert!(equal > 1000, "{equal}");
}

/* ---- files and questions with bytes changed at random: KVR_OPS rounds from KVR_SEED on; a round's number is its seed ------------------- */

fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(usual)
}

fn mutate(r: &mut Rng, bytes: &mut Vec<u8>, pieces: &[&str]) {
    for _ in 0..1 + r.below(4) {
        let at = r.below(bytes.len() + 1);
        let to = (at + [1, 3, 20, 200][r.below(4)]).min(bytes.len());
        match r.below(7) {
            0 if at < bytes.len() => bytes[at] = r.next() as u8,
            1 if at < bytes.len() => bytes[at] ^= 1 << r.below(8),
            2 => drop(bytes.drain(at..to)),
            3 => {
                let copy = bytes[at..to].to_vec();
                let there = r.below(bytes.len() + 1);
                bytes.splice(there..there, copy);
            }
            4 => bytes.truncate(at.max(1)),
            _ => {
                let piece = r.pick(pieces).as_bytes().to_vec();
                bytes.splice(at..if r.chance(50) { to } else { at }, piece);
            }
        }
    }
}

/// Another value in the place of one of a JSON, so that it still parses.
fn mutate_value(r: &mut Rng, j: &mut Json) {
    let odd = [
        json!(null), json!(0), json!(-1), json!(4294967295u64), json!(1e300), json!(999999999999999999i64), json!(""), json!("\u{0}"), json!("(?i:"), json!("a{1000}{1000}"), json!([]), json!({}),
        json!([[]]), json!("▁"), json!(true), json!("Replace"), json!({"type": "Sequence", "normalizers": []}), json!({"String": ""}), json!({"Regex": "(a*)*b"}), json!("\u{10ffff}"),
    ];
    let n = match j {
        Json::Array(a) => a.len(),
        Json::Object(o) => o.len(),
        _ => 0,
    };
    if n == 0 || r.chance(12) {
        *j = odd[r.below(odd.len())].clone();
        return;
    }
    let i = r.below(n);
    match j {
        Json::Array(a) if r.chance(10) => drop(a.remove(i)),
        Json::Array(a) => mutate_value(r, &mut a[i]),
        Json::Object(o) => {
            let name = o.keys().nth(i).unwrap().clone();
            match r.below(12) {
                0 => drop(o.shift_remove(&name)),
                1 => drop(o.insert("type".into(), odd[r.below(odd.len())].clone())),
                _ => mutate_value(r, &mut o[&name]),
            }
        }
        _ => {}
    }
}

const JSON_PIECES: &[&str] = &[
    "\"", "\\", "{", "}", "[", "]", ",", ":", "null", "true", "-1", "1e999", "99999999999999999999", "\\ud800", "\u{0}", "\"role\"", "\"content\"", "\"messages\":[]", "[[[[[[[[", "\"tools\":", "{\"a\":", "\"tool_calls\":[{}]",
    "\"continue_final_message\":true", "\"documents\":[1]", "\"chat_template_kwargs\":{\"messages\":1}", "\"prompt\":\"x\"", "\u{feff}",
];
const JINJA_PIECES: &[&str] = &[
    "{{", "}}", "{%", "%}", "{#", "#}", "{%-", "-%}", "{% raw %}", "{% endraw %}", "{% for x in y %}", "{% endfor %}", "{% if a %}", "{% elif b %}", "{% else %}", "{% endif %}", "{% macro m(a, b=1) %}", "{% endmacro %}",
    "{{ m(m) }}", "{% set x = x ~ x %}", "{% generation %}", "{% endgeneration %}", "|tojson(indent=99)", "|int", "|abs", "|round(400)", "|indent(99)", "[::-1]", "[-9:9:0]", "is divisibleby 0", "// 0", "% 0", "'a' * 99", "'\\ud800'",
    "loop.cycle()", "namespace()", "range(9)", "messages|map('first')", "|batch(0)", "|join(attribute='a')", ".format(1)", "'{:99}'", "|dictsort(by='q')", "é😀", "\u{0}", "9223372036854775807", "-9223372036854775808", "** 99", "caller()", "|replace('', 'x')",
    "|first", "|last", "|sum", "|unique|list", "|title", ".split('')", ".splitlines(1)", "strftime_now('%Q%')", "|float", "1e400", "|selectattr('a', 'gt')", "|string|list|length",
];

#[test]
fn changed_questions_and_folders_are_answered_or_refused() {
    let (seed, rounds) = (number("KVR_SEED", 1), number("KVR_OPS", 400));
    let tokenizers: Vec<Json> = ["bytes", "meta", "unigram", "wordpiece"].iter().map(|k| train(k)).collect();
    let config = json!({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "extra_special_tokens": {"x": "<s>"}, "chat_template": [{"name": "default", "template": TEMPLATE}, {"name": "tool_use", "template": "{{ tools }}"}]});
    let folder = Folder::new("fuzz", &tokenizers[0], Some(TEMPLATE));
    let whole = Lib::load(folder.path(), "{}").unwrap();
    let (mut loaded, mut answered, mut panics) = (0, 0, 0);
    for round in seed..seed + rounds {
        let mut r = Rng(round);
        let mut file = tokenizers[r.below(4)].clone();
        let mut files = [file.to_string().into_bytes(), config.to_string().into_bytes(), TEMPLATE.as_bytes().to_vec()];
        match r.below(6) {
            0 => mutate(&mut r, &mut files[0], JSON_PIECES),
            1 | 2 => {
                mutate_value(&mut r, &mut file);
                files[0] = file.to_string().into_bytes();
            }
            3 => mutate(&mut r, &mut files[1], JSON_PIECES),
            _ => mutate(&mut r, &mut files[2], JINJA_PIECES),
        }
        let with_template = r.chance(70);
        for (name, bytes) in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"].iter().zip(&files).take(if with_template { 3 } else { 2 }) {
            std::fs::write(folder.path().join(name), bytes).unwrap();
        }
        if !with_template {
            let _ = std::fs::remove_file(folder.path().join("chat_template.jinja"));
        }
        let t = on_a_small_stack(|| Lib::load(folder.path(), if round % 3 > 0 { "{\"cache_bytes\": 65536, \"fast\": false}" } else { "{\"cache_bytes\": 65536}" }));
        match &t {
            Ok(_) => loaded += 1,
            Err((rc, why)) => {
                assert!(*rc < 0 && !why.is_empty(), "seed {round}: {rc} {why}");
                panics += usize::from(*rc == EPANIC);
            }
        }
        for (t, n) in t.as_ref().ok().into_iter().map(|t| (t, 3)).chain([(&whole, 5)]) {
            for _ in 0..n {
                let mut body = chat().to_string().into_bytes();
                if r.chance(60) {
                    let mut j = chat();
                    mutate_value(&mut r, &mut j);
                    body = j.to_string().into_bytes();
                } else if r.chance(60) {
                    mutate(&mut r, &mut body, JSON_PIECES);
                }
                let inline_max = if r.chance(30) { 0 } else { usize::MAX };
                let [first, again, plain] = on_a_small_stack(|| [t.ask(&body, inline_max), t.ask(&body, inline_max), t.plain(&body)]);
                assert_ne!(first.0, EPANIC, "seed {round}: a question panics: {}", String::from_utf8_lossy(&body));
                assert_eq!(first, again, "seed {round}: another answer the second time");
                assert_eq!(first, plain, "seed {round}: cached and plain differ");
                answered += usize::from(first.0 == 0);
            }
        }
    }
    println!("{rounds} rounds from {seed} on: {loaded} folders loaded, {panics} panics while loading, {answered} questions answered");
    assert!(loaded > rounds as usize / 8 && answered > rounds as usize / 2);
}

#[test]
fn a_job_that_is_dropped_is_freed() {
    let folder = Folder::new("dropped", &train("bytes"), Some(TEMPLATE));
    let t = Lib::load(folder.path(), "{}").unwrap();
    let body = chat().to_string();
    let mut job = std::ptr::null_mut();
    let (rc, _) = taken(|b| unsafe { kvr_tok_ask(t.0, body.as_ptr().cast(), body.len(), 0, &mut job, b) });
    assert_eq!(rc, 1);
    unsafe { kvr_tok_drop(job) };
    assert_eq!(t.ask(body.as_bytes(), 0), t.plain(body.as_bytes()));
}
