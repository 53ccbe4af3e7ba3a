# SPDX-License-Identifier: Apache-2.0
"""An engine that costs nothing, to see the router alone: it reads a request's bytes, looks at none of them, and answers one token. It cannot be
asked for tokens (404).

usage: idle_engine.py FOLDER PORT"""
import asyncio
import json
import sys

FOLDER, PORT = sys.argv[1], int(sys.argv[2])


def answer(status, body):
    data = json.dumps(body).encode()
    return b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (status, len(data)) + data


CHAT = answer(b"200 OK", {"id": "1", "object": "chat.completion", "created": 1, "model": "m",
                          "choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "length"}]})
ANSWERS = {b"/health": answer(b"200 OK", {}), b"/v1/chat/completions": CHAT,
           b"/v1/models": answer(b"200 OK", {"object": "list", "data": [{"id": "m", "object": "model", "root": FOLDER, "parent": None, "max_model_len": 1 << 20}]})}
ABSENT = answer(b"404 Not Found", {})


class Requests(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport, self.head, self.target, self.missing = transport, b"", b"", 0

    def data_received(self, data):
        while data:
            if not self.missing:
                self.head += data
                end = self.head.find(b"\r\n\r\n")
                if end < 0:
                    return
                head, data, self.head = self.head[:end], self.head[end + 4:], b""
                self.target = head.split(b" ", 2)[1]
                at = head.lower().find(b"\r\ncontent-length:")
                self.missing = int(head[at + 17:].split(b"\r\n", 1)[0]) if at >= 0 else 0
            used = min(self.missing, len(data))
            self.missing, data = self.missing - used, data[used:]
            if not self.missing:
                self.transport.write(ANSWERS.get(self.target, ABSENT))


async def serve():
    server = await asyncio.get_running_loop().create_server(Requests, "127.0.0.1", PORT)
    await server.serve_forever()


asyncio.run(serve())
