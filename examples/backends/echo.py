"""A backend for trying things out: sends back a line that it gets, by TCP on port 7001 and by UDP on
port 7002."""

import socketserver
import threading


class Tcp(socketserver.StreamRequestHandler):
    def handle(self):
        self.wfile.write(b"tcp: " + self.rfile.readline())


class Udp(socketserver.DatagramRequestHandler):
    def handle(self):
        self.wfile.write(b"udp: " + self.rfile.readline())


tcp = socketserver.ThreadingTCPServer(("127.0.0.1", 7001), Tcp)
threading.Thread(target=tcp.serve_forever).start()
socketserver.ThreadingUDPServer(("127.0.0.1", 7002), Udp).serve_forever()
