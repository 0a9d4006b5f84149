"""The lessons: 1 to 12 and on, and the steps b1 to b8 of building the compiler."""

from __future__ import annotations

from stack.demos.course.lesson import ROOM, Lesson
from stack.demos.course.steps import Step

LESSONS: tuple[Lesson, ...] = tuple(
    Step(path) if path.name.startswith("lesson_b") else Lesson(path)
    for path in sorted((ROOM / "lessons").glob("lesson_*.py"))
)


def find(name: str) -> Lesson | None:
    """Returns the lesson with this name, or None."""
    return next((lesson for lesson in LESSONS if lesson.name == name), None)
