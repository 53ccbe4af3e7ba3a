/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of `doctor` share. Single-threaded, but for the ingest that an examination of an engine starts.
 *
 *   doctor.c    targets: what kind of program each is, what it says of itself
 *   ask.c       questions over HTTP
 *   engine.c    one engine, by its events and by prompts sent to it
 *   facts.c     what an engine says of its configuration
 *   tokens.c    what a model's folder makes of the built-in questions, beside what the engine makes of them; two engines beside each other
 *   findings.c  the list of what was found, as text or JSON
 */
#ifndef KVR_DOCTOR_STATE_H
#define KVR_DOCTOR_STATE_H

#include <uv.h>

#include "app/doctor/doctor.h"
#include "base/buf.h"
#include "net/http/fetch.h"
#include "token/profiles.h"
#include "wire/engine_facts.h"
#include "wire/json.h"

enum verdict { OK, PROBLEM, UNKNOWN };

struct finding {
    enum verdict verdict;
    char subject[96], check[40], detail[256], advice[384];
};

/* What an engine's lower tiers need so that its events tell of them. */
#define TIERS_ADVICE                                                                                                                       \
    "vLLM: \"enable_kv_cache_events\":true in --kv-events-config, \"self_describing_kv_events\":true in kv_connector_extra_config of "     \
    "--kv-transfer-config; a secondary tier also needs its own \"enable_kv_events\":true"

struct doctor {
    const struct doctor_options *o;
    const char *key; /* for the targets; NULL: none */
    uv_loop_t loop;
    struct kvr_http_client *http;
    struct kvr_json_parser *json;
    struct finding *findings;
    size_t findings_n, findings_cap;
    bool unusable; /* a target could not be examined */
    /* tokens.c */
    struct kvr_token_library tokenizer;
    bool has_tokenizer;           /* the library is open */
    char *folder;                 /* that was read last; NULL: none */
    struct kvr_profiles profiles; /* of it */
};

/* findings.c: prints each as it is made, or all at the end as JSON. advice "" when there is nothing to do. */
void found(struct doctor *d, enum verdict v, const char *subject, const char *check, const char *advice, const char *fmt, ...)
    __attribute__((format(printf, 6, 7)));
size_t findings_print(struct doctor *d); /* how many problems */

/* ask.c */
/* headers: formatted lines, or NULL. key: a bearer token, or NULL: --api-key is for the targets of the command line alone, as an
 * engine that a router lists may be anybody's. */
void fetch(struct doctor *d, const char *url, const char *body, const char *headers, const char *key, struct kvr_fetched *out);
/* The body as JSON, valid until the next parse; false: it is not. */
bool fetched_json(struct doctor *d, const struct kvr_fetched *f, struct kvr_json *out);

enum { RANKS_MAX = 64 };
struct engine_target {
    char subject[96]; /* "worker 3", or its URL */
    char url[256], model[128];
    char events[RANKS_MAX][128], replay[RANKS_MAX][128], recover[256]; /* by rank - dp_start; "" none */
    uint32_t block_size;                                               /* 0 until facts_learn: not given */
    uint32_t dp_start, dp_size;                                        /* dp_size 0: the same */
    uint32_t rank_base;                                                /* the engine counts its ranks from this one */
    bool names_rank;                                                   /* it has several, and takes the header that names one */
    bool ranks_unnamed;                                                /* it has several, and does not: prompts show nothing */
    bool asked_by_router;                                              /* which says itself what does not fit */
    uint64_t worker_id;
    char role[12], kv_protocol[24]; /* as its router says; "": it is no router's */
    char served[128];               /* a model that it has said it serves; "": it did not answer */
    bool index_elsewhere;           /* its router follows no events, or those of an event plane */
    char router[256];               /* admin URL of the router that knows it, or "" */
};
/* ask.c: the key for an engine; NULL: none */
const char *engine_key(const struct doctor *d, const struct engine_target *t);

/* tokens.c. open: returns 0, or -1, and what is wrong was said. check: of a model that the engine serves, which says its folder is `root`
 * ("": it does not). */
int tokens_open(struct doctor *d);
void tokens_check(struct doctor *d, const struct engine_target *t, const char *model, const char *root);
/* Two engines that go on from each other's prompts: do they make the same ids? */
void tokens_compare(struct doctor *d, const struct engine_target *prefill, const struct engine_target *decode);
void tokens_close(struct doctor *d);

/* engine.c: what was not given is filled in. */
void engine_examine(struct doctor *d, struct engine_target *t);

/* facts.c: asks the engine what it is configured with, fills in what was not given, and names what differs. model: one it serves. */
void facts_learn(struct doctor *d, struct engine_target *t, const char *model, struct kvr_engine_facts *f);
/* Advice for one of which no events endpoint is known, into out[cap]. */
void facts_events_advice(const struct engine_target *t, const struct kvr_engine_facts *f, char *out, size_t cap);

#endif
