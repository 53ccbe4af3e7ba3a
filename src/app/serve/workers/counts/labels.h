/* SPDX-License-Identifier: Apache-2.0 */
/* Counters by model, worker and status class: labels.c. Any thread. */
#ifndef KVR_SERVE_LABELS_H
#define KVR_SERVE_LABELS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

struct workers;
struct worker;
struct labels;
struct kvr_prom_page;
struct roster_row;

struct labels *labels_create(void); /* NULL: out of memory */
void labels_destroy(struct labels *l);
/* A worker is in the table from then on. false: no memory. */
bool labels_register(struct labels *l, uint64_t worker_id);
void labels_forget(struct labels *l, uint64_t worker_id);
/* A model has its name when the worker is known to serve it, by its entry or its engine's list: not by what clients say. Of the row that
 * the worker was chosen from; model "": the request names none. */
const char *labels_name(const struct roster_row *row, uint64_t worker_id, const char *model);
/* w NULL: no worker had it. model: as labels_name has it; of no worker what the request names. */
void labels_request(struct workers *ws, const struct worker *w, const char *model, int status);
/* Tokens that are added to the series of a model and a worker. */
struct label_tokens {
    uint64_t predicted, actual, prompt; /* of answers that told of cached tokens: cached by prediction, cached, all of the prompt */
    uint64_t computed;                  /* of these: whole blocks that were computed */
    uint64_t input, output;             /* of every answer */
};
void labels_tokens(struct workers *ws, const struct worker *w, const char *model, const struct label_tokens *more);
void labels_metrics(struct workers *ws, struct kvr_prom_page *out);

#endif
