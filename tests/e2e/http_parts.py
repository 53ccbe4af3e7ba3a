# SPDX-License-Identifier: Apache-2.0
"""Servers of a test's own, on threads of this process."""
import http.server
import json
import sys
import threading


class Handler(http.server.BaseHTTPRequestHandler):
    """Keeps connections, and says nothing of its own."""
    protocol_version = "HTTP/1.1"

    def body(self):
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def answer(self, status, body=b"", kind="application/json", headers=()):
        """`body`: bytes, or what JSON is made of."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": kind, **dict(headers), "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *a):
        pass


class _Server(http.server.ThreadingHTTPServer):
    request_queue_size = 256

    def handle_error(self, *a):
        if not isinstance(sys.exc_info()[1], OSError):  # clients leave
            super().handle_error(*a)


class HttpServer:
    """Answers as `handler`, a Handler, does, on a port of its own until it is closed. tls: an SSLContext."""

    def __init__(self, handler, port=0, tls=None):
        self.server = _Server(("127.0.0.1", port), handler)
        if tls:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
        self.port = self.server.server_address[1]
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self.port}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


def serve_connections(listener, serve):
    """serve(connection), on a thread for each, until the listener is closed."""
    def run():
        while True:
            try:
                c, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(c,), daemon=True).start()
    threading.Thread(target=run, daemon=True).start()
