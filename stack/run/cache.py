"""A disk cache of compiled code, by hash of its inputs.

An entry is its own digest followed by the bytes. Entries are written by an atomic rename, so a
reader sees a complete one or none. An entry that does not match its digest is a miss. So is an
entry that another user wrote or may have written: entries are run as code, and a digest is no
signature.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from stack.ir.untrusted_files import read_bytes

MAGIC = b"stack.obj/1\n"
MOST_BYTES = 1 << 28  # of an entry
HEAD = len(MAGIC) + hashlib.sha256().digest_size


def cache_folder() -> Path:
    """STACK_CACHE_DIR, or a folder in the user's cache directory."""
    found = os.environ.get("STACK_CACHE_DIR")
    if found:
        return Path(found)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stack"


@dataclass(frozen=True)
class Cache:
    """A folder of entries. If the folder cannot be written, every look-up is a miss."""

    folder: str | os.PathLike[str]

    def path(self, key: str) -> Path:
        """The path of an entry, which need not exist."""
        return Path(self.folder, key[:2], f"{key}.obj")

    def get(self, key: str) -> bytes | None:
        """The bytes stored under a key, or None. Ignores entries that another user may have
        written.
        """
        try:
            entry = read_bytes(self.path(key), MOST_BYTES, own=True)
        except OSError:
            return None
        body = entry[HEAD:]
        return body if entry[:HEAD] == _head(key, body) else None

    def put(self, key: str, body: bytes) -> None:
        """Stores bytes. Ignores a full or read-only disk."""
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
    # The key is digested too, so a valid entry renamed to another key does not match.
    return MAGIC + hashlib.sha256(key.encode() + b"\0" + body).digest()
