"""Sweeps count right results, wrong ones, exceptions and dead processes, and go on after each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import random_sweep as sweep

PROGRAM = """
import os, sys
sys.path.insert(0, {folder!r})
import random_sweep as sweep

def check(seed):
    if seed == 2:
        raise AssertionError("1 is not 2")
    if seed == 3:
        raise KeyError("n.0")
    if seed == 5:
        os._exit(7)

sweep.KINDS["fake"] = (lambda: check, "")
sweep.__file__ = __file__
sys.exit(sweep.main())
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "fake.py"
    path.write_text(PROGRAM.format(folder=str(Path(sweep.__file__).parent)))
    return path


def test_all_verdicts_are_counted(program: Path) -> None:
    command = [sys.executable, str(program), "fake", "--seeds", "0:8"]
    environment = {**os.environ, "TMPDIR": str(program.parent)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 1
    last = done.stdout.splitlines()[-1]
    assert '"seeds": [0, 7]' in last
    assert '"counts": {"right": 5, "wrong": 1, "KeyError": 1, "dead process": 1}' in last
    assert "fake 5: the process died, exit code 7" in done.stdout


def test_a_sweep_of_lists_of_steps() -> None:
    found = sweep.sweep("lists", 0, 2, 5)
    assert found["counts"] == {"right": 2} and not found["failures"]
