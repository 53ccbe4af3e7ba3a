// SPDX-License-Identifier: Apache-2.0
//! Text to ids: `tokenizers` 0.2x, which engines run, and its next release, which is many times faster and used where both agree on the
//! probes below.
use crate::{hooks, unsupported, Res};
use serde_json::Value as Json;
use tk1::pipeline::{EncodeOptions, PipelineTokenizer};
use tokenizers::{AddedToken, Tokenizer};

pub struct Encoder {
    reference: Tokenizer,
    fast: Option<PipelineTokenizer>,
    pub why_slow: Option<String>,
    /// What add_special_tokens puts before and behind a text, if it is the same for two unlike texts.
    wrap: Option<(Vec<u32>, Vec<u32>)>,
}

impl Encoder {
    /// `file`: tokenizer.json. `fast`: whether the faster encoder may be used.
    pub fn new(file: &[u8], json: Json, fast: bool) -> Res<Encoder> {
        let mut reference = match Tokenizer::from_bytes(file) {
            Ok(t) => t,
            Err(e) => return unsupported("tokenizer", e.to_string()),
        };
        reference.with_padding(None);
        if let Err(e) = reference.with_truncation(None) {
            return unsupported("tokenizer", e.to_string()); // engines switch both off on every call
        }
        let mut e = Encoder { reference, fast: None, why_slow: Some("switched off".into()), wrap: None };
        e.wrap = e.find_wrap();
        if fast {
            match e.make_fast(json) {
                Ok(f) => (e.fast, e.why_slow) = (Some(f), None),
                Err(why) => e.why_slow = Some(why),
            }
        }
        Ok(e)
    }

    pub fn added(&self) -> Vec<AddedToken> {
        let mut by_id: Vec<_> = self.reference.get_added_tokens_decoder().into_iter().collect();
        by_id.sort_by_key(|(id, _)| *id);
        by_id.into_iter().map(|(_, a)| a).collect()
    }

    /// As engines do it.
    pub fn plain(&self, text: &str, specials: bool) -> Res<Vec<u32>> {
        match self.reference.encode_fast(text, specials) {
            Ok(e) => Ok(e.get_ids().to_vec()),
            Err(e) => unsupported("encoding", e.to_string()),
        }
    }

    pub fn id(&self, token: &str) -> Option<u32> {
        self.reference.token_to_id(token)
    }

    /// Without special tokens around it, by the fastest encoder that is known to agree.
    pub fn bare(&self, text: &str) -> Res<Vec<u32>> {
        match &self.fast {
            Some(f) => fast_ids(f, text).or_else(|e| unsupported("encoding", e)),
            None => self.plain(text, false),
        }
    }

    pub fn wrap(&self) -> Option<(&[u32], &[u32])> {
        self.wrap.as_ref().map(|(before, behind)| (before.as_slice(), behind.as_slice()))
    }

    fn find_wrap(&self) -> Option<(Vec<u32>, Vec<u32>)> {
        let around = |text: &str| {
            let (bare, full) = (self.plain(text, false).ok()?, self.plain(text, true).ok()?);
            let at = (0..=full.len().checked_sub(bare.len())?).find(|&i| full[i..i + bare.len()] == bare[..])?;
            Some((full[..at].to_vec(), full[at + bare.len()..].to_vec()))
        };
        let (a, b) = (around("The quick brown fox, 42.")?, around("x\ny z")?);
        (a == b).then_some(a)
    }

    fn make_fast(&self, mut json: Json) -> Result<PipelineTokenizer, String> {
        json["truncation"] = Json::Null;
        json["padding"] = Json::Null;
        let new = tk1::canonicalize_str(&json.to_string()).map_err(|e| e.to_string())?;
        let f = tk1::from_json(&new).map_err(|e| e.to_string())?;
        for p in probes(&self.added()) {
            if fast_ids(&f, &p)? != self.plain(&p, false).map_err(|e| e.to_string())? {
                return Err(format!("it differs from the reference on {p:?}"));
            }
        }
        Ok(f)
    }
}

fn fast_ids(f: &PipelineTokenizer, text: &str) -> Result<Vec<u32>, String> {
    let options = EncodeOptions { add_special_tokens: false, ..Default::default() };
    let mut ids = Vec::with_capacity(text.len() / 3 + 4);
    f.encode_into(text, &options, &mut ids).map_err(|e| e.to_string())?;
    if hooks::differs(text) {
        ids.pop();
    }
    Ok(ids.into_iter().map(|t| t.id()).collect())
}

/// Scripts, white space, numbers, code; and every added token between white space of all kinds.
fn probes(added: &[AddedToken]) -> Vec<String> {
    let bits = [
        "Hello world, don't I'LL we've 12345 3.14 1e-5",
        "naïve Straße Ünïcödé é ﬁ ½ Ⅷ",
        "東京 日本語 中文测试 한국어 ไทย हिन्दी",
        "Привет мир שלום مرحبا γειά",
        "😀 👩‍👩‍👧‍👦 🇩🇪 𝒳 \u{200b}\u{200d}\u{feff}",
        "def f(x):\n\treturn {'a': [1, 2]}  # ok\n\n\n",
        "a\r\nb\rc\u{2028}d\u{85}e\u{a0}f\u{3000}g\x1ch\x0b",
        "   lead  and   trail   ",
        "{\"k\": \"v\\n\", \"n\": null}",
        "http://x.y/z?q=%20&r=#t @u $9.99",
        "\n",
        " ",
        "",
        "x",
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        "\u{0}\u{1}\u{7f}\u{10ffff}",
    ];
    let mut out: Vec<String> = bits.iter().map(|s| s.to_string()).collect();
    out.push(bits.join("\n"));
    out.push(bits.join(" "));
    for (i, a) in added.iter().take(400).enumerate() {
        let (a, b, c) = (&a.content, bits[i % bits.len()], bits[(i * 7 + 3) % bits.len()]);
        out.push(format!("{b}{a}{c}"));
        out.push(format!("{a}\n{b} {a} {c}\n\n{a}"));
    }
    out
}
