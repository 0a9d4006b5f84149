"""Counts of functions and files of ours that a small program runs, which a reader steps through."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

COUNTED = Path(__file__).with_name("functions_run.py")


@pytest.mark.parametrize(
    ("step", "functions", "files"),
    [
        ("trace", 99, 25),
        ("relu", 590, 98),
        ("softmax", 768, 123),
        ("llama", 1546, 178),
        ("call", 25, 10),
    ],
)
def test_a_small_program_runs_few_functions(step: str, functions: int, files: int) -> None:
    done = subprocess.run(
        [sys.executable, str(COUNTED), step], capture_output=True, text=True, check=True
    )
    found = re.search(rf"^{step}: (\d+) functions in (\d+) files$", done.stdout, re.MULTILINE)
    assert found is not None, done.stdout
    assert int(found[1]) <= functions, done.stdout
    assert int(found[2]) <= files, done.stdout
