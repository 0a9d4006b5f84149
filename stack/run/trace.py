"""Finds the frontend of a user's callable, and traces the callable with it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from typing import Any

import stack.plugins as plugins
from stack.errors import UsageError
from stack.ir.func import Func
from stack.releases import install_hint, warn_if_untested
from stack.run.frontend import Entry, Frontend
from stack.run.ir_frontend import IRFrontend
from stack.run.rejected_arguments import capture_as_eager


def find_frontend(fn: Any, args: Sequence[Any], name: str = "auto") -> Frontend:
    """The frontend of a callable. "auto" tries those whose framework is already loaded.

    A function of the IR has a frontend of its own.
    """
    if isinstance(fn, Func):
        return IRFrontend()
    known = plugins.names("stack.frontends")
    if name != "auto":
        if name in known and name not in sys.modules and not is_installed(name):
            raise UsageError(f"{name} is not installed: {install_hint(name)}")
        warn_if_untested(name)
        return plugins.load("stack.frontends", name)
    loaded = [n for n in known if n in sys.modules]
    for candidate in loaded:
        frontend: Frontend = plugins.load("stack.frontends", candidate)
        if frontend.accepts(fn, args):
            warn_if_untested(candidate)
            return frontend
    absent = [f"{n} ({install_hint(n)})" for n in known if not is_installed(n)]
    more = f"; not installed: {', '.join(absent)}" if absent else ""
    raise UsageError(
        f"cannot find the framework of {fn!r} (loaded: {', '.join(loaded) or 'none'});"
        f" pass frontend= one of {', '.join(known)}{more}"
    )


def entry_of(target: Any, frontend: str = "auto") -> Entry:
    """Returns the user's callable as an `Entry`, prepared by the first loaded framework that
    recognizes it; unprepared if none does.
    """
    for name in plugins.names("stack.frontends"):
        if name in sys.modules and frontend in ("auto", name):
            found = plugins.load("stack.frontends", name).entry(target)
            if found is not None:
                return found
    return Entry(target)


def is_installed(framework: str) -> bool:
    """True if the module that a frontend is named after can be found; does not import it."""
    try:
        return importlib.util.find_spec(framework) is not None
    except ValueError:  # loaded by hand: the module has no spec
        return True


def trace(fn: Any, *args: Any, frontend: str = "auto", dynamic: bool = False) -> Func:
    """Captures and imports a torch module or function, or a JAX function, without compiling it."""
    entry = entry_of(fn, frontend)
    args = args or entry.args or ()
    found = find_frontend(entry.fn, args, frontend)
    return capture_as_eager(found, entry.fn, args, dynamic=dynamic).func
