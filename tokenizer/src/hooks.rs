// SPDX-License-Identifier: Apache-2.0
//! What tests need and nobody else may cause: with KVR_TOKENIZER_TEST in the process's environment a question with PANICS panics, and the fast
//! encoder's ids of a text with DIFFERS differ from the reference's.
use std::sync::LazyLock;

const PANICS: &[u8] = b"kvr-tok-panic-me";
const DIFFERS: &str = "kvr-fast-differs";

static ON: LazyLock<bool> = LazyLock::new(|| std::env::var_os("KVR_TOKENIZER_TEST").is_some());

pub fn panic_if_asked(question: &[u8]) {
    if *ON && question.windows(PANICS.len()).any(|w| w == PANICS) {
        panic!("asked for");
    }
}

pub fn differs(text: &str) -> bool {
    *ON && text.contains(DIFFERS)
}
