/* SPDX-License-Identifier: Apache-2.0 */
/* What commands say of themselves: the texts in help/, which the build embeds. Those of programs with an option table end where the table
 * begins (options_help.c). */
#ifndef KVR_CLI_HELP_H
#define KVR_CLI_HELP_H

extern const char help_check[];
extern const char help_completion[];
extern const char help_curve_key[];
extern const char help_doctor[];
extern const char help_hash[];
extern const char help_indexer[];
extern const char help_kvroute[]; /* of the file kvroute.yaml */
extern const char help_man[];
extern const char help_mock[];
extern const char help_publish[];
extern const char help_replay[];
extern const char help_replay_events[];
extern const char help_epp[];
extern const char help_select[];
extern const char help_serve[];
extern const char help_top[];

#endif
