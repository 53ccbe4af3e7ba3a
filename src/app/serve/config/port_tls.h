/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TLS of the ports, and of what this process connects to: certificates are read at the start and again with SIGHUP, each set as a whole.
 * The main loop's; sessions begin on any thread (net/http/tls.h).
 */
#ifndef KVR_SERVE_PORT_TLS_H
#define KVR_SERVE_PORT_TLS_H

#include <stddef.h>

struct kvr_buf;
struct kvr_prom_page;
struct config;

/* Returns: 0, or -1 with the reason in err, which names the option. */
int port_tls_open(struct config *config, char *err, size_t cap);
/* The same of all of them: of each that cannot be opened `wrong` hears, with an option of it. */
void port_tls_check(struct config *config, void (*wrong)(void *arg, const char *key, const char *text), void *arg);
/* Reads all again; those that cannot be read stay as they were. Returns: 0, or -1 with all reasons in err. */
int port_tls_reload(struct config *config, char *err, size_t cap);
/* Once an hour: warns of certificates that end soon. */
void port_tls_tick(struct config *config);
/* kvroute_tls_certificate_expiry_timestamp_seconds by port. */
void port_tls_metrics(struct config *config, struct kvr_prom_page *out);
/* The same as JSON: a list of {port, ends_at_ms}. */
void port_tls_write(struct config *config, struct kvr_buf *b);

#endif
