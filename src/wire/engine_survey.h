/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The questions that an engine is asked about its configuration, one after the other, until enough is known. Who asks brings the bytes;
 * what the answers say is in wire/engine_facts.h.
 *
 *     METRICS -> SOURCES -> (SERVER_INFO -> OLD_SERVER_INFO) -> (MODELS) -> (RANKS) -> OVER
 *
 * An answer that is no 200, or not readable, says nothing, and the next one is asked.
 * Threads: pure functions on the caller's structs.
 */
#ifndef KVR_WIRE_ENGINE_SURVEY_H
#define KVR_WIRE_ENGINE_SURVEY_H

#include "base/buf.h"
#include "wire/engine_facts.h"

enum kvr_survey_step {
    KVR_SURVEY_METRICS, /* Prometheus' text; all others are JSON */
    KVR_SURVEY_SOURCES,
    KVR_SURVEY_SERVER_INFO,
    KVR_SURVEY_OLD_SERVER_INFO,
    KVR_SURVEY_MODELS, /* when none is known */
    KVR_SURVEY_RANKS,  /* a POST with kvr_survey_rank_question, and KVR_SURVEY_RANK_HEADER; all others are GETs */
    KVR_SURVEY_OVER,
};

/* With the end of the line. A rank beyond all: who reads the header refuses it, and says which ranks there are. */
#define KVR_SURVEY_RANK_HEADER "X-data-parallel-rank: 1073741824\r\n"

/* Not of KVR_SURVEY_OVER. Static. */
const char *kvr_survey_path(enum kvr_survey_step step);
/* The next one that may tell something. */
enum kvr_survey_step kvr_survey_next(const struct kvr_engine_facts *f, enum kvr_survey_step step);
/* Appends the body: a completion of one token. model "": none is named. b->failed when there is no memory. */
void kvr_survey_rank_question(const char *model, struct kvr_buf *b);
/* A whole answer but that of KVR_SURVEY_METRICS, whose samples go to kvr_engine_facts_sample as they come. */
void kvr_survey_answer(struct kvr_engine_facts *f, enum kvr_survey_step step, int status, struct kvr_json_parser *p, const char *text,
                       size_t len);

#endif
