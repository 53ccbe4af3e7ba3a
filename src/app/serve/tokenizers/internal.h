/* SPDX-License-Identifier: Apache-2.0 */
/* What tokenizers.c and prober.c share. */
#ifndef KVR_SERVE_TOKENIZERS_INTERNAL_H
#define KVR_SERVE_TOKENIZERS_INTERNAL_H

#include "app/serve/state.h"
#include "app/serve/tokenizers/tokenizers.h"

struct prober;

struct tokenizer_entry {
    char model[MODEL_MAX];
    struct kvr_tokenizer *tokenizer;
    struct kvr_map64 probed;       /* worker -> how often it had come up when it was asked */
    struct prober *prober;         /* asks one of them now; NULL: nobody is asked */
    uint64_t probe_again_ms;       /* not before, when one did not answer */
    _Atomic uint64_t requests;     /* answered with ids made here, for --tokenizer-check */
    _Atomic uint64_t check_due_ms; /* the next check not before */
};

/* Asks a worker the built-in questions, one after the other; then kvr_tokenizer_probed, or _cannot_ask. Returns: NULL without memory. */
struct prober *prober_start(struct serve *s, struct tokenizer_entry *e, const struct worker *w);
void prober_stop(struct prober *p);

#endif
