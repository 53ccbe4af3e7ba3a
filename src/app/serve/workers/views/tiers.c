/* SPDX-License-Identifier: Apache-2.0 */
/* What is known of a rank's lower tiers: tiers.h. */
#include "app/serve/workers/views/tiers.h"

enum kvr_view_knowledge tier_knowledge(const struct kvr_tier_status *t, enum kvr_view_knowledge view)
{
    bool told = t->blocks || t->removes || t->unplaced || t->given_up;
    if (!told || view == KVR_VIEW_UNKNOWN) return KVR_VIEW_UNKNOWN;
    return view == KVR_VIEW_WHOLE && !t->unplaced && !t->given_up ? KVR_VIEW_WHOLE : KVR_VIEW_PARTIAL;
}
