/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Content of (worker, rank) pairs that came from elsewhere and is to be put in place as a whole: 16 bytes a block. Events are
 * collected per pair; then each pair's content replaces what the index has of it.
 */
#ifndef KVR_INDEXER_STAGE_H
#define KVR_INDEXER_STAGE_H

#include "app/indexer/state.h"
#include "recover/event_list.h"

struct staged {
    struct partition *part; /* a reference */
    struct kvr_worker worker;
    struct kvr_event_list content;
};

struct stage {
    struct staged *list;
    size_t n, cap;
};

/* Returns: 0, -KVR_ENOMEM. */
int stage_add(struct stage *s, struct partition *p, const struct kvr_event *ev);
/* What is staged for a pair; NULL: nothing. */
struct staged *stage_find(const struct stage *s, const struct partition *p, struct kvr_worker w);
/* Replaces the content of a pair by what is staged for it (NULL: nothing). Returns: 0 or an error of the index. */
int stage_put(struct staged *g, struct partition *p, struct kvr_worker w);
void stage_free(struct stage *s);

#endif
