/* SPDX-License-Identifier: Apache-2.0 */
/* GET /v1/models: models.c. Any thread; takes the table's lock. */
#ifndef KVR_SERVE_MODELS_H
#define KVR_SERVE_MODELS_H

#include "app/serve/common/limits.h"
#include "base/buf.h"
#include "net/http/http.h"

struct workers;

/* A name that clients may use for a model; it is listed when that one is, as its `root`. */
struct model_alias {
    const char *name, *of;
};

/* Names of which `shows` says yes. */
struct models_seen {
    bool (*shows)(const void *ctx, const char *id);
    const void *ctx;
};

void models_write(struct workers *ws, struct kvr_buf *out, struct models_seen seen, const struct model_alias *aliases, size_t n);
/* false: nobody lists it */
bool models_write_one(struct workers *ws, struct kvr_buf *out, const char *id, const struct model_alias *aliases, size_t n);

#endif
