/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Traffic: which requests come, and when. One generator for everything that needs some: simulations in virtual time and replays
 * against live endpoints see the same requests.
 *
 * Open loop: traffic_next gives arrivals in order of time, whatever has become of those before. Conversations go on:
 * traffic_follow gives the turn that comes some time after an answer and repeats what was said, the answer too.
 *
 * The same configuration gives the same requests. What a conversation says and how long it thinks depends on the seed, the
 * conversation and the turn alone, not on when an answer came: two policies see the same prompts.
 *
 * Lengths are in tokens, and uniform in mean * (1 - spread) .. mean * (1 + spread) unless the kind says otherwise.
 *
 * Threads: one at a time for each generator.
 */
#ifndef KVR_TRAFFIC_H
#define KVR_TRAFFIC_H

#include "base/base.h"

enum traffic_kind {
    TRAFFIC_CONVERSATIONS, /* turns that repeat what was said; a few system prompts; people think for an exponential time */
    TRAFFIC_AGENTS,        /* the same with many turns and one system prompt; tools take a uniform time */
    TRAFFIC_SHARED,        /* prefixes, popular ones more often (the k-th as 1/k), and something of one's own */
    TRAFFIC_HOT,           /* one prefix that most requests have, others that the rest has */
    TRAFFIC_SIBLINGS,      /* bursts at one moment with one new prefix */
    TRAFFIC_UNIFORM,       /* prompts that share nothing */
    TRAFFIC_TAIL,          /* lognormal lengths, nothing shared */
    TRAFFIC_LONG_TAIL,     /* Pareto lengths, nothing shared */
    TRAFFIC_MIXED,         /* conversations, uniform prompts, siblings and long prompts beside each other, each with its defaults */
    TRAFFIC_TRACE,         /* a file of rows (wire/trace.h) */
    TRAFFIC_MOONCAKE,      /* rows made up with the statistics of Mooncake's conversation trace */
    TRAFFIC_KINDS
};

/* Numbers that shape a kind; each kind has some of them (traffic_has). */
enum traffic_param {
    TRAFFIC_GROUPS,
    TRAFFIC_SYSTEM_TOKENS,
    TRAFFIC_FIRST_TOKENS,
    TRAFFIC_OWN_TOKENS,
    TRAFFIC_OWN_SPREAD,
    TRAFFIC_TURNS,
    TRAFFIC_THINK_S,
    TRAFFIC_THINK_SPREAD,
    TRAFFIC_HOT_TOKENS,
    TRAFFIC_HOT_SHARE,
    TRAFFIC_BURST,
    TRAFFIC_MEDIAN,
    TRAFFIC_SIGMA,
    TRAFFIC_EXPONENT,
    TRAFFIC_SHORTEST,
    TRAFFIC_LONGEST,
    TRAFFIC_OUTPUT,
    TRAFFIC_OUTPUT_SPREAD,
    TRAFFIC_OUTPUT_MAX,
    TRAFFIC_SPEEDUP,
    TRAFFIC_PART_CONVERSATIONS,
    TRAFFIC_PART_UNIFORM,
    TRAFFIC_PART_SIBLINGS,
    TRAFFIC_PART_TAIL,
    TRAFFIC_PARAMS
};

/* What becomes of rows that are texts. */
struct traffic_texts {
    /* The token ids of one, which has the members of its body, without the braces; the caller frees them. Several threads may be in it.
     * Returns: 0, or -1 with a reason that does not quote it: the row is left out. NULL: requests have the text, and no tokens. */
    int (*ids)(void *ctx, const char *members, size_t len, bool is_chat, uint32_t **out, size_t *n, char *why, size_t cap);
    void *ctx;
};

struct traffic_config {
    enum traffic_kind kind;
    double rate;         /* requests/s on average, all turns counted; traces have their own */
    double seconds;      /* what opens a conversation, and what has one turn only, comes before; 0: no such limit */
    uint64_t requests;   /* no more than needed for so many, later turns counted; 0: no such limit */
    uint64_t output_cap; /* no answer is asked to be longer; 0: no such limit */
    uint64_t seed;
    uint32_t vocab;   /* token ids are below it; 0: letters, digits and spaces, as engines have them whose token is a byte */
    const char *file; /* TRAFFIC_TRACE; borrowed until traffic_create returns */
    const struct traffic_texts *texts; /* borrowed until the traffic is destroyed; NULL: texts are left out */
    double param[TRAFFIC_PARAMS];
};

struct traffic_request {
    uint64_t arrival_ns; /* since the beginning */
    uint32_t *tokens;    /* owned by whoever has the request; NULL: it has its text alone */
    size_t tokens_n;
    char *text; /* of rows that are one, as struct kvr_trace_row has it; owned likewise */
    size_t text_len;
    bool is_chat;
    uint64_t output; /* tokens to generate */
    uint64_t session;
    uint32_t turn; /* from 0 */
    uint32_t part; /* of a mixture */
};

/* Returns: the kind of that name, or TRAFFIC_KINDS. */
enum traffic_kind traffic_find(const char *name, size_t len);
const char *traffic_name(enum traffic_kind kind);
const char *traffic_meaning(enum traffic_kind kind);
const char *traffic_param_name(enum traffic_param p);
const char *traffic_param_meaning(enum traffic_param p);
bool traffic_has(enum traffic_kind kind, enum traffic_param p);

/* The kind's own numbers, so many seconds of it as are usual, seed 1. */
void traffic_config_init(struct traffic_config *c, enum traffic_kind kind);
/* "kind[,key=value...]": keys are rate, seconds, requests, seed and the kind's parameters. A whole configuration comes of it,
 * but that `file`, `vocab` and `texts` stay what they are.
 * Returns: 0, or -KVR_EINVAL with a text that names the key and what is allowed. */
int traffic_parse(const char *spec, struct traffic_config *out, char *err, size_t cap);
/* Returns: 0, or -KVR_EINVAL with such a text. */
int traffic_check(const struct traffic_config *c, char *err, size_t cap);

struct traffic;

/* Owns: the caller, traffic_destroy. Returns: 0, or -KVR_EINVAL, -KVR_ENOTFOUND (the file), -KVR_EFORMAT (no row in it), -KVR_ENOMEM, with
 * a text. */
int traffic_create(const struct traffic_config *c, struct traffic **out, char *err, size_t cap);
void traffic_destroy(struct traffic *t);
/* The next arrival. Returns: 1; 0 when there are no more; -KVR_ENOMEM. */
int traffic_next(struct traffic *t, struct traffic_request *out);
/* The turn that follows `done`, whose answer ended at now_ns. Returns: 1; 0 when there is none; -KVR_ENOMEM. */
int traffic_follow(struct traffic *t, const struct traffic_request *done, const uint32_t *answer, size_t answer_n, uint64_t now_ns,
                   struct traffic_request *out);
/* Lines of the trace that were no rows, and why the first was none (NULL: none was skipped). */
uint64_t traffic_skipped(const struct traffic *t, const char **why);
void traffic_request_free(struct traffic_request *r);

/* Is it a trace, read or made up? */
bool traffic_has_rows(enum traffic_kind kind);
/* Writes a trace as Mooncake's JSON lines, with times as it counts them (the speedup divides them only when they are sent). The kind must
 * have rows. Returns: how many, or an error of traffic_create with a text. */
long traffic_write_rows(const struct traffic_config *c, FILE *out, char *err, size_t cap);

#endif
