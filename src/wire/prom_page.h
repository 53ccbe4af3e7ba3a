/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A page of metrics in Prometheus' text format, as every program writes its /metrics.
 *
 * A page is families, one after the other: kvr_prom_family says the name, type and help of one, and what is put after it are its
 * samples, so a sample without HELP and TYPE cannot be written. Names are literals of the program; values of labels may be any text.
 */
#ifndef KVR_WIRE_PROM_PAGE_H
#define KVR_WIRE_PROM_PAGE_H

#include <stdbool.h>
#include <kvroute/types.h>

#include "base/buf.h"
#include "base/histogram.h"

struct kvr_prom_page {
    struct kvr_buf *out;
    char family[128];
};

/* A label: text, or when that is NULL the number. */
struct kvr_prom_pair {
    const char *name, *text;
    uint64_t number;
};

struct kvr_prom_pairs {
    const struct kvr_prom_pair *list;
    size_t n;
};

#define KVR_PROM_NONE                                                                                                                      \
    (struct kvr_prom_pairs)                                                                                                                \
    {                                                                                                                                      \
        NULL, 0                                                                                                                            \
    }
/* KVR_PROM_PAIRS(KVR_PROM_TEXT("model", name), KVR_PROM_NUMBER("worker_id", id)) */
#define KVR_PROM_PAIRS(...)                                                                                                                \
    (struct kvr_prom_pairs)                                                                                                                \
    {                                                                                                                                      \
        (const struct kvr_prom_pair[]){__VA_ARGS__}, sizeof((const struct kvr_prom_pair[]){__VA_ARGS__}) / sizeof(struct kvr_prom_pair)    \
    }
#define KVR_PROM_TEXT(name, value)                                                                                                         \
    {                                                                                                                                      \
        name, value, 0                                                                                                                     \
    }
#define KVR_PROM_NUMBER(name, value)                                                                                                       \
    {                                                                                                                                      \
        name, NULL, value                                                                                                                  \
    }
/* The two pairs that name a rank. */
#define KVR_PROM_RANK(id, rank) KVR_PROM_NUMBER("worker_id", id), KVR_PROM_NUMBER("dp_rank", rank)

/* `type`: counter, gauge or histogram. The family's name is prefix and name together. */
void kvr_prom_family(struct kvr_prom_page *p, const char *prefix, const char *name, const char *type, const char *help);
/* Samples of the family. */
void kvr_prom_put_u64(struct kvr_prom_page *p, struct kvr_prom_pairs labels, uint64_t v);
void kvr_prom_put_double(struct kvr_prom_page *p, struct kvr_prom_pairs labels, double v);
void kvr_prom_put_histogram(struct kvr_prom_page *p, struct kvr_prom_pairs labels, const struct kvr_histogram *h);

/* A family of one sample without labels. */
void kvr_prom_one_u64(struct kvr_prom_page *p, const char *prefix, const char *name, const char *type, const char *help, uint64_t v);
void kvr_prom_one_double(struct kvr_prom_page *p, const char *prefix, const char *name, const char *type, const char *help, double v);
/* The same of a family that is always there, and has its sample only where it means something (`any`). */
void kvr_prom_one_if(struct kvr_prom_page *p, bool any, const char *prefix, const char *name, const char *type, const char *help,
                     uint64_t v);
/* The same of several. */
struct kvr_prom_row {
    const char *name, *type, *help;
    uint64_t v;
};
void kvr_prom_rows(struct kvr_prom_page *p, bool any, const char *prefix, const struct kvr_prom_row *rows, size_t n);

/* A family of which each sample is a member of a struct, at an offset. */
struct kvr_prom_member {
    const char *name, *type, *help;
    size_t at;
};

#endif
