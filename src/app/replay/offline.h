/* SPDX-License-Identifier: Apache-2.0 */
/* kvroute replay --offline: the same requests over simulated engines, under every policy, and with more of what could be bought. */
#ifndef KVR_REPLAY_OFFLINE_H
#define KVR_REPLAY_OFFLINE_H

#include "app/replay/replay.h"

/* Returns: an exit code. */
int offline_main(const struct replay_options *o);

#endif
