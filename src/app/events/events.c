/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads lines, one after the other, and gives each event to a sink: an index of our own that is validated at the end, or an
 * indexer's POST /events. A line that is not a recorded event is said, counted and left out.
 */
#include "app/events/events.h"

#include <errno.h>
#include <string.h>
#include <uv.h>
#include <kvroute/index.h>

#include "base/buf.h"
#include "base/log.h"
#include "net/http/ending.h"
#include "net/http/fetch.h"
#include "recover/event_json.h"
#include "wire/record.h"

enum { POST_BYTES = 512 << 10, LINE_MAX_BYTES = 64 << 20, COMPLAINTS_MAX = 10, POST_TIMEOUT_S = 60 };

struct replay {
    const struct events_options *o;
    struct kvr_json_parser *json;
    struct kvr_block *blocks;
    size_t cap;
    uint64_t lines, bad, events, failed, kinds[3];
    uint64_t began_ns;
    bool over, broken;       /* a limit was reached; the target is gone */
    struct kvr_index *index; /* --check */
    /* --to */
    uv_loop_t loop;
    struct kvr_http_client *http;
    struct kvr_buf batch;
    uint64_t batch_n;
};

/* ---- sending ---------------------------------------------------------------------------------------------------------- */

static void read_answer(struct replay *r, const struct kvr_fetched *f)
{
    struct kvr_json o;
    uint64_t failed = 0;
    if (f->status != 200) {
        kvr_log_error("kvroute replay-events: %s answers with status %d: %s%.*s%s", r->o->to, f->status, f->error, (int)f->body.len,
                      f->body.data ? f->body.data : "", f->status == 404 ? " (is the indexer started with --accept-events?)" : "");
        r->broken = true;
    } else if (kvr_json_parse(r->json, f->body.data ? f->body.data : "", f->body.len, &o, NULL) == 0) {
        (void)kvr_json_as_u64(kvr_json_get(o, "failed"), &failed);
        r->failed += failed;
    }
}

static void post(struct replay *r)
{
    struct kvr_buf body = {0};
    struct kvr_fetched answer = {0};
    char url[600];
    if (!r->batch_n || r->broken) return;
    kvr_json_printf(&body, "{'model_name':%s,'routing_group':%s,'block_size':%ju,'events':[", r->o->model, r->o->group, r->o->block_size);
    kvr_buf_add(&body, r->batch.data, r->batch.len);
    kvr_buf_str(&body, "]}");
    kvr_buf_add(&body, "", 1);
    size_t n = strlen(r->o->to);
    while (n && r->o->to[n - 1] == '/') n--;
    snprintf(url, sizeof url, "%.*s/events", (int)n, r->o->to);
    struct kvr_fetch f = {&r->loop, r->http, url, body.failed ? "" : body.data, NULL, r->o->key, POST_TIMEOUT_S};
    kvr_http_fetch(&f, &answer);
    read_answer(r, &answer);
    kvr_fetched_free(&answer);
    kvr_buf_free(&body);
    r->batch.len = 0;
    r->batch.comma = false;
    r->batch_n = 0;
}

/* ---- lines ------------------------------------------------------------------------------------------------------------- */

static uint64_t elapsed_ms(const struct replay *r)
{
    return (kvr_monotonic_ns() - r->began_ns) / 1000000;
}

/* Waits until it is the event's time. Returns: false: the end comes before. */
static bool wait_for_stamp(struct replay *r, uint64_t stamp)
{
    uint64_t end = r->o->max_time > 0 ? (uint64_t)(r->o->max_time * 1000) : UINT64_MAX, until = KVR_MIN(stamp, end), now;
    if (stamp > elapsed_ms(r) && r->o->to) post(r);
    while (!r->broken && (now = elapsed_ms(r)) < until) uv_sleep((unsigned)KVR_MIN(until - now, (uint64_t)3600000));
    return stamp <= end;
}

static void take_event(struct replay *r, const struct kvr_event *ev)
{
    r->events++;
    r->kinds[ev->kind]++;
    if (r->index) {
        int rc = kvr_index_apply(r->index, ev);
        r->failed += rc && rc != -KVR_ENOTFOUND; /* a removal of what has gone already is as good as one */
        return;
    }
    kvr__event_json(&r->batch, ev, ev->event_id);
    r->batch_n++;
    if (r->batch.len >= POST_BYTES) post(r);
}

static void take_line(struct replay *r, const char *file, const char *line, size_t len)
{
    struct kvr_event ev;
    uint64_t stamp = 0;
    r->lines++;
    while (len && (line[len - 1] == '\n' || line[len - 1] == '\r')) len--;
    if (!len) return;
    int rc = len > LINE_MAX_BYTES ? -KVR_ELIMIT : kvr_record_read(r->json, line, len, &stamp, &ev, &r->blocks, &r->cap);
    if (rc) {
        if (++r->bad <= COMPLAINTS_MAX)
            kvr_log_warning("kvroute replay-events: %s: line %llu is not a recorded event: %s", file, (unsigned long long)r->lines,
                            kvr_strerror(rc));
        return;
    }
    r->over = r->o->timed && !wait_for_stamp(r, stamp);
    if (r->over) return;
    take_event(r, &ev);
    double elapsed = (double)elapsed_ms(r) / 1000;
    r->over = (r->o->max_count && r->events >= r->o->max_count) || (r->o->max_time > 0 && elapsed >= r->o->max_time);
}

static int take_file(struct replay *r, const char *path)
{
    FILE *f = fopen(path, "re");
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    if (!f) {
        kvr_log_error("kvroute replay-events: cannot read '%s': %s", path, strerror(errno));
        return 2;
    }
    r->lines = 0;
    while (!r->over && !r->broken && (n = getline(&line, &cap, f)) >= 0) take_line(r, path, line, (size_t)n);
    bool unread = !r->over && !r->broken && !feof(f);
    if (unread) kvr_log_error("kvroute replay-events: cannot read '%s': %s", path, strerror(errno));
    free(line);
    fclose(f);
    return unread ? 2 : 0;
}

/* ---- the end ------------------------------------------------------------------------------------------------------------ */

static int report(struct replay *r)
{
    double seconds = (double)(kvr_monotonic_ns() - r->began_ns) / 1e9;
    const char *why = NULL;
    bool valid = !r->index || kvr_index_validate(r->index, &why);
    printf("%llu events in %.3f s: %llu stored, %llu removed, %llu cleared; %llu failed to apply, %llu bad lines\n",
           (unsigned long long)r->events, seconds, (unsigned long long)r->kinds[0], (unsigned long long)r->kinds[1],
           (unsigned long long)r->kinds[2], (unsigned long long)r->failed, (unsigned long long)r->bad);
    if (r->index) {
        struct kvr_index_stats st;
        kvr_index_stats(r->index, &st);
        printf("index: %zu ranks, %zu blocks held, %zu distinct, %zu in lower tiers, %zu bytes; %s%s\n", st.ranks, st.blocks, st.nodes,
               st.lower_tier_blocks, st.bytes, valid ? "valid" : "INVALID: ", valid ? "" : why);
        printf("unknown parents %llu, unknown removals %llu, invalid sequences %llu, duplicate stores %llu\n",
               (unsigned long long)st.parent_not_found, (unsigned long long)st.block_not_found, (unsigned long long)st.invalid_sequence,
               (unsigned long long)st.duplicate_stores);
    }
    if (r->broken) return 2;
    return !valid || r->bad || r->failed ? 1 : 0;
}

static bool open_sink(struct replay *r)
{
    if (!r->o->to) return kvr_index_create(NULL, &r->index) == 0;
    struct kvr_endpoint e;
    if (strlen(r->o->to) > 500 || kvr_endpoint_parse_any(r->o->to, strlen(r->o->to), &e)) {
        kvr_log_error("kvroute replay-events: --url: '%s' is no URL; allowed: http:// or https://host[:port]", r->o->to);
        return false;
    }
    uv_loop_init(&r->loop);
    return kvr_http_client_create(&r->loop, 3, &r->http) == 0;
}

int events_main(const struct events_options *o)
{
    struct replay r = {.o = o, .json = kvr_json_parser_new(), .began_ns = kvr_monotonic_ns()};
    int rc = r.json && open_sink(&r) ? 0 : 2;
    for (size_t i = 0; i < o->files_n && rc == 0 && !r.over && !r.broken; i++) rc = take_file(&r, o->files[i]);
    if (rc == 0 && o->to) post(&r);
    if (rc == 0) rc = report(&r);
    if (r.http) {
        kvr_http_client_close(r.http);
        kvr_loop_end(&r.loop);
    }
    kvr_index_destroy(r.index);
    kvr_buf_free(&r.batch);
    free(r.blocks);
    kvr_json_parser_free(r.json);
    return rc;
}
