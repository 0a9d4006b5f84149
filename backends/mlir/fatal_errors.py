"""LLVM's fatal errors as exceptions of Python.

LLVM ends the process where it has no code for something, unless a handler takes the error, to
which it must not return from. So code is generated in a thread of its own: the handler hands the
message to who waits for that thread, and blocks the thread for good, with all that LLVM holds.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any, TypeVar

Made = TypeVar("Made")

_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_char_p)
_own = threading.local()  # `job`: what a thread generates code for


class FatalError(Exception):
    """LLVM would have ended the process. The message is LLVM's own."""


class _Job:
    """A call in another thread, and what came of it."""

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
    """The result of a call that has LLVM generate code.

    Args:
        owner: what LLVM works on. It is never freed after a fatal error.

    Raises:
        FatalError: LLVM has no code for something.
    """
    job = _Job(call)
    try:
        threading.Thread(target=job.run, name="stack-llvm", daemon=True).start()
    except RuntimeError:  # Python is about to end, and starts no threads
        return call()
    try:
        job.ended.wait()
    except BaseException:  # an interrupt, after which the caller frees what LLVM works on
        job.ended.wait()
        raise
    if isinstance(job.error, FatalError):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))
    if job.error is not None:
        raise job.error
    return job.made


def install(library: ctypes.CDLL) -> None:
    """Take the fatal errors of the LLVM in a library, those of threads of `caught`."""
    function = getattr(library, "LLVMInstallFatalErrorHandler", None)
    if function is not None:
        function(_take)


@_HANDLER
def _take(message: bytes) -> None:
    job: _Job | None = getattr(_own, "job", None)
    if job is None:
        return  # another user of this LLVM, which ends the process as ever
    job.error = FatalError(message.decode(errors="replace").strip())
    job.ended.set()
    forever = threading.Lock()
    forever.acquire()
    forever.acquire()
