/* SPDX-License-Identifier: Apache-2.0 */
/* cli/file_lines.h says what this is. */
#include "cli/file_lines.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/log.h"

struct file_line {
    char *text;
    size_t place;    /* bytes of the text that name the file */
    size_t file, at; /* the first finding of the same file; its own place in the list */
    uint64_t line;
};

static void print(const char *text)
{
    char shown[4096];
    (void)kvr_printable(text, strlen(text), shown, sizeof shown);
    fprintf(stderr, "%s\n", shown);
}

/* FILE:LINE: of the text; a file's name may have colons. */
static void read_place(struct file_line *f)
{
    for (const char *c = strchr(f->text, ':'); c; c = strchr(c + 1, ':')) {
        size_t digits = strspn(c + 1, "0123456789");
        if (!kvr_parse_u64(c + 1, digits, UINT64_MAX, &f->line) || c[1 + digits] != ':') continue;
        f->place = (size_t)(c - f->text);
        return;
    }
}

static bool same_file(const struct file_line *a, const struct file_line *b)
{
    return a->place == b->place && memcmp(a->text, b->text, a->place) == 0;
}

void file_lines_add(struct file_lines *f, const char *text)
{
    struct file_line *grown = realloc(f->list, (f->n + 1) * sizeof *grown), *own;
    char *copy = grown ? strdup(text) : NULL;
    if (grown) f->list = grown;
    if (!copy) {
        print(text);
        return;
    }
    own = &grown[f->n];
    *own = (struct file_line){.text = copy, .at = f->n, .file = f->n};
    read_place(own);
    for (size_t i = 0; i < f->n && own->file == f->n; i++)
        if (same_file(&grown[i], own)) own->file = grown[i].file;
    f->n++;
}

static int in_order(const void *a, const void *b)
{
    const struct file_line *x = a, *y = b;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    if (x->line != y->line) return x->line < y->line ? -1 : 1;
    return x->at < y->at ? -1 : 1;
}

void file_lines_print(struct file_lines *f)
{
    if (f->n) qsort(f->list, f->n, sizeof *f->list, in_order);
    for (size_t i = 0; i < f->n; i++) {
        print(f->list[i].text);
        free(f->list[i].text);
    }
    free(f->list);
    *f = (struct file_lines){0};
}
