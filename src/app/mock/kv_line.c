/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses, and lines of JSON over TCP, for both ends of the mocks' side channel (app/mock/kv.h). */
#include "app/mock/kv.h"

#include <string.h>

#include "app/mock/state.h"
#include "base/buf.h"

struct sent {
    uv_write_t write;
    struct kvr_buf bytes;
};

int mock_kv_address(const char *host, uint16_t port, struct sockaddr_storage *out)
{
    memset(out, 0, sizeof *out);
    if (strcmp(host, "localhost") == 0) host = "127.0.0.1";
    if (uv_ip4_addr(host, port, (struct sockaddr_in *)out) == 0) return 0;
    return uv_ip6_addr(host, port, (struct sockaddr_in6 *)out) == 0 ? 0 : -1;
}

/* When it listens on every address, others are on this machine. */
const char *mock_kv_own_host(const struct mock *m)
{
    const char *host = m->o->host;
    return strcmp(host, "0.0.0.0") && strcmp(host, "::") ? host : "127.0.0.1";
}

int mock_kv_line_init(struct mock_kv_line *l, uv_loop_t *loop)
{
    l->json = kvr_json_parser_new();
    l->in = calloc(1, sizeof *l->in);
    if (!l->json || !l->in || uv_tcp_init(loop, &l->tcp)) {
        kvr_json_parser_free(l->json);
        free(l->in);
        l->json = NULL;
        return UV_ENOMEM;
    }
    l->tcp.data = l;
    return 0;
}

static void give_room(uv_handle_t *h, size_t suggested, uv_buf_t *out)
{
    struct mock_kv_line *l = h->data;
    bool room = kvr_buf_reserve(l->in, suggested) == 0;
    *out = uv_buf_init(room ? l->in->data + l->in->len : NULL, room ? (unsigned)suggested : 0);
}

/* Returns: whether the line is still open and what it said was one. */
static bool take_line(struct mock_kv_line *l, const char *text, size_t len)
{
    struct kvr_json said;
    if (len > l->max || kvr_json_parse(l->json, text, len, &said, NULL) || kvr_json_type_of(said) != KVR_JSON_OBJECT) return false;
    l->on_line(l, said);
    return true;
}

/* Whole lines are handed on, the rest is kept. `fresh`: bytes from here on were not looked at yet. */
static bool take_lines(struct mock_kv_line *l, size_t fresh)
{
    size_t begin = 0;
    const char *end;
    while ((end = memchr(l->in->data + fresh, '\n', l->in->len - fresh))) {
        size_t at = (size_t)(end - l->in->data);
        if (!take_line(l, l->in->data + begin, at - begin)) return false;
        if (uv_is_closing((uv_handle_t *)&l->tcp)) return true;
        begin = fresh = at + 1;
    }
    memmove(l->in->data, l->in->data + begin, l->in->len - begin);
    l->in->len -= begin;
    return l->in->len <= l->max;
}

static void on_bytes(uv_stream_t *s, ssize_t n, const uv_buf_t *)
{
    struct mock_kv_line *l = s->data;
    size_t fresh = l->in->len;
    if (n == 0) return;
    l->status = n < 0 ? (int)n : 0;
    if (n > 0) l->in->len += (size_t)n;
    if (n > 0 && take_lines(l, fresh)) return;
    uv_read_stop(s);
    l->on_end(l);
}

int mock_kv_line_listen(struct mock_kv_line *l)
{
    return uv_read_start((uv_stream_t *)&l->tcp, give_room, on_bytes);
}

/* What is wrong the reader sees. */
static void on_sent(uv_write_t *w, int)
{
    struct sent *s = w->data;
    kvr_buf_free(&s->bytes);
    free(s);
}

void mock_kv_line_send(struct mock_kv_line *l, struct kvr_buf *b)
{
    struct sent *s = calloc(1, sizeof *s);
    kvr_buf_add(b, "\n", 1);
    if (!s || b->failed) {
        free(s);
        kvr_buf_free(b);
        return;
    }
    s->bytes = *b;
    s->write.data = s;
    *b = (struct kvr_buf){0};
    uv_buf_t bytes = uv_buf_init(s->bytes.data, (unsigned)s->bytes.len);
    if (uv_write(&s->write, (uv_stream_t *)&l->tcp, &bytes, 1, on_sent) == 0) return;
    kvr_buf_free(&s->bytes);
    free(s);
}

static void on_finished(uv_shutdown_t *r, int)
{
    struct mock_kv_line *l = r->data;
    if (!uv_is_closing((uv_handle_t *)&l->tcp)) l->on_end(l);
}

void mock_kv_line_finish(struct mock_kv_line *l)
{
    l->end.data = l;
    uv_read_stop((uv_stream_t *)&l->tcp);
    if (uv_shutdown(&l->end, (uv_stream_t *)&l->tcp, on_finished)) l->on_end(l);
}

void mock_kv_line_close(struct mock_kv_line *l, uv_close_cb closed)
{
    uv_close((uv_handle_t *)&l->tcp, closed);
    kvr_json_parser_free(l->json);
    kvr_buf_free(l->in);
    free(l->in);
    l->json = NULL;
    l->in = NULL;
}
