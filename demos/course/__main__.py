"""`python -m stack.demos.course`: lists, runs and grades lessons, and writes notebooks."""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from stack.demos.course.grading import grade, report
from stack.demos.course.lesson import LESSONS, Lesson, find
from stack.demos.course.notebook import notebook
from stack.errors import BackendMissing
from stack.releases import install_hint

EXTRAS = ("torch", "jax", "triton", "tvm")  # frameworks that lessons import
TEXT = """\
A course on compilers for machine learning: 12 lessons, each a script and a notebook.

  python -m stack.demos.course list
  python -m stack.demos.course run 1                 the lesson as a script
  python -m stack.demos.course start 1               exercise_01.py here, with its gaps
  python -m stack.demos.course grade 1 exercise_01.py
  python -m stack.demos.course notebooks -o course   a notebook for each lesson

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
    commands.add_parser("list", help="the lessons")
    for name, what in (("run", "a lesson as a script"), ("start", "copy an exercise here")):
        commands.add_parser(name, help=what).add_argument("lesson", type=int)
    graded = commands.add_parser("grade", help="check an exercise")
    graded.add_argument("lesson", type=int)
    graded.add_argument("file", nargs="?", help="default: exercise_NN.py in this folder")
    written = commands.add_parser("notebooks", help="write a notebook for each lesson")
    written.add_argument("-o", "--output", default="course", metavar="DIR")
    args = parser.parse_args(argv)
    if args.command == "list":
        for lesson in LESSONS:
            print(f"{lesson.number:2}  {lesson.title}")
        return 0
    if args.command == "notebooks":
        return _notebooks(Path(args.output))
    lesson = find(args.lesson)
    if lesson is None:
        print(f"there is no lesson {args.lesson}; there are 1 to {len(LESSONS)}", file=sys.stderr)
        return 2
    if args.command == "run":
        return _run(lesson)
    return _start(lesson) if args.command == "start" else _grade(lesson, args.file)


def _run(lesson: Lesson) -> int:
    """Run a lesson's script; one line says what to install if a framework is missing."""
    try:
        runpy.run_path(str(lesson.path), run_name="__main__")
    except Exception as error:
        need = _missing_in(error)
        if need is None:
            raise
        print(f"lesson {lesson.number} cannot run here: {need}", file=sys.stderr)
        return BackendMissing.exit_code
    return 0


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
    path = Path(lesson.exercise.name)
    if path.exists():
        print(f"{path} is there already", file=sys.stderr)
        return 2
    path.write_text(lesson.exercise.read_text(encoding="utf-8"), encoding="utf-8")
    print(f"fill the gaps of {path}, then: python -m stack.demos.course grade {lesson.number}")
    return 0


def _grade(lesson: Lesson, file: str | None) -> int:
    path = Path(file or lesson.exercise.name)
    if not path.is_file():
        print(f"there is no {path}: `start {lesson.number}` makes one", file=sys.stderr)
        return 2
    found = grade(lesson, path)
    print(report(found))
    return 0 if all(result.passed for result in found) else 1


def _notebooks(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    for lesson in LESSONS:
        path = folder / f"{lesson.path.stem}.ipynb"
        path.write_text(notebook(lesson), encoding="utf-8")
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
