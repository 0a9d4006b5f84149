"""The origin of jaxpr equations: line of the user's code, and named scopes."""

from __future__ import annotations

import os
import re
from functools import cache
from typing import Any

from stack.frameworks.jax_private import scope_names, user_frames
from stack.run.rejected_arguments import is_own, is_users

_NAME = re.compile(r"[\w.\-]+")  # the scope of an einsum is its equation


def scopes_of(eqn: Any) -> tuple[str, ...]:
    """Returns the library modules and `jax.named_scope`s around an equation: `("Net", "up")`.

    Inside a nested call they start at the call.
    """
    return tuple(
        part for name in scope_names(eqn) for part in name.split("/") if _NAME.fullmatch(part)
    )


def line_of(eqn: Any, scopes: tuple[str, ...], caller: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the innermost line of the user's code with the scopes: `("net.py:42 Net.up",)`.

    Without scopes, the function of that line is used. JAX cuts the stack at a nested call. So an
    equation without a user's line is inside a library function, such as `jnp.where`, and gets the
    line of the call, `caller`. If that is empty too, it gets the library's line.
    """
    frames = user_frames(eqn.source_info.traceback)
    own = next((f for f in frames if is_users_file(f.file_name)), None)
    if own is None and caller:
        return (_placed(caller[0].partition(" ")[0], scopes),) if scopes else caller
    frame = own or next((f for f in frames if not _is_own(f.file_name)), None)
    if frame is None:
        return ()
    function = frame.function_name.rpartition("<locals>.")[2]
    place = f"{os.path.basename(frame.file_name)}:{frame.start_line}"
    return (_placed(place, scopes or (function,)),)


def _placed(place: str, names: tuple[str, ...]) -> str:
    return f"{place} {'.'.join(names)}"


is_users_file, _is_own = cache(is_users), cache(is_own)
