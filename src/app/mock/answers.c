/* SPDX-License-Identifier: Apache-2.0 */
/* The answers of the four APIs that generate, whole and as streams, with the members that vLLM's have. */
#include "app/mock/generate.h"

#include <string.h>
#include <time.h>

#define FINGERPRINT "vllm-" MOCK_VLLM_VERSION "-mock"

/* ---- parts ------------------------------------------------------------------------------------------- */

struct counts {
    uint64_t prompt, generated, cached, created;
    bool details;
};

static struct counts count(const struct mock_exchange *x)
{
    const struct mock_options *o = x->rank->mock->o;
    struct counts c = {.cached = x->told_cached, .details = o->prompt_tokens_details};
    for (size_t i = 0; i < x->ask.prompts_n; i++) c.prompt += x->ask.prompts[i].n;
    for (uint32_t i = 0; i < x->sequences_n; i++) c.generated += x->sequences[i].generated;
    uint64_t full = x->ask.prompts[0].n / o->block_size * o->block_size;
    c.created = full > c.cached && o->prefix_caching ? full - c.cached : 0;
    return c;
}

static void put_tokens(struct kvr_buf *b, uint64_t prompt, uint64_t generated)
{
    kvr_json_printf(b, "'usage':{'prompt_tokens':%ju,'total_tokens':%ju,'completion_tokens':%ju", prompt, prompt + generated, generated);
}

/* whole: an answer that is no stream has the members that are null, too. */
static void put_usage(struct kvr_buf *b, const struct mock_exchange *x, bool whole)
{
    struct counts c = count(x);
    put_tokens(b, c.prompt, c.generated);
    if (c.details) {
        kvr_json_printf(b, "'prompt_tokens_details':{'cached_tokens':%ju", c.cached);
        if (x->ask.api == MOCK_CHAT) kvr_json_printf(b, "'created_cache_tokens':%ju", c.created);
        else if (whole) kvr_json_printf(b, "'created_cache_tokens':null");
        kvr_json_printf(b, whole ? "'multimodal_tokens':null}" : "}");
    } else if (whole) {
        kvr_json_printf(b, "'prompt_tokens_details':null");
    }
    kvr_json_printf(b, whole ? "'completion_tokens_details':null}" : "}");
}

static void put_head(struct kvr_buf *b, const struct mock_exchange *x, bool chunk)
{
    bool chat = x->ask.api == MOCK_CHAT;
    kvr_json_printf(b, chat ? "'id':'chatcmpl-%ju'" : "'id':'cmpl-%ju'", x->id);
    kvr_json_printf(b, "'object':%s,'created':%ju,'model':%s",
                    !chat   ? "text_completion"
                    : chunk ? "chat.completion.chunk"
                            : "chat.completion",
                    (uintmax_t)time(NULL), x->ask.model);
}

/* The hand-off to the engine that generates. */
static void put_transfer(struct kvr_buf *b, const struct mock_exchange *x)
{
    kvr_json_key(b, "kv_transfer_params");
    if (x->rank->mock->o->kv_protocol != MOCK_KV_NIXL) kvr_json_null(b);
    else if (x->sequences[0].kept || (x->ask.kv.leg == MOCK_KV_KEEPS && x->rank->mock->o->fault_bad_handoff)) mock_kv_put_params(b, x);
    else kvr_json_null(b);
}

/* A context leg of a TensorRT-LLM tells its hand-off in the choice, and the tokens of its prompt. */
static bool is_context(const struct mock_exchange *x)
{
    return x->ask.kv.leg == MOCK_KV_KEEPS && x->ask.kv.disagg_id;
}

static void put_context(struct kvr_buf *b, const struct mock_exchange *x)
{
    if (!is_context(x)) return;
    kvr_json_key(b, "disaggregated_params");
    if (x->rank->mock->o->fault_no_handoff) kvr_json_null(b);
    else mock_kv_put_trtllm(b, x);
}

static void put_finish(struct kvr_buf *b, bool last)
{
    kvr_json_printf(b, "'finish_reason':%p", last ? "length" : NULL);
}

/* Every token is told to be as likely as the next one: only the shape is right. */
static void put_completion_logprobs(struct kvr_buf *b, const char *text, size_t n, bool first_is_null)
{
    kvr_json_printf(b, "'logprobs':{'text_offset':[");
    for (size_t i = 0; i < n; i++) kvr_json_u64(b, i);
    kvr_json_printf(b, "],'token_logprobs':[");
    for (size_t i = 0; i < n; i++) kvr_json_printf(b, i == 0 && first_is_null ? "null" : "-1.5");
    kvr_json_printf(b, "],'tokens':[");
    for (size_t i = 0; i < n; i++) kvr_json_str(b, text + i, 1);
    kvr_json_printf(b, "],'top_logprobs':[");
    for (size_t i = 0; i < n; i++) kvr_json_null(b);
    kvr_json_printf(b, "]}");
}

static void put_chat_logprobs(struct kvr_buf *b, const char *text, size_t n)
{
    kvr_json_printf(b, "'logprobs':{'content':[");
    for (size_t i = 0; i < n; i++)
        kvr_json_printf(b, "{'token':%.*s,'logprob':-1.5,'bytes':[%u],'top_logprobs':[]}", 1, text + i, (unsigned char)text[i]);
    kvr_json_printf(b, "]}");
}

/* The prompt as text, then what is behind it. */
static void prompt_text(struct kvr_buf *out, const struct mock_sequence *s)
{
    for (size_t i = 0; i < s->prompt->n; i++) {
        char c = mock_char(s->prompt->tokens[i]);
        kvr_buf_add(out, &c, 1);
    }
}

static void put_prompt_logprobs(struct kvr_buf *b, const struct mock_sequence *s)
{
    kvr_json_printf(b, "'prompt_logprobs':[");
    for (size_t i = 0; i < s->prompt->n; i++) {
        if (i == 0) kvr_json_null(b);
        else kvr_json_printf(b, "{'%u':{'logprob':-1.5,'rank':1}}", (unsigned)s->prompt->tokens[i]);
    }
    kvr_json_printf(b, "]");
}

/* ---- completions and chat: whole --------------------------------------------------------------------- */

static void put_completion_choice(struct kvr_buf *b, const struct mock_exchange *x, const struct mock_sequence *s)
{
    struct kvr_buf text = {0};
    bool echo = x->ask.echo;
    if (echo) prompt_text(&text, s);
    kvr_buf_add(&text, s->text.data, s->text.len);
    kvr_json_printf(b, "'text':%.*s", (int)text.len, text.data);
    if (x->ask.logprobs) put_completion_logprobs(b, text.data, text.len, echo);
    else kvr_json_printf(b, "'logprobs':null");
    put_finish(b, true);
    kvr_json_printf(b, "'stop_reason':null,'token_ids':null");
    if (x->ask.prompt_logprobs) put_prompt_logprobs(b, s);
    else kvr_json_printf(b, "'prompt_logprobs':null");
    kvr_json_printf(b, "'prompt_token_ids':null,'routed_experts':null");
    kvr_buf_free(&text);
}

static void put_chat_choice(struct kvr_buf *b, const struct mock_exchange *x, const struct mock_sequence *s)
{
    kvr_json_printf(b,
                    "'message':{'role':'assistant','content':%.*s,'refusal':null,'annotations':null,'audio':null,'function_call':null,"
                    "'reasoning':null}",
                    (int)s->text.len, s->text.data);
    if (x->ask.logprobs) put_chat_logprobs(b, s->text.data, s->text.len);
    else kvr_json_printf(b, "'logprobs':null");
    put_finish(b, true);
    kvr_json_printf(b, "'stop_reason':null,'token_ids':null,'routed_experts':null");
}

static void put_openai_answer(struct kvr_buf *b, struct mock_exchange *x)
{
    bool chat = x->ask.api == MOCK_CHAT;
    put_head(b, x, false);
    kvr_json_printf(b, "'choices':[");
    for (uint32_t i = 0; i < x->sequences_n; i++) {
        kvr_json_printf(b, "{'index':%u", i);
        if (chat) put_chat_choice(b, x, &x->sequences[i]);
        else put_completion_choice(b, x, &x->sequences[i]);
        put_context(b, x);
        kvr_json_printf(b, "}");
    }
    kvr_json_printf(b, "],'service_tier':null,'system_fingerprint':'" FINGERPRINT "'");
    put_usage(b, x, true);
    if (chat && x->ask.prompt_logprobs) put_prompt_logprobs(b, &x->sequences[0]);
    else if (chat) kvr_json_printf(b, "'prompt_logprobs':null");
    if (is_context(x) || chat) kvr_json_key(b, "prompt_token_ids");
    if (is_context(x)) kvr_json_u32s(b, x->ask.prompts[0].tokens, x->ask.prompts[0].n);
    else if (chat) kvr_json_null(b);
    if (chat) kvr_json_printf(b, "'prompt_text':null");
    put_transfer(b, x);
    kvr_json_printf(b, "'ec_transfer_params':null,'metrics':null");
}

/* ---- completions and chat: streams ------------------------------------------------------------------- */

static void data_begin(struct kvr_buf *b)
{
    kvr_buf_str(b, "data: {");
    b->comma = false;
}

static void data_end(struct kvr_buf *b)
{
    kvr_buf_str(b, "}\n\n");
    b->comma = false;
}

static void put_continuous_usage(struct kvr_buf *b, const struct mock_exchange *x, const struct mock_prompt *prompt, uint64_t generated)
{
    if (!x->ask.continuous_usage) return;
    put_tokens(b, prompt->n, generated);
    kvr_json_printf(b, "}");
}

/* A chat begins with the role, in a piece of its own. */
static void put_roles(struct kvr_buf *b, const struct mock_exchange *x)
{
    for (uint32_t i = 0; i < x->sequences_n; i++) {
        data_begin(b);
        put_head(b, x, true);
        kvr_json_printf(b, "'choices':[{'index':%u,'delta':{'role':'assistant','content':''},'logprobs':null,'finish_reason':null}]", i);
        put_continuous_usage(b, x, x->sequences[i].prompt, 0);
        kvr_json_printf(b, "'prompt_token_ids':null,'prompt_text':null");
        data_end(b);
    }
}

static void put_openai_token(struct kvr_buf *b, const struct mock_exchange *x, const struct mock_sequence *s, uint32_t token, bool last)
{
    bool chat = x->ask.api == MOCK_CHAT;
    struct kvr_buf text = {0};
    char c = mock_char(token);
    if (x->ask.echo && s->generated == 1) prompt_text(&text, s);
    kvr_buf_add(&text, &c, 1);
    data_begin(b);
    put_head(b, x, true);
    kvr_json_printf(b, "'choices':[{'index':%u", s->index);
    kvr_json_printf(b, chat ? "'delta':{'content':%.*s}" : "'text':%.*s", (int)text.len, text.data);
    if (x->ask.logprobs && chat) put_chat_logprobs(b, &c, 1);
    else if (x->ask.logprobs) put_completion_logprobs(b, text.data, text.len, text.len > 1);
    else kvr_json_printf(b, "'logprobs':null");
    put_finish(b, last);
    if (!chat || last) kvr_json_printf(b, "'stop_reason':null");
    if (!chat) kvr_json_printf(b, "'prompt_token_ids':null");
    kvr_json_printf(b, "'token_ids':null}]");
    put_continuous_usage(b, x, s->prompt, s->generated);
    if (last && !x->ask.include_usage) kvr_json_printf(b, "'system_fingerprint':'" FINGERPRINT "'");
    data_end(b);
    kvr_buf_free(&text);
}

static void put_openai_end(struct kvr_buf *b, const struct mock_exchange *x)
{
    if (x->ask.include_usage) {
        data_begin(b);
        put_head(b, x, true);
        kvr_json_printf(b, "'choices':[]");
        put_usage(b, x, false);
        kvr_json_printf(b, "'system_fingerprint':'" FINGERPRINT "'");
        data_end(b);
    }
    kvr_buf_str(b, "data: [DONE]\n\n");
}

/* ---- /v1/responses ----------------------------------------------------------------------------------- */

/* What is cached is told with and without --enable-prompt-tokens-details. */
static void put_response_usage(struct kvr_buf *b, const struct mock_exchange *x)
{
    struct counts c = count(x);
    kvr_json_printf(b,
                    "'usage':{'input_tokens':%ju,'input_tokens_details':{'cached_tokens':%ju,'cache_write_tokens':%ju,"
                    "'input_tokens_per_turn':[],'cached_tokens_per_turn':[]},'output_tokens':%ju,'output_tokens_details':{"
                    "'reasoning_tokens':0,'tool_output_tokens':0,'output_tokens_per_turn':[],'tool_output_tokens_per_turn':[]},"
                    "'total_tokens':%ju}",
                    c.prompt, c.cached, c.created, c.generated, c.prompt + c.generated);
}

/* text NULL: nothing yet. */
static void put_response_part(struct kvr_buf *b, const struct kvr_buf *text)
{
    kvr_json_printf(b, "{'annotations':[],'text':%.*s,'type':'output_text'", text ? (int)text->len : 0, text ? text->data : "");
    kvr_json_printf(b, text ? "'logprobs':null}" : "'logprobs':[]}");
}

static void put_response_item(struct kvr_buf *b, const struct mock_exchange *x, bool done)
{
    kvr_json_printf(b, "{'id':'msg_%jx','content':[", x->id);
    if (done) put_response_part(b, &x->sequences[0].text);
    kvr_json_printf(b, "],'role':'assistant','status':%s,'type':'message','phase':null}", done ? "completed" : "in_progress");
}

/* Members of the object; the braces are the caller's. */
static void put_response(struct kvr_buf *b, const struct mock_exchange *x, bool done)
{
    kvr_json_printf(b, "'id':'resp_%jx','created_at':%ju", x->id, (uintmax_t)time(NULL));
    kvr_json_printf(b, done ? "'incomplete_details':{'reason':'max_output_tokens'}" : "'incomplete_details':null");
    kvr_json_printf(b, "'instructions':null,'metadata':null,'model':%s,'object':'response','output':[", x->ask.model);
    if (done) put_response_item(b, x, true);
    kvr_json_printf(b,
                    "],'parallel_tool_calls':true,'temperature':1,'tool_choice':'none','tools':[],'top_p':1,'background':false,"
                    "'max_output_tokens':%ju,'max_tool_calls':null,'previous_response_id':null,'prompt':null,'reasoning':null,"
                    "'service_tier':'auto','status':%s,'text':null,'top_logprobs':null,'truncation':'disabled'",
                    x->ask.max_tokens, done ? "incomplete" : "in_progress");
    if (done) put_response_usage(b, x);
    else kvr_json_printf(b, "'usage':null");
    kvr_json_printf(b, "'user':null,'presence_penalty':0,'frequency_penalty':0");
    put_transfer(b, x);
    kvr_json_printf(b, "'ec_transfer_params':null,'input_messages':null,'output_messages':null");
}

static void event_begin(struct kvr_buf *b, const char *name)
{
    kvr_buf_printf(b, "event: %s\n", name);
    data_begin(b);
}

static void response_event_end(struct kvr_buf *b, struct mock_exchange *x, const char *name)
{
    kvr_json_printf(b, "'sequence_number':%ju,'type':%s", x->number++, name);
    data_end(b);
}

static void put_response_object(struct kvr_buf *b, struct mock_exchange *x, const char *name, bool done)
{
    event_begin(b, name);
    kvr_json_printf(b, "'response':{");
    put_response(b, x, done);
    kvr_json_printf(b, "}");
    response_event_end(b, x, name);
}

/* An event about the item as a whole. */
static void put_item_event(struct kvr_buf *b, struct mock_exchange *x, const char *name, bool done)
{
    event_begin(b, name);
    kvr_json_key(b, "item");
    put_response_item(b, x, done);
    kvr_json_printf(b, "'output_index':0");
    response_event_end(b, x, name);
}

/* One about its only part. */
static void put_part_event(struct kvr_buf *b, struct mock_exchange *x, const char *name, bool done)
{
    event_begin(b, name);
    kvr_json_printf(b, "'content_index':0,'item_id':'msg_%jx','part':", x->id);
    put_response_part(b, done ? &x->sequences[0].text : NULL);
    kvr_json_printf(b, "'output_index':0");
    response_event_end(b, x, name);
}

/* One with a piece of its text, or all of it. */
static void put_text_event(struct kvr_buf *b, struct mock_exchange *x, const char *name, const char *member, const char *text, size_t n)
{
    event_begin(b, name);
    kvr_json_printf(b, "'content_index':0,'item_id':'msg_%jx'", x->id);
    kvr_json_key(b, member);
    kvr_json_str(b, text, n);
    kvr_json_printf(b, "'logprobs':[],'output_index':0");
    response_event_end(b, x, name);
}

static void put_response_end(struct kvr_buf *b, struct mock_exchange *x)
{
    const struct kvr_buf *text = &x->sequences[0].text;
    put_text_event(b, x, "response.output_text.done", "text", text->data, text->len);
    put_part_event(b, x, "response.content_part.done", true);
    put_item_event(b, x, "response.output_item.done", true);
    put_response_object(b, x, "response.completed", true);
}

/* ---- /v1/messages ------------------------------------------------------------------------------------ */

static void put_messages_usage(struct kvr_buf *b, const struct mock_exchange *x)
{
    struct counts c = count(x);
    uint64_t fresh = c.details ? c.prompt - c.cached - c.created : c.prompt;
    kvr_json_printf(b, "'usage':{'input_tokens':%ju,'output_tokens':%ju", fresh, c.generated);
    if (c.details) kvr_json_printf(b, "'cache_creation_input_tokens':%ju,'cache_read_input_tokens':%ju", c.created, c.cached);
    kvr_json_printf(b, "}");
}

static void put_message(struct kvr_buf *b, const struct mock_exchange *x)
{
    const struct kvr_buf *text = &x->sequences[0].text;
    kvr_json_printf(b,
                    "'id':'chatcmpl-%ju','type':'message','role':'assistant','content':[{'type':'text','text':%.*s}],'model':%s,"
                    "'stop_reason':'max_tokens'",
                    x->id, (int)text->len, text->data, x->ask.model);
    put_messages_usage(b, x);
}

static void put_message_begin(struct kvr_buf *b, const struct mock_exchange *x)
{
    event_begin(b, "message_start");
    kvr_json_printf(b,
                    "'type':'message_start','message':{'id':'chatcmpl-%ju','type':'message','role':'assistant','content':[],'model':%s,"
                    "'stop_reason':null,'stop_sequence':null,'usage':{'input_tokens':%zu,'output_tokens':0}}",
                    x->id, x->ask.model, x->ask.prompts[0].n);
    data_end(b);
    event_begin(b, "content_block_start");
    kvr_json_printf(b, "'type':'content_block_start','content_block':{'type':'text','text':''},'index':0");
    data_end(b);
}

static void put_message_token(struct kvr_buf *b, char c)
{
    event_begin(b, "content_block_delta");
    kvr_json_printf(b, "'type':'content_block_delta','delta':{'type':'text_delta','text':%.*s},'index':0", 1, &c);
    data_end(b);
}

static void put_message_end(struct kvr_buf *b, const struct mock_exchange *x)
{
    event_begin(b, "content_block_stop");
    kvr_json_printf(b, "'type':'content_block_stop','index':0");
    data_end(b);
    event_begin(b, "message_delta");
    kvr_json_printf(b, "'type':'message_delta','delta':{'stop_reason':'max_tokens','stop_sequence':null}");
    put_messages_usage(b, x);
    data_end(b);
    event_begin(b, "message_stop");
    kvr_json_printf(b, "'type':'message_stop'");
    data_end(b);
}

/* ---- interface --------------------------------------------------------------------------------------- */

void mock_put_stream_begin(struct kvr_buf *b, struct mock_exchange *x)
{
    if (x->ask.api == MOCK_CHAT) put_roles(b, x);
    if (x->ask.api == MOCK_MESSAGES) put_message_begin(b, x);
    if (x->ask.api != MOCK_RESPONSES) return;
    put_response_object(b, x, "response.created", false);
    put_response_object(b, x, "response.in_progress", false);
    put_item_event(b, x, "response.output_item.added", false);
    put_part_event(b, x, "response.content_part.added", false);
}

void mock_put_stream_token(struct kvr_buf *b, struct mock_exchange *x, const struct mock_sequence *s, uint32_t token, bool last)
{
    char c = mock_char(token);
    if (x->ask.api == MOCK_RESPONSES) put_text_event(b, x, "response.output_text.delta", "delta", &c, 1);
    else if (x->ask.api == MOCK_MESSAGES) put_message_token(b, c);
    else put_openai_token(b, x, s, token, last);
}

void mock_put_stream_end(struct kvr_buf *b, struct mock_exchange *x)
{
    if (x->ask.api == MOCK_RESPONSES) put_response_end(b, x);
    else if (x->ask.api == MOCK_MESSAGES) put_message_end(b, x);
    else put_openai_end(b, x);
}

void mock_put_stream_error(struct kvr_buf *b, struct mock_exchange *x, const struct mock_error *e)
{
    if (x->ask.api == MOCK_RESPONSES || x->ask.api == MOCK_MESSAGES) kvr_buf_str(b, "event: error\n");
    kvr_buf_str(b, "data: ");
    b->comma = false;
    mock_put_api_error(b, x->ask.api, e);
    kvr_buf_str(b, "\n\n");
    b->comma = false;
    if (x->ask.api == MOCK_COMPLETIONS || x->ask.api == MOCK_CHAT) kvr_buf_str(b, "data: [DONE]\n\n");
}

void mock_put_answer(struct kvr_buf *b, struct mock_exchange *x)
{
    kvr_json_printf(b, "{");
    if (x->ask.api == MOCK_RESPONSES) put_response(b, x, true);
    else if (x->ask.api == MOCK_MESSAGES) put_message(b, x);
    else put_openai_answer(b, x);
    kvr_json_printf(b, "}");
}

void mock_put_api_error(struct kvr_buf *b, enum mock_api api, const struct mock_error *e)
{
    if (api != MOCK_MESSAGES || strcmp(e->type, "Bad Request") == 0) {
        mock_put_error(b, e);
        return;
    }
    kvr_json_printf(b, "{'type':'error','error':{'type':%s,'message':%s}}", e->type, e->message);
}
