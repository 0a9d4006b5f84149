"""Safe reading of untrusted files: no blocking, bounded memory, no escape from a folder.

A file is opened without waiting for a writer, and must be a regular file of bounded size. A file
that is executed must belong to the user. A name from a manifest must stay inside its folder.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

MOST_TEXT = 1 << 28  # bytes of a text
WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


def open_file(path: str | os.PathLike[str], most: int | None = None, own: bool = False) -> BinaryIO:
    """Opens a regular file for reading.

    Args:
        most: maximum number of bytes.
        own: True if only this user (or the superuser) may have written it.

    Raises:
        OSError: the reason why it may not be read.
    """
    handle = os.open(path, _FLAGS | (getattr(os, "O_NOFOLLOW", 0) if own else 0))
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(f"{path} is not a regular file")
        if most is not None and found.st_size > most:
            raise OSError(f"{path} has {found.st_size} bytes, at most {most} are read")
        if own and not _is_own(found):
            raise PermissionError(f"{path} may have been written by another user")
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def _is_own(found: os.stat_result) -> bool:
    if not hasattr(os, "geteuid"):
        return True
    return found.st_uid in (os.geteuid(), 0) and not found.st_mode & WRITABLE_BY_OTHERS


def read_bytes(path: str | os.PathLike[str], most: int, own: bool = False) -> bytes:
    """Reads all of a file that `open_file` accepts."""
    with open_file(path, most, own) as file:
        found = file.read(most + 1)  # it may have grown
    if len(found) > most:
        raise OSError(f"{path} has more than {most} bytes")
    return found


def read_text(path: str | os.PathLike[str]) -> str:
    """Reads text of bounded size. Raises OSError or UnicodeDecodeError."""
    return read_bytes(path, MOST_TEXT).decode("utf-8")


def inside(folder: Path, name: object) -> Path:
    """The file of a folder that a manifest names; follows links. Raises OSError if outside."""
    root = folder.resolve()
    if not isinstance(name, str) or not name or "\0" in name:
        raise OSError(f"{name!r} is not a file name")
    path = (root / name).resolve()
    if os.path.isabs(name) or path == root or not path.is_relative_to(root):
        raise OSError(f"{name!r} is not inside of {folder}")
    return path
