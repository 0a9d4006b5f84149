"""Compiled code on disk, found by the hash of what it was made from.

An entry is its own digest followed by the bytes. Entries appear by an atomic rename, so that a
reader sees a whole one or none, and whatever does not match its digest is a miss. So is what
another user wrote or may have written: entries are run as code, and a digest is no signature.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

from stack.ir.trusted import read_bytes

MAGIC = b"stack.obj/1\n"
MOST_BYTES = 1 << 28  # of an entry
HEAD = len(MAGIC) + hashlib.sha256().digest_size


def cache_folder() -> Path:
    """STACK_CACHE_DIR, or a folder in the user's cache directory."""
    found = os.environ.get("STACK_CACHE_DIR")
    if found:
        return Path(found)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stack"


class Cache:
    """A folder of entries. A folder that cannot be written makes every look-up a miss."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def path(self, key: str) -> Path:
        """Where an entry is or would be."""
        return self.folder / key[:2] / f"{key}.obj"

    def get(self, key: str) -> bytes | None:
        """The bytes stored under a key, or None; nor what another user may have written."""
        try:
            entry = read_bytes(self.path(key), MOST_BYTES, own=True)
        except OSError:
            return None
        body = entry[HEAD:]
        return body if entry[:HEAD] == _head(key, body) else None

    def put(self, key: str, body: bytes) -> None:
        """Store; a full or read-only disk is not the caller's problem."""
        path = self.path(key)
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(_head(key, body) + body)
                os.replace(temporary, path)
            except OSError:
                os.unlink(temporary)


def _head(key: str, body: bytes) -> bytes:
    # The key is digested too: a valid entry renamed to another key's place is not that key's.
    return MAGIC + hashlib.sha256(key.encode() + b"\0" + body).digest()
