"""Names of groups follow from their dataflow: each name beside a twin that must not get it."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import pytest

from stack.ir import Block, Builder, Node, make, param, tensor
from stack.naming.group_names import group_name

ROWS, COLUMNS = 6, 8
WIDE = tensor("f32", ROWS, COLUMNS)
QUERIES = "m k, n k -> m n"
Build = Callable[[Builder, Node, Node], Node]


def name(build: Build) -> str:
    """The name of a group of two inputs of 6 x 8; no name of a value has a meaning."""
    x, y = param("a0", WIDE), param("a1", WIDE)
    b = Builder()
    body = Block([x, y], [build(b, x, y)])
    outer = [param("b0", WIDE), param("b1", WIDE)]
    return group_name(make("fusion", outer, {"kind": "loop", "name": "g"}, [body]))


def spread(b: Builder, value: Node, axis: int, like: Node) -> Node:
    """Repeats what a reduction along an axis leaves."""
    return b.broadcast(value, axes=(1 - axis,), type=like.type)


def reduced(b: Builder, x: Node, axis: int = 1, kind: str = "sum") -> Node:
    return spread(b, b.reduce(x, axes=(axis,), kind=kind), axis, x)


def softmax(b: Builder, x: Node, axis: int = 1, top: Node | None = None) -> Node:
    e = b.exp(b.sub(x, reduced(b, x if top is None else top, axis, "max")))
    return b.div(e, reduced(b, e, axis))


def attention(b: Builder, q: Node, k: Node, axis: int = 1) -> Node:
    p = softmax(b, b.mul(b.dot(q, k, rule=QUERIES), 0.3), axis)
    return b.dot(p, k, rule="m n, n d -> m d")


def norm(b: Builder, x: Node, y: Node, scale: float = 1 / COLUMNS) -> Node:
    """Divides x by the root of the scaled sum of the squares of y."""
    return b.mul(x, b.rsqrt(b.add(b.mul(reduced(b, b.mul(y, y)), scale), 1e-5)))


def centred(b: Builder, x: Node, axis: int = 1) -> Node:
    count = (ROWS, COLUMNS)[axis]
    d = b.sub(x, b.div(reduced(b, x, axis), float(count)))
    return b.div(d, b.sqrt(b.add(b.div(reduced(b, b.mul(d, d), axis), float(count)), 1e-5)))


SAME: dict[str, tuple[str, Build]] = {
    "softmax": ("softmax", lambda b, x, y: softmax(b, x)),
    "softmax of columns": ("softmax", lambda b, x, y: softmax(b, x, 0)),
    "attention": ("attention", lambda b, x, y: attention(b, x, y)),
    "weights and values": (
        "softmax + matmul",
        lambda b, x, y: b.dot(softmax(b, x), y, rule="m n, k n -> m k"),
    ),
    "RMS": ("RMS norm", lambda b, x, y: norm(b, x, x)),
    "length": ("L2 norm", lambda b, x, y: norm(b, x, x, 1.0)),
    "layer": ("layer norm", lambda b, x, y: centred(b, x)),
    "batch": ("batch norm", lambda b, x, y: centred(b, x, 0)),
    "log": (
        "log-softmax",
        lambda b, x, y: b.sub(
            b.sub(x, reduced(b, x, 1, "max")),
            b.log(reduced(b, b.exp(b.sub(x, reduced(b, x, 1, "max"))))),
        ),
    ),
    "mean": ("mean", lambda b, x, y: b.div(b.reduce(x, axes=(1,), kind="sum"), float(COLUMNS))),
    "quotient SiLU": (
        "SiLU",
        lambda b, x, y: b.div(x, b.add(b.exp(b.neg(x)), 1.0)),
    ),
    "product SiLU": ("SiLU", lambda b, x, y: b.mul(b.sigmoid(x), x)),
    "GELU": (
        "GELU",
        lambda b, x, y: b.mul(b.mul(b.add(b.erf(b.mul(x, sqrt(0.5))), 1.0), x), 0.5),
    ),
    "rotated": (
        "rotary embedding",
        lambda b, x, y: b.add(b.mul(x, y), b.mul(halves(b, x, 4), y)),
    ),
}  # fmt: skip
OTHER: dict[str, tuple[str, Build]] = {
    "softmax": ("maximum of another value", lambda b, x, y: softmax(b, x, 1, y)),
    "attention": ("weights of queries, not of keys", lambda b, x, y: attention(b, x, y, 0)),
    "RMS norm": ("the root of another value", lambda b, x, y: norm(b, x, y)),
    "layer norm": ("no mean is subtracted", lambda b, x, y: norm(b, x, x)),
    "mean": (
        "another count",
        lambda b, x, y: b.div(b.reduce(x, axes=(1,), kind="sum"), float(ROWS)),
    ),
    "SiLU": ("the sigmoid of another value", lambda b, x, y: b.mul(b.sigmoid(y), x)),
    "GELU": (
        "half as steep",
        lambda b, x, y: b.mul(b.mul(b.add(b.erf(b.mul(x, 0.5)), 1.0), x), 0.5),
    ),
    "rotary embedding": (
        "parts that are no halves",
        lambda b, x, y: b.add(b.mul(x, y), b.mul(halves(b, x, 2), y)),
    ),
}  # fmt: skip


def halves(b: Builder, x: Node, at: int) -> Node:
    """The columns from `at`, negated, then those before it."""

    def part(start: int, end: int) -> Node:
        return b.slice(x, start=(0, start), limit=(ROWS, end), step=(1, 1))

    return b.concat(b.neg(part(at, COLUMNS)), part(0, at), axis=1)


@pytest.mark.parametrize("case", SAME)
def test_a_computation_has_its_name(case: str) -> None:
    wanted, build = SAME[case]
    assert name(build) == wanted


@pytest.mark.parametrize("text", OTHER)
def test_a_twin_does_not_get_the_name(text: str) -> None:
    why, build = OTHER[text]
    assert text not in name(build).split(" + "), why


def test_parts_are_in_order_and_long_names_keep_what_matters() -> None:
    product = name(lambda b, x, y: b.tanh(b.add(b.dot(x, y, rule=QUERIES), 1.0)))
    assert product == "matmul + add + tanh"
    assert name(lambda b, x, y: b.transpose(x, perm=(1, 0))) == "transpose"
    many = name(lambda b, x, y: b.div(b.exp(b.sub(b.abs(b.add(x, y)), b.mul(x, y))), y))
    assert many == "elementwise"


def test_names_of_values_do_not_count() -> None:
    body = Block([p := param("softmax", WIDE)], [b := Builder().neg(p)], {b: "attention"})
    step = make("fusion", [param("gelu", WIDE)], {"kind": "loop", "name": "matmul"}, [body])
    assert group_name(step) == "neg"


def test_a_long_mix_of_bits_is_named_without_walking_each_path() -> None:
    def build(b: Builder, x: Node, y: Node) -> Node:
        mixed = b.cast(x, type=tensor("i32", ROWS, COLUMNS))
        for _ in range(100):
            mixed = b.op("xor", [b.add(mixed, mixed), mixed])
        return b.mul(b.cast(mixed, type=WIDE), y)

    assert "SiLU" not in name(build)
