"""Tests for authors of passes: `check_pass`, `problem_of`, and `.stack` files for pytest."""

from __future__ import annotations

from stack.testing.passes import PassReport, captured_graphs, check_pass, problem_of

__all__ = ["PassReport", "captured_graphs", "check_pass", "problem_of"]
