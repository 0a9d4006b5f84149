"""Access relations by perturbation: change one element of an operand, see which places change."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from op_instances import LEAVES, instance
from perturbation import COUNTS, MOVES, SUMS, perturb

from stack.errors import RuleError
from stack.ir import Builder, Node, ops, param, tensor
from stack.ir.axes import Rule, names, plain
from stack.ir.dim import Dim, symbol
from stack.ir.ops import OPS
from stack.ir.region import Range
from stack.ir.relation import FullRelation, Window, Windows
from stack.ir.tensor_ops import TENSOR_OPS

OUTSIDE = ("opaque", "custom", "kernel")  # what they read is not known
BODIES = {n for n in TENSOR_OPS if OPS[n].kind in ("control", "group")}  # everything
ELEMENTWISE = tuple(n for n in TENSOR_OPS if OPS[n].kind == "elementwise")
BETWEEN_RANKS = {n for n in TENSOR_OPS if OPS[n].kind == "collective"}
NAMES = sorted(TENSOR_OPS - set(LEAVES) - set(OUTSIDE) - BODIES - BETWEEN_RANKS)
b = Builder()


@pytest.mark.parametrize("op", NAMES)
def test_only_places_change_whose_footprint_has_the_element(op: str) -> None:
    rng = random.Random(op)
    visible: set[int] = set()
    done = tries = 0
    COUNTS.clear()
    while done < 12 or (op in ELEMENTWISE and done < 60 and len(visible) < OPS[op].arity):
        tries += 1
        assert tries < 2000, f"{op}: {done} instances"
        made = instance(op, rng)
        if made is None or not all(a.size for a in made[1]):
            continue
        node, arrays = made
        for operand in range(len(arrays)):
            for _ in range(2):
                if perturb(node, arrays, operand, rng):
                    visible.add(operand)
        done += 1
    if op in ELEMENTWISE:
        assert visible == set(range(OPS[op].arity)), f"{op}: a change was seen of {visible} only"
    assert COUNTS["tight"] or op not in (*MOVES, *SUMS) or op == "item"
    print(
        f"{op}: {done} instances, {COUNTS['changes']} changes, {COUNTS['tight']} tight,"
        f" {COUNTS['seen']} places seen"
    )


def moved(op: str, offset: Callable[[Dim], Dim]) -> Callable[[Node], Windows]:
    """The windows of an op, with other offsets."""
    own = OPS[op].windows
    assert own is not None
    return lambda node: {at: replace(w, offset=offset(w.offset)) for at, w in own(node).items()}


def turned(node: Node) -> Windows:
    (at,) = [i for i, a in enumerate(ops.rule_of(node).inputs[0]) if a.mark == "~"]
    size = node.shape[at]
    lag = -1 if node.attrs["reverse"] else 1
    return {(0, at): Window(((names(node.tensor.rank)[at], 1), ("~", lag)), free=(("~", size),))}


def unmarked(node: Node) -> Rule:
    """The rule of a sort, as if its elements stayed where they are."""
    sides = (plain(names(node.args[0].tensor.rank)),) * len(node.args)
    return Rule(sides, sides)


WRONG: dict[str, dict[str, Any]] = {
    "slice": {"windows": moved("slice", lambda at: at + 1)},
    "scan": {"windows": turned},
    "sort": {"rule": unmarked},
    "concat": {"windows": moved("concat", lambda at: 0)},
}


@pytest.mark.parametrize("op", WRONG)
def test_a_wrong_statement_is_found(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(f"wrong {op}")
    made = (instance(op, rng) for _ in range(200))
    cases = [c for c in made if c is not None and all(a.size for a in c[1])]
    monkeypatch.setitem(OPS, op, replace(OPS[op], **WRONG[op]))
    with pytest.raises(AssertionError):
        for node, arrays in cases:
            perturb(node, arrays, len(arrays) - 1, rng)


def test_every_op_has_a_relation() -> None:
    x = param("x", tensor("f32", 2, 3))
    node = b.custom(x, name="f", type=tensor("f32", 4))
    assert isinstance(ops.relation_of(node), FullRelation)
    assert ops.footprint(node, (1,)) == [(Range(0, 2), Range(0, 3))]
    for name in NAMES:
        op = OPS[name]
        assert op.rule is not None or op.relation is not None, name


# results that the axis rule alone does not size: it does not say how long a window or a copy is
SIZED_OTHERWISE = {"reshape", "broadcast", "slice", "pad", "unfold", "concat", "conv"}


@pytest.mark.parametrize("op", [n for n in NAMES if OPS[n].rule is not None])
def test_shapes_follow_from_the_rule(op: str) -> None:
    rng = random.Random(f"shapes of {op}")
    agreed = tried = 0
    while tried < 8:
        made = instance(op, rng)
        if made is None:
            continue
        tried += 1
        node, _ = made
        rule = ops.rule_of(node)
        assert rule is not None
        try:
            shapes = rule.output_shapes([a.shape for a in node.args])
        except RuleError:
            continue
        agreed += shapes == [t.shape for t in node.types]
    assert agreed == tried or op in SIZED_OTHERWISE, op


def test_regions_of_single_elements() -> None:
    """Relations of some ops, written by hand."""
    n, i = symbol("n", 8), symbol("i", 0, 3)
    x = param("x", tensor("f32", 4, n))
    one = b.slice(x, start=(0, 2), limit=(4, 8), step=(1, 3))
    assert ops.footprint(one, (1, 1)) == [(Range(1, 2), Range(5, 6))]
    total = b.reduce(x, kind="sum", axes=(1,))
    assert ops.footprint(total, (i,)) == [(Range(i, i + 1), Range(0, n))]
    for is_reversed, before in ((False, (0, 3)), (True, (2, n))):
        run_ = b.scan(x, kind="sum", axis=1, reverse=is_reversed)
        assert ops.footprint(run_, (1, 2)) == [(Range(1, 2), Range(*before))]
    image, w = param("i", tensor("f32", 1, 1, 9)), param("w", tensor("f32", 1, 1, 3))
    attrs = {"stride": (2,), "low": (1,), "high": (1,), "lhs_dilation": (1,), "rhs_dilation": (1,)}
    conv = b.conv(image, w, groups=1, **attrs)
    assert ops.footprint(conv, (0, 0, 2))[0] == (Range(0, 1), Range(0, 1), Range(3, 6))
    at, new = param("at", tensor("i64", 2)), param("new", tensor("f32", 2, 5))
    put = b.scatter(
        param("t", tensor("f32", 6, 5)), at, new, rule="v! d, n, n d -> v! d", kind="set"
    )
    assert ops.footprint(put, (4, 3)) == [
        (Range(4, 5), Range(3, 4)),
        (Range(0, 2),),
        (Range(0, 2), Range(3, 4)),
    ]
    keyed = b.sort(x, axis=1, num_keys=1, descending=False)
    assert ops.footprint(keyed, (1, 2)) == [(Range(1, 2), Range(0, n))]
