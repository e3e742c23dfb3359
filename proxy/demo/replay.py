"""Play a recorded session again over HTTP: a server that gives the recorded replies, a client that sends the requests.

`python -m proxy.demo.replay FILE.har` is the client; it goes through whatever proxy its environment names.
"""

import sys
import threading
from collections import defaultdict, deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType

import httpx

from recorder.call import Call
from recorder.importing import read_har

FRAMING = ("content-length", "transfer-encoding", "connection", "host")
"""Made anew by the client; a shared recording may have masked them."""


class Recorded:
    """Answers each recorded request, known by its body, with what came back then; the nth time with the nth reply."""

    def __init__(self, file: Path) -> None:
        replies: dict[bytes, deque[Call]] = defaultdict(deque)
        for call in read_har(file):
            replies[call.request_body].append(call)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                call = replies[body].popleft() if replies[body] else None
                data = call.response_body if call else b""
                self.send_response(call.status or 502 if call else 404)
                for name, value in call.response_headers if call else ():
                    if name in ("content-type", "content-encoding", "request-id"):
                        self.send_header(name, value)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> "Recorded":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def send(file: Path) -> int:
    """Send every recorded request in order; how many there were."""
    count = 0
    with httpx.Client(timeout=60) as client:
        for call in read_har(file):
            headers = [(name, value) for name, value in call.request_headers if name not in FRAMING]
            client.request(call.method, call.url, content=call.request_body, headers=headers)
            count += 1
    return count


if __name__ == "__main__":
    sys.stdout.write(f"{send(Path(sys.argv[1]))} requests sent again\n")
