/* SPDX-License-Identifier: Apache-2.0 */
/* The model that a client names, and the one that serves it (--models-file: config/models_config.h). */
#ifndef KVR_SERVE_NAMED_MODEL_H
#define KVR_SERVE_NAMED_MODEL_H

#include "wire/openai.h"

struct request;

enum named_model { NAMED_AS_IT_IS, NAMED_ANOTHER, NAMED_OUT_OF_MEMORY };

/* READING, when the members of the body are known: who serves the model. Another one gets a body of its own (`model` in it is changed,
 * every other byte stays): what was parsed of the one before is gone. Once per request; any thread that reads its body. */
enum named_model named_model_resolve(struct request *r, const struct kvr_openai_request *rq);

#endif
