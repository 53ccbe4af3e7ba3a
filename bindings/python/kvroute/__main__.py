# SPDX-License-Identifier: Apache-2.0
"""`kvroute` and `python -m kvroute`: this process becomes the program that lies beside this file."""
import os
import sys

# Where the certificates of a system's authorities lie that is not built as Debian is, whose place for them the program's OpenSSL knows.
ELSEWHERE = ("/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem", "/etc/ssl/certs/ca-certificates.crt")


def main():
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kvroute")
    if not os.path.exists(program):
        sys.exit("kvroute: this package was built without the program; `make wheel` builds one that has it")
    if not {"SSL_CERT_FILE", "SSL_CERT_DIR"} & set(os.environ) and not os.path.exists("/usr/lib/ssl/certs"):
        os.environ.update({"SSL_CERT_FILE": path for path in [p for p in ELSEWHERE if os.path.exists(p)][:1]})
    os.execv(program, ["kvroute", *sys.argv[1:]])


if __name__ == "__main__":
    main()
