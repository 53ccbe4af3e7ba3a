/* SPDX-License-Identifier: Apache-2.0 */
/* Loads the library: token/library.h. */
#include "token/library.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"

#ifndef KVR_TOKEN_LIBRARY_DIR
#define KVR_TOKEN_LIBRARY_DIR "/usr/local/lib/kvroute"
#endif

/* A function's address, as POSIX has it: dlsym gives a pointer to void. */
static bool find(void *handle, const char *name, void *where)
{
    void *at = dlsym(handle, name);
    if (at) memcpy(where, &at, sizeof at);
    return at != NULL;
}

static int take(void *handle, struct kvr_token_library *l, char *why, size_t cap)
{
    if (!find(handle, "kvr_tok_abi", &l->abi)) return kvr_refuse(why, cap, "%s is no tokenizer library: it has no kvr_tok_abi", l->path);
    if (l->abi() != KVR_TOK_ABI)
        return kvr_refuse(why, cap, "%s has ABI %u, this program needs %u: build both from one tree", l->path, l->abi(), KVR_TOK_ABI);
    bool whole = find(handle, "kvr_tok_load", &l->load) && find(handle, "kvr_tok_variant", &l->variant) &&
                 find(handle, "kvr_tok_free", &l->free) && find(handle, "kvr_tok_ask", &l->ask) &&
                 find(handle, "kvr_tok_finish", &l->finish) && find(handle, "kvr_tok_drop", &l->drop) &&
                 find(handle, "kvr_tok_figures", &l->figures) && find(handle, "kvr_tok_info", &l->info) &&
                 find(handle, "kvr_tok_buf_free", &l->buf_free);
    if (!whole) snprintf(why, cap, "%s lacks functions of ABI %u", l->path, KVR_TOK_ABI);
    return whole ? 0 : -1;
}

/* Returns: 0, -1 with the reason, 1: there is no such file. */
static int open_at(const char *path, struct kvr_token_library *l, char *why, size_t cap)
{
    if (access(path, F_OK)) {
        snprintf(why, cap, "there is no %s", path);
        return 1;
    }
    snprintf(l->path, sizeof l->path, "%s", path);
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        const char *error = dlerror();
        return kvr_refuse(why, cap, "%s cannot be loaded: %s", path, error ? error : "unknown error");
    }
    return take(handle, l, why, cap);
}

int kvr_token_library_open(const char *path, struct kvr_token_library *out, char *why, size_t cap)
{
    static const char *const near[] = {"", "/../lib/kvroute", "/../tokenizer"}; /* the last: in the build folder */
    char dir[400], at[512];
    memset(out, 0, sizeof *out);
    if (path) return open_at(path, out, why, cap) ? -1 : 0;
    ssize_t n = readlink("/proc/self/exe", dir, sizeof dir - 1);
    dir[n > 0 ? n : 0] = 0;
    char *slash = strrchr(dir, '/');
    if (slash) *slash = 0;
    int rc = 1;
    for (size_t i = 0; i < sizeof near / sizeof *near && rc > 0; i++)
        if (snprintf(at, sizeof at, "%s%s/" KVR_TOKEN_LIBRARY_NAME, dir, near[i]) < (int)sizeof at) rc = open_at(at, out, why, cap);
    if (rc > 0) rc = open_at(KVR_TOKEN_LIBRARY_DIR "/" KVR_TOKEN_LIBRARY_NAME, out, why, cap);
    if (rc <= 0) return rc;
    return kvr_refuse(
        why, cap, "there is no " KVR_TOKEN_LIBRARY_NAME " beside the program, in %.200s/../lib/kvroute or in " KVR_TOKEN_LIBRARY_DIR, dir);
}
