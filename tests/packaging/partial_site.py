"""A folder of installed packages that has only some of those of this environment."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path


def required(names: tuple[str, ...]) -> set[str]:
    """Distributions that some ask for, without extras, and theirs."""
    found: set[str] = set()
    todo = list(names)
    while todo:
        name = todo.pop().lower().replace("_", "-")
        if name in found:
            continue
        found.add(name)
        for text in distribution(name).requires or ():
            wanted, _, condition = text.partition(";")
            if "extra" not in condition:
                dependency = re.match(r"[\w.-]+", wanted)
                assert dependency
                try:
                    distribution(dependency[0])
                except PackageNotFoundError:
                    continue  # of another platform or Python
                todo.append(dependency[0])
    return found


def site_of(names: tuple[str, ...], folder: Path) -> Path:
    """A folder of links to distributions, their dependencies, NumPy and our own metadata."""
    folder.mkdir()
    for name in required(("numpy", *names)) - {"triton", "setuptools"} | {*names}:
        held = distribution(name)
        for top in {path.parts[0] for path in held.files or () if ".." not in path.parts}:
            link, source = folder / top, Path(str(held.locate_file(top)))
            if source.exists() and not link.exists():
                link.symlink_to(source)
    info = Path(str(distribution("stack-compiler")._path))  # pyright: ignore
    (folder / info.name).symlink_to(info)
    return folder
