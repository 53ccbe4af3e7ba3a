/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes are blocks. Those that the view has hang below the root, named or anonymous. Orphans hang below a ghost: the parent of which
 * only the name is known.
 *
 *     root -- s0 -- s1 -- n2 -- n3            ghost X -- n7 -- n8
 *                     \-- n5
 *
 * Anonymous nodes without children are `bare`: what the next removal of an unknown name takes.
 */
#include "recover/consumer/supposed.h"

#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/map64.h"

enum { NODES_MAX = 1 << 18, FRESH = 8192, UNKNOWN = 1024, PENDING = 256, COPIES_MAX = 1 << 16 };
#define NONE UINT32_MAX
#define ROOT 0u

enum kind { FREE, ANONYMOUS, NAMED, ORPHAN, GHOST };

struct node {
    uint64_t name, local, tick; /* tick: when it became anonymous */
    uint32_t parent, child, next, prev;
    uint32_t bare; /* its place among the bare ones, or NONE */
    enum kind kind;
};

struct fresh { /* the first block of a store */
    uint64_t tick, local, name;
};

struct pending { /* a prompt that was answered a moment ago: its store may be on its way */
    uint64_t *locals, tick, due_ms;
    size_t n, cached;
};

struct kvr_supposed {
    struct kvr_supposed_config config;
    struct node *nodes;
    size_t cap, used; /* used: nodes that were ever taken */
    uint32_t free;
    struct kvr_map64 names, kids;
    uint32_t *bare, *scratch;
    size_t bare_n;
    struct fresh fresh[FRESH];
    uint64_t now_tick, fresh_n, unknown[UNKNOWN], unknown_n, reset_tick, made_up;
    struct pending pending[PENDING];
    size_t pending_first, pending_n;
    bool off; /* until the next reset */
    struct kvr_supposed_stats stats;
};

/* ---- nodes ---------------------------------------------------------------------------------------------------- */

static bool is_in_view(const struct node *n)
{
    return n->kind == ANONYMOUS || n->kind == NAMED;
}

static uint64_t kid_key(uint32_t parent, uint64_t local)
{
    return kvr_mix64_keyed(local, kvr_secret()) + kvr_mix64(parent);
}

static uint32_t find_kid(const struct kvr_supposed *s, uint32_t parent, uint64_t local)
{
    const uint64_t *at = kvr_map64_get(&s->kids, kid_key(parent, local));
    if (!at) return NONE;
    const struct node *n = &s->nodes[*at];
    return n->parent == parent && n->local == local ? (uint32_t)*at : NONE;
}

static uint32_t find_name(const struct kvr_supposed *s, uint64_t name)
{
    const uint64_t *at = kvr_map64_get(&s->names, name);
    return at ? (uint32_t)*at : NONE;
}

static void no_longer_bare(struct kvr_supposed *s, uint32_t id)
{
    uint32_t at = s->nodes[id].bare;
    if (at == NONE) return;
    s->bare[at] = s->bare[--s->bare_n];
    s->nodes[s->bare[at]].bare = at;
    s->nodes[id].bare = NONE;
}

/* There is room: the array has as many places as there are nodes. */
static void note_bare(struct kvr_supposed *s, uint32_t id)
{
    struct node *n = &s->nodes[id];
    if (n->kind != ANONYMOUS || n->child != NONE || n->bare != NONE) return;
    n->bare = (uint32_t)s->bare_n;
    s->bare[s->bare_n++] = id;
}

static void unlink_node(struct kvr_supposed *s, uint32_t id)
{
    struct node *n = &s->nodes[id];
    if (n->parent == NONE) return;
    kvr_map64_del(&s->kids, kid_key(n->parent, n->local));
    if (n->prev == NONE) s->nodes[n->parent].child = n->next;
    else s->nodes[n->prev].next = n->next;
    if (n->next != NONE) s->nodes[n->next].prev = n->prev;
    uint32_t parent = n->parent;
    n->parent = n->prev = n->next = NONE;
    note_bare(s, parent);
}

static bool link_node(struct kvr_supposed *s, uint32_t id, uint32_t parent)
{
    struct node *n = &s->nodes[id];
    if (kvr_map64_put(&s->kids, kid_key(parent, n->local), id)) return false;
    n->parent = parent;
    n->prev = NONE;
    n->next = s->nodes[parent].child;
    if (n->next != NONE) s->nodes[n->next].prev = id;
    s->nodes[parent].child = id;
    no_longer_bare(s, parent);
    return true;
}

static void free_node(struct kvr_supposed *s, uint32_t id)
{
    unlink_node(s, id);
    no_longer_bare(s, id);
    struct node *n = &s->nodes[id];
    if (find_name(s, n->name) == id) kvr_map64_del(&s->names, n->name);
    s->stats.anonymous -= n->kind == ANONYMOUS;
    *n = (struct node){.kind = FREE, .next = s->free, .parent = NONE, .bare = NONE};
    s->free = id;
}

/* Everything at and behind a node. */
static void free_tree(struct kvr_supposed *s, uint32_t top)
{
    for (uint32_t at = top;;) {
        while (s->nodes[at].child != NONE) at = s->nodes[at].child;
        uint32_t up = s->nodes[at].parent;
        free_node(s, at);
        if (at == top) return;
        at = up;
    }
}

static void drop_orphans(struct kvr_supposed *s)
{
    for (uint32_t i = 1; i < s->used; i++)
        if (s->nodes[i].kind == GHOST) free_tree(s, i);
}

static bool grow(struct kvr_supposed *s)
{
    size_t cap = s->cap ? s->cap * 2 : 1024;
    struct node *nodes = realloc(s->nodes, cap * sizeof *nodes);
    if (nodes) s->nodes = nodes;
    uint32_t *bare = realloc(s->bare, cap * sizeof *bare), *scratch = realloc(s->scratch, cap * sizeof *scratch);
    if (bare) s->bare = bare;
    if (scratch) s->scratch = scratch;
    if (!nodes || !bare || !scratch) return false;
    s->cap = cap;
    return true;
}

/* Returns: NONE when there is no room. */
static uint32_t new_node(struct kvr_supposed *s, enum kind kind, uint64_t name, uint64_t local, uint32_t parent)
{
    if (s->free == NONE && s->used == s->config.nodes_max) drop_orphans(s);
    uint32_t id = s->free;
    if (id != NONE) s->free = s->nodes[id].next;
    else if (s->used < s->config.nodes_max && (s->used < s->cap || grow(s))) id = (uint32_t)s->used++;
    else return NONE;
    s->nodes[id] =
        (struct node){.name = name, .local = local, .parent = NONE, .child = NONE, .next = NONE, .prev = NONE, .bare = NONE, .kind = kind};
    if (kvr_map64_put(&s->names, name, id) || (parent != NONE && !link_node(s, id, parent))) {
        s->nodes[id].kind = GHOST;
        free_node(s, id);
        return NONE;
    }
    s->stats.anonymous += kind == ANONYMOUS;
    note_bare(s, id);
    return id;
}

/* ---- the index ------------------------------------------------------------------------------------------------- */

static int apply_removal(struct kvr_supposed *s, uint64_t name)
{
    struct kvr_event ev = {.worker = s->config.worker, .kind = KVR_EVENT_REMOVED, .removed = &name, .removed_n = 1};
    return s->config.apply(s->config.ctx, &ev);
}

static void tell_removed(struct kvr_supposed *s, uint64_t name)
{
    (void)apply_removal(s, name);
}

static bool tell_stored(struct kvr_supposed *s, uint32_t parent, uint64_t name, uint64_t local)
{
    struct kvr_block b = {name, local};
    struct kvr_event ev = {.worker = s->config.worker,
                           .kind = KVR_EVENT_STORED,
                           .has_parent = parent != ROOT,
                           .parent_hash = parent != ROOT ? s->nodes[parent].name : 0,
                           .blocks = &b,
                           .blocks_n = 1};
    return s->config.apply(s->config.ctx, &ev) == 0;
}

/* The node and what is behind it are followed no more. The index may go on with what has names, but not with what has none. */
static void forget_tree(struct kvr_supposed *s, uint32_t top)
{
    for (uint32_t at = top;;) {
        const struct node *n = &s->nodes[at];
        if (n->kind == ANONYMOUS) tell_removed(s, n->name);
        if (n->kind != ANONYMOUS && n->child != NONE) {
            at = n->child;
            continue;
        }
        while (at != top && s->nodes[at].next == NONE) at = s->nodes[at].parent;
        if (at == top) break;
        at = s->nodes[at].next;
    }
    free_tree(s, top);
}

/* Takes a node and what is behind it out of the view. */
static void take_out(struct kvr_supposed *s, uint32_t id)
{
    tell_removed(s, s->nodes[id].name);
    free_tree(s, id);
}

static void forget_pending(struct kvr_supposed *s)
{
    for (size_t i = 0; i < PENDING; i++) {
        free(s->pending[i].locals);
        s->pending[i].locals = NULL;
    }
    s->pending_first = s->pending_n = 0;
}

/* Something went wrong that leaves it open what is in the view: nothing anonymous stays, and nothing is supposed any more. */
static void give_up(struct kvr_supposed *s, uint64_t *why)
{
    ++*why;
    s->off = true;
    drop_orphans(s);
    forget_pending(s);
    for (uint32_t i = 1; i < s->used; i++)
        if (s->nodes[i].kind == ANONYMOUS) take_out(s, i);
}

/* ---- names for anonymous blocks -------------------------------------------------------------------------------------- */

/* The index has the block under its name too by now. */
static bool give_name(struct kvr_supposed *s, uint32_t id, uint64_t name)
{
    struct node *n = &s->nodes[id];
    if (kvr_map64_put(&s->names, name, id)) return false;
    tell_removed(s, n->name);
    kvr_map64_del(&s->names, n->name);
    n->name = name;
    n->kind = NAMED;
    no_longer_bare(s, id);
    s->stats.anonymous--;
    s->stats.named++;
    return true;
}

/* An orphan, or ghost, becomes a block of the view below `parent`; what hangs below it comes along. told: the index has it already. */
static bool bring_in(struct kvr_supposed *s, uint32_t top, uint32_t parent, bool told)
{
    unlink_node(s, top);
    if (!link_node(s, top, parent)) return false;
    for (uint32_t at = top;;) {
        struct node *n = &s->nodes[at];
        if ((at != top || !told) && !tell_stored(s, n->parent, n->name, n->local)) return false;
        n->kind = NAMED;
        if (n->child != NONE) {
            at = n->child;
            continue;
        }
        while (at != top && s->nodes[at].next == NONE) at = s->nodes[at].parent;
        if (at == top) return true;
        at = s->nodes[at].next;
    }
}

/* What hangs below `from`, a ghost or an orphan, comes to hang below `to`, a block of the view. */
static bool merge(struct kvr_supposed *s, uint32_t from, uint32_t to)
{
    while (s->nodes[from].child != NONE) {
        uint32_t o = s->nodes[from].child, k = find_kid(s, to, s->nodes[o].local);
        if (k == NONE) {
            if (!bring_in(s, o, to, false)) return false;
        } else if (s->nodes[k].kind == ANONYMOUS) {
            uint64_t name = s->nodes[o].name;
            if (!tell_stored(s, to, name, s->nodes[k].local) || !give_name(s, k, name) || !merge(s, o, k)) return false;
            free_tree(s, o);
        } else {
            free_tree(s, o);
        }
    }
    return true;
}

/* ---- prompts ----------------------------------------------------------------------------------------------------------- */

/* The deepest block of the prompt that the view has. */
static uint32_t walk(const struct kvr_supposed *s, const uint64_t *locals, size_t n, size_t *depth)
{
    uint32_t at = ROOT;
    for (*depth = 0; *depth < n; ++*depth) {
        uint32_t k = find_kid(s, at, locals[*depth]);
        if (k == NONE || !is_in_view(&s->nodes[k])) break;
        at = k;
    }
    return at;
}

/* Blocks [depth, n) of the prompt below `at`, anonymous. */
static uint32_t suppose(struct kvr_supposed *s, uint32_t at, const uint64_t *locals, size_t depth, size_t n)
{
    for (; depth < n; depth++) {
        uint64_t name;
        do name = kvr_mix64_keyed(++s->made_up, kvr_secret());
        while (find_name(s, name) != NONE);
        uint32_t id = new_node(s, ANONYMOUS, name, locals[depth], at);
        if (id == NONE || !tell_stored(s, at, name, locals[depth])) return NONE;
        s->nodes[id].tick = s->now_tick;
        s->stats.supposed++;
        at = id;
    }
    return at;
}

/* The prompt's own store, when only one can be it. */
static const struct fresh *own_store(const struct kvr_supposed *s, const struct pending *p, bool *several)
{
    const struct fresh *found = NULL;
    *several = s->fresh_n > FRESH && s->fresh[s->fresh_n % FRESH].tick > p->tick; /* some are forgotten */
    for (uint64_t i = s->fresh_n; !*several && i-- > 0 && s->fresh_n - i <= FRESH;) {
        const struct fresh *f = &s->fresh[i % FRESH];
        if (f->tick <= p->tick) break;
        if (f->local != p->locals[p->cached]) continue;
        *several = found && found->name != f->name;
        found = f;
    }
    return *several ? NULL : found;
}

/* The ghost that the orphan hangs below, with the place of the block it stands for in the prompt; NONE: it does not fit. */
static uint32_t ghost_of(const struct kvr_supposed *s, const struct pending *p, uint32_t orphan, size_t *place)
{
    size_t at = p->cached;
    if (orphan == NONE || s->nodes[orphan].kind != ORPHAN) return NONE;
    for (;;) {
        if (at == 0 || s->nodes[orphan].local != p->locals[at]) return NONE;
        at--;
        orphan = s->nodes[orphan].parent;
        if (s->nodes[orphan].kind != GHOST) continue;
        *place = at;
        return orphan;
    }
}

/* The ghost is block `place` of the prompt. Returns: false when there was no room, or the index would not. */
static bool name_block(struct kvr_supposed *s, const struct pending *p, uint32_t ghost, size_t place)
{
    size_t depth;
    uint32_t at = walk(s, p->locals, place + 1, &depth);
    if (depth == place + 1) {
        uint64_t name = s->nodes[ghost].name;
        if (s->nodes[at].kind == NAMED) return true; /* then the name is another one's */
        if (!tell_stored(s, s->nodes[at].parent, name, s->nodes[at].local) || !give_name(s, at, name) || !merge(s, ghost, at)) return false;
        free_tree(s, ghost);
    } else {
        at = suppose(s, at, p->locals, depth, place);
        if (at == NONE) return false;
        s->nodes[ghost].local = p->locals[place];
        if (!bring_in(s, ghost, at, false)) return false;
        s->stats.named++;
    }
    return true;
}

/* By now the prompt's own store has been seen. When it is an orphan, its parent is known now. */
static void join(struct kvr_supposed *s, const struct pending *p)
{
    bool several;
    size_t place;
    const struct fresh *f = own_store(s, p, &several);
    s->stats.ambiguous += several;
    uint32_t ghost = f ? ghost_of(s, p, find_name(s, f->name), &place) : NONE;
    if (ghost != NONE && !name_block(s, p, ghost, place)) give_up(s, &s->stats.full);
}

static void forget_first(struct kvr_supposed *s)
{
    free(s->pending[s->pending_first].locals);
    s->pending[s->pending_first].locals = NULL;
    s->pending_first = (s->pending_first + 1) % PENDING;
    s->pending_n--;
}

void kvr_supposed_tick(struct kvr_supposed *s, uint64_t now_ms)
{
    while (s->pending_n && s->pending[s->pending_first].due_ms <= now_ms) {
        join(s, &s->pending[s->pending_first]);
        if (s->pending_n) forget_first(s); /* else all is given up */
    }
}

static size_t unknown_since(const struct kvr_supposed *s, uint64_t tick)
{
    size_t n = 0;
    while (n < s->unknown_n && n < UNKNOWN && s->unknown[(s->unknown_n - 1 - n) % UNKNOWN] > tick) n++;
    return n == UNKNOWN ? SIZE_MAX : n;
}

static void keep_pending(struct kvr_supposed *s, const struct kvr_served *v, uint64_t now_ms)
{
    if (s->pending_n == PENDING) forget_first(s);
    struct pending *p = &s->pending[(s->pending_first + s->pending_n) % PENDING];
    *p = (struct pending){malloc(v->n * sizeof *p->locals), v->tick, now_ms + KVR_SUPPOSED_WAIT_MS, v->n, v->cached};
    if (!p->locals) return;
    memcpy(p->locals, v->locals, v->n * sizeof *p->locals);
    s->pending_n++;
}

/* The engine had less of the prompt than the view: what was supposed behind that goes. */
static void refute(struct kvr_supposed *s, const struct kvr_served *v)
{
    uint32_t at = ROOT;
    for (size_t i = 0; v->told && i < v->n && i < v->view; i++) {
        at = find_kid(s, at, v->locals[i]);
        if (at == NONE || !is_in_view(&s->nodes[at])) return;
        if (i < v->cached || s->nodes[at].kind != ANONYMOUS || s->nodes[at].tick > v->tick) continue;
        take_out(s, at);
        s->stats.wrong++;
        return;
    }
}

void kvr_supposed_served(struct kvr_supposed *s, const struct kvr_served *v, uint64_t now_ms)
{
    size_t depth, cached = v->told ? KVR_MIN(v->cached, v->n) : v->n;
    if (s->off || v->tick < s->reset_tick || !v->n) return;
    s->stats.prompts++;
    refute(s, v);
    uint32_t at = walk(s, v->locals, v->n, &depth);
    if (depth >= cached) return;
    if (cached < v->n) keep_pending(s, v, now_ms);
    size_t gone = unknown_since(s, v->tick), left = gone < v->n ? KVR_MIN(cached, v->n - gone) : 0;
    if (suppose(s, at, v->locals, depth, left) == NONE) give_up(s, &s->stats.full);
}

/* ---- events ------------------------------------------------------------------------------------------------------------- */

/* The index holds these blocks under these names now. */
static bool mirror(struct kvr_supposed *s, const struct kvr_event *ev)
{
    uint32_t at = ev->has_parent ? find_name(s, ev->parent_hash) : ROOT;
    if (at == NONE || (at != ROOT && !is_in_view(&s->nodes[at])) || ev->has_start_position) return true; /* not followed here */
    for (size_t i = 0; i < ev->blocks_n; i++) {
        const struct kvr_block *b = &ev->blocks[i];
        uint32_t k = find_kid(s, at, b->tokens_hash), same = find_name(s, b->block_hash);
        if (k != NONE && s->nodes[k].kind == ANONYMOUS) {
            if (same != NONE && same != k) forget_tree(s, same);
            if (!give_name(s, k, b->block_hash)) return false;
        } else if (k == NONE && same != NONE && !is_in_view(&s->nodes[same])) {
            s->nodes[same].local = s->nodes[same].kind == GHOST ? b->tokens_hash : s->nodes[same].local;
            if (s->nodes[same].local != b->tokens_hash || !bring_in(s, same, at, true)) return false;
            k = same;
        } else if (k == NONE) {
            if (same != NONE) forget_tree(s, same); /* it has moved */
            k = new_node(s, NAMED, b->block_hash, b->tokens_hash, at);
            if (k == NONE) return false;
        } else if (s->nodes[k].name != b->block_hash) {
            return false; /* two names for one block: a removal of one of them says nothing */
        }
        at = k;
    }
    return true;
}

static bool keep_orphan(struct kvr_supposed *s, const struct kvr_event *ev)
{
    uint32_t at = find_name(s, ev->parent_hash);
    if (at == NONE) at = new_node(s, GHOST, ev->parent_hash, 0, NONE);
    if (at == NONE) return false;
    for (size_t i = 0; i < ev->blocks_n; i++) {
        uint32_t same = find_name(s, ev->blocks[i].block_hash);
        if (same == NONE) {
            if (find_kid(s, at, ev->blocks[i].tokens_hash) != NONE) return true; /* two names for one place: not a hash of content */
            same = new_node(s, ORPHAN, ev->blocks[i].block_hash, ev->blocks[i].tokens_hash, at);
            if (same == NONE) return false;
        }
        if (s->nodes[same].parent != at) return true;
        at = same;
    }
    return true;
}

void kvr_supposed_stored(struct kvr_supposed *s, const struct kvr_event *ev, int rc, uint64_t tick)
{
    s->now_tick = tick;
    if (s->off || !ev->blocks_n) return;
    s->fresh[s->fresh_n++ % FRESH] = (struct fresh){tick, ev->blocks[0].tokens_hash, ev->blocks[0].block_hash};
    bool ok = rc == 0 ? mirror(s, ev) : rc == -KVR_EPARENT ? keep_orphan(s, ev) : false;
    if (!ok) give_up(s, &s->stats.full);
}

/* One more block whose name is not known has gone: any of these. */
static void shrink(struct kvr_supposed *s)
{
    size_t n = s->bare_n;
    if (n) memcpy(s->scratch, s->bare, n * sizeof *s->scratch);
    for (size_t i = 0; i < n; i++) take_out(s, s->scratch[i]);
    s->stats.given_up += n;
}

/* A block of which the index has counted copies goes with the first of them: it is followed no more, so it must not stay and be supposed
 * a second time. */
void kvr_supposed_removed(struct kvr_supposed *s, uint64_t name, int rc, uint64_t tick)
{
    uint32_t id;
    s->now_tick = tick;
    if (s->off) return;
    if (rc) s->unknown[s->unknown_n++ % UNKNOWN] = tick;
    if (rc) shrink(s); /* before its parent may become bare */
    id = find_name(s, name);
    if (id != NONE) forget_tree(s, id);
    for (int i = 0; i < COPIES_MAX && !rc; i++) rc = apply_removal(s, name);
}

/* ---- life ------------------------------------------------------------------------------------------------------------- */

int kvr_supposed_create(const struct kvr_supposed_config *config, struct kvr_supposed **out)
{
    struct kvr_supposed *s = calloc(1, sizeof *s);
    if (!s) return -KVR_ENOMEM;
    s->config = *config;
    if (!s->config.nodes_max) s->config.nodes_max = NODES_MAX;
    s->free = NONE;
    if (!grow(s)) {
        kvr_supposed_destroy(s);
        return -KVR_ENOMEM;
    }
    kvr_supposed_reset(s, 0);
    *out = s;
    return 0;
}

void kvr_supposed_destroy(struct kvr_supposed *s)
{
    if (!s) return;
    forget_pending(s);
    kvr_map64_clear(&s->names);
    kvr_map64_clear(&s->kids);
    free(s->nodes);
    free(s->bare);
    free(s->scratch);
    free(s);
}

void kvr_supposed_reset(struct kvr_supposed *s, uint64_t tick)
{
    kvr_map64_clear(&s->names);
    kvr_map64_clear(&s->kids);
    forget_pending(s);
    s->nodes[ROOT] = (struct node){.parent = NONE, .child = NONE, .next = NONE, .prev = NONE, .bare = NONE, .kind = NAMED};
    s->used = 1;
    s->free = NONE;
    s->bare_n = 0;
    s->fresh_n = s->unknown_n = 0;
    s->reset_tick = tick;
    s->stats.anonymous = 0;
    s->off = false;
}

void kvr_supposed_stats(const struct kvr_supposed *s, struct kvr_supposed_stats *out)
{
    *out = s->stats;
}
