/* SPDX-License-Identifier: Apache-2.0 */
/* What is known of the tiers behind a rank's device. Threads: any. */
#pragma once

#include <kvroute/index.h>

#include "recover/consumer/view.h"

/* WHOLE: all that its events told has a place and nothing was given up, in a view that is whole. PARTIAL: what is there is held, more may
 * be. UNKNOWN: no event has told of the tier, or the view is unknown. */
enum kvr_view_knowledge tier_knowledge(const struct kvr_tier_status *t, enum kvr_view_knowledge view);
