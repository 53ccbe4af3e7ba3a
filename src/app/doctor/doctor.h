/* SPDX-License-Identifier: Apache-2.0 */
/* `kvroute doctor`: looks for every known cause of silent cache misses in a live deployment. */
#ifndef KVR_DOCTOR_H
#define KVR_DOCTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DOCTOR_DIRS_MAX = 64 };

struct doctor_options {
    char **targets; /* URL[,key=value...] */
    size_t targets_n;
    char *key;             /* bearer token for the targets; NULL: none */
    char *key_file;        /* the same: its first key */
    char *tls_ca;          /* PEM file; NULL: the system's */
    char *engine_key;      /* and for the engines that they list */
    char **tokenizer_dirs; /* [MODEL=]DIR: whose token ids are compared with the engines' */
    size_t tokenizer_dirs_n;
    char *tokenizer_lib, *tokenizer_profile; /* NULL: where it is looked for; all profiles are tried */
    double timeout;
    bool json, quiet, probe;
    bool health; /* only ask the targets whether they live */
};

/* Returns the process's exit status: 0 nothing found, 1 a problem was found, 2 a target could not be used. */
int doctor_main(const struct doctor_options *o);

#endif
