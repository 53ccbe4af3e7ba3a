/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether the answers of a worker tell how much of the prompt was cached.
 *
 * A worker whose usage has told since its start means none by leaving it out, in answers of the same form: some engines do where nothing
 * was cached, and some tell in some forms only. One that has not told may have had nothing to tell. But where its view says for sure that
 * there was a hit, and SILENT_MIN times nothing was told, it was started without the flag that makes it: then nobody can compare
 * predictions with answers, and a view that lacks blocks heals by events alone. That is said, once until it is down.
 */
#include "app/serve/workers/engines/usage_reporting.h"

#include "app/serve/workers/table/room.h"
#include "base/log.h"

enum { SILENT_MIN = 5 };

static const char *flag_of(const struct worker *w)
{
    static const char vllm[] = "--enable-prompt-tokens-details", sglang[] = "--enable-cache-report";
    if (w->learnt.facts.engine == KVR_FACT_SGLANG || w->engine == ENGINE_SGLANG) return sglang;
    return w->learnt.facts.engine == KVR_FACT_VLLM ? vllm : "--enable-prompt-tokens-details (vLLM) or --enable-cache-report (SGLang)";
}

bool usage_reporting_note(struct workers *ws, struct worker *w, const struct answer_report *a)
{
    uint32_t form = UINT32_C(1) << a->form;
    bool say = false;
    bool known = (atomic_load(&w->usage_reporting.forms) & form) != 0;
    if (known || (!a->told && !a->sure_hit)) return known; /* nothing to learn: no lock */
    kvr_lock(&ws->lock);
    struct usage_reporting *t = &w->usage_reporting;
    if (a->told && !(t->forms & form)) {
        t->forms |= form;
        t->silent = 0;
    }
    known = (t->forms & form) != 0;
    if (!known && a->sure_hit && t->silent < SILENT_MIN) say = ++t->silent == SILENT_MIN;
    kvr_unlock(&ws->lock);
    if (say)
        kvr_log_warning(
            "kvroute: the answers of worker %llu (%.200s) tell no cached tokens, though %d of them must have had a hit: its predictions "
            "cannot be checked, and its view heals by events alone; start the engine with %s",
            (unsigned long long)w->id, w->url, SILENT_MIN, flag_of(w));
    return known;
}

void usage_reporting_forget_locked(struct worker *w, bool restarted)
{
    w->usage_reporting.forms = 0;
    if (restarted) w->usage_reporting.silent = 0;
}

void usage_reporting_write_locked(const struct worker *w, struct kvr_buf *b)
{
    bool silent = w->usage_reporting.silent >= SILENT_MIN;
    kvr_json_put_str(b, "cached_tokens", silent ? "left out" : w->usage_reporting.forms ? "told" : "not told yet");
    if (silent) kvr_json_put_str(b, "cached_tokens_flag", flag_of(w));
}
