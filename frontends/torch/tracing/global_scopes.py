"""Functions whose globals belong to no imported module, for example code run by `exec`.

To inline a function, Dynamo finds its globals by importing the module of that name. If no such
module is imported, this fails; if another module has the name, Dynamo guards the wrong globals. For
globals without a `__name__`, Dynamo guards the dict itself, which is correct for all of these.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch

from stack.run.rejected_arguments import is_users


@contextmanager
def nameless(fn: Any) -> Iterator[None]:
    """Hides the `__name__` of unimported globals of functions that `fn` calls.

    Globals whose `__name__` a function reads keep it: a trace would see another value.
    """
    names = [(scope, scope.pop("__name__")) for scope in unimported(fn)]
    try:
        yield
    finally:
        for scope, name in names:
            scope["__name__"] = name


def unimported(fn: Any) -> list[dict[str, Any]]:
    """Returns the globals of `fn`, and of functions it may call, that no imported module owns.

    Follows references of the user's functions: closures, globals, modules and objects. Globals
    whose `__name__` some function reads are left out.
    """
    found: dict[int, dict[str, Any]] = {}
    readers: set[int] = set()
    seen: dict[int, Any] = {}  # keeps temporary objects alive, so that ids stay unique
    pending: list[Any] = [fn]
    while pending:
        value = pending.pop()
        if value is None or id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, FunctionType | ModuleType):
            scope = value.__globals__ if isinstance(value, FunctionType) else vars(value)
            if not _is_imported(scope):
                found[id(scope)] = scope
        if isinstance(value, FunctionType):
            if "__name__" in value.__code__.co_names:
                readers.add(id(value.__globals__))
            if is_users(value.__code__.co_filename):
                pending.extend(_referred(value))
        elif not isinstance(value, ModuleType):
            pending.extend(_parts(value))
    return [scope for key, scope in found.items() if key not in readers]


def _is_imported(scope: dict[str, Any]) -> bool:
    """True if globals belong to the imported module of their name, or have no name."""
    name = scope.get("__name__")
    return name is None or getattr(sys.modules.get(name), "__dict__", None) is scope


def _referred(fn: FunctionType) -> Iterator[Any]:
    """Yields objects that a function refers to: globals, closure cells, named items of both."""
    code = fn.__code__
    values = [fn.__globals__.get(name) for name in code.co_names]
    for cell in fn.__closure__ or ():
        try:
            values.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            continue
    yield getattr(fn, "__wrapped__", None)
    for value in values:
        yield value
        if isinstance(value, ModuleType) and not _is_imported(vars(value)):
            yield from (vars(value).get(name) for name in code.co_names)
        elif isinstance(value, dict):
            named = [value[key] for key in code.co_consts if isinstance(key, str) and key in value]
            yield from named or [item for item in [*value.values()] if callable(item)]


def _parts(value: Any) -> Iterable[Any]:
    """Returns the callables and objects that a value other than a function may call."""
    if isinstance(value, MethodType | staticmethod | classmethod):
        return value.__func__, getattr(value, "__self__", None)
    if isinstance(value, functools.partial):
        return value.func, *value.args, *value.keywords.values()
    if isinstance(value, property):
        return value.fget, value.fset
    if isinstance(value, type):
        return *value.__bases__, *(vars(value).values() if _is_defined(value) else ())
    if isinstance(value, list | tuple):
        return [item for item in value if callable(item)]
    held = value.modules() if isinstance(value, torch.nn.Module) else (value,)
    return [part for h in held for part in (type(h), *_attributes(h))]


def _is_defined(cls: type) -> bool:
    """True if a class is the user's, or is not the one that its module has under its name."""
    module = sys.modules.get(cls.__module__)
    is_there = getattr(module, cls.__name__, None) is cls
    return not is_there or is_users(getattr(module, "__file__", None) or "")


def _attributes(value: Any) -> list[Any]:
    """Returns functions, methods and partials among the attributes of an object."""
    if isinstance(value, torch.Tensor):
        return []
    kinds = FunctionType | MethodType | functools.partial
    return [v for v in getattr(value, "__dict__", {}).values() if isinstance(v, kinds)]
