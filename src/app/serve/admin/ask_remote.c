/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Questions about prompts on the admin port of a router whose index is elsewhere (--use-remote-indexer). The index is asked first:
 *
 *     body --question_read--> hashes --ask--> every remote index --all have answered--> the route, with what they said (admin->fetched)
 *
 * The route reads the question once more, on the same loop, so that it need not know where overlaps come from. When the index cannot be
 * asked, the answer is 503 and why, not one as if nothing were cached.
 */
#include "app/serve/admin/room.h"

#include <string.h>

#include "app/serve/peers/remote.h"
#include "net/replication/remote_index.h"

struct asking {
    struct asking *next;
    struct admin *admin;
    struct kvr_http_conn *conn;
    admin_post_fn *fn;
    struct kvr_json_parser *json; /* of a body that was read on a thread: it holds `root`; NULL: the connection has the body */
    struct kvr_json root;
    struct kvr_ids *text_ids; /* of a prompt that is text; or NULL */
    struct kvr_remote_query *queries[REMOTES_MAX];
    size_t unanswered;
    bool failed;
    struct fetched got;
};

static void asking_free(struct asking *a)
{
    KVR_UNLINK(a->admin->askings, a);
    for (size_t i = 0; i < REMOTES_MAX; i++)
        if (a->queries[i]) kvr_remote_cancel(a->queries[i]);
    kvr_json_parser_free(a->json);
    kvr_ids_unref(a->text_ids);
    free(a->got.scores);
    free(a);
}

const char *remote_why(const struct admin *admin)
{
    const char *why = "";
    for (size_t i = 0; i < admin->remotes_n && !why[0]; i++) why = kvr_remote_why(admin->remotes[i]);
    return why;
}

static void refuse(struct admin *admin, struct kvr_http_conn *c)
{
    char text[400];
    const char *why = remote_why(admin);
    if (!why[0]) why = "the server has not answered this question";
    snprintf(text, sizeof text, "the index of this router is elsewhere (--use-remote-indexer) and cannot be asked: %.250s", why);
    admin_error(c, 503, text);
}

/* All have answered. */
static void go_on(struct asking *a)
{
    struct admin *admin = a->admin;
    struct kvr_http_conn *c = a->conn;
    struct kvr_json o;
    kvr_http_conn_set_user(c, NULL);
    if (a->failed) {
        asking_free(a);
        refuse(admin, c);
        return;
    }
    const struct kvr_http_request *rq = kvr_http_conn_request(c);
    if (a->json) o = a->root;
    if (!a->json && kvr_json_parse(admin->process->json, rq->body, rq->body_len, &o, NULL)) {
        admin_error(c, 503, "out of memory");
    } else {
        admin->fetched = &a->got;
        admin->text_ids = a->text_ids;
        a->fn(admin, c, o);
        admin->fetched = NULL;
        admin->text_ids = NULL;
    }
    asking_free(a);
}

static bool keep(struct asking *a, const struct kvr_reach *scores, size_t n)
{
    struct kvr_reach *p = n ? realloc(a->got.scores, (a->got.n + n) * sizeof *p) : NULL;
    if (!n) return true;
    if (!p) return false;
    memcpy(p + a->got.n, scores, n * sizeof *p);
    a->got.scores = p;
    a->got.n += n;
    return true;
}

static void on_scores(void *ctx, const struct kvr_remote_query *q, const struct kvr_reach *scores, long n)
{
    struct asking *a = ctx;
    for (size_t i = 0; i < REMOTES_MAX; i++)
        if (a->queries[i] == q) a->queries[i] = NULL;
    if (n < 0 || !keep(a, scores, (size_t)n)) a->failed = true;
    if (--a->unanswered == 0) go_on(a);
}

static void model_of(const struct admin *admin, const struct question *q, char *out, size_t cap)
{
    if (!remote_model(admin->peers, q->partition->block_size, out, cap))
        snprintf(out, cap, "%s",
                 q->model[0]              ? q->model
                 : q->partition->model[0] ? q->partition->model
                 : admin->o->model        ? admin->o->model
                                          : "default");
}

/* Returns: false when one cannot be asked. */
static bool ask(struct asking *a, const struct question *q)
{
    struct admin *admin = a->admin;
    char model[MODEL_MAX + 16];
    size_t n;
    uint64_t *locals = question_locals(q, &n);
    model_of(admin, q, model, sizeof model);
    for (size_t i = 0; locals && n && i < admin->remotes_n && !a->failed; i++) {
        a->queries[i] = kvr_remote_ask(admin->remotes[i], model, locals, n, q->isl, on_scores, a);
        if (a->queries[i]) a->unanswered++;
        else a->failed = true;
    }
    bool ok = locals && !a->failed;
    free(locals);
    return ok;
}

bool admin_ask_first(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o, struct kvr_json_parser **holds, admin_post_fn *fn)
{
    struct question q;
    if (!admin->remotes_n || admin->fetched) return false;
    if (!(fn == selection_pair ? question_read_pair : question_read)(admin, c, o, &q)) return true;
    struct asking *a = calloc(1, sizeof *a);
    if (!a) {
        question_free(&q);
        admin_error(c, 503, "out of memory");
        return true;
    }
    *a = (struct asking){.next = admin->askings, .admin = admin, .conn = c, .fn = fn, .json = holds ? *holds : NULL, .root = o};
    if (admin->text_ids) a->text_ids = kvr_ids_ref(admin->text_ids);
    if (holds) *holds = NULL;
    admin->askings = a;
    kvr_http_conn_set_user(c, a); /* so that its end is told */
    bool ok = ask(a, &q);
    question_free(&q);
    if (!ok) {
        kvr_http_conn_set_user(c, NULL);
        asking_free(a);
        refuse(admin, c);
    } else if (!a->unanswered) { /* no whole block: nothing can be cached */
        go_on(a);
    }
    return true;
}

bool admin_ask_gone(struct admin *admin, const struct kvr_http_conn *c)
{
    for (struct asking *a = admin->askings; a; a = a->next) {
        if (a->conn != c) continue;
        asking_free(a);
        return true;
    }
    return false;
}
