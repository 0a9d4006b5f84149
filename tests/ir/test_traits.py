"""Traits against the ops that have them, and attributes against the rules that they state."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from op_instances import LEAVES, instance

from stack.ir import Builder, Func, Node, ops, param, tensor, traits
from stack.ir.axes import Rule
from stack.ir.ops import OPS
from stack.ir.tensor_ops import TENSOR_OPS

b = Builder()
OUTSIDE = {"opaque", "custom", "kernel", *(n for n in TENSOR_OPS if OPS[n].kind == "collective")}
NAMES = sorted(TENSOR_OPS - set(LEAVES) - OUTSIDE)

# trait: the ops of which it holds, for some attributes at least
HOLDS: dict[Callable[[Node], object], set[str]] = {
    traits.is_elementwise: {n for n in TENSOR_OPS if OPS[n].kind == "elementwise"},
    traits.converts: {"cast"},
    traits.reinterprets: {"bitcast"},
    traits.negative_of: {"neg"},
    traits.equates: {"eq"},
    traits.choice: {"select"},
    traits.signs: {"add", "sub"},
    traits.multiplies: {"mul"},
    traits.divides: {"div"},
    traits.extremum: {"max", "min"},
    traits.is_exponential: {"exp", "exp2"},
    traits.is_contraction: {"dot"},
    traits.is_reduction: {"reduce"},
    traits.finds_position: {"argreduce"},
    traits.fold_of: {"dot", "reduce"},
    traits.is_alias: {"reshape"},
    traits.repeats: {"broadcast"},
    traits.mixes: {"scan", "sort", "scatter", "ragged_dot"},
    traits.is_running: {"scan"},
    traits.reads_by_data: {"gather"},
    traits.writes_by_data: {"scatter"},
    traits.is_control: {"call", "cond", "while"},
    traits.is_while: {"while"},
    traits.is_group: {"fusion", "stream"},
    traits.is_fusion: {"fusion"},
    traits.is_stream: {"stream"},
}


def instances(op: str, count: int = 12) -> list[Node]:
    rng = random.Random(f"traits of {op}")
    found: list[Node] = []
    while len(found) < count:
        made = instance(op, rng)
        if made is not None:
            found.append(made[0])
    return found


@pytest.mark.parametrize("trait", HOLDS, ids=lambda t: t.__name__)
def test_a_trait_holds_of_its_ops_alone(trait: Callable[[Node], object]) -> None:
    found = {n.op for op in NAMES for n in instances(op, 4) if trait(n)}
    assert found == HOLDS[trait]


def test_leaves() -> None:
    x = param("x", tensor("f32", 3))
    row, number = b.const(np.arange(3.0), "f32"), b.const(2.0, "f32")
    places = b.iota(axis=0, type=tensor("i64", 3))
    assert [traits.is_input(n) for n in (x, row, number, places)] == [True, False, False, False]
    assert [traits.is_array(n) for n in (x, row, number, places)] == [False, True, False, False]
    assert [traits.is_formula(n) for n in (x, row, number, places)] == [False, False, True, True]
    assert [traits.is_constant(n) for n in (x, row, number, places)] == [False, True, True, False]
    assert [traits.is_positions(n) for n in (x, row, number, places)] == [False, False, False, True]
    assert traits.number(number) == 2.0
    assert traits.number(row) is None


def test_conditions() -> None:
    x, y = (param(n, tensor("bool", 3)) for n in "xy")
    both = {op: traits.connective(b.op(op, (x, y))) for op in ("and", "mul", "or", "add", "xor")}
    assert both == {"and": 1, "mul": 1, "or": -1, "add": -1, "xor": 0}
    assert traits.negates(b.op("not", (x,)))
    assert not traits.negates(b.op("eq", (x, y)))


def test_results() -> None:
    x = param("x", tensor("f32", 3))
    both = b.call(x, name="both", blocks=(b.block([x], [b.exp(x), b.log(x)]),))
    first, second = (b.item(both, index=i) for i in range(2))
    assert traits.maker(second) is both
    assert traits.maker(x) is x
    assert traits.place_of(second) == 1
    assert traits.items_of(both, (x, first, second)) == [first, second]


# ---- attributes from rules


def stated(op: str) -> list[tuple[Node, Rule]]:
    rules = [(n, ops.rule_of(n)) for n in instances(op)]
    return [(n, r) for n, r in rules if r is not None and ops.restated(n, r) is not None]


STATED = [n for n in NAMES if stated(n)]


def test_which_ops_state_other_rules() -> None:
    moves = {"transpose", "broadcast", "slice", "reverse", "pad", "concat"}
    others = {n for n in STATED if OPS[n].kind != "elementwise"}
    assert others == {*moves, "reduce", "dot"}


def is_distinct(node: Node, rule: Rule) -> bool:
    """True if marks determine the axes of attributes: a concat of one operand has none."""
    return OPS[node.op].windows is None or any(a.mark for o in rule.inputs for a in o)


@pytest.mark.parametrize("op", STATED)
def test_the_rule_of_a_node_states_the_node(op: str) -> None:
    """Attributes are the rule's: what a node states for its own rule is itself."""
    for node, rule in stated(op):
        if not is_distinct(node, rule):
            continue
        attrs = ops.restated(node, rule)
        assert attrs is not None
        again = b.op(node.op, node.args, attrs, hint=node.type)
        assert ops.rule_of(again) == rule
        assert again.type == node.type


@pytest.mark.parametrize("op", STATED)
def test_on_turned_operands_it_makes_the_turned_result(op: str) -> None:
    """Operands and result with all axes in the opposite order: the same elements, transposed."""
    rng = random.Random(f"turned {op}")
    done = 0
    while done < 6:
        made = instance(op, rng)
        rule = ops.rule_of(made[0]) if made is not None else None
        if made is None or rule is None or not is_distinct(made[0], rule):
            continue
        node, arrays = made
        turned = Rule(tuple(o[::-1] for o in rule.inputs), tuple(o[::-1] for o in rule.outputs))
        attrs = ops.restated(node, turned)
        assert attrs is not None
        if op == "broadcast" and list(attrs["axes"]) != sorted(attrs["axes"]):
            continue  # axes of a broadcast rise: this one is no broadcast
        params = [
            param(f"x{i}", a.tensor.with_shape(a.shape[::-1])) for i, a in enumerate(node.args)
        ]
        hint = node.tensor.with_shape(node.shape[::-1])
        other = Func("f", b.block(params, [b.op(op, params, attrs, hint=hint)]))
        plain = Func("f", b.block(node.args, [node]))
        want = np.asarray(plain.interpret(*arrays)).T
        have = np.asarray(other.interpret(*(a.T for a in arrays)))
        np.testing.assert_allclose(have, want, rtol=1e-3, atol=1e-3)
        done += 1
