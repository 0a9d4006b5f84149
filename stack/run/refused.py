"""Arguments that the program refuses without the compiler too: its own error, at its own line."""

from __future__ import annotations

import functools
import sysconfig
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from stack.errors import StackError
from stack.run.frontend import Captured, Frontend

OWN = "the program raises this itself, without the compiler too"
UNTRACED = "its framework cannot trace the program, which runs without the compiler"
FAULT = "a fault of the compiler, not of the program, which runs without it"
_STANDARD = Path(sysconfig.get_path("stdlib"))
_CUT = "removed its internal frames"  # JAX's note: ours are then the last, whoever raised it
MOST_LINES = 10  # of what a person is shown


def capture_as_eager(
    frontend: Frontend, fn: Any, args: Sequence[Any], *, dynamic: bool = False
) -> Captured:
    """What a frontend captures. Raises what eager raises where eager refuses the arguments."""
    try:
        return frontend.capture(fn, args, dynamic=dynamic)
    except StackError:
        raise
    except Exception as error:
        if not _said(error):
            raise_as_eager(fn, args, {}, error)
        raise


def explain_trace(error: Exception, *, is_untraced: bool) -> None:
    """Add notes to an error of a trace that ran the program itself: whose it is, at which line.

    Such a trace has had the side effects of the program, so it is not run a second time.

    Args:
        is_untraced: whether the framework refuses to trace what it would run.
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
    """Where eager refuses the arguments too, raise its type and say what was compiled for.

    Where it takes them, the error gets a note that says so, and whose fault it then is.
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
    """Where eager refuses the arguments too, raise its type and say what was compiled for."""
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
    """Whether an error comes from a line of this library, as far as its frames tell."""
    if any(_CUT in note for note in getattr(error, "__notes__", ())):
        return False
    files = [f.filename for f in traceback.extract_tb(error.__traceback__)[-1:]]
    return any(is_own(file) and not is_users(file) for file in files)


def own_error(error: BaseException) -> str:
    """An error of the program or of its trace as few lines, no traceback; "" for any other."""
    said = _said(error)
    if said in ("", FAULT):
        return ""
    lines = [line for line in f"{type(error).__name__}: {error}".splitlines() if line.strip()]
    # what was compiled for and the user's line stand last
    return "\n".join([*lines[: MOST_LINES - 3], *lines[MOST_LINES - 3 :][-2:], said])


def _said(error: BaseException) -> str:
    """The note that says whose error it is; "" where none does."""
    notes = getattr(error, "__notes__", ())
    return next((n for n in notes if n == FAULT or n.startswith(UNTRACED) or n.endswith(OWN)), "")


def _own_line(error: Exception) -> str:
    """The innermost line of a traceback that is neither a library's, Python's, nor ours."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if is_users(f.filename)]
    if not frames:
        return ""
    last = frames[-1]
    return f"\n(at {Path(last.filename).name}:{last.lineno}: `{last.line}`)"


@functools.cache
def is_users(file: str) -> bool:
    """Whether a file is neither a library's, Python's, nor ours."""
    path = Path(file)
    is_demo = "demos" in path.parts  # they are programs, and lie in the package
    is_library = _is_installed(path.parent) or _is_standard(file)
    return not is_library and (is_demo or not is_own(file))


@cache
def _is_installed(folder: Path) -> bool:
    """Whether a folder is below one that packages are installed to, wherever that is."""
    if folder.name in ("site-packages", "dist-packages") or any(folder.glob("*.dist-info")):
        return True
    return folder.parent != folder and _is_installed(folder.parent)


def _is_standard(file: str) -> bool:
    path = Path(file)
    return _STANDARD in path.parents and "site-packages" not in path.parts


def is_own(file: str) -> bool:
    """Whether a file is part of this library."""
    own = Path(__file__).resolve().parents[1]
    path = Path(file)
    return own in {*path.parents, *path.resolve().parents}  # links of the package lead out of it
