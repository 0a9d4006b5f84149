"""library: what is left on its own becomes a labelled step; what is free or labelled stays."""

from __future__ import annotations

import pytest
from rule_cases import Kept, func

from stack.ir import Node
from stack.rewrite import Pipeline

X = "%x: f32[8, 4]"
STEPS = {
    "sort": (
        X,
        "%s = sort(%x) {axis=0, descending=false, num_keys=1} : (f32[8, 4])\n"
        "%z = item(%s) {index=0} : f32[8, 4]",
        "sort",
        "no schedule for the op",
    ),
    "dot": (
        "%x: f32[8, 4], %y: f32[4, 2]",
        '%z = dot(%x, %y) {rule="m k, k n -> m n"} : f32[8, 2]',
        "dot",
        "a library does it well",
    ),
    "elementwise": (X, "%z = exp(%x) : f32[8, 4]", "exp", "no schedule for the op"),
}
KEPT: Kept = {"a reshape": (X, "%z = reshape(%x) : f32[32]")}


def steps(nodes: tuple[Node, ...]) -> list[Node]:
    return [n for n in nodes if n.op == "fusion"]


@pytest.mark.parametrize("name", STEPS)
def test_steps(name: str) -> None:
    params, lines, op, why = STEPS[name]
    result = Pipeline("library").run(func(params, lines), check=True).func
    (step,) = steps(tuple(result.nodes))
    assert result.results == (step,)
    assert step.attrs == {"kind": "library", "name": op, "why": why}
    assert Pipeline("library").run(result).records[0].by_rule == {}
    assert Pipeline("library").run(result).func.results == result.results


@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str) -> None:
    before = func(*KEPT[name])
    assert Pipeline("library").run(before).func.results == before.results


def test_a_group_without_a_schedule() -> None:
    before = func(X, "%a = exp(%x) : f32[8, 4]\n%z = neg(%a) : f32[8, 4]")
    result = Pipeline("fuse,library").run(before, check=True).func
    (step,) = steps(tuple(result.nodes))
    assert step.attrs["kind"] == "library"
    assert step.attrs["why"] == "no schedule for the group"
    assert [n.op for n in step.blocks[0].nodes] == ["exp", "neg"]


def test_without_fuel_ops_stay() -> None:
    before = func(*STEPS["elementwise"][:2])
    assert Pipeline("library").run(before, fuel=0).func.results == before.results
