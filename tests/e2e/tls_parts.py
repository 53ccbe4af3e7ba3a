# SPDX-License-Identifier: Apache-2.0
"""Certificates of tests, made by the openssl program, and contexts of clients."""
import os
import ssl
import subprocess

CURVE = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]


def run(*args):
    subprocess.run(["openssl", *map(str, args)], check=True, capture_output=True)


class Authority:
    """Signs certificates; `file` is its own."""

    def __init__(self, folder, name):
        self.folder, self.name = folder, name
        self.file, self.key = folder / f"{name}-ca.pem", folder / f"{name}-ca.key"
        run("req", "-x509", *CURVE, "-days", 2, "-subj", f"/CN={name}", "-keyout", self.key, "-out", self.file)

    def sign(self, name, san="IP:127.0.0.1,DNS:localhost", days=2):
        """Returns: the files of a certificate and its key."""
        cert, key, request, more = (self.folder / f"{self.name}-{name}.{end}" for end in ("pem", "key", "csr", "ext"))
        run("req", "-new", *CURVE, "-subj", f"/CN={name}", "-keyout", key, "-out", request)
        more.write_text(f"subjectAltName={san}\n")
        run("x509", "-req", "-in", request, "-CA", self.file, "-CAkey", self.key, "-CAcreateserial", "-days", days, "-extfile", more, "-out", cert)
        return cert, key


def context(ca, client=None, alpn=("http/1.1",)):
    """A client's, which believes `ca` and shows `client`: files of a certificate and its key."""
    c = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    c.load_verify_locations(ca)
    if client:
        c.load_cert_chain(*client)
    if alpn:
        c.set_alpn_protocols(list(alpn))
    return c


def put(files, at):
    """A certificate and its key in the place of others, each file at once."""
    for new, old in zip(files, at):
        spare = str(old) + ".new"
        with open(new, "rb") as f, open(spare, "wb") as g:
            g.write(f.read())
        os.replace(spare, old)
