"""A lesson in a terminal: the words and the code of each cell, then what the code prints."""

from __future__ import annotations

import sys
from types import ModuleType

from stack.demos.course.lesson import Lesson
from stack.demos.course.notebook import cells


def read(lesson: Lesson) -> None:
    """Prints each cell of a lesson and runs its code, all in one module `__main__`."""
    module = ModuleType("__main__")
    module.__file__ = str(lesson.path)
    before = sys.modules["__main__"]
    sys.modules["__main__"] = module  # classes of a lesson look their annotations up here
    at = 0
    try:
        for kind, body in cells(lesson.text):
            if kind == "markdown":
                print(body, end="\n\n")
                continue
            at = lesson.text.index(body, at)
            print(*(f"    {line}".rstrip() for line in body.splitlines()), "", sep="\n", flush=True)
            above = "\n" * lesson.text.count("\n", 0, at)  # so that nodes have lines of the script
            exec(compile(above + body, str(lesson.path), "exec"), vars(module))
            print()
    finally:
        sys.modules["__main__"] = before
