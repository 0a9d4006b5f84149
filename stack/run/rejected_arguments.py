"""Reports arguments that the program itself rejects, with eager's error at the user's line."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from stack.errors import StackError
from stack.run.frontend import Captured, Frontend

OWN = "your program raises this error without the compiler as well"
UNTRACED = "its framework cannot trace the program, which runs without the compiler"
FAULT = "a fault of the compiler, not of the program, which runs without it"
_STANDARD = Path(sysconfig.get_path("stdlib"))
_CUT = "removed its internal frames"  # JAX's note: ours are then the last, whoever raised it
MOST_LINES = 10  # of an error message shown to the user


def capture_as_eager(
    frontend: Frontend, fn: Any, args: Sequence[Any], *, dynamic: bool = False
) -> Captured:
    """Captures with a frontend. If eager rejects the arguments too, raises eager's error."""
    try:
        return frontend.capture(fn, args, dynamic=dynamic)
    except StackError:
        raise
    except Exception as error:
        if not _said(error):
            raise_as_eager(fn, args, {}, error)
        raise


def explain_trace(error: Exception, *, is_untraced: bool) -> None:
    """Adds notes to an error of a trace that ran the program itself: whose fault it is, at which
    line.

    Such a trace already had the side effects of the program, so it is not run a second time.

    Args:
        is_untraced: True if the framework cannot trace a program that it can run.
    """
    line = _own_line(error)
    if is_ours(error):
        error.add_note(FAULT)
    elif is_untraced:
        error.add_note(UNTRACED + line)
    else:
        error.add_note((line + "\n" + OWN).strip())


def raise_as_eager(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    error: Exception,
    more: str = "",
) -> None:
    """If eager rejects the arguments too, raises its type of error, with what was compiled for.

    Otherwise the error gets a note that eager accepts them and whose fault it is.
    """
    raise_if_refused(fn, args, kwargs, error, more)
    error.add_note(FAULT if is_ours(error) else UNTRACED + _own_line(error))


def raise_if_refused(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    error: Exception,
    more: str = "",
) -> None:
    """If eager rejects the arguments too, raises its type of error, with what was compiled for."""
    try:
        fn(*args, **kwargs)
    except Exception as eager:
        try:
            same = type(eager)(f"{eager}{more}{_own_line(eager)}")
        except Exception:
            eager.add_note(OWN)
            raise eager from error
        same.add_note(OWN)
        raise same from eager


def is_ours(error: BaseException) -> bool:
    """True if an error comes from a line of this library, judging by its frames."""
    if any(_CUT in note for note in getattr(error, "__notes__", ())):
        return False
    files = [f.filename for f in traceback.extract_tb(error.__traceback__)[-1:]]
    return any(is_own(file) and not is_users(file) for file in files)


def own_error(error: BaseException) -> str:
    """Returns a short text, without traceback, for an error that the program raises itself or that
    its framework raises because it cannot trace the program; "" for other errors, such as faults of
    the compiler.
    """
    said = _said(error)
    if said in ("", FAULT):
        return ""
    lines = [line for line in f"{type(error).__name__}: {error}".splitlines() if line.strip()]
    # the last lines are what was compiled for and the user's line
    return "\n".join([*lines[: MOST_LINES - 3], *lines[MOST_LINES - 3 :][-2:], said])


def _said(error: BaseException) -> str:
    """Returns the note of an error, added by a function of this file, that says whether the program
    or the compiler is at fault; "" if it has no such note.
    """
    notes = getattr(error, "__notes__", ())
    return next((n for n in notes if n == FAULT or n.startswith(UNTRACED) or n.endswith(OWN)), "")


def _own_line(error: Exception) -> str:
    """Returns file, line number and text of the innermost traceback line in the user's code, as a
    line for a note; "" if there is none.
    """
    frames = [f for f in traceback.extract_tb(error.__traceback__) if is_users(f.filename)]
    if not frames:
        return ""
    last = frames[-1]
    return f"\n(at {Path(last.filename).name}:{last.lineno}: `{last.line}`)"


@cache
def is_users(file: str) -> bool:
    """True if a file is the user's: neither a library's, Python's, nor ours."""
    path = Path(file)
    is_demo = "demos" in path.parts  # they are user programs inside the package
    is_standard = _STANDARD in path.parents and "site-packages" not in path.parts
    folders = path.parents
    is_installed = any(f.name in ("site-packages", "dist-packages") for f in folders)
    is_library = is_standard or is_installed or any(any(f.glob("*.dist-info")) for f in folders)
    return not is_library and (is_demo or not is_own(file))


def is_own(file: str) -> bool:
    """True if a file is part of this library."""
    own = Path(__file__).resolve().parents[1]
    path = Path(file)
    return own in {*path.parents, *path.resolve().parents}  # links of the package lead out of it
