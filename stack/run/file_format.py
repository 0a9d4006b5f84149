"""File formats of other tools that are imported as programs. Entry point group `stack.formats`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import stack.plugins as plugins
from stack.errors import UsageError
from stack.ir.func import Func

GROUP = "stack.formats"


@dataclass(frozen=True)
class FileFormat:
    """One format of files. The object of the entry point is named FORMAT.

    Attributes:
        suffixes: of file names, such as ".onnx".
        load: `(path, inputs) -> Func`; the inputs are types such as "f32[2,16]", one for each
            argument, or none.
        missing: returns what has to be installed; None if nothing.
    """

    name: str
    suffixes: tuple[str, ...]
    load: Callable[[Path, Sequence[str]], Func]
    missing: Callable[[], str | None]


def load_file(path: Path, inputs: Sequence[str] = ()) -> Func | None:
    """Imports a file by the format that has its suffix; None if no format has it.

    Raises UsageError if the format's package is not installed. A format that cannot be imported is
    left out: its wing is missing or broken, see `stack.wings`.
    """
    for name in plugins.names(GROUP):
        try:
            found: FileFormat = plugins.load(GROUP, name)
        except Exception:
            continue
        if path.suffix in found.suffixes:
            lacks = found.missing()
            if lacks is not None:
                raise UsageError(f"{path} is read by the package of {name}: {lacks}")
            return found.load(path, inputs)
    return None
