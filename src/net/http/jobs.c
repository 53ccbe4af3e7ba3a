/* SPDX-License-Identifier: Apache-2.0 */
#include "net/http/jobs.h"

#include <stdio.h>

static void run(uv_work_t *w)
{
    struct kvr_job *j = w->data;
    j->run(j);
}

static void begin(struct kvr_job *j);

static void take_out(struct kvr_job *j)
{
    struct kvr_jobs *q = j->jobs;
    struct kvr_job **p = &q->first;
    while (*p != j) p = &(*p)->next;
    *p = j->next;
    if (!*p) q->tail = p;
    q->n--;
}

static void over(uv_work_t *w, int status)
{
    struct kvr_job *j = w->data;
    struct kvr_jobs *q = j->jobs;
    take_out(j);
    if (q->first) begin(q->first);
    j->over(j, j->given_up || status == UV_ECANCELED);
}

/* uv_queue_work refuses nothing but a missing function. */
static void begin(struct kvr_job *j)
{
    j->work.data = j;
    (void)uv_queue_work(j->loop, &j->work, run, over);
}

void kvr_jobs_reserve_threads(size_t loops)
{
    enum { OTHERS = 4 }; /* libuv's own default */
    char text[24];
    size_t len = sizeof text;
    if (uv_os_getenv("UV_THREADPOOL_SIZE", text, &len) != UV_ENOENT) return; /* somebody has thought about it */
    snprintf(text, sizeof text, "%zu", loops + OTHERS);
    (void)uv_os_setenv("UV_THREADPOOL_SIZE", text);
}

void kvr_job_start(struct kvr_jobs *q, uv_loop_t *loop, struct kvr_job *j)
{
    if (!q->first) q->tail = &q->first;
    j->jobs = q;
    j->loop = loop;
    j->next = NULL;
    j->given_up = false;
    *q->tail = j;
    q->tail = &j->next;
    if (++q->n == 1) begin(j);
}

void kvr_job_give_up(struct kvr_job *j)
{
    j->given_up = true;
    if (j->jobs->first == j) {
        (void)uv_cancel((uv_req_t *)&j->work); /* when the pool has not come to it; `over` is called either way */
        return;
    }
    take_out(j);
    j->over(j, true);
}
