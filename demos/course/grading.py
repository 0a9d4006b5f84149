"""Grading: the checks of a lesson, each run on what a student wrote."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from stack.demos.course.answers import LONGEST, Gap, Wrong
from stack.demos.course.lesson import Lesson

HINTS_FROM = 2  # wrong tries of a check after which its hint is shown


@dataclass(frozen=True)
class Result:
    """Result of one check.

    Attributes:
        says: the requirement that the check tests.
        problem: what came out; "" if the check passes.
        given: the input for which it came out, if there is one.
        expected: what the solution returns there.
        hint: how to go on; reports show it after the second wrong try.
    """

    name: str
    says: str
    problem: str = ""
    given: str = ""
    expected: str = ""
    hint: str = ""
    is_gap: bool = False

    @property
    def passed(self) -> bool:
        return not self.problem

    @property
    def is_wrong(self) -> bool:
        """True for a try that failed; a gap is no try."""
        return not self.passed and not self.is_gap


def load(path: Path) -> ModuleType:
    """Imports a student's file as a module, which raises the errors of the file."""
    name = f"answers_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def checks_of(lesson: Lesson) -> list[Callable[[Any], None]]:
    """Returns the check functions of a lesson, in the order of their file."""
    module = importlib.import_module(f"stack.demos.course.checks.check_{lesson.stem}")
    mine = [f for f in vars(module).values() if getattr(f, "__module__", "") == module.__name__]
    found = [f for f in mine if f.__name__.startswith("check_")]
    return sorted(found, key=lambda f: f.__code__.co_firstlineno)


def grade(lesson: Lesson, path: Path) -> Iterator[Result]:
    """Runs the checks of a lesson on a student's file; fails once if it cannot be loaded.

    What the file prints goes to stderr, so that stdout has the report alone.
    """
    path = path.resolve()
    checks = checks_of(lesson)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            module = load(path)
    except (Exception, SystemExit) as error:
        yield Result("load", f"{path.name} is Python that runs", _where(error, path))
        return
    for check in checks:
        with contextlib.redirect_stdout(sys.stderr):
            result = _one(check, module, path)
        yield result


def _one(check: Callable[[Any], None], module: ModuleType, path: Path) -> Result:
    name = check.__name__.removeprefix("check_").replace("_", " ")
    says, _, hint = (inspect.getdoc(check) or name).partition("\n\nHint: ")
    hint = " ".join(hint.split())
    try:
        check(module)
    except Gap as gap:
        return Result(name, says, f"a gap is left: {gap}", hint=hint, is_gap=True)
    except Wrong as wrong:
        found = _where(wrong.__cause__, path) if wrong.__cause__ is not None else wrong.found
        return Result(name, says, found, wrong.given, wrong.expected, hint)
    except AttributeError as error:
        if error.obj is module:
            return Result(name, says, f"{path.name} has no {error.name}", hint=hint)
        return Result(name, says, _where(error, path), hint=hint)
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        return Result(name, says, _where(error, path), hint=hint)
    return Result(name, says)


def _where(error: BaseException, path: Path) -> str:
    """Formats an error in one line, with the last line of the student's file that raised it."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename) == path]
    place = f" at {path.name}:{frames[-1].lineno}: `{frames[-1].line}`" if frames else ""
    text, *more = str(error).strip().split("\n")
    if text.endswith(":"):  # a C compiler's errors follow
        text += " " + next((line for line in more if "error" in line), "")
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."
    return f"{type(error).__name__}{place}: {text}"


def report(found: Sequence[Result], tries: dict[str, int]) -> str:
    """Formats the results of checks: for a wrong answer the input, what was expected and what came
    out, and from the second try on a hint. The last line counts the checks that pass.
    """
    rows: list[str] = []
    for result in found:
        rows.append(f"{'ok  ' if result.passed else 'FAIL'}  {result.says}")
        if result.passed:
            continue
        if result.is_gap:
            rows.append(f"      {result.problem}")
            continue
        lines = {"input": result.given, "expected": result.expected, "got": result.problem}
        if tries.get(result.name, 0) >= HINTS_FROM:
            lines["hint"] = result.hint
        rows += [_row(label, text) for label, text in lines.items() if text]
    return "\n".join([*rows, f"{sum(r.passed for r in found)} of {len(found)} checks pass"])


def _row(label: str, text: str) -> str:
    return f"      {label:9} " + text.replace("\n", "\n" + " " * 16)


def record(lesson: Lesson, path: Path, found: Sequence[Result], tries: dict[str, int]) -> Any:
    """Returns a grade as an object for JSON."""
    checks = [{**asdict(r), "passed": r.passed, "tries": tries.get(r.name, 0)} for r in found]
    return {
        "lesson": lesson.name,
        "title": lesson.title,
        "file": str(path),
        "passed": sum(r.passed for r in found),
        "of": len(checks_of(lesson)),
        "checks": checks,
    }
