"""Wrong answers to the exercises of the course, and the report that a student gets for each.

    python tests/demos/course_wrong.py > demos/course/wrong_answers.md

A wrong answer is the solution with one text replaced: course_wrong.toml lists them, and
tests/demos/test_course.py grades them all.
"""

from __future__ import annotations

import os
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stack.demos.course.catalog import find
from stack.demos.course.grading import Result, grade
from stack.demos.course.lesson import Lesson

ANSWERS: dict[str, list[dict[str, str]]] = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
)


@dataclass(frozen=True)
class WrongAnswer:
    """A solution with one text replaced. `why` says what is wrong with it."""

    lesson: Lesson
    why: str
    old: str
    new: str

    def write(self, folder: Path) -> Path:
        """Writes the answer to a file of this folder."""
        text = self.lesson.solution.read_text(encoding="utf-8")
        assert text.count(self.old) == 1, (
            f"{text.count(self.old)} times in the solution: {self.old}"
        )
        path = folder / self.lesson.file
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")
        return path

    def graded(self, folder: Path) -> Result | None:
        """The first check that it fails."""
        path = self.write(folder)
        return next((result for result in grade(self.lesson, path) if not result.passed), None)


def wrong_answers() -> Iterator[WrongAnswer]:
    for name, answers in ANSWERS.items():
        lesson = find(name)
        assert lesson is not None
        yield from (WrongAnswer(lesson, **answer) for answer in answers)


def rows() -> Iterator[str]:
    """The page: for each wrong answer the first check that it fails."""
    yield "# Wrong answers, and the reports that students get\n"
    yield "Written by `tests/demos/course_wrong.py`; a second wrong try shows a hint as well.\n"
    yield "| lesson | wrong answer | input | expected | got |"
    yield "|---|---|---|---|---|"
    with tempfile.TemporaryDirectory() as folder:
        for answer in wrong_answers():
            told = answer.graded(Path(folder))
            assert told is not None, answer
            cells = [told.given, told.expected, told.problem]
            yield f"| {answer.lesson.name} | {answer.why} | " + " | ".join(map(_cell, cells)) + " |"


def _cell(text: str) -> str:
    short = text if len(text) <= 120 else f"{text[:120]} ..."
    return "`" + short.replace("|", "\\|").replace("\n", " ").replace("`", "'") + "`"


if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"  # lesson 15; Triton reads it when it is imported
    print(*rows(), sep="\n")
