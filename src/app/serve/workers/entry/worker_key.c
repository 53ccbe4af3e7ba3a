/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The key that an engine wants (vLLM's and SGLang's --api-key): read from the worker's entry, sent to that worker and nobody else, as
 * `Authorization: Bearer KEY` of what the router asks by itself, and of requests whose client sent no Authorization of its own. It is
 * in no log, answer or metric.
 */
#include "app/serve/workers/entry/worker_key.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "app/serve/workers/table/room.h"

bool worker_key_ok(const char *key)
{
    size_t n = strlen(key);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)key[i] < 0x21 || (unsigned char)key[i] > 0x7e) return false;
    return n > 0 && n < API_KEY_MAX;
}

/* The first line of the file. */
static bool read_file(const char *path, char *out, size_t cap)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t n = read(fd, out, cap - 1);
    close(fd);
    out[n > 0 ? n : 0] = 0;
    out[strcspn(out, "\r\n")] = 0;
    return n > 0;
}

bool worker_key_read(const char *option, const char *value, char key[API_KEY_MAX])
{
    char text[API_KEY_MAX + 2] = ""; /* one that is too long shows */
    const char *from = text;
    if (strcmp(option, "api-key") == 0) from = value;
    else if (strcmp(option, "api-key-env") == 0) from = getenv(value);
    else if (!read_file(value, text, sizeof text)) return false;
    if (!from || !worker_key_ok(from)) return false;
    memcpy(key, from, strlen(from) + 1);
    return true;
}

void worker_key_put(const char *key, struct kvr_buf *head)
{
    if (*key) kvr_buf_printf(head, "Authorization: Bearer %s\r\n", key);
}
