/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The profiles of a folder, and what they make of the built-in questions (token/probes.h) beside what an engine makes of them.
 *
 * Engines, their releases and their settings make other prompts of one chat. A profile is what differs: one place of a folder's
 * `all`, each a variant of the one that was loaded. Of a difference is kept which question, where, and both ids, never a text.
 *
 * Threads: loaded and freed by one; the rest any.
 */
#ifndef KVR_TOKEN_PROFILES_H
#define KVR_TOKEN_PROFILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "token/library.h"
#include "token/pool.h"

enum {
    KVR_PROFILES_MAX = 51, /* the one that is loaded, and all that are made of it */
    KVR_PROFILE_USUAL = 3, /* of those that are made, the one that programs without an engine have when none is given */
    KVR_PROBES_MAX = 32,
    KVR_PROFILE_TEXT_MAX = 200
};

struct kvr_profiles {
    const struct kvr_token_library *lib;
    struct kvr_tok *all[KVR_PROFILES_MAX];
    size_t n;
};

/* Reads a folder. profile: --tokenizer-profile, and when that says something, there is that one alone; else all are made. Takes up to a
 * second. Returns: 0; -1 with the reason, and nothing is to be freed. */
int kvr_profiles_load(const struct kvr_token_library *lib, const char *dir, const char *profile, size_t cache_bytes,
                      struct kvr_profiles *out, char *why, size_t cap);
void kvr_profiles_free(struct kvr_profiles *p);
/* Profile i as --tokenizer-profile takes it; of those that are made. */
void kvr_profile_text(size_t i, char out[KVR_PROFILE_TEXT_MAX]);
/* Returns: 0 with *ids, or enum of kvr_tokenizer.h. */
int kvr_profile_ids(const struct kvr_token_library *lib, const struct kvr_tok *profile, const char *question, size_t len,
                    struct kvr_ids **ids);

/* ---- comparisons ---- */

/* What an engine has made of a built-in question. */
struct kvr_probe_answer {
    bool answered; /* else it has refused, as it may */
    struct kvr_ids *ids;
};

/* Was a chat among what was answered? An engine whose /tokenize knows texts alone (SGLang before it knew `messages`) refuses every chat:
 * nothing is known of its template then. */
bool kvr_probe_answers_have_chat(const struct kvr_probe_answer *answers, size_t n);

/* The first question that both engines have answered, and unlike each other: *at is the first place where they are not the same. Returns:
 * its number, or n. */
size_t kvr_probe_answers_part(const struct kvr_probe_answer *a, const struct kvr_probe_answer *b, size_t n, size_t *at);

/* Where ids made here and an engine's part for the first time. */
struct kvr_token_difference {
    bool any;
    const char *question; /* a probe's name, or "a request"; static */
    char who[256];        /* the engine */
    size_t at, here_n, engine_n;
    uint32_t here, engine; /* the ids there; of a shorter one 0 */
};

struct kvr_verdict {
    size_t equal, different; /* questions; what was not answered, or is not made here, is neither */
    struct kvr_token_difference first;
};

/* Returns: whether both are the same; else *at is the first place where they are not. */
bool kvr_ids_same(const uint32_t *a, size_t a_n, const uint32_t *b, size_t b_n, size_t *at);
void kvr_token_difference_note(struct kvr_token_difference *d, const char *question, const char *who, const struct kvr_ids *here,
                               const uint32_t *engine, size_t engine_n, size_t at);
void kvr_profile_judge(const struct kvr_token_library *lib, const struct kvr_tok *profile, const char *who,
                       const struct kvr_probe_answer *answers, size_t n, struct kvr_verdict *out);
bool kvr_verdict_agrees(const struct kvr_verdict *v);

/* A request and what an engine has made of it. */
struct kvr_profile_request {
    const char *question;
    size_t len;
    const struct kvr_ids *engine;
};
/* The first profile from `from` on that agrees with all answers, and with a request, when one is given. Returns: its place, or p->n;
 * *closest: what the one came to that came closest of those that do not agree; zeroes when there is none. */
size_t kvr_profiles_find(const struct kvr_profiles *p, size_t from, const char *who, const struct kvr_probe_answer *answers, size_t n,
                         const struct kvr_profile_request *request, struct kvr_verdict *closest);

#endif
