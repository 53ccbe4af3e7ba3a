/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hub's cache, as huggingface_hub lays it out: hub/models--ORG--NAME/refs/main has the name of a folder of
 * hub/models--ORG--NAME/snapshots. What an engine says is a name or a path and nothing more: a name is letters, digits, '-', '_', '.' and
 * one '/', so it leads nowhere else.
 */
#include "token/folders.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "token/given.h"

#define NAME_CHARS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."

static bool hub_of(char out[KVR_FOLDER_MAX])
{
    const char *cache = getenv("HF_HUB_CACHE"), *home = getenv("HF_HOME"), *user = getenv("HOME");
    int n = -1;
    if (cache && *cache) n = snprintf(out, KVR_FOLDER_MAX, "%s", cache);
    else if (home && *home) n = snprintf(out, KVR_FOLDER_MAX, "%s/hub", home);
    else if (user && *user) n = snprintf(out, KVR_FOLDER_MAX, "%s/.cache/huggingface/hub", user);
    return n > 0 && n < KVR_FOLDER_MAX;
}

/* ORG/NAME or NAME. */
static bool is_name(const char *s)
{
    size_t first = strspn(s, NAME_CHARS);
    if (!first || *s == '.' || strstr(s, "--") || strstr(s, "..")) return false;
    if (!s[first]) return true;
    size_t second = s[first] == '/' ? strspn(s + first + 1, NAME_CHARS) : 0;
    return second && s[first + 1] != '.' && !s[first + 1 + second];
}

/* The revision that `main` is at. */
static bool read_revision(const char *model, char out[80])
{
    char path[KVR_FOLDER_MAX + 32];
    snprintf(path, sizeof path, "%s/refs/main", model);
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(out, 1, 79, f) : 0;
    if (f) (void)fclose(f);
    out[n] = 0;
    out[strcspn(out, "\r\n")] = 0;
    return *out && out[strspn(out, NAME_CHARS)] == 0 && *out != '.';
}

static bool in_hub(const char *name, char out[KVR_FOLDER_MAX])
{
    char hub[KVR_FOLDER_MAX], model[KVR_FOLDER_MAX], revision[80];
    const char *slash = strchr(name, '/');
    if (!is_name(name) || !hub_of(hub)) return false;
    int org = slash ? (int)(slash - name) : 0;
    int n = snprintf(model, sizeof model, "%s/models--%.*s%s%s", hub, org, name, slash ? "--" : "", slash ? slash + 1 : name);
    if (n >= (int)sizeof model || !read_revision(model, revision)) return false;
    n = snprintf(out, KVR_FOLDER_MAX, "%s/snapshots/%s", model, revision);
    return n < KVR_FOLDER_MAX && kvr_dir_has_tokenizer(out);
}

bool kvr_folder_of_root(const char *root, char out[KVR_FOLDER_MAX])
{
    if (*root != '/') return *root && in_hub(root, out);
    return snprintf(out, KVR_FOLDER_MAX, "%s", root) < KVR_FOLDER_MAX && kvr_dir_has_tokenizer(out);
}
