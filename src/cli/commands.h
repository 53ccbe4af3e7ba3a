/* SPDX-License-Identifier: Apache-2.0 */
/* Subcommands: each parses its options and runs its program. argv[0] is the subcommand's name. */
#ifndef KVR_CLI_COMMANDS_H
#define KVR_CLI_COMMANDS_H

int cmd_serve(int argc, char **argv);
int cmd_select(int argc, char **argv);
int cmd_mock(int argc, char **argv);
int cmd_replay(int argc, char **argv);
int cmd_indexer(int argc, char **argv);
int cmd_publish(int argc, char **argv);
int cmd_check(int argc, char **argv);
int cmd_doctor(int argc, char **argv);
int cmd_replay_events(int argc, char **argv);
int cmd_curve_key(int argc, char **argv);
int cmd_hash(int argc, char **argv);

#endif
