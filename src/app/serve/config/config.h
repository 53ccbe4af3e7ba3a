/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The room of files that say what is routed how, who may ask, and with which certificates. Each has a header of its own: keyring.h,
 * models_config.h, policies.h, port_tls.h; reloads.h counts how they were read again. Threads: the main loop, but where a header says more.
 */
#ifndef KVR_SERVE_CONFIG_H
#define KVR_SERVE_CONFIG_H

struct config;
struct kvr_prom_page;
struct kvr_tls_ctx;
struct process;
struct reloads;
struct workers;

struct config *config_create(struct process *p, struct workers *workers); /* NULL: out of memory */
void config_destroy(struct config *c);                                    /* NULL is fine; nothing of it runs any more */
void config_second(struct config *c);                                     /* main loop, every second */
void config_metrics(struct config *c, struct kvr_prom_page *out);
struct reloads *config_reloads(struct config *c);
/* Of the data port, of the admin port, once port_tls_open has read them; NULL: plain. */
struct kvr_tls_ctx *config_tls(const struct config *c);
struct kvr_tls_ctx *config_admin_tls(const struct config *c);
struct kvr_tls_ctx *config_picker_tls(const struct config *c);

#endif
