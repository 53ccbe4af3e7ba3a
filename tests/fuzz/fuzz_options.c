/* SPDX-License-Identifier: Apache-2.0 */
/* A file of serve's options is refused with texts that each name the file, or it is read: then every line is one of the file, and each
 * worker, written as a flag has it, is read again as the same. */
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "cli/commands.h"
#include "cli/serve_cli.h"

static void on_wrong(void *arg, const char *text)
{
    unsigned *wrong = arg;
    KVR_ASSERT(strncmp(text, "c.yaml", 6) == 0 && strlen(text) > 10);
    ++*wrong;
}

/* In a text a comma behind a backslash does not end a value, and a value cannot end with a backslash. */
static int can_be_text(const char *s)
{
    size_t n = strlen(s);
    return n == 0 || s[n - 1] != '\\';
}

static void put(struct kvr_buf *b, const char *s)
{
    for (; *s; s++) kvr_buf_printf(b, *s == ',' ? "\\%c" : "%c", *s);
}

static void check_entry(const struct kvr_entry *e, size_t lines)
{
    struct kvr_buf b = {0};
    struct kvr_entry again;
    int plain = can_be_text(e->head);
    KVR_ASSERT(e->file && e->line >= 1 && e->line <= lines);
    put(&b, e->head);
    for (size_t i = 0; i < e->n; i++) {
        const struct kvr_entry_part *p = &e->parts[i];
        KVR_ASSERT(p->line >= 1 && p->line <= lines);
        plain &= can_be_text(p->key) && (!p->value || can_be_text(p->value)) && !strchr(p->key, ',');
        kvr_buf_str(&b, ",");
        kvr_buf_str(&b, p->key);
        if (!p->value) continue;
        kvr_buf_str(&b, "=");
        put(&b, p->value);
    }
    kvr_buf_add(&b, "", 1);
    if (!plain) {
        kvr_buf_free(&b);
        return;
    }
    KVR_ASSERT(!b.failed && kvr_entry_parse(b.data, NULL, 0, &again) == 0);
    KVR_ASSERT(!strcmp(again.head, e->head) && again.n == e->n);
    for (size_t i = 0; i < e->n; i++) {
        KVR_ASSERT(!strcmp(again.parts[i].key, e->parts[i].key) && !again.parts[i].value == !e->parts[i].value);
        KVR_ASSERT(!again.parts[i].value || !strcmp(again.parts[i].value, e->parts[i].value));
    }
    kvr_entry_free(&again);
    kvr_buf_free(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct serve_cli cli = {0};
    struct options_from from = {0};
    size_t lines = 1;
    unsigned wrong = 0;
    if (size > 1 << 16) return 0;
    for (size_t i = 0; i < size; i++) lines += data[i] == '\n' || data[i] == '\r' || data[i] >= 0x80; /* NEL, LS and PS end lines too */
    const struct options_ear ear = {on_wrong, &wrong};
    int rc = options_parse_text(&command_serve.table, "c.yaml", (const char *)data, size, &ear, &cli, &from);
    KVR_ASSERT((rc == 0) == (wrong == 0) && (rc == 0 || rc == 2));
    for (size_t i = 0; i < command_serve.table.n; i++) KVR_ASSERT(from.lines[i] <= lines + 1);
    for (size_t i = 0; i < cli.workers.n; i++) check_entry(&cli.workers.items[i], lines + 1);
    options_free(&command_serve.table, &cli, &from);
    return 0;
}
