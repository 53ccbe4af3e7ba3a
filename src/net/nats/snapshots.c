/* SPDX-License-Identifier: Apache-2.0 */
/* Pieces are written before the head that names them, and the head by compare-and-set; net/nats/snapshots.h has the layout. */
#include "net/nats/snapshots.h"

#include <kvroute/hash.h>

#include "net/nats/internal.h"
#include "wire/json.h"

#define BUCKET "kvroute-snapshots"

enum { CALL_MS = 2000, FORMAT = 1 };

struct kvr_snapshots {
    jsCtx *js;
    kvStore *kv;
    char name[128];
    struct kvr_json_parser *json;
};

int kvr_snapshots_open(struct kvr_nats *link, const char *name, int replicas, struct kvr_snapshots **out)
{
    struct kvr_snapshots *s = calloc(1, sizeof *s);
    kvConfig c;
    if (!s || !(s->json = kvr_json_parser_new())) {
        free(s);
        return -KVR_ENOMEM;
    }
    snprintf(s->name, sizeof s->name, "%s", name);
    kvConfig_Init(&c);
    c.Bucket = BUCKET;
    c.History = 1;
    c.Replicas = replicas;
    natsStatus rc = kvr__nats_jetstream(link, CALL_MS, &s->js);
    if (rc == NATS_OK && js_KeyValue(&s->kv, s->js, c.Bucket) != NATS_OK) rc = js_CreateKeyValue(&s->kv, s->js, &c);
    if (rc != NATS_OK) {
        kvr__nats_failed("the bucket of snapshots cannot be opened", rc);
        kvr_snapshots_close(s);
        return -KVR_ETIMEDOUT;
    }
    *out = s;
    return 0;
}

void kvr_snapshots_close(struct kvr_snapshots *s)
{
    if (!s) return;
    kvStore_Destroy(s->kv);
    jsCtx_Destroy(s->js);
    kvr_json_parser_free(s->json);
    free(s);
}

static int result(natsStatus s)
{
    return s == NATS_OK ? 0 : s == NATS_NOT_FOUND ? -KVR_ENOTFOUND : -KVR_ETIMEDOUT;
}

static void piece_key(const struct kvr_snapshots *s, uint64_t version, size_t at, char *out, size_t cap)
{
    snprintf(out, cap, "%s.%llu.%zu", s->name, (unsigned long long)version, at);
}

static void head_key(const struct kvr_snapshots *s, char *out, size_t cap)
{
    snprintf(out, cap, "%s.head", s->name);
}

/* ---- reading -------------------------------------------------------------------------------------------------------- */

void kvr_snapshot_head_free(struct kvr_snapshot_head *h)
{
    for (size_t i = 0; i < h->n; i++) free(h->v[i].hashes);
    *h = (struct kvr_snapshot_head){0};
}

static int take_version(struct kvr_snapshot_head *h, struct kvr_json o)
{
    struct kvr_snapshot_version *v = &h->v[h->n];
    struct kvr_json hashes = kvr_json_get(o, "hashes");
    if (h->n == KVR_SNAPSHOT_KEPT) return 0;
    *v = (struct kvr_snapshot_version){.pieces = kvr_json_count(hashes)};
    if (!kvr_json_as_u64(kvr_json_get(o, "version"), &v->version) || !kvr_json_as_u64(kvr_json_get(o, "position"), &v->position) ||
        !kvr_json_as_u64(kvr_json_get(o, "bytes"), &v->bytes) || kvr_json_type_of(hashes) != KVR_JSON_ARRAY ||
        v->pieces > KVR_SNAPSHOT_PIECES_MAX)
        return -KVR_EFORMAT;
    (void)kvr_json_as_u64(kvr_json_get(o, "stream"), &v->stream); /* 0: not told, so of no stream that there is */
    v->hashes = malloc((v->pieces + 1) * sizeof *v->hashes);
    if (!v->hashes) return -KVR_ENOMEM;
    h->n++;
    return kvr_json_u64_array(hashes, v->hashes, v->pieces) == (long)v->pieces ? 0 : -KVR_EFORMAT;
}

int kvr_snapshots_head(struct kvr_snapshots *s, struct kvr_snapshot_head *out)
{
    char key[160];
    kvEntry *e = NULL;
    struct kvr_json o, list;
    uint64_t format = 0;
    *out = (struct kvr_snapshot_head){0};
    head_key(s, key, sizeof key);
    int rc = result(kvStore_Get(&e, s->kv, key));
    if (rc == -KVR_ENOTFOUND) return 0;
    if (rc) return rc;
    out->revision = kvEntry_Revision(e);
    rc = kvr_json_parse(s->json, kvEntry_Value(e), (size_t)kvEntry_ValueLen(e), &o, NULL);
    list = rc ? (struct kvr_json){0} : kvr_json_get(o, "versions");
    bool ok =
        rc == 0 && kvr_json_as_u64(kvr_json_get(o, "format"), &format) && format == FORMAT && kvr_json_type_of(list) == KVR_JSON_ARRAY;
    if (!ok && rc != -KVR_ENOMEM) rc = -KVR_EFORMAT;
    for (struct kvr_json_iter i = kvr_json_iter(list); rc == 0 && kvr_json_next(&i);) rc = take_version(out, i.value);
    uint64_t revision = out->revision;
    if (rc) kvr_snapshot_head_free(out);
    out->revision = revision;
    kvEntry_Destroy(e);
    return rc;
}

int kvr_snapshots_piece(struct kvr_snapshots *s, const struct kvr_snapshot_version *v, size_t at, struct kvr_buf *out)
{
    char key[200];
    kvEntry *e = NULL;
    piece_key(s, v->version, at, key, sizeof key);
    int rc = result(kvStore_Get(&e, s->kv, key));
    if (rc == 0) {
        out->len = 0;
        kvr_buf_add(out, kvEntry_Value(e), (size_t)kvEntry_ValueLen(e));
        if (out->failed) rc = -KVR_ENOMEM;
        else if (kvr_hash_bytes(out->data ? out->data : "", out->len, 0) != v->hashes[at]) rc = -KVR_EFORMAT;
    }
    kvEntry_Destroy(e);
    return rc == -KVR_ENOTFOUND ? -KVR_EFORMAT : rc;
}

/* ---- writing -------------------------------------------------------------------------------------------------------- */

void kvr_snapshots_begin(struct kvr_snapshots *, const struct kvr_snapshot_head *head, uint64_t stream, uint64_t position,
                         struct kvr_snapshot_draft *out)
{
    /* Two writers at once must not meet in the names of their pieces: the revision tells them apart from those before, the
     * clock from each other. */
    uint64_t last = head->n ? head->v[0].version : 0;
    uint64_t now = (uint64_t)nats_Now();
    *out = (struct kvr_snapshot_draft){.v = {.version = KVR_MAX(last + 1, now), .stream = stream, .position = position}};
}

int kvr_snapshots_put(struct kvr_snapshots *s, struct kvr_snapshot_draft *d, const char *data, size_t len)
{
    char key[200];
    struct kvr_snapshot_version *v = &d->v;
    if (v->pieces == KVR_SNAPSHOT_PIECES_MAX) return -KVR_ELIMIT;
    if (!kvr_grow(&v->hashes, &d->hashes_cap, v->pieces + 1, sizeof *v->hashes)) return -KVR_ENOMEM;
    piece_key(s, v->version, v->pieces, key, sizeof key);
    natsStatus put = kvStore_Put(NULL, s->kv, key, data, (int)len);
    if (put != NATS_OK) {
        kvr__nats_failed("a snapshot cannot be written", put);
        return result(put);
    }
    v->hashes[v->pieces++] = kvr_hash_bytes(data, len, 0);
    v->bytes += len;
    return 0;
}

static void put_version(struct kvr_buf *b, const struct kvr_snapshot_version *v)
{
    kvr_json_printf(b, "{'version':%ju,'stream':%ju,'position':%ju,'bytes':%ju,'hashes':", v->version, v->stream, v->position, v->bytes);
    kvr_json_u64s(b, v->hashes, v->pieces);
    kvr_json_close(b, '}');
}

/* Of the stream that is the bucket: who purges keys leaves a marker of each. before: messages there; 0: all. */
static void purge(struct kvr_snapshots *s, const char *subject, uint64_t before)
{
    jsOptions o;
    jsOptions_Init(&o);
    o.Wait = CALL_MS;
    o.Stream.Purge.Subject = subject;
    o.Stream.Purge.Sequence = before;
    (void)js_PurgeStream(s->js, "KV_" BUCKET, &o, NULL);
}

static void delete_version(struct kvr_snapshots *s, const struct kvr_snapshot_version *v)
{
    char subject[200];
    snprintf(subject, sizeof subject, "$KV." BUCKET ".%s.%llu.>", s->name, (unsigned long long)v->version);
    purge(s, subject, 0);
}

/* What was written before the oldest snapshot that is kept: also pieces of who died before the head named them. */
static void delete_older(struct kvr_snapshots *s, const struct kvr_snapshot_version *v)
{
    char key[200];
    kvEntry *e = NULL;
    piece_key(s, v->version, 0, key, sizeof key);
    if (v->pieces && kvStore_Get(&e, s->kv, key) == NATS_OK && kvEntry_Revision(e) > 1) { /* before 1 is all to the server */
        snprintf(key, sizeof key, "$KV." BUCKET ".%s.>", s->name);
        purge(s, key, kvEntry_Revision(e));
    }
    kvEntry_Destroy(e);
}

int kvr_snapshots_commit(struct kvr_snapshots *s, struct kvr_snapshot_draft *d, const struct kvr_snapshot_head *head)
{
    struct kvr_buf b = {0};
    char key[160];
    head_key(s, key, sizeof key);
    kvr_json_printf(&b, "{'format':%u,'versions':[", (unsigned)FORMAT);
    put_version(&b, &d->v);
    for (size_t i = 0; i < head->n && i + 1 < KVR_SNAPSHOT_KEPT; i++) put_version(&b, &head->v[i]);
    kvr_json_printf(&b, "]}");
    natsStatus rc = b.failed         ? NATS_NO_MEMORY
                    : head->revision ? kvStore_Update(NULL, s->kv, key, b.data, (int)b.len, head->revision)
                                     : kvStore_Create(NULL, s->kv, key, b.data, (int)b.len);
    kvr_buf_free(&b);
    if (rc != NATS_OK) {
        kvr__nats_failed("the list of snapshots cannot be written", rc);
        kvr_snapshots_abandon(s, d);
        return rc == NATS_TIMEOUT || rc == NATS_NO_MEMORY ? -KVR_ETIMEDOUT : -KVR_EEXISTS;
    }
    for (size_t i = KVR_SNAPSHOT_KEPT - 1; i < head->n; i++) delete_version(s, &head->v[i]);
    delete_older(s, head->n ? &head->v[KVR_MIN(head->n, (size_t)KVR_SNAPSHOT_KEPT - 1) - 1] : &d->v);
    free(d->v.hashes);
    d->v.hashes = NULL;
    return 0;
}

void kvr_snapshots_abandon(struct kvr_snapshots *s, struct kvr_snapshot_draft *d)
{
    delete_version(s, &d->v);
    free(d->v.hashes);
    *d = (struct kvr_snapshot_draft){0};
}

int kvr_snapshots_reset(struct kvr_snapshots *s)
{
    struct kvr_snapshot_head h;
    char key[160];
    int rc = kvr_snapshots_head(s, &h);
    if (rc == -KVR_ETIMEDOUT) return rc;
    for (size_t i = 0; i < h.n; i++) delete_version(s, &h.v[i]);
    kvr_snapshot_head_free(&h);
    head_key(s, key, sizeof key);
    return result(kvStore_Purge(s->kv, key, NULL));
}
