"""Second thoughts of fuse: hand the start of a row group to the dot before it."""

from __future__ import annotations

from stack.rewrite.fusion import Grouping


def carve_epilogues(grouping: Grouping) -> None:
    """Not yet."""
