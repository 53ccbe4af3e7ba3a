/* SPDX-License-Identifier: Apache-2.0 */
/* Request bodies, usage and trace lines; the prompt text, written as JSON, reads back as itself. */
#include <string.h>

#include "wire/mm_infos.h"
#include "wire/mm_parts.h"
#include "wire/openai.h"
#include "wire/prompt_ids.h"
#include "wire/rank_member.h"
#include "wire/trace.h"
#include "wire/tokenize_body.h"

/* Spliced, it says the rank; without what was spliced in, it is what it was. */
static void splice_rank(struct kvr_json_parser *q, struct kvr_json body, const char *data, size_t size)
{
    struct kvr_rank_member has, now;
    struct kvr_buf out = {0};
    struct kvr_json root;
    if (kvr_rank_member_read(body, &has)) return;
    bool nulls = kvr_json_type_of(kvr_json_get(body, "data_parallel_rank")) == KVR_JSON_NULL ||
                 kvr_json_type_of(kvr_json_get(body, "routed_dp_rank")) == KVR_JSON_NULL;
    uint32_t rank = has.given ? has.rank : 3;
    kvr_rank_member_splice(data, size, &has, rank, &out);
    KVR_ASSERT(kvr_json_parse(q, out.data, out.len, &root, NULL) == 0);
    if (nulls) { /* replaced */
        kvr_buf_free(&out);
        return;
    }
    size_t more = out.len - size, tail = size;
    while (tail && data[tail - 1] != '}') tail--;
    KVR_ASSERT(tail && memcmp(out.data, data, tail - 1) == 0 && memcmp(out.data + tail - 1 + more, data + tail - 1, size - tail + 1) == 0);
    KVR_ASSERT(kvr_json_parse(q, out.data, out.len, &root, NULL) == 0);
    KVR_ASSERT(kvr_rank_member_read(root, &now) == NULL && (now.has[0] || !has.has[0]) && (now.has[1] || !has.has[1]));
    KVR_ASSERT((has.has[0] && has.has[1]) ? more == 0 : more > 0);
    kvr_buf_free(&out);
}

/* With ids in the place of its text, it is a completion of these ids. */
static void splice_ids(struct kvr_json_parser *q, const char *data, size_t size)
{
    static const uint32_t ids[] = {1, 2, 4294967295};
    struct kvr_buf out = {0};
    struct kvr_json root;
    uint32_t back[3] = {0};
    if (kvr_prompt_ids_splice((struct kvr_json_span){data, data + size}, ids, 3, &out)) {
        KVR_ASSERT(kvr_json_parse(q, out.data, out.len, &root, NULL) == 0);
        struct kvr_json list = kvr_json_get(root, "prompt");
        KVR_ASSERT(kvr_json_count(list) == 3 && kvr_json_u32_array(list, back, 3) == 3 && memcmp(back, ids, sizeof ids) == 0);
    }
    kvr_buf_free(&out);
}

static bool is_text(const struct kvr_buf *b)
{
    return !b->len || !memchr(b->data, 0xff, b->len);
}

/* A chat without its images is a chat: of text, and of the same text up to the first of them. */
static void remove_objects(struct kvr_json_parser *q, const struct kvr_openai_request *r, const char *data, size_t size)
{
    struct kvr_buf plain = {0}, a = {0}, b = {0};
    struct kvr_openai_request without = {0};
    const char *why;
    if (kvr_mm_parts_any(r->root) && kvr_mm_parts_remove(data, size, r->root, &plain)) {
        /* a name that is there twice, once with escapes, is read here and cleaned there: then a part is left, and is seen */
        bool read = kvr_openai_parse(q, plain.data, plain.len, KVR_JSON_ALL, &without, &why) == 0 && !kvr_mm_parts_any(without.root);
        KVR_ASSERT(read || memchr(data, '\\', size));
        if (read) {
            KVR_ASSERT(without.has_messages && kvr_openai_prompt_text(r, &a) && kvr_openai_prompt_text(&without, &b));
            KVR_ASSERT(!is_text(&a) && b.len < a.len);
        }
    }
    kvr_buf_free(&plain);
    kvr_buf_free(&a);
    kvr_buf_free(&b);
}

static void read_infos(struct kvr_json body)
{
    struct kvr_mm_infos m;
    char why[160] = "";
    int rc = kvr_mm_infos_read(body, 8, &m, why, sizeof why);
    KVR_ASSERT(rc == 0 ? m.n <= 8 : why[0] != 0);
    for (size_t i = 0; i < m.n && rc == 0; i++) KVR_ASSERT(m.blocks[i].count <= KVR_MM_OBJECTS_MAX);
    kvr_mm_infos_free(&m);
}

/* What an engine is asked is JSON, whatever the body was, and what its members do is told for each form. */
static void ask(struct kvr_json_parser *q, struct kvr_json body, const char *data, size_t size)
{
    static const enum kvr_prompt_form forms[] = {KVR_FORM_COMPLETION, KVR_FORM_CHAT, KVR_FORM_RESPONSES, KVR_FORM_MESSAGES,
                                                 KVR_FORM_GENERATE};
    const char *start = kvr_json_text_space(data, data + size);
    for (size_t i = 0; i < KVR_ARRAY_LEN(forms); i++) {
        struct kvr_buf out = {0};
        struct kvr_json root;
        struct kvr_prompt_members m;
        enum kvr_prompt_certainty certainty = KVR_PROMPT_EXACT;
        kvr_prompt_members_read(body, forms[i], &m);
        KVR_ASSERT(!m.as_evidence || (m.usage_tells && m.certainty == KVR_PROMPT_EXACT));
        if (kvr_tokenize_body((struct kvr_json_span){start, data + size}, forms[i], &out, &certainty)) {
            KVR_ASSERT(kvr_json_parse(q, out.data, out.len, &root, NULL) == 0 && kvr_json_type_of(root) == KVR_JSON_OBJECT);
            struct kvr_buf bare = {0};
            kvr_tokenize_body_bare((struct kvr_json_span){out.data, out.data + out.len}, &bare);
            KVR_ASSERT(kvr_json_parse(q, bare.data, bare.len, &root, NULL) == 0);
            kvr_buf_free(&bare);
        }
        out.len = 0;
        if (kvr_tokenize_body_sglang((struct kvr_json_span){start, data + size}, forms[i], &out, &certainty))
            KVR_ASSERT(kvr_json_parse(q, out.data, out.len, &root, NULL) == 0 && kvr_json_type_of(root) == KVR_JSON_OBJECT);
        kvr_buf_free(&out);
    }
}

/* The members of a trace's text are those of an object, and its prompt among them. */
static void check_trace_text(struct kvr_json_parser *q, const struct kvr_trace_row *row)
{
    struct kvr_buf b = {0};
    struct kvr_json root;
    kvr_buf_printf(&b, "{%.*s}", (int)row->text_len, row->text);
    KVR_ASSERT(kvr_json_parse(q, b.data, b.len, &root, NULL) == 0);
    KVR_ASSERT(kvr_json_type_of(kvr_json_get(root, row->is_chat ? "messages" : "prompt")) ==
               (row->is_chat ? KVR_JSON_ARRAY : KVR_JSON_STRING));
    kvr_buf_free(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct kvr_json_parser *p, *q;
    struct kvr_openai_request r;
    struct kvr_usage u;
    struct kvr_trace_row row;
    struct kvr_buf text = {0}, json = {0};
    const char *why = NULL, *s;
    size_t len;
    if (!p) p = kvr_json_parser_new(), q = kvr_json_parser_new();
    if (kvr_openai_parse(p, (const char *)data, size, KVR_JSON_ALL, &r, &why) == 0) {
        kvr_openai_usage(r.root, &u);
        splice_rank(q, r.root, (const char *)data, size);
        splice_ids(q, (const char *)data, size);
        remove_objects(q, &r, (const char *)data, size);
        read_infos(r.root);
        ask(q, r.root, (const char *)data, size);
        if (r.tokens_n) {
            uint32_t *t = malloc(r.tokens_n * sizeof *t);
            if (t) KVR_ASSERT(kvr_json_u32_array(r.tokens, t, r.tokens_n) <= (long)r.tokens_n);
            free(t);
        }
        if (kvr_openai_prompt_text(&r, &text) && is_text(&text)) {
            struct kvr_json root;
            kvr_json_str(&json, text.data ? text.data : "", text.len);
            KVR_ASSERT(kvr_json_parse(q, json.data, json.len, &root, NULL) == 0 && kvr_json_as_str(root, &s, &len));
            KVR_ASSERT(len == text.len && (len == 0 || memcmp(s, text.data, len) == 0));
        }
    } else {
        KVR_ASSERT(why != NULL);
    }
    if (kvr_trace_parse(p, (const char *)data, size, &row, &why) == 0) {
        KVR_ASSERT(row.input_length <= row.ids_n * KVR_TRACE_BLOCK);
        if (row.text) check_trace_text(q, &row);
        kvr_trace_row_free(&row);
    }
    kvr_buf_free(&text);
    kvr_buf_free(&json);
    return 0;
}
