/* SPDX-License-Identifier: Apache-2.0 */
/* Built without nghttp2 (KVR_EXT_PROC=OFF): there is no server. */
#include "net/grpc/grpc.h"

bool kvr_grpc_available(void)
{
    return false;
}
