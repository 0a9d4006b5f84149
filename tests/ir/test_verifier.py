"""Every rule of the verifier, broken on purpose: the error names node, rule and source."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from random_funcs import kernel_func, random_func

from stack.errors import StackError, VerifyError
from stack.ir import Block, Builder, Data, Func, Node, TupleType, constant, param, tensor, verify
from stack.ir.dim import symbol
from stack.ir.lexer import MAX_NESTING
from stack.ir.ops import OPS, infer_type
from stack.ir.types import F32, TensorType

b = Builder()
x = param("x", tensor("f32", 2, 3))
y = param("y", tensor("f32", 2, 3))
i = param("i", tensor("i64", 5))
s = param("s", tensor("f32"))
q = param("q", tensor("bool", 2, 3))
T = tensor("f32", 2, 3)
PARAMS = (x, y, i, s, q)


def func_of(*results: Node, level: str = "tensor") -> Func:
    lines = {r: ("model.py:7 layer.0",) for r in results}
    return Func("f", Block(PARAMS, results, {results[0]: "bad"}, lines), level)


def node(op: str, *args: Node, type: Any = T, blocks: Any = (), **attrs: Any) -> Node:
    return Node(op, args, attrs, type, blocks)


CONV = {
    "stride": (1,), "low": (0,), "high": (0,), "lhs_dilation": (1,), "rhs_dilation": (1,),
    "groups": 1,
}  # fmt: skip
VX, VW = constant(np.zeros((1, 2, 5)), "f32"), constant(np.zeros((4, 2, 3)), "f32")


def conv(**change: Any) -> Node:
    return node("conv", VX, VW, type=tensor("f32", 1, 4, 3), **{**CONV, **change})


p = param("p", T)
ONE = Block((p,), (b.neg(p),))
TWO = Block((p,), (p, p))
TEST = Block((p,), (constant(True),))
C = constant(True)

BROKEN: dict[str, tuple[Node, str]] = {
    "unknown op": (node("fluff", x), "unknown op 'fluff'"),
    "level": (
        node("alloc", type=TensorType(F32, (2,), "shared"), name="m"),
        "is no op of level 'tensor', but of tile, loop",
    ),
    "arity": (node("neg", x, y), "neg takes 1 operand(s), got 2"),
    "no operands": (node("concat", axis=0), "concat takes at least 1 operand(s), got 0"),
    "attribute missing": (node("transpose", x), "transpose needs attribute 'perm'"),
    "attribute unknown": (node("neg", x, axis=1), "neg has no attribute 'axis'"),
    "attribute kind": (node("transpose", x, perm="10"), "is a list of integers, not '10'"),
    "attribute bool": (node("iota", axis=True), "is an integer, not True"),
    "blocks": (node("neg", x, blocks=(ONE,)), "neg takes no blocks, got 1"),
    "wrong type": (
        node("neg", x, type=tensor("f32", 3, 2)),
        "the axis rule gives f32[2, 3], the node says f32[3, 2]",
    ),
    "wrong space": (
        node("neg", x, type=TensorType(F32, (2, 3), "tile")),
        "the axis rule gives f32[2, 3]",
    ),
    "element types": (node("add", x, i), "operands have one element type; insert casts"),
    "shapes": (
        node("add", x, constant(np.zeros((3, 2)), "f32")),
        "operands of an elementwise op have one shape",
    ),
    "kind of element": (node("exp", i, type=i.type), "exp(i64[5]): does not take i64"),
    "not of float": (node("not", x), "does not take f32"),
    "tuple operand": (
        node("neg", node("call", x, blocks=(TWO,), name="t", type=TupleType((T, T)))),
        "pick one with item",
    ),
    "select": (node("select", x, x, y), "the condition is bool"),
    "cast": (node("cast", x, type=tensor("f32", 3, 2)), "a cast keeps the shape"),
    "bitcast": (node("bitcast", x, type=tensor("f64", 2, 3)), "keeps shape and width"),
    "bitcast bool": (node("bitcast", q, type=tensor("i8", 2, 3)), "neither takes nor makes bool"),
    "iota axis": (node("iota", axis=2), "axis 2 is outside of f32[2, 3]"),
    "iota type": (node("iota", axis=0, type=tensor("bool", 2)), "not in bool"),
    "size type": (node("size", value=3, type=tensor("f32")), "a size is an integer"),
    "reshape": (node("reshape", x, type=tensor("f32", 7)), "cannot reshape to f32[7]"),
    "transpose": (node("transpose", x, perm=(0, 0)), "perm [0, 0] is not a permutation"),
    "broadcast rank": (node("broadcast", x, axes=(0,)), "must name one result axis for each"),
    "broadcast size": (
        node("broadcast", i, axes=(1,)),
        "operand axis of size 5 does not match axis 1",
    ),
    "slice rank": (node("slice", x, start=(0,), limit=(1,), step=(1,)), "one entry for each axis"),
    "slice bound": (
        node("slice", x, start=(0, 0), limit=(2, 4), step=(1, 1)),
        "slice 0:4 reaches past the size 3",
    ),
    "slice start": (node("slice", x, start=(-1, 0), limit=(2, 3), step=(1, 1)), "negative bound"),
    "slice step": (node("slice", x, start=(0, 0), limit=(2, 3), step=(0, 1)), "steps are positive"),
    "reverse": (node("reverse", x, axes=(2,)), "not distinct rising axes"),
    "pad value": (
        node("pad", x, i, low=(0, 0), high=(0, 0), interior=(0, 0)),
        "the padding value is a scalar",
    ),
    "pad negative": (
        node("pad", x, s, low=(-1, 0), high=(0, 0), interior=(0, 0)),
        "padding is not negative",
    ),
    "pad rank": (
        node("pad", x, s, low=(1,), high=(0, 0), interior=(0, 0)),
        "one entry for each axis",
    ),
    "concat axis": (node("concat", x, axis=2), "axis 2 is outside"),
    "concat shapes": (node("concat", x, i, axis=0), "operands differ outside of axis 0"),
    "gather rule": (node("gather", x, i, rule="a! b, k -> k b ->"), "exactly one '->'"),
    "gather indices": (
        node("gather", x, i, rule="a! b!, k -> k"),
        "2 axes are marked '!', 1 indices given",
    ),
    "gather operands": (node("gather", x, i, rule="a! b -> b"), "does not fit 2 operands"),
    "gather index type": (node("gather", x, x, rule="a! b, k b -> k b"), "indices are integers"),
    "gather lost axis": (
        node("gather", x, i, rule="a! b, k -> k"),
        "'k' needs each axis once, 'b' is missing",
    ),
    "gather twice": (node("gather", x, i, rule="a! b, k -> k b b"), "needs each axis once"),
    "gather new axis": (
        node("gather", x, i, rule="a! b, k -> k b z"),
        "the unmarked axes of the operands",
    ),
    "gather sizes": (
        node("gather", x, i, rule="a! b, b -> b"),
        "axis 'b' of rule 'a! b, b -> b' has two sizes: 3 and 5",
    ),
    "scatter kind": (
        node("scatter", x, i, y, rule="a! b, k, k b -> a! b", kind="avg"),
        "'avg' is not one of set, add",
    ),
    "scatter result": (
        node("scatter", x, i, y, rule="a! b, k, k b -> b a!", kind="add"),
        "the axes of operand 0",
    ),
    "scatter update type": (
        node("scatter", x, i, i, rule="a! b, k, k -> a! b", kind="add"),
        "needs each axis once, 'b' is missing",
    ),
    "scatter updates": (
        node(
            "scatter", x, constant(0), constant(np.zeros(3)), rule="a! b, , b -> a! b", kind="add"
        ),
        "the updates have the operand's",
    ),
    "reduce kind": (node("reduce", x, kind="mean", axes=(0,)), "kind 'mean' is not one of sum"),
    "reduce type": (node("reduce", x, kind="and", axes=(0,)), "no and of f32"),
    "reduce axes": (node("reduce", x, kind="sum", axes=(1, 0)), "not distinct rising axes"),
    "argreduce": (node("argreduce", x, kind="sum", axis=0), "kind 'sum' is not one of max, min"),
    "argreduce type": (node("argreduce", x, kind="max", axis=0), "an integer result"),
    "scan": (node("scan", x, kind="sum", axis=2, reverse=False), "axis 2 is outside"),
    "sort keys": (
        node("sort", x, axis=0, num_keys=2, descending=False),
        "num_keys 2 is not between",
    ),
    "sort shapes": (
        node("sort", x, i, axis=0, num_keys=1, descending=False),
        "its value has shape [5]",
    ),
    "rows in groups": (
        node("ragged_dot", x, y, i, rule="s k, g k n, g -> s n"),
        "is not of rows (!) in groups (^)",
    ),
    "dot sizes": (node("dot", x, y, rule="a b, b c -> a c"), "has two sizes: 3 and 2"),
    "dot rule": (node("dot", x, y, rule="a b!, a b! -> a"), "unmarked axes and one result"),
    "dot axis": (
        node("dot", x, y, rule="a b, a b -> z"),
        "axis 'z' of rule 'a b, a b -> z' is in no operand",
    ),
    "dot twice": (node("dot", x, y, rule="a b, a b -> a a"), "the result has each axis once"),
    "dot types": (node("dot", x, q, rule="a b, a b -> a"), "one element type"),
    "dot wider": (node("dot", x, y, rule="a b, a b -> a", type=tensor("i64", 2)), "not in i64"),
    "conv stride": (conv(stride=(0,)), "are positive"),
    "conv rank": (conv(stride=(1, 1)), "one stride, padding and dilation for each of 1 axes"),
    "conv groups": (conv(groups=2), "a weight of 4 channels, 2 group(s), for 2"),
    "call": (node("call", i, blocks=(ONE,), name="g"), "block 0 takes (f32[2, 3])"),
    "call without": (node("call", x, name="g"), "has one block"),
    "cond": (node("cond", x, x, blocks=(ONE, ONE)), "a bool or integer scalar that picks"),
    "cond differ": (node("cond", C, x, blocks=(ONE, TWO)), "block 1 returns"),
    "cond none": (node("cond"), "cond takes at least 1 operand(s)"),
    "while": (node("while", x, blocks=(ONE, ONE)), "the condition block returns bool[]"),
    "while body": (
        node("while", x, blocks=(TEST, TWO)),
        "the body returns the types that it takes",
    ),
    "while blocks": (node("while", x, blocks=(TEST,)), "has two blocks"),
    "item": (node("item", x, index=0), "has no item 0"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_broken_nodes_are_named_with_rule_and_source(what: str) -> None:
    bad, message = BROKEN[what]
    with pytest.raises(VerifyError) as caught:
        verify(func_of(bad))
    error = caught.value
    assert message in error.rule
    assert error.node.startswith(f"%bad = {bad.op}(")
    assert error.source == ("model.py:7 layer.0",)
    blamed = error.found_after("fuse")
    assert str(blamed).startswith("after pass 'fuse': ")
    assert "  from: model.py:7 layer.0" in str(blamed)


def raises(func: Func, message: str) -> VerifyError:
    with pytest.raises(VerifyError, match=message) as caught:
        verify(func)
    return caught.value


def test_sound_functions_pass() -> None:
    for seed in range(40):
        verify(random_func(seed, symbolic=True))
    verify(kernel_func())
    verify(func_of(x))


def test_functions_as_a_whole() -> None:
    raises(Func("f", Block((), ()), "middle"), "level 'middle', which is not one of tensor, tile")
    pair = node("call", x, blocks=(TWO,), name="t", type=TupleType((T, T)))
    raises(func_of(pair), "@f returns a tuple")
    twin = param("x", tensor("f32"))
    raises(Func("f", Block((x, twin), ())), "function @f has two parameters of one name: x, x")
    n, other = symbol("n", 1, 8), symbol("n", 1, 9)
    params = (param("a", tensor("f32", n)), param("c", tensor("f32", other)))
    raises(Func("f", Block(params, ())), "two sizes named 'n': 1..8 % 1 and 1..9 % 1")


def test_parameters_of_another_block() -> None:
    error = raises(Func("f", Block((y,), (b.neg(x),))), "uses %x, a parameter of another block")
    assert error.node == "%neg = neg(%x) : f32[2, 3]"
    leaky = Block((p,), (b.add(p, x),))
    error = raises(func_of(node("call", x, blocks=(leaky,), name="g")), "block of call uses %x")
    assert "add(%p, %x)" in error.node


def var(name: str, extent: int | None = None, type: Any = None) -> Node:
    attrs: dict[str, Any] = {"name": name} if extent is None else {"name": name, "extent": extent}
    return Node("var", (), attrs, type or tensor("i64"))


def kernel_of(*results: Node) -> Func:
    memory = param("m", TensorType(F32, (4,), "global"))
    block = Block((memory,), results)
    made = Node("kernel", (), {"name": "k", "level": "tile"}, tensor("f32", 4), (block,))
    return Func("f", Block((), (made,)))


M = param("m", TensorType(F32, (4,), "global"))


def loop(index: Node, carried: Node, body: Node, init: Node) -> Node:
    return Node("loop", (init,), {"kind": "serial"}, M.type, (Block((index, carried), (body,)),))


def test_loops() -> None:
    k, z = var("k", 4), var("z", type=M.type)
    value = constant(1.0, "f32")
    verify(kernel_of(loop(k, z, b.store(z, value, k), M)))
    loose = b.store(M, value, k)
    raises(kernel_of(loose), "@f is closed but uses the loop variable.s. k")
    raises(Func("f", Block((k,), ())), "has loop variables for parameters")
    w = var("w", type=M.type)
    inner = loop(k, w, b.store(w, value, k), z)
    error = raises(kernel_of(loop(k, z, inner, M)), "names its variable 'k' like one of a block")
    assert "loop(" in error.node
    named = var("m", 4)
    raises(kernel_of(loop(named, z, b.store(z, value, named), M)), "names its variable 'm'")
    mixed = Node("loop", (M,), {"kind": "serial"}, M.type, (Block((k, param("q", M.type)), (M,)),))
    raises(kernel_of(mixed), "takes parameters or loop variables")
    fused = Node("fusion", (), {"kind": "loop"}, tensor("i64"), (Block((k,), (k,)),))
    raises(func_of(fused), "block 0 takes|takes closed blocks")


def test_levels_of_blocks() -> None:
    stray = Block((p,), (Node("alloc", (), {"name": "a"}, TensorType(F32, (2,), "shared")), p)[1:])
    verify(func_of(node("call", x, blocks=(stray,), name="g")))
    tile = Block((M,), (b.op("custom", (M,), {"name": "f"}, (), M.type),))
    made = Node("kernel", (), {"name": "k", "level": "tile"}, tensor("f32", 4), (tile,))
    raises(Func("f", Block((), (made,))), "'custom' is no op of level 'tile', but of tensor")


def test_too_deep() -> None:
    block = ONE
    for _ in range(MAX_NESTING):
        block = Block((p,), (b.call(p, name="g", blocks=(block,)),))
    raises(Func("f", block), "nested more than 100 blocks deep")


def test_no_other_exception_from_random_nodes() -> None:
    """Nodes put together without any sense either verify or raise VerifyError."""
    rng = random.Random(0)
    values: list[Any] = [
        0,
        1,
        -1,
        7,
        True,
        None,
        "sum",
        "max",
        "a b, b c -> a c",
        "a! b, k -> k b",
        "",
        1.5,
        (),
        (0,),
        (1, 0),
        (0, 1),
        (-1, 0),
        ("x",),
        (symbol("n"), 1),
        symbol("n"),
        F32,
        Data(np.zeros(3), F32),
        (1 << 70, 1),
        (0, 0),
        ((1,),),
        "tile",
    ]
    nodes: list[Node] = [*PARAMS, C, constant(np.zeros((2, 0)), "f32")]
    types = [T, tensor("f32"), tensor("i64", 2), tensor("f32", symbol("n"), 3), TupleType((T, T))]
    types += [TensorType(F32, (2, 3), "tile"), TupleType(()), tensor("f32", 1 << 70)]
    blocks = [ONE, TWO, TEST, Block((), ())]
    accepted = 0
    for _ in range(6000):
        op = rng.choice([op for op in OPS.values() if op.name not in ("param", "var")])
        attrs = {n: rng.choice(values) for n in op.signature if rng.random() < 0.97}
        count = op.arity if op.arity is not None and rng.random() < 0.9 else rng.randint(0, 4)
        args = [rng.choice(nodes) for _ in range(count)]
        inner = [rng.choice(blocks) for _ in range(rng.choice([0, 0, 0, 1, 2]))]
        if "name" in attrs:
            attrs["name"] = "n"
        made = Node(op.name, args, attrs, rng.choice(types), inner)
        try:
            verify(func_of(made))
        except StackError as error:
            assert isinstance(error, VerifyError)
        else:
            accepted += 1
            nodes = (nodes + [made])[-30:]
    assert accepted > 20


def test_what_the_builder_made_is_not_inferred_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A type that an op was asked for is known; one that a node was given is asked for, once."""
    asked: list[str] = []

    def infer(op: str, *rest: Any) -> Any:
        asked.append(op)
        return infer_type(op, *rest)

    monkeypatch.setattr("stack.ir.verifier.infer_type", infer)
    size = tensor("f32", 7, 11)
    z = param("z", size)
    built, given = b.exp(z), Node("neg", (z,), {}, size)
    func = Func("f", Block((z,), (built, given)))
    verify(func)
    assert asked == ["neg"]
    verify(func)
    assert asked == ["neg"]


def test_a_type_that_is_known_is_that_of_one_node() -> None:
    z = param("z", tensor("f32", 7, 13))
    good, bad = b.exp(z), Node("exp", (z,), {}, tensor("f32", 9, 13))
    verify(Func("f", Block((z,), (good,))))
    with pytest.raises(VerifyError, match="the axis rule gives"):
        verify(Func("f", Block((z,), (good, bad))))
    with pytest.raises(VerifyError, match="the axis rule gives"):  # an error is not forgotten
        verify(Func("f", Block((z,), (bad,))))
