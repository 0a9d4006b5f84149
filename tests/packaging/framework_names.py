"""Finds the product's source files, and dotted names in installed frameworks."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("backends", "demos", "frontends", "ops", "passes", "stack")
FRAMEWORKS = ("torch", "functorch", "jax", "jaxlib", "triton", "tvm", "torch_mlir")


def files() -> Iterator[Path]:
    """The project's own files; the links inside of `stack` are not followed."""
    for top in FOLDERS:
        for path in sorted((ROOT / top).rglob("*.py")):
            if not any(parent.is_symlink() for parent in path.parents):
                yield path


def chain(node: ast.expr) -> list[str]:
    """`a.b.c` as its parts; an empty head where it starts with something else than a name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [node.id if isinstance(node, ast.Name) else "", *reversed(parts)]


@cache
def installed(framework: str) -> bool:
    try:
        importlib.import_module(framework)
    except ImportError:
        return False
    return True


@cache
def exists(name: str) -> bool:
    """True if a dotted name resolves, up to the first value that is neither module nor class.

    A module that ends the name is found, not loaded: some of TVM's take minutes.
    """
    head, *rest = name.split(".")
    found: object = importlib.import_module(head)
    path = head
    for part in rest:
        path = f"{path}.{part}"
        if hasattr(found, part):
            found = getattr(found, part)
        elif not isinstance(found, ModuleType) or not hasattr(found, "__path__"):
            return False
        elif path == name:
            return find_spec(name) is not None
        else:
            try:
                found = importlib.import_module(path)
            except ImportError:
                return False
        if not isinstance(found, ModuleType | type):
            return True
    return True
