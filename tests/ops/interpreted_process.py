"""Scripts in Triton's interpreter, chosen at import: each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def interpreted(script: Path, *arguments: str) -> Any:
    """The JSON in the last line that a script prints; its errors if it fails."""
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
