/* SPDX-License-Identifier: Apache-2.0 */
/* An index elsewhere answers us: remote.c. A loop's clients are its own. */
#ifndef KVR_SERVE_REMOTE_H
#define KVR_SERVE_REMOTE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

struct serve;
struct loop;
struct kvr_prom_page;

/* Reads --use-remote-indexer. Returns: 0, or -1 with the reason in err. */
int remote_parse(struct serve *s, char *err, size_t cap);
bool remote_needs_nats(const struct serve *s);
int remote_open(struct serve *s, struct loop *l); /* for one loop */
void remote_close(struct loop *l);
int remote_open_admin(struct serve *s);
void remote_close_admin(struct serve *s);
const char *remote_why(const struct serve *s); /* why it is not used now; "": it is. Main loop */
bool remote_settled(struct serve *s);          /* validated once, or not within --restore-timeout; any thread */
/* The model that indexers know a block size's workers by. */
void remote_model(const struct serve *s, uint32_t block_size, char *out, size_t cap);
void remote_metrics(struct serve *s, struct kvr_prom_page *out);

#endif
