/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libkvroute: a KV-cache-aware router as a library. Includes every public header.
 *
 *   hash.h    tokens -> local hashes -> sequence hashes
 *   index.h   who holds which blocks
 *   load.h    active sequences: what each worker is busy with
 *   select.h  cost of a candidate, and the choice
 *   disagg.h  one worker or two legs
 *   router.h  all of it behind one call
 *   pair.h    two routers: a worker that computes the prompt, one that goes on from it
 *
 * The library opens no socket and no file and starts no thread.
 */
#ifndef KVROUTE_KVROUTE_H
#define KVROUTE_KVROUTE_H

#include <kvroute/alloc.h>
#include <kvroute/api.h>
#include <kvroute/clock.h>
#include <kvroute/disagg.h>
#include <kvroute/error.h>
#include <kvroute/event.h>
#include <kvroute/generation_model.h>
#include <kvroute/hash.h>
#include <kvroute/index.h>
#include <kvroute/load.h>
#include <kvroute/local_index.h>
#include <kvroute/pair.h>
#include <kvroute/router.h>
#include <kvroute/select.h>
#include <kvroute/types.h>

#endif
