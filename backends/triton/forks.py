"""Compiles several kernels at a time, each in a process of its own: see `sidecar`."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import stack
from stack.errors import StackError


class Client:
    """A sidecar and the pipes to it."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        root = str(Path(stack.__file__).parent.parent)
        # fewer and larger pages for what compilers allocate: forks touch each for the first time
        pages = {"GLIBC_TUNABLES": os.environ.get("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")}
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "stack.backends.triton.sidecar"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **pages, "PYTHONPATH": path},
        )
        atexit.register(self.close)

    def close(self) -> None:
        """End it, where this process started it."""
        if self.owner == os.getpid():
            self.process.kill()
            self.process.wait()

    @property
    def is_ours(self) -> bool:
        """Whether this process started it, and it is still there."""
        return self.owner == os.getpid() and self.process.poll() is None

    def ask(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Replies in the order of requests. Raises StackError where the sidecar is lost."""
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None

        def write() -> None:
            try:
                for number, request in enumerate(requests):
                    stdin.write(json.dumps({**request, "number": number}).encode() + b"\n")
                stdin.flush()
            except OSError:
                pass  # whoever reads the replies finds that it is gone

        writer = threading.Thread(target=write)
        writer.start()
        found: dict[int, dict[str, Any]] = {}
        while len(found) < len(requests):
            line = stdout.readline()
            if not line:
                raise StackError("the process that compiles kernels ended")
            reply = json.loads(line)
            found[reply["number"]] = reply
        writer.join()
        return [found[i] for i in range(len(requests))]


_lock = threading.Lock()
_client: Client | None = None


def _forget() -> None:
    """In a fork of this process: the sidecar, and who asks it, are the parent's."""
    global _client, _lock
    _client, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)


def _running() -> Client:
    global _client
    if _client is None or not _client.is_ours:
        _client = Client()
    return _client


def warm() -> None:
    """Start the sidecar, and return at once."""
    with _lock:
        _running()


def compile_side_by_side(requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A reply to each request of `build.request`. Raises StackError where the sidecar is lost."""
    with _lock:
        return _running().ask(requests)
