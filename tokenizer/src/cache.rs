// SPDX-License-Identifier: Apache-2.0
//! Ids of segments by content. Bounded in bytes; what was not used since the hand came by goes first (second chance).
//!
//! The key is a 128-bit hash with a random seed, checked with the segment's length: XXH3 is not cryptographic, so its seed is kept out of reach,
//! and a collision (one in 2^128 for content that was not made for it) would misroute a prompt, which the engine's usage shows.
//!
//! Threads: any; a shard has a lock, under which nothing is hashed or copied but a reference.
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use xxhash_rust::xxh3::xxh3_128_with_seed;

const SHARDS: usize = 16;
/// Of an entry beside its ids: its place in the table (which is half full at worst) and in the queue, the head of its memory.
const OVERHEAD: usize = 160;

struct Entry {
    ids: Arc<[u32]>,
    len: u32,
    used: bool,
}

#[derive(Default)]
struct Shard {
    map: HashMap<u128, Entry, Keyed>,
    queue: VecDeque<u128>,
    bytes: usize,
}

pub struct Key {
    hash: u128,
    len: u32,
}

pub struct Cache {
    shards: Vec<Mutex<Shard>>,
    shard_max: usize,
    seed: u64,
    pub hits: AtomicU64,
    pub misses: AtomicU64,
    pub too_large: AtomicU64,
}

impl Cache {
    pub fn new(bytes_max: usize) -> Cache {
        Cache {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            shard_max: bytes_max / SHARDS,
            seed: random(),
            hits: 0.into(),
            misses: 0.into(),
            too_large: 0.into(),
        }
    }

    /// `first`: it begins the text.
    pub fn key(&self, segment: &str, first: bool) -> Key {
        let hash = xxh3_128_with_seed(segment.as_bytes(), self.seed ^ u64::from(first));
        Key { hash, len: segment.len().min(u32::MAX as usize) as u32 }
    }

    fn shard(&self, key: &Key) -> MutexGuard<'_, Shard> {
        // what a panic left behind is a shard whose count of bytes is a bit off at worst
        self.shards[(key.hash >> 64) as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn get(&self, key: &Key) -> Option<Arc<[u32]>> {
        let mut s = self.shard(key);
        let e = s.map.get_mut(&key.hash).filter(|e| e.len == key.len)?;
        e.used = true;
        Some(e.ids.clone())
    }

    pub fn put(&self, key: &Key, ids: Arc<[u32]>) {
        let size = OVERHEAD + 4 * ids.len();
        if size > self.shard_max / 4 {
            self.too_large.fetch_add(1, Relaxed);
            return;
        }
        let mut s = self.shard(key);
        if s.map.contains_key(&key.hash) {
            return;
        }
        s.make_room(size, self.shard_max);
        s.map.insert(key.hash, Entry { ids, len: key.len, used: false });
        s.queue.push_back(key.hash);
        s.bytes += size;
    }

    fn sum(&self, of: impl Fn(&Shard) -> usize) -> usize {
        self.shards.iter().map(|s| of(&s.lock().unwrap_or_else(PoisonError::into_inner))).sum()
    }
    pub fn bytes(&self) -> usize {
        self.sum(|s| s.bytes)
    }
    pub fn entries(&self) -> usize {
        self.sum(|s| s.map.len())
    }
}

impl Shard {
    fn make_room(&mut self, size: usize, max: usize) {
        while self.bytes + size > max {
            let Some(old) = self.queue.pop_front() else { return };
            let Some(e) = self.map.get_mut(&old) else { continue };
            if std::mem::take(&mut e.used) {
                self.queue.push_back(old);
            } else {
                self.bytes -= OVERHEAD + 4 * e.ids.len();
                self.map.remove(&old);
            }
        }
    }
}

fn random() -> u64 {
    let mut seed = [0u8; 8];
    // SAFETY: the buffer has 8 bytes.
    unsafe { libc::getrandom(seed.as_mut_ptr().cast(), seed.len(), 0) };
    u64::from_ne_bytes(seed)
}

/// Keys are hashes already.
#[derive(Default, Clone)]
struct Keyed;
struct Low(u64);
impl BuildHasher for Keyed {
    type Hasher = Low;
    fn build_hasher(&self) -> Low {
        Low(0)
    }
}
impl Hasher for Low {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for b in bytes.iter().take(8) {
            self.0 = self.0 << 8 | u64::from(*b);
        }
    }
    fn write_u128(&mut self, i: u128) {
        self.0 = i as u64;
    }
}
