"""Targets: modules, functions, factories, pairs, runs and text."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from stack.errors import ParseError, UsageError
from stack.explore.saved_run import SavedRun
from stack.explore.target import ExampleCall, IRText, candidates, program, resolve
from stack.run.record import Run, Stage

SOURCE = """
import beside

CALLS = []

class Net:
    def __call__(self, x):
        return x

net = Net()
pair = (net, [1, 2])

def plain(x, y):
    return x

def factory(frontend="torch", width=3):
    return net, (frontend, width)

def strict_factory(frontend):
    return net, (frontend,)

def _hidden():
    return net, ()
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "beside.py").write_text("value = 1\n")
    path = tmp_path / "target_under_test.py"
    path.write_text(SOURCE)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield str(path)
    for name in ("target_under_test", "beside"):
        sys.modules.pop(name, None)


def test_a_factory_gets_the_frontend(file: str) -> None:
    assert program(f"{file}:factory").args == ("torch", 3)
    found = program(f"{file}:factory", "jax")
    assert (found.args, found.frontend) == (("jax", 3), "jax")
    assert program(f"{file}:strict_factory").args == ("torch",)
    assert resolve(f"{file}:factory", options={"width": 5}).args == ("torch", 5)


def test_a_pair_is_a_program(file: str) -> None:
    assert program(f"{file}:pair").args == (1, 2)


def test_a_module_by_name(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(file).parent))
    found = program("target_under_test:factory")
    assert isinstance(found, ExampleCall)
    with pytest.raises(UsageError, match="there is no module 'no_such_module' here"):
        program("no_such_module:factory")
    with pytest.raises(UsageError, match="neither a Python file nor a module"):
        program("a b:factory")


def test_candidates_leave_out_what_cannot_be_a_target(file: str) -> None:
    resolve(f"{file}:factory")
    module: ModuleType = sys.modules["target_under_test"]
    assert candidates(module) == ["net", "pair", "plain", "factory", "strict_factory"]


def test_a_class_and_a_plain_function_are_refused(file: str) -> None:
    with pytest.raises(UsageError, match="is a class"):
        program(f"{file}:Net")
    with pytest.raises(UsageError, match="needs inputs"):
        program(f"{file}:plain")


def test_a_factory_takes_as_many_inputs_as_its_program(file: str) -> None:
    with pytest.raises(UsageError, match=r"takes 1 argument.* 2 given"):
        program(f"{file}:strict_factory", "torch", ["f32[2]", "f32[2]"])


def test_a_file_that_does_not_import_says_where(tmp_path: Path) -> None:
    path = tmp_path / "bad_target.py"
    path.write_text("x = 1\ny = x + undefined\n")
    with pytest.raises(UsageError, match=r"bad_target.py:2: NameError"):
        program(f"{path}:f")
    assert "bad_target" not in sys.modules


def test_a_missing_file_names_its_neighbours(file: str) -> None:
    with pytest.raises(UsageError, match=r"target_under_test\.py"):
        program(str(Path(file).with_name("target_under_tset.py")) + ":factory")
    with pytest.raises(UsageError, match="neither a file nor a folder"):
        resolve("nothing-here")


def test_runs_stages_and_text(tmp_path: Path) -> None:
    text = "func @f(%x: f32[2]) -> (f32[2]) at tensor {\n  return %x\n}\n"
    (tmp_path / "f.ir").write_text(text)
    found = resolve(str(tmp_path / "f.ir"))
    assert isinstance(found, IRText)
    assert str(found.func) == text
    run = Run("f", "ir", "mlir")
    run.records.append(Stage("captured", make_text=lambda: "the framework's"))
    run.records.append(Stage("imported", func=found.func))
    run.save(tmp_path / "r")
    saved = resolve(str(tmp_path / "r"))
    assert isinstance(saved, SavedRun)
    assert saved.func("imported") is found.func
    assert resolve(f"{tmp_path / 'r'}:imported").func is found.func
    with pytest.raises(UsageError, match="not IR text"):
        resolve(f"{tmp_path / 'r'}:captured")
    with pytest.raises(UsageError, match="has no stage 'fused'"):
        resolve(f"{tmp_path / 'r'}:fused")
    (tmp_path / "f.ir").write_text(text.replace("return", "retrun"))
    with pytest.raises(ParseError):
        resolve(str(tmp_path / "f.ir"))


@pytest.mark.parametrize("content", ["{", '{"schema": "stack.run/9"}', "[]"])
def test_a_damaged_run_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(UsageError, match=r"manifest.json|unknown version"):
        resolve(str(tmp_path))
