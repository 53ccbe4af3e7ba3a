/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages of Envoy's external processing, as an endpoint picker has them (envoy.service.ext_proc.v3), and of gRPC's health service
 * (grpc.health.v1). Their shape is src/wire/ext_proc.proto; members that are not in it are passed over, so those of later releases are.
 *
 * A message has one part of an HTTP request or of its response, and what Envoy knows about it:
 *
 *     kind                    headers     body, end_of_stream         beside it
 *     KVR_EXT_PROC_*_HEADERS  yes         end: no body follows        modes (of the first message), subset, served, upstream_address
 *     KVR_EXT_PROC_*_BODY                 a piece, or the whole one
 *     KVR_EXT_PROC_*_TRAILERS yes
 *
 * Pure functions. Threads: one per object.
 */
#ifndef KVR_WIRE_EXT_PROC_H
#define KVR_WIRE_EXT_PROC_H

#include "base/base.h"
#include "base/buf.h"

enum {
    KVR_EXT_PROC_HEADERS_MAX = 1024, /* of one message */
    KVR_EXT_PROC_HEADERS_FIRST = 64, /* that need no memory of their own */
    KVR_EXT_PROC_SUBSET_MAX = 4096,  /* endpoints of a subset */
    KVR_EXT_PROC_SET_MAX = 32,       /* headers that an answer sets, and as many that it removes */
    KVR_EXT_PROC_PIECE_MAX = 62000,  /* bytes of a body in one answer */
    KVR_EXT_PROC_PIECE_HEAD_MAX = 22
};

/* What the message has; the numbers are those of its fields in a ProcessingRequest. */
enum kvr_ext_proc_kind {
    KVR_EXT_PROC_OTHER = 0, /* one that is not known here */
    KVR_EXT_PROC_REQUEST_HEADERS = 2,
    KVR_EXT_PROC_RESPONSE_HEADERS,
    KVR_EXT_PROC_REQUEST_BODY,
    KVR_EXT_PROC_RESPONSE_BODY,
    KVR_EXT_PROC_REQUEST_TRAILERS,
    KVR_EXT_PROC_RESPONSE_TRAILERS
};

/* How Envoy sends a body; its numbers. Others may come. */
enum kvr_ext_proc_mode {
    KVR_EXT_PROC_NONE,
    KVR_EXT_PROC_STREAMED,
    KVR_EXT_PROC_BUFFERED,
    KVR_EXT_PROC_BUFFERED_PARTIAL,
    KVR_EXT_PROC_FULL_DUPLEX_STREAMED,
    KVR_EXT_PROC_GRPC
};

struct kvr_ext_proc_text {
    const char *ptr; /* NULL: absent */
    size_t len;
};

struct kvr_ext_proc_header {
    struct kvr_ext_proc_text name, value;
};

struct kvr_ext_proc_modes {
    int request_body, response_body; /* enum kvr_ext_proc_mode */
};

/* Texts lie in the bytes that were read. */
struct kvr_ext_proc_message {
    enum kvr_ext_proc_kind kind;
    bool end_of_stream;
    bool observability; /* nobody waits for an answer */
    const struct kvr_ext_proc_header *headers;
    size_t headers_n;
    struct kvr_ext_proc_text body; /* "" when there is none */
    bool has_modes;
    struct kvr_ext_proc_modes modes;
    bool has_subset; /* the choice is among these; there may be none of them */
    const struct kvr_ext_proc_text *subset;
    size_t subset_n;
    struct kvr_ext_proc_text served;           /* the endpoint that Envoy's load balancer says it has chosen */
    struct kvr_ext_proc_text code_details;     /* why the response is what it is: "via_upstream", or Envoy's own words for one of its own */
    struct kvr_ext_proc_text upstream_address; /* the one that the response came from */
    /* Where the lists lie: headers here, as far as they fit. */
    struct kvr_ext_proc_header *more_headers;
    struct kvr_ext_proc_text *more_subset;
    struct kvr_ext_proc_header first_headers[KVR_EXT_PROC_HEADERS_FIRST];
};

/* Returns: 0; -KVR_EFORMAT; -KVR_ELIMIT: more headers, or endpoints of a subset, than may be; -KVR_ENOMEM. Nothing is to be freed after an
 * error. */
int kvr_ext_proc_read(const uint8_t *data, size_t len, struct kvr_ext_proc_message *out);
void kvr_ext_proc_free(struct kvr_ext_proc_message *m);
/* The value of the first header of that name, which must be in lower case as HTTP/2 has it; absent: ptr is NULL. */
struct kvr_ext_proc_text kvr_ext_proc_header_get(const struct kvr_ext_proc_message *m, const char *name);

/* What an answer changes of the request or the response. */
struct kvr_ext_proc_mutation {
    const struct kvr_ext_proc_header *set; /* replaced when they are there, else added; KVR_EXT_PROC_SET_MAX at most */
    size_t set_n;
    const char *const *remove; /* names; as many at most */
    size_t remove_n;
    struct kvr_ext_proc_text body; /* of a body's answer: all of it, in the place of what came; absent: nothing */
    bool clear_route_cache;
    struct kvr_ext_proc_text destination;   /* for Envoy's load balancer, as dynamic metadata; absent: none */
    const struct kvr_ext_proc_modes *modes; /* how bodies are sent from now on, both; NULL: as before */
};

/* Each appends one whole ProcessingResponse, but kvr_ext_proc_piece_head. */

/* The answer to a message of that kind. `m` NULL: go on, nothing changes. Of trailers only `set` and `remove` count. */
void kvr_ext_proc_put_answer(struct kvr_buf *out, enum kvr_ext_proc_kind kind, const struct kvr_ext_proc_mutation *m);
/* Where Envoy sends a body and takes what comes back instead (FULL_DUPLEX_STREAMED): what stands before the `len` bytes of a piece of it,
 * KVR_EXT_PROC_PIECE_MAX at most. Returns: its length. */
size_t kvr_ext_proc_piece_head(uint8_t out[KVR_EXT_PROC_PIECE_HEAD_MAX], enum kvr_ext_proc_kind kind, size_t len, bool end);
/* Envoy answers the client with this itself. `details`: for its access log; NULL: none. */
struct kvr_ext_proc_immediate {
    int status;
    const struct kvr_ext_proc_header *headers; /* KVR_EXT_PROC_SET_MAX at most */
    size_t headers_n;
    struct kvr_ext_proc_text body;
    const char *details;
};
void kvr_ext_proc_put_immediate(struct kvr_buf *out, const struct kvr_ext_proc_immediate *m);
/* Asks Envoy to wait so long for the answer, once for a message. */
void kvr_ext_proc_put_timeout(struct kvr_buf *out, uint64_t ms);

/* ---- health ------------------------------------------------------------------------------------------ */

enum kvr_health { KVR_HEALTH_UNKNOWN, KVR_HEALTH_SERVING, KVR_HEALTH_NOT_SERVING, KVR_HEALTH_SERVICE_UNKNOWN };

enum { KVR_HEALTH_NAME_MAX = 256 };

/* The service that is asked about; "" for the whole server. Returns: 0, -KVR_EFORMAT, or -KVR_ELIMIT when its name is longer than may be.
 */
int kvr_health_read(const uint8_t *data, size_t len, char service[KVR_HEALTH_NAME_MAX + 1]);
void kvr_health_put(struct kvr_buf *out, enum kvr_health status);

#endif
