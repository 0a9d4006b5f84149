"""Has pytest collect the `.stack` files of this folder."""

from __future__ import annotations

from stack.testing.filecheck import pytest_collect_file

__all__ = ["pytest_collect_file"]
