/* SPDX-License-Identifier: Apache-2.0 */
/* Folders that the operator gives: token/given.h. */
#include "token/given.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "token/library.h"

/* ---- what the command line says ------------------------------------------------------------------------- */

/* Where the folder's path begins; the model's name is before it, and an equals sign. */
static const char *path_of(const char *text)
{
    const char *equals = strchr(text, '=');
    return equals ? equals + 1 : text;
}

static bool is_of(const char *text, const char *model)
{
    size_t n = (size_t)(path_of(text) - text); /* with the equals sign */
    if (!model) return n == 0;
    return n && strlen(model) == n - 1 && !memcmp(text, model, n - 1);
}

const char *kvr_given_dir(char *const *dirs, size_t n, const char *model)
{
    for (size_t i = 0; i < n; i++)
        if (is_of(dirs[i], model)) return path_of(dirs[i]);
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
    snprintf(why, cap, "--tokenizer-dir: '%.200s' has no tokenizer.json; allowed: a model's folder with one", dir);
    return -1;
}

int kvr_given_dirs_check(char *const *dirs, size_t n, size_t name_max, char *why, size_t cap)
{
    if (n > KVR_GIVEN_DIRS_MAX) {
        snprintf(why, cap, "--tokenizer-dir: allowed: at most %d", KVR_GIVEN_DIRS_MAX);
        return -1;
    }
    for (size_t i = 0; i < n; i++) {
        const char *dir = path_of(dirs[i]);
        size_t name = (size_t)(dir - dirs[i]);
        if (name == 1 || name > name_max + 1) {
            snprintf(why, cap, "--tokenizer-dir: '%.100s': allowed: [MODEL=]DIR with a name of 1 to %zu bytes", dirs[i], name_max);
            return -1;
        }
        if (check_folder(dir, why, cap)) return -1;
    }
    return 0;
}

#define PROFILE_ALLOWED "allowed: a JSON object of less than 900 bytes"

int kvr_given_profile_check(const char *profile, char *why, size_t cap)
{
    size_t n = profile ? strlen(profile) : 0;
    if (!profile || (n >= 2 && n < 900 && profile[0] == '{' && profile[n - 1] == '}')) return 0;
    snprintf(why, cap, "--tokenizer-profile: '%.80s': " PROFILE_ALLOWED, profile);
    return -1;
}

/* ---- ids ------------------------------------------------------------------------------------------------ */

struct folder {
    const char *model; /* the caller's; model_n 0: of all */
    size_t model_n;
    const char *path; /* the caller's */
    struct kvr_tok *tokenizer;
};

struct kvr_given_tokens {
    struct kvr_token_library lib;
    size_t n; /* that are loaded */
    struct folder folders[KVR_GIVEN_DIRS_MAX];
};

static struct folder folder_of(const struct kvr_given_tokens_config *config, size_t i)
{
    if (config->dir) return (struct folder){.path = config->dir};
    const char *path = path_of(config->dirs[i]);
    size_t n = (size_t)(path - config->dirs[i]);
    return (struct folder){.model = config->dirs[i], .model_n = n ? n - 1 : 0, .path = path};
}

/* What the library says of an error. */
static void take_reason(const struct kvr_given_tokens *g, struct kvr_tok_buf *text, char *why, size_t cap)
{
    snprintf(why, cap, "%.*s", (int)(text->len < cap ? text->len : cap), text->data ? (const char *)text->data : "");
    g->lib.buf_free(text);
}

static int load(struct kvr_given_tokens *g, const struct kvr_given_tokens_config *config, char *why, size_t cap)
{
    char options[1024], reason[400];
    bool profile = config->profile && strlen(config->profile) > 2;
    snprintf(options, sizeof options, "{\"cache_bytes\":%zu%s%s", config->cache_bytes, profile ? "," : "}",
             profile ? config->profile + 1 : "");
    for (size_t n = config->dir ? 1 : config->dirs_n; g->n < n; g->n++) {
        struct folder *f = &g->folders[g->n];
        struct kvr_tok_buf err = {0};
        *f = folder_of(config, g->n);
        if (g->lib.load(f->path, options, &f->tokenizer, &err)) {
            take_reason(g, &err, reason, sizeof reason);
            if (!strncmp(reason, "options", 7)) snprintf(why, cap, "--tokenizer-profile: %s; " PROFILE_ALLOWED, reason);
            else snprintf(why, cap, "--tokenizer-dir: '%.200s': %s", f->path, reason);
            return -1;
        }
    }
    return 0;
}

int kvr_given_tokens_open(const struct kvr_given_tokens_config *config, struct kvr_given_tokens **out, char *why, size_t cap)
{
    char reason[600];
    if (kvr_given_profile_check(config->profile, why, cap)) return -1;
    if (config->dir ? check_folder(config->dir, why, cap) : kvr_given_dirs_check(config->dirs, config->dirs_n, config->name_max, why, cap))
        return -1;
    struct kvr_given_tokens *g = calloc(1, sizeof *g);
    if (!g) {
        snprintf(why, cap, "out of memory");
        return -1;
    }
    if (kvr_token_library_open(config->lib, &g->lib, reason, sizeof reason)) {
        snprintf(why, cap, "%s: %s", config->lib ? "--tokenizer-lib" : "--tokenizer-dir", reason);
        free(g);
        return -1;
    }
    if (load(g, config, why, cap)) {
        kvr_given_tokens_close(g);
        return -1;
    }
    *out = g;
    return 0;
}

void kvr_given_tokens_close(struct kvr_given_tokens *g)
{
    for (size_t i = 0; g && i < g->n; i++) g->lib.free(g->folders[i].tokenizer);
    free(g);
}

static const struct kvr_tok *find(const struct kvr_given_tokens *g, const char *model)
{
    const struct kvr_tok *any = NULL;
    size_t n = strlen(model);
    for (size_t i = 0; i < g->n; i++) {
        const struct folder *f = &g->folders[i];
        if (n && f->model_n == n && !memcmp(f->model, model, n)) return f->tokenizer;
        if (!any && !f->model_n) any = f->tokenizer;
    }
    return any;
}

bool kvr_given_tokens_has(const struct kvr_given_tokens *g, const char *model)
{
    return g && find(g, model);
}

int kvr_given_tokens_make(const struct kvr_given_tokens *g, const char *model, const char *question, size_t len, struct kvr_ids **ids,
                          char *why, size_t cap)
{
    const struct kvr_tok *t = g ? find(g, model) : NULL;
    struct kvr_tok_buf out = {0};
    struct kvr_tok_job *job = NULL;
    *why = 0;
    if (!t) {
        snprintf(why, cap, "the model has no folder (--tokenizer-dir)");
        return KVR_TOK_EUNSUPPORTED;
    }
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
