/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the HTTP server and client. */
#ifndef KVR_NET_HTTP_INTERNAL_H
#define KVR_NET_HTTP_INTERNAL_H

#include <llhttp.h>

#include "net/http/http.h"

/* ---- framing ----------------------------------------------------------------------------------------- */

/*
 * What is looked at before llhttp sees it, because llhttp lets more pass than we do, and not the same in every version and
 * build: the shape of start lines, header lines, chunk sizes and trailers, byte by byte.
 *
 *     begin -> start line -> header lines -> HEAD_OVER -> [chunks -> trailer lines -> BODY_OVER]
 *
 * Threads: one.
 */
enum kvr__framing_kind { KVR__REQUESTS, KVR__ANSWERS };

struct kvr__framing {
    uint8_t kind, state;
    uint8_t at; /* inside a fixed word */
    bool trailer;
    size_t section;      /* bytes of the head or of the trailers, limited to KVR_HTTP_HEAD_MAX */
    size_t extensions;   /* bytes of chunk extensions of this message */
    uint64_t chunk_left; /* of the size line: its value so far; then bytes of data to come */
};

enum { KVR__FRAMING_BAD = -1, KVR__FRAMING_TOO_LARGE = -2 };

void kvr__framing_begin(struct kvr__framing *f, enum kvr__framing_kind kind);
bool kvr__framing_started(const struct kvr__framing *f); /* a byte of a start line has come */
bool kvr__framing_in_head(const struct kvr__framing *f);
/* The head is over, and chunks follow. */
void kvr__framing_chunks(struct kvr__framing *f);
bool kvr__framing_in_chunks(const struct kvr__framing *f);
/* Looks at bytes of a head, or of chunks. Returns: how many are fine and belong to this part (all, or up to its end), or one
 * of the errors above. */
long kvr__framing_scan(struct kvr__framing *f, const char *data, size_t len);

/* ---- headers ----------------------------------------------------------------------------------------- */

void kvr__headers_reset(struct kvr_headers *h);
/* A piece of a name, or of its value. Returns: 0, or -1 over a limit or, with h->text.failed, without memory. */
int kvr__headers_name(struct kvr_headers *h, const char *at, size_t len);
int kvr__headers_value(struct kvr_headers *h, const char *at, size_t len);
size_t kvr__headers_count(const struct kvr_headers *h, const char *name);
/* Do the headers frame a body in a way that we understand? *chunked: by chunks. Returns: 0, or the status that says why not. */
int kvr__headers_framing(const struct kvr_headers *h, bool *chunked);

/* ---- bodies ------------------------------------------------------------------------------------------ */

/* A copy of two texts, one behind the other. NULL: no memory. */
struct kvr_body *kvr__body_join(struct kvr_text first, struct kvr_text second);

/* Counts n bytes of a body that has `whole` so far against the budget, of which the last quarter is for small bodies: large ones cannot
 * keep those out. false: it is used up, and that is counted. */
bool kvr__bodies_reserve(struct kvr_http_shared *s, size_t n, size_t whole);
bool kvr__bodies_try(struct kvr_http_shared *s, size_t n, size_t whole); /* the same, and nothing is counted */
void kvr__bodies_release(struct kvr_http_shared *s, size_t n);

/* Memory that a body of this thread had before (http/spares.c), of a size between these. NULL: there is none. */
enum { KVR__SPARE_MIN = 32 * 1024 };
char *kvr__spare_take(size_t least, size_t most, size_t *cap);
/* Of a body that is over, on any thread. */
void kvr__spare_or_free(struct kvr_http_shared *shared, char *data, size_t cap);
void kvr__spares_age(void); /* each second */

#endif
