/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work that would hold a loop up, done on libuv's pool of threads: reading a large body, say. Each loop has one queue, of which one
 * job runs at a time while the others wait in order, so what jobs need of memory is bounded by one of them for each loop, and
 * name look-ups, which use the same pool, find threads free (kvr_jobs_reserve_threads).
 *
 * Threads: a queue and its jobs belong to their loop's thread; only `run` is called on another.
 */
#ifndef KVR_NET_JOBS_H
#define KVR_NET_JOBS_H

#include <stdbool.h>
#include <stddef.h>
#include <uv.h>

/* Bodies of more bytes than this are worth a thread: below it reading one takes less than a millisecond. */
enum { KVR_JOB_BYTES = 256 << 10 };

struct kvr_job;

/* Zero-initialize. */
struct kvr_jobs {
    struct kvr_job *first, **tail; /* first: runs */
    size_t n;                      /* that run or wait */
};

/* Zero-initialize; in the memory of whoever wants it done, which must stay until `over`. */
struct kvr_job {
    uv_work_t work;
    struct kvr_jobs *jobs;
    struct kvr_job *next;
    uv_loop_t *loop;
    void (*run)(struct kvr_job *job);                 /* on a thread of the pool */
    void (*over)(struct kvr_job *job, bool given_up); /* on the loop, once; given_up: `run` may not have been called */
    bool given_up;
};

/* Before the first loop runs: enough threads that jobs of so many loops leave some to others. */
void kvr_jobs_reserve_threads(size_t loops);
/* Never calls back before it returns. */
void kvr_job_start(struct kvr_jobs *jobs, uv_loop_t *loop, struct kvr_job *job);
/* Nobody waits for it any more. `over` is called all the same: at once when it has not begun to run, else when it has ended. */
void kvr_job_give_up(struct kvr_job *job);

#endif
