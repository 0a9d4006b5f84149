"""Values of kernels in Triton's interpreter, which needs no GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

TESTS = Path(__file__).parents[2]


@pytest.mark.parametrize("more", [[], pytest.param(["--all"], marks=pytest.mark.slow)])
def test_values(more: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("interpreted.py")), *more],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": f"{TESTS}:{TESTS.parent}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) > (80 if more else 25)
    narrow = ("bf16", "bfloat16", "f16")
    wrong = {
        name: worst
        for name, (worst, _) in found.items()
        if not worst < (2e-2 if any(n in name for n in narrow) else 1e-5)
    }
    assert not wrong
    library = [name for name, (_, is_ours) in found.items() if not is_ours]
    assert not library
