/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Workloads for benchmarks of the index: events and queries of a simulated fleet, with the right answers.
 *
 * Every worker has a cache of `capacity` blocks, evicted least recently used first, the tail of a request before
 * its head. Requests prefill (query, then a stored event with what is missing), decode (stored events of one block,
 * interleaved over the fleet) and finish. They come from synthetic conversations with shared system prompts, or
 * from a trace in Mooncake's format ({"hash_ids": [...], "output_length": n} a line).
 *
 * File format, little endian: u64 magic, ops, workers, pairs, checks; per op: u32 kind, has_parent, worker, n,
 * u64 parent, n names unless a query, n local hashes unless a removal; per check: u32 n, holders, n local hashes,
 * holders times (u32 worker, u32 depth): the answer after all ops.
 */
#ifndef BENCH_WORKLOAD_H
#define BENCH_WORKLOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum op_kind { OP_QUERY, OP_STORED, OP_REMOVED };
#define WORKLOAD_MAGIC UINT64_C(0x314c574b56524b) /* "KRVKWL1" */

struct op {
    uint32_t kind, has_parent, worker, n;
    uint64_t parent;
    size_t names, locals; /* indices in words */
};

struct check {
    uint32_t n, holders_n;
    size_t locals;  /* index in words */
    size_t holders; /* index in holders: worker << 32 | depth */
};

struct workload {
    struct op *ops;
    size_t ops_n, ops_cap;
    uint64_t *words;
    size_t words_n, words_cap;
    struct check *checks;
    size_t checks_n;
    uint64_t *holders;
    size_t holders_n, holders_cap;
    uint32_t workers;
    uint64_t pairs; /* (block, holder) pairs at the end */
};

struct workload_config {
    uint32_t workers, capacity;
    uint32_t sessions, prompts, prompt_blocks, max_blocks;
    size_t requests;
    double user, output, turns, sticky; /* mean blocks of a turn and of an answer, mean turns, chance to stay */
    bool own_names;                     /* every engine names blocks in its own way */
    bool late_queries;                  /* only the last third of the requests asks: smaller files */
    const char *trace;                  /* NULL: synthetic */
    uint32_t expand, copies;            /* trace: blocks per hash id, disjoint copies of the trace */
    uint64_t seed;
    uint32_t checks;
};

/* "w1", "w2", ...: false when there is none of that name. workload_names() lists them. */
bool workload_preset(const char *name, struct workload_config *out);
const char *workload_names(void);

void workload_make(const struct workload_config *c, struct workload *out);
int workload_write(const struct workload *w, const char *path);
int workload_read(struct workload *w, const char *path);
void workload_free(struct workload *w);

#endif
