/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net/http/digest.h says what this is. The algorithm is looked up in OpenSSL once: doing it again for each digest would take twice as long
 * as the digest of a key itself. It is set once and never freed, so any thread may use it.
 */
#include "net/http/digest.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <pthread.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const EVP_MD *sha256;

static void look_up(void)
{
    const EVP_MD *fetched = EVP_MD_fetch(NULL, "SHA256", NULL);
    sha256 = fetched ? fetched : EVP_sha256();
}

bool kvr_digest(const void *data, size_t len, unsigned char out[KVR_DIGEST])
{
    pthread_once(&once, look_up);
    return EVP_Digest(data, len, out, NULL, sha256, NULL) == 1;
}

bool kvr_digest_same(const unsigned char a[KVR_DIGEST], const unsigned char b[KVR_DIGEST])
{
    return CRYPTO_memcmp(a, b, KVR_DIGEST) == 0;
}
