/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of the room of configuration (config.h), which its own files alone see: keyring.c, models_config.c, policies.c, port_tls.c and
 * reloads.c each have a part of it. The main loop's, but for keyrings and models, which any thread holds under their locks.
 */
#ifndef KVR_SERVE_CONFIG_ROOM_H
#define KVR_SERVE_CONFIG_ROOM_H

#include "app/serve/common/process.h"
#include "app/serve/config/config.h"
#include "app/serve/config/keyring.h"
#include "app/serve/config/reloads.h"
#include "base/lock.h"

struct models_config;

struct keyrings {
    struct kvr_lock lock; /* now */
    struct keyring *now;  /* NULL: no file is configured, and nothing is checked */
    const char *path;
    _Atomic uint64_t nobody[KEY_REFUSALS]; /* refusals that are no key's */
};

struct config {
    const struct serve_options *o;
    struct process *process;
    struct workers *workers;
    struct reloads reloads;
    struct keyrings keyrings; /* who may use the data port */
    struct kvr_lock models_lock;
    _Atomic(struct models_config *) models;           /* NULL: no --models-file, and none was put */
    struct policy_profile *profiles_read;             /* malloc'd, of queues; NULL: those of the start. Main loop's */
    struct kvr_tls_ctx *tls, *admin_tls, *picker_tls; /* of the data port, the admin port, --ext-proc-port; NULL: plain */
    uint64_t port_tls_due_ms;                         /* main loop's; port_tls.h */
};

#endif
