/* SPDX-License-Identifier: Apache-2.0 */
/* net/http/digest.h says what this is. */
#include "net/http/digest.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

bool kvr_digest(const void *data, size_t len, unsigned char out[KVR_DIGEST])
{
    return EVP_Digest(data, len, out, NULL, EVP_sha256(), NULL) == 1;
}

bool kvr_digest_same(const unsigned char a[KVR_DIGEST], const unsigned char b[KVR_DIGEST])
{
    return CRYPTO_memcmp(a, b, KVR_DIGEST) == 0;
}
