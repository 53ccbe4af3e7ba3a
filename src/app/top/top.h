/* SPDX-License-Identifier: Apache-2.0 */
/* `kvroute top`: a running router in a terminal, by its admin port. */
#ifndef KVR_APP_TOP_H
#define KVR_APP_TOP_H

#include <stdbool.h>

#include "base/log.h"

struct top_options {
    const char *url; /* of the admin port */
    char *key_file;  /* its first key is sent; NULL: none */
    char *tls_ca;    /* PEM file; NULL: the system's */
    double interval; /* seconds between two looks */
    bool once;
    struct kvr_log_options log;
};

/* Returns: the exit status: 0; 1 the router does not answer; 2 bad options. */
int top_main(const struct top_options *o);

#endif
