"""Grading: the checks of a lesson, each run on what a student wrote."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from stack.demos.course.lesson import Lesson


class Gap(NotImplementedError):
    """Raised by an exercise at code that the student has not written yet."""


@dataclass(frozen=True)
class Result:
    """Result of one check. `says` is what the check asks for; `problem` is "" if it passes."""

    name: str
    says: str
    problem: str = ""

    @property
    def passed(self) -> bool:
        return not self.problem


def load(path: Path) -> ModuleType:
    """Imports a student's file as a module, which raises the errors of the file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def checks_of(lesson: Lesson) -> list[Callable[[Any], None]]:
    """Returns the check functions of a lesson, in the order of their file."""
    module = importlib.import_module(f"stack.demos.course.checks.check_{lesson.number:02}")
    mine = [f for f in vars(module).values() if getattr(f, "__module__", "") == module.__name__]
    found = [f for f in mine if f.__name__.startswith("check_")]
    return sorted(found, key=lambda f: f.__code__.co_firstlineno)


def grade(lesson: Lesson, path: Path) -> list[Result]:
    """Runs every check of a lesson on a student's file; all fail if it cannot be loaded."""
    try:
        module = load(path)
    except Exception as error:
        return [Result("load", f"{path.name} is Python that runs", _where(error, path))]
    return [_one(check, module, path) for check in checks_of(lesson)]


def _one(check: Callable[[Any], None], module: ModuleType, path: Path) -> Result:
    name = check.__name__.removeprefix("check_").replace("_", " ")
    says = inspect.getdoc(check) or name
    try:
        check(module)
    except Gap as gap:
        return Result(name, says, f"a gap is left: {gap}")
    except AssertionError as error:
        return Result(name, says, str(error) or "it does not hold")
    except Exception as error:
        return Result(name, says, _where(error, path))
    return Result(name, says)


def _where(error: Exception, path: Path) -> str:
    """Formats an error in one line, with the last line of the student's file that raised it."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename) == path]
    place = f" at {path.name}:{frames[-1].lineno}: `{frames[-1].line}`" if frames else ""
    told = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}{place}: {told}"


def report(found: list[Result]) -> str:
    """Formats the results of checks: a line for each check, and a summary line."""
    lines = [f"{'ok  ' if r.passed else 'FAIL'}  {r.says}" for r in found]
    told = [f"      {r.problem}" for r in found]
    rows = [row for pair in zip(lines, told, strict=True) for row in pair if row.strip()]
    return "\n".join([*rows, f"{sum(r.passed for r in found)} of {len(found)} checks pass"])
