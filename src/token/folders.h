/* SPDX-License-Identifier: Apache-2.0 */
/* Where the tokenizer of a model lies on this machine; nothing is downloaded. Threads: any that calls; reads the file system. */
#ifndef KVR_TOKEN_FOLDERS_H
#define KVR_TOKEN_FOLDERS_H

#include <stdbool.h>
#include <stddef.h>

enum { KVR_FOLDER_MAX = 1024 };

/* `root` as /v1/models tells it: a folder of this machine, or a name that the hub's cache has a snapshot of (HF_HUB_CACHE, HF_HOME/hub,
 * ~/.cache/huggingface/hub). Returns: whether there is one with a tokenizer.json. */
bool kvr_folder_of_root(const char *root, char out[KVR_FOLDER_MAX]);

#endif
