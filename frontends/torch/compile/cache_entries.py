"""Fast path for calls: runs code that Dynamo has compiled without Dynamo's own wrapper.

Dynamo's wrapper sets up a capture around every call, which takes longer than guards and program
together. If the guards of a cache entry hold, the entry's code is called directly. Calls under a
mode, a transform, a trace or another stance go through Dynamo, and so do calls for which no guard
holds.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import CodeType, FunctionType, MethodType
from typing import Any

from stack.frameworks.torch_private import compiled_entries, plain_call_check, without_wrapper

_is_plain = plain_call_check()
_GRAPH = "__compiled_fn_"  # prefix of the globals by which Dynamo's code calls compiled graphs
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class _Entry:
    """One entry of Dynamo's cache: guards, and the code for arguments that satisfy them.

    Attributes:
        owner: Dynamo's guard manager; it has no cache entry any more once Dynamo drops the entry.
        holds: checks the guards on a call's arguments, given by name.
    """

    owner: Any
    holds: Callable[[Mapping[str, Any]], bool]
    code: Callable[..., Any]


class Entries:
    """Dynamo's cache entries for one function or method with a code object of its own.

    Attributes:
        bound: arguments that come before those of a call.
    """

    def __init__(self, call: FunctionType | MethodType) -> None:
        is_method = isinstance(call, MethodType)
        self.fn: Any = call.__func__ if is_method else call
        self.bound: tuple[Any, ...] = (call.__self__,) if is_method else ()
        fn, code = self.fn, self.fn.__code__
        named = code.co_argcount + code.co_kwonlyargcount
        self.names = code.co_varnames[:named]
        self.rest = code.co_varnames[named] if code.co_flags & CO_VARARGS else ""
        behind = named + bool(self.rest)
        self.words = code.co_varnames[behind] if code.co_flags & CO_VARKEYWORDS else ""
        defaults = fn.__defaults__ or ()
        places = self.names[code.co_argcount - len(defaults) : code.co_argcount]
        self.defaults = {**dict(zip(places, defaults, strict=True)), **(fn.__kwdefaults__ or {})}
        # number of arguments of a call that needs no binding by name; -1 if every call needs it
        is_simple = not (self.rest or self.words or code.co_kwonlyargcount)
        self.simple = code.co_argcount if is_simple else -1
        # true if the function takes all arguments as `*args`, as ours around a module does
        self.is_open = bool(self.rest) and not self.names
        self.cells = tuple(zip(code.co_freevars, fn.__closure__ or (), strict=True))
        self.found: tuple[_Entry, ...] = ()

    def are_made(self) -> bool:
        """True if Dynamo has compiled the function and has not been reset since."""
        return bool(compiled_entries(self.fn.__code__))

    def refresh(self) -> None:
        """Read Dynamo's cache again."""
        known = {id(e.owner): e for e in self.found}
        entries = compiled_entries(self.fn.__code__)
        self.found = tuple(known.get(id(e.guard_manager)) or self._entry(e) for e in entries)

    def _entry(self, entry: Any) -> _Entry:
        fn, guards = self.fn, entry.guard_manager
        code, names = _bare(entry.code, fn.__globals__)
        own = FunctionType(code, fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
        own.__kwdefaults__ = fn.__kwdefaults__
        for name in names:
            weakref.finalize(own, fn.__globals__.pop, name, None)
        return _Entry(guards, guards.root.check, own)

    def find(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any] | None:
        """Returns the code to call with `bound` and the arguments, or None for a call of Dynamo's.

        Has no side effect on a call that Dynamo then handles.
        """
        found = self.found
        if not found or not _is_plain():
            return None
        everything = (*self.bound, *args) if self.bound else args
        if len(everything) == self.simple and not kwargs:
            given = dict(zip(self.names, everything))
        elif self.is_open and not kwargs:
            given = {self.rest: everything, **({self.words: {}} if self.words else {})}
        else:
            given = self._named(everything, kwargs)
        if given is None:
            return None
        try:
            for name, cell in self.cells:
                given[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            return None
        for entry in found:
            if entry.owner.cache_entry is not None and entry.holds(given):
                if entry is not found[0]:  # the next call probably matches the same entry
                    self.found = (entry, *(e for e in found if e is not entry))
                return entry.code
        return None

    def _named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
        """Binds arguments to parameter names; None if the function does not accept them."""
        code = self.fn.__code__
        count = code.co_argcount
        given = dict(zip(self.names[:count], args, strict=False))
        if self.rest:
            given[self.rest] = args[count:]
        elif len(args) > count:
            return None
        words: dict[str, Any] = {}
        for name, value in kwargs.items():
            is_named = name in self.names[code.co_posonlyargcount :]
            if name in given or not (is_named or self.words):
                return None
            (given if is_named else words)[name] = value
        if self.words:
            given[self.words] = words
        for name in self.names:
            if name not in given:
                if name not in self.defaults:
                    return None
                given[name] = self.defaults[name]
        return given


def _bare(code: CodeType, names: dict[str, Any]) -> tuple[CodeType, list[str]]:
    """Returns Dynamo's code with direct calls of graphs, and the new globals that it calls.

    Dynamo wraps graphs so that it does not trace them. This path is taken only when nothing traces,
    so the wrapper is not needed. The graphs get new names beside Dynamo's.
    """
    found: dict[str, str] = {}
    for name in code.co_names:
        wrapped = names.get(name) if name.startswith(_GRAPH) else None
        inner = without_wrapper(wrapped) if wrapped is not None else None
        if inner is None:
            continue
        found[name] = f"{name}_bare_{next(_numbers)}"
        names[found[name]] = inner
    bare = code.replace(co_names=tuple(found.get(n, n) for n in code.co_names))
    return bare, [*found.values()]
