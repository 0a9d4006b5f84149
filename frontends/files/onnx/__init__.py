"""ONNX files as programs: `stackc dump model.onnx`. The package `onnx` reads and checks them.

Imports the table of lowerings in `files`. Importing this file does not import onnx; using it does.
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
    """Imports a model, see `model.import_model`."""
    from stack.frontends.files.onnx.model import load_model

    return load_model(path, inputs)


def missing() -> str | None:
    """Returns what to install; None if the package is here."""
    return None if importlib.util.find_spec("onnx") else "pip install onnx"


FORMAT = FileFormat("onnx", (".onnx",), load, missing)
