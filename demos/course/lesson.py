"""The lessons that there are: each a script, an exercise with gaps, and checks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOM = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Lesson:
    """One lesson. `path` is its script in percent format, whose first line is its title."""

    number: int
    path: Path

    @property
    def title(self) -> str:
        found = re.search(r"^# # \d+\. (.*)$", self.path.read_text(encoding="utf-8"), re.MULTILINE)
        return found[1] if found else self.path.stem

    @property
    def exercise(self) -> Path:
        return ROOM / "exercises" / f"exercise_{self.number:02}.py"

    @property
    def solution(self) -> Path:
        return ROOM / "solutions" / f"solution_{self.number:02}.py"


LESSONS = tuple(
    Lesson(int(path.name[7:9]), path) for path in sorted((ROOM / "lessons").glob("lesson_*.py"))
)


def find(number: int) -> Lesson | None:
    """Returns the lesson with this number, or None."""
    return next((lesson for lesson in LESSONS if lesson.number == number), None)
