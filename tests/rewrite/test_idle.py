"""Passes that the pipeline skips: each would have found nothing, on any program."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from random_programs import random_program

import stack
import stack.plugins as plugins
from stack.errors import StackError
from stack.ir import Block, Func, Node, parse
from stack.ir.ops import OPS, load_tables
from stack.rewrite import Pipeline
from stack.rewrite.log import Log
from stack.rewrite.passes import Pass
from stack.rewrite.pipeline import find_pass
from stack.target import load

TESTS = Path(__file__).parents[1]
MACHINES = {"mlir": "avx2", "triton": "sm_90", "cuda": "sm_90"}
GPU = (
    *("fission", "horizontal_fusion", "k_major", "round_operands"),
    *("schedule", "selection", "stream_limits"),
)
ADDS = """func @main(%x: f32[4], %y: f32[4]) -> (f32[4]) at tensor {
  %add = add(%x, %y) : f32[4]
  return %add
}
"""


def skips(func: Func, passes: tuple[Pass, ...], machine: str) -> set[str]:
    """The names of passes that a pipeline skips; asserts that each would have changed nothing."""
    target, skipped = load(machine), set[str]()
    for item in passes:
        if not item.idle(func):
            func = Pipeline([item]).run(func, verify=False, target=target).func
            continue
        log = Log(target=target)
        assert item.run(func, log) is func, f"{item} on {machine}: {item.idle(func)}\n{func}"
        assert not log.rewrites, f"{item} on {machine}: {log.rewrites}\n{func}"
        skipped.add(item.name)
    return skipped


def on_every_machine(func: Func) -> set[str]:
    """The same for the pipelines of all backends of ours, as far as they take the program."""
    found: set[str] = set()
    for name, machine in MACHINES.items():
        stages = plugins.load("stack.backends", name).lowering.stages
        passes = Pipeline([spec for _, spec in stages]).passes
        try:
            found |= skips(func, (*passes, *Pipeline("unfuse").passes), machine)
        except StackError:
            continue  # symbols, or no such kernel: other tests tell
    return found


def texts(folder: Path) -> Iterator[str]:
    """The programs that tests contain as text."""
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                if node.value.lstrip().startswith("func @") and " at tensor {" in node.value:
                    yield node.value
    for path in sorted(folder.rglob("*.stack")):
        yield path.read_text(encoding="utf-8")


def gated() -> set[str]:
    """The names of the passes that may be skipped."""
    classes = {name: find_pass(name) for name in plugins.names("stack.passes")}
    return {name for name, cls in classes.items() if cls.needs or "idle" in vars(cls)}


@pytest.mark.parametrize("name", sorted(gated()))
def test_a_pass_needs_ops_that_exist(name: str) -> None:
    load_tables()
    assert set(find_pass(name).needs) <= set(OPS)


def test_programs_of_tests() -> None:
    seen, skipped = 0, set[str]()
    for text in {text: None for text in texts(TESTS)}:
        try:
            func = parse(text)
        except StackError:
            continue  # a part of a text, or a wrong one
        if not func.body.ops.isdisjoint(("fusion", "kernel")):
            continue  # for one backend
        seen += 1
        skipped |= on_every_machine(func)
    assert seen > 50
    assert gated() - skipped <= {"hoist", "k_major"}, "no program lets these passes be skipped"


@pytest.mark.parametrize("first", [0, pytest.param(20, marks=pytest.mark.slow)])
def test_random_programs(first: int) -> None:
    for seed in range(first, 20 if not first else 400):
        on_every_machine(random_program(seed).func)


@pytest.mark.parametrize("name", ["llama_block", "gpt2_block"])
def test_blocks(name: str) -> None:
    pytest.importorskip("torch")
    from stack.demos import transformer

    program, args = getattr(transformer, name)()
    on_every_machine(stack.trace(program, *args, frontend="torch"))


@dataclass(frozen=True)
class Wrong(Pass, needs=("sort",)):
    """Swaps operands of additions, and says that it is about sorts."""

    def run(self, func: Func, log: Log) -> Func:
        (out,) = func.results
        return Func(func.name, Block(func.params, [Node("add", out.args[::-1], {}, out.type)]))


@dataclass(frozen=True)
class Further(Wrong):
    """A pass does not inherit what another one needs."""


def test_a_wrong_declaration_is_found() -> None:
    with pytest.raises(AssertionError, match=r"no sort in the program"):
        skips(parse(ADDS), (Wrong(),), "avx2")


def test_the_record_says_why() -> None:
    result = Pipeline([Wrong(), Further(), "roll"]).run(parse(ADDS))
    skipped, ran, roll = result.records
    assert str(skipped) == "wrong: skipped, no sort in the program"
    assert skipped.idle and not skipped.changed
    assert ran.changed and not ran.idle
    assert roll.idle == "1 ops, fewer than 64"


@pytest.mark.parametrize("name", sorted(gated()))
def test_a_pass_made_of_another_does_the_same(name: str) -> None:
    """A class that derives from a pass is never skipped, and still works."""
    base = find_pass(name)
    derived = type("Derived", (base,), {"name": "derived"})
    assert derived.needs == ()
    target = load("sm_90" if name in GPU else "avx2")
    attention = TESTS / "passes" / "text" / "attention_is_one_stream.stack"
    programs = [parse(attention.read_text()), *(random_program(seed).func for seed in (1, 2, 3))]
    for program in programs:
        func = Pipeline("canonicalize").run(program).func
        one, other = (c().run(func, Log(target=target)) for c in (base, derived))
        assert one is other


def test_an_op_in_a_body_counts() -> None:
    body = """func @main(%x: f32[4]) -> (f32[4]) at tensor {
  %call = call(%x) {name="inner"} : f32[4] {(%a: f32[4])
    %exp = exp(%a) : f32[4]
    return %exp
  }
  return %call
}
"""
    func = parse(body)
    assert "exp" in func.body.ops
    (inline,) = Pipeline("inline").passes
    assert not inline.idle(func)
