"""The door of this wing: the function that the command `dump --profile` calls."""

from __future__ import annotations

from stack.measure.profile import profile

__all__ = ["profile"]
