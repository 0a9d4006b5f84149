"""Pipelines that change a backend's own, passes of a file, and functions of the IR as programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import stack
import stack.plugins as plugins
from stack.errors import UsageError
from stack.ir import Func
from stack.rewrite import Log, Pipeline
from stack.run.backend import Backend
from stack.run.pipeline_edits import is_default, steer

FUSED = "fuse{max_inputs=8},coalesce"
STAGES = (("canonical", "inline,canonicalize"), ("fused", FUSED), ("loop", "memory"))
TEXT = """func @f(%x: f32[8, 8]) -> (f32[8, 8]) at tensor {
  %y = exp(%x) : f32[8, 8]
  %z = neg(%y) : f32[8, 8]
  return %z
}
"""
MINE = '''from dataclasses import dataclass
from typing import ClassVar

import stack


@stack.register_pass
@dataclass(frozen=True)
class Mine(stack.Pass):
    """Says hello."""

    name: ClassVar[str] = "mine_of_a_file"
    loud: bool = False

    def run(self, func, log):
        log.note("hello" + "!" * self.loud)
        return func
'''


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("default", {}),
        ("default,-canonicalize", {"canonical": "inline"}),
        ("default, +unfuse@fused", {"fused": "fuse{max_inputs=8},coalesce,unfuse"}),
        ("default,+fold{max_work=5, max_elements=2}@canonical,-inline",
         {"canonical": "canonicalize,fold{max_elements=2, max_work=5}"}),
        ("default,-fuse,+fuse{multi_gemm=true}",
         {"fused": "fuse{max_inputs=8, multi_gemm=true},coalesce"}),
        ("default,-fuse,+fuse{max_inputs=4}", {"fused": "fuse{max_inputs=4},coalesce"}),
        ("default,-fuse,+unfuse@fused", {"fused": "unfuse,coalesce"}),
        ("default,-fuse,+fuse{max_inputs=8}@fused", {}),
        ("default,-fuse,+unfuse,+fold", {"fused": "unfuse,fold,coalesce"}),
        ("default,-coalesce,-fuse,+unfuse", {"fused": "unfuse"}),
        ("default,-canonicalize,+fold@canonical,+unfuse",
         {"canonical": "inline,fold", "fused": "fuse{max_inputs=8},coalesce,unfuse"}),
        ("default,-coalesce,+coalesce", {"fused": "fuse{max_inputs=8},coalesce"}),
    ],
)  # fmt: skip
def test_stages_keep_their_names(text: str, expected: dict[str, str]) -> None:
    found = {name: str(spec) for name, spec in steer(STAGES, text)}
    assert found == {**dict(STAGES), **expected}
    assert is_default(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("default,-layot", "no stage runs pass 'layot'"),
        ("default,-fues", "did you mean 'fuse'"),
        ("default,+fold@fusd", "did you mean 'fused'"),
        ("default,+fodl@fused", "did you mean 'fold'"),
        ("default,fold", "neither"),
    ],
)
def test_what_does_not_exist_is_refused_with_the_nearest(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        steer(STAGES, text)


def test_a_function_of_the_ir_is_compiled_and_steered() -> None:
    func = stack.parse(TEXT)
    x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
    plain = stack.compile(func, backend="mlir")
    np.testing.assert_allclose(plain(x), -np.exp(x), rtol=1e-6)
    steered = stack.compile(func, backend="mlir", passes="default,-fuse,+fold@fused")
    assert steered.run.stages == plain.run.stages
    assert "fusion" in plain.run["fused"].text
    assert "fusion" not in steered.run["fused"].text
    np.testing.assert_allclose(steered(x), -np.exp(x), rtol=1e-6)
    assert stack.trace(func) is func


def test_a_pass_that_is_removed_and_added_again_changes_nothing() -> None:
    backend: Backend = plugins.load("stack.backends", "mlir")
    for name in ("fuse", "layout"):
        (stage,) = [s for s, spec in backend.lowering.stages if name in spec.split("{")[0]]
        found = steer(backend.lowering.stages, f"default,-{name},+{name}@{stage}")
        assert [(s, str(Pipeline(p))) for s, p in found] == [
            (s, str(Pipeline(p))) for s, p in backend.lowering.stages
        ]


@dataclass(frozen=True)
class Own(stack.Pass):
    """A pass without an installed name."""

    name: ClassVar[str] = "own"

    def run(self, func: Func, log: Log) -> Func:
        log.note("own was here")
        return func


def test_a_pipeline_of_objects_is_taken_as_it_is() -> None:
    compiled = stack.compile(
        stack.parse(TEXT), backend="mlir", passes=Pipeline([Own(), "canonicalize,fuse"])
    )
    stage = compiled.run["passes"]
    assert stage.notes == ["own was here"]
    assert stage.passes.endswith("test_steer:Own,canonicalize,fuse")


@pytest.fixture
def own_names(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Removes what a test registers after the test."""
    monkeypatch.setattr(plugins, "_ADDED", {})
    yield
    plugins.load.cache_clear()


@pytest.mark.usefixtures("own_names")
def test_a_pass_of_a_file_is_found_by_class_and_once_read_by_name(tmp_path: Path) -> None:
    path = tmp_path / "steer_mine.py"
    path.write_text(MINE)
    (one,) = Pipeline(f"{path}:Mine{{loud=true}}").passes
    assert str(one) == "mine_of_a_file{loud=true}"
    assert Pipeline("mine_of_a_file{loud=true}").passes == (one,)
    with pytest.raises(UsageError, match="is not a pass"):
        Pipeline(f"{path}:dataclass")
    with pytest.raises(UsageError, match="there is no file"):
        Pipeline(f"{tmp_path / 'other.py'}:Mine")
    with pytest.raises(UsageError, match="no module 'nowhere'"):
        Pipeline("nowhere:Mine")


def test_a_name_that_is_taken_is_refused() -> None:
    @dataclass(frozen=True)
    class Fuse(stack.Pass):
        name: ClassVar[str] = "fuse"

        def run(self, func: Func, log: Log) -> Func:
            return func

    with pytest.raises(UsageError, match="'fuse' is taken"):
        stack.register_pass(Fuse)


SIBLINGS = """func @f(%x: f32[8, 8]) -> (f32[8, 8], f32[8, 8]) at tensor {
  %y = exp(%x) : f32[8, 8]
  %z = neg(%x) : f32[8, 8]
  return %y, %z
}
"""
RULE = """
from stack.rewrite.fusion import FusionRule
from stack.rewrite.verdict import NOT_MINE, Ok


class Siblings(FusionRule):
    siblings = True

    def legal(self, producer, consumer, maps):
        return Ok if producer.kind == consumer.kind == "loop" else NOT_MINE
"""


def test_a_rule_of_fuse_is_added_and_offered_siblings(tmp_path: Path) -> None:
    path = tmp_path / "siblings_rule.py"
    path.write_text(RULE)
    func = stack.parse(SIBLINGS)
    apart = Pipeline("fuse").run(func).func
    assert sum(n.op == "fusion" for n in apart.nodes) == 2
    joined = Pipeline(f"fuse{{rules=[{path}:Siblings]}}").run(func, check=True)
    assert sum(n.op == "fusion" for n in joined.func.nodes) == 1
    assert joined.records[0].by_rule == {"Siblings": 1}


def test_a_rule_of_fuse_is_left_out() -> None:
    func = stack.parse(TEXT)
    assert sum(n.op == "fusion" for n in Pipeline("fuse").run(func).func.nodes) == 1
    found = Pipeline("fuse{rules=[-VerticalFusion, -RowFusion]}").run(func, check=True).func
    assert sum(n.op == "fusion" for n in found.nodes) == 2
    with pytest.raises(UsageError, match="did you mean 'VerticalFusion'"):
        Pipeline("fuse{rules=[-Vertcal]}").run(func)
    with pytest.raises(UsageError, match="neither module:Class"):
        Pipeline("fuse{rules=[Vertical]}").run(func)
