/* SPDX-License-Identifier: Apache-2.0 */
/* A form that is written here is read as it was written: each field's first value, and how often it is there. Bytes that nobody has written
 * are refused, or what is found in them is between two delimiters; with another value in its place, that is found, and nothing else has
 * changed. */
#include <string.h>

#include "base/base.h"
#include "base/buf.h"
#include "wire/form.h"

enum { NAMES = 3, PARTS_MAX = 32 };
static const char *const names[NAMES] = {"model", "user", "file"};
static const char boundary[] = "-b'1";

struct input {
    const uint8_t *at, *end;
};

static unsigned take(struct input *in)
{
    return in->at < in->end ? *in->at++ : 0;
}

/* A value has no delimiter: the writer of a form sees to that. */
static struct kvr_form_field take_value(struct input *in)
{
    size_t n = take(in);
    n = KVR_MIN(n, (size_t)(in->end - in->at));
    struct kvr_form_field v = {(const char *)in->at, n, 1};
    in->at += n;
    const char *bad = memmem(v.ptr, v.len, "-b'", 3);
    if (bad) v.len = (size_t)(bad - v.ptr);
    return v;
}

/* The ways in which clients write the same name. */
static void write_head(struct kvr_buf *b, unsigned how, const char *name)
{
    static const char other[] = "Content-Type: a/b; x=\"\\\"\"\r\nContent-Disposition: form-data; filename=\"; name=user\"; ";
    switch (how) {
    case 0: kvr_buf_printf(b, "Content-Disposition: form-data; name=\"%s\"\r\n", name); break;
    case 1: kvr_buf_printf(b, "content-disposition:Form-Data;name=%s\r\n", name); break;
    case 2: kvr_buf_printf(b, "%sNAME = \"%s\";\r\n", other, name); break;
    default: kvr_buf_printf(b, "Content-Disposition: form-data; name=\"%.2s\\%s\"\r\n", name, name + 2); break;
    }
}

static void write_part(struct kvr_buf *b, struct input *in, const char *name, struct kvr_form_field v)
{
    static const char *const spaces[] = {"", " ", "\t "};
    unsigned how = take(in);
    kvr_buf_printf(b, "--%s%s\r\n", boundary, spaces[how / 4 % 3]);
    write_head(b, how % 4, name);
    kvr_buf_str(b, "\r\n");
    kvr_buf_add(b, v.ptr, v.len);
    kvr_buf_str(b, "\r\n");
}

static void read_what_was_written(struct input in)
{
    struct kvr_form_field was[NAMES] = {0}, is[NAMES];
    struct kvr_buf b = {0};
    unsigned n = take(&in) % PARTS_MAX;
    struct kvr_form_field preamble = take_value(&in), epilogue = take_value(&in);
    kvr_buf_add(&b, preamble.ptr, preamble.len);
    if (preamble.len) kvr_buf_str(&b, "\r\n");
    for (unsigned i = 0; i < n; i++) {
        unsigned name = take(&in) % NAMES;
        struct kvr_form_field v = take_value(&in);
        if (was[name].times++ == 0) was[name].ptr = v.ptr, was[name].len = v.len;
        write_part(&b, &in, names[name], v);
    }
    kvr_buf_printf(&b, "--%s--%s", boundary, epilogue.len ? "\r\n" : "");
    kvr_buf_add(&b, epilogue.ptr, epilogue.len);
    KVR_ASSERT(!b.failed && !kvr_form_pick(b.data, b.len, boundary, names, NAMES, is));
    for (unsigned i = 0; i < NAMES; i++) {
        KVR_ASSERT(is[i].times == was[i].times && is[i].len == was[i].len && !is[i].ptr == !was[i].times);
        KVR_ASSERT(!is[i].len || !memcmp(is[i].ptr, was[i].ptr, is[i].len));
    }
    kvr_buf_free(&b);
}

/* Another value in the place of the model's. */
static void change(const char *s, size_t size, const struct kvr_form_field *was)
{
    struct kvr_form_field is[NAMES];
    struct kvr_buf b = {0};
    const char *behind = was[0].ptr + was[0].len;
    kvr_buf_add(&b, s, (size_t)(was[0].ptr - s));
    kvr_buf_str(&b, "another");
    kvr_buf_add(&b, behind, (size_t)(s + size - behind));
    KVR_ASSERT(!kvr_form_pick(b.data, b.len, boundary, names, NAMES, is));
    KVR_ASSERT(is[0].len == 7 && !memcmp(is[0].ptr, "another", 7) && is[0].times == was[0].times);
    for (unsigned i = 1; i < NAMES; i++) {
        KVR_ASSERT(is[i].times == was[i].times && is[i].len == was[i].len);
        KVR_ASSERT(!is[i].len || !memcmp(is[i].ptr, was[i].ptr, is[i].len));
    }
    kvr_buf_free(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *s = (const char *)data, *end = s + size;
    struct kvr_form_field v[NAMES];
    char told[KVR_FORM_BOUNDARY_MAX + 1];
    if (!kvr_form_boundary(s, size, told)) KVR_ASSERT(kvr_form_is(s, size) && *told && strlen(told) <= KVR_FORM_BOUNDARY_MAX);
    if (!kvr_form_pick(s, size, boundary, names, NAMES, v)) {
        for (unsigned i = 0; i < NAMES; i++) {
            KVR_ASSERT(!v[i].ptr == !v[i].times);
            if (!v[i].ptr) continue;
            const char *value_end = v[i].ptr + v[i].len;
            KVR_ASSERT(v[i].ptr - 4 >= s && value_end + 4 + strlen(boundary) <= end && !memcmp(v[i].ptr - 4, "\r\n\r\n", 4));
            KVR_ASSERT(!memcmp(value_end, "\r\n--", 4) && !memcmp(value_end + 4, boundary, strlen(boundary)));
            KVR_ASSERT(!memmem(v[i].ptr, v[i].len, "\r\n---b'1", 8));
        }
        if (v[0].ptr) change(s, size, v);
    }
    read_what_was_written((struct input){data, data + size});
    return 0;
}
