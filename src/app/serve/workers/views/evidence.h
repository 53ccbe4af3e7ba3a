/* SPDX-License-Identifier: Apache-2.0 */
/* What the answers of engines prove for and against our views of their caches: evidence.c. */
#ifndef KVR_SERVE_EVIDENCE_H
#define KVR_SERVE_EVIDENCE_H

#include "app/serve/workers/table/worker.h"
#include "wire/openai.h"

struct kvr_prom_page;

struct evidence_prompt { /* a prompt that is about to be sent to a rank; borrowed */
    struct partition *partition;
    struct kvr_worker worker;
    const uint32_t *tokens;
    size_t tokens_n;
    const char *lora, *salt;
    size_t lora_len, salt_len;
    uint32_t view_blocks; /* what the view held of it on the device when the rank was chosen */
    uint32_t all_blocks;  /* with what lower tiers had, as far as the rank was trusted */
    bool trusted;         /* and whether it was trusted */
    bool understood;      /* every member of its request (struct kvr_prompt_members, as_evidence) */
    bool asked;           /* its tokens come from an engine's tokenizer */
    const char *made_for; /* they were made here, for that model; NULL: they were not */
};

struct evidence_answer {
    int status;
    bool whole, has_error;
    struct kvr_usage usage; /* has_cached: how much was cached is known, though it may not have been said */
};

struct evidence_check;
struct evidence *evidence_create(void);
void evidence_destroy(struct evidence *e);
/* What will be looked at when it is answered; NULL: nothing. Any data loop, after the choice and before it is sent. */
struct evidence_check *evidence_begin(struct workers *ws, const struct evidence_prompt *a);
/* The answer has ended. Takes the check; NULL is fine. */
void evidence_answered(struct workers *ws, struct evidence_check *c, const struct evidence_answer *a);
/* The ingest thread: an event came; a view was dropped. */
void evidence_event(struct workers *ws, const struct kvr_event *ev);
void evidence_reset(struct workers *ws, struct kvr_worker worker);
void evidence_tick(struct workers *ws); /* main loop */
/* An answer of a rank whose view is whole had more cached than all tiers were said to have. Any thread. */
void evidence_untold(struct workers *ws, struct kvr_worker worker);
void evidence_forget(struct workers *ws, const struct worker *w);
/* A member `evidence`: how much there was of a rank. */
void evidence_write(struct workers *ws, struct kvr_buf *b, struct kvr_worker worker);
void evidence_metrics(struct workers *ws, struct kvr_prom_page *out);

#endif
