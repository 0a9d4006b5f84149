"""The process that compiles: it has Triton loaded, and forks once for each kernel.

A fork of this small process costs milliseconds, and one of the process that has a GPU is not safe.
What a kernel does to its compiler (a crash, a hang) ends that fork alone. Requests come as lines of
JSON on stdin and are answered on stdout, in any order; the end of stdin ends it.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from . import build

LONGEST = 300  # seconds for one kernel
CHUNK = 1 << 16


@dataclass
class Fork:
    """One kernel that is being compiled."""

    number: int
    pid: int
    end: float
    reply: bytearray = field(default_factory=bytearray)


class Sidecar:
    """Reads requests, forks, gathers replies."""

    def __init__(self, requests: int, replies: int) -> None:
        self.requests, self.replies = requests, replies
        self.selector = selectors.DefaultSelector()
        self.selector.register(requests, selectors.EVENT_READ)
        self.text = b""
        self.waiting: deque[dict[str, Any]] = deque()
        self.forks: dict[int, Fork] = {}
        self.most = os.cpu_count() or 1

    def serve(self) -> None:
        """Work until nobody asks any more."""
        while True:
            while self.waiting and len(self.forks) < self.most:
                self._fork(self.waiting.popleft())
            for key, _ in self.selector.select(1):
                data = os.read(key.fd, CHUNK)
                if key.fd == self.requests:
                    if not data:
                        return self._stop()
                    self._ask(data)
                elif data:
                    self.forks[key.fd].reply += data
                else:
                    self._finish(key.fd)
            now = time.monotonic()
            for fork in self.forks.values():
                if now > fork.end:
                    os.kill(fork.pid, signal.SIGKILL)

    def _ask(self, data: bytes) -> None:
        *lines, self.text = (self.text + data).split(b"\n")
        self.waiting.extend(json.loads(line) for line in lines)

    def _fork(self, request: dict[str, Any]) -> None:
        ours, theirs = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(self.requests)
            with os.fdopen(theirs, "w") as pipe:
                json.dump(build.answer(request), pipe, default=vars)
            os._exit(0)
        os.close(theirs)
        self.forks[ours] = Fork(request["number"], pid, time.monotonic() + LONGEST)
        self.selector.register(ours, selectors.EVENT_READ)

    def _finish(self, pipe: int) -> None:
        fork = self.forks.pop(pipe)
        self.selector.unregister(pipe)
        os.close(pipe)
        _, status = os.waitpid(fork.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        try:
            reply = json.loads(fork.reply)
        except ValueError:
            why = signal.Signals(-code).name if code < 0 else f"exit {code}"
            reply = {"error": f"its compiler ended with {why}"}
        self._write(json.dumps({**reply, "number": fork.number}).encode() + b"\n")

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self.replies, data) :]

    def _stop(self) -> None:
        for fork in self.forks.values():
            os.kill(fork.pid, signal.SIGKILL)


def main() -> None:
    """Serve on stdin and stdout; what compilers print goes to stderr."""
    replies = os.dup(1)
    os.dup2(2, 1)
    build.load()
    Sidecar(sys.stdin.fileno(), replies).serve()


if __name__ == "__main__":
    main()
