// SPDX-License-Identifier: Apache-2.0
//! The C ABI (include/kvr_tokenizer.h): no panic crosses it, and every buffer is given back with kvr_tok_buf_free.
use crate::{bad, hooks, Asked, Fail, Job, Kind, Question, Res, Tokenizer};
use serde_json::Value as Json;
use std::ffi::{c_char, c_int, CStr};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::Path;
use std::sync::Once;

const ABI: u32 = 1;
const EPANIC: c_int = -4;

#[repr(C)]
pub struct Buf {
    data: *mut u8,
    len: usize, // bytes
    cap: usize,
}

unsafe fn give(out: *mut Buf, v: Vec<u8>) {
    let mut v = std::mem::ManuallyDrop::new(v);
    *out = Buf { data: v.as_mut_ptr(), len: v.len(), cap: v.capacity() };
}

fn words(ids: Vec<u32>) -> Vec<u8> {
    ids.iter().flat_map(|i| i.to_ne_bytes()).collect()
}

/// Runs `f`; its bytes, or why there are none, go into `out`.
unsafe fn call(out: *mut Buf, f: impl FnOnce() -> Res<Vec<u8>>) -> c_int {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(Ok(v)) => {
            give(out, v);
            0
        }
        Ok(Err(e)) => {
            give(out, e.to_string().into_bytes());
            code(&e)
        }
        Err(_) => {
            give(out, b"panic".to_vec());
            EPANIC
        }
    }
}

fn code(e: &Fail) -> c_int {
    match e.kind {
        Kind::Bad => -1,
        Kind::Unsupported => -2,
        Kind::Template => -3,
    }
}

unsafe fn bytes<'a>(p: *const c_char, n: usize) -> &'a [u8] {
    if n == 0 {
        return &[];
    }
    std::slice::from_raw_parts(p.cast(), n)
}

unsafe fn string<'a>(p: *const c_char) -> Res<&'a str> {
    CStr::from_ptr(p).to_str().or_else(|_| bad("options", "not UTF-8"))
}

unsafe fn options(p: *const c_char) -> Res<Json> {
    if p.is_null() {
        return Ok(Json::Null);
    }
    serde_json::from_str(string(p)?).or_else(|e| bad("options", e.to_string()))
}

#[no_mangle]
pub extern "C" fn kvr_tok_abi() -> u32 {
    ABI
}

/// # Safety
/// As in the header: `dir` and `options` end in NUL; `options` may be NULL.
#[no_mangle]
pub unsafe extern "C" fn kvr_tok_load(dir: *const c_char, opts: *const c_char, out: *mut *mut Tokenizer, err: *mut Buf) -> c_int {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| std::panic::set_hook(Box::new(|_| {}))); // a panic's text may quote a prompt
    call(err, || {
        *out = Box::into_raw(Box::new(Tokenizer::load(Path::new(string(dir)?), &options(opts)?)?));
        Ok(vec![])
    })
}

/// # Safety
/// As in the header.
#[no_mangle]
pub unsafe extern "C" fn kvr_tok_variant(t: *const Tokenizer, opts: *const c_char, out: *mut *mut Tokenizer, err: *mut Buf) -> c_int {
    call(err, || {
        *out = Box::into_raw(Box::new((*t).variant(&options(opts)?)?));
        Ok(vec![])
    })
}

/// # Safety
/// `t` came from kvr_tok_load or kvr_tok_variant and is used no more.
#[no_mangle]
pub unsafe extern "C" fn kvr_tok_free(t: *mut Tokenizer) {
    if !t.is_null() {
        drop(Box::from_raw(t));
    }
}

/// # Safety
/// As in the header.
#[no_mangle]
pub unsafe extern "C" fn kvr_tok_ask(t: *const Tokenizer, body: *const c_char, n: usize, inline_max: usize, job: *mut *mut Job, out: *mut Buf) -> c_int {
    let mut later = None;
    *job = std::ptr::null_mut();
    let rc = call(out, || {
        hooks::panic_if_asked(bytes(body, n));
        Ok(match (*t).ask(bytes(body, n), inline_max)? {
            Asked::Ids(ids) => words(ids),
            Asked::Later(j) => {
                later = Some(j);
                vec![]
            }
        })
    });
    match later {
        Some(j) if rc == 0 => {
            *job = Box::into_raw(Box::new(j));
            1
        }
        _ => rc,
    }
}

/// # Safety
/// `job` came from kvr_tok_ask and is used no more.
#[no_mangle]
pub unsafe extern "C" fn kvr_tok_finish(job: *mut Job, out: *mut Buf) -> c_int {
    let job = Box::from_raw(job);
    call(out, || Ok(words(job.finish()?)))
}

/// # Safety
/// `job` came from kvr_tok_ask and is used no more.
#[no_mangle]
pub unsafe extern "C" fn kvr_tok_drop(job: *mut Job) {
    if !job.is_null() {
        drop(Box::from_raw(job));
    }
}

/// # Safety
/// As in the header.
#[no_mangle]
pub unsafe extern "C" fn kvr_tok_plain(t: *const Tokenizer, body: *const c_char, n: usize, out: *mut Buf) -> c_int {
    call(out, || Ok(words((*t).ask_plain(bytes(body, n))?)))
}

/// # Safety
/// As in the header.
#[no_mangle]
pub unsafe extern "C" fn kvr_tok_render(t: *const Tokenizer, body: *const c_char, n: usize, out: *mut Buf) -> c_int {
    call(out, || match Question::parse(bytes(body, n))? {
        Question::Chat(chat) => Ok((*t).render(&chat)?.whole().into_bytes()),
        Question::Text { text, .. } => Ok(text.into_bytes()),
    })
}

/// # Safety
/// As in the header.
#[no_mangle]
pub unsafe extern "C" fn kvr_tok_info(t: *const Tokenizer, out: *mut Buf) -> c_int {
    call(out, || Ok((*t).info().to_string().into_bytes()))
}

#[repr(C)]
pub struct Figures {
    hits: u64,
    misses: u64,
    too_large: u64,
    bytes: u64,
    entries: u64,
}

/// # Safety
/// As in the header.
#[no_mangle]
pub unsafe extern "C" fn kvr_tok_figures(t: *const Tokenizer, out: *mut Figures) {
    let [hits, misses, too_large, bytes, entries] = (*t).figures();
    *out = Figures { hits, misses, too_large, bytes, entries };
}

/// # Safety
/// `b` was filled by this library.
#[no_mangle]
pub unsafe extern "C" fn kvr_tok_buf_free(b: *mut Buf) {
    if !b.is_null() && !(*b).data.is_null() {
        drop(Vec::from_raw_parts((*b).data, (*b).len, (*b).cap));
        *b = Buf { data: std::ptr::null_mut(), len: 0, cap: 0 };
    }
}
