"""Facts of equivalent nodes are computed once, and are the same for all of them."""

from __future__ import annotations

import gc
import random
import weakref

import pytest
from op_instances import LEAVES, instance

from stack.errors import VerifyError
from stack.ir import Block, Builder, Func, Node, ops, param, tensor, traits, verify
from stack.ir.equivalence import cached_by_class, class_representative, facts_of
from stack.ir.ops import OPS
from stack.ir.tensor_ops import TENSOR_OPS
from stack.passes.streaming import graph

QUESTIONS = (
    ops.rule_of,
    ops.is_whole_view,
    traits.converts,
    traits.shows,
    traits.spread,
    traits.axis_order,
    traits.is_part,
    traits.mixes,
    traits.is_running,
    traits.is_formula,
    graph.keeps_its_value,
    graph.moves,
    graph.reduced_value,
)
OUTSIDE = {"opaque", "custom", "kernel", *(n for n in TENSOR_OPS if OPS[n].kind == "collective")}
X = tensor("f32", 4, 6)
b = Builder()


@pytest.mark.parametrize("op", sorted(TENSOR_OPS - set(LEAVES) - OUTSIDE))
def test_answers_do_not_depend_on_operands(op: str) -> None:
    """Facts of a node follow from the facts of the same node on parameters."""
    rng = random.Random(f"alike {op}")
    made = [instance(op, rng) for _ in range(6)]
    for node in (found[0] for found in made if found is not None):
        deeper, bare = node.rebuilt([_computed(a) for a in node.args]), class_representative(node)
        assert facts_of(node) is facts_of(deeper) is facts_of(bare)
        assert class_representative(deeper) is bare
        for question in QUESTIONS:
            ask = question.__wrapped__  # pyright: ignore[reportFunctionMemberAccess]
            assert ask(node) == ask(deeper) == ask(bare) == question(node), question


def _computed(arg: Node) -> Node:
    """Another value of the same type."""
    if arg.dtype.kind in "fi" and arg.dtype.name != "bool":
        return b.neg(arg)
    return Node("param", (), {"name": "other"}, arg.type)


def test_each_question_is_asked_once() -> None:
    asked: list[Node] = []

    @cached_by_class
    def rank(node: Node) -> int:
        asked.append(node)
        return node.tensor.rank

    x = param("x", X)
    layers = [x]
    for _ in range(5):
        layers.append(b.add(layers[-1], x))
    assert [rank(n) for n in layers[1:]] == [2] * 5
    assert asked == layers[1:2]


def test_what_differs_is_not_alike() -> None:
    x, y = param("x", X), param("x", tensor("f32", 6, 4))
    kinds = [Node("custom_attr", (x,), {"a": v}, X) for v in (1, True, 1.0, -0.0, 0.0, "1")]
    nodes = [*kinds, b.exp(x), b.exp(y), b.neg(x), b.transpose(x, perm=(1, 0))]
    assert len({id(facts_of(n)) for n in nodes}) == len(nodes)


def _group(name: str, line: str) -> Node:
    """A fusion of one sum, under a name and from a line."""
    x, own = param("p0", X), Builder()
    own.loc = (line,)
    body = own.block([x], [own.op("exp", (x,), named=name)])
    return Node("fusion", (param(name, X),), {"kind": "loop", "name": "g"}, X, (body,))


def test_names_and_lines_are_no_part() -> None:
    first, second = _group("one", "a.py:1"), _group("two", "b.py:2")
    assert first.blocks[0] is not second.blocks[0]
    assert facts_of(first) is facts_of(second)
    assert class_representative(first) is class_representative(second)


def test_facts_live_as_long_as_nodes() -> None:
    node = b.exp(param("x", tensor("f32", 3, 1, 7)))
    held = weakref.ref(facts_of(node))
    assert ops.rule_of(node) is not None
    del node
    gc.collect()
    assert held() is None


def test_each_bad_group_is_found() -> None:
    """A sound group says nothing of one with another body, nor a bad one of the next."""
    verify(Func("f", Block([param("x", X)], [_on("x", b.exp(param("p0", X)))])))
    bad = Node("dot", (param("p0", X),) * 2, {"rule": "a b, b c -> a c"}, X)
    for name in ("x", "y"):
        with pytest.raises(VerifyError, match="two sizes"):
            verify(Func("f", Block([param(name, X)], [_on(name, bad)])))


def _on(name: str, result: Node) -> Node:
    body = Block([param("p0", X)], [result])
    return Node("fusion", (param(name, X),), {"kind": "loop", "name": "g"}, X, (body,))
