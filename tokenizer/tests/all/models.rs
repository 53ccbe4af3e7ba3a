// SPDX-License-Identifier: Apache-2.0
//! Small tokenizers of every kind, trained here on random text, and made nasty.
use serde_json::{json, Value as Json};
use std::path::{Path, PathBuf};
use tokenizers::models::bpe::{BpeTrainerBuilder, BPE};
use tokenizers::models::unigram::{Unigram, UnigramTrainerBuilder};
use tokenizers::models::wordpiece::{WordPiece, WordPieceTrainerBuilder};
use tokenizers::models::TrainerWrapper;
use tokenizers::normalizers::{BertNormalizer, NormalizerWrapper, NFC, NFKC};
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::{AddedToken, Tokenizer};

/// A generator whose numbers depend on its seed alone (SplitMix64).
pub struct Rng(pub u64);
impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
    pub fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

const WORDS: &[&str] = &[
    "the", "of", "and", "router", "cache", "block", "token", "prefix", "naïve", "café", "Straße", "東京", "日本語", "한국어", "Привет", "мир", "שלום", "ไทย",
    "हिन्दी", "😀", "👩‍👩‍👧‍👦", "e\u{301}", "\u{200b}", "ﬁ", "½", "don't", "I'll", "x=1;", "for(i=0;i<n;i++)", "{\"a\":1}", "http://x.y/z?q=%20", "3.14159", "1234567", "$9.99",
    "snake_case", "CamelCase", "ALLCAPS", "▁x", "<", "|>", "<|im_end", "<0x41>",
];
const SPACES: &[&str] = &[" ", " ", " ", " ", " ", " ", "\n", "\n\n", "  ", "\t", "\r\n", "\u{3000}", "\u{a0}", "\u{1c}", "\u{85}", "   \n  ", "\u{2028}", "\n \n"];
pub const SPECIALS: &[&str] = &["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|eot|>", "[INST]", "[/INST]", "<think>", "</think>"];

pub fn words(r: &mut Rng, n: usize) -> String {
    let mut s = String::new();
    for _ in 0..n {
        s += r.pick(WORDS);
        s += r.pick(SPACES);
    }
    match r.below(10) {
        0..=4 => s.trim().into(),
        5 => format!("\n{s}"),
        _ => s,
    }
}

fn corpus() -> Vec<String> {
    let mut r = Rng(1);
    (0..400).map(|_| words(&mut r, 60)).collect()
}

fn specials() -> Vec<AddedToken> {
    SPECIALS.iter().map(|s| AddedToken::from(*s, true)).collect()
}

/// One of "bytes" (Llama 3, Qwen), "meta" (Llama 2, Mistral: prepend "first", byte fallback), "unigram", "wordpiece".
pub fn train(kind: &str) -> Json {
    let text = corpus();
    let t: Tokenizer = match kind {
        "bytes" => {
            let mut t = Tokenizer::new(BPE::default());
            t.with_pre_tokenizer(Some(ByteLevel::new(false, true, true)));
            let _ = t.with_normalizer(Some(NormalizerWrapper::NFC(NFC)));
            let alphabet = ByteLevel::alphabet().into_iter().collect();
            let mut trainer: TrainerWrapper = BpeTrainerBuilder::new().vocab_size(900).show_progress(false).initial_alphabet(alphabet).build().into();
            t.train(&mut trainer, text.iter()).map(|_| ()).unwrap();
            t
        }
        "meta" => {
            let fallback: Vec<AddedToken> = (0..256).map(|b| AddedToken::from(format!("<0x{b:02X}>"), true)).collect();
            let mut t = Tokenizer::new(BPE::builder().unk_token("<unk>".into()).fuse_unk(true).byte_fallback(true).build().unwrap());
            t.with_pre_tokenizer(Some(Metaspace::new('▁', PrependScheme::First, true)));
            let all = std::iter::once(AddedToken::from("<unk>", true)).chain(fallback).collect();
            let mut trainer: TrainerWrapper = BpeTrainerBuilder::new().vocab_size(1100).show_progress(false).special_tokens(all).build().into();
            t.train(&mut trainer, text.iter()).map(|_| ()).unwrap();
            t.with_pre_tokenizer(Some(Metaspace::new('▁', PrependScheme::First, false)));
            t
        }
        "unigram" => {
            let mut t = Tokenizer::new(Unigram::default());
            let _ = t.with_normalizer(Some(NormalizerWrapper::NFKC(NFKC)));
            t.with_pre_tokenizer(Some(Metaspace::new('▁', PrependScheme::Always, true)));
            let mut trainer: TrainerWrapper =
                UnigramTrainerBuilder::default().vocab_size(600).show_progress(false).unk_token(Some("<unk>".into())).special_tokens(vec![AddedToken::from("<unk>", true)]).build().unwrap().into();
            t.train(&mut trainer, text.iter()).map(|_| ()).unwrap();
            t
        }
        _ => {
            let mut t = Tokenizer::new(WordPiece::builder().unk_token("[UNK]".into()).build().unwrap());
            let _ = t.with_normalizer(Some(BertNormalizer::default()));
            t.with_pre_tokenizer(Some(BertPreTokenizer));
            let mut trainer: TrainerWrapper = WordPieceTrainerBuilder::new().vocab_size(700).show_progress(false).special_tokens(vec![AddedToken::from("[UNK]", true)]).build().into();
            t.train(&mut trainer, text.iter()).map(|_| ()).unwrap();
            t
        }
    };
    let mut t = t;
    let _ = t.add_special_tokens(specials());
    serde_json::from_str(&t.to_string(false).unwrap()).unwrap()
}

/// A folder with a tokenizer and a template; removed with the value.
pub struct Folder(pub PathBuf);
impl Folder {
    pub fn new(name: &str, tokenizer: &Json, template: Option<&str>) -> Folder {
        let dir = std::env::temp_dir().join(format!("kvr-tok-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("tokenizer.json"), tokenizer.to_string()).unwrap();
        std::fs::write(dir.join("tokenizer_config.json"), json!({"bos_token": "<s>", "eos_token": {"content": "</s>"}}).to_string()).unwrap();
        if let Some(t) = template {
            std::fs::write(dir.join("chat_template.jinja"), t).unwrap();
        }
        Folder(dir)
    }
    pub fn path(&self) -> &Path {
        &self.0
    }
}
impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
