"""Compiles several kernels at a time, each in a process of its own: see `compile_server`."""

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

TRIES = 2  # a compile server that is lost is started again, once
Request = dict[str, Any]
Reply = dict[str, Any]


class Client:
    """A compile server and the pipes to it.

    Args:
        service: the module that compiles: `load()`, then `answer(request)` for each kernel.
    """

    def __init__(self, service: str) -> None:
        self.owner = os.getpid()
        root = str(Path(stack.__file__).parent.parent)
        # fewer and larger pages for what compilers allocate: forks touch each for the first time
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
        """End it, where this process started it."""
        if self.owner == os.getpid():
            self.process.kill()
            self.process.wait()

    @property
    def is_ours(self) -> bool:
        """Whether this process started it, and it is still there."""
        return self.owner == os.getpid() and self.process.poll() is None

    def ask(self, requests: list[Request]) -> list[Reply]:
        """Replies in the order of requests. Raises StackError where the compile server is lost."""
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
        found: dict[int, Reply] = {}
        while len(found) < len(requests):
            line = stdout.readline()
            if not line:
                raise StackError("the process that compiles kernels ended")
            reply = json.loads(line)
            found[reply["number"]] = reply
        writer.join()
        return [found[i] for i in range(len(requests))]


class WorkerPool:
    """What compiles the kernels of one service; its sidecar is started when it is needed.

    A kernel that ended its compiler, or that it did not finish with, is not tried again by this
    process.
    """

    def __init__(self, service: str) -> None:
        self.service = service
        self.lock = threading.Lock()
        self.client: Client | None = None
        self.fatal: dict[str, Reply] = {}

    def warm(self) -> None:
        """Start the compile server, and return at once."""
        with self.lock:
            self._running()

    def compile(self, requests: list[Request]) -> list[Reply]:
        """A reply to each request, with `error` where it failed."""
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
        why: Exception | None = None
        for _ in range(TRIES):
            try:
                with self.lock:
                    return self._running().ask(requests)
            except (StackError, OSError) as error:
                why = error
        warnings.warn(f"kernels are compiled one after another: {why}", stacklevel=4)
        answer = import_module(self.service).answer
        return [answer(request) for request in requests]

    def _running(self) -> Client:
        if self.client is None or not self.client.is_ours:
            self.client = Client(self.service)
        return self.client


@cache
def worker_pool_for(service: str) -> WorkerPool:
    """The one that all of this process share."""
    return WorkerPool(service)


# in a fork of this process the compile servers, and who asks them, are the parent's
os.register_at_fork(after_in_child=worker_pool_for.cache_clear)
