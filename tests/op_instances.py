"""Random instances of every op of the tensor level: a node on parameters, and values for them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
from random_programs import Grower

from stack.ir import DTYPES, Block, Builder, Node, param, tensor
from stack.ir.elementwise_ops import BINARY, COMPARE, UNARY
from stack.ir.node import topological
from stack.ir.ops import OPS

Array = np.ndarray[Any, Any]
Instance = tuple[Node, list[Array]]
SIZES = (1, 2, 3, 4)
TYPES = ("f32", "f32", "f64", "i32", "i64", "bool", "u8", "bf16")
b = Builder()


def instance(op: str, rng: random.Random) -> Instance | None:
    """A random node of that op; None where the draw does not fit."""
    maker = MAKERS.get(op)
    return maker(rng) if maker is not None else grown(op, rng)


def with_values(node: Node, rng: random.Random) -> Instance:
    """A node on parameters with random values."""
    grower = Grower(rng, SIZES, TYPES, 400)
    return node, [np.asarray(grower.array(a.dtype, tuple(map(int, a.shape)))) for a in node.args]


# ---- by element


def elementwise(op: str, kinds: str, arity: int) -> Callable[[random.Random], Instance]:
    def make(rng: random.Random) -> Instance:
        dtype = DTYPES[rng.choice([t for t in TYPES if DTYPES[t].kind in kinds])]
        shape = random_shape(rng)
        args = [
            param(f"x{i}", tensor(dtype, *(shape if i == 0 or rng.random() < 0.8 else ())))
            for i in range(arity)
        ]
        rng.shuffle(args)
        return with_values(b.op(op, args), rng)

    return make


def random_shape(rng: random.Random, least: int = 0, most: int = 4) -> tuple[int, ...]:
    return tuple(rng.choice(SIZES) for _ in range(rng.randint(least, most)))


def select(rng: random.Random) -> Instance:
    shape = random_shape(rng)
    parts = [shape if rng.random() < 0.7 else () for _ in range(3)]
    types = [tensor("bool", *parts[0]), tensor("f32", *parts[1]), tensor("f32", *parts[2])]
    return with_values(b.op("select", [param(f"x{i}", t) for i, t in enumerate(types)]), rng)


# ---- moves and reductions, as random programs make them


def grown(op: str, rng: random.Random) -> Instance | None:
    """A node that a random program would compute from a random value."""
    grower = Grower(rng, SIZES, TYPES, 400)
    grower.special = True
    dtype = DTYPES[rng.choice(TYPES)]
    for i in range(3):
        shape = random_shape(rng, 0, 4)
        x = param(f"x{i}", tensor(dtype, *shape))
        grower.give(x, grower.array(dtype, shape))
    made = getattr(grower, {"while": "loop", "fusion": "call"}.get(op, op))(x)
    wanted = "call" if op == "fusion" else op
    found = [n for n in topological([made]) if n.op == wanted] if made is not None else []
    if not found or any(grower.keep(a) is None for a in found[-1].args):
        return None
    node = found[-1]
    holders = [param(f"a{i}", a.type) for i, a in enumerate(node.args)]
    attrs = {"kind": "loop"} if op == "fusion" else node.attrs
    alone = Node(op, holders, attrs, node.type, node.blocks)
    return alone, [np.asarray(grower.values[a][0]) for a in node.args]


def conv(rng: random.Random) -> Instance:
    rank = rng.choice([0, 1, 1, 2])
    groups, ins, outs = rng.choice([1, 1, 2]), rng.choice([1, 2]), rng.choice([1, 2, 3])
    taps = tuple(rng.choice([1, 2, 3]) for _ in range(rank))
    is_last, is_transposed = rng.random() < 0.3, rng.random() < 0.4
    own = (groups * ins, outs) if is_transposed else (groups * outs, ins)
    shapes = [(2, groups * ins, *(rng.choice([3, 4, 5]) for _ in taps)), (*own, *taps)]
    over_images = groups == 1 and rng.random() < 0.3
    if over_images:
        shapes = [(second, first, *rest) for first, second, *rest in shapes]
    if is_last:
        shapes = [(first, *rest, second) for first, second, *rest in shapes]
    x, w = (param(n, tensor("f64", *shape)) for n, shape in zip("xw", shapes, strict=True))
    numbers = {
        "stride": (1, 2, 3), "low": (-1, 0, 1, 2), "high": (-1, 0, 1, 2),
        "lhs_dilation": (1, 1, 2), "rhs_dilation": (1, 1, 2),
    }  # fmt: skip
    attrs: dict[str, Any] = {k: tuple(rng.choice(v) for _ in taps) for k, v in numbers.items()}
    attrs |= {"over_images": over_images}
    node = b.conv(x, w, groups=groups, transposed=is_transposed, channels_last=is_last, **attrs)
    return with_values(node, rng)


def unfold(rng: random.Random) -> Instance:
    shape = random_shape(rng, least=1)
    axis = rng.randrange(len(shape))
    sizes = shape[axis : axis + rng.choice([1, 2])]
    window = tuple(rng.randint(1, s) for s in sizes)
    dilation = tuple(rng.choice([1, 2]) if 2 * k - 1 <= s else 1 for s, k in zip(sizes, window))
    stride = tuple(rng.choice([1, 2, 3]) for _ in sizes)
    x = param("x", tensor(rng.choice(TYPES), *shape))
    return with_values(b.unfold(x, axis=axis, window=window, stride=stride, dilation=dilation), rng)


def ragged_dot(rng: random.Random) -> Instance:
    rows, groups, depth, width = (rng.choice(SIZES) for _ in range(4))
    x = param("x", tensor("f64", rows, depth))
    ends = param("ends", tensor("i64", groups))
    if rng.random() < 0.5:
        y, rule = tensor("f64", groups, depth, width), "s! k, g^ k n, g^ -> s! n"
    else:
        y, rule = tensor("f64", rows, width), "s! k, s! n, g^ -> g^ k n"
    node, arrays = with_values(b.ragged_dot(x, param("y", y), ends, rule=rule), rng)
    return node, [*arrays[:2], np.sort(np.array([rng.randint(0, rows) for _ in range(groups)]))]


def item(rng: random.Random) -> Instance | None:
    """An item is a node of a node; a body holds both, and a call of it is what is perturbed."""
    found = grown("sort", rng)
    if found is None:
        return None
    node, arrays = found
    items = [b.item(node, index=i) for i in range(len(node.args))]
    return b.call(*node.args, name="sorted", blocks=(Block(node.args, items),)), arrays


# ---- streams


def stream(rng: random.Random) -> Instance:
    """log(sum(exp(x))) of rows, or rows of v weighted by softmax(x), whole or in parts."""
    rows, k, width = rng.choice(SIZES), rng.choice([2, 5, 7]), rng.choice(SIZES)
    x, v = param("x", tensor("f32", rows, k)), param("v", tensor("f32", k, width))
    m = b.reduce(x, kind="max", axes=(1,))
    e = b.exp(b.sub(x, b.broadcast(m, axes=(0,), type=x.type)))
    states = [m, b.reduce(e, kind="sum", axes=(1,)), b.dot(e, v, rule="m k, k n -> m n")]
    old, new = ([param(f"{n}{i}", s.type) for i, s in enumerate(states)] for n in ("old", "new"))
    factor = b.exp(b.sub(old[0], new[0]))
    wide = b.broadcast(factor, axes=(0,), type=states[2].type)
    correct = Block([*old, *new], [old[0], b.mul(old[1], factor), b.mul(old[2], wide)])
    divisor = b.broadcast(old[1], axes=(0,), type=states[2].type)
    ends = [b.div(old[2], divisor), b.add(old[0], b.log(old[1]))][: rng.randint(1, 2)]
    blocks = (Block([x, v], states), correct, Block([*old, x, v], ends))
    part = {"part": rng.choice([1, 2, 3])} if rng.random() < 0.5 else {}
    return with_values(b.stream(x, v, name="pooled", blocks=blocks, **part), rng)


MAKERS: dict[str, Callable[[random.Random], Instance | None]] = {
    **{n: elementwise(n, kinds, 1) for n, (kinds, _, _) in UNARY.items()},
    **{n: elementwise(n, kinds, 2) for n, (kinds, _, _) in BINARY.items()},
    **{n: elementwise(n, "biuf", 2) for n in COMPARE},
    "select": select,
    "conv": conv,
    "unfold": unfold,
    "ragged_dot": ragged_dot,
    "item": item,
    "stream": stream,
}
LEAVES = tuple(name for name, op in OPS.items() if op.arity == 0)
