/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a worker with an https:// address is believed, where its entry says it: keys tls-ca, tls-cert, tls-key, tls-server-name, tls-verify
 * of --worker, members tls_ca, tls_cert, tls_key, tls_server_name, tls_verify of a worker object. Without any of them it is as --tls-ca,
 * --outgoing-tls-cert and --outgoing-tls-key say. Any thread.
 */
#ifndef KVR_SERVE_WORKER_TLS_H
#define KVR_SERVE_WORKER_TLS_H

#include "app/serve/workers/table/worker.h"

/* Is it one of these keys? */
bool worker_tls_is_key(const char *key);
/* Takes the value of one. false: it cannot be that; *allowed says what can. */
bool worker_tls_set(struct worker_tls *t, const char *key, const char *value, const char **allowed);
/* Members of an object over what is in t. Returns: NULL, or the member that is wrong. */
const char *worker_tls_read(struct kvr_json o, struct worker_tls *t);
/* What the worker has. */
void worker_tls_of(const struct worker *w, struct worker_tls *out);
/* Has the worker's endpoint be believed so. Returns: 0, or -1 with the reason in err. */
int worker_tls_apply(const struct worker_tls *t, struct worker *w, char *err, size_t cap);
/* Appends the members of an object of /workers. */
void worker_tls_write(const struct worker *w, struct kvr_buf *out);

#endif
