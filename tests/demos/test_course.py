"""The course: lessons run, gaps fail, solutions pass, wrong answers are explained."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from course_wrong import ANSWERS, WrongAnswer, wrong_answers

pytest.importorskip("torch")

from stack.demos.course import show
from stack.demos.course.__main__ import main
from stack.demos.course.catalog import LESSONS, find
from stack.demos.course.grading import checks_of, grade
from stack.demos.course.lesson import ROOM, Lesson
from stack.demos.course.notebook import cells, notebook
from stack.demos.course.reading import read
from stack.demos.course.steps import MINI, PARTS, Step

NAMES = [lesson.name for lesson in LESSONS]
each_lesson = pytest.mark.parametrize("lesson", LESSONS, ids=NAMES)
TRITON = "15"  # in a process of its own: Triton reads TRITON_INTERPRET when it is imported
HERE = [lesson for lesson in LESSONS if lesson.name != TRITON]
each_lesson_here = pytest.mark.parametrize("lesson", HERE, ids=lambda lesson: lesson.name)
WRONG = [answer for answer in wrong_answers() if answer.lesson.name != TRITON]
IN_ONE_PROCESS = f"""
import contextlib, sys
from stack.demos.course.__main__ import main
with contextlib.redirect_stdout(sys.stderr):
    assert main(["run", "{TRITON}"]) == 0
sys.exit(main(["grade", "{TRITON}", *sys.argv[1:]]))
"""
COMMAND = re.compile(r"python -m stack\.demos\.course ([^`\n]+)")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries are counted in the cache directory."""
    monkeypatch.setenv("STACK_CACHE_DIR", str(tmp_path / "cache"))


def lesson_named(name: str) -> Lesson:
    found = find(name)
    assert found is not None
    return found


def test_titles_differ_and_each_lesson_has_goals_and_times() -> None:
    assert len({lesson.title for lesson in LESSONS}) == len(LESSONS)
    for lesson in LESSONS:
        assert lesson.goals.startswith("after this lesson you can "), lesson.name
        assert 20 <= lesson.minutes <= 60
        assert lesson.needs.startswith(("Python and NumPy", "PyTorch", "`.["))


@each_lesson_here
def test_it_runs(
    lesson: Lesson, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(show, "QUICK", True)
    read(lesson)
    assert capsys.readouterr().out.strip()


def test_run_shows_the_words_and_the_code_above_what_they_print(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = sys.modules["__main__"]
    assert main(["run", "2"]) == 0
    assert sys.modules["__main__"] is before
    out = capsys.readouterr().out
    order = [
        "# 2. Rewriting: an algebraic rule",  # words
        '    @on("neg")',  # code
        "Where a equals b, the left side is -0.0",  # words
        "\n-0.0 0.0 -1.0 1.0\n",  # printed
        "after pass 'careless'",
        "exercise: python -m stack.demos.course start 2",
    ]
    found = [out.find(text) for text in order]
    assert -1 not in found and found == sorted(found), found


def test_lines_of_a_lesson_that_run_shows_are_those_of_its_script(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("torch_mlir")
    assert main(["run", "1"]) == 0
    line = f"lesson_01_stages.py:{_line_of('lesson_01_stages.py', 'softmax')}"
    assert line in capsys.readouterr().out


def _line_of(name: str, word: str) -> int:
    (path,) = (lesson.path for lesson in LESSONS if lesson.path.name == name)
    lines = path.read_text().splitlines()
    return next(n for n, line in enumerate(lines, 1) if word in line and line.startswith("    "))


@each_lesson_here
def test_solutions_pass_and_gaps_fail(lesson: Lesson, tmp_path: Path) -> None:
    solved = list(grade(lesson, lesson.solution))
    assert [r.problem for r in solved] == [""] * len(checks_of(lesson))
    assert len(solved) >= 3
    path = tmp_path / lesson.file
    path.write_text(lesson.exercise, encoding="utf-8")
    for result in grade(lesson, path):
        assert "a gap is left" in result.problem, result.says
        assert result.hint, f"{result.name} has no hint"


@pytest.mark.every(3)
@pytest.mark.parametrize("answer", WRONG, ids=lambda a: f"{a.lesson.name}-{a.why}")
def test_a_wrong_answer_is_explained(answer: WrongAnswer, tmp_path: Path) -> None:
    failed = answer.graded(tmp_path)
    assert failed is not None, "it passes"
    assert failed.given and failed.expected and failed.problem and failed.hint
    assert not failed.is_gap


def test_triton_kernels_are_graded_by_the_interpreter(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    lesson = lesson_named(TRITON)
    (tmp_path / lesson.file).write_text(lesson.exercise, encoding="utf-8")
    files = [lesson.solution, tmp_path / lesson.file]
    for number, answer in enumerate(a for a in wrong_answers() if a.lesson.name == TRITON):
        folder = tmp_path / str(number)
        folder.mkdir()
        files.append(answer.write(folder))
    command = [sys.executable, "-c", IN_ONE_PROCESS, *map(str, files), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    solved, gaps, *wrong = json.loads(done.stdout)
    assert solved["passed"] == solved["of"] >= 3
    assert all(check["is_gap"] for check in gaps["checks"])
    for graded in wrong:
        failed = next(check for check in graded["checks"] if not check["passed"])
        assert failed["given"] and failed["expected"] and not failed["is_gap"]


def test_each_exercise_has_three_wrong_answers() -> None:
    page = (ROOM / "wrong_answers.md").read_text(encoding="utf-8")
    for answer in wrong_answers():
        assert f"| {answer.lesson.name} | {answer.why} |" in page, "run tests/demos/course_wrong.py"
    assert [name for name in NAMES if len(ANSWERS[name]) < 3] == []


@each_lesson
def test_an_exercise_has_the_parts_of_its_solution(lesson: Lesson) -> None:
    if isinstance(lesson, Step):
        assert lesson.exercise.count("raise Gap(") == len(PARTS[lesson.name][1])
        return
    found = [
        re.findall(r"^(?:def|class) (\w+)", text, re.MULTILINE)
        for text in (lesson.exercise, lesson.solution.read_text(encoding="utf-8"))
    ]
    asked, solved = found[0], [name for name in found[1] if not name.startswith("_")]
    assert asked == solved
    assert lesson.exercise.count("raise Gap(") == len(asked)


def test_the_compiler_grows_by_a_part_in_each_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    steps = [lesson for lesson in LESSONS if isinstance(lesson, Step)]
    assert [step.name for step in steps] == [f"b{n}" for n in range(1, 9)] == list(PARTS)
    path = Path("compiler.py")
    for step, after in pairwise(steps):
        assert main(["start", step.name]) == 0
        assert path.read_text() == step.exercise  # from nothing, or from the step before, solved
        assert main(["start", step.name]) == 2
        assert "already" in capsys.readouterr().err
        path.write_text(after.exercise.removesuffix(after.part))
    assert main(["start", "b8"]) == 0
    sections = MINI.read_text(encoding="utf-8").count("\n# ---- ")
    assert path.read_text().count("\n# ---- ") == sections
    path.write_text(steps[0].exercise)
    assert main(["start", "b3"]) == 2
    assert "lacks the step before b3" in capsys.readouterr().err


@each_lesson
def test_notebooks_have_no_outputs_and_the_same_bytes(lesson: Lesson) -> None:
    text = notebook(lesson)
    assert text == notebook(lesson)
    document = json.loads(text)
    kinds = [cell["cell_type"] for cell in document["cells"]]
    assert kinds[0] == "markdown"
    assert len({cell["id"] for cell in document["cells"]}) == len(kinds)
    assert all(not c["outputs"] for c in document["cells"] if c["cell_type"] == "code")
    for kind, body in cells(lesson.text):
        assert body in lesson.text or kind == "markdown"


def test_grade_says_it_by_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lesson = lesson_named("11")
    assert main(["start", "11"]) == 0
    assert main(["start", "11"]) == 2  # nothing is written over
    assert main(["grade", "11"]) == 1
    assert main(["grade", "11", str(lesson.solution)]) == 0
    assert main(["grade", "99"]) == 2
    assert main(["grade", "12"]) == 2
    for text, error in (("def ratio(:\n", "SyntaxError"), ("raise SystemExit(3)", "SystemExit")):
        Path("broken.py").write_text(text)
        assert main(["grade", "11", "broken.py"]) == 1
        assert error in capsys.readouterr().out


def wrong_file(path: Path, old: str, new: str) -> Path:
    text = lesson_named("11").solution.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    return path


def test_an_error_names_the_students_line_and_the_input(tmp_path: Path) -> None:
    path = wrong_file(tmp_path / "mine.py", 'theirs["run_ms"] / ours["run_ms"]', "theirs.nothing")
    (first, *others) = list(grade(lesson_named("11"), path))
    assert first.problem.startswith("AttributeError at mine.py:")
    assert "theirs.nothing" in first.problem
    assert first.given.startswith("ratio({'run_ms': 2.0,") and first.expected == "1.5"
    assert all(r.passed for r in others)


def test_a_missing_function_is_named(tmp_path: Path) -> None:
    path = wrong_file(tmp_path / "mine.py", "def ratio(", "def other(")
    assert next(grade(lesson_named("11"), path)).problem == "mine.py has no ratio"


def test_a_hint_comes_with_the_second_try(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = wrong_file(tmp_path / "mine.py", " or (row", " and (row")
    shown: list[bool] = []
    for change in ("", "", "# again\n"):  # the same text again is no new try
        path.write_text(path.read_text() + change)
        assert main(["grade", "11", str(path)]) == 1
        shown.append("hint      a time is noisy if" in capsys.readouterr().out)
    assert shown == [False, False, True]
    other = wrong_file(tmp_path / "other.py", " or (row", " and (row")
    main(["grade", "11", str(other), "--hints"])
    assert "hint      a time is noisy if" in capsys.readouterr().out


def test_tries_survive_a_broken_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = wrong_file(tmp_path / "mine.py", " or (row", " and (row")
    main(["grade", "11", str(path)])
    (store,) = (tmp_path / "cache/course").glob("*.json")
    for text in ("{", "[]", '{"ratio": 3}', '{"ratio": {"tries": "x"}}'):
        store.write_text(text)
        assert main(["grade", "11", str(path)]) == 1
    assert "hint" not in capsys.readouterr().out


def test_grades_are_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = wrong_file(
        tmp_path / "mine.py",
        "def fewest_kernels(rows):",
        "def fewest_kernels(rows):\n    print('noise')",
    )
    gaps = tmp_path / "gaps.py"
    gaps.write_text(lesson_named("11").exercise)
    assert main(["grade", "11", str(path), str(gaps), "--json"]) == 1
    right, left = json.loads(capsys.readouterr().out)
    assert (right["lesson"], right["file"], right["passed"], right["of"]) == ("11", str(path), 3, 3)
    assert left["passed"] == 0
    assert [check["is_gap"] for check in left["checks"]] == [True] * 3
    assert left["checks"][0].keys() >= {"name", "says", "given", "expected", "problem", "tries"}


def test_commands_that_the_course_shows_parse() -> None:
    texts = [(ROOM / "README.md").read_text(encoding="utf-8")]
    texts += [lesson.text for lesson in LESSONS]
    shown = [shlex.split(c, comments=True) for text in texts for c in COMMAND.findall(text)]
    assert {argv[0] for argv in shown} >= {"list", "run", "start", "grade", "notebooks"}
    for argv in shown:
        assert len(argv) == 1 or argv[1] == "-o" or argv[1] in NAMES


def test_list_and_notebooks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    shown = capsys.readouterr().out
    assert all(lesson.title in shown and lesson.needs in shown for lesson in LESSONS)
    assert main(["notebooks", "-o", str(tmp_path / "n")]) == 0
    assert len(list((tmp_path / "n").glob("*.ipynb"))) == len(LESSONS)
