"""Compiles several kernels concurrently, each in a process of its own: see `compile_server`."""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import cache
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

import stack
from stack.errors import StackError
from stack.run.cache import Cache

TRIES = 2  # attempts: a compile server that dies is restarted once
Request = dict[str, Any]
Reply = dict[str, Any]
Work = Callable[[], object] | None


class Client:
    """A compile server, the pipes to it, and the thread that reads its replies.

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
        self.numbers = count()
        self.waiting: dict[int, Future[Reply]] = {}
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        atexit.register(self.close)

    def close(self) -> None:
        """Kill the server, if this process started it."""
        if self.owner == os.getpid():
            self.process.kill()
            self.process.wait()
            self.reader.join()

    @property
    def is_ours(self) -> bool:
        """True if this process started the server and it is still running."""
        return self.owner == os.getpid() and self.process.poll() is None

    def send(self, request: Request) -> Future[Reply]:
        """Sends a request. The reply raises StackError if the server dies before it."""
        number, reply = next(self.numbers), Future[Reply]()
        self.waiting[number] = reply
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({**request, "number": number}).encode() + b"\n")
        self.process.stdin.flush()
        return reply

    def _read(self) -> None:
        """Reads replies until the server ends."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            number, _, text = line.partition(b" ")
            self.waiting.pop(int(number)).set_result(json.loads(text))
        while self.waiting:
            _, reply = self.waiting.popitem()
            reply.set_exception(StackError("the compile server ended"))


class WorkerPool:
    """Compiles the kernels of one service, in a compile server that is started on first use.

    A kernel that crashed its compiler, or exceeded its time, is not tried again by this
    process.
    """

    def __init__(self, service: str) -> None:
        self.service = service
        self.lock = threading.Lock()
        self.client: Client | None = None
        self.sent: dict[str, Future[Reply]] = {}
        self.fatal: dict[str, Reply] = {}

    def warm(self) -> None:
        """Start the compile server without waiting for it."""
        with self.lock:
            self._running()

    def start(self, request: Request, store: Cache | None = None) -> None:
        """Sends a request whose reply is not known, without waiting; `compile` returns it."""
        key = self._key(request)
        if self._known(key, store) is None:
            with suppress(OSError):
                self._sent(key, request)

    def compile(
        self, requests: Sequence[Request], store: Cache | None = None, meanwhile: Work = None
    ) -> list[Reply]:
        """Returns a reply to each request, from `store` or compiled; a failed one has `error`.

        Calls `meanwhile` before it waits.
        """
        keys = [self._key(request) for request in requests]
        found = {key: self._known(key, store) for key in keys}
        left = {k: request for k, request in zip(keys, requests) if found[k] is None}
        for key in sorted(left, key=lambda key: -len(left[key]["text"])):  # the longest first
            with suppress(OSError):  # `_reply` sends it again
                self._sent(key, left[key])
        if left and meanwhile is not None:
            meanwhile()
        for key, request in left.items():
            found[key] = reply = self._reply(key, request)
            if store is not None and "error" not in reply:
                store.put(key, json.dumps(reply).encode())
        return [found[key] or {} for key in keys]

    def _key(self, request: Request) -> str:
        told = [import_module(self.service).version(), request]
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()

    def _known(self, key: str, store: Cache | None) -> Reply | None:
        held = store.get(key) if store is not None else None
        return self.fatal.get(key) if held is None else json.loads(held)

    def _reply(self, key: str, request: Request) -> Reply:
        why = ""
        for _ in range(TRIES):
            try:
                reply = self._sent(key, request).result()
            except (StackError, OSError) as error:
                why = str(error)
            else:
                if reply.get("fatal"):
                    self.fatal[key] = reply
                return reply
            finally:
                self.sent.pop(key, None)
        warnings.warn(f"kernels are compiled one after another: {why}", stacklevel=4)
        return import_module(self.service).answer(request)

    def _sent(self, key: str, request: Request) -> Future[Reply]:
        with self.lock:
            if key not in self.sent:
                self.sent[key] = self._running().send(request)
            return self.sent[key]

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
