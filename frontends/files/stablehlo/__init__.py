"""StableHLO text as programs: `stackc dump program.mlir`. JAX's MLIR bindings parse it.

Imports the table of lowerings in `files`. Importing this file does not import JAX; using it does.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stack.run.file_format import FileFormat

if TYPE_CHECKING:
    from stack.ir.func import Func


def load(path: Path, inputs: Sequence[str]) -> Func:
    """Imports the function `main` of a module, or its first function."""
    from stack.frontends.files.stablehlo.module import import_text

    return import_text(path.read_text(encoding="utf-8"), path.name)


def missing() -> str | None:
    """Returns what to install; None if the package is here."""
    return None if importlib.util.find_spec("jaxlib") else "pip install jax"


FORMAT = FileFormat("stablehlo", (".mlir", ".stablehlo"), load, missing)
