"""Reading files that somebody else may have put there: no waiting, no end of memory, no way out.

A file is opened without waiting for a writer, and has to be a regular one of a bounded size; what
is run as code has to be the user's own. A name from a manifest stays inside of its folder.
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
    """A regular file, open for reading.

    Args:
        most: bytes that it may hold.
        own: whether nobody but this user (and the superuser) may have written it.

    Raises:
        OSError: what stands against reading it.
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
    """All of a file that `open_file` opens."""
    with open_file(path, most, own) as file:
        found = file.read(most + 1)  # it may have grown
    if len(found) > most:
        raise OSError(f"{path} has more than {most} bytes")
    return found


def read_text(path: str | os.PathLike[str]) -> str:
    """A text of a bounded size. Raises OSError or UnicodeDecodeError."""
    return read_bytes(path, MOST_TEXT).decode("utf-8")


def inside(folder: Path, name: object) -> Path:
    """The file of a folder that a manifest names; links are followed. Raises OSError outside."""
    root = folder.resolve()
    if not isinstance(name, str) or not name or "\0" in name:
        raise OSError(f"{name!r} is no name of a file")
    path = (root / name).resolve()
    if os.path.isabs(name) or path == root or not path.is_relative_to(root):
        raise OSError(f"{name!r} is not inside of {folder}")
    return path
