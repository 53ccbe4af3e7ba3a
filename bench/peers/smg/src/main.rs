// SPDX-License-Identifier: Apache-2.0
//! SMG's chain index (crate kv-index) on a workload file: bench-smg FILE [memory]
#[path = "../../common/workload.rs"]
mod workload;

use kv_index::{ChainBlockMap, ChainIndex, ContentHash, SequenceHash, StoredBlock};
use std::sync::Mutex;
use workload::{Op, Peer};

struct Smg {
    index: ChainIndex,
    ids: Vec<u32>,
    maps: Mutex<Vec<ChainBlockMap>>,
}

enum Event {
    Stored(u32, Option<u64>, Vec<StoredBlock>),
    Removed(u32, Vec<SequenceHash>),
}

impl Peer for Smg {
    type Query = Vec<ContentHash>;
    type Batch = Vec<Event>;

    fn query(&self, locals: &[u64]) -> Self::Query {
        locals.iter().map(|&l| ContentHash(l)).collect()
    }

    fn batch(&self, ops: &[Op]) -> Self::Batch {
        let mut out = Vec::new();
        for o in ops.iter().filter(|o| o.kind != workload::QUERY) {
            if o.kind == workload::STORED {
                let blocks = o.names.iter().zip(&o.locals);
                let blocks = blocks.map(|(&n, &l)| StoredBlock { seq_hash: SequenceHash(n), content_hash: ContentHash(l) });
                out.push(Event::Stored(o.worker, o.parent, blocks.collect()));
            } else {
                out.push(Event::Removed(o.worker, o.names.iter().map(|&n| SequenceHash(n)).collect()));
            }
        }
        out
    }

    fn apply(&self, batch: Self::Batch) {
        let mut maps = self.maps.lock().unwrap();
        for e in &batch {
            match e {
                Event::Stored(w, parent, blocks) => {
                    let id = self.ids[*w as usize];
                    let map = &mut maps[*w as usize];
                    self.index.apply_stored(id, blocks, parent.map(SequenceHash), map).expect("store failed");
                }
                Event::Removed(w, names) => self.index.apply_removed(self.ids[*w as usize], names, &mut maps[*w as usize]),
            }
        }
        drop(maps);
    }

    fn find(&self, q: &Self::Query) -> usize {
        self.index.find_matches(q, false).scores.len()
    }

    fn depths(&self, q: &Self::Query) -> Vec<(u32, u32)> {
        let worker = |id: u32| self.ids.iter().position(|&x| x == id).unwrap() as u32;
        self.index.find_matches(q, false).scores.iter().map(|(&id, &d)| (worker(id), d)).collect()
    }

    fn remove_all(&self, workers: u32) {
        let mut maps = self.maps.lock().unwrap();
        for w in 0..workers as usize {
            let map = std::mem::replace(&mut maps[w], ChainBlockMap::new());
            self.index.remove_worker(self.ids[w], map);
        }
    }
}

fn main() {
    let path = std::env::args().nth(1).expect("usage: bench-smg FILE");
    let workers = workload::read(&path).workers;
    workload::run(&path, || {
        let index = ChainIndex::with_max_workers(workers as usize + 1);
        let ids = (0..workers).map(|w| index.intern_worker(&w.to_string()).expect("too many workers")).collect();
        let maps = Mutex::new((0..workers).map(|_| ChainBlockMap::new()).collect());
        Smg { index, ids, maps }
    });
}
