"""Number of wrong tries of each check, so that hints appear after the second one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from stack.run.cache import cache_folder


def count_tries(lesson: str, path: Path, wrong: Iterable[str]) -> dict[str, int]:
    """Counts one more try for each wrong check of a lesson on a file; returns their tries.

    Grading the same text again is no new try. Tries are stored in the cache directory. Without one
    that can be written, each try is the first.
    """
    name = hashlib.sha256(f"{lesson} {path.resolve()}".encode()).hexdigest()[:16]
    store = cache_folder() / "course" / f"{name}.json"
    text = hashlib.sha256(path.read_bytes()).hexdigest()
    known = _read(store)
    found: dict[str, int] = {}
    for check in wrong:
        entry = known.get(check, {"tries": 0, "text": ""})
        if entry["text"] != text:
            entry = {"tries": entry["tries"] + 1, "text": text}
        known[check], found[check] = entry, entry["tries"]
    with suppress(OSError):
        store.parent.mkdir(parents=True, exist_ok=True)
        store.write_text(json.dumps(known), encoding="utf-8")
    return found


def _read(store: Path) -> dict[str, dict[str, Any]]:
    """Returns what is stored; nothing if the file is missing or was changed by hand."""
    try:
        known = json.loads(store.read_text(encoding="utf-8"))
        return {
            name: {"tries": int(e["tries"]), "text": str(e["text"])} for name, e in known.items()
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}
