/* SPDX-License-Identifier: Apache-2.0 */
/*
 * KV events into the index, what a view is worth into the router: views.c.
 *
 * Threads: the ingest thread calls back; others as said. Nobody waits for the ingest thread under serve.lock, as its callbacks take it.
 */
#ifndef KVR_SERVE_VIEWS_H
#define KVR_SERVE_VIEWS_H

#include "app/serve/workers/partition.h"
#include "app/serve/workers/worker.h"

int views_start(struct serve *s);
int views_start_durable(struct serve *s); /* when the workers that are configured are followed */
void views_follow(struct serve *s, const struct worker *w, struct partition *partition);
void views_unfollow(struct serve *s, uint64_t id);
/* A prompt that a rank has answered, whose view was partial when it was chosen. */
void views_served(struct serve *s, struct kvr_served *v);
void views_expect_reports(struct serve *s, struct worker *w); /* before such a request is sent to it; any thread */
enum kvr_view_knowledge views_knowledge(const struct worker *w, uint32_t rank);
/* Do KV events of this rank (by place) come from somewhere? */
bool views_has_source(const struct serve *s, const struct worker *w, uint32_t place);
const char *views_why_none(const struct worker *w); /* of a worker without one; static */
/* --data-dir is written once more, and is then free for another process. Main thread. */
void views_let_go_of_disk(struct serve *s);
void views_stop(struct serve *s);
void views_wiring_tick(struct serve *s); /* main loop: says what is wrong with endpoints of events, when that changes */
bool views_settled(struct serve *s);
void views_tick(struct serve *s); /* main loop */

#endif
