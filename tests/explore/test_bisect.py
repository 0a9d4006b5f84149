"""Bisection finds the first wrong pass, rewrite, kernel or frontend, and a minimal program."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

import stack
import stack.plugins as plugins
from stack.backends.mlir import BACKEND
from stack.cli import main
from stack.explore.check import check_stages
from stack.explore.steps import shown_by
from stack.faults.bisect import bisect
from stack.faults.reduce import reduce
from stack.ir import Block, Func, Node, parse
from stack.ir.builder import rebuild_block
from stack.passes import memory
from stack.passes.steps.vectorize import Vectorize
from stack.rewrite import CheckError, Pipeline
from stack.rewrite.inputs import KINDS, random_inputs
from stack.rewrite.truth import Truth
from stack.run.compile import walk_stages
from stack.run.record import Run, Stage
from stack.target import as_cpu, load

WRONG = """
from dataclasses import dataclass
from typing import ClassVar

import stack
from stack.ir.traits import is_number
from stack.rewrite import on, rewrite


@on("mul")
def drop_one(node, op, scope):
    return node.args[0] if is_number(node.args[1]) else None


@on("sub")
def turn_around(node, op, scope):
    return op.add(*node.args) if "tail" in scope.block.names[node] else None


@on("max")
def to_a_select(node, op, scope):
    x, y = node.args
    return op.select(op.lt(x, y), y, x)


@dataclass(frozen=True)
class Wrong(stack.Pass):
    name: ClassVar[str] = "wrong"
    only: str = ""

    def run(self, func, log):
        rules = (drop_one, turn_around, to_a_select)
        return rewrite(func, [r for r in rules if self.only in ("", r.name)], log, limit=99)
"""
TEXT = """func @f(%x: f32[16], %y: f32[16], %w: f32[16]) -> (f32[16]) at tensor {
  %a = mul(%x, 1.0:f32) : f32[16] from "m.py:1"
  %b = exp(%a) : f32[16] from "m.py:2"
  %top = max(%b, %w) : f32[16] from "m.py:3"
  %head = sub(%top, %x) : f32[16] from "m.py:4"
  %c = mul(%head, 1.0:f32) : f32[16] from "m.py:5"
  %tail = sub(%c, %y) : f32[16] from "m.py:6"
  %z = neg(%tail) : f32[16] from "m.py:7"
  return %z
}
"""

ROWS = """func @f(%x: f32[6, 32]) -> (f32[6]) at tensor {
  %m = reduce(%x) {axes=[1], kind="max"} : f32[6]
  %wide = broadcast(%m) {axes=[0]} : f32[6, 32]
  %d = sub(%x, %wide) : f32[6, 32]
  %e = exp(%d) : f32[6, 32]
  %l = reduce(%e) {axes=[1], kind="sum"} : f32[6]
  return %l
}
"""
CHAIN_OF_DOTS = """func @f(%x: f32[64, 64]) -> (f32[64, 64]) at tensor {{
  %a = dot(%x, %x) {}
  %b = dot(%a, %x) {}
  %c = dot(%b, %a) {}
  %z = dot(%c, %b) {}
  return %z
}}
"""


@pytest.fixture
def wrong(tmp_path: Path) -> str:
    path = tmp_path / "wrong_pass.py"
    path.write_text(WRONG)
    return f"{path}:Wrong"


def test_the_first_wrong_rewrite_is_named(wrong: str) -> None:
    stages = [("canonical", "inline"), ("odd", f"inline,{wrong}{{only=turn_around}},fold")]
    found = bisect(parse(TEXT), stages)
    assert found is not None
    assert (found.stage, found.rule, found.number) == ("odd", "turn_around", 1)
    assert found.nodes == ("%tail",)
    assert found.source == ("m.py:6",)
    assert "m.py:6" in str(found)


def test_only_nan_shows_a_maximum_that_is_a_select(wrong: str) -> None:
    found = bisect(parse(TEXT), [("odd", f"{wrong}{{only=to_a_select}}")])
    assert found is not None
    assert found.rule == "to_a_select"
    assert found.nodes == ("%top",)
    assert "(nan)" in found.problem


def test_right_rewrites_before_the_wrong_one_are_not_blamed(wrong: str) -> None:
    found = bisect(parse(TEXT), [("odd", wrong)])
    assert found is not None
    assert found.rule != "drop_one"


SUMS = """func @f(%x: f32[6, 40]) -> (f32[6]) at tensor {
  %e = exp(%x) : f32[6, 40]
  %y = reduce(%e) {axes=[1], kind="sum"} : f32[6]
  return %y
}
"""


def takes_the_maximum(node: Node) -> dict[str, object]:
    return {**node.attrs, "kind": "max"} if node.op == "reduce" else dict(node.attrs)


def reduces_no_axis(node: Node) -> dict[str, object]:
    """The verifier refuses it: the type of the result stays that of the sum."""
    return {**node.attrs, "axes": ()} if node.op == "reduce" else dict(node.attrs)


@pytest.mark.parametrize(
    ("change", "problem"),
    [(takes_the_maximum, "result 0 differs"), (reduces_no_axis, "the axis rule gives")],
)
def test_a_wrong_kernel_is_searched_for_its_step(
    change: Callable[[Node], dict[str, object]],
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def changes(step: Vectorize, kernel: Node) -> Node:
        made = vectorized(step, kernel)
        block = rebuild_block(made.blocks[0], changed)
        return made.rebuilt(blocks=[block])

    def changed(node: Node, args: tuple[Node, ...], blocks: tuple[Block, ...]) -> Node:
        return node.rebuilt(args, attrs=change(node), blocks=blocks)

    vectorized = Vectorize.apply
    monkeypatch.setattr(Vectorize, "apply", changes)
    stages = [("fused", "fuse"), ("tiled", "tile")]
    found = bisect(parse(SUMS), stages, as_cpu(load("avx2")), None, shown_by(BACKEND))
    assert found is not None
    assert (found.stage, found.nodes) == ("tiled", ("%e", "%y"))
    assert problem in found.problem
    assert found.step.startswith(f"step 1, `vectorize r`: {problem}")
    assert "in its kernel: step 1" in str(found)


def test_nothing_is_found_and_nothing_is_left_behind() -> None:
    func = parse(TEXT)
    before = str(func)
    assert bisect(func, [("canonical", "inline,canonicalize"), ("fused", "fuse")]) is None
    assert str(func) == before
    assert bisect(func, [("canonical", "inline,canonicalize"), ("fused", "fuse")]) is None


def test_bisect_leaves_no_state(
    wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither random numbers, nor files, settings and passes of the process are others after it."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "f.stack"
    path.write_text(TEXT)

    def state() -> tuple[object, ...]:
        found = (p for p in tmp_path.rglob("*") if "__pycache__" not in p.parts)
        files = {p: p.stat().st_mtime_ns for p in found}
        drawn = np.random.get_state(legacy=False)
        return str(drawn), np.geterr(), dict(os.environ), files, plugins.names("stack.passes")

    before = state()
    argv = ["bisect", str(path), "--passes", f"default,+{wrong}{{only=turn_around}}@laid-out"]
    assert main(argv) == 1
    assert main(["bisect", str(path)]) == 0
    assert state() == before


def test_a_place_that_is_taken_too_early_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the value that is written there, and its source line."""
    monkeypatch.setattr(memory, "place", lambda lives: ([0] * len(lives), 1 << 20))
    text = CHAIN_OF_DOTS.format(*(f'{{rule="a k, k b -> a b"}} : f32[64, 64] from "m.py:{i}"'
                                  for i in range(1, 5)))  # fmt: skip
    stages = [*BACKEND.lowering.stages]
    found = bisect(parse(text), stages)
    assert found is not None
    assert (found.stage, found.rule) == ("loop", "place")
    assert "is written over %a, which is read later" in found.problem
    assert (found.nodes, found.source) == (("%b",), ("m.py:2",))


def test_a_wrong_correction_is_the_streams_fault() -> None:
    """The plain meaning of a stream does not use it; kernels do, tile by tile."""
    func = parse(ROWS)
    streamed = Pipeline("stream{min_axis=2}").run(func).func
    assert not Truth(func).problem(streamed)
    text = str(streamed)
    assert text.count("mul(%old1") == 1
    wrong = parse(text.replace("mul(%old1", "div(%old1"))
    inputs = random_inputs(func)
    np.testing.assert_allclose(wrong.interpret(*inputs), func.interpret(*inputs), rtol=1e-5)
    assert "differs" in Truth(func).problem(wrong)


def test_a_wrong_kernel_is_named() -> None:
    def native(func: Func, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        wide = np.asarray(func.interpret(*inputs))
        return [wide + (1 if "exp" in str(func) else 0)]

    found = bisect(parse(TEXT), [("canonical", "canonicalize")], None, native)
    assert found is not None
    assert (found.stage, found.by) == ("backend", "%b = exp")
    assert "m.py:2" in found.source


def test_a_failed_check_names_rule_and_node(wrong: str) -> None:
    with pytest.raises(CheckError) as caught:
        Pipeline(f"inline,{wrong}{{only=turn_around}}").run(parse(TEXT), check=True)
    (note,) = caught.value.__notes__
    assert note == "rewrite 1, by turn_around, at %tail, from m.py:6"


def test_every_stage_is_held_against_the_first(wrong: str) -> None:
    run = Run()
    run.records.append(Stage("imported", parse(TEXT)))
    stages = [("canonical", "canonicalize"), ("odd", f"{wrong}{{only=to_a_select}}")]
    walk_stages(parse(TEXT), stages, run)
    verdicts = {(v.stage, v.kind): v.problem for v in check_stages(run.records)}
    kinds = {kind for _, kind in verdicts}
    assert kinds == set(Truth(parse(TEXT)).kinds) == set(KINDS) - {"integers"}
    assert [key for key, problem in verdicts.items() if problem] == [("odd", "nan")]


def test_a_function_is_reduced_to_what_shows_it() -> None:
    def shows(func: Func) -> bool:
        return any(n.op == "max" for n in func.nodes)

    found = reduce(parse(TEXT), shows)
    assert [n.op for n in found.nodes] == ["max"]
    assert found.body.locs[found.nodes[0]] == ("m.py:3",)


CRASH = """
import stack


class Crash(stack.Pass):
    name = "crash"

    def run(self, func, log):
        return [n.args[7] for n in func.nodes if n.op == "exp"] and func
"""


def test_a_pass_that_crashes_is_the_first_wrong_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, text, small = (tmp_path / name for name in ("own.py", "f.stack", "small.stack"))
    own.write_text(CRASH)
    text.write_text(TWO_EXPS)
    assert main(["bisect", str(text), "--passes", f"default,+{own}:Crash@laid-out"]) == 1
    said = capsys.readouterr().out
    assert "laid-out: " in said
    assert "IndexError: tuple index out of range, at own.py:9" in said
    pipeline = f"--pass-pipeline={own}:Crash"
    assert main(["reduce", str(text), pipeline, "--error-regex=IndexError", "-o", str(small)]) == 0
    assert [n.op for n in parse(small.read_text()).nodes] == ["exp"]


TWO_EXPS = """func @f(%x: f32[4]) -> (f32[4]) at tensor {
  %a = exp(%x) : f32[4]
  %b = mul(%a, %x) : f32[4]
  return %b
}
"""


def test_commands(wrong: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, small = tmp_path / "f.stack", tmp_path / "small.stack"
    file.write_text(TEXT)
    passes = f"default,+{wrong}{{only=turn_around}}@canonical"
    assert main(["bisect", str(file), "--target", "avx512", "--passes", passes]) == 1
    assert "rewrite 1, by turn_around" in capsys.readouterr().out
    assert main(["bisect", str(file)]) == 0
    broken = ["--pass-pipeline", f"{wrong}{{only=turn_around}}"]
    assert main(["reduce", str(file), *broken, "--error-regex", "by turn_around",
                 "-o", str(small)]) == 0  # fmt: skip
    assert [n.op for n in stack.parse(small.read_text()).nodes] == ["sub"]
    assert main(["reduce", str(file), "--error-regex", "no such error"]) == 2


def test_a_dump_that_is_checked_names_the_rewrite(
    wrong: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "f.stack"
    path.write_text(TEXT)
    argv = ["dump", str(path), "--check"]
    assert main(argv) == 0
    assert "every stage computes the same as the program" in capsys.readouterr().out
    argv += ["--passes", f"default,+{wrong}{{only=to_a_select}}@laid-out"]
    assert main(argv) == 1
    told = capsys.readouterr().out.splitlines()[-4:]
    assert told[0].startswith("laid-out: wrong{only=to_a_select}: result 0 differs by inf")
    assert told[1:] == ["  rewrite 1, by to_a_select", "  nodes: %top", "  from: m.py:3"]
    assert main([*argv, "--json"]) == 1
    verdicts = json.loads(capsys.readouterr().out)["check"]
    assert {v["stage"] for v in verdicts if v["problem"]} >= {"laid-out", "loop"}


def test_a_kernel_alone_in_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, run, one = tmp_path / "f.stack", tmp_path / "r", tmp_path / "one.stack"
    file.write_text(TEXT)
    assert main(["dump", str(file), "-o", str(run)]) == 0
    (name,) = [p.stem for p in (run / "kernels").iterdir()]
    assert main(["repro", str(run), "--kernel", name, "-o", str(one)]) == 0
    program, *argv = one.read_text().splitlines()[0].removeprefix("// ").split()
    assert program == "stackc"
    assert main(argv) == 0


def test_inputs_that_a_function_does_not_take_are_left_out() -> None:
    func = parse(
        "func @g(%x: f32[4], %i: i64[2]) -> (f32[2]) at tensor {\n"
        '  %y = gather(%x, %i) {rule="n!, m -> m"} : f32[2]\n  return %y\n}\n'
    )
    assert "plain" in Truth(func).kinds
