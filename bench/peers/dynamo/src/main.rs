// SPDX-License-Identifier: Apache-2.0
//! Dynamo's indexes (crate dynamo-kv-router) on a workload file: bench-dynamo compressed|positional FILE [memory]
//!
//! Events go through ThreadPoolIndexer with one event thread: the structures take events only from their worker loop.
//! They are converted before and queued in one go, so the queue is never empty and its cost is a few per cent.
#[path = "../../common/workload.rs"]
mod workload;

use dynamo_kv_router::indexer::{KvIndexerInterface, SyncIndexer, ThreadPoolIndexer};
use dynamo_kv_router::protocols::*;
use workload::{Op, Peer};

struct Dynamo<T: SyncIndexer> {
    pool: ThreadPoolIndexer<T>,
    runtime: tokio::runtime::Runtime,
}

impl<T: SyncIndexer> Peer for Dynamo<T> {
    type Query = Vec<LocalBlockHash>;
    type Batch = Vec<RouterEvent>;

    fn query(&self, locals: &[u64]) -> Self::Query {
        locals.iter().map(|&l| LocalBlockHash(l)).collect()
    }

    fn batch(&self, ops: &[Op]) -> Self::Batch {
        let mut out = Vec::new();
        for (i, o) in ops.iter().enumerate().filter(|(_, o)| o.kind != workload::QUERY) {
            let names = o.names.iter().map(|&n| ExternalSequenceBlockHash(n));
            let data = if o.kind == workload::STORED {
                let blocks = names.zip(&o.locals).map(|(block_hash, &l)| KvCacheStoredBlockData {
                    block_hash,
                    tokens_hash: LocalBlockHash(l),
                    mm_extra_info: None,
                });
                KvCacheEventData::Stored(KvCacheStoreData {
                    parent_hash: o.parent.map(ExternalSequenceBlockHash),
                    start_position: None,
                    blocks: blocks.collect(),
                })
            } else {
                KvCacheEventData::Removed(KvCacheRemoveData { block_hashes: names.collect() })
            };
            out.push(RouterEvent::new(o.worker as u64, KvCacheEvent { event_id: i as u64, data, dp_rank: 0 }));
        }
        out
    }

    fn apply(&self, batch: Self::Batch) {
        for e in batch {
            self.pool.enqueue_event(e).expect("offline");
        }
        self.runtime.block_on(self.pool.flush_and_wait()).expect("offline");
    }

    fn find(&self, q: &Self::Query) -> usize {
        self.pool.backend().find_matches(q, false).scores.len()
    }

    fn depths(&self, q: &Self::Query) -> Vec<(u32, u32)> {
        let scores = self.pool.backend().find_matches(q, false).scores;
        scores.iter().map(|(w, &d)| (w.worker_id as u32, d)).collect()
    }

    fn remove_all(&self, workers: u32) {
        self.runtime.block_on(async {
            for w in 0..workers as u64 {
                self.pool.remove_worker(w).await;
            }
            let _ = self.pool.flush_and_wait().await;
        });
    }
}

fn run<T: SyncIndexer>(path: &str, backend: T) {
    workload::run(path, || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let pool = runtime.block_on(async { ThreadPoolIndexer::new(backend, 1, 16) });
        Dynamo { pool, runtime }
    });
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    match args.get(1).map(String::as_str) {
        Some("compressed") => run(&args[2], dynamo_kv_router::ConcurrentRadixTreeCompressed::new()),
        Some("positional") => run(&args[2], dynamo_kv_router::PositionalIndexer::new(32)),
        _ => panic!("usage: bench-dynamo compressed|positional FILE"),
    }
}
