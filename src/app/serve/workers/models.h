/* SPDX-License-Identifier: Apache-2.0 */
/* GET /v1/models: models.c. Any thread; takes serve.lock. */
#ifndef KVR_SERVE_MODELS_H
#define KVR_SERVE_MODELS_H

#include "app/serve/common/limits.h"
#include "base/buf.h"
#include "net/http/http.h"

struct serve;

bool models_id_of_path(struct kvr_text path, char id[MODEL_MAX]); /* percent-decoded; false: no model's */
/* Those of which `shows` says yes. */
void models_write(struct serve *s, struct kvr_buf *out, bool (*shows)(const void *ctx, const char *id), const void *ctx);
bool models_write_one(struct serve *s, struct kvr_buf *out, const char *id); /* false: nobody lists it */

#endif
