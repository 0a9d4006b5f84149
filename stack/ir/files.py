"""IR text in files. Large constants are stored by digest in a NumPy archive next to the text.

The texts of a folder share one `constants.npz`; a text that is saved alone has its own
`<name>.constants.npz`. Nothing is pickled, and the parser checks every array against its digest.
"""

from __future__ import annotations

import io
import os
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from stack.errors import ParseError, UsageError
from stack.ir.data import INLINE_ELEMENTS, Data
from stack.ir.func import Func
from stack.ir.node import walk
from stack.ir.parser import parse
from stack.ir.untrusted_files import open_file, read_text

CONSTANTS = "constants.npz"

Arrays = Mapping[str, np.ndarray[Any, Any]]


def save(func: Func, path: str | Path) -> Path:
    """Writes a function's text, and `<name>.constants.npz` next to it if it has large constants.

    `load` returns the same function. Returns the path of the text.
    """
    file = Path(path)
    _write(_side_file(file), large_constants([func]))
    replace_file(file, str(func).encode())
    return file


def load(path: str | Path) -> Func:
    """Reads a function from a file of IR text, with the constants next to it.

    Raises ParseError, with the file's name as a note, and UsageError if a file cannot be read.
    """
    file = Path(path)
    try:
        text = read_text(file)
    except FileNotFoundError as error:
        raise UsageError(f"there is no file or saved run {str(file)!r}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read as IR text: {error}") from error
    try:
        return parse(text, {**load_constants(file.parent), **_read(_side_file(file))})
    except ParseError as error:
        error.add_note(f"in {file}")
        raise


def large_constants(funcs: Iterable[Func]) -> dict[str, Data]:
    """All constants that print as a digest, in all functions and their blocks."""
    found: dict[str, Data] = {}
    for func in funcs:
        for _, node in walk(func.body):
            for value in node.attrs.values():
                if isinstance(value, Data) and value.size > INLINE_ELEMENTS:
                    found[value.digest] = value
    return found


def save_constants(funcs: Iterable[Func], folder: str | Path) -> Path | None:
    """Writes `constants.npz` if a function needs it. Returns its path, else None.

    bf16 constants are stored as the float32 values that they hold.
    """
    path = Path(folder) / CONSTANTS
    return path if _write(path, large_constants(funcs)) else None


def load_constants(folder: str | Path) -> Arrays:
    """The constants of a folder's texts by digest; empty if there are none.

    The parser checks each against its digest. Raises UsageError for a damaged file.
    """
    return _read(Path(folder) / CONSTANTS)


def _side_file(path: Path) -> Path:
    return path.with_name(f"{path.stem}.{CONSTANTS}")


def _write(path: Path, found: Mapping[str, Data]) -> bool:
    if not found:
        path.unlink(missing_ok=True)
        return False
    arrays: dict[str, Any] = {digest: data.array for digest, data in found.items()}
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **arrays)
    replace_file(path, content.getbuffer())
    return True


def replace_file(path: Path, content: bytes | memoryview) -> None:
    """Writes a file atomically: a reader sees the old content or the new one."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    temporary = Path(name)
    try:
        temporary.write_bytes(content)
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _read(path: Path) -> Arrays:
    if not path.is_file():
        return {}
    damage = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error)
    try:
        with open_file(path) as file:
            _check_growth(file)
            with np.load(file, allow_pickle=False) as held:
                return {name: held[name] for name in held.files}
    except (*damage, NotImplementedError, RuntimeError, AttributeError, TypeError) as error:
        raise UsageError(f"{path} is damaged: {error}") from error
    except MemoryError as error:
        raise UsageError(f"{path} does not fit in memory") from error


def _check_growth(file: BinaryIO) -> None:
    """Raises ValueError for an archive with compressed entries, which are larger than the file."""
    with zipfile.ZipFile(file) as archive:
        held = sum(entry.file_size for entry in archive.infolist())
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if held > size:
        raise ValueError(f"it would expand from {size} to {held} bytes")
