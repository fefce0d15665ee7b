"""A server that answers every request with an endless stream of events.

``python endless_server.py STATUS`` prints its port and answers with this status.
"""

import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Endless(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def do_GET(self) -> None:
        self.send_response(int(sys.argv[1]))
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        try:
            while True:
                self.wfile.write(b": keep-alive " + b"." * 1000 + b"\n\n")
                time.sleep(0.01)
        except OSError:
            pass

    def log_message(self, *_: object) -> None:
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Endless)
server.daemon_threads = True
print(server.server_port, flush=True)
server.serve_forever()
