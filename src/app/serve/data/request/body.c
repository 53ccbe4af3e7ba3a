/* SPDX-License-Identifier: Apache-2.0 */
/*
 * READING: what routing needs of a request's body, which is JSON, or on a path that is routed by load a form (wire/form.h), of which that
 * is the model. A large body is read on a thread; then read_json() or read_form() fills in members of the request that the loop does not
 * look at meanwhile, and what is wrong with it is kept apart (struct reading), since the loop may refuse the request for another reason.
 *
 * The tokens of the prompt are here when the body gives them, or when bytes are taken for tokens. Otherwise the question for an engine is
 * made (r->ask), of a chat with images a second one without them (r->plain): tokenize.c goes on with both.
 */
#include <string.h>

#include "app/serve/data/request/eligible.h"
#include "app/serve/data/request/named_model.h"
#include "app/serve/data/request/phases.h"
#include "app/serve/data/request/pins.h"
#include "app/serve/workers/table/worker.h"
#include "app/serve/workers/workers.h"
#include "wire/json_text.h"
#include "wire/lax.h"
#include "wire/mm_parts.h"
#include "wire/tokenize_body.h"

/* ---- what is wrong with it --------------------------------------------------------------------------- */

static void refuse_body(struct request *r, int status, const char *why)
{
    r->now->reading.refusal = status;
    r->now->reading.refused = why;
}

static void out_of_memory(struct request *r)
{
    refuse_body(r, 503, "out of memory");
}

/* `what` has more of `unit` than the option allows. */
static void too_large(struct request *r, _Atomic uint64_t *counter, const char *what, uint64_t limit, const char *unit, const char *option)
{
    struct reading *reading = &r->now->reading;
    snprintf(reading->refused_text, sizeof reading->refused_text, "%s has more than %llu %s, which is --%s", what,
             (unsigned long long)limit, unit, option);
    refuse_body(r, 413, reading->refused_text);
    reading->refused_by = counter;
}

/* ---- the prompt -------------------------------------------------------------------------------------- */

static enum serve_tokenizer tokenizer_of(const struct data_plane *data)
{
    if (data->o->tokenizer != TOKENIZER_AUTO) return (enum serve_tokenizer)data->o->tokenizer;
    return data->o->kv_events ? TOKENIZER_ENGINE : TOKENIZER_BYTES;
}

/* Token ids that the body gives. */
static void given_tokens(struct request *r, const struct kvr_openai_request *rq)
{
    uint32_t *t = malloc((rq->tokens_n + 1) * sizeof *t);
    if (!t) out_of_memory(r);
    if (!t || kvr_json_u32_array(rq->tokens, t, rq->tokens_n) < 0) {
        free(t);
        return;
    }
    r->tokens = t;
    r->tokens_from = TOKENS_BODY;
    r->tokens_n = rq->tokens_n;
    r->isl = rq->tokens_sum;
}

/* Bytes of the text as tokens. */
static void byte_tokens(struct request *r, const struct kvr_openai_request *rq)
{
    struct kvr_buf text = {0};
    if (!kvr_openai_prompt_text(rq, &text)) return;
    if (text.len > rq->text_max) {
        too_large(r, &data_of(r)->counters.prompt_texts_refused_total, "the text of the prompt", rq->text_max, "bytes", "max-prompt-text");
    } else {
        r->tokens = text.failed ? NULL : malloc((text.len + 1) * sizeof *r->tokens);
        if (!r->tokens) out_of_memory(r);
        for (size_t i = 0; r->tokens && i < text.len; i++) r->tokens[i] = (unsigned char)text.data[i];
        r->tokens_n = r->tokens ? text.len : 0;
        r->tokens_from = TOKENS_BYTES;
    }
    kvr_buf_free(&text);
    if (r->members.truncation != KVR_TRUNCATE_NOT) request_prompt_is_hint(r);
    r->members.truncation = KVR_TRUNCATE_NOT; /* counts the engine's tokens */
}

/* What an engine will be asked for the tokens. None: the body does not say what the prompt is. */
static void make_question(struct request *r)
{
    struct kvr_buf bytes = {0};
    struct kvr_json_span body = {r->body->data, r->body->data + r->body->len};
    r->asks_sglang = eligible_has_sglang(r);
    bool made = (r->asks_sglang ? kvr_tokenize_body_sglang : kvr_tokenize_body)(body, r->form, &bytes, &r->members.certainty);
    if (made) r->ask = kvr_body_derive(r->body, &bytes);
    r->token_failed = bytes.failed || (made && !r->ask);
    kvr_buf_free(&bytes);
    if (r->members.certainty != KVR_PROMPT_EXACT) r->members.as_evidence = false;
}

/* Where the tokens come from: the body itself, its bytes, or an engine that is asked. */
static void body_tokens(struct request *r, struct kvr_openai_request *rq, struct kvr_json_parser *json)
{
    const char *why;
    bool bytes = tokenizer_of(data_of(r)) == TOKENIZER_BYTES;
    struct kvr_openai_request question;
    if (rq->tokens.doc) given_tokens(r, rq);
    if (r->tokens || r->now->reading.refusal) return;
    if (bytes && r->form <= KVR_FORM_CHAT) {
        byte_tokens(r, rq);
        return;
    }
    make_question(r);
    if (!bytes || !r->ask) return;
    if (kvr_openai_parse(json, r->ask->data, r->ask->len, KVR_JSON_ALL, &question, &why) == 0) { /* the body's values are gone now */
        question.text_max = rq->text_max;
        byte_tokens(r, &question);
    }
    kvr_body_unref(r->ask);
    r->ask = NULL;
}

/* A chat with images and the like. In byte tokens they are where they belong. An engine's tokens have places kept free for them, which
 * are equal for any two images, so the prompt is predicted up to the first of them at most: the tokens of the same chat without them
 * tell where that is. Tokens that came with the request: nobody knows. */
static void find_objects(struct request *r, const struct kvr_openai_request *rq)
{
    struct kvr_buf plain = {0};
    if (r->form > KVR_FORM_CHAT || !kvr_mm_parts_any(rq->root)) return;
    r->multimodal = true;
    COUNT(r, multimodal_prompts_total);
    if (r->tokens && !rq->tokens.doc) return;
    bool placed = r->ask && r->members.truncation == KVR_TRUNCATE_NOT;
    if (placed && kvr_mm_parts_remove(r->ask->data, r->ask->len, rq->root, &plain)) r->plain = kvr_body_derive(r->ask, &plain);
    r->unplaced = !r->plain;
    kvr_buf_free(&plain);
}

/* ---- the members ------------------------------------------------------------------------------------- */

static bool is_small_enough(struct request *r, const struct kvr_openai_request *rq)
{
    struct data_plane *data = data_of(r);
    size_t messages = rq->has_messages ? kvr_json_count(kvr_json_get(rq->root, "messages")) : 0;
    if (messages > data->o->max_messages)
        too_large(r, &data->counters.prompt_messages_refused_total, "`messages`", data->o->max_messages, "entries", "max-messages");
    else if (rq->tokens.doc && rq->tokens_n > data->o->max_prompt_tokens)
        too_large(r, &data->counters.prompt_tokens_refused_total, "the prompt", data->o->max_prompt_tokens, "tokens", "max-prompt-tokens");
    return !r->now->reading.refusal;
}

static void take_salt(struct request *r, const struct kvr_openai_request *rq)
{
    if (!rq->salt || !rq->salt_len) return;
    r->salt = malloc(rq->salt_len);
    if (r->salt) memcpy(r->salt, rq->salt, rq->salt_len);
    else out_of_memory(r); /* without it the prompt would be another one */
    r->salt_len = r->salt ? rq->salt_len : 0;
}

static void take_response(struct request *r, struct kvr_json v)
{
    char id[RESPONSE_ID_MAX] = "";
    responses_id_of(v, id);
    if (id[0] && !request_keep_text(&r->response, id, strlen(id))) out_of_memory(r); /* it may be known to one worker alone */
}

static uint64_t number_in(struct kvr_json object, const char *member, uint64_t otherwise)
{
    (void)kvr_lax_u64(kvr_json_get(object, member), &otherwise);
    return otherwise;
}

/* A list of texts, or of lists of tokens, is as many prompts. */
static uint64_t prompts_in(struct kvr_json prompt)
{
    enum kvr_json_type first = kvr_json_type_of(kvr_json_at(prompt, 0));
    return first == KVR_JSON_STRING || first == KVR_JSON_ARRAY ? kvr_json_count(prompt) : 1;
}

static uint64_t times(uint64_t tokens, uint64_t answers)
{
    return KVR_MIN(tokens, (uint64_t)1 << 32) * KVR_MAX(KVR_MIN(answers, (uint64_t)1 << 20), (uint64_t)1);
}

/* /generate: each prompt of a list may have its own parameters. */
static uint64_t asked_generation(struct kvr_json body)
{
    struct kvr_json params = kvr_json_get(body, "sampling_params");
    uint64_t all = 0, prompts = prompts_in(kvr_json_get(body, "text")) * prompts_in(kvr_json_get(body, "input_ids"));
    if (kvr_json_type_of(params) != KVR_JSON_ARRAY)
        return times(number_in(params, "max_new_tokens", 0), KVR_MIN(number_in(params, "n", 1), (uint64_t)1024) * prompts);
    for (struct kvr_json_iter i = kvr_json_iter(params); kvr_json_next(&i);)
        all += KVR_MIN(times(number_in(i.value, "max_new_tokens", 0), number_in(i.value, "n", 1)), (uint64_t)1 << 32);
    return all;
}

/* Tokens that the engine may generate for it, by the members that it reads in this form; 0: the body does not say. Of a chat's two, which
 * engines do not weigh alike, the larger. */
static uint64_t asked_output(struct kvr_json body, enum kvr_prompt_form form)
{
    if (form == KVR_FORM_GENERATE) return asked_generation(body);
    uint64_t tokens = number_in(body, form == KVR_FORM_RESPONSES ? "max_output_tokens" : "max_tokens", 0), answers = 1;
    if (form == KVR_FORM_CHAT) tokens = KVR_MAX(tokens, number_in(body, "max_completion_tokens", 0));
    if (form <= KVR_FORM_CHAT) answers = number_in(body, "n", 1);
    if (form == KVR_FORM_COMPLETION) answers = KVR_MIN(answers, (uint64_t)1024) * prompts_in(kvr_json_get(body, "prompt"));
    return times(tokens, answers);
}

static void take_members(struct request *r, const struct kvr_openai_request *rq)
{
    r->is_object = true;
    r->now->reading.rank_error = kvr_rank_member_read(rq->root, &r->body_rank);
    if (r->routed) pins_read_body(rq->root, &r->now->reading.pins);
    if (r->routed && r->form == KVR_FORM_RESPONSES) take_response(r, kvr_json_get(rq->root, "previous_response_id"));
    r->stream = rq->stream;
    r->names_adapter = kvr_json_has(rq->root, "lora_path");
    r->expected_osl = rq->expected_osl;
    if (rq->priority > 0 && r->priority == 0) r->priority = rq->priority;
    if (rq->strict_priority && !r->strict_priority) r->strict_priority = rq->strict_priority;
    take_salt(r, rq);
    if (r->admission.key) r->admission.output_asked = asked_output(rq->root, r->form);
}

/* What decides about two legs. */
static void read_split(struct request *r)
{
    kvr_handoff_members_read((struct kvr_json_span){r->body->data, r->body->data + r->body->len}, &r->split);
}

/* Who serves the model that it names. Returns: false: it is refused, now or before. */
static bool take_model(struct request *r, const struct named_ask *ask, enum named_model *is)
{
    if (ask->model.len >= MODEL_MAX) refuse_body(r, 400, "`model` is longer than 127 bytes");
    else if (ask->model.len && memchr(ask->model.ptr, 0, ask->model.len)) refuse_body(r, 400, "`model` has a NUL");
    else if ((*is = named_model_resolve(r, ask)) == NAMED_OUT_OF_MEMORY) out_of_memory(r);
    else r->now->reading.stands = *is == NAMED_NOBODY;
    return !r->now->reading.refusal && !r->now->reading.stands;
}

static void read_form(struct request *r)
{
    enum { MODEL, USER, CACHE_KEY, FIELDS };
    static const char *const names[FIELDS] = {"model", "user", "prompt_cache_key"};
    struct kvr_form_field v[FIELDS];
    enum named_model named;
    const char *why = kvr_form_pick(r->body->data, r->body_len, r->now->reading.boundary, names, FIELDS, v);
    if (!why && v[MODEL].times > 1) why = "`model` is given more than once";
    if (why) {
        refuse_body(r, 400, why);
        return;
    }
    const struct kvr_form_field *session = v[USER].len ? &v[USER] : &v[CACHE_KEY];
    struct kvr_text model = {v[MODEL].ptr, v[MODEL].len};
    (void)take_model(r, &(struct named_ask){.model = model, .session = {session->ptr, session->len}, .place = model}, &named);
}

static struct named_ask ask_of(const struct kvr_openai_request *rq)
{
    static const char *const members[] = {"user", "prompt_cache_key"};
    struct named_ask ask = {.model = {rq->model, rq->model_len}, .tokens_n = rq->tokens_n};
    for (size_t i = 0; i < KVR_ARRAY_LEN(members) && !ask.session.len; i++)
        (void)kvr_json_as_str(kvr_json_get(rq->root, members[i]), &ask.session.ptr, &ask.session.len);
    return ask;
}

/* Engines read `prompt` in completions alone. */
static void keep_to_form(const struct request *r, struct kvr_openai_request *rq)
{
    if (r->form == KVR_FORM_COMPLETION || rq->tokens_are_told) return;
    rq->tokens = (struct kvr_json){0};
    rq->tokens_n = rq->tokens_sum = 0;
    if (r->form == KVR_FORM_GENERATE) kvr_openai_take_prompt(rq, kvr_json_get(rq->root, "input_ids"));
}

/* Returns: false: it is refused. */
static bool parse(struct request *r, struct kvr_json_parser *json, enum kvr_json_wanted wanted, struct kvr_openai_request *rq)
{
    const char *why = "out of memory";
    int rc = json ? kvr_openai_parse(json, r->body ? r->body->data : NULL, r->body_len, wanted, rq, &why) : -KVR_ENOMEM;
    if (rc) refuse_body(r, rc == -KVR_ENOMEM ? 503 : 400, why);
    if (rc == 0) keep_to_form(r, rq);
    return rc == 0;
}

/* Who is not routed by its tokens has no use for what the prompt says. The model may say something else of that, once it is known. */
static enum kvr_json_wanted wanted_of(const struct request *r)
{
    return request_wants_tokens(r) ? KVR_JSON_NO_ELEMENTS : KVR_JSON_NO_PROMPT;
}

/* Ids that a client tells beside its prompt are its word: of the rest of the body the estimate holds, as where no ids are known. */
static uint64_t least_prompt(const struct request *r)
{
    const char *end = r->body->data + r->body_len;
    struct kvr_json_span body = {kvr_json_text_space(r->body->data, end), end};
    struct kvr_json_span ids = kvr_json_text_last(kvr_json_text_last(body, "nvext"), "token_data");
    return (r->body_len - (size_t)(ids.end - ids.at)) / 4;
}

/* What routing needs of a JSON body, or what is wrong with it. May run on a thread: see the top. */
static void read_json(struct request *r, struct kvr_json_parser *json)
{
    struct kvr_openai_request rq;
    enum named_model named;
    enum kvr_json_wanted wanted = wanted_of(r);
    if (!parse(r, json, wanted, &rq)) return;
    struct named_ask ask = ask_of(&rq);
    if (!take_model(r, &ask, &named)) return;
    if ((named == NAMED_ANOTHER || wanted_of(r) < wanted) && !parse(r, json, wanted_of(r), &rq)) return;
    take_members(r, &rq);
    if (r->routed && workers_have_roles(data_of(r)->workers)) read_split(r);
    rq.text_max = data_of(r)->o->max_prompt_text;
    if (!r->routed || !is_small_enough(r, &rq)) return;
    if (rq.tokens.doc) r->isl = rq.tokens_sum ? rq.tokens_sum : rq.tokens_n;
    if (rq.tokens_are_told && r->admission.key) r->admission.prompt_least = KVR_MAX(least_prompt(r), rq.beside_n);
    if (!request_wants_tokens(r)) return;
    kvr_prompt_members_read(rq.root, r->form, &rq.members);
    r->members = rq.members;
    body_tokens(r, &rq, json);
    if (!r->now->reading.refusal) find_objects(r, &rq);
}

/* ---- the phase --------------------------------------------------------------------------------------- */

/* A rank in the body counts as one in the header. Returns: what is wrong, or NULL. */
static const char *join_ranks(struct request *r)
{
    if (r->now->reading.rank_error || !r->body_rank.given) return r->now->reading.rank_error;
    if (r->pin.has_rank && r->pin.to.dp_rank != r->body_rank.rank)
        return "`data_parallel_rank` (or `routed_dp_rank`) of the body and the data-parallel rank header are different ranks; give one, or "
               "the same";
    r->pin.has_rank = true;
    r->pin.to.dp_rank = r->body_rank.rank;
    return NULL;
}

/* A rank without a worker: meaningful when one worker is there. */
static const char *pin_rank_alone(struct request *r)
{
    struct data_plane *data = data_of(r);
    const char *why = NULL;
    if (!r->pin.has_rank || r->pin.set) return NULL;
    workers_lock(data->workers);
    const struct worker *w = workers_first(data->workers);
    if (w && !w->next) {
        r->pin.to.worker_id = w->id;
        r->pin.set = true;
    } else if (w) {
        why = "a data-parallel rank needs the worker too (x-kvroute-worker)";
    }
    workers_unlock(data->workers);
    return why;
}

/* From its arrival on. */
static void limit_total(struct request *r)
{
    double seconds = r->options.values[MODEL_TOTAL_TIMEOUT];
    r->total_deadline_ms = seconds > 0 ? r->arrived_ms + (uint64_t)(seconds * 1000) + 1 : 0;
    request_arm(r);
}

/* Limits of a key may be those of a model, and of what cannot be read here an engine might read another one. Of a form every engine reads
 * its model. */
static bool must_be_read(const struct request *r)
{
    return r->routed || r->now->reading.is_form || (r->admission.key && r->body_len);
}

static enum outcome body_is_read(struct request *r)
{
    const struct reading *reading = &r->now->reading;
    const char *why = NULL;
    if (reading->stands) {
        if (r->refusal.status == 503) COUNT(r, overload_rejections_total);
        return OUTCOME_REFUSED;
    }
    if (reading->refused_by) atomic_fetch_add_explicit(reading->refused_by, 1, memory_order_relaxed);
    if (reading->refusal && (reading->refusal == 503 || must_be_read(r))) /* other bodies are the engine's business */
        return request_refusef(r, reading->refusal, "%s", reading->refused);
    if ((why = join_ranks(r)) || (why = pins_join(r, &reading->pins)) || (why = pin_rank_alone(r))) return request_refuse(r, 400, why);
    if (model_option_is_set(&r->options, MODEL_TOTAL_TIMEOUT)) limit_total(r);
    if (!r->isl) r->isl = KVR_MAX(r->body_len / 4, (size_t)1); /* until tokens are known */
    return OUTCOME_DONE;
}

static void run_reading(struct request *r)
{
    struct kvr_json_parser *json = r->now->reading.is_form ? NULL : kvr_json_parser_new(); /* its memory goes with it */
    if (r->now->reading.is_form) read_form(r);
    else read_json(r, json);
    kvr_json_parser_free(json);
}

/* Returns: what is wrong with a form's boundary, or NULL. */
static const char *look_for_form(struct request *r)
{
    struct reading *reading = &r->now->reading;
    const struct kvr_headers *h = kvr_http_conn_request(r->conn)->headers;
    const char *why = NULL;
    size_t types = 0;
    for (size_t i = 0; i < h->n; i++) {
        struct kvr_text type = kvr_headers_value(h, i);
        if (!kvr_text_is_nocase(kvr_headers_name(h, i), "content-type")) continue;
        types++;
        if (!kvr_form_is(type.ptr, type.len)) continue;
        reading->is_form = true;
        why = kvr_form_boundary(type.ptr, type.len, reading->boundary);
    }
    return reading->is_form && types > 1 ? "a form must have one Content-Type" : why;
}

enum outcome body_begin(struct request *r)
{
    const char *why = !r->routed && r->body_len ? look_for_form(r) : NULL;
    if (why) return request_refuse(r, 400, why);
    if (r->body_len > KVR_JOB_BYTES) return request_work(r, &r->now->reading.job, run_reading, body_is_read);
    if (r->now->reading.is_form) read_form(r);
    else if (r->routed || r->body_len) read_json(r, r->loop->json);
    return body_is_read(r);
}
