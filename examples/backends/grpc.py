"""A gRPC server without a library, for trying things out: it answers each unary call with the
message that it was sent, whatever the method, over HTTP/2 without TLS. Not for production."""

import socketserver

DATA, HEADERS, SETTINGS, PING = 0, 1, 4, 6
END_STREAM = ACK = 1
END_HEADERS = 4
PORT = 50051


def field(name, value):
    """A header field as HPACK's literal without indexing, which needs no table."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


class Connection(socketserver.StreamRequestHandler):
    def send(self, kind, flags, stream, payload=b""):
        head = len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big")
        self.wfile.write(head + payload)

    def handle(self):
        self.rfile.read(len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
        self.send(SETTINGS, 0, 0)
        messages = {}
        while head := self.rfile.read(9):
            kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big")
            payload = self.rfile.read(int.from_bytes(head[:3], "big"))
            if kind in (SETTINGS, PING) and not flags & ACK:
                self.send(kind, ACK, 0, payload if kind == PING else b"")
            if kind == DATA:
                messages[stream] = messages.get(stream, b"") + payload
            if kind in (DATA, HEADERS) and flags & END_STREAM:
                self.answer(stream, messages.pop(stream, b""))

    def answer(self, stream, message):
        # 0x88 is `:status: 200` in HPACK's static table.
        self.send(HEADERS, END_HEADERS, stream, b"\x88" + field(b"content-type", b"application/grpc"))
        self.send(DATA, 0, stream, message)
        self.send(HEADERS, END_HEADERS | END_STREAM, stream, field(b"grpc-status", b"0"))


socketserver.ThreadingTCPServer.allow_reuse_address = True
socketserver.ThreadingTCPServer(("127.0.0.1", PORT), Connection).serve_forever()
