"""Converts LLVM's fatal errors to Python exceptions.

LLVM terminates the process if it cannot compile something, unless a handler takes the error; but
the handler must not return. So code is generated in a thread of its own. The handler passes the
message to the thread that waits for it, and blocks its own thread forever, with everything that
LLVM holds.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any, TypeVar

Made = TypeVar("Made")

_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_char_p)
_own = threading.local()  # `job`: the call that a thread runs


class FatalError(Exception):
    """An error on which LLVM would have terminated the process. The message is LLVM's."""


class _Job:
    """A call that another thread runs, and its result or the exception that it raised."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call
        self.made: Any = None
        self.error: BaseException | None = None
        self.ended = threading.Event()

    def run(self) -> None:
        _own.job = self
        try:
            self.made = self.call()
        except BaseException as error:
            self.error = error
        self.ended.set()


def caught(call: Callable[[], Made], owner: Any) -> Made:
    """Runs a call in which LLVM generates code, and returns its result.

    Args:
        owner: the object that LLVM works on. It is never freed after a fatal error.

    Raises:
        FatalError: LLVM cannot compile something.
    """
    job = _Job(call)
    try:
        threading.Thread(target=job.run, name="stack-llvm", daemon=True).start()
    except RuntimeError:  # Python is shutting down and starts no threads
        return call()
    try:
        job.ended.wait()
    except BaseException:  # an interrupt: wait, as the caller will free what LLVM uses
        job.ended.wait()
        raise
    if isinstance(job.error, FatalError):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))
    if job.error is not None:
        raise job.error
    return job.made


def install(library: ctypes.CDLL) -> None:
    """Handle the fatal errors of the LLVM in a library, for threads started by `caught`."""
    function = getattr(library, "LLVMInstallFatalErrorHandler", None)
    if function is not None:
        function(_take)


@_HANDLER
def _take(message: bytes) -> None:
    job: _Job | None = getattr(_own, "job", None)
    if job is None:
        return  # another user of this LLVM: the process terminates as usual
    job.error = FatalError(message.decode(errors="replace").strip())
    job.ended.set()
    forever = threading.Lock()
    forever.acquire()
    forever.acquire()
