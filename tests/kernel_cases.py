"""Small fusion groups of every shape, for the passes and for the backends."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stack.ir import DTYPES, Builder, Func, Node, param, tensor
from stack.ir.data import round_bf16
from stack.passes.policies.lowerings import lowering_of
from stack.schedule import with_schedules
from stack.target import Target, as_cpu

Spec = tuple[str | int, ...]


def softmax(b: Builder, x: Node, mask: Node) -> Node:
    x = b.add(b.mul(x, 0.125), b.broadcast(mask, axes=(1, 2), type=x.type))
    m = b.reduce(x, kind="max", axes=(2,))
    e = b.exp(b.sub(x, b.broadcast(m, axes=(0, 1), type=x.type)))
    s = b.reduce(e, kind="sum", axes=(2,))
    return b.div(e, b.broadcast(s, axes=(0, 1), type=x.type))


def layernorm(b: Builder, x: Node, w: Node, bias: Node) -> tuple[Node, ...]:
    t = x.type
    size = float(x.shape[1])
    mean = b.div(b.reduce(x, kind="sum", axes=(1,)), size)
    d = b.sub(x, b.broadcast(mean, axes=(0,), type=t))
    var = b.div(b.reduce(b.mul(d, d), kind="sum", axes=(1,)), size)
    r = b.rsqrt(b.add(var, 1e-5))
    y = b.mul(d, b.broadcast(r, axes=(0,), type=t))
    y = b.mul(y, b.broadcast(w, axes=(1,), type=t))
    return b.add(y, b.broadcast(bias, axes=(1,), type=t)), mean, r


def column_sum(b: Builder, x: Node) -> Node:
    return b.reduce(b.mul(x, x), kind="sum", axes=(0,))


def column_softmax(b: Builder, x: Node) -> Node:
    m = b.reduce(x, kind="max", axes=(0,))
    e = b.exp(b.sub(x, b.broadcast(m, axes=(1,), type=x.type)))
    s = b.reduce(e, kind="sum", axes=(0,))
    return b.div(e, b.broadcast(s, axes=(1,), type=x.type))


def rope(b: Builder, x: Node, c: Node, s: Node) -> Node:
    ones = (1, 1, 1)
    low = b.slice(x, start=(0, 0, 0), limit=(2, 6, 16), step=ones)
    high = b.slice(x, start=(0, 0, 16), limit=(2, 6, 32), step=ones)
    turned = b.concat(b.neg(high), low, axis=2)
    straight = b.mul(x, b.broadcast(c, axes=(1, 2), type=x.type))
    return b.add(straight, b.mul(turned, b.broadcast(s, axes=(1, 2), type=x.type)))


def split_heads(b: Builder, x: Node) -> Node:
    return b.transpose(b.reshape(x, type=tensor("f32", 2, 3, 4, 5)), perm=(0, 2, 1, 3))


def merge_heads(b: Builder, x: Node) -> Node:
    y = b.transpose(x, perm=(0, 2, 1, 3))
    return b.exp(b.reshape(y, type=tensor("f32", 2, 12, 5)))


def unclean_reshape(b: Builder, x: Node) -> Node:
    return b.exp(b.reshape(x, type=tensor("f32", 10, 7)))


def embedding(b: Builder, table: Node, i: Node) -> Node:
    return b.mul(b.gather(table, i, rule="v! d, b s -> b s d"), 2.0)


def embedding_norm(b: Builder, table: Node, i: Node) -> tuple[Node, ...]:
    """A norm of picked rows, with the values that its gradient needs: the rows and indices."""
    rows = b.sub(3, i)
    x = b.gather(table, rows, rule="v! d, b s -> b s d")
    r = b.rsqrt(b.add(b.reduce(b.mul(x, x), kind="sum", axes=(2,)), 1.0))
    return rows, x, b.mul(x, b.broadcast(r, axes=(0, 1), type=x.type)), r


def take_along(b: Builder, x: Node, i: Node) -> Node:
    return b.mul(b.gather(x, i, rule="a v!, a k -> a k"), 2.0)


def pad_reverse(b: Builder, x: Node) -> Node:
    return b.reverse(b.pad(x, 0.5, low=(1, 2), high=(0, 3), interior=(0, 1)), axes=(1,))


def causal(b: Builder, x: Node) -> Node:
    row = b.iota(axis=0, type=tensor("i64", 4, 6))
    column = b.iota(axis=1, type=tensor("i64", 4, 6))
    return b.select(b.ge(row, column), x, -1.0)


def total(b: Builder, x: Node) -> Node:
    return b.reduce(x, kind="sum", axes=tuple(range(x.tensor.rank)))


def middle_max(b: Builder, x: Node) -> Node:
    return b.reduce(x, kind="max", axes=(1,))


def middle_and_last(b: Builder, x: Node) -> Node:
    return b.reduce(x, kind="sum", axes=(1, 2))


def pointwise(b: Builder, x: Node) -> Node:
    return b.exp(b.neg(x))


def fill(b: Builder, x: Node) -> Node:
    return b.broadcast(b.const(3.0, "f32"), axes=(), type=x.type)


def from_array(b: Builder, x: Node) -> Node:
    table = b.const(np.arange(6, dtype=np.float32))
    return b.add(x, b.broadcast(table, axes=(1,), type=x.type))


def running_sum(b: Builder, x: Node) -> Node:
    return b.scan(x, kind="sum", axis=1, reverse=False)


def running_max_back(b: Builder, x: Node) -> Node:
    return b.scan(x, kind="max", axis=0, reverse=True)


def scatter_rows(b: Builder, x: Node, i: Node, u: Node) -> Node:
    return b.scatter(x, i, u, rule="v! d, n, n d -> v! d", kind="add")


def scatter_set(b: Builder, x: Node, i: Node, j: Node, u: Node) -> Node:
    return b.scatter(x, i, j, u, rule="v! w!, n, n, n -> v! w!", kind="max")


def sum_in_a_part(b: Builder, x: Node, y: Node) -> Node:
    """A sum over the axis along which only some elements need it."""
    product = b.mul(x, y)
    total = b.reshape(b.reduce(product, kind="sum", axes=(0,)), type=tensor("f32", 1))
    return b.add(x, b.pad(total, 0.0, low=(x.shape[0] - 1,), high=(0,), interior=(0,)))


def pad_number(b: Builder, x: Node) -> Node:
    """Zeros behind one number, many times."""
    many = b.broadcast(x, axes=(), type=tensor("f32", 4))
    return b.pad(many, 0.0, low=(1,), high=(2,), interior=(0,))


CASES: list[tuple[Callable[..., Node | tuple[Node, ...]], list[Spec]]] = [
    (softmax, [("f32", 3, 5, 70), ("f32", 5, 70)]),
    (softmax, [("f32", 1, 2, 1), ("f32", 2, 1)]),
    (softmax, [("f32", 2, 2, 257), ("f32", 2, 257)]),
    (layernorm, [("f32", 6, 100), ("f32", 100), ("f32", 100)]),
    (layernorm, [("bf16", 6, 100), ("bf16", 100), ("bf16", 100)]),
    (layernorm, [("f64", 2, 128), ("f64", 128), ("f64", 128)]),
    (column_sum, [("f32", 7, 133)]),
    (column_softmax, [("f32", 7, 133)]),
    (rope, [("f32", 2, 6, 32), ("f32", 6, 32), ("f32", 6, 32)]),
    (split_heads, [("f32", 2, 3, 20)]),
    (merge_heads, [("f32", 2, 3, 4, 5)]),
    (unclean_reshape, [("f32", 2, 5, 7)]),
    (embedding, [("f32", 4, 24), ("i64", 2, 5)]),
    (embedding_norm, [("f32", 4, 24), ("i32", 2, 5)]),
    (take_along, [("f32", 4, 24), ("i32", 4, 5)]),
    (pad_reverse, [("f32", 4, 7)]),
    (pad_number, [("f32",)]),
    (causal, [("f32", 4, 6)]),
    (total, [("f32", 4, 7)]),
    (total, [("f32", 1)]),
    (total, [("i64", 3, 5)]),
    (middle_max, [("f32", 4, 6, 9)]),
    (middle_and_last, [("f32", 4, 6, 9)]),
    (pointwise, [("f32",)]),
    (pointwise, [("f32", 5)]),
    (pointwise, [("f32", 3, 1)]),
    (pointwise, [("f16", 3, 67)]),
    (pointwise, [("f32", 40000)]),
    (pointwise, [("f32", 40009)]),  # a prime
    (fill, [("f32", 4, 6)]),
    (from_array, [("f32", 4, 6)]),
    (running_sum, [("f32", 4, 6)]),
    (running_sum, [("f32", 4, 6, 70)]),
    (running_sum, [("bf16", 2, 6, 3)]),
    (running_max_back, [("f32", 4, 130)]),
    (running_max_back, [("i32", 4)]),
    (sum_in_a_part, [("f32", 3), ("f32", 3)]),
    (scatter_rows, [("f32", 4, 24), ("i64", 9), ("f32", 9, 24)]),
    (scatter_set, [("f32", 4, 5), ("i64", 9), ("i32", 9), ("f32", 9)]),
]


def group_of(build: Callable[..., Node | tuple[Node, ...]], specs: list[Spec]) -> Node:
    b = Builder()
    params = [param(f"p{i}", tensor(*s)) for i, s in enumerate(specs)]
    made = build(b, *params)
    results = made if isinstance(made, tuple) else (made,)
    outside = [param(f"x{i}", tensor(*s)) for i, s in enumerate(specs)]
    body = b.block(params, results)
    return Builder().fusion(*outside, kind="loop", name=build.__name__, blocks=(body,))


def in_blocks(group: Node, **blocks: int) -> Node:
    """The group with a schedule of these blocks, where there are any."""
    text = " ".join(f"{axis}={block}" for axis, block in blocks.items() if block)
    return with_schedules(group, [text]) if text else group


def tile_group(group: Node, target: Target | None = None) -> Node:
    """The CPU kernel of a fusion group or a stream."""
    return lowering_of(group, as_cpu(target)).kernel()


def program(node: Node) -> Func:
    b = Builder()
    inputs = [a for a in node.args if a.op == "param"]
    count = len(node.type.items) if hasattr(node.type, "items") else 0
    results = [b.item(node, index=i) for i in range(count)] if count else [node]
    return b.func("main", inputs, results)


def random_array(spec: Spec, rng: np.random.Generator) -> np.ndarray:
    dtype = DTYPES[str(spec[0])]
    shape = tuple(int(s) for s in spec[1:])
    if dtype.is_integer:
        return rng.integers(0, 4, size=shape).astype(dtype.numpy)
    values = rng.normal(size=shape).astype(dtype.numpy)
    return round_bf16(values) if dtype.name == "bf16" else values
