"""All groups that fusion could form: equal to what it forms if each division is tried."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import chain

import pytest

import stack.plugins as plugins
from stack.ir import Builder, Func, Node, param, parse, tensor
from stack.ir.traits import is_group
from stack.measure import fusion_parts
from stack.measure.convex_cuts import ConvexCuts
from stack.measure.fusion_input import FusionInput, fusion_input
from stack.measure.fusion_optimum import described, landscape, nodes_of
from stack.measure.fusion_parts import best_parts
from stack.measure.fusion_space import FusionSpace, TooManyFusings, fusion_space
from stack.measure.step_price import price, total_price
from stack.rewrite.log import Log
from stack.rewrite.pipeline import Pipeline
from stack.target import Target, load

MACHINE: Target = load("avx2")
SHAPE = tensor("f32", 8, 16)


def program(seed: int, size: int) -> Func:
    """A random function of elementwise ops, reductions and matmuls: at most size + 1 of them."""
    rng = random.Random(seed)
    b, x, w = Builder(), param("x", SHAPE), param("w", tensor("f32", 16, 16))
    values: list[Node] = [x]
    while size > 0:
        a, c = rng.choice(values[-3:]), rng.choice(values)
        kind = rng.choice(("exp", "tanh", "add", "mul", "add", "mul", "rows", "columns", "dot"))
        if kind == "dot":
            values.append(b.dot(a, w, rule="m k, k n -> m n"))
        elif kind in ("rows", "columns"):
            axis, size = int(kind == "rows"), size - 1
            small = b.reduce(a, axes=(axis,), kind="sum")
            values.append(b.add(c, b.broadcast(small, axes=(1 - axis,), type=SHAPE)))
        else:
            values.append(b.op(kind, (a,) if kind in ("exp", "tanh") else (a, c)))
        size -= 1
    return b.func("main", [x, w], [values[-1]])


def found_in(func: Func) -> tuple[FusionInput, FusionSpace, dict[int, float]]:
    fusion = plugins.load("stack.passes", "fuse")()
    made = fusion_input(func, [("fused", str(fusion))], MACHINE)
    space = fusion_space(made.fusion.grouping(made.prepared.body, Log(target=MACHINE)))
    return made, space, {m: price(step, MACHINE) for m, step in space.steps.items()}


def divisions(units: Sequence[int]) -> Iterator[list[int]]:
    """All divisions of units into groups, as masks."""
    if not units:
        yield []
        return
    first, *rest = units
    for others in divisions(rest):
        yield [1 << first, *others]
        for place, mask in enumerate(others):
            yield [*others[:place], mask | 1 << first, *others[place + 1 :]]


def formed(made: FusionInput, space: FusionSpace, groups: Sequence[int]) -> Func | None:
    """The function with exactly these groups; None if fusion splits one of them."""
    func = made.fused([space.members(mask) for mask in groups])
    steps = [n for n in func.nodes if is_group(n) or n.op == "dot"]
    return func if len(steps) == len(groups) else None


@pytest.mark.parametrize("seed", range(10))
def test_the_best_is_the_best_of_all_that_fusion_can_form(seed: int) -> None:
    made, space, costs = found_in(program(seed, 4 + seed % 2))
    cuts = ConvexCuts(space.reads, costs)
    tried = list(divisions(range(len(space.units))))
    known = [func for groups in tried if (func := formed(made, space, groups)) is not None]
    assert cuts.count() == len(known)
    assert cuts.best()[0].cost == pytest.approx(min(total_price(f, MACHINE) for f in known))


@pytest.mark.parametrize("seed", range(10, 14))
def test_predicted_costs_are_those_of_the_function_and_values_are_kept(seed: int) -> None:
    made, space, costs = found_in(program(seed, 6))
    for fusing in ConvexCuts(space.reads, costs).best(2):
        groups = nodes_of(space, fusing)
        assert total_price(made.fused(groups), MACHINE) == pytest.approx(fusing.cost)
        (_, given) = made.edit(groups).split(",+")
        Pipeline(given.removesuffix("@fused")).run(made.func, check=True)


SORTED = """func @main(%x: f32[8, 16]) -> (f32[8, 16]) at tensor {
  %early = exp(%x) : f32[8, 16]
  %sort = sort(%early) {axis=0, descending=false, num_keys=1} : (f32[8, 16])
  %sorted = item(%sort) {index=0} : f32[8, 16]
  %late = add(%early, %sorted) : f32[8, 16]
  %z = tanh(%late) : f32[8, 16]
  return %z
}
"""


def test_no_group_goes_around_an_op_that_runs_on_its_own() -> None:
    _, space, _ = found_in(parse(SORTED))
    groups = [[n.op for n in space.members(mask)] for mask in space.steps]
    assert ["add", "tanh"] in groups
    assert not any("exp" in ops and len(ops) > 1 for ops in groups)


def test_too_many_groups_are_counted() -> None:
    fusion = plugins.load("stack.passes", "fuse")()
    grouping = fusion.grouping(program(3, 5).body, Log(target=MACHINE))
    with pytest.raises(TooManyFusings, match=r"more than 3 groups of its \d+ operations"):
        fusion_space(grouping, most=3)


@pytest.mark.parametrize("seed", range(20, 26))
@pytest.mark.parametrize("most", [1, 4, 100])
def test_parts_have_legal_groups_and_reach_the_optimum_if_there_is_one_part(
    seed: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fusion_parts, "PART_UNITS", most)
    made, space, costs = found_in(program(seed, 6))
    parts = best_parts(made, MACHINE, lambda _: None)
    groups = [nodes for part in parts for nodes in part.groups]
    assert sorted(map(space.units.index, chain(*groups))) == list(range(len(space.units)))
    best = ConvexCuts(space.reads, costs).best()[0].cost
    found = total_price(made.fused(groups), MACHINE)
    masks = [sum(1 << space.units.index(n) for n in nodes) for nodes in groups]
    assert found == pytest.approx(sum(costs[mask] for mask in masks))  # none was split
    assert found >= best * (1 - 1e-9)
    if most == 100:
        assert len(parts) == 1
        assert found == pytest.approx(best)


def test_the_landscape_names_what_it_leaves_out() -> None:
    text = """func @main(%x: f32[64, 64]) -> (f32[64], f32[64]) at tensor {
  %a = mul(%x, %x) : f32[64, 64]
  %b = reduce(%a) {axes=[1], kind="sum"} : f32[64]
  %c = reduce(%a) {axes=[0], kind="sum"} : f32[64]
  return %b, %c
}
"""
    made, _, _ = found_in(parse(text))
    found = landscape(made, 1)
    assert found.recomputed == ["%a"]
    assert [s.name for s in found.standings] == ["pass fuse", "best", "nothing fused"]
    shown = described(found)
    assert "the pass computes %a in several kernels" in shown
    assert f"{found.count} legal fusings" in shown
    assert found.ours.seconds <= found.best.seconds < found.standings[-1].seconds
