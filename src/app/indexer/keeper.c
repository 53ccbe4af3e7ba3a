/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The data directory: `workers.json`, written at once when a registration changes, and `index.kvr`, the content, every
 * --snapshot-interval and at the end. One thread does it; it also reads both at start, content first, so that what is registered
 * goes on from there. A file that is not as it should be is set aside as NAME.bad-N and said so.
 *
 * A failure to write is said once, counted, and tried again at the next interval; the old file stays.
 */
#include "app/indexer/snapshot.h"
#include "base/lock.h"

#include <string.h>

#include "base/log.h"
#include "store/data_dir.h"

#include <unistd.h>

struct keeper {
    struct indexer *x;
    pthread_t thread;
    struct kvr_lock lock;
    pthread_cond_t cond;
    bool wake, stop;
    int dir;                  /* this process has it */
    uint64_t written_version; /* of the registrations */
    char index_path[4096], workers_path[4096];
    char last_error[512];
};

/* ---- workers.json ---------------------------------------------------------------------------------------------------- */

/* Said when it is new; the same trouble is not repeated every interval. */
static void complain(struct keeper *k, const char *text)
{
    atomic_fetch_add(&k->x->telemetry.snapshot_failures, 1);
    if (strcmp(text, k->last_error) == 0) return;
    snprintf(k->last_error, sizeof k->last_error, "%s", text);
    kvr_log_warning("kvroute indexer: %s; going on without", text);
}

static bool write_file(const char *path, const struct kvr_buf *b, char *err, size_t cap)
{
    struct kvr_new_file f;
    return kvr_new_file_open(&f, path, err, cap) == 0 &&
           kvr_new_file_close(&f, !b->failed && kvr_new_file_put(&f, b->data, b->len), err, cap) == 0;
}

static void write_workers(struct keeper *k)
{
    struct kvr_buf list = {0}, b = {0};
    char err[4400];
    kvr_lock(&k->x->lock);
    uint64_t version = k->x->registrations_version;
    kvr_unlock(&k->x->lock);
    if (version == k->written_version) return;
    catalogue_registrations_write(k->x, &list);
    kvr_buf_printf(&b, "{\"version\":1,\"checksum\":\"%016llx\",\"workers\":%.*s}\n",
                   (unsigned long long)kvr_hash_bytes(list.data ? list.data : "", list.len, 0), (int)list.len, list.data ? list.data : "");
    if (list.failed || !write_file(k->workers_path, &b, err, sizeof err)) complain(k, list.failed ? "out of memory" : err);
    else k->written_version = version;
    kvr_buf_free(&list);
    kvr_buf_free(&b);
}

/* Returns: false when there is something else than a whole number up to max; absent is `*out` as it was. */
static bool number_of(struct kvr_json o, const char *key, uint64_t max, uint64_t *out)
{
    struct kvr_json v = kvr_json_get(o, key);
    return kvr_json_type_of(v) == KVR_JSON_NONE || (kvr_json_as_u64(v, out) && *out <= max);
}

static void register_one(struct indexer *x, struct kvr_json o)
{
    struct registration r = {0};
    uint64_t rank = 0, bs = 0, chunk = 0;
    char err[1024];
    (void)kvr_json_copy_name(kvr_json_get(o, "model_name"), r.model, sizeof r.model);
    (void)kvr_json_copy_name(kvr_json_get(o, "routing_group"), r.group, sizeof r.group);
    (void)kvr_json_copy_name(kvr_json_get(o, "endpoint"), r.endpoint, sizeof r.endpoint);
    (void)kvr_json_copy_name(kvr_json_get(o, "replay_endpoint"), r.replay, sizeof r.replay);
    (void)kvr_json_copy_name(kvr_json_get(o, "recover_endpoint"), r.recover, sizeof r.recover);
    (void)kvr_json_copy_name(kvr_json_get(o, "kv_pool"), r.tiers.pool, sizeof r.tiers.pool);
    const char *bad = !kvr_json_as_u64(kvr_json_get(o, "instance_id"), &r.instance_id) ? "instance_id"
                      : !number_of(o, "dp_rank", UINT32_MAX, &rank)                    ? "dp_rank"
                      : !number_of(o, "block_size", 65536, &bs) || bs == 0             ? "block_size"
                      : !number_of(o, "kv_offload_chunk", OFFLOAD_CHUNK_MAX, &chunk)   ? "kv_offload_chunk"
                                                                                       : NULL;
    if (bad) {
        kvr_log_warning("kvroute indexer: a saved registration is left out: %s is not a number that is allowed", bad);
        return;
    }
    r.dp_rank = (uint32_t)rank;
    r.block_size = (uint32_t)bs;
    r.tiers.chunk = (uint32_t)chunk;
    int status = catalogue_register(x, &r, err, sizeof err);
    if (status && status != 409) kvr_log_warning("kvroute indexer: a saved registration is left out: %s", err);
}

/* Returns: what is wrong, or NULL. */
static const char *use_workers(struct indexer *x, const char *text, size_t len)
{
    struct kvr_json_parser *p = kvr_json_parser_new();
    struct kvr_json o, list;
    const char *why = "out of memory", *at = len ? memmem(text, len, "\"workers\":", 10) : NULL;
    uint64_t version;
    char want[17], have[17];
    if (p && kvr_json_parse(p, text, len, &o, &why) == 0) {
        list = kvr_json_get(o, "workers");
        (void)kvr_json_copy_name(kvr_json_get(o, "checksum"), have, sizeof have);
        const char *begin = at ? at + 10 : text, *end = text + len;
        while (end > begin && end[-1] != '}') end--;
        size_t n = end > begin ? (size_t)(end - begin) - 1 : 0;
        snprintf(want, sizeof want, "%016llx", (unsigned long long)kvr_hash_bytes(begin, n, 0));
        if (!kvr_json_as_u64(kvr_json_get(o, "version"), &version) || version != 1 || kvr_json_type_of(list) != KVR_JSON_ARRAY)
            why = "it is not a list of workers of version 1";
        else if (strcmp(want, have) != 0) why = "its checksum is wrong";
        else why = NULL;
        for (struct kvr_json_iter i = kvr_json_iter(list); !why && kvr_json_next(&i);) register_one(x, i.value);
    }
    kvr_json_parser_free(p);
    return why;
}

/* ---- start ------------------------------------------------------------------------------------------------------------- */

static void read_all(struct keeper *k)
{
    char err[4400];
    uint64_t blocks = 0, t = kvr_now_ms();
    int rc = snapshot_read(k->x, k->index_path, &blocks, err, sizeof err);
    if (rc == 0)
        kvr_log("kvroute indexer: %llu blocks from '%s' in %llu ms, not confirmed yet", (unsigned long long)blocks, k->index_path,
                (unsigned long long)(kvr_now_ms() - t));
    if (rc < 0) {
        kvr_log_warning("kvroute indexer: %s", err);
        kvr_set_aside(k->index_path, "kvroute indexer");
    }
    struct kvr_mapped m;
    rc = kvr_map_file(k->workers_path, &m, err, sizeof err);
    const char *wrong = rc == 0 ? use_workers(k->x, m.data, m.len) : NULL;
    if (rc == 0) kvr_unmap_file(&m);
    if (rc < 0) kvr_log_warning("kvroute indexer: %s", err);
    if (rc >= 0 && !wrong) return;
    if (wrong) kvr_log_warning("kvroute indexer: '%s' is not used: %s", k->workers_path, wrong);
    kvr_set_aside(k->workers_path, "kvroute indexer");
}

/* ---- the thread ---------------------------------------------------------------------------------------------------------- */

static void write_index(struct keeper *k)
{
    struct telemetry *t = &k->x->telemetry;
    uint64_t bytes, blocks, start = kvr_now_ms();
    char err[4400];
    if (snapshot_write(k->x, k->index_path, &bytes, &blocks, err, sizeof err)) {
        complain(k, err);
        return;
    }
    k->last_error[0] = 0;
    atomic_fetch_add(&t->snapshots, 1);
    atomic_store(&t->snapshot_bytes, bytes);
    atomic_store(&t->snapshot_ms, kvr_now_ms() - start);
}

/* Waits for the next thing to do. Returns: false at the end. */
static bool wait_until(struct keeper *k, uint64_t due_ms)
{
    kvr_lock(&k->lock);
    for (uint64_t now; !k->wake && !k->stop && (now = kvr_now_ms()) < due_ms;) kvr_cond_wait_ms(&k->cond, &k->lock, due_ms - now);
    k->wake = false;
    bool go = !k->stop;
    kvr_unlock(&k->lock);
    return go;
}

static void *keeper_main(void *arg)
{
    struct keeper *k = arg;
    uint64_t interval = (uint64_t)(k->x->o->snapshot_interval * 1000);
    read_all(k);
    if (atomic_load(&k->x->stopping)) return NULL; /* perhaps in the middle: what is on disk is better */
    atomic_store(&k->x->loaded, true);
    uint64_t due = kvr_now_ms() + interval;
    for (bool go = true; go;) {
        go = wait_until(k, due);
        write_workers(k);
        if (go && kvr_now_ms() < due) continue;
        write_index(k);
        due = kvr_now_ms() + interval;
    }
    return NULL;
}

/* Registrations have changed. Any thread. */
static void keeper_wake(struct indexer *x)
{
    struct keeper *k = x->keeper;
    kvr_lock(&k->lock);
    k->wake = true;
    pthread_cond_signal(&k->cond);
    kvr_unlock(&k->lock);
}

int keeper_start(struct indexer *x)
{
    if (!x->o->data_dir) {
        atomic_store(&x->loaded, true);
        return 0;
    }
    struct keeper *k = calloc(1, sizeof *k);
    if (!k) return -1;
    k->x = x;
    snprintf(k->index_path, sizeof k->index_path, "%s/index.kvr", x->o->data_dir);
    snprintf(k->workers_path, sizeof k->workers_path, "%s/workers.json", x->o->data_dir);
    char err[4400];
    k->dir = kvr_data_dir_open(x->o->data_dir, KVR_DATA_DIR_PATIENCE_MS, err, sizeof err);
    if (k->dir < 0) {
        kvr_log_error("kvroute indexer: --data-dir: %s; allowed: a directory that can be written, for this process alone", err);
        free(k);
        return -1;
    }
    kvr_lock_init(&k->lock, KVR_LOCK_INDEXER_KEEPER);
    kvr_cond_init(&k->cond);
    x->keeper = k;
    x->registrations_changed = keeper_wake;
    return pthread_create(&k->thread, NULL, keeper_main, k) ? -1 : 0;
}

void keeper_stop(struct indexer *x)
{
    struct keeper *k = x->keeper;
    if (!k) return;
    kvr_lock(&k->lock);
    k->stop = true;
    pthread_cond_signal(&k->cond);
    kvr_unlock(&k->lock);
    pthread_join(k->thread, NULL);
    kvr_lock_destroy(&k->lock);
    pthread_cond_destroy(&k->cond);
    close(k->dir);
    free(k);
    x->registrations_changed = NULL;
    x->keeper = NULL;
}
