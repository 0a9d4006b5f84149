"""Runs a function again whenever a file is saved."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

SUFFIXES = (".py", ".stack", ".toml")
PAUSE = 0.3  # seconds between polls


def saved(paths: Iterable[Path]) -> dict[Path, int]:
    """The modification time of each source file, including those in folders."""
    found: dict[Path, int] = {}
    for path in paths:
        inside = path.rglob("*") if path.is_dir() else (path,)
        for file in inside:
            if file.suffix in SUFFIXES and file.is_file():
                found[file] = file.stat().st_mtime_ns
    return found


def watch(
    paths: Iterable[Path], run: Callable[[list[Path]], object], turns: int | None = None
) -> None:
    """Calls `run` with the changed files: once at the start with none, then at every save.

    `turns`: maximum number of calls, for tests. Ends on an interrupt.
    """
    held = list(paths)
    before = saved(held)
    changed: list[Path] = []
    while turns is None or turns > 0:
        run(changed)
        turns = None if turns is None else turns - 1
        changed = []
        while not changed and turns != 0:
            time.sleep(PAUSE)
            now = saved(held)
            changed = [file for file in {**before, **now} if before.get(file) != now.get(file)]
            before = now
