// SPDX-License-Identifier: Apache-2.0
//! Reads a workload file (bench/index/workload.h), times a peer and prints the keys that bench_index prints.
use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

pub const QUERY: u32 = 0;
pub const STORED: u32 = 1;
#[allow(dead_code)]
pub const REMOVED: u32 = 2;

pub struct Op {
    pub kind: u32,
    pub parent: Option<u64>,
    pub worker: u32,
    pub names: Vec<u64>,
    pub locals: Vec<u64>,
}

pub struct Check {
    pub locals: Vec<u64>,
    pub holders: Vec<(u32, u32)>,
}

pub struct Workload {
    pub ops: Vec<Op>,
    pub workers: u32,
    pub pairs: u64,
    pub checks: Vec<Check>,
}

struct Source(std::io::BufReader<std::fs::File>);

impl Source {
    fn u32(&mut self) -> u32 {
        let mut b = [0; 4];
        self.0.read_exact(&mut b).expect("truncated workload");
        u32::from_le_bytes(b)
    }
    fn u64(&mut self) -> u64 {
        let mut b = [0; 8];
        self.0.read_exact(&mut b).expect("truncated workload");
        u64::from_le_bytes(b)
    }
    fn words(&mut self, n: u32) -> Vec<u64> {
        (0..n).map(|_| self.u64()).collect()
    }
}

pub fn read(path: &str) -> Workload {
    let file = std::fs::File::open(path).expect("cannot open the workload");
    let mut s = Source(std::io::BufReader::with_capacity(1 << 20, file));
    assert_eq!(s.u64(), 0x314c574b56524b, "not a workload");
    let (ops_n, workers, pairs, checks_n) = (s.u64(), s.u64() as u32, s.u64(), s.u64());
    let mut ops = Vec::with_capacity(ops_n as usize);
    for _ in 0..ops_n {
        let (kind, has_parent, worker, n, parent) = (s.u32(), s.u32(), s.u32(), s.u32(), s.u64());
        let names = if kind != QUERY { s.words(n) } else { Vec::new() };
        let locals = if kind != REMOVED { s.words(n) } else { Vec::new() };
        ops.push(Op { kind, parent: (has_parent != 0).then_some(parent), worker, names, locals });
    }
    let mut checks = Vec::with_capacity(checks_n as usize);
    for _ in 0..checks_n {
        let (n, h) = (s.u32(), s.u32());
        let locals = s.words(n);
        let holders = (0..h).map(|_| (s.u32(), s.u32())).collect();
        checks.push(Check { locals, holders });
    }
    Workload { ops, workers, pairs, checks }
}

pub fn say(key: &str, value: f64) {
    println!("{key} {value}");
}

pub fn rss() -> f64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<f64>().unwrap() * 4096.0
}

/// What a peer offers. `apply` gets a stretch of ops and returns when their effect is visible; it is called from one
/// thread at a time. `depths` gives (worker, depth) of all holders, in any order.
pub trait Peer: Sync {
    type Query: Sync + Send;
    type Batch: Send;
    fn query(&self, locals: &[u64]) -> Self::Query;
    fn batch(&self, ops: &[Op]) -> Self::Batch;
    fn apply(&self, batch: Self::Batch);
    fn find(&self, q: &Self::Query) -> usize;
    fn depths(&self, q: &Self::Query) -> Vec<(u32, u32)>;
    fn remove_all(&self, workers: u32);
}

fn blocks(ops: &[Op]) -> f64 {
    ops.iter().filter(|o| o.kind != QUERY).map(|o| o.names.len()).sum::<usize>() as f64
}

fn percentiles(what: &str, mut ns: Vec<u64>) {
    if ns.is_empty() {
        return;
    }
    ns.sort_unstable();
    for (name, p) in [("p50", 0.5), ("p99", 0.99), ("p999", 0.999)] {
        say(&format!("{what}_{name}_ns"), ns[((ns.len() - 1) as f64 * p) as usize] as f64);
    }
    say(&format!("{what}_max_ns"), ns[ns.len() - 1] as f64);
}

/// Only what the structure costs in memory: events are made a few at a time, so that what they leave behind in the
/// allocator is not taken for the structure's.
fn memory<P: Peer>(path: &str, make: impl FnOnce() -> P) {
    let w = read(path);
    let peer = make();
    let before = rss();
    for ops in w.ops.chunks(1024) {
        peer.apply(peer.batch(ops));
    }
    let full = rss();
    say("rss_bytes_per_pair", (full - before) / w.pairs as f64);
    let t = Instant::now();
    peer.remove_all(w.workers);
    say("remove_all_seconds", t.elapsed().as_secs_f64());
    std::thread::sleep(std::time::Duration::from_secs(1));
    say("remove_all_rss_left_percent", 100.0 * (rss() - before).max(0.0) / (full - before));
}

pub fn run<P: Peer>(path: &str, make: impl FnOnce() -> P) {
    if std::env::args().last().as_deref() == Some("memory") {
        return memory(path, make);
    }
    let w = read(path);
    let n = w.ops.len();
    let (half, three) = (n / 2, n * 3 / 4);
    let peer = make();
    let last: Vec<&Op> = w.ops[three..].iter().filter(|o| o.kind == QUERY).collect();
    let queries: Vec<P::Query> = last.iter().map(|o| peer.query(&o.locals)).collect();
    let fill = peer.batch(&w.ops[..half]);
    let steady = peer.batch(&w.ops[half..three]);
    let mixed = peer.batch(&w.ops[three..]);
    say("pairs", w.pairs as f64);
    let t = Instant::now();
    peer.apply(fill);
    say("fill_ns_per_block", t.elapsed().as_nanos() as f64 / blocks(&w.ops[..half]));
    let t = Instant::now();
    peer.apply(steady);
    say("apply_ns_per_block", t.elapsed().as_nanos() as f64 / blocks(&w.ops[half..three]));
    let done = AtomicBool::new(false);
    let mut ns = Vec::with_capacity(4_000_000);
    std::thread::scope(|s| {
        s.spawn(|| {
            let t = Instant::now();
            peer.apply(mixed);
            say("mixed_apply_ns_per_block", t.elapsed().as_nanos() as f64 / blocks(&w.ops[three..]));
            done.store(true, Ordering::Relaxed);
        });
        let mut i = 0;
        while !done.load(Ordering::Relaxed) && ns.len() < ns.capacity() {
            let t = Instant::now();
            std::hint::black_box(peer.find(&queries[i % queries.len()]));
            ns.push(t.elapsed().as_nanos() as u64);
            i += 1;
        }
    });
    percentiles("mixed", ns);
    let mut wrong = 0;
    for c in &w.checks {
        let mut got = peer.depths(&peer.query(&c.locals));
        let mut want = c.holders.clone();
        got.sort_unstable();
        want.sort_unstable();
        wrong += (got != want) as usize;
    }
    say("checked_queries", w.checks.len() as f64);
    say("wrong_answers", wrong as f64);
    let rounds = (queries.len() * 4).min(2_000_000);
    for q in queries.iter().take(20000) {
        std::hint::black_box(peer.find(q));
    }
    let t = Instant::now();
    for i in 0..rounds {
        std::hint::black_box(peer.find(&queries[i % queries.len()]));
    }
    say("query_ns", t.elapsed().as_nanos() as f64 / rounds as f64);
    let mut ns = Vec::with_capacity(rounds);
    for i in 0..rounds {
        let t = Instant::now();
        std::hint::black_box(peer.find(&queries[i % queries.len()]));
        ns.push(t.elapsed().as_nanos() as u64);
    }
    percentiles("query", ns);
}
