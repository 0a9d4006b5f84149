"""Lets the tests of this folder run CUDA C++ in the emulator of the cuda backend's."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "backends" / "cuda"))
