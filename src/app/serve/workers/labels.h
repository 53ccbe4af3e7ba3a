/* SPDX-License-Identifier: Apache-2.0 */
/* Counters by model, worker and status class: labels.c. Any thread; functions with _locked want serve.lock. */
#ifndef KVR_SERVE_LABELS_H
#define KVR_SERVE_LABELS_H

#include <stdint.h>

#include "base/buf.h"

struct serve;
struct worker;
struct series;
struct kvr_prom_page;

/* w NULL: no worker had it. model "": the request names none. */
void labels_request_locked(struct serve *s, struct worker *w, const char *model, int status);
void labels_cached_locked(struct serve *s, struct worker *w, const char *model, uint64_t predicted, uint64_t actual);
void labels_metrics(struct serve *s, struct kvr_prom_page *out); /* takes the lock */
void labels_free(struct series *list);

#endif
