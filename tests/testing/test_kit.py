"""The kit of pass authors: packages that are written, checks that can fail, files as tests."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import stack
from stack.cli import main
from stack.errors import UsageError
from stack.ir import parse
from stack.rewrite import Pipeline
from stack.testing import captured_graphs, check_pass
from stack.testing.filecheck import CheckFailed, check_file, check_text
from stack.testing.passes import PassError
from stack.testing.scaffold import KINDS, new_pass
from stack.testing.watch import saved, watch

TEXT = """func @f(%x: f32[8], %y: f32[8]) -> (f32[8]) at tensor {
  %a = sub(%x, %y) : f32[8] from "m.py:1"
  %z = neg(%a) : f32[8] from "m.py:2"
  return %z
}
"""
WRONG = """
from dataclasses import dataclass
from typing import ClassVar

import stack
from stack.rewrite import on, rewrite


@on("sub")
def swapped(node, op, scope):
    return op.add(*node.args)


@dataclass(frozen=True)
class Wrong(stack.Pass):
    name: ClassVar[str] = "wrong"

    def run(self, func, log):
        return rewrite(func, (swapped,), log)
"""


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_pass_is_right(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"new_{kind}"
    folder = new_pass(name, kind, tmp_path)
    monkeypatch.syspath_prepend(str(folder))
    (one,) = Pipeline(f"{name}:New{kind.capitalize()}").passes
    report = check_pass(one)
    assert report.functions == len(captured_graphs())
    check_file(folder / "tests" / f"{name}.stack")
    assert f'{name} = "{name}:New{kind.capitalize()}"' in (folder / "pyproject.toml").read_text()


@pytest.mark.parametrize(("kind", "tests"), [("pattern", 4), ("schedule", 5)])
def test_its_tests_pass_as_they_are_written(kind: str, tests: int, tmp_path: Path) -> None:
    assert main(["new", "pass", "mine", "--kind", kind, "-o", str(tmp_path)]) == 0
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path / "mine",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert f"{tests} passed" in done.stdout  # the file with CHECK lines is one


def test_the_rule_of_a_new_pass_passes_the_check_that_its_comment_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = new_pass("mine", "pattern", tmp_path)
    found = re.search(r"`stackc check-rule (\S+)`", (folder / "mine.py").read_text())
    assert found
    assert main(["check-rule", str(folder / found[1])]) == 0, capsys.readouterr().out


TWO = stack.parse("""func @two(%x: f32[8]) -> (f32[8], f32[8]) at tensor {
  %a = exp(%x) : f32[8]
  %b = neg(%x) : f32[8]
  return %a, %b
}
""")


def test_a_fusion_pass_is_put_where_it_can_fuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the passes of the README of a new package, two ops of one type become one kernel."""
    monkeypatch.chdir(new_pass("joined", "horizontal", tmp_path))
    (passes,) = set(re.findall("--passes '(.+?)'", Path("README.md").read_text(encoding="utf-8")))
    run = stack.compile(TWO, passes=passes).run
    assert [k.ops for k in run.kernels] == [("exp", "neg")]
    found = run["fused"].passes
    assert found == f"{tmp_path / 'joined' / 'joined.py'}:Joined,coalesce"
    monkeypatch.delitem(sys.modules, "plugin_joined")  # as in another process
    (again, _) = Pipeline(found).passes
    assert again.name == "joined"


POLICY = """
from dataclasses import dataclass
from typing import ClassVar

from stack.passes.policies.step_policy import StepPolicy
from stack.passes.steps.primitives import Split


@dataclass(frozen=True)
class Wrong(StepPolicy):
    name: ClassVar[str] = "wrong_policy"

    def steps(self, nest, target):
        return [Split("q", 4)]
"""


def test_a_policy_with_an_illegal_step_leaves_the_group_its_schedule(tmp_path: Path) -> None:
    path = tmp_path / "wrong_policy.py"
    path.write_text(POLICY)
    run = stack.compile(TWO, passes=f"default,+{path}:Wrong@scheduled").run
    assert "schedule=" not in run["scheduled"].text
    notes = [str(n) for n in run["scheduled"].notes if "stays as it is" in str(n)]
    assert notes and all("step 1, `split q 4`: there is no loop over 'q'" in note for note in notes)


def test_bad_names(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'pattern'"):
        new_pass("mine", "patern", tmp_path)
    with pytest.raises(UsageError, match="Python name"):
        new_pass("my-pass", "pattern", tmp_path)
    new_pass("mine", "rewrite", tmp_path)
    with pytest.raises(UsageError, match="exists already"):
        new_pass("mine", "rewrite", tmp_path)


def test_a_wrong_pass_is_told_by_rule_and_node(tmp_path: Path) -> None:
    path = tmp_path / "wrong_kit.py"
    path.write_text(WRONG)
    (one,) = Pipeline(f"{path}:Wrong").passes
    with pytest.raises(PassError, match=r"by swapped, at %a, from m\.py:1"):
        check_pass(one, [parse(TEXT)], graphs=False)


def test_a_pass_that_is_skipped_although_it_has_work_is_found(tmp_path: Path) -> None:
    path = tmp_path / "skipped_kit.py"
    path.write_text(WRONG.replace("(stack.Pass)", '(stack.Pass, needs=("sort",))'))
    (one,) = Pipeline(f"{path}:Wrong").passes
    with pytest.raises(PassError, match="it is skipped, but has work"):
        check_pass(one, [parse(TEXT)], graphs=False)


@pytest.mark.parametrize("name", captured_graphs())
def test_captured_graphs_are_small_and_whole(name: str) -> None:
    func = captured_graphs()[name]
    assert len(func.nodes) < 200
    assert func.body.locs
    assert stack.parse(str(func)) is func


# ---- FileCheck


HEAD = "// RUN: canonicalize\n"


@pytest.mark.parametrize(
    "checks",
    [
        "// CHECK: sub(%x, %y)\n// CHECK-NEXT: neg(\n",
        "// CHECK: func\n// CHECK-NOT: add(\n// CHECK: return {{%\\w+}}\n",
        "// CHECK:   %a  =  sub\n",
    ],
)
def test_what_holds(checks: str) -> None:
    check_text(HEAD + checks + TEXT)


@pytest.mark.parametrize(
    ("checks", "line"),
    [
        ("// CHECK: add(\n", 2),
        ("// CHECK: neg(\n// CHECK: sub(\n", 3),
        ("// CHECK: sub(\n// CHECK-NEXT: return\n", 3),
        ("// CHECK: func\n// CHECK-NOT: neg(\n// CHECK: return\n", 3),
        ("// CHECK: func\n// CHECK-NOT: return\n", 3),
    ],
)
def test_what_does_not_hold_is_told_by_line(checks: str, line: int) -> None:
    with pytest.raises(CheckFailed, match=f"^text:{line}: CHECK"):
        check_text(HEAD + checks + TEXT)


def test_a_file_that_checks_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="no `// RUN"):
        check_text(TEXT)


# ---- watching


def test_it_runs_again_at_every_save(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("x = 1\n")
    (tmp_path / "notes.txt").write_text("is no source")
    runs: list[list[Path]] = []

    def run(changed: list[Path]) -> None:
        runs.append(changed)
        file.write_text(f"x = {len(runs)}  # saved again\n")

    watch([tmp_path], run, turns=3)
    assert runs == [[], [file], [file]]
    assert set(saved([tmp_path])) == {file}


def test_statistics_of_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "f.stack"
    file.write_text(TEXT.replace("neg(%a)", "mul(%a, 1.0:f32)"))
    assert main(["opt", str(file), "--pass-pipeline=canonicalize", "--stats"]) == 0
    rows = capsys.readouterr().err.splitlines()
    assert any(row.split()[:3] == ["canonicalize", "neutral", "1"] for row in rows)
