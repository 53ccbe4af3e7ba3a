/* SPDX-License-Identifier: Apache-2.0 */
/* The model that a client names, and the one that serves it (--models-file: config/models_config.h). */
#ifndef KVR_SERVE_NAMED_MODEL_H
#define KVR_SERVE_NAMED_MODEL_H

#include <stdbool.h>

#include "net/http/http.h"

struct request;

/* NOBODY: of one that is read again: there is no fallback for it. */
enum named_model { NAMED_AS_IT_IS, NAMED_ANOTHER, NAMED_NOBODY, NAMED_OUT_OF_MEMORY };

/* What a body says that decides. Borrows from it, or from what it was parsed into. */
struct named_ask {
    struct kvr_text model;   /* empty: none is named */
    struct kvr_text session; /* `user` or `prompt_cache_key`; empty: neither */
    struct kvr_text place;   /* of a form: where the name stands in the body; ptr NULL: the body is JSON */
    size_t tokens_n;         /* 0: not known yet */
};

/* READING, when the members of the body are known: who serves the model, in r->model. Another one gets a body of its own (`model` in it is
 * changed, every other byte stays): what was parsed of the one before is gone. Once per reading; any thread that reads its body. */
enum named_model named_model_resolve(struct request *r, const struct named_ask *ask);
/* The router refuses it for overload: is its body to be read again, for a fallback? */
bool named_model_may_fall_back(struct request *r);

#endif
