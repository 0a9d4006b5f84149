"""Compiles several kernels concurrently, each in a process of its own: see `compile_server`."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
import warnings
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import stack
from stack.errors import StackError

TRIES = 2  # attempts: a compile server that dies is restarted once
Request = dict[str, Any]
Reply = dict[str, Any]


class Client:
    """A compile server and the pipes to it.

    Args:
        service: the module that compiles; it has `load()`, and `answer(request)` for each kernel.
    """

    def __init__(self, service: str) -> None:
        self.owner = os.getpid()
        root = str(Path(stack.__file__).parent.parent)
        # fewer and larger pages for the compiler's memory: each fork takes a fault per page
        pages = {"GLIBC_TUNABLES": os.environ.get("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")}
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "stack.backends.device.compile_server", service],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **pages, "PYTHONPATH": path},
        )
        atexit.register(self.close)

    def close(self) -> None:
        """Kill the server, if this process started it."""
        if self.owner == os.getpid():
            self.process.kill()
            self.process.wait()

    @property
    def is_ours(self) -> bool:
        """True if this process started the server and it is still running."""
        return self.owner == os.getpid() and self.process.poll() is None

    def ask(self, requests: list[Request]) -> list[Reply]:
        """Replies in the order of the requests. Raises StackError if the server dies."""
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None

        def write() -> None:
            try:
                for number, request in enumerate(requests):
                    stdin.write(json.dumps({**request, "number": number}).encode() + b"\n")
                stdin.flush()
            except OSError:
                pass  # the reader of the replies reports that the server is gone

        writer = threading.Thread(target=write)
        writer.start()
        found: dict[int, Reply] = {}
        while len(found) < len(requests):
            line = stdout.readline()
            if not line:
                raise StackError("the compile server ended")
            reply = json.loads(line)
            found[reply["number"]] = reply
        writer.join()
        return [found[i] for i in range(len(requests))]


class WorkerPool:
    """Compiles the kernels of one service, in a compile server that is started on first use.

    A kernel that crashed its compiler, or exceeded its time, is not tried again by this
    process.
    """

    def __init__(self, service: str) -> None:
        self.service = service
        self.lock = threading.Lock()
        self.client: Client | None = None
        self.fatal: dict[str, Reply] = {}

    def warm(self) -> None:
        """Start the compile server without waiting for it."""
        with self.lock:
            self._running()

    def compile(self, requests: list[Request]) -> list[Reply]:
        """Returns a reply to each request; a failed one has `error`."""
        keys = [json.dumps(r, sort_keys=True) for r in requests]
        left = [i for i, key in enumerate(keys) if key not in self.fatal]
        replies = [self.fatal.get(key, {}) for key in keys]
        for i, reply in zip(left, self._ask([requests[i] for i in left]), strict=True):
            replies[i] = reply
            if reply.get("fatal"):
                self.fatal[keys[i]] = reply
        return replies

    def _ask(self, requests: list[Request]) -> list[Reply]:
        if not requests:
            return []
        why = ""
        for _ in range(TRIES):
            try:
                with self.lock:
                    return self._running().ask(requests)
            except (StackError, OSError) as error:
                why = str(error)
        warnings.warn(f"kernels are compiled one after another: {why}", stacklevel=4)
        answer = import_module(self.service).answer
        return [answer(request) for request in requests]

    def _running(self) -> Client:
        if self.client is None or not self.client.is_ours:
            self.client = Client(self.service)
        return self.client


@cache
def worker_pool_for(service: str) -> WorkerPool:
    """The worker pool of a service, shared by this whole process."""
    return WorkerPool(service)


# after a fork, the compile servers and the pools belong to the parent
os.register_at_fork(after_in_child=worker_pool_for.cache_clear)
