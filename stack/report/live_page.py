"""A page that is rebuilt, in a new process, each time the source is saved."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from stack.errors import UsageError
from stack.measure.systems import Say

HOST = "127.0.0.1"
LOOK_EVERY = 0.3  # seconds between two checks of the files
MOST_LINES = 10  # lines of an error to show
_LIVE = re.compile(r"<html lang=\"en\">")
_CONNECT = "script-src &#x27;unsafe-inline&#x27;"


@dataclass
class Follower:
    """The newest working page of a program, and the error if its newest source does not compile.

    `argv` are the arguments of `stackc report` without its output.
    """

    argv: Sequence[str]
    page: str = ""
    version: str = ""
    error: str = ""
    stop: threading.Event = field(default_factory=threading.Event)

    def make(self) -> None:
        """Compiles the current source. If it fails, the last working page stays."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "page.html"
            command = [sys.executable, "-m", "stack", "report", *self.argv, "-o", str(path)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                self.error = "\n".join(done.stderr.strip().splitlines()[-MOST_LINES:])
                return
            text = path.read_text(encoding="utf-8")
        self.version, self.error = sha256(text.encode()).hexdigest()[:16], ""
        self.page = served(text, self.version)

    def follow(self, files: Sequence[Path]) -> None:
        """Rebuilds the page whenever the files change, until `stop` is set."""
        before: object = None
        while not self.stop.is_set():
            now = [(p, p.stat().st_mtime_ns) for p in files if p.exists()]
            if now != before:
                before = now
                self.make()
            self.stop.wait(LOOK_EVERY)


def served(text: str, version: str) -> str:
    """Adds to a page its version, and permission to ask its own server for changes."""
    text = _LIVE.sub(f'<html lang="en" data-live="{version}">', text, count=1)
    return text.replace(_CONNECT, f"{_CONNECT}; connect-src &#x27;self&#x27;", 1)


def server(follower: Follower, port: int) -> ThreadingHTTPServer:
    """Returns a server on the loopback address; requests with other host names are refused."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = str(self.headers.get("Host", "")).rpartition(":")[0]
            if name not in (HOST, "localhost"):
                self.send_error(403)
            elif self.path == "/news":
                news = {"version": follower.version, "error": follower.error}
                self._send(json.dumps(news), "application/json")
            elif self.path == "/":
                waiting = f"<pre>{follower.error or 'compiling'}</pre><script>setTimeout(() => "
                text = follower.page or f"{waiting}location.reload(), 700)</script>"
                self._send(text, "text/html; charset=utf-8")
            else:
                self.send_error(404)

        def _send(self, text: str, kind: str) -> None:
            data = text.encode()
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Logs nothing."""

    return ThreadingHTTPServer((HOST, port), Handler)


def serve(argv: Sequence[str], files: Sequence[Path], port: int, say: Say) -> int:
    """Serves the page until interrupted."""
    follower = Follower(argv)
    try:
        made = server(follower, port)
    except (OSError, OverflowError) as error:
        raise UsageError(f"port {port} of {HOST}: {error}; without --port, a free one") from error
    watch = threading.Thread(target=follower.follow, args=(files,), daemon=True)
    watch.start()
    say(f"http://{HOST}:{made.server_address[1]}/ follows {', '.join(p.name for p in files)}")
    try:
        made.serve_forever()
    except KeyboardInterrupt:
        say("ended")
    finally:
        follower.stop.set()
        made.server_close()
    return 0
