/* SPDX-License-Identifier: Apache-2.0 */
/* data/picker/observed.h says what this is, and argues its threads. */
#include "app/serve/data/picker/observed.h"

#include <string.h>
#include <kvroute/hash.h>

#include "app/serve/data/state/room.h"
#include "base/lru.h"

#define COUNT_OF(p, name) atomic_fetch_add_explicit(&(p)->loop->data->counters.name, 1, memory_order_relaxed)

struct observed_table {
    struct kvr_lock lock;
    struct kvr_lru ids;
    size_t holders;
};

/* A message, whose bytes are behind it; or the last word, which is in the response that it is about. */
struct mail {
    struct mail *next;
    struct observed *to;
    size_t len;
};

struct observed {
    struct kvr_lru_entry entry;
    bool asked, has_observer, has_twin; /* with the entry: under the table's lock */
    struct loop *loop;                  /* of its pick: constant once it is asked for */
    struct pick *pick;                  /* that loop's; NULL: it has ended */
    const struct observed_ear *ear;     /* of the pick: as the loop */
    struct mail over;
    char id[];
};

static bool same(const struct kvr_lru_entry *e, const void *id)
{
    return !strcmp(((const struct observed *)e)->id, id);
}

struct observed_table *observed_hold(struct observed_table *t)
{
    if (!t) {
        t = calloc(1, sizeof *t);
        if (!t || kvr_lru_init(&t->ids)) {
            free(t);
            return NULL;
        }
        kvr_lock_init(&t->lock, KVR_LOCK_OBSERVED);
    }
    t->holders++;
    return t;
}

void observed_let_go(struct observed_table *t)
{
    if (!t || --t->holders) return;
    kvr_lru_free(&t->ids);
    kvr_lock_destroy(&t->lock);
    free(t);
}

/* Under the lock. Returns: the one of that id, or a new one; NULL: no room, or memory. */
static struct observed *find_or_add(struct observed_table *t, const char *id)
{
    size_t len = strlen(id);
    uint64_t hash = kvr_hash_bytes(id, len, kvr_secret());
    struct observed *o = (struct observed *)kvr_lru_find(&t->ids, hash, same, id);
    if (o || t->ids.n >= OBSERVED_MAX) return o;
    o = calloc(1, sizeof *o + len + 1);
    if (!o) return NULL;
    memcpy(o->id, id, len);
    o->over.to = o;
    kvr_lru_add(&t->ids, &o->entry, hash);
    return o;
}

/* ---- the pick's loop --------------------------------------------------------------------------------- */

struct observed *observed_ask(struct picker *p, struct pick *of, const struct observed_ear *ear, const char *id)
{
    kvr_lock(&p->observed->lock);
    struct observed *o = find_or_add(p->observed, id);
    bool has_twin = o && o->asked;
    if (has_twin) {
        o->has_twin = true;
    } else if (o) {
        o->asked = true;
        o->loop = p->loop;
        o->pick = of;
        o->ear = ear;
    }
    kvr_unlock(&p->observed->lock);
    if (!o) COUNT_OF(p, ext_proc_observers_full_total);
    return has_twin ? NULL : o;
}

bool observed_has_observer(const struct picker *p, const struct observed *o)
{
    if (!o) return false;
    kvr_lock(&p->observed->lock);
    bool has = o->has_observer;
    kvr_unlock(&p->observed->lock);
    return has;
}

void observed_leave(struct picker *p, struct observed *o)
{
    if (!o) return;
    kvr_lock(&p->observed->lock);
    kvr_lru_remove(&p->observed->ids, &o->entry);
    bool alone = !o->has_observer;
    kvr_unlock(&p->observed->lock);
    o->pick = NULL;
    if (alone) free(o);
}

static void hear_over(struct observed *o)
{
    if (o->pick) o->ear->over(o->pick);
    KVR_ASSERT(!o->pick);
    free(o);
}

static void hear(const struct observed *o, const uint8_t *data, size_t len)
{
    struct kvr_ext_proc_message m;
    if (!o->pick || kvr_ext_proc_read(data, len, &m)) return;
    o->ear->hear(o->pick, &m);
    kvr_ext_proc_free(&m);
}

void picker_take_mail(struct picker *p)
{
    kvr_lock(&p->loop->mail_lock);
    struct mail *m = p->mail.first;
    p->mail = (struct picker_mail){0};
    kvr_unlock(&p->loop->mail_lock);
    for (struct mail *next; m; m = next) {
        next = m->next;
        if (m == &m->to->over) {
            hear_over(m->to);
        } else {
            hear(m->to, (const uint8_t *)(m + 1), m->len);
            free(m);
        }
    }
}

/* ---- the observer's loop ----------------------------------------------------------------------------- */

struct observed *observed_come(struct picker *p, struct kvr_ext_proc_text id)
{
    char name[ID_MAX] = "";
    if (!id.len || id.len >= sizeof name || memchr(id.ptr, 0, id.len)) {
        COUNT_OF(p, ext_proc_observers_unknown_total);
        return NULL;
    }
    memcpy(name, id.ptr, id.len);
    kvr_lock(&p->observed->lock);
    struct observed *o = find_or_add(p->observed, name);
    bool refused = o && o->has_observer;
    if (o) o->has_observer = true;
    kvr_unlock(&p->observed->lock);
    if (refused) COUNT_OF(p, ext_proc_observers_refused_total);
    else if (!o) COUNT_OF(p, ext_proc_observers_full_total);
    return refused ? NULL : o;
}

bool observed_begin(struct picker *p, const struct observed *o)
{
    kvr_lock(&p->observed->lock);
    bool asked = o->asked, has_twin = o->has_twin;
    kvr_unlock(&p->observed->lock);
    if (!asked) COUNT_OF(p, ext_proc_observers_unknown_total);
    else if (has_twin) COUNT_OF(p, ext_proc_observers_refused_total);
    else COUNT_OF(p, ext_proc_observed_total);
    return asked && !has_twin;
}

static bool post(struct mail *m)
{
    struct loop *l = m->to->loop;
    size_t bytes = sizeof *m + m->len;
    kvr_lock(&l->mail_lock);
    struct picker_mail *box = &l->picker->mail;
    bool fits = m == &m->to->over || box->bytes + bytes <= OBSERVED_MAIL_MAX;
    if (fits) {
        *(box->last ? &box->last->next : &box->first) = m;
        box->last = m;
        box->bytes += bytes;
    }
    kvr_unlock(&l->mail_lock);
    if (fits) uv_async_send(&l->wake);
    return fits;
}

bool observed_tell(struct picker *p, struct observed *o, const struct kvr_ext_proc_message *m, const uint8_t *data, size_t len)
{
    if (o->loop == p->loop) {
        if (o->pick) o->ear->hear(o->pick, m);
        return true;
    }
    struct mail *copy = malloc(sizeof *copy + len);
    if (copy) {
        *copy = (struct mail){.to = o, .len = len};
        memcpy(copy + 1, data, len);
        if (post(copy)) return true;
        free(copy);
    }
    COUNT_OF(p, ext_proc_observers_full_total);
    return false;
}

void observed_over(struct picker *p, struct observed *o)
{
    kvr_lock(&p->observed->lock);
    bool alone = !o->asked;
    if (alone) kvr_lru_remove(&p->observed->ids, &o->entry);
    kvr_unlock(&p->observed->lock);
    if (alone) free(o);
    else if (o->loop == p->loop || !o->loop->picker) hear_over(o); /* or all threads have ended, and that loop's picks are gone */
    else (void)post(&o->over);
}
