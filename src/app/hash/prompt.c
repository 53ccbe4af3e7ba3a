/* SPDX-License-Identifier: Apache-2.0 */
/* Token ids of a text or a chat: the question that the router makes of it (wire/prompt_question.h), answered with a folder. */
#include <errno.h>
#include <string.h>

#include "app/hash/state.h"
#include "base/buf.h"
#include "token/given.h"
#include "token/library.h"
#include "wire/prompt_question.h"

enum { FILE_BYTES_MAX = 64 << 20, EXIT_BAD = 2 };

/* The whole file; "-" is stdin. */
static int read_file(const char *path, struct kvr_buf *out)
{
    char piece[65536];
    bool is_stdin = !strcmp(path, "-");
    FILE *f = is_stdin ? stdin : fopen(path, "re");
    size_t n = 0;
    errno = f ? 0 : errno;
    while (f && out->len <= FILE_BYTES_MAX && !out->failed && (n = fread(piece, 1, sizeof piece, f)) > 0) kvr_buf_add(out, piece, n);
    bool unread = !f || ferror(f);
    int error = errno;
    if (f && !is_stdin) (void)fclose(f);
    if (unread) kvr_log_error("kvroute hash: --messages: cannot read '%.200s': %s", path, strerror(error));
    else if (out->len > FILE_BYTES_MAX) kvr_log_error("kvroute hash: --messages: '%.200s' has more than 64 MiB", path);
    else if (out->failed) kvr_log_error("kvroute hash: out of memory");
    return unread || out->len > FILE_BYTES_MAX || out->failed ? 1 : 0;
}

/* As it is, so that a text that is no UTF-8 is refused and not repaired. */
static void put_text(struct kvr_buf *b, const char *text)
{
    kvr_buf_str(b, "\"");
    for (const char *c = text; *c; c++) {
        if (*c == '"' || *c == '\\') kvr_buf_printf(b, "\\%c", *c);
        else if ((unsigned char)*c < ' ') kvr_buf_printf(b, "\\u%04x", (unsigned)*c);
        else kvr_buf_add(b, c, 1);
    }
    kvr_buf_str(b, "\"");
}

/* A body with the members of a question: {"text": ...}, or a chat's. */
static int make_body(const struct hash_options *o, struct kvr_buf *body)
{
    struct kvr_buf file = {0};
    if (o->text) {
        kvr_buf_str(body, "{\"text\":");
        put_text(body, o->text);
        kvr_buf_str(body, "}");
        return 0;
    }
    int rc = read_file(o->messages, &file);
    size_t at = 0;
    while (rc == 0 && at < file.len && strchr(" \t\r\n", file.data[at])) at++;
    bool is_list = at < file.len && file.data[at] == '[';
    if (rc == 0 && is_list) kvr_buf_str(body, "{\"messages\":");
    if (rc == 0) kvr_buf_add(body, file.data ? file.data : "", file.len);
    if (rc == 0 && is_list) kvr_buf_str(body, "}");
    kvr_buf_free(&file);
    return rc;
}

static int make_question(const struct hash_options *o, const struct kvr_buf *body, struct kvr_buf *question)
{
    const char *option = o->text ? "--text" : "--messages", *why = "out of memory";
    struct kvr_json_parser *json = kvr_json_parser_new();
    struct kvr_json root;
    bool made = false;
    if (!json || body->failed) why = "out of memory";
    else if (kvr_json_parse(json, body->data ? body->data : "", body->len, &root, &why)) why = o->text ? "the text is not UTF-8" : why;
    else if (!o->text && kvr_json_type_of(kvr_json_get(root, "messages")) != KVR_JSON_ARRAY)
        why = "it has no messages; allowed: the body of a chat, or its list of messages";
    else made = kvr_prompt_question(root, body->data, body->len, question, &why) && !question->failed;
    if (!made) kvr_log_error("kvroute hash: %s: %s", option, why);
    kvr_json_parser_free(json);
    return made ? 0 : 1;
}

static int answer(const struct hash_options *o, const struct kvr_buf *question, struct kvr_ids **out)
{
    char why[1200];
    struct kvr_given_tokens_config config = {
        .lib = o->tokenizer_lib, .dir = o->tokenizer_dir, .profile = o->tokenizer_profile, .name_max = 1};
    struct kvr_given_tokens *given = NULL;
    if (kvr_given_tokens_open(&config, &given, why, sizeof why)) {
        kvr_log_error("kvroute hash: %s", why);
        return 1;
    }
    int rc = kvr_given_tokens_make(given, "", question->data, question->len, out, why, sizeof why);
    if (rc) kvr_log_error("kvroute hash: %s: the token ids cannot be made: %s", o->text ? "--text" : "--messages", why);
    kvr_given_tokens_close(given);
    return rc ? 1 : 0;
}

int prompt_ids(const struct hash_options *o, struct kvr_ids **out)
{
    struct kvr_buf body = {0}, question = {0};
    if (!o->tokenizer_dir) {
        kvr_log_error("kvroute hash: --tokenizer-dir is needed for %s; allowed: a model's folder with a tokenizer.json",
                      o->text ? "--text" : "--messages");
        return EXIT_BAD;
    }
    int rc = make_body(o, &body);
    if (rc == 0) rc = make_question(o, &body, &question);
    if (rc == 0) rc = answer(o, &question, out);
    kvr_buf_free(&body);
    kvr_buf_free(&question);
    return rc;
}
