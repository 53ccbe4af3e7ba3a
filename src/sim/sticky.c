/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A radix tree of characters. A node's holders are in the order in which they came, and hold its parent too. A node that nobody holds any
 * more stays, unseen, until somebody comes that way again. Eviction walks all nodes, once in `evict_s` and only for workers over their
 * size.
 */
#include "sim/sticky.h"

#include <math.h>
#include <string.h>

struct holder {
    uint32_t worker, next; /* next: place in `holders`, 0: none */
    uint64_t used_ns;
};

struct node {
    const uint8_t *text;             /* of the edge from its parent */
    uint32_t len, depth;             /* depth: of its end */
    uint32_t child, sibling, holder; /* places, 0: none */
};

struct text {
    struct text *next;
    uint8_t bytes[];
};

struct sticky {
    struct sticky_rules rules;
    uint32_t workers;
    struct node *nodes; /* [0] is the root */
    size_t nodes_n, nodes_cap;
    struct holder *holders; /* [0] is nobody */
    size_t holders_n, holders_cap;
    uint32_t free_holder;
    struct text *texts;
    uint8_t *prompt;
    size_t prompt_cap;
    uint64_t *size, *load, *served; /* by worker */
    uint64_t next_evict_ns;
};

struct sticky *sticky_create(const struct sticky_rules *rules, uint32_t workers)
{
    struct sticky *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->rules = *rules;
    s->workers = workers;
    s->next_evict_ns = (uint64_t)(rules->evict_s * 1e9);
    s->size = calloc(workers, sizeof *s->size);
    s->load = calloc(workers, sizeof *s->load);
    s->served = calloc(workers, sizeof *s->served);
    s->nodes = calloc(s->nodes_cap = 64, sizeof *s->nodes);
    s->holders = calloc(s->holders_cap = 64, sizeof *s->holders);
    s->nodes_n = s->holders_n = 1;
    if (s->size && s->load && s->served && s->nodes && s->holders) return s;
    sticky_destroy(s);
    return NULL;
}

void sticky_destroy(struct sticky *s)
{
    if (!s) return;
    for (struct text *t = s->texts, *next; t; t = next) {
        next = t->next;
        free(t);
    }
    free(s->prompt);
    free(s->nodes);
    free(s->holders);
    free(s->size);
    free(s->load);
    free(s->served);
    free(s);
}

static bool grow(void **ptr, size_t *cap, size_t need, size_t elem)
{
    if (need <= *cap) return true;
    size_t fresh = KVR_MAX(2 * *cap, need);
    void *p = realloc(*ptr, fresh * elem);
    if (!p) return false;
    *ptr = p;
    *cap = fresh;
    return true;
}

/* ---- holders ----------------------------------------------------------------------------------------- */

/* Returns: a place, or 0 when memory is short. */
static uint32_t new_holder(struct sticky *s, uint32_t worker, uint64_t used_ns)
{
    uint32_t at = s->free_holder;
    if (at) s->free_holder = s->holders[at].next;
    else if (grow((void **)&s->holders, &s->holders_cap, s->holders_n + 1, sizeof *s->holders)) at = (uint32_t)s->holders_n++;
    if (at) s->holders[at] = (struct holder){.worker = worker, .used_ns = used_ns};
    return at;
}

static void append_holder(struct sticky *s, uint32_t node, uint32_t holder)
{
    uint32_t last = s->nodes[node].holder;
    while (last && s->holders[last].next) last = s->holders[last].next;
    if (last) s->holders[last].next = holder;
    else s->nodes[node].holder = holder;
}

static uint32_t find_holder(const struct sticky *s, uint32_t node, uint32_t worker)
{
    uint32_t h = s->nodes[node].holder;
    while (h && s->holders[h].worker != worker) h = s->holders[h].next;
    return h;
}

static bool hold(struct sticky *s, uint32_t node, uint32_t worker, uint64_t now_ns)
{
    uint32_t h = find_holder(s, node, worker);
    if (h) {
        s->holders[h].used_ns = now_ns;
        return true;
    }
    h = new_holder(s, worker, now_ns);
    if (!h) return false;
    append_holder(s, node, h);
    s->size[worker] += s->nodes[node].len;
    return true;
}

static void let_go(struct sticky *s, uint32_t node, uint32_t worker)
{
    uint32_t h = find_holder(s, node, worker), before = s->nodes[node].holder;
    if (!h) return;
    if (before == h) {
        s->nodes[node].holder = s->holders[h].next;
    } else {
        while (s->holders[before].next != h) before = s->holders[before].next;
        s->holders[before].next = s->holders[h].next;
    }
    s->holders[h].next = s->free_holder;
    s->free_holder = h;
    s->size[worker] -= s->nodes[node].len;
}

/* ---- nodes ------------------------------------------------------------------------------------------- */

static uint32_t new_node(struct sticky *s, struct node n)
{
    if (!grow((void **)&s->nodes, &s->nodes_cap, s->nodes_n + 1, sizeof *s->nodes)) return 0;
    s->nodes[s->nodes_n] = n;
    return (uint32_t)s->nodes_n++;
}

static uint32_t child_of(const struct sticky *s, uint32_t node, uint8_t c)
{
    uint32_t at = s->nodes[node].child;
    while (at && s->nodes[at].text[0] != c) at = s->nodes[at].sibling;
    return at;
}

static uint32_t add_leaf(struct sticky *s, uint32_t parent, const uint8_t *text, size_t n)
{
    struct text *t = malloc(sizeof *t + n);
    if (!t) return 0;
    memcpy(t->bytes, text, n);
    t->next = s->texts;
    s->texts = t;
    uint32_t at = new_node(
        s, (struct node){
               .text = t->bytes, .len = (uint32_t)n, .depth = s->nodes[parent].depth + (uint32_t)n, .sibling = s->nodes[parent].child});
    if (at) s->nodes[parent].child = at;
    return at;
}

/* Cuts the edge of a node after `keep` characters: a new node below it takes the rest, with the same holders. */
static bool split(struct sticky *s, uint32_t node, size_t keep)
{
    struct node rest = s->nodes[node];
    rest.text += keep;
    rest.len -= (uint32_t)keep;
    rest.sibling = rest.holder = 0;
    uint32_t below = new_node(s, rest);
    if (!below) return false;
    s->nodes[node].child = below;
    s->nodes[node].len = (uint32_t)keep;
    s->nodes[node].depth -= rest.len;
    for (uint32_t h = s->nodes[node].holder; h; h = s->holders[h].next) {
        uint32_t copy = new_holder(s, s->holders[h].worker, s->holders[h].used_ns);
        if (!copy) return false;
        append_holder(s, below, copy);
    }
    return true;
}

static size_t common(const struct node *n, const uint8_t *text, size_t len)
{
    size_t same = 0, most = KVR_MIN((size_t)n->len, len);
    while (same < most && n->text[same] == text[same]) same++;
    return same;
}

static int insert(struct sticky *s, const uint8_t *text, size_t n, uint32_t worker, uint64_t now_ns)
{
    for (uint32_t node = 0; n > 0;) {
        uint32_t child = child_of(s, node, text[0]);
        if (!child) child = add_leaf(s, node, text, n);
        if (!child) return -KVR_ENOMEM;
        size_t same = common(&s->nodes[child], text, n);
        if (same < s->nodes[child].len && !split(s, child, same)) return -KVR_ENOMEM;
        if (!hold(s, child, worker, now_ns)) return -KVR_ENOMEM;
        text += same;
        n -= same;
        node = child;
    }
    return 0;
}

static size_t match(const struct sticky *s, const uint8_t *text, size_t n, long *first)
{
    size_t matched = 0;
    *first = -1;
    for (uint32_t node = 0; matched < n;) {
        uint32_t child = child_of(s, node, text[matched]);
        if (!child || !s->nodes[child].holder) break;
        size_t same = common(&s->nodes[child], text + matched, n - matched);
        *first = s->holders[s->nodes[child].holder].worker;
        matched += same;
        if (same < s->nodes[child].len) break;
        node = child;
    }
    return matched;
}

/* One byte for each token; those of more are folded. */
static const uint8_t *as_text(struct sticky *s, const uint32_t *tokens, size_t n)
{
    if (!grow((void **)&s->prompt, &s->prompt_cap, n + 1, 1)) return NULL;
    for (size_t i = 0; i < n; i++) s->prompt[i] = (uint8_t)(tokens[i] < 256 ? tokens[i] : kvr_mix64(tokens[i]));
    return s->prompt;
}

uint64_t sticky_size(const struct sticky *s, uint32_t worker)
{
    return s->size[worker];
}

/* ---- eviction ---------------------------------------------------------------------------------------- */

struct leaf {
    uint64_t used_ns;
    uint32_t depth, node;
};

static int oldest_tail_first(const void *a, const void *b)
{
    const struct leaf *x = a, *y = b;
    if (x->used_ns != y->used_ns) return x->used_ns < y->used_ns ? -1 : 1;
    return x->depth != y->depth ? (x->depth > y->depth ? -1 : 1) : (x->node > y->node) - (x->node < y->node);
}

/* What is deeper was never used later than what is above it, so this order takes leaves only. */
static int evict(struct sticky *s, uint32_t worker)
{
    struct leaf *leaves = malloc(s->nodes_n * sizeof *leaves);
    size_t n = 0;
    if (!leaves) return -KVR_ENOMEM;
    for (uint32_t i = 1; i < s->nodes_n; i++) {
        uint32_t h = find_holder(s, i, worker);
        if (h) leaves[n++] = (struct leaf){s->holders[h].used_ns, s->nodes[i].depth, i};
    }
    qsort(leaves, n, sizeof *leaves, oldest_tail_first);
    for (size_t i = 0; i < n && s->size[worker] > s->rules.tree_size; i++) let_go(s, leaves[i].node, worker);
    free(leaves);
    return 0;
}

static int evict_when_due(struct sticky *s, uint64_t now_ns)
{
    int rc = 0;
    if (now_ns < s->next_evict_ns) return 0;
    while (s->next_evict_ns <= now_ns) s->next_evict_ns += (uint64_t)(s->rules.evict_s * 1e9);
    for (uint32_t w = 0; rc == 0 && w < s->workers; w++)
        if (s->size[w] > s->rules.tree_size) rc = evict(s, w);
    return rc;
}

/* ---- the rules --------------------------------------------------------------------------------------- */

/* Is a better than b? */
static bool lighter(const struct sticky *s, uint32_t a, uint32_t b)
{
    if (s->load[a] != s->load[b]) return s->load[a] < s->load[b];
    return s->rules.miss == STICKY_LEAST_USED && s->served[a] < s->served[b];
}

static long least_loaded(const struct sticky *s, const bool *present)
{
    long best = -1;
    for (uint32_t w = 0; w < s->workers; w++)
        if (present[w] && (best < 0 || lighter(s, w, (uint32_t)best))) best = w;
    return best;
}

static long smallest(const struct sticky *s, const bool *present)
{
    long best = -1;
    for (uint32_t w = 0; w < s->workers; w++)
        if (present[w] && (best < 0 || s->size[w] < s->size[best])) best = w;
    return best;
}

static bool spread_is_wide(const struct sticky *s, const bool *present)
{
    uint64_t least = UINT64_MAX, most = 0;
    for (uint32_t w = 0; w < s->workers; w++) {
        if (!present[w]) continue;
        least = KVR_MIN(least, s->load[w]);
        most = KVR_MAX(most, s->load[w]);
    }
    return (double)(most - least) > s->rules.apart && (double)most > s->rules.times * (double)least;
}

static bool is_above_the_mean(const struct sticky *s, const bool *present, long worker)
{
    double sum = 0, n = 0;
    for (uint32_t w = 0; w < s->workers; w++)
        if (present[w]) sum += (double)s->load[w], n++;
    double mean = sum / n, load = (double)s->load[worker], swing = KVR_MAX(4.0, 2 * sqrt(mean));
    return load > mean + KVR_MIN(s->rules.apart, swing) && load > s->rules.times * mean;
}

static long choose(const struct sticky *s, const uint8_t *text, size_t n, const bool *present)
{
    long had, least = least_loaded(s, present);
    if (least < 0) return -KVR_ENOENDPOINTS;
    if (s->rules.gate == STICKY_SPREAD && spread_is_wide(s, present)) return least;
    size_t matched = match(s, text, n, &had);
    if ((double)matched <= s->rules.threshold * (double)n) return s->rules.miss == STICKY_SMALLEST ? smallest(s, present) : least;
    if (!present[had]) had = 0; /* gone: the first that is there */
    while (!present[had]) had++;
    return s->rules.gate == STICKY_MEAN && is_above_the_mean(s, present, had) ? least : had;
}

long sticky_choose(struct sticky *s, const uint32_t *tokens, size_t n, const bool *present, uint64_t now_ns)
{
    const uint8_t *text = as_text(s, tokens, n);
    if (!text || evict_when_due(s, now_ns)) return -KVR_ENOMEM;
    long at = choose(s, text, n, present);
    if (at < 0) return at;
    if (insert(s, text, n, (uint32_t)at, now_ns)) return -KVR_ENOMEM;
    s->load[at]++;
    s->served[at]++;
    return at;
}

size_t sticky_match(struct sticky *s, const uint32_t *tokens, size_t n, long *first)
{
    const uint8_t *text = as_text(s, tokens, n);
    KVR_ASSERT(text != NULL);
    return match(s, text, n, first);
}

void sticky_ended(struct sticky *s, uint32_t worker)
{
    if (s->load[worker]) s->load[worker]--;
}

void sticky_left(struct sticky *s, uint32_t worker)
{
    s->load[worker] = 0;
    for (uint32_t i = 1; s->rules.forgets && i < s->nodes_n; i++) let_go(s, i, worker);
}
