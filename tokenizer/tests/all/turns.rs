// SPDX-License-Identifier: Apache-2.0
//! What is kept from one question to the next: less to encode, the same ids by any thread, a bound on memory. All by counting; what takes
//! how long is printed by `figures` (cargo test --release -- --ignored --nocapture figures).
use crate::models::{train, words, Folder, Rng};
use kvr_tokenizer::{Asked, Tokenizer};
use serde_json::{json, Value as Json};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Instant;

/// Bytes that a thread has taken and not given back.
struct Counting;
thread_local!(static LIVE: Cell<isize> = const { Cell::new(0) });
// SAFETY: System does it all.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, l: Layout) -> *mut u8 {
        let _ = LIVE.try_with(|n| n.set(n.get() + l.size() as isize));
        System.alloc(l)
    }
    unsafe fn dealloc(&self, p: *mut u8, l: Layout) {
        let _ = LIVE.try_with(|n| n.set(n.get() - l.size() as isize));
        System.dealloc(p, l)
    }
}
#[global_allocator]
static COUNTING: Counting = Counting;

const TEMPLATE: &str = "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

fn turn(r: &mut Rng, messages: &mut Vec<Json>, n: usize) {
    messages.push(json!({"role": "user", "content": words(r, n)}));
    messages.push(json!({"role": "assistant", "content": words(r, n)}));
}

fn body(messages: &[Json]) -> Vec<u8> {
    json!({ "messages": messages }).to_string().into_bytes()
}

fn ids(t: &Tokenizer, body: &[u8]) -> Vec<u32> {
    match t.ask(body, usize::MAX).unwrap() {
        Asked::Ids(ids) => ids,
        Asked::Later(_) => unreachable!("nothing is too long for the caller"),
    }
}

/// Bytes of a question's text that are still to be encoded.
fn missing(t: &Tokenizer, body: &[u8]) -> usize {
    match t.ask(body, 0).unwrap() {
        Asked::Ids(_) => 0,
        Asked::Later(job) => job.missing(),
    }
}

#[test]
fn of_a_new_turn_a_fifth_is_encoded_at_most() {
    let folder = Folder::new("turn", &train("bytes"), Some(TEMPLATE));
    let t = Tokenizer::load(folder.path(), &Json::Null).unwrap();
    let (mut r, mut messages) = (Rng(2), vec![json!({"role": "system", "content": "Be brief."})]);
    for n in 1..=20 {
        messages.push(json!({"role": "user", "content": words(&mut r, 60)}));
        let b = body(&messages);
        let (text, left) = (messages.iter().map(|m| m["content"].as_str().unwrap().len()).sum::<usize>(), missing(&t, &b));
        assert!(left > 0 && (n < 20 || left * 5 <= text), "turn {n}: {left} of {text} bytes"); // of turn 1 all
        assert_eq!(ids(&t, &b), t.ask_plain(&b).unwrap());
        assert_eq!(missing(&t, &b), 0, "the same question again");
        messages.push(json!({"role": "assistant", "content": words(&mut r, 60)}));
    }
}

#[test]
fn threads_give_the_same_ids_cached_and_plain() {
    let folder = Folder::new("threads", &train("bytes"), Some(TEMPLATE));
    let t = Tokenizer::load(folder.path(), &json!({"cache_bytes": 65_536})).unwrap();
    let mut r = Rng(5);
    let questions: Vec<Vec<u8>> = (0..50)
        .map(|i| match i % 3 {
            0 => json!({"prompt": format!("<s>{}<|eot|>{}", words(&mut r, 20), words(&mut r, 20))}).to_string().into_bytes(),
            _ => {
                let mut messages = vec![];
                (0..1 + i % 4).for_each(|_| turn(&mut r, &mut messages, 10));
                body(&messages)
            }
        })
        .collect();
    let want: Vec<Vec<u32>> = questions.iter().map(|q| t.ask_plain(q).unwrap()).collect();
    std::thread::scope(|s| {
        for k in 0..8 {
            let (t, questions, want) = (&t, &questions, &want);
            s.spawn(move || {
                for i in 0..2000 {
                    let at = (i * 7 + k * 11) % questions.len();
                    let got = match i % 4 {
                        0 => t.ask_plain(&questions[at]).unwrap(),
                        1 => match t.ask(&questions[at], 0).unwrap() {
                            Asked::Ids(ids) => ids,
                            Asked::Later(job) => job.finish().unwrap(),
                        },
                        _ => ids(t, &questions[at]),
                    };
                    assert_eq!(got, want[at]);
                }
            });
        }
    });
    let [hits, misses, ..] = t.figures();
    assert!(hits > 1000 && misses > 1000, "{hits} hits, {misses} misses: both are wanted"); // the cache is too small for all
}

const BOUND: u64 = 262_144;

/// `n` texts of two segments, of which the first was hardly ever seen before, while its words soon were.
fn churn(t: &Tokenizer, r: &mut Rng, n: usize) {
    for i in 0..n {
        let long = if i % 500 == 0 { 2000 } else { 6 };
        t.encode(&format!("<s>{}<|eot|>{}", words(r, long), r.below(50)), false).unwrap();
        let [.., bytes, entries] = t.figures();
        assert!(bytes <= BOUND && entries * 160 <= BOUND, "{bytes} bytes of {entries} entries");
    }
}

#[test]
fn the_cache_keeps_its_bound_and_memory_stays_as_it_is() {
    let folder = Folder::new("bound", &train("bytes"), None);
    let t = Tokenizer::load(folder.path(), &json!({ "cache_bytes": BOUND })).unwrap();
    churn(&t, &mut Rng(11), 8_000); // the encoder's own caches fill, too
    let before = LIVE.get();
    churn(&t, &mut Rng(12), 8_000);
    let grown = LIVE.get() - before;
    let [_, _, too_large, bytes, entries] = t.figures();
    assert!(too_large > 0 && entries > 500 && bytes > BOUND / 2, "{too_large} too large, {bytes} bytes of {entries}");
    assert!(grown < 100_000, "{grown} bytes more after as many segments again");
}

#[test]
fn an_entry_above_a_quarter_of_a_shard_is_not_kept() {
    let folder = Folder::new("quarter", &train("bytes"), None);
    let t = Tokenizer::load(folder.path(), &json!({ "cache_bytes": BOUND })).unwrap();
    let quarter = BOUND as usize / 16 / 4; // bytes, of which an entry's ids take four each
    let text = |ids: usize| "<s>".to_string() + &"<0x41".repeat(ids);
    let (mut kept, mut refused) = (0, usize::MAX);
    for n in (10..2000).step_by(10) {
        let s = text(n);
        let size = 4 * t.encode_plain(&s, false).unwrap().len();
        let [_, _, before, ..] = t.figures();
        t.encode(&s, false).unwrap();
        let [_, _, after, ..] = t.figures();
        if after > before {
            refused = refused.min(size);
        } else {
            kept = kept.max(size);
        }
    }
    assert!(kept < quarter && refused <= quarter && kept < refused && refused > quarter - 400, "{kept} kept, {refused} refused, of {quarter}");
}

fn rss() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// KVR_OPS segments; alone in its process: -- --ignored --nocapture --exact turns::memory_over_a_million_segments
#[test]
#[ignore = "takes minutes"]
fn memory_over_a_million_segments() {
    let n = std::env::var("KVR_OPS").ok().and_then(|v| v.parse().ok()).unwrap_or(1_000_000usize);
    let folder = Folder::new("million", &train("bytes"), None);
    let t = Tokenizer::load(folder.path(), &json!({ "cache_bytes": BOUND })).unwrap();
    let mut r = Rng(12);
    churn(&t, &mut r, n / 20);
    let first = rss();
    for tenth in 1..=10 {
        churn(&t, &mut r, n / 20);
        println!("{} segments: {} KiB", (tenth + 1) * n / 10, rss() / 1024);
    }
    assert!(rss() < first + (8 << 20), "{} bytes first, {} at the end", first, rss());
}

fn best<T>(n: usize, mut f: impl FnMut() -> T) -> f64 {
    (0..n).fold(f64::MAX, |least, _| {
        let from = Instant::now();
        std::hint::black_box(f());
        least.min(from.elapsed().as_secs_f64() * 1e3)
    })
}

#[test]
#[ignore = "measures"]
fn figures() {
    let folder = Folder::new("figures", &train("bytes"), Some(TEMPLATE));
    let t = Tokenizer::load(folder.path(), &Json::Null).unwrap();
    let (mut r, mut messages) = (Rng(3), vec![]);
    while body(&messages).len() < 32 << 10 {
        turn(&mut r, &mut messages, 40);
    }
    let b = body(&messages);
    let (plain, first) = (best(20, || t.ask_plain(&b)), best(1, || ids(&t, &b)));
    println!("a prompt of {} bytes, {} messages, {} ids: plain {plain:.3} ms, first {first:.3} ms, seen {:.3} ms", b.len(), messages.len(), ids(&t, &b).len(), best(200, || ids(&t, &b)));
    let mut chat = vec![];
    (0..20).for_each(|_| turn(&mut r, &mut chat, 60));
    let mut new = f64::MAX;
    let mut whole = f64::MAX;
    for _ in 0..50 {
        ids(&t, &body(&chat));
        let mut longer = chat.clone();
        longer.push(json!({"role": "user", "content": words(&mut r, 60)}));
        let b = body(&longer);
        new = new.min(best(1, || ids(&t, &b)));
        whole = whole.min(best(1, || t.ask_plain(&b)));
    }
    println!("a new turn of a chat of 20: {new:.3} ms, plain {whole:.3} ms, ratio {:.1}", whole / new);
}
