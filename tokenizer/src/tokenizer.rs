// SPDX-License-Identifier: Apache-2.0
//! A model's tokenizer: questions to ids, segment by segment (cuts.rs says why that is exact).
use crate::cache::{Cache, Key};
use crate::cuts::Cuts;
use crate::encoder::Encoder;
use crate::folder::Folder;
use crate::{bad, unsupported, Engine, Profile, Prompt, Question, Res, Template};
use serde_json::{json, Map, Value as Json};
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

/// What does not depend on how an engine renders: shared by the variants of a tokenizer.
struct Base {
    encoder: Encoder,
    cuts: Cuts,
    cache: Option<Cache>,
    specials: Map<String, Json>,
}

pub struct Tokenizer {
    base: Arc<Base>,
    template: Option<Arc<Template>>,
    tool_template: Option<Arc<Template>>,
    no_template: String,
    profile: Profile,
}

/// What was found at once.
pub enum Asked {
    Ids(Vec<u32>),
    Later(Job),
}

/// Segments of which some are still to be encoded; on any thread.
pub struct Job {
    base: Arc<Base>,
    text: String,
    specials: bool,
    tail: Option<String>, // encoded by itself; Prompt has why
    found: Vec<(Key, Option<Arc<[u32]>>)>, // by segment
}

impl Tokenizer {
    pub fn load(dir: &Path, options: &Json) -> Res<Tokenizer> {
        let folder = Folder::read(dir)?;
        let fast = options.get("fast").and_then(Json::as_bool).unwrap_or(true);
        let bytes = options.get("cache_bytes").and_then(Json::as_u64).unwrap_or(64 << 20) as usize;
        let model = folder.json.get("model").and_then(|m| m.get("dropout")).map(|d| json!({ "dropout": d }));
        let encoder = Encoder::new(&folder.tokenizer, folder.json, fast)?;
        let cuts = Cuts::new(encoder.added().iter(), model.as_ref());
        let cache = (cuts.possible() && bytes > 0).then(|| Cache::new(bytes));
        let base = Arc::new(Base { encoder, cuts, cache, specials: folder.specials });
        let mut t = Tokenizer { base, template: None, tool_template: None, no_template: "the folder has none".into(), profile: Profile::from_json(options)? };
        let own = options.get("chat_template").and_then(Json::as_str).map(String::from);
        let tools = folder.tool_template.filter(|_| own.is_none());
        t.template = t.compile(own.or(folder.template));
        t.tool_template = t.compile(tools);
        Ok(t)
    }

    /// The same tokenizer for an engine that renders otherwise. `options`: of the profile.
    pub fn variant(&self, options: &Json) -> Res<Tokenizer> {
        Ok(Tokenizer {
            base: self.base.clone(),
            template: self.template.clone(),
            tool_template: self.tool_template.clone(),
            no_template: self.no_template.clone(),
            profile: Profile::from_json(options)?,
        })
    }

    fn compile(&mut self, source: Option<String>) -> Option<Arc<Template>> {
        match Template::new(&source?) {
            Ok(t) => Some(Arc::new(t)),
            Err(e) => {
                self.no_template = e.to_string();
                None
            }
        }
    }

    pub fn render(&self, chat: &Map<String, Json>) -> Res<Prompt> {
        let tools = chat.get("tools").is_some_and(|t| !t.is_null());
        if self.tool_template.is_some() && self.profile.engine == Engine::Sglang {
            return unsupported("template", "one of its own for tools");
        }
        let template = self.tool_template.as_ref().filter(|_| tools).or(self.template.as_ref());
        match template {
            Some(t) => t.render(chat, &self.profile, &self.base.specials),
            None => unsupported("no_template", self.no_template.clone()),
        }
    }

    /// The text of a question, and whether special tokens go around it.
    fn text_of(&self, question: Question) -> Res<(Prompt, bool)> {
        let sglang = self.profile.engine == Engine::Sglang;
        match question {
            Question::Text { specials: false, .. } if sglang => unsupported("add_special_tokens", "completions do not know it, /tokenize does"),
            Question::Text { text, specials } => Ok((Prompt { text, tail: None }, specials)),
            Question::Chat(chat) => {
                let specials = !sglang && crate::question::flag(&chat, "add_special_tokens")?.unwrap_or(false);
                Ok((self.render(&chat)?, specials))
            }
        }
    }

    /// Ids of a question's body, when no more than `inline_max` bytes of its text are still to be encoded, or what will find them.
    pub fn ask(&self, body: &[u8], inline_max: usize) -> Res<Asked> {
        let (prompt, specials) = self.text_of(Question::parse(body)?)?;
        let job = Job::new(self.base.clone(), prompt, specials);
        if job.missing() > inline_max {
            return Ok(Asked::Later(job));
        }
        job.finish().map(Asked::Ids)
    }

    /// Ids of a question's body without the cache and with the engines' own encoder.
    pub fn ask_plain(&self, body: &[u8]) -> Res<Vec<u32>> {
        let (prompt, specials) = self.text_of(Question::parse(body)?)?;
        let mut ids = self.base.encoder.plain(&prompt.text, specials)?;
        self.base.append(prompt.tail.as_deref(), &mut ids)?;
        Ok(ids)
    }

    pub fn encode(&self, text: &str, specials: bool) -> Res<Vec<u32>> {
        Job::new(self.base.clone(), Prompt { text: text.into(), tail: None }, specials).finish()
    }

    pub fn encode_plain(&self, text: &str, specials: bool) -> Res<Vec<u32>> {
        self.base.encoder.plain(text, specials)
    }

    /// Of the cache: hits, misses, too large, bytes, entries.
    pub fn figures(&self) -> [u64; 5] {
        self.base.cache.as_ref().map_or([0; 5], |c| {
            [c.hits.load(Relaxed), c.misses.load(Relaxed), c.too_large.load(Relaxed), c.bytes() as u64, c.entries() as u64]
        })
    }

    pub fn info(&self) -> Json {
        let template = self.template.as_ref();
        json!({
            "encoder": self.base.encoder.why_slow.as_deref().map_or("fast".into(), |w| format!("reference: {w}")),
            "segments": self.base.cuts.why_not.as_deref().unwrap_or("yes"),
            "template": match template {
                None => self.no_template.clone(),
                Some(t) if t.unverified.is_empty() => "yes".into(),
                Some(t) => format!("it uses {}", t.unverified.join(", ")),
            },
            "dates": self.template.iter().chain(&self.tool_template).any(|t| t.dates),
            "engine": format!("{:?}", self.profile.engine).to_lowercase(),
            "content_format": template.map(|t| format!("{:?}", t.content_format(&self.profile)).to_lowercase()),
        })
    }
}

impl Base {
    /// Ids of a text by itself, but for the token that begins texts.
    fn append(&self, tail: Option<&str>, ids: &mut Vec<u32>) -> Res<()> {
        let Some(tail) = tail else { return Ok(()) };
        let more = self.encoder.plain(tail, true)?;
        let begin = self.specials.get("bos_token").and_then(Json::as_str).and_then(|s| self.encoder.id(s));
        let skip = begin.is_some() && more.first().copied() == begin;
        ids.extend_from_slice(&more[usize::from(skip)..]);
        Ok(())
    }
}

impl Job {
    fn new(base: Arc<Base>, prompt: Prompt, specials: bool) -> Job {
        let mut job = Job { base, text: prompt.text, specials, tail: prompt.tail, found: vec![] };
        if let (Some(cache), true) = (&job.base.cache, !specials || job.base.encoder.wrap().is_some()) {
            let segments = job.base.cuts.segments(&job.text);
            job.found = segments.iter().enumerate().map(|(i, s)| cache.key(s, i == 0)).map(|k| (cache.get(&k), k)).map(|(ids, k)| (k, ids)).collect();
        }
        job
    }

    fn is_segmented(&self) -> bool {
        !self.found.is_empty()
    }

    /// Bytes of text that are still to be encoded.
    pub fn missing(&self) -> usize {
        let tail = self.tail.as_ref().map_or(0, String::len);
        if !self.is_segmented() {
            return self.text.len() + tail;
        }
        let new = self.base.cuts.segments(&self.text).into_iter().zip(&self.found).filter(|(_, (_, ids))| ids.is_none());
        new.map(|(s, _)| s.len()).sum::<usize>() + tail
    }

    pub fn finish(self) -> Res<Vec<u32>> {
        let mut ids = self.finish_text()?;
        self.base.append(self.tail.as_deref(), &mut ids)?;
        Ok(ids)
    }

    fn finish_text(&self) -> Res<Vec<u32>> {
        if !self.is_segmented() {
            return self.base.encoder.plain(&self.text, self.specials);
        }
        let Some(cache) = &self.base.cache else { return bad("cache", "") };
        let (before, behind) = self.base.encoder.wrap().filter(|_| self.specials).unwrap_or_default();
        let (mut hits, mut misses) = (0, 0);
        let mut out = Vec::with_capacity(self.text.len() / 3 + 16);
        out.extend_from_slice(before);
        for (segment, (key, found)) in self.base.cuts.segments(&self.text).into_iter().zip(&self.found) {
            if let Some(ids) = found {
                out.extend_from_slice(ids);
                hits += 1;
            } else {
                let ids = self.base.encoder.bare(segment)?;
                out.extend_from_slice(&ids);
                cache.put(key, ids.into());
                misses += 1;
            }
        }
        out.extend_from_slice(behind);
        cache.hits.fetch_add(hits, Relaxed);
        cache.misses.fetch_add(misses, Relaxed);
        Ok(out)
    }
}
