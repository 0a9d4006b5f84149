"""Tests for authors of passes: `check_pass`, and `.stack` files for pytest."""

from __future__ import annotations

from stack.testing.passes import PassReport, captured_graphs, check_pass

__all__ = ["PassReport", "captured_graphs", "check_pass"]
