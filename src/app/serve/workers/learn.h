/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What engines say of themselves: engine_survey.c asks, learn.c makes of it what the worker is used with (engines/learnt.h: before that).
 * Threads: the main loop.
 */
#ifndef KVR_SERVE_LEARN_H
#define KVR_SERVE_LEARN_H

#include "app/serve/workers/table/worker.h"

/* engine_survey.c */
void engine_survey_tick(struct workers *ws);
void engine_survey_stop(struct workers *ws);
/* learn.c: takes what the engine has said: into the worker, which joins another partition when need be, and to stderr when it is new. */
void learn(struct workers *ws, uint64_t id, const struct kvr_engine_facts *f);
/* It does not answer (now): what it was waited for with goes on with what is known. */
void learn_nothing(struct workers *ws, uint64_t id);

#endif
