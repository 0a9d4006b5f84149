"""Arguments that the program refuses without the compiler too: its own error, at its own line."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stack.errors import StackError
from stack.run.frontend import Captured, Frontend

OWN = "the program raises this itself, without the compiler too"
UNTRACED = "its framework cannot trace the program, which runs without the compiler"
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
        raise_as_eager(fn, args, {}, error)
        raise


def raise_as_eager(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    error: Exception,
    more: str = "",
) -> None:
    """Where eager refuses the arguments too, raise its type and say what was compiled for.

    Where it takes them, the error gets a note that says so.
    """
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
    error.add_note(UNTRACED + _own_line(error))


def own_error(error: BaseException) -> str:
    """An error of the program or of its trace as few lines, no traceback; "" for any other."""
    notes = getattr(error, "__notes__", ())
    said = next((note for note in notes if note == OWN or note.startswith(UNTRACED)), "")
    if not said:
        return ""
    lines = [line for line in f"{type(error).__name__}: {error}".splitlines() if line.strip()]
    # what was compiled for and the user's line stand last
    return "\n".join([*lines[: MOST_LINES - 3], *lines[MOST_LINES - 3 :][-2:], said])


def _own_line(error: Exception) -> str:
    """The innermost line of a traceback that is neither a library's nor ours."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if _is_users(f.filename)]
    if not frames:
        return ""
    last = frames[-1]
    return f"\n(at {Path(last.filename).name}:{last.lineno}: `{last.line}`)"


def _is_users(file: str) -> bool:
    own = Path(__file__).resolve().parents[1]
    path = Path(file)
    is_demo = "demos" in path.parts  # they are programs, and lie in the package
    is_own = own in {*path.parents, *path.resolve().parents}  # links of the package lead out of it
    return "site-packages" not in path.parts and (is_demo or not is_own)
