/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether the models of a fleet have prefill workers that are up: pending (there was none yet), active, unavailable (they are gone or
 * down). Each change is one line of the log. A model has a state when it has, or had, a worker with a role.
 *
 * At most ROSTER_ROWS_MAX models, as the roster. Threads: the main loop.
 */
#ifndef KVR_SERVE_DISAGG_STATE_H
#define KVR_SERVE_DISAGG_STATE_H

struct disagg_states;
struct kvr_prom_page;
struct data_plane;

struct disagg_states *disagg_states_create(void); /* NULL: no memory */
void disagg_states_destroy(struct disagg_states *d);
void disagg_states_look(struct data_plane *data);
void disagg_states_metrics(struct data_plane *data, struct kvr_prom_page *b); /* looks first */

#endif
