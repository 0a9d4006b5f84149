"""Axis rules: text, sizes, and the element that a result reads, by brute force on NumPy."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stack.errors import RuleError
from stack.ir import Builder, Node, ops, param, tensor
from stack.ir.axes import (
    Axis,
    Rule,
    parse_rule,
    reshape_groups,
    reshape_rule,
)
from stack.ir.dim import Dim, substitute, symbol

RULES = [
    "b m k, b k n -> b m n",
    "b s (h d) -> b h s d",
    "b s d -> b s",
    "v! d, b s -> b s d",
    "b s~ -> b s~",
    "b v! -> b k, b k",
    "n c h^ w^, o c kh kw -> n o h w",
    "m (g k), n (g k), n g -> m n",
    "a 1 b -> a b",
    ", a -> a",
    "a -> ",
    "a, b -> a b, b a",
    "(a b)! c^ -> c",
]


@pytest.mark.parametrize("text", RULES)
def test_rules_print_as_they_parse(text: str) -> None:
    rule = parse_rule(text)
    assert str(rule) == text.strip()
    assert parse_rule(str(rule)) == rule
    assert parse_rule(f"  {text.replace(' ', '  ')} ") == rule


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a b", "exactly one '->'"),
        ("a -> b -> c", "exactly one '->'"),
        ("(a b -> a", "'(' is not closed"),
        ("a -> (a", "closed brackets"),
        ("() -> a", "')' without names"),
        ("a) -> a", "')' without names"),
        ("(a (b c)) -> a", "'(' inside of '('"),
        ("(a! b) -> a", "inside of brackets"),
        ("(a 1) -> a", "inside of brackets"),
        ("a -> a;", "column 7"),
        ("a ->! b", "column 2"),
        ("a,! b -> a", "column 2"),
        ("", "exactly one '->'"),
    ],
)
def test_rules_that_are_none(text: str, message: str) -> None:
    with pytest.raises(RuleError) as caught:
        parse_rule(text)
    assert message in str(caught.value)
    assert repr(text) in str(caught.value)


def test_what_a_rule_tells() -> None:
    conv = parse_rule("n c h^ w^, o c kh kw -> n o h w")
    assert conv.reduced == ("c", "kh", "kw")
    gather = parse_rule("v! d, b s -> b s d")
    assert gather.reduced == ()
    assert gather.whole == {"v"}
    assert parse_rule("a b0^, a b1^ -> a b").reduced == ()
    assert parse_rule("m (g k), n (g k), n g -> m n").reduced == ("g", "k")


def test_sizes_and_shapes() -> None:
    n = symbol("n")
    dot = parse_rule("b m k, b k n -> b m n")
    assert dot.output_shapes([(2, n, 4), (2, 4, 5)]) == [(2, n, 5)]
    heads = parse_rule("b s (h d), h -> b h s d")
    assert heads.sizes([(2, 3, 8 * n), (8,)]) == {"b": 2, "s": 3, "h": 8, "d": n}
    assert heads.output_shapes([(2, 3, 8 * n), (8,)]) == [(2, 8, 3, n)]
    assert parse_rule("(a b), a, b -> a b").output_shapes([(0,), (0,), (7,)]) == [(0, 7)]
    assert parse_rule("a 1 -> a").output_shapes([(4, 1)]) == [(4,)]


@pytest.mark.parametrize(
    ("text", "shapes", "message"),
    [
        (
            "a b, b c -> a c",
            [(2, 3), (4, 5)],
            "axis 'b' of rule .* has two sizes: 3 and 4 .operand 1",
        ),
        ("a b, b c -> a c", [(2, 3)], "takes 2 operands, got 1"),
        (
            "a b, b c -> a c",
            [(2, 3), (3,)],
            r"operand 1 of rule .* has 2 axes \(b c\).*shape \[3\]",
        ),
        ("a 1 -> a", [(2, 3)], "operand 0 of .*: expected 1, got 3"),
        ("(a b) -> a b", [(6,)], "sizes of a and b in .* do not follow"),
        (
            "(a b), a -> a b",
            [(6,), (4,)],
            r"axis \(a b\) .* has size 6 .operand 0.*product of a=4, b=1",
        ),
        ("(a b), a, b -> a", [(6,), (2,), (4,)], r"has size 6 .operand 0.*a=2, b=4"),
        ("a -> a z", [(6,)], "axis 'z' of rule .* is in no operand"),
    ],
)
def test_size_errors_name_axis_and_operand(
    text: str, shapes: list[tuple[Dim, ...]], message: str
) -> None:
    with pytest.raises(RuleError, match=message):
        parse_rule(text).output_shapes(shapes)


# ---- reshape


@pytest.mark.parametrize(
    ("source", "target", "text"),
    [
        ((2, 3, 8), (2, 3, 2, 4), "a b (c d) -> a b c d"),
        ((2, 8, 3), (2, 2, 4, 3), "a (b c) d -> a b c d"),
        ((6, 4), (2, 3, 4), "(a b) c -> a b c"),
        ((2, 3, 4), (6, 4), "a b c -> (a b) c"),
        ((2, 3, 4), (2, 12), "a b c -> a (b c)"),
        ((2, 3, 4), (24,), "a b c -> (a b c)"),
        ((1, 2, 1), (2,), "1 a 1 -> a"),
        ((2,), (1, 2, 1), "a -> 1 a 1"),
        ((1,), (1, 1), "a -> a 1"),
        ((), (1, 1), "-> 1 1"),
        ((2, 4, 6, 5), (2, 8, 3, 5), "a b! c! f -> a d! e! f"),
        ((0, 3), (0, 5), "a b! -> a c!"),
        ((4, 6, 2, 3), (24, 6), "a b c d -> (a b) (c d)"),
        ((2, 2), (2, 2), "a b -> a b"),
    ],
)
def test_reshape_rules(source: tuple[int, ...], target: tuple[int, ...], text: str) -> None:
    assert str(reshape_rule(source, target)) == text


def test_symbolic_reshapes_split_and_merge() -> None:
    b, s = symbol("b"), symbol("s")
    assert str(reshape_rule((b, s, 64), (b, s, 4, 16))) == "a b (c d) -> a b c d"
    assert str(reshape_rule((b, s, 64), (b * s, 64))) == "a b c -> (a b) c"
    assert str(reshape_rule((b * s, 64), (b, s, 64))) == "(a b) c -> a b c"
    assert str(reshape_rule((b, 6), (s, 6))) == "a! b! -> c! d!"


def random_shape(rng: random.Random, size: int) -> tuple[int, ...]:
    shape: list[int] = []
    while size > 1 and rng.random() < 0.9:
        divisor = rng.choice([d for d in range(1, size + 1) if size % d == 0])
        shape.append(divisor)
        size //= divisor
    return (*shape, size) if size > 1 or rng.random() < 0.3 else tuple(shape)


@pytest.mark.parametrize("seed", range(6))
def test_random_reshapes(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(60):
        size = rng.choice([1, 2, 6, 12, 24, 36, 60])
        source, target = random_shape(rng, size), random_shape(rng, size)
        groups = reshape_groups(source, target)
        assert [i for s, _ in groups for i in range(len(source))[s]] == list(range(len(source)))
        assert [i for _, t in groups for i in range(len(target))[t]] == list(range(len(target)))
        for read, made in groups:
            assert math.prod(source[read]) == math.prod(target[made])
        rule = reshape_rule(source, target)
        assert tuple(map(len, (rule.inputs[0], rule.outputs[0]))) == (len(source), len(target))
        x = param("x", tensor("f32", *source))
        check_pull(Builder().reshape(x, type=tensor("f32", *target)))


# ---- pull, by brute force


def elements(array: np.ndarray[Any, Any], index: tuple[Any, ...]) -> Any:
    """The element, or None outside of the array."""
    if all(0 <= i < n for i, n in zip(index, array.shape, strict=True)):
        return array[index]
    return None


def loop_symbols(prefix: str, shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
    return tuple(symbol(f"{prefix}{k}", 0, max(int(n) - 1, 0)) for k, n in enumerate(shape))


def check_pull(
    node: Node,
    combine: Callable[[list[list[Any]]], Any] = lambda reads: next(
        r for (r, *_) in reads if r is not None
    ),
) -> None:
    """result[index] == combine(operands at pull(index)), for every index.

    `combine` gets, for each point of the reduced axes, the elements that the operands hold there.
    """
    rng = np.random.default_rng(0)
    arrays = [
        (np.arange(math.prod(a.shape)).reshape(a.shape) + 1).astype(a.dtype.numpy)
        if node.op != "dot"
        else rng.integers(-4, 5, a.shape).astype(a.dtype.numpy)
        for a in node.args
    ]
    result = Builder().func("f", node.args, [node]).interpret(*arrays)
    index = loop_symbols("i", node.shape)
    rule = ops.rule_of(node)
    assert rule is not None
    sizes: dict[str, Dim] = {}
    if rule.reduced:
        sizes = {n: s for n, s in axis_sizes(rule, node).items() if n in rule.reduced}
    points = {n: symbol(f"r_{n}", 0, max(int(s) - 1, 0)) for n, s in sizes.items()}
    maps = ops.pull(node, index, points)
    assert len(maps) == len(node.args)
    for place in np.ndindex(*result.shape):
        values = {f"i{k}": i for k, i in enumerate(place)}
        reads: list[list[Any]] = []
        for point in itertools.product(*(range(int(s)) for s in sizes.values())):
            bound = values | {f"r_{n}": p for n, p in zip(sizes, point, strict=True)}
            spots = [tuple(substitute(d, bound) for d in m) for m in maps]
            reads.append([elements(a, s) for a, s in zip(arrays, spots, strict=True)])
        assert result[place] == combine(reads), (str(node.op), place, maps)


def axis_sizes(rule: Rule, node: Node) -> dict[str, Dim]:
    found: dict[str, Dim] = {}
    for operand, arg in zip(rule.inputs, node.args, strict=True):
        for axis, size in zip(operand, arg.shape, strict=True):
            if len(axis.names) == 1:
                found.setdefault(axis.names[0], size)
    if "g" in found or Axis(("g", "c")) in rule.inputs[0]:
        groups = int(node.attrs["groups"])
        found["c"] = int(node.args[0].shape[1]) // groups
    return found


def shaped(*shape: int, dtype: str = "f32", name: str = "x") -> Node:
    return param(name, tensor(dtype, *shape))


@pytest.mark.parametrize("seed", range(5))
def test_pull_of_random_movement(seed: int) -> None:
    rng, b = random.Random(seed), Builder()
    for _ in range(25):
        rank = rng.randint(1, 4)
        shape = tuple(rng.randint(1, 4) for _ in range(rank))
        x, y = shaped(*shape), shaped(*shape, name="y")
        axis = rng.randrange(rank)
        perm = rng.sample(range(rank), rank)
        start = tuple(rng.randint(0, n) for n in shape)
        limit = tuple(rng.randint(s, n) for s, n in zip(start, shape, strict=True))
        step = tuple(rng.randint(1, 3) for _ in shape)
        low, high = (tuple(rng.randint(0, 2) for _ in shape) for _ in range(2))
        extra = rng.randint(1, 3)
        wide = (*shape[:axis], extra, *shape[axis:])
        kept = tuple(i for i in range(rank + 1) if i != axis)
        check_pull(b.transpose(x, perm=perm))
        check_pull(b.broadcast(x, axes=kept, type=tensor("f32", *wide)))
        check_pull(b.slice(x, start=start, limit=limit, step=step))
        check_pull(b.reverse(x, axes=tuple(sorted(set(perm[: rank // 2 + 1])))))
        check_pull(
            b.pad(x, param("v", tensor("f32")), low=low, high=high, interior=(0,) * rank),
            lambda reads: reads[0][0] if reads[0][0] is not None else reads[0][1],
        )
        check_pull(
            b.concat(x, y, x, axis=axis),
            lambda reads: next(r for r in reads[0] if r is not None),
        )


@pytest.mark.parametrize("seed", range(5))
def test_pull_of_random_compute(seed: int) -> None:
    rng, b = random.Random(50 + seed), Builder()
    kinds: dict[str, Callable[..., Any]] = {"sum": sum, "max": max, "min": min, "prod": math.prod}
    for _ in range(15):
        rank = rng.randint(1, 4)
        shape = tuple(rng.randint(1, 3) for _ in range(rank))
        x, y = shaped(*shape, dtype="i64"), shaped(*shape, dtype="i64", name="y")
        s = param("s", tensor("i64"))
        axes = tuple(sorted(rng.sample(range(rank), rng.randint(0, rank))))
        check_pull(b.neg(x), lambda reads: -reads[0][0])
        check_pull(b.sub(x, y), lambda reads: reads[0][0] - reads[0][1])
        check_pull(b.sub(s, y), lambda reads: reads[0][0] - reads[0][1])
        c = param("c", tensor("bool", *shape))
        check_pull(b.select(c, x, s), lambda reads: reads[0][1] if reads[0][0] else reads[0][2])
        kind = rng.choice(list(kinds))
        with np.errstate(over="ignore"):
            check_pull(
                b.reduce(x, kind=kind, axes=axes),
                lambda reads, kind=kind: np.array(
                    kinds[kind]([int(r[0]) for r in reads]) & (2**64 - 1), np.uint64
                ).astype(np.int64),
            )
        letters = "abcde"
        left = rng.sample(letters, rng.randint(0, 3))
        right = rng.sample(letters, rng.randint(0, 3))
        out = rng.sample(sorted({*left, *right}), rng.randint(0, len({*left, *right})))
        size = {c: rng.randint(1, 3) for c in letters}
        check_pull(
            b.dot(
                shaped(*(size[c] for c in left), dtype="i64"),
                shaped(*(size[c] for c in right), dtype="i64", name="y"),
                rule=f"{' '.join(left)}, {' '.join(right)} -> {' '.join(out)}",
            ),
            lambda reads: sum(r[0] * r[1] for r in reads),
        )


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("dilation", [1, 2])
def test_pull_of_conv(groups: int, dilation: int, transposed: bool) -> None:
    x, w = shaped(2, 4, 5, 6, dtype="i64"), shaped(6, 4 // groups, 3, 2, dtype="i64", name="w")
    if transposed:
        w = shaped(4, 6 // groups, 3, 2, dtype="i64", name="w")
    node = Builder().conv(
        x, w, stride=(2, 1), low=(1, -1), high=(2, 1), lhs_dilation=(1, 1),
        rhs_dilation=(dilation, 1), groups=groups, transposed=transposed,
    )  # fmt: skip
    check_pull(node, lambda reads: sum((r[0] or 0) * r[1] for r in reads))


def test_ops_that_no_map_describes_say_so() -> None:
    b = Builder()
    x = shaped(3, 4)
    v = param("v", tensor("f32"))
    i = param("i", tensor("i64", 2))
    index = (symbol("a", 0, 1), symbol("b", 0, 1))
    nodes = [
        b.scan(x, kind="sum", axis=1, reverse=False),
        b.sort(x, axis=1, num_keys=1, descending=False),
        b.gather(x, i, rule="n! d, k -> k d"),
        b.pad(x, v, low=(0, 0), high=(0, 0), interior=(1, 0)),
        b.const(np.zeros((2, 2)), "f32"),
    ]
    for node in nodes:
        with pytest.raises(RuleError, match="no index map"):
            ops.pull(node, index)
    with pytest.raises(RuleError, match="needs an index for b"):
        ops.pull(b.reduce(x, kind="sum", axes=(1,)), (symbol("a", 0, 2),))
    put = b.scatter(x, i, shaped(2, 4, name="u"), rule="n! d, k, k d -> n! d", kind="add")
    with pytest.raises(RuleError, match="needs an index for k"):
        ops.pull(put, index)
    assert ops.pull(put, index, {"k": 1}) == [index, (1,), (1, index[1])]


def test_marks() -> None:
    b = Builder()
    x = shaped(3, 4, 5)
    rules = {
        "a b^ c -> a b c": b.slice(x, start=(0, 1, 0), limit=(3, 4, 5), step=(1, 1, 1)),
        "a b c^ -> a b c": b.reverse(x, axes=(2,)),
        "a^ b c,  -> a b c": b.pad(
            x, param("v", tensor("f32")), low=(1, 0, 0), high=(0, 0, 0), interior=(0, 0, 0)
        ),
        "a b0^ c, a b1^ c -> a b c": b.concat(x, x, axis=1),
        "a b~ c -> a b~ c": b.scan(x, kind="sum", axis=1, reverse=True),
        "a b! c -> a b! c": b.sort(x, axis=1, num_keys=1, descending=True),
        "a b c -> a c": b.argreduce(x, kind="max", axis=1, type=tensor("i64", 3, 5)),
        "a b c -> c a b": b.transpose(x, perm=(2, 0, 1)),
        "a c -> a b c": b.broadcast(shaped(3, 5), axes=(0, 2), type=tensor("f32", 3, 4, 5)),
        "a b c,  -> a b c": b.add(x, 1.0),
        "-> a b": b.iota(axis=0, type=tensor("i64", 2, 3)),
    }
    for text, node in rules.items():
        assert str(ops.rule_of(node)) == text
    grouped = b.conv(
        shaped(1, 4, 5), shaped(6, 2, 3, name="w"), stride=(1,), low=(0,), high=(0,),
        lhs_dilation=(1,), rhs_dilation=(1,), groups=2,
    )  # fmt: skip
    assert str(ops.rule_of(grouped)) == "n (g c) s0^, (g o) c k0 -> n (g o) s0"
