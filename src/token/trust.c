/* SPDX-License-Identifier: Apache-2.0 */
/* The states of a tokenizer: trust.h has the drawing. */
#include "token/trust.h"

const char *kvr_trust_name(enum kvr_trust_state s)
{
    static const char *const names[KVR_TRUST_STATES] = {"loading", "probing", "trusted", "suspect", "refused"};
    return names[s];
}

static void enter(struct kvr_trust *t, enum kvr_trust_state s, const char *why)
{
    t->state = s;
    t->why = why;
    t->equal_in_row = t->counts = t->unlike = 0;
}

static void suspect(struct kvr_trust *t, const char *why)
{
    if (t->was_suspect) {
        enter(t, KVR_TRUST_REFUSED, why);
        return;
    }
    t->was_suspect = true;
    enter(t, KVR_TRUST_SUSPECT, why);
}

void kvr_trust_begin(struct kvr_trust *t, unsigned real_wanted)
{
    *t = (struct kvr_trust){.real_wanted = real_wanted, .real_left = real_wanted};
    enter(t, KVR_TRUST_LOADING, "its folder is being read");
}

void kvr_trust_loaded(struct kvr_trust *t, bool ok)
{
    if (t->state != KVR_TRUST_LOADING) return;
    if (ok) enter(t, KVR_TRUST_PROBING, "no engine has been asked yet");
    else enter(t, KVR_TRUST_REFUSED, "its folder cannot be used");
}

void kvr_trust_given(struct kvr_trust *t)
{
    if (t->state == KVR_TRUST_PROBING) enter(t, KVR_TRUST_TRUSTED, "it was said to be the engine's, and no engine can be asked");
}

void kvr_trust_probed(struct kvr_trust *t, bool agrees)
{
    if (t->state == KVR_TRUST_LOADING || t->state == KVR_TRUST_REFUSED) return;
    t->probed = true;
    if (!agrees) enter(t, KVR_TRUST_REFUSED, "an engine answers a built-in question otherwise");
    else if (t->state == KVR_TRUST_PROBING && t->real_left) enter(t, KVR_TRUST_PROBING, "the first requests are compared");
    else if (t->state == KVR_TRUST_PROBING) enter(t, KVR_TRUST_TRUSTED, "an engine answers as it does");
}

void kvr_trust_unlike(struct kvr_trust *t)
{
    if (t->state != KVR_TRUST_LOADING && t->state != KVR_TRUST_REFUSED)
        enter(t, KVR_TRUST_REFUSED, "workers answer a built-in question unlike each other: other engines, releases or settings");
}

void kvr_trust_compared(struct kvr_trust *t, bool agrees, bool other_profile)
{
    switch (t->state) {
    case KVR_TRUST_PROBING:
        if (!t->probed) break;
        if (!agrees) enter(t, KVR_TRUST_REFUSED, "an engine answers one of the first requests otherwise");
        else if (other_profile) t->real_left = t->real_wanted;
        else if (t->real_left && --t->real_left == 0) enter(t, KVR_TRUST_TRUSTED, "an engine answers as it does");
        break;
    case KVR_TRUST_TRUSTED:
        if (!agrees) suspect(t, "an engine answers a request otherwise");
        break;
    case KVR_TRUST_SUSPECT:
        if (!agrees) enter(t, KVR_TRUST_REFUSED, "an engine answers another request otherwise");
        else if (++t->equal_in_row == KVR_TRUST_AGAIN_AFTER) enter(t, KVR_TRUST_TRUSTED, "an engine has answered as it does 32 times");
        break;
    default: break;
    }
}

void kvr_trust_counted(struct kvr_trust *t, bool agrees)
{
    if (t->state != KVR_TRUST_TRUSTED) return;
    t->counts++;
    if (!agrees) t->unlike++;
    if (t->unlike == KVR_TRUST_UNLIKE_COUNTS) suspect(t, "engines count other numbers of prompt tokens");
    else if (t->counts == KVR_TRUST_COUNTS) t->counts = t->unlike = 0;
}

void kvr_trust_doubted(struct kvr_trust *t)
{
    if (t->state == KVR_TRUST_TRUSTED) suspect(t, "prompts do not appear in the engines' events");
}
