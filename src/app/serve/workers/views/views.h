/* SPDX-License-Identifier: Apache-2.0 */
/*
 * KV events into the index, what a view is worth into the router: views.c.
 *
 * Threads: the ingest thread calls back; others as said. Nobody waits for the ingest thread under the table's lock, as its callbacks take
 * it.
 */
#ifndef KVR_SERVE_VIEWS_H
#define KVR_SERVE_VIEWS_H

#include "app/serve/workers/table/partition.h"
#include "app/serve/workers/table/worker.h"

struct kvr_prom_page;
struct kvr_view_status;

int views_start(struct workers *ws);
bool views_run(const struct workers *ws);                            /* KV events are followed */
struct kvr_view_status *views_status(struct workers *ws, size_t *n); /* of all; malloc'd, not NULL but without memory */
void views_metrics(struct workers *ws, struct kvr_prom_page *out);
uint64_t views_moment(const struct workers *ws);   /* rises with events that suppositions are compared with. Any thread */
bool views_move(const struct workers *ws);         /* has the ingest thread gone round since this was asked last? Main loop */
bool views_durable_runs(const struct workers *ws); /* main loop */
int views_start_durable(struct workers *ws);       /* when the workers that are configured are followed */
/* Something reads views, or is about to: from now on they are followed, if they were not yet. Until then, where the mode of choosing and
 * the options have no use for them, nothing is heard of events. Main loop. */
void views_want(struct workers *ws);
void views_follow(struct workers *ws, const struct worker *w, struct partition *partition);
void views_unfollow(struct workers *ws, uint64_t id);
/* A prompt that a rank has answered, whose view was partial when it was chosen. */
void views_served(struct workers *ws, struct kvr_served *v);
void views_expect_reports(struct workers *ws, struct worker *w); /* before such a request is sent to it; any thread */
enum kvr_view_knowledge views_knowledge(const struct worker *w, uint32_t rank);
/* Do KV events of this rank (by place) come from somewhere? */
bool views_has_source(const struct workers *ws, const struct worker *w, uint32_t place);
const char *views_why_none(const struct workers *ws, const struct worker *w); /* of a worker without one; static */
struct kvr_view_of;
/* A rank with a stream of its own, by what any process knows of it: model, group, endpoint. Returns: false: it has none. Main loop. */
bool views_describe(struct workers *ws, const struct worker *w, uint32_t place, struct kvr_view_of *of);
/* --data-dir, if the process before has let go of it by now: views are kept there from then on. Main loop, after a hand-over. */
void views_take_disk(struct workers *ws);
/* --data-dir is written once more, and is then free for another process. Main thread. */
void views_let_go_of_disk(struct workers *ws);
/* The rank's content is about to be replaced as a whole: what is told of it otherwise begins anew. Ingest thread, in a visit. */
void views_replace(struct workers *ws, struct kvr_worker w);
bool views_make_up(struct workers *ws, struct kvr_worker w); /* has it blocks under names of our own? The same */
void views_stop(struct workers *ws);
void views_wiring_tick(struct workers *ws); /* main loop: says what is wrong with endpoints of events, when that changes */
bool views_settled(struct workers *ws);
void views_tick(struct workers *ws); /* main loop */

#endif
