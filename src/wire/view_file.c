/* SPDX-License-Identifier: Apache-2.0 */
/* Records with a checksum seeded by their number: a torn or swapped record ends the reading (wire/view_file.h). */
#include "wire/view_file.h"

#include <stdlib.h>
#include <string.h>

#include <kvroute/hash.h>

#include "base/lower.h"

enum { VERSION = 2, FILE_HEAD = 16, RECORD_HEAD = 16, RECORD_TAIL = 8, EVENT_HEAD = 32, SOURCE_HEAD = 52, BATCH = 256 };
enum record { PARTITION = 1, SOURCE, EVENTS, END, MEMORY, ENGINE_BATCH, BREAK };
static const char magics[][9] = {[KVR_SAVED_SNAPSHOT] = "KVRSNAP", [KVR_SAVED_JOURNAL] = "KVRJRNL"};

/* ---- writing ------------------------------------------------------------------------------------------------------- */

static void put_raw(struct kvr_saved_writer *w, const void *data, size_t len)
{
    if (len && !w->failed && !w->put(w->ctx, data, len)) w->failed = true;
    w->bytes += len;
}

static void put_record(struct kvr_saved_writer *w, uint32_t type, const struct kvr_buf *b)
{
    uint32_t head[2] = {type, 0};
    const char *data = b->data ? b->data : "";
    uint64_t size = b->len, sum = kvr_hash_bytes(data, b->len, w->records++);
    w->failed |= b->failed;
    put_raw(w, head, sizeof head);
    put_raw(w, &size, sizeof size);
    put_raw(w, data, b->len);
    put_raw(w, &sum, sizeof sum);
}

void kvr_saved_begin(struct kvr_saved_writer *w, enum kvr_saved_kind kind)
{
    uint32_t head[2] = {VERSION, 0};
    put_raw(w, magics[kind], 8);
    put_raw(w, head, sizeof head);
}

void kvr_saved_put_partition(struct kvr_saved_writer *w, const struct kvr_saved_partition *p)
{
    struct kvr_buf b = {0};
    uint16_t lens[2] = {(uint16_t)strlen(p->model), (uint16_t)strlen(p->group)};
    kvr_buf_add(&b, &p->block_size, 4);
    kvr_buf_add(&b, lens, sizeof lens);
    kvr_buf_str(&b, p->model);
    kvr_buf_str(&b, p->group);
    put_record(w, PARTITION, &b);
    kvr_buf_free(&b);
}

void kvr_saved_put_source(struct kvr_saved_writer *w, const struct kvr_saved_source *s)
{
    struct kvr_buf b = {0};
    uint32_t flags = (uint32_t)s->known | (uint32_t)s->whole << 1, len = (uint32_t)strlen(s->endpoint);
    kvr_buf_add(&b, &s->worker.worker_id, 8);
    kvr_buf_add(&b, &s->worker.dp_rank, 4);
    kvr_buf_add(&b, &flags, 4);
    kvr_buf_add(&b, &s->next, 8);
    kvr_buf_add(&b, &s->last_hash, 8);
    kvr_buf_add(&b, &s->last_ts, 8);
    kvr_buf_add(&b, &s->generation, 8);
    kvr_buf_add(&b, &len, 4);
    kvr_buf_str(&b, s->endpoint);
    put_record(w, SOURCE, &b);
    kvr_buf_free(&b);
}

void kvr_saved_put_memory(struct kvr_saved_writer *w, const struct kvr_buf *memory)
{
    put_record(w, MEMORY, memory);
}

int kvr_saved_keep_event(void *ctx, const struct kvr_event *ev)
{
    struct kvr_saved_writer *w = ctx;
    struct kvr_buf *b = &w->piece;
    uint64_t up = ev->has_parent ? ev->parent_hash : ev->start_position, n = ev->blocks_n, lower[KVR_LOWER_WORDS];
    kvr_lower_pack(&ev->lower, lower);
    bool told = kvr_lower_is_told(lower);
    uint8_t small[4] = {(uint8_t)ev->tier, (uint8_t)(ev->has_parent | ev->has_start_position << 1 | told << 2), 0, 0};
    kvr_buf_add(b, &ev->worker.worker_id, 8);
    kvr_buf_add(b, &ev->worker.dp_rank, 4);
    kvr_buf_add(b, small, 4);
    kvr_buf_add(b, &up, 8);
    kvr_buf_add(b, &n, 8);
    for (size_t i = 0; i < ev->blocks_n; i++) kvr_buf_add(b, &ev->blocks[i].block_hash, 8);
    for (size_t i = 0; i < ev->blocks_n; i++) kvr_buf_add(b, &ev->blocks[i].tokens_hash, 8);
    if (told) kvr_buf_add(b, lower, sizeof lower);
    w->blocks += ev->blocks_n;
    return b->failed ? -KVR_ENOMEM : 0;
}

void kvr_saved_flush(struct kvr_saved_writer *w)
{
    w->failed |= w->piece.failed;
    if (w->piece.len) put_record(w, EVENTS, &w->piece);
    w->piece.len = 0;
}

void kvr_saved_end(struct kvr_saved_writer *w)
{
    struct kvr_buf b = {.data = (char *)&w->blocks, .len = sizeof w->blocks};
    put_record(w, END, &b);
}

/* Without a copy of the payload: the ingest thread writes one for each batch. */
void kvr_saved_put_batch(struct kvr_saved_writer *w, uint64_t seq, const char *data, size_t len)
{
    uint32_t head[2] = {ENGINE_BATCH, 0};
    uint64_t size = len + sizeof seq, sum = kvr_hash_bytes(data, len, w->records++ ^ kvr_mix64(seq));
    put_raw(w, head, sizeof head);
    put_raw(w, &size, sizeof size);
    put_raw(w, &seq, sizeof seq);
    put_raw(w, data, len);
    put_raw(w, &sum, sizeof sum);
}

void kvr_saved_put_break(struct kvr_saved_writer *w)
{
    put_record(w, BREAK, &(struct kvr_buf){0});
}

void kvr_saved_writer_free(struct kvr_saved_writer *w)
{
    kvr_buf_free(&w->piece);
}

/* ---- records --------------------------------------------------------------------------------------------------------- */

/* The next record, its checksum verified. Returns: its type, 0 at the end of the file, -1 when it is torn. */
static int next_record(struct kvr_saved_file *f, const unsigned char **data, uint64_t *len)
{
    uint32_t type, zero;
    uint64_t sum, seq = 0;
    if (f->at == f->end) return 0;
    if (f->end - f->at < RECORD_HEAD + RECORD_TAIL) return -1;
    memcpy(&type, f->at, 4);
    memcpy(&zero, f->at + 4, 4);
    memcpy(len, f->at + 8, 8);
    if (*len > (uint64_t)(f->end - f->at) - RECORD_HEAD - RECORD_TAIL || type < PARTITION || type > BREAK || zero) return -1;
    *data = f->at + RECORD_HEAD;
    memcpy(&sum, *data + *len, 8);
    size_t before = 0; /* the sequence of a batch is in the seed */
    if (type == ENGINE_BATCH) {
        if (*len < sizeof seq) return -1;
        memcpy(&seq, *data, sizeof seq);
        before = sizeof seq;
    }
    if (sum != kvr_hash_bytes(*data + before, *len - before, before ? f->records ^ kvr_mix64(seq) : f->records)) return -1;
    f->records++;
    f->at = *data + *len + RECORD_TAIL;
    return (int)type;
}

/* What an event of `used` bytes is followed by. Returns: how many bytes, or UINT64_MAX when it cannot be. */
static uint64_t lower_of(const unsigned char *event, uint64_t used, struct kvr_lower *out)
{
    uint64_t words[KVR_LOWER_WORDS];
    if (!(event[13] & 4)) return 0;
    memcpy(words, event + used, sizeof words);
    return kvr_lower_unpack(words, out) ? sizeof words : UINT64_MAX;
}

/* Is an events record well formed? Adds its blocks to *blocks. */
static bool events_ok(const unsigned char *p, uint64_t len, uint64_t *blocks)
{
    while (len) {
        struct kvr_lower lower;
        uint64_t n;
        if (len < EVENT_HEAD || p[12] >= KVR_TIER_COUNT || p[13] > 7 || (p[13] & 3) == 3) return false;
        memcpy(&n, p + 24, 8);
        if (n == 0 || n > (len - EVENT_HEAD) / 16) return false;
        uint64_t used = EVENT_HEAD + n * 16;
        if (p[13] & 4 && len - used < sizeof(uint64_t[KVR_LOWER_WORDS])) return false;
        uint64_t more = lower_of(p, used, &lower);
        if (more == UINT64_MAX) return false;
        p += used + more;
        len -= used + more;
        *blocks += n;
    }
    return true;
}

static bool partition_ok(const unsigned char *p, uint64_t len)
{
    uint16_t lens[2];
    uint32_t bs;
    if (len < 8) return false;
    memcpy(&bs, p, 4);
    memcpy(lens, p + 4, 4);
    return bs >= 1 && bs <= 65536 && lens[0] <= KVR_SAVED_NAME_MAX && lens[1] <= KVR_SAVED_NAME_MAX && len == 8u + lens[0] + lens[1];
}

static bool source_ok(const unsigned char *p, uint64_t len)
{
    uint32_t flags, n;
    if (len < SOURCE_HEAD) return false;
    memcpy(&flags, p + 12, 4);
    memcpy(&n, p + 48, 4);
    return flags <= 3 && n <= KVR_SAVED_ENDPOINT_MAX && len == (uint64_t)SOURCE_HEAD + n;
}

static void get_partition(const unsigned char *p, struct kvr_saved_partition *out)
{
    uint16_t lens[2];
    memcpy(&out->block_size, p, 4);
    memcpy(lens, p + 4, 4);
    snprintf(out->model, sizeof out->model, "%.*s", lens[0], (const char *)p + 8);
    snprintf(out->group, sizeof out->group, "%.*s", lens[1], (const char *)p + 8 + lens[0]);
}

static void get_source(const unsigned char *p, struct kvr_saved_source *out)
{
    uint32_t flags, n;
    memcpy(&out->worker.worker_id, p, 8);
    memcpy(&out->worker.dp_rank, p + 8, 4);
    memcpy(&flags, p + 12, 4);
    memcpy(&out->next, p + 16, 8);
    memcpy(&out->last_hash, p + 24, 8);
    memcpy(&out->last_ts, p + 32, 8);
    memcpy(&out->generation, p + 40, 8);
    memcpy(&n, p + 48, 4);
    out->known = flags & 1;
    out->whole = flags & 2;
    snprintf(out->endpoint, sizeof out->endpoint, "%.*s", (int)n, (const char *)p + SOURCE_HEAD);
}

/* The head of a file. Returns: NULL, or what is wrong with it. */
static const char *open_file(const void *data, size_t len, enum kvr_saved_kind kind, struct kvr_saved_file *f)
{
    uint32_t version;
    const unsigned char *p = data;
    if (len < FILE_HEAD || memcmp(p, magics[kind], 8) != 0)
        return kind == KVR_SAVED_SNAPSHOT ? "it is not a snapshot of kvroute" : "it is not a journal of kvroute";
    memcpy(&version, p + 8, 4);
    if (version != VERSION) return "it is of another version; this program reads version 2";
    *f = (struct kvr_saved_file){p + FILE_HEAD, p + len, 0};
    return NULL;
}

const char *kvr_saved_check(const void *data, size_t size, struct kvr_saved_file *out, uint64_t *blocks)
{
    const unsigned char *p;
    uint64_t len, said = 0;
    int type, last = 0;
    const char *wrong = open_file(data, size, KVR_SAVED_SNAPSHOT, out);
    if (wrong) return wrong;
    struct kvr_saved_file f = *out;
    *blocks = 0;
    while ((type = next_record(&f, &p, &len)) > 0) {
        bool of_source = last == SOURCE || last == MEMORY || last == EVENTS, ok = last != END;
        if (type == PARTITION) ok = ok && partition_ok(p, len);
        else if (type == SOURCE) ok = ok && last != 0 && source_ok(p, len);
        else if (type == MEMORY) ok = ok && last == SOURCE;
        else if (type == EVENTS) ok = ok && of_source && events_ok(p, len, blocks);
        else if (type == END && len == 8) memcpy(&said, p, 8);
        else ok = false;
        if (!ok) return "a record is not as it should be";
        last = type;
    }
    if (type < 0) return "it is torn or damaged: a checksum or a length is wrong";
    if (last != END) return "it is torn: the end is missing";
    return said == *blocks ? NULL : "it has another number of blocks than it says";
}

/* ---- reading --------------------------------------------------------------------------------------------------------- */

/* Events on their way to the reader, a few hundred at a time. */
struct gather {
    const struct kvr_saved_reader *r;
    struct kvr_event events[BATCH];
    size_t n;
    struct kvr_block *blocks;
    size_t blocks_n, blocks_cap;
};

static bool hand_over(struct gather *g)
{
    size_t at = 0;
    for (size_t i = 0; i < g->n; i++) {
        g->events[i].blocks = g->blocks + at;
        at += g->events[i].blocks_n;
    }
    bool go = !g->n || g->r->events(g->r->ctx, g->events, g->n);
    g->n = g->blocks_n = 0;
    return go;
}

static bool room_for(struct gather *g, uint64_t n)
{
    if (g->blocks_n + n <= g->blocks_cap) return true;
    size_t cap = (g->blocks_n + n) * 2;
    struct kvr_block *b = realloc(g->blocks, cap * sizeof *b);
    if (!b) return false;
    g->blocks = b;
    g->blocks_cap = cap;
    return true;
}

static bool read_events(struct gather *g, const unsigned char *p, uint64_t len)
{
    for (uint64_t n, used; len; p += used, len -= used) {
        struct kvr_event ev = {.kind = KVR_EVENT_STORED};
        uint64_t up;
        memcpy(&ev.worker.worker_id, p, 8);
        memcpy(&ev.worker.dp_rank, p + 8, 4);
        ev.tier = (enum kvr_tier)p[12];
        ev.has_parent = p[13] & 1;
        ev.has_start_position = p[13] & 2;
        memcpy(&up, p + 16, 8);
        memcpy(&n, p + 24, 8);
        ev.parent_hash = ev.has_parent ? up : 0;
        ev.start_position = ev.has_start_position ? (uint32_t)up : 0;
        ev.blocks_n = n;
        used = EVENT_HEAD + n * 16;
        used += lower_of(p, used, &ev.lower);
        if (g->n == BATCH && !hand_over(g)) return false;
        if (!room_for(g, n)) return false;
        for (uint64_t i = 0; i < n; i++) {
            memcpy(&g->blocks[g->blocks_n + i].block_hash, p + EVENT_HEAD + i * 8, 8);
            memcpy(&g->blocks[g->blocks_n + i].tokens_hash, p + EVENT_HEAD + n * 8 + i * 8, 8);
        }
        g->blocks_n += n;
        g->events[g->n++] = ev;
    }
    return hand_over(g);
}

static bool read_record(struct gather *g, int type, const unsigned char *p, uint64_t len)
{
    const struct kvr_saved_reader *r = g->r;
    struct kvr_saved_partition part;
    struct kvr_saved_source source;
    uint64_t seq;
    switch (type) {
    case PARTITION: get_partition(p, &part); return !r->partition || r->partition(r->ctx, &part);
    case SOURCE: get_source(p, &source); return !r->source || r->source(r->ctx, &source);
    case MEMORY: return !r->memory || r->memory(r->ctx, (const char *)p, len);
    case EVENTS: return !r->events || read_events(g, p, len);
    case ENGINE_BATCH: memcpy(&seq, p, 8); return !r->batch || r->batch(r->ctx, seq, (const char *)p + 8, len - 8);
    case BREAK:
        if (r->broken) r->broken(r->ctx);
        return true;
    default: return true;
    }
}

bool kvr_saved_read(const struct kvr_saved_file *file, const struct kvr_saved_reader *r)
{
    struct kvr_saved_file f = *file;
    struct gather *g = calloc(1, sizeof *g);
    const unsigned char *p;
    uint64_t len;
    int type;
    bool go = g != NULL;
    if (g) g->r = r;
    while (go && (type = next_record(&f, &p, &len)) > 0) go = read_record(g, type, p, len);
    if (g) free(g->blocks);
    free(g);
    return go;
}

const char *kvr_saved_read_journal(const void *data, size_t size, const struct kvr_saved_reader *r)
{
    struct kvr_saved_file f;
    struct gather g = {.r = r};
    const unsigned char *p;
    uint64_t len;
    int type, last = 0;
    const char *wrong = open_file(data, size, KVR_SAVED_JOURNAL, &f);
    bool go = !wrong;
    while (go && (type = next_record(&f, &p, &len)) > 0) {
        bool first = last == 0;
        go = type == SOURCE ? first && source_ok(p, len) : !first && (type == ENGINE_BATCH || type == BREAK);
        go = go && read_record(&g, type, p, len);
        last = type;
    }
    return wrong;
}
