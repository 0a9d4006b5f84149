"""A lesson: a script, an exercise with gaps, and checks.

The first cell of a script names what it teaches, how long it takes, and what it needs:

    # # 3. Fusion: what may share a kernel, and what should
    #
    # **Goals**: after this lesson you can ...
    #
    # **Time**: 60 minutes. **Needs**: Python and NumPy.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOM = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Lesson:
    """One lesson. `path` is its script in percent format: `lesson_03_fusion.py` for lesson 3."""

    path: Path

    @property
    def stem(self) -> str:
        """The part of file names that says which lesson it is: "03"."""
        return self.path.name.split("_")[1]

    @property
    def name(self) -> str:
        """The name that commands take: "3"."""
        return self.stem.lstrip("0")

    @cached_property
    def text(self) -> str:
        """The script."""
        return self.path.read_text(encoding="utf-8")

    @property
    def title(self) -> str:
        return self._head(r"^# # \w+\. (.*)$")

    @property
    def goals(self) -> str:
        """The abilities that the lesson teaches, as a sentence."""
        found = self._head(r"^# \*\*Goals\*\*: ((?:.|\n# (?=.))*)")
        return " ".join(found.replace("\n# ", " ").split())

    @property
    def minutes(self) -> int:
        return int(self._head(r"\*\*Time\*\*: (\d+) minutes"))

    @property
    def needs(self) -> str:
        """The packages that the lesson imports."""
        return self._head(r"\*\*Needs\*\*: (.*)\.$")

    def _head(self, pattern: str) -> str:
        found = re.search(pattern, self.text, re.MULTILINE)
        assert found, f"{self.path} has no {pattern}"
        return found[1]

    @property
    def file(self) -> str:
        """The name of the file that a student writes."""
        return f"exercise_{self.stem}.py"

    @property
    def exercise(self) -> str:
        """The text of the exercise, with gaps."""
        return (ROOM / "exercises" / self.file).read_text(encoding="utf-8")

    @property
    def solution(self) -> Path:
        return ROOM / "solutions" / f"solution_{self.stem}.py"

    @property
    def task(self) -> str:
        """The text before the exercise in a notebook."""
        return "Fill the gaps of this cell, run it, then run the next one."

    @property
    def begin(self) -> str:
        """The cell of a notebook that writes the exercise."""
        return f"%%writefile {self.file}\n{self.exercise}".rstrip()

    def start(self, path: Path) -> str:
        """Writes the exercise to a file; returns why it cannot, or ""."""
        if path.exists():
            return f"{path} exists already: delete or rename it to start again"
        path.write_text(self.exercise, encoding="utf-8")
        return ""
