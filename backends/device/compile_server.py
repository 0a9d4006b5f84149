"""A compile server: a process that loads a compiler once and forks for each kernel.

Forking this small process takes milliseconds; forking the process that uses the GPU is not safe. A
kernel that crashes its compiler, hangs it or uses up its memory ends only that fork. Requests
arrive as lines of JSON on stdin. Replies are written to stdout in any order: lines of the number of
a request and JSON. End of stdin stops the server.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import selectors
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, BinaryIO

LONGEST = 120.0  # seconds for one kernel
MOST_BYTES = 8 << 30  # of memory for one kernel
SHARE = 0.5  # of the machine's memory for one kernel, if that is less
CHUNK = 1 << 16

Answer = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass
class Fork:
    """A forked process that compiles one kernel."""

    number: int
    pid: int
    end: float
    reply: bytearray = field(default_factory=bytearray)
    is_late: bool = False


class CompileServer:
    """Reads requests, forks a process for each, and writes the replies."""

    def __init__(self, answer: Answer, requests: int, replies: BinaryIO) -> None:
        self.answer = answer
        self.requests, self.replies = requests, replies
        self.selector = selectors.DefaultSelector()
        self.selector.register(requests, selectors.EVENT_READ)
        self.text = b""
        self.waiting: deque[dict[str, Any]] = deque()
        self.worker_pool: dict[int, Fork] = {}
        self.most = os.cpu_count() or 1

    def serve(self) -> None:
        """Serve until stdin is closed."""
        while True:
            while self.waiting and len(self.worker_pool) < self.most:
                self._fork(self.waiting.popleft())
            for key, _ in self.selector.select(1):
                data = os.read(key.fd, CHUNK)
                if key.fd == self.requests:
                    if not data:
                        return self._stop()
                    self._ask(data)
                elif data:
                    self.worker_pool[key.fd].reply += data
                else:
                    self._finish(key.fd)
            now = time.monotonic()
            for fork in self.worker_pool.values():
                if now > fork.end:
                    fork.is_late = True
                    _end(fork)

    def _ask(self, data: bytes) -> None:
        *lines, self.text = (self.text + data).split(b"\n")
        self.waiting.extend(json.loads(line) for line in lines)

    def _fork(self, request: dict[str, Any]) -> None:
        ours, theirs = os.pipe()
        pid = os.fork()
        if not pid:
            os.setpgid(0, 0)  # a group of its own, to be killed with its child processes
            os.close(self.requests)
            _limit_memory(int(request.get("bytes", MOST_BYTES)))
            with os.fdopen(theirs, "w") as pipe:
                json.dump(self.answer(request), pipe)
            os._exit(0)
        os.close(theirs)
        end = time.monotonic() + float(request.get("seconds", LONGEST))
        self.worker_pool[ours] = Fork(request["number"], pid, end)
        self.selector.register(ours, selectors.EVENT_READ)

    def _finish(self, pipe: int) -> None:
        fork = self.worker_pool.pop(pipe)
        self.selector.unregister(pipe)
        os.close(pipe)
        code = os.waitstatus_to_exitcode(os.waitpid(fork.pid, 0)[1])
        if code or not fork.reply:
            fork.reply[:] = json.dumps({"error": _why(fork, code), "fatal": True}).encode()
        self.replies.write(b"%d %b\n" % (fork.number, fork.reply))
        self.replies.flush()

    def _stop(self) -> None:
        for fork in self.worker_pool.values():
            _end(fork)


def _end(fork: Fork) -> None:
    """Kills the process of one compilation and its child processes."""
    for end in (os.killpg, os.kill):  # it may not have a process group yet
        with contextlib.suppress(ProcessLookupError):
            end(fork.pid, signal.SIGKILL)


def _why(fork: Fork, code: int) -> str:
    if fork.is_late:
        return "its compiler did not finish in time"
    why = signal.Signals(-code).name if code < 0 else f"exit {code}"
    return f"its compiler ended with {why}"


def _limit_memory(most: int) -> None:
    """Limit the memory of this process and of each child process."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = min(most, int(there * SHARE))
    resource.setrlimit(resource.RLIMIT_DATA, (wanted if hard < 0 else min(wanted, hard), hard))


def main() -> None:
    """Serve on stdin and stdout; redirect the output of compilers to stderr."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    service = import_module(sys.argv[1])
    service.load()
    CompileServer(service.answer, sys.stdin.fileno(), replies).serve()


if __name__ == "__main__":
    main()
