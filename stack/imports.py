"""Imports modules that a user names: `pkg.mod`, or a Python file."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stack.errors import UsageError, unknown_name

_FROM_FILE = "plugin_"


def import_named(name: str) -> types.ModuleType:
    """Imports a module, or runs a file once and caches it. Raises UsageError with the cause."""
    if not name.endswith(".py"):
        try:
            return importlib.import_module(name)
        except ImportError as error:
            raise UsageError(f"no module {name!r}: {error}") from error
    path = Path(name).resolve()
    if not path.is_file():
        near = ", ".join(sorted(p.name for p in path.parent.glob("*.py"))[:5]) or "no Python files"
        raise UsageError(f"there is no file {name}; beside it: {near}")
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == str(path):
            return module
    known = f"{_FROM_FILE}{path.stem}"
    spec = importlib.util.spec_from_file_location(known, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[known] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[known]
        raise
    return module


def importable(module: str) -> str:
    """Returns the name by which `import_named` finds a loaded module in any process: a path or a
    name.
    """
    path = getattr(sys.modules.get(module), "__file__", None)
    return str(path) if path and module.startswith(_FROM_FILE) else module


def function_of(name: str) -> Callable[..., Any]:
    """Returns the function named `file.py:function` or `module:function`. Raises UsageError if
    missing.
    """
    left, _, attribute = name.rpartition(":")
    module = import_named(left)
    if not callable(getattr(module, attribute, None)):
        known = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise unknown_name(f"{left} has no function", attribute, known)
    return getattr(module, attribute)
