/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See the header. A question is a struct kvr_remote_query in the list `open` until it is answered, has failed or is given up.
 * NATS answers arrive on a thread of the client library: they are copied into `mail` under its lock, and the loop is woken.
 */
#include "net/replication/remote_index.h"

#include <pthread.h>
#include <string.h>
#include <kvroute/hash.h>

#include "base/lock.h"
#include "base/log.h"
#include "wire/index_question.h"
#include "wire/index_service.h"

enum {
    PROBE_MS = 200,
    REVALIDATE_MS = 5000,
    GATHER_MS = 150,
    FAILURES_MAX = 3,
    ANSWER_MAX = 64 << 20,
    TICK_MS = 10,
    MAIL_MAX = 16 << 20,
    NATS_HASHES_MAX = 40000, /* a message of NATS holds a megabyte */
    NATS_PACKED_MAX = 120000
};

enum kind { QUERY, RECORD, INFO };

struct kvr_remote_query {
    struct kvr_remote_query *next;
    struct kvr_remote_index *owner;
    enum kind kind;
    uint64_t number, deadline_ms;
    kvr_remote_done *done;
    void *ctx;
    uint32_t blocks;
    bool packed;
    struct kvr_http_call *call;
    struct kvr_buf body, answer;
    /* INFO over NATS gathers the answers of all servers */
    unsigned answers;
    struct kvr_service_info info;
    char why[256], misfit[256];
};

struct mail {
    struct mail *next;
    uint64_t number;
    size_t len;
    char data[];
};

enum state { UNKNOWN, GOOD, BAD };

struct kvr_remote_index {
    struct kvr_remote_config c;
    struct kvr_endpoint endpoint;
    char scope[192], inbox[128], why[256];
    struct kvr_json_parser *json;
    uv_timer_t tick;
    uv_async_t wake;
    int handles;
    struct kvr_remote_query *open;
    enum state state;
    unsigned failures;
    bool probing, packed; /* the latter: as it said */
    uint64_t numbers, instance, next_probe_ms;
    struct kvr_nats_sub *sub;
    struct kvr_lock lock; /* mail */
    struct mail *mail, **mail_tail;
    size_t mail_bytes;
};

#define COUNT(r, name) atomic_fetch_add_explicit(&(r)->c.stats->name, 1, memory_order_relaxed)

/* The last token of a service subject: the model, in letters that NATS allows; told apart by a hash when changed. */
static void service_subject(char *out, size_t cap, const char *scope, const char *service, const char *model)
{
    char token[96];
    size_t n = 0;
    bool changed = false;
    for (const char *p = model; *p; p++) {
        bool ok = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') || *p == '-' || *p == '_';
        changed |= !ok || n == 64;
        if (n < 64) token[n++] = ok ? *p : '-';
    }
    token[n] = 0;
    if (changed) snprintf(token + n, sizeof token - n, "-%08x", (unsigned)kvr_hash_bytes(model, strlen(model), 0));
    snprintf(out, cap, "%s.%s.%s", scope, service, n ? token : "_");
}

/* ---- state --------------------------------------------------------------------------------------------------------- */

static void set_state(struct kvr_remote_index *r, enum state s, const char *why)
{
    if (s != r->state || strcmp(why, r->why) != 0) {
        if (s == GOOD) kvr_log("kvroute: the remote index answers");
        else if (why[0]) kvr_log_warning("kvroute: the remote index is not used: %s", why);
    }
    if ((s == GOOD) != (r->state == GOOD)) atomic_fetch_add(&r->c.stats->good, s == GOOD ? 1 : -1);
    r->state = s;
    r->failures = 0;
    snprintf(r->why, sizeof r->why, "%s", why);
    r->next_probe_ms = kvr_now_ms() + (s == GOOD ? REVALIDATE_MS : PROBE_MS);
}

static void note_failure(struct kvr_remote_index *r, const char *why, bool for_certain)
{
    if (r->state == GOOD && (for_certain || ++r->failures >= FAILURES_MAX)) set_state(r, BAD, why);
}

/* ---- questions ----------------------------------------------------------------------------------------------------- */

static void drop(struct kvr_remote_query *q)
{
    struct kvr_remote_query **at = &q->owner->open;
    while (*at && *at != q) at = &(*at)->next;
    if (*at) *at = q->next;
    if (q->kind == INFO) q->owner->probing = false;
    if (q->call) kvr_http_call_cancel(q->call);
    kvr_buf_free(&q->body);
    kvr_buf_free(&q->answer);
    free(q);
}

static void finish_query(struct kvr_remote_query *q, const struct kvr_reach *scores, long n)
{
    kvr_remote_done *done = q->done;
    void *ctx = q->ctx;
    if (n < 0) COUNT(q->owner, query_failures);
    done(ctx, q, scores, n);
    drop(q);
}

/* why: of the failure; certain: the server is not there, rather than slow or of another opinion. */
static void fail(struct kvr_remote_query *q, const char *why, bool certain)
{
    struct kvr_remote_index *r = q->owner;
    if (q->kind == INFO) {
        set_state(r, BAD, why);
        drop(q);
        return;
    }
    note_failure(r, why, certain);
    if (q->kind == QUERY) {
        finish_query(q, NULL, -1);
        return;
    }
    COUNT(r, write_failures);
    drop(q);
}

static void judge_info(struct kvr_remote_query *q)
{
    struct kvr_remote_index *r = q->owner;
    char why[300];
    why[0] = 0;
    COUNT(r, validations);
    if (q->info.predicted != r->c.predicted)
        snprintf(why, sizeof why, "it %s, but this router %s", q->info.predicted ? "predicts from routing decisions" : "follows KV events",
                 r->c.predicted ? "predicts (--no-router-kv-events)" : "follows KV events");
    else if (q->info.predicted && q->answers > 1) snprintf(why, sizeof why, "%u servers claim to own the predicted index", q->answers);
    else if (q->misfit[0]) snprintf(why, sizeof why, "%s", q->misfit);
    else if (!q->info.ready) snprintf(why, sizeof why, "it is not ready: %s", q->why);
    if (why[0]) COUNT(r, rejected_validations);
    if (why[0] || r->state != GOOD) set_state(r, why[0] ? BAD : GOOD, why);
    else r->next_probe_ms = kvr_now_ms() + REVALIDATE_MS;
    if (!why[0]) r->instance = q->info.instance;
    r->packed = q->info.packed;
    drop(q);
}

static void take_scores(struct kvr_remote_query *q, struct kvr_json root)
{
    struct kvr_remote_index *r = q->owner;
    struct kvr_reach *scores = NULL;
    uint64_t instance;
    char why[256] = "its answer cannot be read";
    long n = kvr_service_scores_read(root, q->blocks, &scores, &instance, why, sizeof why);
    if (n < 0) {
        fail(q, why, false);
        return;
    }
    r->failures = 0;
    if (instance != r->instance) { /* another server, or another life of it: is it still what we want? */
        r->instance = instance;
        r->next_probe_ms = 0;
    }
    finish_query(q, scores, n);
    free(scores);
}

/* Of another block size no hash is the same: it would be an index that never has anything. */
static bool misfits(const struct kvr_remote_index *r, struct kvr_json info, char *why, size_t cap)
{
    enum { MOST = 256 };
    struct kvr_remote_model *ours = r->c.block_sizes ? calloc(MOST, sizeof *ours) : NULL;
    size_t n = ours ? r->c.block_sizes(r->c.ctx, ours, MOST) : 0;
    bool bad = false;
    for (size_t i = 0; i < n && !bad; i++) bad = kvr_service_misfits(info, &ours[i], why, cap);
    free(ours);
    return bad;
}

static void take_answer(struct kvr_remote_query *q, const char *data, size_t len)
{
    struct kvr_json root;
    char why[256] = "its answer cannot be read";
    if (kvr_json_parse(q->owner->json, data, len, &root, NULL)) {
        fail(q, why, false);
    } else if (q->kind == QUERY) {
        take_scores(q, root);
    } else if (q->kind == RECORD) {
        if (kvr_service_recorded_read(root, why, sizeof why)) fail(q, why, false);
        else drop(q);
    } else {
        struct kvr_service_info info;
        if (kvr_service_info_read(root, &info, why, sizeof why)) {
            fail(q, why, true);
            return;
        }
        if (info.ready && misfits(q->owner, root, q->misfit, sizeof q->misfit)) info.ready = false;
        /* Of a predicted index the worst of several counts: another mode, then not ready. Of others who is not ready is not asked. */
        bool others_do = q->owner->c.nats && !q->owner->c.predicted && !info.predicted && !info.ready && !q->misfit[0];
        if (!q->owner->c.predicted || !q->answers || info.predicted != q->owner->c.predicted ||
            (!info.ready && q->info.predicted == q->owner->c.predicted)) {
            q->info = info;
            snprintf(q->why, sizeof q->why, "%s", why);
        }
        q->answers++;
        if (!others_do && !(q->owner->c.nats && q->owner->c.predicted)) judge_info(q);
    }
}

/* ---- HTTP ---------------------------------------------------------------------------------------------------------- */

/* Errors say so in the body. */
static void on_body(struct kvr_http_call *, void *ctx, const char *data, size_t len)
{
    struct kvr_remote_query *q = ctx;
    if (q->answer.len + len > ANSWER_MAX) q->answer.failed = true;
    kvr_buf_add(&q->answer, data, len);
}

static void on_done(struct kvr_http_call *, void *ctx)
{
    struct kvr_remote_query *q = ctx;
    struct kvr_buf b = q->answer;
    q->call = NULL;
    q->answer = (struct kvr_buf){0};
    if (b.failed || !b.len) fail(q, "its answer is empty or too long", false);
    else take_answer(q, b.data, b.len);
    kvr_buf_free(&b);
}

static void on_failed(struct kvr_http_call *, void *ctx, enum kvr_http_failure why, const char *text)
{
    struct kvr_remote_query *q = ctx;
    char copy[200];
    q->call = NULL;
    snprintf(copy, sizeof copy, "%s", text);
    fail(q, copy, why == KVR_HTTP_CONNECT_FAILED || why == KVR_HTTP_RESET);
}

static bool send_http(struct kvr_remote_query *q, const char *service)
{
    static const struct kvr_http_call_handler handler = {NULL, on_body, on_done, on_failed};
    struct kvr_remote_index *r = q->owner;
    struct kvr_buf head = {0};
    kvr_buf_printf(&head, "POST %s/%s HTTP/1.1\r\nHost: %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n", r->endpoint.base, service,
                   r->endpoint.authority, q->packed ? KVR_PACKED_TYPE : "application/json", q->body.len);
    if (r->c.key) kvr_buf_printf(&head, "Authorization: Bearer %s\r\n", r->c.key);
    kvr_buf_str(&head, "\r\n");
    struct kvr_http_call_config cc = {.endpoint = &r->endpoint,
                                      .head = head.data,
                                      .head_len = head.len,
                                      .body = kvr_body_take(&q->body),
                                      .connect_timeout_s = r->c.timeout_s,
                                      .handler = &handler,
                                      .ctx = q};
    q->call = cc.body && !head.failed ? kvr_http_call_start(r->c.client, &cc) : NULL;
    kvr_body_unref(cc.body);
    kvr_buf_free(&head);
    return q->call != NULL;
}

/* ---- NATS ---------------------------------------------------------------------------------------------------------- */

static void on_message(void *ctx, const struct kvr_nats_message *m)
{
    struct kvr_remote_index *r = ctx;
    const char *number = strrchr(m->subject, '.');
    struct mail *mail = number ? malloc(sizeof *mail + m->len) : NULL;
    if (!mail) return;
    *mail = (struct mail){.number = strtoull(number + 1, NULL, 10), .len = m->len};
    memcpy(mail->data, m->data, m->len);
    kvr_lock(&r->lock);
    bool full = r->mail_bytes + m->len > MAIL_MAX;
    if (!full) {
        *r->mail_tail = mail;
        r->mail_tail = &mail->next;
        r->mail_bytes += m->len;
    }
    kvr_unlock(&r->lock);
    if (full) free(mail); /* its question times out */
    else uv_async_send(&r->wake);
}

static void on_wake(uv_async_t *a)
{
    struct kvr_remote_index *r = a->data;
    kvr_lock(&r->lock);
    struct mail *list = r->mail;
    r->mail = NULL;
    r->mail_tail = &r->mail;
    r->mail_bytes = 0;
    kvr_unlock(&r->lock);
    while (list) {
        struct mail *m = list;
        struct kvr_remote_query *q = r->open;
        list = m->next;
        while (q && q->number != m->number) q = q->next;
        if (q && m->len) take_answer(q, m->data, m->len);
        else if (q && q->kind != INFO) fail(q, "no server answers", true); /* an empty answer: the server's "no responders" */
        else if (q && !q->answers) fail(q, "no server answers", true);
        free(m);
    }
}

static bool send_nats(struct kvr_remote_query *q, const char *service, const char *model)
{
    struct kvr_remote_index *r = q->owner;
    char subject[400], reply[160];
    if (q->kind == INFO) snprintf(subject, sizeof subject, "%s.%s", r->scope, service);
    else service_subject(subject, sizeof subject, r->scope, service, model);
    snprintf(reply, sizeof reply, "%s.%llu", r->inbox, (unsigned long long)q->number);
    return kvr_nats_is_up(r->c.nats) && kvr_nats_publish(r->c.nats, subject, reply, q->body.data, q->body.len) == 0;
}

/* ---- asking -------------------------------------------------------------------------------------------------------- */

static struct kvr_remote_query *query_new(struct kvr_remote_index *r, enum kind kind)
{
    struct kvr_remote_query *q = calloc(1, sizeof *q);
    if (!q) return NULL;
    q->owner = r;
    q->kind = kind;
    q->number = ++r->numbers;
    q->deadline_ms = kvr_now_ms() + (uint64_t)(r->c.timeout_s * 1000) + 1;
    q->next = r->open;
    r->open = q;
    return q;
}

static bool send_question(struct kvr_remote_query *q, const char *service, const char *model)
{
    if (q->body.failed) return false;
    return q->owner->c.nats ? send_nats(q, service, model) : send_http(q, service);
}

static void probe(struct kvr_remote_index *r)
{
    struct kvr_remote_query *q = query_new(r, INFO);
    r->next_probe_ms = kvr_now_ms() + PROBE_MS;
    if (!q) return;
    r->probing = true;
    if (r->c.nats && r->c.predicted) q->deadline_ms = kvr_now_ms() + GATHER_MS; /* all that answer until then */
    kvr_buf_str(&q->body, "{}");
    if (!send_question(q, KVR_SERVICE_INFO, "")) fail(q, "the question cannot be sent", true);
}

/* So many hashes go into a question. */
static size_t hashes_max(const struct kvr_remote_index *r)
{
    return !r->c.nats ? KVR_SERVICE_BLOCKS_MAX : r->packed ? NATS_PACKED_MAX : NATS_HASHES_MAX;
}

struct kvr_remote_query *kvr_remote_ask(struct kvr_remote_index *r, const char *model, const uint64_t *locals, size_t n, uint64_t isl,
                                        kvr_remote_done *done, void *ctx)
{
    if (r->state != GOOD || n > KVR_SERVICE_BLOCKS_MAX) {
        COUNT(r, short_circuits);
        return NULL;
    }
    struct kvr_remote_query *q = query_new(r, QUERY);
    if (!q) return NULL;
    n = KVR_MIN(n, hashes_max(r));
    COUNT(r, queries);
    q->done = done;
    q->ctx = ctx;
    q->blocks = (uint32_t)n;
    q->packed = r->packed;
    kvr_service_query_write(&q->body, q->packed, model, locals, n, isl, false);
    if (send_question(q, KVR_SERVICE_QUERY, model)) return q;
    COUNT(r, query_failures);
    drop(q);
    note_failure(r, "the question cannot be sent", true);
    return NULL;
}

void kvr_remote_cancel(struct kvr_remote_query *q)
{
    drop(q);
}

void kvr_remote_record(struct kvr_remote_index *r, const char *model, struct kvr_worker w, const uint64_t *locals, const uint64_t *seqs,
                       size_t n)
{
    struct kvr_remote_query *q = r->state == GOOD && n <= KVR_SERVICE_BLOCKS_MAX ? query_new(r, RECORD) : NULL;
    if (r->c.nats) n = KVR_MIN(n, hashes_max(r) / 2);
    COUNT(r, writes);
    if (!q) {
        COUNT(r, write_failures);
        return;
    }
    q->packed = r->packed;
    kvr_service_record_write(&q->body, q->packed, model, w, locals, seqs, n);
    if (!send_question(q, KVR_SERVICE_RECORD, model)) fail(q, "the question cannot be sent", true);
}

const char *kvr_remote_why(const struct kvr_remote_index *r)
{
    return r->state == GOOD ? "" : r->why[0] ? r->why : "the server has not answered yet";
}

/* ---- time ---------------------------------------------------------------------------------------------------------- */

static void on_tick(uv_timer_t *t)
{
    struct kvr_remote_index *r = t->data;
    uint64_t now = kvr_now_ms();
    for (struct kvr_remote_query *q = r->open, *next; q; q = next) {
        next = q->next;
        if (now < q->deadline_ms) continue;
        if (q->kind == INFO && q->answers) judge_info(q);
        else fail(q, "it does not answer in time", false);
        next = r->open; /* whoever was told may have asked anew; what is past its time goes one by one */
        while (next && now < next->deadline_ms) next = next->next;
    }
    if (!r->probing && now >= r->next_probe_ms) probe(r);
}

/* ---- life ---------------------------------------------------------------------------------------------------------- */

static void on_closed(uv_handle_t *h)
{
    struct kvr_remote_index *r = h->data;
    if (--r->handles) return;
    while (r->mail) {
        struct mail *m = r->mail;
        r->mail = m->next;
        free(m);
    }
    kvr_lock_destroy(&r->lock);
    free(r);
}

int kvr_remote_create(const struct kvr_remote_config *c, struct kvr_remote_index **out)
{
    struct kvr_remote_index *r = calloc(1, sizeof *r);
    char subject[160];
    if (!r || !(r->json = kvr_json_parser_new())) {
        free(r);
        return -KVR_ENOMEM;
    }
    r->c = *c;
    if (c->endpoint) {
        r->endpoint = *c->endpoint;
        r->c.nats = NULL;
    }
    snprintf(r->scope, sizeof r->scope, "%s", c->scope ? c->scope : "");
    kvr_lock_init(&r->lock, KVR_LOCK_REMOTE_MAIL);
    r->mail_tail = &r->mail;
    uv_timer_init(c->loop, &r->tick);
    uv_async_init(c->loop, &r->wake, on_wake);
    r->tick.data = r->wake.data = r;
    r->handles = 2;
    if (r->c.nats) {
        kvr_nats_inbox(r->inbox, sizeof r->inbox);
        snprintf(subject, sizeof subject, "%s.*", r->inbox);
        int rc = kvr_nats_subscribe(r->c.nats, subject, NULL, MAIL_MAX, on_message, r, &r->sub);
        if (rc) {
            kvr_remote_close(r);
            return rc;
        }
    }
    uv_timer_start(&r->tick, on_tick, 0, TICK_MS);
    *out = r;
    return 0;
}

void kvr_remote_close(struct kvr_remote_index *r)
{
    if (!r) return;
    kvr_nats_unsubscribe(r->sub);
    if (r->state == GOOD) atomic_fetch_sub(&r->c.stats->good, 1);
    while (r->open) drop(r->open);
    kvr_json_parser_free(r->json);
    uv_close((uv_handle_t *)&r->tick, on_closed);
    uv_close((uv_handle_t *)&r->wake, on_closed);
}
