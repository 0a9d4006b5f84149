"""The origin of jaxpr equations: lines of the user's code, named scopes, names of variables.

Each equation knows its span of source text. If the span is the whole right-hand side of an
assignment, the result gets the variable's name. If it is the whole value of a `return`, the span of
the call is used instead. A library call gives several equations with the same span; the variable is
the one value used outside. If several are, or only derivatives use it, none gets the name.
"""

from __future__ import annotations

import ast
import linecache
import os
import re
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from itertools import groupby
from typing import Any

from jax.extend.core import Jaxpr, Literal

from stack.frameworks.jax_private import frame_of, scope_names, user_frames
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


Span = tuple[int, int, int, int]  # first line and column, last line and column
RETURNED = ""  # name of a value that a statement returns


def variable_names(jaxpr: Jaxpr) -> dict[Any, str]:
    """Returns the user's variable for each value of a jaxpr that a source line assigns to one."""
    own = [eqn for eqn in jaxpr.eqns if not _is_derivative(eqn)]
    readers: dict[Any, set[int]] = {}
    for place, eqn in enumerate(own):
        for value in eqn.invars:
            if not isinstance(value, Literal):
                readers.setdefault(value, set()).add(place)
    for value in jaxpr.outvars:
        if not isinstance(value, Literal):
            readers.setdefault(value, set()).add(len(own))
    found: dict[Any, str] = {}
    for (_, name), items in groupby(enumerate(own), key=lambda item: _assigned(item[1])):
        places, eqns = zip(*items, strict=True)
        made = [v for eqn in eqns for v in eqn.outvars]
        left = [v for v in made if readers.get(v, set()).difference(places)]
        if name and len(left) == 1:
            found[left[0]] = name
    return found


def _is_derivative(eqn: Any) -> bool:
    return "transpose(" in str(eqn.source_info.name_stack)


def _assigned(eqn: Any) -> tuple[Any, str]:
    """Returns the source span of an equation, and the variable assigned there."""
    first: Any = None
    name: str | None = None
    for frame in _frames(eqn.source_info.traceback):
        if frame is None:
            if first is None:
                continue
            break  # called by a library, which may change the value
        first = first or frame
        name = _statements(frame.file_name).get(_span(frame))
        if name != RETURNED:
            break
    return first, name or ""


def _frames(traceback: Any) -> Iterator[Any]:
    """Yields the user's frames, innermost first; None for each library frame between them."""
    codes, places = traceback.raw_frames() if traceback else ([], [])
    for code, place in zip(codes, places, strict=True):
        is_own = is_users_file(code.co_filename)
        yield frame_of(code, place) if is_own else None


def _span(frame: Any) -> Span:
    return frame.start_line, frame.start_column, frame.end_line, frame.end_column


@lru_cache(maxsize=256)
def _statements(file_name: str) -> Mapping[Span, str]:
    """Returns the spans of whole right-hand sides of assignments and whole returned values."""
    try:
        tree = ast.parse("".join(linecache.getlines(file_name)))
    except SyntaxError:
        return {}
    found: dict[Span, str] = {}
    for node in ast.walk(tree):
        name, value = _target(node)
        if name is not None and value is not None:
            assert value.end_lineno is not None
            assert value.end_col_offset is not None
            found[value.lineno, value.col_offset, value.end_lineno, value.end_col_offset] = name
    return found


def _target(node: ast.AST) -> tuple[str | None, ast.expr | ast.stmt | None]:
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            return name, value
        case ast.AnnAssign(target=ast.Name(id=name), value=value):
            return name, value
        case ast.AugAssign(target=ast.Name(id=name)):
            return name, node
        case ast.NamedExpr(target=ast.Name(id=name), value=value):
            return name, value
        case ast.Return(value=value):
            return RETURNED, value
        case _:
            return None, None
