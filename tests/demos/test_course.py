"""The course: lessons run, gaps fail, solutions pass, notebooks are the same each time."""

from __future__ import annotations

import json
import re
import runpy
import shlex
from pathlib import Path

import pytest

pytest.importorskip("torch")

from stack.demos.course import show
from stack.demos.course.__main__ import main
from stack.demos.course.grading import checks_of, grade
from stack.demos.course.lesson import LESSONS, ROOM, Lesson
from stack.demos.course.notebook import cells, notebook

NAMES = [f"{lesson.number:02}" for lesson in LESSONS]
each_lesson = pytest.mark.parametrize("lesson", LESSONS, ids=NAMES)
COMMAND = re.compile(r"python -m stack\.demos\.course (.+)")


def test_there_are_twelve() -> None:
    assert [lesson.number for lesson in LESSONS] == list(range(1, 13))
    assert len({lesson.title for lesson in LESSONS}) == 12


@each_lesson
def test_it_runs_as_a_script(
    lesson: Lesson, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if lesson.number == 6:
        pytest.importorskip("cuda.core")
    monkeypatch.setattr(show, "QUICK", True)
    runpy.run_path(str(lesson.path), run_name="__main__")
    assert capsys.readouterr().out.strip()


@each_lesson
def test_solutions_pass_and_gaps_fail(lesson: Lesson) -> None:
    if lesson.number == 6:
        pytest.importorskip("cuda.core")
    solved = grade(lesson, lesson.solution)
    assert [r.problem for r in solved] == [""] * len(checks_of(lesson))
    assert len(solved) >= 3
    for result in grade(lesson, lesson.exercise):
        assert "a gap is left" in result.problem, result.says


@each_lesson
def test_an_exercise_has_the_parts_of_its_solution(lesson: Lesson) -> None:
    found = [
        re.findall(r"^(?:def|class) (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
        for path in (lesson.exercise, lesson.solution)
    ]
    asked, solved = found[0], [name for name in found[1] if not name.startswith("_")]
    assert asked == solved
    assert lesson.exercise.read_text(encoding="utf-8").count("raise Gap(") == len(asked)


@each_lesson
def test_notebooks_have_no_outputs_and_the_same_bytes(lesson: Lesson) -> None:
    text = notebook(lesson)
    assert text == notebook(lesson)
    document = json.loads(text)
    kinds = [cell["cell_type"] for cell in document["cells"]]
    assert kinds[0] == "markdown"
    assert len({cell["id"] for cell in document["cells"]}) == len(kinds)
    assert all(not c["outputs"] for c in document["cells"] if c["cell_type"] == "code")
    script = lesson.path.read_text(encoding="utf-8")
    for kind, body in cells(script):
        assert body in script or kind == "markdown"


def test_grade_says_it_by_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lesson = LESSONS[10]
    assert main(["start", "11"]) == 0
    assert main(["start", "11"]) == 2  # nothing is written over
    assert main(["grade", "11"]) == 1
    assert main(["grade", "11", str(lesson.solution)]) == 0
    assert main(["grade", "99"]) == 2
    assert main(["grade", "12"]) == 2
    Path("broken.py").write_text("def ratio(:\n")
    assert main(["grade", "11", "broken.py"]) == 1
    assert "SyntaxError" in capsys.readouterr().out


def test_a_wrong_answer_names_the_students_line(tmp_path: Path) -> None:
    lesson = LESSONS[10]
    text = lesson.solution.read_text(encoding="utf-8")
    path = tmp_path / "mine.py"
    path.write_text(text.replace('theirs["run_ms"] / ours["run_ms"]', "theirs.nothing"))
    (first, *others) = grade(lesson, path)
    assert first.problem.startswith("AttributeError at mine.py:")
    assert "theirs.nothing" in first.problem
    assert all(r.passed for r in others)


def test_commands_that_the_course_shows_parse() -> None:
    texts = [(ROOM / "README.md").read_text(encoding="utf-8")]
    texts += [lesson.path.read_text(encoding="utf-8") for lesson in LESSONS]
    shown = [shlex.split(c, comments=True) for text in texts for c in COMMAND.findall(text)]
    assert {argv[0] for argv in shown} >= {"list", "run", "start", "grade", "notebooks"}
    for argv in shown:
        assert len(argv) == 1 or argv[1] == "-o" or 1 <= int(argv[1]) <= 12


def test_list_and_notebooks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 12
    assert main(["notebooks", "-o", str(tmp_path / "n")]) == 0
    assert len(list((tmp_path / "n").glob("*.ipynb"))) == 12
