"""Replaces an attribute of another package for a while."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Generator[None]:
    """Context in which an attribute of an object has another value. All threads see it."""
    known: dict[str, Any] = owner.__dict__
    is_own, before = name in known, known.get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if is_own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)
