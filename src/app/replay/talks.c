/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conversations: each waits for its answer, then says the next turn, which begins with all that was said before. The times of arrival
 * are the first turns'.
 */
#include "app/replay/workload.h"

#include <math.h>
#include <string.h>

#include "wire/trace.h"

enum { ARRIVAL_MS = 20 };

struct session {
    uint32_t *tokens;
    size_t n, cap;
    uint64_t turns_left;
    bool busy;
};

struct talks {
    const struct replay_options *o;
    struct session *all;
    size_t next, finished;
    uint64_t generation;
    struct kvr_rng rng;
    double base_s; /* added to the times after a restart */
};

static void append(struct session *s, uint32_t token)
{
    KVR_ASSERT(kvr_grow(&s->tokens, &s->cap, s->n + 1, sizeof *s->tokens));
    s->tokens[s->n++] = token;
}

static uint32_t token_of(const struct replay_options *o, uint64_t hash)
{
    return o->prompts == REPLAY_TEXT ? 'a' + (uint32_t)(hash % 26) : kvr_trace_token(hash, (uint32_t)o->vocab);
}

static void begin(struct talks *all, size_t i)
{
    struct session *s = &all->all[i];
    uint64_t group = (i + all->generation) % all->o->groups;
    s->n = 0;
    s->turns_left = all->o->turns;
    for (uint64_t k = 0; k < all->o->system_tokens; k++) append(s, token_of(all->o, kvr_mix64(group * 1000003 + k + all->o->seed)));
}

enum work_state talks_next(struct talks *all, double now_s, struct traffic_request *out, uint64_t *wait_ms)
{
    const struct replay_options *o = all->o;
    double next_s = HUGE_VAL;
    if (all->finished == o->sessions) return WORK_FINISHED;
    for (size_t k = 0; k < o->sessions; k++) {
        size_t i = (all->next + k) % o->sessions;
        struct session *s = &all->all[i];
        double due = all->base_s + (double)i * ARRIVAL_MS / 1000 / o->speedup;
        if (s->busy || !s->turns_left) continue;
        if (s->turns_left == o->turns && due > now_s) {
            next_s = due;
            k += o->sessions - 1 - i; /* those behind it begin later still */
            continue;
        }
        uint64_t turn = o->turn_tokens / 2 + kvr_rng_below(&all->rng, (uint32_t)o->turn_tokens + 1);
        for (uint64_t t = 0; t < KVR_MAX(turn, (uint64_t)1); t++) append(s, token_of(o, kvr_rng_next(&all->rng)));
        *out = (struct traffic_request){
            .tokens = malloc(s->n * sizeof(uint32_t)), .tokens_n = s->n, .output = o->output_tokens, .session = (uint32_t)i};
        KVR_ASSERT(out->tokens != NULL);
        memcpy(out->tokens, s->tokens, s->n * sizeof(uint32_t));
        s->busy = true;
        s->turns_left--;
        all->next = (i + 1) % o->sessions;
        return WORK_READY;
    }
    if (next_s == HUGE_VAL) return WORK_BLOCKED;
    *wait_ms = (uint64_t)((next_s - now_s) * 1000) + 1;
    return WORK_LATER;
}

void talks_done(struct talks *all, const struct traffic_request *rq, const uint32_t *answer, size_t answer_n)
{
    struct session *s = &all->all[rq->session];
    for (size_t i = 0; i < answer_n; i++) append(s, answer[i]);
    s->busy = false;
    if (s->turns_left == 0) all->finished++;
}

void talks_restart(struct talks *all, double now_s)
{
    all->base_s = now_s;
    all->generation++;
    all->finished = 0;
    for (size_t i = 0; i < all->o->sessions; i++) begin(all, i);
}

struct talks *talks_create(const struct replay_options *o)
{
    struct talks *all = calloc(1, sizeof *all);
    KVR_ASSERT(all != NULL);
    all->o = o;
    all->rng.state = o->seed;
    all->all = calloc(o->sessions, sizeof *all->all);
    KVR_ASSERT(all->all != NULL);
    for (size_t i = 0; i < o->sessions; i++) begin(all, i);
    return all;
}

void talks_destroy(struct talks *all)
{
    if (!all) return;
    for (size_t i = 0; i < all->o->sessions; i++) free(all->all[i].tokens);
    free(all->all);
    free(all);
}
