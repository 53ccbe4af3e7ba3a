/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Templates that write the date: an engine's prompt and the one made here are of two days when one was made before midnight and the other
 * behind it. Such a difference says nothing of the tokenizer, so within a minute of midnight none is looked at.
 *
 * Midnight is that of the machine's time zone, which is the template's. An engine in another zone has another date for hours: that is a
 * difference that counts, and the model is refused.
 *
 * Ids that are kept are of the day on which they were made, here or by an engine, whose template nobody need know.
 */
#ifndef KVR_TOKEN_DATES_H
#define KVR_TOKEN_DATES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

enum { KVR_DATE_TURNS_S = 60 };

/* Whether the local time is less than a minute before or behind midnight. */
bool kvr_date_turns(const struct tm *local);
/* The local day: another number for each. */
uint64_t kvr_date_today(void);
/* What the library says of a folder (kvr_tok_info, JSON): whether its template writes the date. */
bool kvr_info_has_dates(const char *info, size_t len);

#endif
