/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of a data directory: written whole or not at all, read as one piece of memory, set aside when they are of no use.
 * Threads: any; two at one path are the caller's business. Errors are texts for the log.
 */
#ifndef KVR_NET_DATA_DIR_H
#define KVR_NET_DATA_DIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum { KVR_PATH_MAX = 4096, KVR_PATH_ERROR_MAX = KVR_PATH_MAX + 256 /* room for an error */ };

/* Makes the directory when it is not there, and takes it for this process alone, until the descriptor that it returns is closed (flock(2)
 * on the file `lock` in it); waits up to patience_ms for one that has it. Returns: -1 with the reason in err: nothing can be written there;
 * or KVR_DATA_DIR_TAKEN, and the reason: another process has it. */
enum { KVR_DATA_DIR_TAKEN = -2, KVR_DATA_DIR_PATIENCE_MS = 5000 /* for one that writes its last */ };
int kvr_data_dir_open(const char *dir, unsigned patience_ms, char *err, size_t cap);

/* Opens it for writing, empty; a new one can be read by its owner alone. Returns: NULL with errno. */
FILE *kvr_owners_file(const char *path);

/* A file that takes the place of another one when it is whole: PATH.tmp until then. */
struct kvr_new_file {
    FILE *f;
    char path[KVR_PATH_MAX], tmp[KVR_PATH_MAX + 8];
};

/* Returns: 0, or -1 with the reason in err. */
int kvr_new_file_open(struct kvr_new_file *n, const char *path, char *err, size_t cap);
/* A kvr_saved_writer's put, with n as its ctx. */
bool kvr_new_file_put(void *n, const void *data, size_t len);
/* ok: everything was put. Synced, renamed, its directory synced; else thrown away. Returns: 0, or -1 with the reason in err: the old file
 * is as it was then. */
int kvr_new_file_close(struct kvr_new_file *n, bool ok, char *err, size_t cap);

/* A file in memory. */
struct kvr_mapped {
    const void *data;
    size_t len;
};

/* Returns: 0, 1 when there is no such file, -1 with the reason in err. An empty file is no bytes. */
int kvr_map_file(const char *path, struct kvr_mapped *out, char *err, size_t cap);
/* The same of one that is open; it stays the caller's. Returns: 0 or -1, with errno. */
int kvr_map_descriptor(int fd, struct kvr_mapped *out);
void kvr_unmap_file(struct kvr_mapped *m);

/* Moves a file that cannot be used out of the way, to PATH.bad-N; says so in the log, as `who`. */
void kvr_set_aside(const char *path, const char *who);

#endif
