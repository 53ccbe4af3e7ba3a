/* SPDX-License-Identifier: Apache-2.0 */
#include "workload.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <kvroute/hash.h>

static void *grown(void *p, size_t *cap, size_t need, size_t elem)
{
    if (need <= *cap) return p;
    while (*cap < need) *cap = *cap ? *cap + *cap / 2 : 1024;
    p = realloc(p, *cap * elem);
    if (!p) {
        fprintf(stderr, "workload: out of memory\n");
        exit(1);
    }
    return p;
}

/* ---- presets -------------------------------------------------------------------------------------------- */

static const struct {
    const char *name, *what;
    struct workload_config c;
} presets[] = {
    {"w1", "128 workers, conversations", {.workers = 128, .capacity = 16384, .sessions = 20000, .requests = 200000}},
    {"w1l", "w1, four times as long", {.workers = 128, .capacity = 16384, .sessions = 20000, .requests = 800000}},
    {"w2", "8 workers, conversations", {.workers = 8, .capacity = 16384, .sessions = 2000, .requests = 40000}},
    {"w5",
     "128 workers, each with names of its own",
     {.workers = 128, .capacity = 16384, .sessions = 20000, .requests = 200000, .own_names = true}},
    {"w7",
     "1,000 workers, few long prefixes that many hold",
     {.workers = 1000,
      .capacity = 4096,
      .sessions = 400,
      .requests = 120000,
      .prompts = 8,
      .prompt_blocks = 500,
      .sticky = 0.01,
      .turns = 4}},
    {"w10",
     "100 workers, ten holders a block",
     {.workers = 100,
      .capacity = 16384,
      .sessions = 3000,
      .requests = 150000,
      .prompts = 150,
      .prompt_blocks = 900,
      .sticky = 0.2,
      .turns = 2,
      .max_blocks = 1400}},
    {"one", "one worker: one holder in every answer", {.workers = 1, .capacity = 262144, .sessions = 3000, .requests = 40000}},
    {"small", "16 workers, 0.1 M pairs", {.workers = 16, .capacity = 6250, .sessions = 1000, .requests = 10000}},
    {"one2", "one, of 2 M pairs", {.workers = 1, .capacity = 2097152, .sessions = 24000, .requests = 320000, .late_queries = true}},
    {"one50", "one, of 50 M pairs", {.workers = 1, .capacity = 50331648, .sessions = 500000, .requests = 4500000, .late_queries = true}},
    {"m05", "32 workers, 0.5 M pairs", {.workers = 32, .capacity = 16384, .sessions = 5000, .requests = 50000, .late_queries = true}},
    {"m10", "m05 with 10 M pairs", {.workers = 32, .capacity = 327680, .sessions = 100000, .requests = 1000000, .late_queries = true}},
    {"m50", "m05 with 50 M pairs", {.workers = 32, .capacity = 1572864, .sessions = 500000, .requests = 5000000, .late_queries = true}},
};

bool workload_preset(const char *name, struct workload_config *out)
{
    for (size_t i = 0; i < sizeof presets / sizeof presets[0]; i++) {
        if (strcmp(presets[i].name, name) != 0) continue;
        *out = presets[i].c;
        if (!out->prompts) out->prompts = 50;
        if (!out->prompt_blocks) out->prompt_blocks = 24;
        if (!out->max_blocks) out->max_blocks = 2000;
        if (out->user == 0) out->user = 8;
        if (out->output == 0) out->output = 5;
        if (out->turns == 0) out->turns = 8;
        if (out->sticky == 0) out->sticky = 0.85;
        out->expand = 4;
        out->copies = 1;
        out->seed = 42;
        out->checks = 500;
        return true;
    }
    return false;
}

const char *workload_names(void)
{
    static char text[1024];
    text[0] = '\0';
    for (size_t i = 0; i < sizeof presets / sizeof presets[0]; i++) {
        size_t n = strlen(text);
        snprintf(text + n, sizeof text - n, "  %-6s %s\n", presets[i].name, presets[i].what);
    }
    return text;
}

/* ---- the fleet's caches ---------------------------------------------------------------------------------- */

struct held { /* a block in a worker's cache; lists by index, 0 ends */
    uint32_t node, worker, newer, older;
};

struct sim {
    const struct workload_config *c;
    struct workload *w;
    uint64_t rng;
    struct held *held;
    size_t held_cap;
    uint32_t held_n, held_free;
    uint32_t *table; /* open addressing on (worker, node) */
    uint64_t mask;
    uint32_t *newest, *oldest, *count; /* per worker */
    uint32_t nodes;
    size_t request;
    uint32_t *gone; /* scratch of evictions */
    size_t gone_cap;
};

static uint64_t next(struct sim *s)
{
    uint64_t z = (s->rng += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
}

static uint32_t below(struct sim *s, uint32_t n)
{
    return (uint32_t)(((next(s) >> 32) * n) >> 32);
}

static bool happens(struct sim *s, double p)
{
    return (double)(next(s) >> 11) * 0x1.0p-53 < p;
}

static uint32_t geometric(struct sim *s, double mean)
{
    uint32_t n = 1;
    while (n < 100000 && !happens(s, 1 / mean)) n++;
    return n;
}

static uint64_t mixed(uint64_t x)
{
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdULL;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ULL;
    return x ^ x >> 33;
}

static uint64_t local_of(uint32_t node)
{
    return mixed(node + UINT64_C(0x1234500000000));
}

static uint64_t name_of(const struct sim *s, uint32_t node, uint32_t worker)
{
    return mixed(node + (s->c->own_names ? (uint64_t)(worker + 1) << 40 : 0) + UINT64_C(0x5500000000000000));
}

static uint64_t slot_of(const struct sim *s, uint32_t worker, uint32_t node)
{
    uint64_t i = mixed((uint64_t)worker << 32 | node) & s->mask;
    while (s->table[i] && (s->held[s->table[i]].worker != worker || s->held[s->table[i]].node != node)) i = (i + 1) & s->mask;
    return i;
}

static bool holds(const struct sim *s, uint32_t worker, uint32_t node)
{
    return s->table[slot_of(s, worker, node)] != 0;
}

static void list_out(struct sim *s, struct held *h)
{
    if (h->newer) s->held[h->newer].older = h->older;
    else s->newest[h->worker] = h->older;
    if (h->older) s->held[h->older].newer = h->newer;
    else s->oldest[h->worker] = h->newer;
}

static void list_in(struct sim *s, uint32_t i)
{
    struct held *h = &s->held[i];
    h->newer = 0;
    h->older = s->newest[h->worker];
    if (h->older) s->held[h->older].newer = i;
    else s->oldest[h->worker] = i;
    s->newest[h->worker] = i;
}

static void touch(struct sim *s, uint32_t worker, uint32_t node)
{
    uint64_t at = slot_of(s, worker, node);
    uint32_t i = s->table[at];
    if (i) {
        list_out(s, &s->held[i]);
    } else {
        i = s->held_free;
        if (i) s->held_free = s->held[i].older;
        else i = ++s->held_n;
        s->held = grown(s->held, &s->held_cap, (size_t)i + 1, sizeof *s->held);
        s->held[i].node = node;
        s->held[i].worker = worker;
        s->table[at] = i;
        s->count[worker]++;
    }
    list_in(s, i);
}

static uint32_t evict_oldest(struct sim *s, uint32_t worker)
{
    uint32_t i = s->oldest[worker], node = s->held[i].node;
    uint64_t hole = slot_of(s, worker, node);
    list_out(s, &s->held[i]);
    s->held[i].older = s->held_free;
    s->held_free = i;
    s->count[worker]--;
    s->table[hole] = 0;
    for (uint64_t j = (hole + 1) & s->mask; s->table[j]; j = (j + 1) & s->mask) {
        const struct held *h = &s->held[s->table[j]];
        uint64_t home = mixed((uint64_t)h->worker << 32 | h->node) & s->mask;
        if (((j - home) & s->mask) < ((j - hole) & s->mask)) continue;
        s->table[hole] = s->table[j];
        s->table[j] = 0;
        hole = j;
    }
    return node;
}

/* ---- operations ------------------------------------------------------------------------------------------ */

static size_t put_words(struct sim *s, const uint32_t *path, uint32_t n, bool names, uint32_t worker)
{
    struct workload *w = s->w;
    size_t at = w->words_n;
    w->words = grown(w->words, &w->words_cap, at + n, sizeof *w->words);
    for (uint32_t i = 0; i < n; i++) w->words[at + i] = names ? name_of(s, path[i], worker) : local_of(path[i]);
    w->words_n += n;
    return at;
}

static void emit(struct sim *s, uint32_t kind, uint32_t worker, const uint32_t *path, uint32_t from, uint32_t to)
{
    struct workload *w = s->w;
    struct op o = {.kind = kind, .worker = worker, .n = to - from};
    if (kind == OP_STORED && from) {
        o.has_parent = 1;
        o.parent = name_of(s, path[from - 1], worker);
    }
    if (kind != OP_QUERY) o.names = put_words(s, path + from, o.n, true, worker);
    if (kind != OP_REMOVED) o.locals = put_words(s, path + from, o.n, false, worker);
    w->ops = grown(w->ops, &w->ops_cap, w->ops_n + 1, sizeof *w->ops);
    w->ops[w->ops_n++] = o;
}

static void make_room(struct sim *s, uint32_t worker)
{
    uint32_t n = 0;
    while (s->count[worker] > s->c->capacity) {
        s->gone = grown(s->gone, &s->gone_cap, n + 1, sizeof *s->gone);
        s->gone[n++] = evict_oldest(s, worker);
    }
    if (n) emit(s, OP_REMOVED, worker, s->gone, 0, n);
}

static void prefill(struct sim *s, uint32_t worker, const uint32_t *path, uint32_t n)
{
    uint32_t hit = 0;
    while (hit < n && holds(s, worker, path[hit])) hit++;
    if (!s->c->late_queries || s->request >= s->c->requests * 2 / 3) emit(s, OP_QUERY, worker, path, 0, n);
    for (uint32_t i = n; i-- > 0;) touch(s, worker, path[i]);
    if (hit < n) emit(s, OP_STORED, worker, path, hit, n);
    make_room(s, worker);
}

/* The last block of path is complete. */
static void decode(struct sim *s, uint32_t worker, const uint32_t *path, uint32_t n)
{
    if (!holds(s, worker, path[n - 2])) return;
    touch(s, worker, path[n - 1]);
    emit(s, OP_STORED, worker, path, n - 1, n);
    make_room(s, worker);
}

/* The request ends: its blocks age, the tail first. */
static void finish(struct sim *s, uint32_t worker, const uint32_t *path, uint32_t n)
{
    for (uint32_t i = n; i-- > 0;)
        if (holds(s, worker, path[i])) touch(s, worker, path[i]);
}

/* ---- sources of requests ----------------------------------------------------------------------------------- */

struct session {
    uint32_t *path, n, worker, left; /* left: blocks of the answer to come */
};

static uint32_t popular(struct sim *s, uint32_t n)
{
    uint32_t z = 0;
    while (z + 1 < n && happens(s, 0.5)) z++;
    return z < 8 ? z : below(s, n); /* a geometric head, a flat tail */
}

static void next_turn(struct sim *s, struct session *e, uint32_t *const *prompts)
{
    const struct workload_config *c = s->c;
    if (!e->n || happens(s, 1 / c->turns) || e->n + 200 > c->max_blocks) {
        memcpy(e->path, prompts[popular(s, c->prompts)], c->prompt_blocks * sizeof *e->path);
        e->n = c->prompt_blocks;
        e->worker = below(s, c->workers);
    } else if (!happens(s, c->sticky)) {
        e->worker = below(s, c->workers);
    }
    uint32_t user = geometric(s, c->user);
    if (happens(s, 0.1)) user += geometric(s, c->user * 10); /* now and then a document */
    while (user-- && e->n + 100 < c->max_blocks) e->path[e->n++] = s->nodes++;
    prefill(s, e->worker, e->path, e->n);
    e->left = geometric(s, c->output);
}

static void conversations(struct sim *s)
{
    const struct workload_config *c = s->c;
    uint32_t **prompts = calloc(c->prompts, sizeof *prompts), *busy = calloc(c->sessions, sizeof *busy), busy_n = 0;
    struct session *all = calloc(c->sessions, sizeof *all);
    for (uint32_t i = 0; i < c->prompts; i++) {
        prompts[i] = calloc(c->prompt_blocks, sizeof **prompts);
        for (uint32_t j = 0; j < c->prompt_blocks; j++) prompts[i][j] = s->nodes++;
    }
    for (size_t r = 0; r < c->requests; r++) {
        s->request = r;
        uint32_t i = below(s, c->sessions);
        if (all[i].left) continue; /* still answering */
        if (!all[i].path) all[i].path = calloc(c->max_blocks, sizeof *all[i].path);
        next_turn(s, &all[i], prompts);
        busy[busy_n++] = i;
        for (uint32_t k = 0; k < (uint32_t)c->output + 1 && busy_n; k++) { /* the fleet decodes */
            uint32_t j = below(s, busy_n);
            struct session *e = &all[busy[j]];
            if (e->n < c->max_blocks) {
                e->path[e->n++] = s->nodes++;
                decode(s, e->worker, e->path, e->n);
            }
            if (--e->left) continue;
            finish(s, e->worker, e->path, e->n);
            busy[j] = busy[--busy_n];
        }
    }
    for (uint32_t i = 0; i < c->sessions; i++) free(all[i].path);
    for (uint32_t i = 0; i < c->prompts; i++) free(prompts[i]);
    free(all);
    free(prompts);
    free(busy);
}

static void trace_request(struct sim *s, const char *line, uint32_t copy, uint32_t **path, size_t *cap)
{
    const char *ids = strstr(line, "\"hash_ids\""), *out = strstr(line, "\"output_length\":");
    uint32_t n = 0, x = s->c->expand;
    if (!ids || !(ids = strchr(ids, '['))) return;
    for (ids++; *ids && *ids != ']';) {
        char *end;
        uint32_t id = (uint32_t)strtoul(ids, &end, 10);
        if (end == ids) break;
        for (ids = end; *ids == ',' || *ids == ' '; ids++) {
        }
        *path = grown(*path, cap, n + x, sizeof **path);
        for (uint32_t i = 0; i < x; i++) (*path)[n++] = 1 + (copy << 28) + id * x + i; /* ids of a trace stay below 2^28 / expand */
    }
    if (n < 2) return;
    uint32_t worker = below(s, s->c->workers);
    uint32_t answer = out ? (uint32_t)strtoul(out + 16, NULL, 10) * x / 512 : 0;
    prefill(s, worker, *path, n);
    for (uint32_t i = 0; i < answer; i++) {
        *path = grown(*path, cap, n + 1, sizeof **path);
        (*path)[n++] = 0x80000000u | s->nodes++;
        decode(s, worker, *path, n);
    }
    finish(s, worker, *path, n);
}

static void trace(struct sim *s)
{
    uint32_t *path = NULL;
    size_t cap = 0, line_cap = 0;
    char *line = NULL;
    for (uint32_t copy = 0; copy < s->c->copies && copy < 8; copy++) {
        FILE *f = fopen(s->c->trace, "r");
        if (!f) {
            perror(s->c->trace);
            exit(1);
        }
        while (getline(&line, &line_cap, f) > 0) trace_request(s, line, copy, &path, &cap);
        fclose(f);
    }
    free(line);
    free(path);
}

/* ---- names ------------------------------------------------------------------------------------------------- */

struct rename {
    uint64_t *from, *to;
    size_t mask;
};

static uint64_t *renamed(const struct rename *r, uint64_t name)
{
    size_t i = mixed(name) & r->mask;
    while (r->to[i] && r->from[i] != name) i = (i + 1) & r->mask;
    r->from[i] = name;
    return &r->to[i];
}

/* Names become the chain of local hashes, as Dynamo's own publishers make them: the positional index needs that. */
static void chain_names(struct workload *w)
{
    struct rename r = {.mask = 1};
    size_t stored = 0;
    for (size_t i = 0; i < w->ops_n; i++) stored += w->ops[i].kind == OP_STORED ? w->ops[i].n : 0;
    while (r.mask < stored + stored / 4) r.mask *= 2;
    r.from = calloc(r.mask, sizeof *r.from);
    r.to = calloc(r.mask, sizeof *r.to);
    if (!r.from || !r.to) exit(1);
    r.mask--;
    for (size_t i = 0; i < w->ops_n; i++) {
        struct op *o = &w->ops[i];
        uint64_t *names = w->words + o->names, chain[2] = {0, 0}, out[2];
        if (o->kind == OP_QUERY) continue;
        if (o->has_parent) o->parent = chain[0] = *renamed(&r, o->parent);
        for (uint32_t j = 0; j < o->n; j++) {
            uint64_t *to = renamed(&r, names[j]);
            chain[1] = o->kind == OP_STORED ? w->words[o->locals + j] : 0;
            if (!*to && (j > 0 || o->has_parent)) kvr_hash_sequence(chain, 2, out);
            else out[1] = chain[1];
            if (!*to) *to = out[1];
            names[j] = chain[0] = *to;
        }
    }
    free(r.from);
    free(r.to);
}

/* ---- answers ----------------------------------------------------------------------------------------------- */

/* local_of is a bijection: undo it. */
static uint32_t node_of(uint64_t x)
{
    x ^= x >> 33;
    x *= 0x9cb4b2f8129337dbULL;
    x ^= x >> 33;
    x *= 0x4f74430c22a54005ULL;
    x ^= x >> 33;
    return (uint32_t)(x - UINT64_C(0x1234500000000));
}

static void add_checks(struct sim *s)
{
    struct workload *w = s->w;
    w->checks = calloc(s->c->checks + 1u, sizeof *w->checks);
    for (size_t tries = 0; w->checks_n < s->c->checks && tries < (size_t)s->c->checks * 50; tries++) {
        const struct op *o = &w->ops[w->ops_n - 1 - next(s) % (w->ops_n / 4 + 1)];
        if (o->kind != OP_QUERY) continue;
        struct check *k = &w->checks[w->checks_n++];
        *k = (struct check){.n = o->n, .locals = o->locals, .holders = w->holders_n};
        for (uint32_t v = 0; v < w->workers; v++) {
            uint32_t depth = 0;
            while (depth < o->n && holds(s, v, node_of(w->words[o->locals + depth]))) depth++;
            if (!depth) continue;
            w->holders = grown(w->holders, &w->holders_cap, w->holders_n + 1, sizeof *w->holders);
            w->holders[w->holders_n++] = (uint64_t)v << 32 | depth;
            k->holders_n++;
        }
    }
}

void workload_make(const struct workload_config *c, struct workload *out)
{
    *out = (struct workload){.workers = c->workers};
    struct sim s = {.c = c, .w = out, .rng = c->seed, .nodes = 1, .mask = 1};
    while (s.mask < (uint64_t)c->workers * (c->capacity + 8192) * 2) s.mask *= 2;
    s.table = calloc(s.mask--, sizeof *s.table);
    s.newest = calloc(c->workers, sizeof *s.newest);
    s.oldest = calloc(c->workers, sizeof *s.oldest);
    s.count = calloc(c->workers, sizeof *s.count);
    if (!s.table || !s.newest || !s.oldest || !s.count) exit(1);
    if (c->trace) trace(&s);
    else conversations(&s);
    for (uint32_t v = 0; v < c->workers; v++) out->pairs += s.count[v];
    add_checks(&s);
    if (!c->own_names) chain_names(out);
    free(s.table);
    free(s.newest);
    free(s.oldest);
    free(s.count);
    free(s.held);
    free(s.gone);
}

/* ---- files --------------------------------------------------------------------------------------------------- */

int workload_write(const struct workload *w, const char *path)
{
    FILE *f = fopen(path, "wb");
    if (!f) return -1;
    uint64_t head[5] = {WORKLOAD_MAGIC, w->ops_n, w->workers, w->pairs, w->checks_n};
    fwrite(head, 8, 5, f);
    for (size_t i = 0; i < w->ops_n; i++) {
        const struct op *o = &w->ops[i];
        fwrite(o, 4, 4, f);
        fwrite(&o->parent, 8, 1, f);
        if (o->kind != OP_QUERY) fwrite(w->words + o->names, 8, o->n, f);
        if (o->kind != OP_REMOVED) fwrite(w->words + o->locals, 8, o->n, f);
    }
    for (size_t i = 0; i < w->checks_n; i++) {
        const struct check *k = &w->checks[i];
        fwrite(k, 4, 2, f);
        fwrite(w->words + k->locals, 8, k->n, f);
        for (uint32_t h = 0; h < k->holders_n; h++) {
            uint32_t pair[2] = {(uint32_t)(w->holders[k->holders + h] >> 32), (uint32_t)w->holders[k->holders + h]};
            fwrite(pair, 4, 2, f);
        }
    }
    int bad = ferror(f);
    return fclose(f) || bad ? -1 : 0;
}

static bool get(FILE *f, void *to, size_t bytes)
{
    return fread(to, 1, bytes, f) == bytes;
}

static size_t get_words(FILE *f, struct workload *w, uint32_t n, bool *ok)
{
    size_t at = w->words_n;
    w->words = grown(w->words, &w->words_cap, at + n, sizeof *w->words);
    *ok = *ok && get(f, w->words + at, n * 8ul);
    w->words_n += n;
    return at;
}

int workload_read(struct workload *w, const char *path)
{
    *w = (struct workload){0};
    FILE *f = fopen(path, "rb");
    if (!f) return -1;
    uint64_t head[5];
    bool ok = get(f, head, sizeof head) && head[0] == WORKLOAD_MAGIC;
    if (ok) {
        w->ops = calloc(head[1] + 1, sizeof *w->ops);
        w->checks = calloc(head[4] + 1, sizeof *w->checks);
        w->workers = (uint32_t)head[2];
        w->pairs = head[3];
    }
    for (uint64_t i = 0; ok && i < head[1]; i++) {
        struct op *o = &w->ops[w->ops_n++];
        ok = get(f, o, 16) && get(f, &o->parent, 8);
        if (ok && o->kind != OP_QUERY) o->names = get_words(f, w, o->n, &ok);
        if (ok && o->kind != OP_REMOVED) o->locals = get_words(f, w, o->n, &ok);
    }
    for (uint64_t i = 0; ok && i < head[4]; i++) {
        struct check *k = &w->checks[w->checks_n++];
        ok = get(f, k, 8);
        if (ok) k->locals = get_words(f, w, k->n, &ok);
        k->holders = w->holders_n;
        for (uint32_t h = 0; ok && h < k->holders_n; h++) {
            uint32_t pair[2];
            ok = get(f, pair, 8);
            w->holders = grown(w->holders, &w->holders_cap, w->holders_n + 1, sizeof *w->holders);
            w->holders[w->holders_n++] = (uint64_t)pair[0] << 32 | pair[1];
        }
    }
    fclose(f);
    return ok ? 0 : -1;
}

void workload_free(struct workload *w)
{
    free(w->ops);
    free(w->words);
    free(w->checks);
    free(w->holders);
    *w = (struct workload){0};
}
