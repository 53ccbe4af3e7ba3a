/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists and watches (net/kube/kube.h).
 *
 *     RESTING --timer--> ask: a list, or a watch where a version is known --> on_head, on_body, on_done | on_failed
 *        ^                                                                       |
 *        '--------------------------------- rest(ms) ----------------------------'
 *
 * One timer for each watch: while RESTING it ends the rest, while LISTING it is the time-out, while WATCHING the patience with silence.
 */
#include "net/kube/kube.h"

#include <fcntl.h>
#include <unistd.h>

#include <kvroute/api.h>

#include "base/log.h"
#include "net/http/http.h"

enum {
    PAGE_OBJECTS = 500,
    PAGE_MAX = 64 << 20,
    LINE_MAX_BYTES = 4 << 20,
    ERROR_MAX = 64 << 10,
    TOKEN_MAX = 16 << 10,
    TOKEN_AGE_MS = 60000,
    LIST_MS = 60000,
    SILENCE_MS = 120000,
    REST_MS = 500,
    REST_MAX_MS = 30000,
    SHORT_MS = 1000, /* a watch that ends sooner did not end as it should */
    WATCH_MIN_S = 300,
    WATCH_SPREAD_S = 300
};

struct kvr_kube {
    uv_loop_t *loop;
    struct kvr_http_client *client;
    struct kvr_json_parser *json;
    struct kvr_endpoint endpoint;
    const struct kvr_tls_peer *tls;
    struct kvr_rng rng;
    char *token_file;
    uint64_t token_ms; /* when it was read */
    char token[TOKEN_MAX];
};

enum step { RESTING, LISTING, WATCHING };

struct kvr_kube_watch {
    struct kvr_kube *kube;
    struct kvr_kube_watch_config config;
    char *path, *query; /* query: what is asked of both, with an & behind it */
    const char *resource;
    uv_timer_t timer;
    enum step step;
    struct kvr_http_call *call;
    struct kvr_buf text; /* the page; the line that is not whole yet; what an answer that is no success says */
    char version[KVR_KUBE_VERSION_MAX], more[KVR_KUBE_CONTINUE_MAX]; /* version "": a list is due; more "": from its beginning */
    unsigned failures;                                               /* since something was heard */
    bool knows, complained;                                          /* a list was whole; a failure is in the log, and not its end */
    uint64_t began_ms, retry_after_ms;
    struct kvr_kube_stats stats;
};

/* ---- the server ------------------------------------------------------------------------------------------------------ */

/* Returns: whether it is another one than before. */
static bool read_token(struct kvr_kube *k)
{
    char text[TOKEN_MAX];
    if (!k->token_file || !k->endpoint.tls) return false;
    k->token_ms = uv_now(k->loop);
    int fd = open(k->token_file, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0) close(fd);
    size_t len = 0;
    while (n > 0 && len < (size_t)n && text[len] > ' ' && text[len] < 0x7f) len++;
    text[len] = 0;
    if (!len) {
        kvr_log_warning_of(kvr_log_key(0, 0, "token"), "kvroute: kubernetes: no token in '%s'; %s", k->token_file,
                           k->token[0] ? "the one of before is used" : "none is sent");
        return false;
    }
    if (strcmp(text, k->token) == 0) return false;
    memcpy(k->token, text, len + 1);
    return true;
}

int kvr_kube_open(const struct kvr_kube_config *config, struct kvr_kube **out, char *err, size_t cap)
{
    struct kvr_kube *k = calloc(1, sizeof *k);
    snprintf(err, cap, "out of memory");
    if (!k) return -1;
    k->loop = config->loop;
    k->rng.state = kvr_secret();
    k->json = kvr_json_parser_new();
    k->token_file = config->token_file ? strdup(config->token_file) : NULL;
    if (!k->json || (config->token_file && !k->token_file)) goto fail;
    if (kvr_endpoint_parse_any(config->api, strlen(config->api), &k->endpoint)) {
        snprintf(err, cap, "'%.200s' is no http or https URL", config->api);
        goto fail;
    }
    if (k->endpoint.tls && config->ca) {
        const struct kvr_tls_peer_config tls = {.ca = config->ca};
        if (!(k->tls = kvr_tls_peer_get(&tls, err, cap))) goto fail;
        kvr_tls_peer_hold(k->tls);
        kvr_endpoint_trust(&k->endpoint, k->tls);
    }
    if (kvr_http_client_create(config->loop, 30, &k->client)) goto fail;
    (void)read_token(k);
    *out = k;
    return 0;
fail:
    kvr_kube_close(k);
    return -1;
}

void kvr_kube_close(struct kvr_kube *k)
{
    if (!k) return;
    kvr_http_client_close(k->client);
    kvr_tls_peer_let_go(k->tls);
    if (k->json) kvr_json_parser_free(k->json);
    free(k->token_file);
    free(k);
}

/* ---- when it is asked ------------------------------------------------------------------------------------------------ */

static void on_time(uv_timer_t *t);

static void set_timer(struct kvr_kube_watch *w, uint64_t ms)
{
    uv_timer_start(&w->timer, on_time, ms, 0);
}

static void rest(struct kvr_kube_watch *w, uint64_t ms)
{
    w->step = RESTING;
    w->stats.watching = 0;
    w->more[0] = 0;
    w->text.len = 0;
    set_timer(w, ms);
}

/* Something went wrong. at_once: the first time, without a rest. */
static void rest_longer(struct kvr_kube_watch *w, bool at_once)
{
    if (w->stats.watching && uv_now(w->kube->loop) - w->began_ms > REST_MAX_MS) w->failures = 0;
    uint64_t ms = KVR_MIN((uint64_t)REST_MS << KVR_MIN(w->failures, 10u), (uint64_t)REST_MAX_MS);
    w->stats.errors++;
    ms = ms / 2 + (uint64_t)(kvr_rng_unit(&w->kube->rng) * (double)(ms / 2));
    if (at_once && !w->failures) ms = 0;
    w->failures++;
    rest(w, KVR_MAX(ms, w->retry_after_ms));
}

static void failed(struct kvr_kube_watch *w, const char *why)
{
    kvr_log_warning_of(kvr_log_key((uintptr_t)w, 0, why), "kvroute: kubernetes: %s: %s; %s", w->resource, why,
                       w->knows ? "what is known of them stays" : "none is known yet");
    w->complained = true;
    rest_longer(w, false);
}

static void is_fine(struct kvr_kube_watch *w)
{
    if (w->complained) kvr_log("kvroute: kubernetes: %s: the API server tells of them again", w->resource);
    w->complained = false;
}

static void list_again(struct kvr_kube_watch *w, const char *why)
{
    kvr_log_debug("kvroute: kubernetes: %s: %s; they are listed again", w->resource, why);
    w->version[0] = 0;
    rest_longer(w, true);
}

/* ---- answers --------------------------------------------------------------------------------------------------------- */

/* What the server says where it does not say what was asked for. */
static void refused(struct kvr_kube_watch *w, int http)
{
    struct kvr_kube_status s = {.code = 0};
    struct kvr_json root;
    char why[640];
    if (!w->text.failed && w->text.len && kvr_json_parse(w->kube->json, w->text.data, w->text.len, &root, NULL) == 0)
        kvr_kube_status_read(root, &s);
    if (http == 410) {
        list_again(w, "410");
        return;
    }
    if (http == 401 && read_token(w->kube)) {
        kvr_log("kvroute: kubernetes: %s: the token is not taken any more, and there is a new one", w->resource);
        rest_longer(w, true);
        return;
    }
    const char *verb = w->step == LISTING ? "list" : "watch", *hint = "";
    if (http == 403) hint = "; its role needs list and watch of them";
    if (http == 404) hint = "; the API server does not know them, or not here";
    snprintf(why, sizeof why, "cannot %s %s: %d %s%s%s%s", verb, w->path, http, kvr_http_reason(http), s.message[0] ? ": " : "", s.message,
             hint);
    failed(w, why);
}

/* Returns: false: the watch is over. */
static bool take_line(struct kvr_kube_watch *w, const char *line, size_t len)
{
    struct kvr_json root;
    struct kvr_kube_event e;
    struct kvr_kube_status s;
    if (!len || (len == 1 && *line == '\r')) return true;
    if (kvr_json_parse(w->kube->json, line, len, &root, NULL) || !kvr_kube_event_read(root, &e)) {
        w->version[0] = 0;
        failed(w, "a line of the watch cannot be read");
        return false;
    }
    if (e.kind == KVR_KUBE_ERROR) {
        kvr_kube_status_read(e.object, &s);
        if (s.code == 410) list_again(w, s.message);
        else failed(w, s.message[0] ? s.message : "the watch ended with an error");
        return false;
    }
    w->stats.events++;
    memcpy(w->version, e.version, sizeof w->version);
    w->failures = 0;
    is_fine(w);
    if (e.kind != KVR_KUBE_BOOKMARK)
        w->config.handler->object(w->config.ctx, e.object, e.kind == KVR_KUBE_GONE ? KVR_KUBE_DELETED : KVR_KUBE_CHANGED);
    return true;
}

/* Whole lines of what has come; what is behind them is kept. Returns: false: the watch is over. */
static bool take_lines(struct kvr_kube_watch *w, const char *data, size_t len)
{
    while (len) {
        const char *end = memchr(data, '\n', len);
        size_t n = end ? (size_t)(end - data) : len;
        bool kept = w->text.len || !end;
        if (kept) kvr_buf_add(&w->text, data, n);
        if (w->text.failed || w->text.len > LINE_MAX_BYTES) {
            kvr_buf_free(&w->text);
            w->version[0] = 0;
            failed(w, "a line of the watch is longer than 4 MiB, or than there is memory for");
            return false;
        }
        if (!end) return true;
        bool goes_on = take_line(w, kept ? w->text.data : data, kept ? w->text.len : n);
        w->text.len = 0;
        if (!goes_on) return false;
        data = end + 1;
        len -= n + 1;
    }
    return true;
}

static void ask(struct kvr_kube_watch *w);

static void take_page(struct kvr_kube_watch *w)
{
    struct kvr_kube_page page;
    struct kvr_json root;
    if (w->text.failed || kvr_json_parse(w->kube->json, w->text.data ? w->text.data : "", w->text.len, &root, NULL) ||
        !kvr_kube_page_read(root, &page)) {
        kvr_buf_free(&w->text);
        failed(w, "the list cannot be read");
        return;
    }
    if (!w->more[0]) w->config.handler->begin(w->config.ctx);
    for (struct kvr_json_iter i = kvr_json_iter(page.items); kvr_json_next(&i);)
        w->config.handler->object(w->config.ctx, i.value, KVR_KUBE_LISTED);
    memcpy(w->more, page.more, sizeof w->more);
    kvr_buf_free(&w->text); /* pages are long, lines are not */
    if (!w->more[0]) {
        memcpy(w->version, page.version, sizeof w->version);
        w->knows = true;
        w->stats.lists++;
        is_fine(w);
        w->config.handler->whole(w->config.ctx);
    }
    ask(w);
}

static void on_head(struct kvr_http_call *, void *ctx, int status, const struct kvr_headers *headers, int64_t)
{
    struct kvr_kube_watch *w = ctx;
    struct kvr_text after = kvr_headers_get(headers, "retry-after");
    uint64_t seconds;
    if (status != 200 && after.ptr && kvr_parse_u64(after.ptr, after.len, 300, &seconds)) w->retry_after_ms = seconds * 1000;
    w->stats.watching = status == 200 && w->step == WATCHING;
}

static void on_body(struct kvr_http_call *call, void *ctx, const char *data, size_t len)
{
    struct kvr_kube_watch *w = ctx;
    int status = kvr_http_call_status(call);
    if (status == 200 && w->step == WATCHING) {
        set_timer(w, SILENCE_MS);
        w->call = NULL; /* while it may end: nobody else ends it then */
        if (take_lines(w, data, len)) w->call = call;
        else kvr_http_call_cancel(call);
        return;
    }
    size_t max = status == 200 ? PAGE_MAX : ERROR_MAX;
    if (w->text.len + len <= max) kvr_buf_add(&w->text, data, len);
    else w->text.failed = true;
}

static void on_done(struct kvr_http_call *call, void *ctx)
{
    struct kvr_kube_watch *w = ctx;
    int status = kvr_http_call_status(call);
    w->call = NULL;
    if (status != 200) refused(w, status);
    else if (w->step == LISTING) take_page(w);
    else if (uv_now(w->kube->loop) - w->began_ms < SHORT_MS) rest_longer(w, false);
    else rest(w, 0);
}

static void on_failed(struct kvr_http_call *, void *ctx, enum kvr_http_failure why, const char *text)
{
    struct kvr_kube_watch *w = ctx;
    char said[320];
    w->call = NULL;
    snprintf(said, sizeof said, "the API server at %s cannot be asked: %s", w->kube->endpoint.authority, text);
    if (why == KVR_HTTP_TRUNCATED && w->step == WATCHING) rest_longer(w, false); /* servers do so when they end */
    else failed(w, said);
}

/* ---- questions ------------------------------------------------------------------------------------------------------- */

static void put_head(struct kvr_kube_watch *w, struct kvr_buf *h)
{
    struct kvr_kube *k = w->kube;
    kvr_buf_printf(h, "GET %s%s?%s", k->endpoint.base, w->path, w->query);
    if (w->step == LISTING) {
        kvr_buf_printf(h, "limit=%d", PAGE_OBJECTS);
        if (w->more[0]) kvr_buf_str(h, "&continue=");
        kvr_kube_put_query(h, w->more);
    } else {
        unsigned seconds = WATCH_MIN_S + kvr_rng_below(&k->rng, WATCH_SPREAD_S + 1);
        kvr_buf_printf(h, "watch=1&allowWatchBookmarks=true&timeoutSeconds=%u&resourceVersion=", seconds);
        kvr_kube_put_query(h, w->version);
    }
    kvr_buf_printf(h, " HTTP/1.1\r\nHost: %s\r\nAccept: application/json\r\nUser-Agent: kvroute/%s\r\n", k->endpoint.authority,
                   KVR_VERSION_STRING);
    if (k->token[0]) kvr_buf_printf(h, "Authorization: Bearer %s\r\n", k->token);
    kvr_buf_str(h, "\r\n");
}

static void ask(struct kvr_kube_watch *w)
{
    static const struct kvr_http_call_handler handler = {on_head, on_body, on_done, on_failed};
    struct kvr_kube *k = w->kube;
    struct kvr_buf head = {0};
    if (uv_now(k->loop) - k->token_ms >= TOKEN_AGE_MS) (void)read_token(k);
    w->step = w->version[0] && !w->more[0] ? WATCHING : LISTING;
    w->began_ms = uv_now(k->loop);
    w->retry_after_ms = 0;
    if (w->text.failed) kvr_buf_free(&w->text);
    kvr_buf_reset(&w->text);
    put_head(w, &head);
    const struct kvr_http_call_config call = {.endpoint = &k->endpoint,
                                              .head = head.data,
                                              .head_len = head.len,
                                              .once = w->step == WATCHING,
                                              .connect_timeout_s = 10,
                                              .handler = &handler,
                                              .ctx = w};
    w->call = head.failed ? NULL : kvr_http_call_start(k->client, &call);
    kvr_buf_free(&head);
    if (w->call) set_timer(w, w->step == LISTING ? LIST_MS : SILENCE_MS);
    else failed(w, "out of memory");
}

static void on_time(uv_timer_t *t)
{
    struct kvr_kube_watch *w = t->data;
    if (w->step == RESTING) {
        ask(w);
        return;
    }
    kvr_http_call_cancel(w->call);
    w->call = NULL;
    if (w->step == LISTING || !w->stats.watching) failed(w, "the API server gives no whole answer");
    else rest(w, 0);
}

/* ---- life ------------------------------------------------------------------------------------------------------------ */

static void watch_free(struct kvr_kube_watch *w)
{
    kvr_buf_free(&w->text);
    free(w->path);
    free(w->query);
    free(w);
}

static char *query_of(const struct kvr_kube_watch_config *config)
{
    struct kvr_buf b = {0};
    if (config->label_selector) {
        kvr_buf_str(&b, "labelSelector=");
        kvr_kube_put_query(&b, config->label_selector);
        kvr_buf_str(&b, "&");
    }
    if (config->object_name) {
        kvr_buf_str(&b, "fieldSelector=metadata.name%3D");
        kvr_kube_put_query(&b, config->object_name);
        kvr_buf_str(&b, "&");
    }
    kvr_buf_add(&b, "", 1);
    if (!b.failed) return b.data;
    kvr_buf_free(&b);
    return NULL;
}

struct kvr_kube_watch *kvr_kube_watch_start(struct kvr_kube *k, const struct kvr_kube_watch_config *config)
{
    struct kvr_kube_watch *w = calloc(1, sizeof *w);
    if (!w) return NULL;
    w->kube = k;
    w->config = *config;
    w->path = strdup(config->path);
    w->query = query_of(config);
    if (!w->path || !w->query) {
        watch_free(w);
        return NULL;
    }
    w->resource = strrchr(w->path, '/') + 1;
    uv_timer_init(k->loop, &w->timer);
    w->timer.data = w;
    rest(w, 0);
    return w;
}

static void on_closed(uv_handle_t *h)
{
    watch_free(h->data);
}

void kvr_kube_watch_stop(struct kvr_kube_watch *w)
{
    if (!w) return;
    if (w->call) kvr_http_call_cancel(w->call);
    w->call = NULL;
    uv_close((uv_handle_t *)&w->timer, on_closed);
}

void kvr_kube_watch_stats(const struct kvr_kube_watch *w, struct kvr_kube_stats *out)
{
    *out = w->stats;
}
