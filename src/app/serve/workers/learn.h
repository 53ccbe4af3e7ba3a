/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What engines say of themselves: engine_survey.c asks, learn.c makes of it what the worker is used with, learnt.c begins and shows.
 * Threads: the main loop; functions with _locked want the table's lock.
 */
#ifndef KVR_SERVE_LEARN_H
#define KVR_SERVE_LEARN_H

#include "app/serve/workers/table/worker.h"

/* engine_survey.c */
void engine_survey_tick(struct workers *ws);
void engine_survey_stop(struct workers *ws);
/* learnt.c and learn.c */
bool learns(const struct workers *ws, const struct worker *w); /* is its engine asked? */
bool learns_events(const struct workers *ws);                  /* and for its events? */
/* Before it is added: what is not given is to be learnt. */
void learn_begin(const struct workers *ws, struct worker *w);
/* Takes what the engine has said: into the worker, which joins another partition when need be, and to stderr when it is new. */
void learn(struct workers *ws, uint64_t id, const struct kvr_engine_facts *f);
/* It does not answer (now): what it was waited for with goes on with what is known. */
void learn_nothing(struct workers *ws, uint64_t id);
void learnt_write(struct kvr_buf *b, const struct worker *w); /* members of the worker object */
/* The block size to begin with, when nobody has said one. */
uint32_t worker_block_size(const struct workers *ws, const struct worker *w);

#endif
