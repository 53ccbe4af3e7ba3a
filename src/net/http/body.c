/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies that are shared by reference count: the last holder frees the bytes, on whichever thread. */
#include "net/http/internal.h"

#include <string.h>

#include "wire/prom_page.h"

enum { SMALL_BODY = 64 * 1024 };

/* With room for so many bytes behind it. */
static struct kvr_body *body_new(size_t room)
{
    struct kvr_body *b = room <= SIZE_MAX - sizeof *b ? malloc(sizeof *b + room) : NULL;
    if (!b) return NULL;
    *b = (struct kvr_body){.data = (char *)(b + 1)};
    atomic_init(&b->refs, 1);
    return b;
}

struct kvr_body *kvr_body_take(struct kvr_buf *bytes)
{
    struct kvr_body *b = bytes->failed ? NULL : body_new(0);
    if (!b) return NULL;
    b->data = bytes->data;
    b->len = bytes->len;
    *bytes = (struct kvr_buf){0};
    return b;
}

struct kvr_body *kvr__body_join(struct kvr_text first, struct kvr_text second)
{
    struct kvr_body *b = second.len <= SIZE_MAX - first.len ? body_new(first.len + second.len) : NULL;
    if (!b) return NULL;
    b->len = first.len + second.len;
    if (first.len) memcpy(b->data, first.ptr, first.len);
    if (second.len) memcpy(b->data + first.len, second.ptr, second.len);
    return b;
}

struct kvr_body *kvr_body_copy(const void *data, size_t len)
{
    return kvr__body_join((struct kvr_text){data, len}, (struct kvr_text){0});
}

struct kvr_body *kvr_body_derive(const struct kvr_body *from, struct kvr_buf *bytes)
{
    size_t n = bytes->cap;
    if (from->shared && !kvr__bodies_reserve(from->shared, n, n)) return NULL;
    struct kvr_body *b = kvr_body_take(bytes);
    if (b) {
        b->shared = from->shared;
        b->held = n;
    } else if (from->shared) {
        kvr__bodies_release(from->shared, n);
    }
    return b;
}

struct kvr_body *kvr_body_ref(struct kvr_body *b)
{
    if (b) atomic_fetch_add_explicit(&b->refs, 1, memory_order_relaxed);
    return b;
}

void kvr_body_unref(struct kvr_body *b)
{
    if (!b || atomic_fetch_sub_explicit(&b->refs, 1, memory_order_acq_rel) != 1) return;
    if (b->shared) {
        kvr__bodies_release(b->shared, b->held);
        kvr__spare_or_free(b->shared, b->data, b->held);
    } else if (b->data != (char *)(b + 1)) {
        free(b->data);
    }
    free(b);
}

bool kvr__bodies_try(struct kvr_http_shared *s, size_t n, size_t whole)
{
    uint64_t held = atomic_load(&s->bodies_held), max = s->bodies_max - (whole > SMALL_BODY ? s->bodies_max / 4 : 0);
    do {
        if (s->bodies_max && (held > max || n > max - held)) return false;
    } while (!atomic_compare_exchange_weak(&s->bodies_held, &held, held + n));
    return true;
}

bool kvr__bodies_reserve(struct kvr_http_shared *s, size_t n, size_t whole)
{
    bool may = kvr__bodies_try(s, n, whole);
    if (!may) atomic_fetch_add(&s->bodies_refused, 1);
    return may;
}

void kvr__bodies_release(struct kvr_http_shared *s, size_t n)
{
    atomic_fetch_sub(&s->bodies_held, n);
}

void kvr_http_shared_metrics(const struct kvr_http_port *ports, size_t n, struct kvr_prom_page *out)
{
    static const struct kvr_prom_member rows[] = {
#define ROW(name, type, field, help) {name, type, help, offsetof(struct kvr_http_shared, field)}
        ROW("request_bodies_bytes", "gauge", bodies_held, "Memory held for request bodies"),
        ROW("request_bodies_spare_bytes", "gauge", bodies_spare, "Memory of large request bodies kept for the next ones"),
        ROW("request_bodies_refused_total", "counter", bodies_refused, "Requests answered with 503: no budget for bodies"),
        ROW("request_bodies_over_share_total", "counter", bodies_over_share,
            "Requests answered with 429: their API key, or address, has used its share"),
        ROW("write_timeouts_total", "counter", write_timeouts, "Clients cut off: they took nothing of what was queued"),
        ROW("answers_broken_total", "counter", answers_broken, "Answers broken off for want of memory"),
        ROW("accept_failures_total", "counter", accept_failures, "Connections not taken for want of memory or descriptors"),
        ROW("evicted_connections_total", "counter", evicted, "Idle or slow connections closed for new ones"),
        ROW("tls_handshakes_total", "counter", handshakes, "TLS handshakes that succeeded"),
        ROW("tls_handshakes_failed_total", "counter", handshakes_failed, "Connections that ended before TLS stood"),
        ROW("address_connections_refused_total", "counter", addresses_refused, "Connections closed by --max-connections-per-address"),
        ROW("delayed_connections_total", "counter", delayed, "Connections that waited in the kernel's queue"),
#undef ROW
    };
    for (size_t k = 0; k < KVR_ARRAY_LEN(rows); k++) {
        kvr_prom_family(out, "kvroute_http_", rows[k].name, rows[k].type, rows[k].help);
        for (size_t i = 0; i < n; i++) {
            const _Atomic uint64_t *v = (const _Atomic uint64_t *)(const void *)((const char *)ports[i].shared + rows[k].at);
            kvr_prom_put_u64(out, KVR_PROM_PAIRS(KVR_PROM_TEXT("port", ports[i].name)), atomic_load(v));
        }
    }
}
