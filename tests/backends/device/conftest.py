"""Lets the tests of this folder import its harness, and leaves them out where torch is missing."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]
