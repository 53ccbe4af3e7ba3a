/* SPDX-License-Identifier: Apache-2.0 */
/* Symbol visibility and the library version. */
#ifndef KVROUTE_API_H
#define KVROUTE_API_H

#define KVR_VERSION_MAJOR  0
#define KVR_VERSION_MINOR  1
#define KVR_VERSION_PATCH  0
#define KVR_VERSION_STRING "0.1.0"

#if defined(__GNUC__)
#define KVR_API __attribute__((visibility("default")))
#else
#define KVR_API
#endif

#endif
