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
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from stack.errors import StackError

Made = TypeVar("Made")

_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_char_p)
_own = threading.local()  # `made`: the future of the call that a thread runs


class CompileError(StackError):
    """An error of MLIR or LLVM for a module; the message is theirs, with the lines it refers to."""


def caught(call: Callable[[], Made], owner: Any) -> Made:
    """Runs a call in which LLVM generates code, and returns its result.

    Args:
        owner: the object that LLVM works on. It is never freed after a fatal error.

    Raises:
        CompileError: LLVM would have terminated the process. The message is LLVM's.
    """
    made: Future[Made] = Future()
    try:
        threading.Thread(target=_run, args=(call, made), name="stack-llvm", daemon=True).start()
    except RuntimeError:  # Python is shutting down and starts no threads
        return call()
    try:
        wait([made])
    except BaseException:  # an interrupt: wait, as the caller will free what LLVM uses
        wait([made])
        raise
    if isinstance(made.exception(), CompileError):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))
    return made.result()


def _run(call: Callable[[], Made], made: Future[Made]) -> None:
    _own.made = made
    try:
        made.set_result(call())
    except BaseException as error:
        made.set_exception(error)


def install(library: ctypes.CDLL) -> None:
    """Handle the fatal errors of the LLVM in a library, for threads started by `caught`."""
    function = getattr(library, "LLVMInstallFatalErrorHandler", None)
    if function is not None:
        function(_take)


@_HANDLER
def _take(message: bytes) -> None:
    made: Future[Any] | None = getattr(_own, "made", None)
    if made is None:
        return  # another user of this LLVM: the process terminates as usual
    made.set_exception(CompileError(f"LLVM: {message.decode(errors='replace').strip()}"))
    forever = threading.Lock()
    forever.acquire()
    forever.acquire()
