/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What to send and when.
 *
 *     workload.c    one of the two below; bodies; the text of answers
 *       talks.c     conversations that wait for their answers and for nothing else (--trace synthetic)
 *       traffic/    everything else, with times of arrival: a trace, or a named workload
 */
#ifndef KVR_REPLAY_WORKLOAD_H
#define KVR_REPLAY_WORKLOAD_H

#include "app/replay/replay.h"
#include "base/buf.h"
#include "traffic/traffic.h"

struct workload;

enum work_state { WORK_READY, WORK_LATER, WORK_BLOCKED, WORK_FINISHED };

/* The traffic of --workload, or of the file that --trace names; texts: what becomes of those in it. Returns: 0, or -KVR_EINVAL with a text.
 */
int workload_config(const struct replay_options *o, const struct traffic_texts *texts, struct traffic_config *c, char *err, size_t cap);
/* --write-trace. Returns: an exit code. */
int workload_write(const struct replay_options *o);
/* Returns: NULL, with a text that begins with the option's name. */
struct workload *workload_create(const struct replay_options *o, char *err, size_t cap);
void workload_destroy(struct workload *w);
/* The next request that is due at now_s (seconds since the start). WORK_LATER: *wait_ms says how long. Owns: the caller, *out. */
enum work_state workload_next(struct workload *w, double now_s, struct traffic_request *out, uint64_t *wait_ms);
/* The answer of a request has ended; its conversation goes on with it. */
void workload_done(struct workload *w, const struct traffic_request *rq, const char *answer, size_t len, bool is_sse, double now_s);
/* Starts over at now_s, with other requests, or the same rows of a trace. false when it cannot. */
bool workload_restart(struct workload *w, double now_s);
/* Of the endpoint that a request is for. Static. */
const char *workload_path(const struct traffic_request *rq);
void workload_body(const struct replay_options *o, const struct traffic_request *rq, struct kvr_buf *out);

/* ---- talks.c    --------------------------------------------------------------------------------------- */

struct talks;
struct talks *talks_create(const struct replay_options *o);
void talks_destroy(struct talks *s);
enum work_state talks_next(struct talks *s, double now_s, struct traffic_request *out, uint64_t *wait_ms);
void talks_done(struct talks *s, const struct traffic_request *rq, const uint32_t *answer, size_t answer_n);
void talks_restart(struct talks *s, double now_s);

#endif
