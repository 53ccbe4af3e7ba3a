/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of the room of tokenizers (tokenizers.h), which tokenizers.c and prober.c alone see: an entry for each model. The main loop's,
 * but for entries below `n`, whose model and tokenizer any thread may read, and what is atomic.
 */
#ifndef KVR_SERVE_TOKENIZERS_ROOM_H
#define KVR_SERVE_TOKENIZERS_ROOM_H

#include "app/serve/common/process.h"
#include "app/serve/tokenizers/tokenizers.h"
#include "app/serve/workers/table/worker.h"

struct prober;

struct tokenizer_entry {
    char model[MODEL_MAX];   /* set before others see the entry */
    struct model_entry from; /* of the worker whose folder it has, as /v1/models told it; base_root: of an adapter's base model */
    char base_root[256];
    uint64_t from_seen;      /* the last look at the worker table in which a worker told the same */
    bool has_other, read_it; /* another worker tells otherwise: `other`; the folder is to be read again */
    struct model_entry other;
    char other_base_root[256];
    struct kvr_tokenizer *tokenizer;
    struct kvr_map64 probed;       /* worker -> how often it had come up when it was asked */
    struct prober *prober;         /* asks one of them now; NULL: nobody is asked */
    size_t turn;                   /* whose it is */
    uint64_t probe_again_ms;       /* not before, when one did not answer */
    _Atomic uint64_t requests;     /* answered with ids made here, for --tokenizer-check */
    _Atomic uint64_t check_due_ms; /* the next check not before */
};

struct tokenizers {
    const struct serve_options *o;
    struct process *process;
    struct workers *workers;
    bool wanted; /* tokens may be made here */
    struct kvr_token_library library;
    struct kvr_token_pool *pool;
    bool open, failed; /* the library and its threads: opened when a model is found that has a folder, or never */
    bool full_said;
    uint64_t seen;  /* the version of the worker table whose models have been looked at */
    uint64_t looks; /* how often they were */
    _Atomic size_t n;
    _Atomic(struct tokenizer_entry *) only; /* of the one model that workers serve, but for adapters; NULL: there are several */
    struct tokenizer_entry entries[TOKENIZERS_MAX];
};

/* Asks a worker the built-in questions, one after the other; then kvr_tokenizer_probed, or _cannot_ask. Returns: NULL without memory. */
void prober_start(struct tokenizers *t, struct tokenizer_entry *e, const struct worker *w);
void prober_stop(struct prober *p);

#endif
