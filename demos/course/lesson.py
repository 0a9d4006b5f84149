"""The lessons: each a script, an exercise with gaps, and checks.

The first cell of a script names what it teaches, how long it takes, and what it needs:

    # # 3. Fusion: what may share a kernel, and what should
    #
    # **Goals**: ...
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
    """One lesson. `path` is its script in percent format."""

    name: str  # "1" to "15"
    path: Path

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
        return " ".join(
            self._head(r"^# \*\*Goals\*\*: ((?:.|\n# (?=.))*)").replace("\n# ", " ").split()
        )

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
    def stem(self) -> str:
        """The end of the names of its files: "03"."""
        return f"{int(self.name):02}"

    @property
    def file(self) -> str:
        """The name of the file that a student writes."""
        return self.exercise.name

    @property
    def exercise(self) -> Path:
        return ROOM / "exercises" / f"exercise_{self.stem}.py"

    @property
    def solution(self) -> Path:
        return ROOM / "solutions" / f"solution_{self.stem}.py"


LESSONS = tuple(
    Lesson(str(int(path.name[7:9])), path)
    for path in sorted((ROOM / "lessons").glob("lesson_*.py"))
)


def find(name: str) -> Lesson | None:
    """Returns the lesson with this name, or None."""
    return next((lesson for lesson in LESSONS if lesson.name == name), None)
