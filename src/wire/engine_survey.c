/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/engine_survey.h"

const char *kvr_survey_path(enum kvr_survey_step step)
{
    static const char *const paths[] = {"/metrics",         "/kv_event_sources", "/server_info?config_format=json",
                                        "/get_server_info", "/v1/models",        "/v1/completions"};
    return paths[step];
}

static bool is_wanted(const struct kvr_engine_facts *f, enum kvr_survey_step step)
{
    bool enough = f->block_size && f->ranks_n && f->events != KVR_UNTOLD;
    switch (step) {
    case KVR_SURVEY_SERVER_INFO: return !enough || f->engine == KVR_FACT_SGLANG; /* which says what it computes */
    case KVR_SURVEY_OLD_SERVER_INFO: return !f->block_size && f->engine != KVR_FACT_VLLM;
    case KVR_SURVEY_MODELS: return !f->model[0];
    case KVR_SURVEY_RANKS: return f->ranks_n > 1 && f->engine == KVR_FACT_VLLM;
    default: return true;
    }
}

enum kvr_survey_step kvr_survey_next(const struct kvr_engine_facts *f, enum kvr_survey_step step)
{
    do step++;
    while (step < KVR_SURVEY_OVER && !is_wanted(f, step));
    return step;
}

void kvr_survey_rank_question(const char *model, struct kvr_buf *b)
{
    kvr_json_open(b, '{');
    if (model[0]) kvr_json_put_str(b, "model", model);
    kvr_json_key(b, "prompt");
    kvr_buf_str(b, "[0]");
    b->comma = true;
    kvr_json_put_u64(b, "max_tokens", 1);
    kvr_json_close(b, '}');
}

void kvr_survey_answer(struct kvr_engine_facts *f, enum kvr_survey_step step, int status, struct kvr_json_parser *p, const char *text,
                       size_t len)
{
    struct kvr_json root;
    if (step == KVR_SURVEY_RANKS) (void)kvr_engine_facts_rank_range(f, text, len);
    else if (status != 200 || kvr_json_parse(p, text, len, &root, NULL)) return;
    else if (step == KVR_SURVEY_MODELS) (void)kvr_engine_facts_models(f, root);
    else if (step == KVR_SURVEY_SOURCES) (void)kvr_engine_facts_sources(f, root);
    else (void)kvr_engine_facts_server_info(f, p, root);
}
