"""A web server on this machine that misbehaves as told."""

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server:
    """Serves `content`; each request takes the next word of `script`, and "ok" when there are none left."""

    def __init__(self, content):
        self.content, self.script, self.ranges, self.stop = content, [], [], threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.ranges.append(self.headers.get("Range"))
                answer(outer, self, outer.script.pop(0) if outer.script else "ok")

            def log_message(self, *about):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/file"


def answer(server, request, word):
    said, _, number = word.partition(" ")
    content, asked = server.content, request.headers.get("Range")
    start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
    if said.isdigit():
        return request.send_error(int(said))
    if start and said not in ("no-range", "wrong-range"):
        if start >= len(content):
            request.send_response(416)
            request.send_header("Content-Range", f"bytes */{len(content)}")
            request.send_header("Content-Length", "0")
            return request.end_headers()
        request.send_response(206)
        request.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        content = content[start:]
    elif said == "wrong-range":
        request.send_response(206)
        request.send_header("Content-Range", f"bytes 1-{len(content) - 1}/{len(content)}")
        content = content[1:]
    else:
        request.send_response(200)
    if said == "corrupt":
        content = bytes(255 - byte for byte in content)
    sent = content[: int(number)] if number else content
    if said == "truncate":  # a shorter file, which does not say so
        content = sent
    if said != "no-length":
        request.send_header("Content-Length", str(len(content)))
    request.end_headers()
    request.wfile.write(sent)
    if said == "stall":
        request.wfile.flush()
        server.stop.wait(20)
    return None


@contextmanager
def serving(content):
    """A server for one test."""
    server = Server(content)
    thread = threading.Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stop.set()
        server.http.shutdown()
        server.http.server_close()
        thread.join()
