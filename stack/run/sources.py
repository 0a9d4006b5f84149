"""Texts of the user's source files, for display with the results."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from stack.ir.func import Func
from stack.ir.node import walk


def lines_of(func: Func) -> list[str]:
    """`block.py:42` for every source line of a function, each once."""
    found = (s.split(" ")[0] for b, n in walk(func.body) for s in b.locs.get(n, ()))
    return list(dict.fromkeys(found))


def source_files(lines: Iterable[str]) -> dict[str, str]:
    """Texts of the files that lines such as "block.py:42" name, if this process has read them.

    Lines contain no folder. Of two files with one name, the one below the working directory is
    used.
    """
    wanted = dict.fromkeys(line.rpartition(":")[0] for line in lines)
    found: dict[str, str] = {}
    for path in sorted(_loaded(), key=_distance):
        name = Path(path).name
        if name in wanted and name not in found:
            text = "".join(linecache.getlines(path))
            if text:
                found[name] = text
    return {name: found[name] for name in wanted if name in found}


def _loaded() -> Iterator[str]:
    """Files of modules, and the cells of a notebook, which exist only in `linecache`."""
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and path.endswith(".py"):
            yield path
    yield from list(linecache.cache)


def _distance(path: str) -> tuple[bool, int, str]:
    is_near = Path(path).is_relative_to(Path.cwd()) and "site-packages" not in path
    return (not is_near, len(path), path)
