"""`python -m stack.demos.course`: lists, runs and grades lessons, and writes notebooks."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stack.demos.course.catalog import LESSONS, find
from stack.demos.course.grading import HINTS_FROM, grade, record, report
from stack.demos.course.lesson import Lesson
from stack.demos.course.notebook import notebook
from stack.demos.course.reading import read
from stack.demos.course.tries import count_tries
from stack.errors import BackendMissing
from stack.explore.table import table
from stack.releases import install_hint

EXTRAS = ("torch", "jax", "triton", "tvm")  # frameworks that lessons import
TEXT = f"""\
A course on compilers for machine learning: {len(LESSONS)} lessons, each a script and a notebook.

  python -m stack.demos.course list                  titles, minutes, packages that a lesson needs
  python -m stack.demos.course run 1                 the lesson: words, code, results
  python -m stack.demos.course start 1               exercise_01.py here, with its gaps
  python -m stack.demos.course grade 1               the checks of exercise_01.py
  python -m stack.demos.course notebooks -o course   a notebook for each lesson

A wrong answer is shown with its input and what was expected; from the second wrong try on, with a
hint.

exit codes of grade: 0 every check passes, 1 one fails, 2 there is no such lesson or file
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m stack.demos.course",
        description=TEXT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="the lessons: titles, minutes, needs")
    for name, what in (("run", "show a lesson, and run it"), ("start", "copy an exercise here")):
        commands.add_parser(name, help=what).add_argument("lesson")
    graded = commands.add_parser("grade", help="check an exercise")
    graded.add_argument("lesson")
    graded.add_argument("files", nargs="*", help="default: exercise_NN.py in this folder")
    graded.add_argument("--json", action="store_true", help="print the grades as JSON")
    graded.add_argument("--hints", action="store_true", help="show hints at the first try")
    written = commands.add_parser("notebooks", help="write a notebook for each lesson")
    written.add_argument("-o", "--output", default="course", metavar="DIR")
    args = parser.parse_args(argv)
    if args.command == "list":
        rows = [[lesson.name, lesson.title, lesson.minutes, lesson.needs] for lesson in LESSONS]
        print(table(["", "lesson", "minutes", "needs"], rows, widest=70))
        return 0
    if args.command == "notebooks":
        return _notebooks(Path(args.output))
    lesson = find(args.lesson)
    if lesson is None:
        names = ", ".join(lesson.name for lesson in LESSONS)
        print(f"there is no lesson {args.lesson}; there are {names}", file=sys.stderr)
        return 2
    if args.command == "start":
        return _start(lesson)
    try:
        if args.command == "run":
            read(lesson)
            print(f"exercise: python -m stack.demos.course start {lesson.name}")
            return 0
        return _grade(lesson, args)
    except Exception as error:
        need = _missing_in(error)
        if need is None:
            raise
        print(f"lesson {lesson.name} needs {lesson.needs}; {need}", file=sys.stderr)
        return BackendMissing.exit_code


def _missing_in(error: BaseException | None) -> str | None:
    """The missing backend or framework that an error, or what caused it, names; else None."""
    while error is not None:
        if isinstance(error, BackendMissing):
            return str(error)
        if isinstance(error, ModuleNotFoundError):
            extra = (error.name or "").partition(".")[0]
            if extra in EXTRAS:
                return f"{extra} is missing: {install_hint(extra)}"
        error = error.__cause__ or error.__context__
    return None


def _start(lesson: Lesson) -> int:
    path = Path(lesson.file)
    problem = lesson.start(path)
    if problem:
        print(problem, file=sys.stderr)
        return 2
    print(f"fill the gaps of {path}, then: python -m stack.demos.course grade {lesson.name}")
    return 0


def _grade(lesson: Lesson, args: argparse.Namespace) -> int:
    paths = [Path(file) for file in args.files or [lesson.file]]
    for path in paths:
        if not path.is_file():
            made = f"`python -m stack.demos.course start {lesson.name}` writes one"
            print(f"there is no {path}: {made}", file=sys.stderr)
            return 2
    records: list[Any] = []
    for path in paths:
        found = list(grade(lesson, path))
        tries = count_tries(lesson.name, path, [r.name for r in found if r.is_wrong])
        records.append(record(lesson, path, found, tries))
        if args.hints:
            tries = {r.name: HINTS_FROM for r in found}
        if not args.json:
            print(*([path] if len(paths) > 1 else []), report(found, tries), sep="\n")
    if args.json:
        print(json.dumps(records, indent=1))
    return 0 if all(r["passed"] == r["of"] for r in records) else 1


def _notebooks(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    for lesson in LESSONS:
        path = folder / f"{lesson.path.stem}.ipynb"
        path.write_text(notebook(lesson), encoding="utf-8")
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
