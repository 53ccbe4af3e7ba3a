/* SPDX-License-Identifier: Apache-2.0 */
/* A request that generates: its prompts go to an engine, the engine's tokens become an answer (answers.c writes it). */
#ifndef KVR_APP_MOCK_GENERATE_H
#define KVR_APP_MOCK_GENERATE_H

#include "app/mock/prompt.h"

/* One prompt and one answer to it: what the engine knows as a request. */
struct mock_sequence {
    struct mock_exchange *exchange;
    struct mock_request *request; /* NULL: not submitted, or it has ended */
    uint32_t index;               /* of the choice */
    const struct mock_prompt *prompt;
    struct kvr_buf text; /* generated */
    uint64_t generated, cached;
    struct mock_fetch *fetch; /* its KV comes from another engine; NULL: no, or it has come */
    struct mock_kept *kept;   /* its KV is kept for another one; NULL: no, or not yet */
    bool fetched;             /* `cached` is what the other one has told */
};

struct mock_exchange {
    struct kvr_http_conn *conn; /* NULL: broken off */
    struct mock_rank *rank;
    struct mock_ask ask;
    uint64_t id, salt;
    uint64_t number; /* of the next event of a stream of /v1/responses */
    uint64_t told_cached;
    struct mock_exchange *next, *prev; /* in mock->exchanges */
    bool head_sent, cached_known;
    uint64_t due_ms;                   /* begins late */
    struct mock_exchange *slow_next;   /* in mock->slow_first */
    struct mock_exchange *next_ending; /* in rank->ending */
    bool ending;
    uint32_t open; /* sequences that have not ended */
    uint32_t sequences_n;
    struct mock_sequence sequences[];
};

void mock_generate(struct mock *m, struct kvr_http_conn *c, enum mock_api api);
void mock_count_tokens(struct mock *m, struct kvr_http_conn *c);
void mock_render(struct mock *m, struct kvr_http_conn *c, enum mock_api api); /* render.c */
void mock_get_response(struct mock *m, struct kvr_http_conn *c, struct kvr_text id);
/* The client went away. */
void mock_gone(struct kvr_http_conn *c, void *ctx);
/* The engine's callbacks; ctx: the rank. */
void mock_on_token(void *ctx, struct mock_request *r, uint32_t token, uint64_t index, bool last);
void mock_on_host_event(void *ctx, const struct kvr_event *ev, const uint32_t *tokens, size_t n);
void mock_on_event(void *ctx, const struct kvr_event *ev, const uint32_t *tokens, size_t n, void *user);

void mock_submit(struct mock_exchange *x);
/* The engine is given one sequence. Returns: false: memory is short. */
bool mock_submit_sequence(struct mock_sequence *s);
/* A sequence has ended; with the last one its exchange does. */
void mock_sequence_over(struct mock_sequence *s);
/* The exchange ends with an error. Not within a pass's walk. */
void mock_break(struct mock_exchange *x, const struct mock_error *e);
/* Blocks are free again, or there is more to do: the rank goes on, if it rests. */
void mock_wake(struct mock_rank *r);

/* ---- legs.c ------------------------------------------------------------------------------------------- */

extern const struct mock_kv_hooks mock_transfer_hooks;
void mock_on_load(void *ctx, struct mock_request *r, size_t cached); /* of the engine, as above */
/* Returns: 0, with *e when the request is to be refused; -1: its connection has been reset. */
int mock_leg_check(struct mock_rank *rank, struct kvr_http_conn *c, struct mock_ask *a, struct mock_error *e);
/* The keeper is told that nobody will fetch. */
void mock_leg_refused(struct mock *m, const struct mock_ask *a);
/* Whether it will be submitted later. */
bool mock_leg_waits(struct mock_exchange *x);
void mock_leg_gone(struct mock_exchange *x);
/* Begins what the legs of its sequences need. Returns: false when memory is short. */
bool mock_leg_start(struct mock_exchange *x);
/* Whether the sequence is submitted by its leg, when the other side has come. */
bool mock_leg_holds_back(const struct mock_exchange *x);
void mock_leg_end(struct mock_sequence *s);
/* Within on_token, when it is the last one. Returns: whether the sequence is over. */
bool mock_leg_last_token(struct mock_sequence *s, struct mock_request *r);
void mock_abort_request(struct mock *m, struct kvr_http_conn *c);
bool mock_leg_ignores_abort(const struct mock_exchange *x);
void mock_leg_answered(struct mock *m, const struct mock_ask *a);

/* ---- answers.c ---------------------------------------------------------------------------------------- */

/* Appends what a stream has at its first token, at each token, and after the last one. */
void mock_put_stream_begin(struct kvr_buf *b, struct mock_exchange *x);
void mock_put_stream_token(struct kvr_buf *b, struct mock_exchange *x, const struct mock_sequence *s, uint32_t token, bool last);
void mock_put_stream_end(struct kvr_buf *b, struct mock_exchange *x);
/* What a stream has when it fails, to its end. */
void mock_put_stream_error(struct kvr_buf *b, struct mock_exchange *x, const struct mock_error *e);
/* A whole answer. */
void mock_put_answer(struct kvr_buf *b, struct mock_exchange *x);
/* An error's body, as the API has it. */
void mock_put_api_error(struct kvr_buf *b, enum mock_api api, const struct mock_error *e);

#endif
