/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prometheus' text format as it is read (prom_page.h writes it): lines of
 *
 *     name{label="value",...} number [timestamp]        # comment
 *
 * The reader takes a body in pieces of any size and calls back for each sample. It keeps at most one line of KVR_PROM_LINE_MAX
 * bytes and never allocates: longer lines are passed over, and counted like those that are no samples.
 */
#ifndef KVR_WIRE_PROM_TEXT_H
#define KVR_WIRE_PROM_TEXT_H

#include "base/base.h"
#include "base/buf.h"

enum { KVR_PROM_LABELS_MAX = 64, KVR_PROM_LINE_MAX = 8192 };

struct kvr_prom_text {
    const char *ptr;
    size_t len;
};

struct kvr_prom_label {
    struct kvr_prom_text name, value; /* value: as it stands between the quotes, see kvr_prom_unescape */
};

/* Borrowed for the call. */
struct kvr_prom_sample {
    struct kvr_prom_text name;
    struct kvr_prom_label labels[KVR_PROM_LABELS_MAX];
    size_t labels_n;
    double value; /* NaN and infinities included */
};

typedef void kvr_prom_fn(void *ctx, const struct kvr_prom_sample *sample);

/* Zeroed, but for fn and ctx. */
struct kvr_prom_reader {
    kvr_prom_fn *fn;
    void *ctx;
    uint64_t samples, malformed; /* malformed: lines that were passed over */
    bool too_long;               /* in the middle of a line that is */
    size_t part_len;
    char part[KVR_PROM_LINE_MAX]; /* a line of which the end has not come */
};

void kvr_prom_feed(struct kvr_prom_reader *r, const char *data, size_t len);
void kvr_prom_end(struct kvr_prom_reader *r); /* the last line may lack its end */

/* One line. Returns: 1 a sample; 0 nothing (empty, comment); -KVR_EFORMAT. */
int kvr_prom_line(const char *line, size_t len, struct kvr_prom_sample *out);
/* A label's value as it stands, or {NULL, 0}. */
struct kvr_prom_text kvr_prom_label(const struct kvr_prom_sample *s, const char *name);
bool kvr_prom_is(struct kvr_prom_text t, const char *s);
/* A whole number. */
bool kvr_prom_u64(struct kvr_prom_text t, uint64_t *out);
/* What a value says, into out[cap]. Returns: its length, or -KVR_ELIMIT. */
long kvr_prom_unescape(struct kvr_prom_text value, char *out, size_t cap);

#endif
