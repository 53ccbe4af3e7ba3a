/* SPDX-License-Identifier: Apache-2.0 */
/* app/serve/config/file_look.h says what this is. */
#include "app/serve/config/file_look.h"

#include <string.h>
#include <sys/stat.h>

#include "base/base.h"

uint64_t file_look(uint64_t before, const char *path)
{
    struct stat f;
    if (stat(path, &f)) memset(&f, 0, sizeof f); /* that it is not there is a look, too */
    const uint64_t parts[] = {(uint64_t)f.st_dev,         (uint64_t)f.st_ino,          (uint64_t)f.st_size,
                              (uint64_t)f.st_mtim.tv_sec, (uint64_t)f.st_mtim.tv_nsec, (uint64_t)f.st_ctim.tv_sec,
                              (uint64_t)f.st_ctim.tv_nsec};
    for (size_t i = 0; i < KVR_ARRAY_LEN(parts); i++) before = kvr_mix64(before ^ parts[i]) + i;
    return before;
}
