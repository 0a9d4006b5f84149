"""Ranks that torchrun starts on this machine, without GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def torchrun(*args: str) -> subprocess.CompletedProcess[str]:
    """The command of that name; a hang is an error."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "CUDA_VISIBLE_DEVICES": ""}
    call = [sys.executable, "-m", "torch.distributed.run", "--rdzv-backend", "c10d"]
    call += ["--rdzv-endpoint", "localhost:0", *args]
    return subprocess.run(call, env=env, capture_output=True, text=True, timeout=900)
