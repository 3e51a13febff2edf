"""A backend for trying things out: answers each GET on port 8001 with a header field of the request,
whose name is the argument."""

import sys
from http.server import BaseHTTPRequestHandler, HTTPServer


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"{sys.argv[1]}: {self.headers[sys.argv[1]]}\n".encode())


HTTPServer(("127.0.0.1", 8001), Handler).serve_forever()
