/* SPDX-License-Identifier: Apache-2.0 */
/* Folders that the operator gives: token/given.h. */
#include "token/given.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/base.h"
#include "base/lock.h"
#include "base/log.h"
#include "token/library.h"
#include "token/profile_option.h"

/* ---- what the command line says ------------------------------------------------------------------------- */

/* Where the folder's path begins; the model's name is before it, and an equals sign. */
const char *kvr_given_dir_path(const char *text)
{
    const char *equals = strchr(text, '=');
    return equals ? equals + 1 : text;
}

static bool is_of(const char *text, const char *model)
{
    size_t n = (size_t)(kvr_given_dir_path(text) - text); /* with the equals sign */
    if (!model) return n == 0;
    return n && kvr_span_is(text, n - 1, model);
}

const char *kvr_given_dir(char *const *dirs, size_t n, const char *model)
{
    for (size_t i = 0; i < n; i++)
        if (is_of(dirs[i], model)) return kvr_given_dir_path(dirs[i]);
    return NULL;
}

bool kvr_dir_has_tokenizer(const char *dir)
{
    char path[4096];
    struct stat st;
    if (snprintf(path, sizeof path, "%s/tokenizer.json", dir) >= (int)sizeof path) return false;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

static int check_folder(const char *dir, char *why, size_t cap)
{
    if (kvr_dir_has_tokenizer(dir)) return 0;
    return kvr_refuse(why, cap, "--tokenizer-dir: '%.200s' has no tokenizer.json; allowed: a model's folder with one", dir);
}

int kvr_given_dirs_check(char *const *dirs, size_t n, size_t name_max, char *why, size_t cap)
{
    if (n > KVR_GIVEN_DIRS_MAX) return kvr_refuse(why, cap, "--tokenizer-dir: allowed: at most %d", KVR_GIVEN_DIRS_MAX);
    for (size_t i = 0; i < n; i++) {
        const char *dir = kvr_given_dir_path(dirs[i]);
        size_t name = (size_t)(dir - dirs[i]);
        if (name == 1 || name > name_max + 1)
            return kvr_refuse(why, cap, "--tokenizer-dir: '%.100s': allowed: [MODEL=]DIR with a name of 1 to %zu bytes", dirs[i], name_max);
        if (check_folder(dir, why, cap)) return -1;
    }
    return 0;
}

/* ---- folders -------------------------------------------------------------------------------------------- */

/* What was read of a folder. It is held by the folder, and by whoever makes ids with it. */
struct reading {
    _Atomic unsigned refs;
    struct kvr_tok *tokenizer;
};

struct folder {
    const char *model; /* the caller's; model_n 0: of all */
    size_t model_n;
    const char *path;        /* the caller's */
    struct reading *reading; /* under the lock */
};

struct kvr_given_tokens {
    struct kvr_token_library lib;
    const char *program;
    char options[1024];
    struct kvr_lock lock;        /* of what follows, and of each folder's reading; ids are not made under it */
    bool waits;                  /* the folders are to be read again, and that has not begun */
    struct kvr_token_pool *pool; /* the thread that does it; NULL: that was never asked for */
    _Atomic bool ends;
    size_t n; /* that are loaded */
    struct folder folders[KVR_GIVEN_DIRS_MAX];
};

static struct folder folder_of(const struct kvr_given_tokens_config *config, size_t i)
{
    if (config->dir) return (struct folder){.path = config->dir};
    const char *path = kvr_given_dir_path(config->dirs[i]);
    size_t n = (size_t)(path - config->dirs[i]);
    return (struct folder){.model = config->dirs[i], .model_n = n ? n - 1 : 0, .path = path};
}

static void let_go(const struct kvr_given_tokens *g, struct reading *r)
{
    if (!r || atomic_fetch_sub(&r->refs, 1) != 1) return;
    g->lib.free(r->tokenizer);
    free(r);
}

/* What the library says of an error. */
static void take_reason(const struct kvr_given_tokens *g, struct kvr_tok_buf *text, char *why, size_t cap)
{
    snprintf(why, cap, "%.*s", (int)(text->len < cap ? text->len : cap), text->data ? (const char *)text->data : "");
    g->lib.buf_free(text);
}

static void put_options(struct kvr_given_tokens *g, const struct kvr_given_tokens_config *config)
{
    bool profile = kvr_profile_option_says(config->profile);
    snprintf(g->options, sizeof g->options, "{\"cache_bytes\":%zu%s%s", config->cache_bytes, profile ? "," : "}",
             profile ? config->profile + 1 : "");
}

/* NULL: it cannot be used, for that reason. */
static struct reading *read_folder(const struct kvr_given_tokens *g, const char *path, char *why, size_t cap)
{
    char reason[400];
    struct kvr_tok_buf err = {0};
    struct reading *r = calloc(1, sizeof *r);
    if (!r) {
        snprintf(why, cap, "--tokenizer-dir: '%.200s': out of memory", path);
        return NULL;
    }
    atomic_init(&r->refs, 1);
    if (g->lib.load(path, g->options, &r->tokenizer, &err) == 0) return r;
    take_reason(g, &err, reason, sizeof reason);
    snprintf(why, cap, "--tokenizer-dir: '%.200s': %s", path, reason);
    free(r);
    return NULL;
}

static int read_folders(struct kvr_given_tokens *g, const struct kvr_given_tokens_config *config, char *why, size_t cap)
{
    for (size_t n = config->dir ? 1 : config->dirs_n; g->n < n; g->n++) {
        struct folder *f = &g->folders[g->n];
        *f = folder_of(config, g->n);
        if (!(f->reading = read_folder(g, f->path, why, cap))) return -1;
    }
    return 0;
}

int kvr_given_tokens_open(const struct kvr_given_tokens_config *config, struct kvr_given_tokens **out, char *why, size_t cap)
{
    char reason[600];
    if (kvr_profile_option_check(config->profile, why, cap)) return -1;
    if (config->dir ? check_folder(config->dir, why, cap) : kvr_given_dirs_check(config->dirs, config->dirs_n, config->name_max, why, cap))
        return -1;
    struct kvr_given_tokens *g = calloc(1, sizeof *g);
    if (!g) return kvr_refuse(why, cap, "out of memory");
    kvr_lock_init(&g->lock, KVR_LOCK_TOKENIZER);
    g->program = config->program;
    put_options(g, config);
    int rc = kvr_token_library_open(config->lib, &g->lib, reason, sizeof reason);
    if (rc) snprintf(why, cap, "%s: %s", config->lib ? "--tokenizer-lib" : "--tokenizer-dir", reason);
    else rc = read_folders(g, config, why, cap);
    if (rc) kvr_given_tokens_close(g);
    else *out = g;
    return rc;
}

void kvr_given_tokens_close(struct kvr_given_tokens *g)
{
    if (!g) return;
    atomic_store(&g->ends, true);
    kvr_token_pool_destroy(g->pool);
    for (size_t i = 0; i < g->n; i++) let_go(g, g->folders[i].reading);
    kvr_lock_destroy(&g->lock);
    free(g);
}

/* ---- folders that are read again ------------------------------------------------------------------------ */

struct again {
    struct kvr_token_work work;
    struct kvr_given_tokens *g;
};

static void drop_again(struct kvr_token_work *w)
{
    free(w); /* its first member */
}

static void read_again(struct kvr_given_tokens *g, struct folder *f)
{
    char why[800];
    struct reading *r = read_folder(g, f->path, why, sizeof why);
    if (!r) {
        kvr_log_warning("%s: %s; what was read of it before stays in use", g->program, why);
        return;
    }
    kvr_lock(&g->lock);
    struct reading *old = f->reading;
    f->reading = r;
    kvr_unlock(&g->lock);
    let_go(g, old);
    kvr_log("%s: --tokenizer-dir: '%.200s': read again", g->program, f->path);
}

static void run_again(struct kvr_token_work *w)
{
    struct kvr_given_tokens *g = ((struct again *)w)->g;
    kvr_lock(&g->lock);
    g->waits = false; /* from here on a change of a folder may come too late for this time */
    kvr_unlock(&g->lock);
    for (size_t i = 0; i < g->n && !atomic_load(&g->ends); i++) read_again(g, &g->folders[i]);
}

static bool begin_again(struct kvr_given_tokens *g)
{
    struct again *a = g->pool || kvr_token_pool_create(1, &g->pool) == 0 ? calloc(1, sizeof *a) : NULL;
    if (!a) return false;
    *a = (struct again){{.run = run_again, .drop = drop_again}, g};
    return kvr_token_pool_add(g->pool, &a->work);
}

void kvr_given_tokens_reload(struct kvr_given_tokens *g)
{
    if (!g) return;
    kvr_lock(&g->lock);
    bool waits = g->waits;
    g->waits = true;
    kvr_unlock(&g->lock);
    if (waits || begin_again(g)) return;
    kvr_lock(&g->lock);
    g->waits = false;
    kvr_unlock(&g->lock);
    kvr_log_warning("%s: --tokenizer-dir: out of memory; what was read before stays in use", g->program);
}

/* ---- ids ------------------------------------------------------------------------------------------------ */

/* NULL: there is none. */
static const struct folder *find(const struct kvr_given_tokens *g, const char *model)
{
    const struct folder *any = NULL;
    size_t n = strlen(model);
    for (size_t i = 0; i < g->n; i++) {
        const struct folder *f = &g->folders[i];
        if (n && f->model_n == n && !memcmp(f->model, model, n)) return f;
        if (!any && !f->model_n) any = f;
    }
    return any;
}

bool kvr_given_tokens_has(const struct kvr_given_tokens *g, const char *model)
{
    return g && find(g, model);
}

/* As it is used now; let_go. */
static struct reading *hold(struct kvr_given_tokens *g, const struct folder *f)
{
    kvr_lock(&g->lock);
    struct reading *r = f->reading;
    atomic_fetch_add(&r->refs, 1);
    kvr_unlock(&g->lock);
    return r;
}

static int make(const struct kvr_given_tokens *g, const struct kvr_tok *t, const char *question, size_t len, struct kvr_ids **ids,
                char *why, size_t cap)
{
    struct kvr_tok_buf out = {0};
    struct kvr_tok_job *job = NULL;
    int rc = g->lib.ask(t, question, len, SIZE_MAX, &job, &out);
    if (rc < 0) {
        take_reason(g, &out, why, cap);
        return rc;
    }
    *ids = kvr_ids_new(out.data, out.len / sizeof(uint32_t));
    g->lib.buf_free(&out);
    if (*ids) return 0;
    snprintf(why, cap, "out of memory");
    return KVR_TOK_EUNSUPPORTED;
}

int kvr_given_tokens_make(struct kvr_given_tokens *g, const char *model, const char *question, size_t len, struct kvr_ids **ids, char *why,
                          size_t cap)
{
    const struct folder *f = g ? find(g, model) : NULL;
    *why = 0;
    if (!f) {
        snprintf(why, cap, "the model has no folder (--tokenizer-dir)");
        return KVR_TOK_EUNSUPPORTED;
    }
    struct reading *r = hold(g, f);
    int rc = make(g, r->tokenizer, question, len, ids, why, cap);
    let_go(g, r);
    return rc;
}
