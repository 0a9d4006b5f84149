"""Random functions for the tests of text, verifier and interpreter: all that the text can hold."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np

from stack.ir import DTYPES, Block, Builder, Func, Node, TensorType, param, tensor
from stack.ir.dim import Dim, Expr, product, symbol
from stack.ir.elementwise_ops import BINARY, COMPARE, UNARY
from stack.ir.types import I64

NAMES = [
    "x",
    "mul",
    "h.0.attn",
    "größe",
    "层",
    "a b",
    "x_1",
    "_",
    "9lives",
    "q-k",
    "%@!",
    "²",
    "a·b",
]
LINES = [
    "a.py:1",
    "b.py:22 Attn.wq",
    'quote " and \\',
    "tab\tnew\nline",
    "日本語.py:3",
    "%x = {",
    "",
]
FLOATS = [0.0, -0.0, 1.5, float("inf"), float("-inf"), float("nan"), 1e-30, 1e30, 1 / 3]


class Maker:
    """Grows one function. Every draw goes through `rng`, so a seed names a function."""

    def __init__(self, seed: int, symbolic: bool = False) -> None:
        self.rng = random.Random(seed)
        self.b = Builder()
        self.sizes: list[Dim] = [1, 2, 3, 4, 6, 0 if seed % 7 == 0 else 2]
        if symbolic:
            self.sizes += [symbol("n", 1, 64), symbol("层", 2, 8, 2), symbol("m")]

    def shape(self) -> tuple[Dim, ...]:
        return tuple(self.rng.choice(self.sizes) for _ in range(self.rng.randint(0, 3)))

    def type(self) -> TensorType:
        names = ["f32", "f32", "f32", "i64", "bool", *DTYPES]
        return tensor(self.rng.choice(names), *self.shape())

    def const(self) -> Node:
        rng = self.rng
        type_ = self.type()
        shape = tuple(d if isinstance(d, int) else 3 for d in type_.shape)
        count = int(np.prod(shape))
        dtype = type_.dtype
        if dtype.kind in "fc":
            values = np.array([rng.choice(FLOATS) for _ in range(count)])
        else:
            values = np.array(
                [rng.randint(0, 1 if dtype.kind == "b" else 100) for _ in range(count)]
            )
        with np.errstate(over="ignore"):
            return self.b.const(values.astype(dtype.numpy).reshape(shape), dtype)

    def step(self, values: list[Node]) -> Node | None:
        """One more node on some of the values, or None where the draw does not fit."""
        rng, b = self.rng, self.b
        x = rng.choice(values)
        rank = x.tensor.rank
        moves: list[Callable[[], Node | None]] = [
            self.const,
            lambda: self.unary(x),
            lambda: self.unary(x),
            lambda: self.binary(x, values),
            lambda: self.binary(x, values),
            lambda: b.cast(x, type=x.tensor.with_dtype(rng.choice(list(DTYPES.values())))),
            lambda: b.reshape(x, type=x.tensor.with_shape((product(x.shape),))),
            lambda: b.transpose(x, perm=tuple(rng.sample(range(rank), rank))),
            lambda: self.broadcast(x),
            lambda: self.fusion(x, values),
            lambda: self.cond(x),
            lambda: self.loop(x),
        ]
        if rank:
            axis = rng.randrange(rank)
            axes = tuple(sorted(rng.sample(range(rank), rng.randint(0, rank))))
            ordered = x.dtype.kind in "biuf"
            numeric = [k for k in ("sum", "prod")] + ["max", "min"] * ordered
            kind = rng.choice(numeric)
            moves += [
                lambda: b.reduce(x, kind=kind, axes=axes),
                lambda: b.scan(x, kind=kind, axis=axis, reverse=rng.random() < 0.5),
                lambda: b.reverse(x, axes=axes),
                lambda: b.concat(x, x, axis=axis),
                lambda: b.slice(
                    x, start=(0,) * rank, limit=x.shape, step=(rng.choice([1, 2]),) * rank
                ),
                lambda: self.pad(x),
                lambda: b.iota(axis=axis, type=x.tensor.with_dtype(I64)),
                lambda: self.gather(x, axis),
                lambda: self.dot(x),
            ]
            if ordered:
                moves += [
                    lambda: b.argreduce(x, kind="max", axis=axis, type=x.tensor.with_dtype(I64)),
                    lambda: b.item(
                        b.sort(x, x, axis=axis, num_keys=1, descending=rng.random() < 0.5),
                        index=rng.randrange(2),
                    ),
                ]
        node = rng.choice(moves)()
        if node is not None:
            b.loc = tuple(rng.choice(LINES) for _ in range(rng.choice([0, 0, 1, 2])))
            b.note(node, rng.choice(NAMES) if rng.random() < 0.5 else None)
        return node

    def unary(self, x: Node) -> Node | None:
        fitting = [n for n, (kinds, _, _) in UNARY.items() if x.dtype.kind in kinds]
        return self.b.op(self.rng.choice(fitting), (x,)) if fitting else None

    def binary(self, x: Node, values: list[Node]) -> Node | None:
        fitting = [n for n, (kinds, _, _) in BINARY.items() if x.dtype.kind in kinds]
        like = [v for v in values if v.dtype is x.dtype and v.shape in (x.shape, ())]
        name = self.rng.choice([*fitting, *COMPARE, "select"])
        y = self.rng.choice(like) if like else x
        if name == "select":
            return self.b.select(self.b.eq(x, x), x, y)
        return self.b.op(name, (x, y))

    def broadcast(self, x: Node) -> Node | None:
        extra = self.rng.choice(self.sizes)
        if x.tensor.rank > 3:
            return None
        at = self.rng.randint(0, x.tensor.rank)
        shape = (*x.shape[:at], extra, *x.shape[at:])
        axes = tuple(i for i in range(len(shape)) if i != at)
        return self.b.broadcast(x, axes=axes, type=x.tensor.with_shape(shape))

    def pad(self, x: Node) -> Node:
        rank = x.tensor.rank
        low, high, interior = (tuple(self.rng.randint(0, 2) for _ in range(rank)) for _ in range(3))
        return self.b.pad(x, self.b.const(1, x.dtype), low=low, high=high, interior=interior)

    def gather(self, x: Node, axis: int) -> Node | None:
        if isinstance(x.shape[axis], Expr) or x.shape[axis] == 0:
            return None
        index = self.b.const(np.array([[0, x.shape[axis] - 1]], dtype=np.int64))
        letters = "abcd"[: x.tensor.rank]
        read = " ".join(c + "!" * (i == axis) for i, c in enumerate(letters))
        made = " ".join("p q" if i == axis else c for i, c in enumerate(letters))
        return self.b.gather(x, index, rule=f"{read}, p q -> {made}")

    def dot(self, x: Node) -> Node:
        letters = " ".join("abcd"[: x.tensor.rank])
        return self.b.dot(x, x, rule=f"{letters}, {letters} -> {letters[:1]}")

    def fusion(self, x: Node, values: list[Node]) -> Node:
        args = [x, self.rng.choice(values)]
        inner = [param(f"p{i}", a.type) for i, a in enumerate(args)]
        body = Maker(self.rng.randrange(1 << 30))
        grown = body.grow([*inner], 3, nested=True)
        count = self.rng.randint(1, 2)
        block = Block(inner, grown[-count:], body.b.names, body.b.locs)
        kind = self.rng.choice(["fusion", "call"])
        attrs = (
            {"name": "g"} if kind == "call" else {"kind": "loop", "why": [["a", 1.5], None, True]}
        )
        node = self.b.op(kind, args, attrs, (block,))
        return node if count == 1 else self.b.item(node, index=self.rng.randrange(count))

    def cond(self, x: Node) -> Node:
        p = param("p", x.type)
        blocks = (
            Block((p,), (p,)),
            Block((p,), (self.b.concat(p, axis=0) if x.tensor.rank else p,)),
        )
        return self.b.cond(self.b.const(True), x, blocks=blocks)

    def loop(self, x: Node) -> Node:
        i, p = param("i", tensor("i64")), param("p", x.type)
        test = Block((i, p), (self.b.lt(i, 3),))
        body = Block((i, p), (self.b.add(i, 1), p))
        node = self.b.while_(self.b.const(0, "i64"), x, blocks=(test, body))
        return self.b.item(node, index=1)

    def grow(self, values: list[Node], count: int, nested: bool = False) -> list[Node]:
        values = list(values)
        for _ in range(count):
            node = self.step(values)
            if node is not None and (not nested or node.tensor.rank < 5):
                values.append(node)
        return values


def random_func(seed: int, size: int = 14, symbolic: bool = False) -> Func:
    """A random tensor-level function."""
    maker = Maker(seed, symbolic)
    params = [param(f"a{i}", maker.type()) for i in range(3)]
    params.append(param("f", tensor("f32", 2, 3)))
    values = maker.grow(params, size)
    results = maker.rng.sample(values, min(3, len(values))) + [values[-1]]
    return maker.b.func(maker.rng.choice(NAMES), params, results)


def kernel_func(extent: int = 4) -> Func:
    """Open blocks: two loops that share an index, one inside the other's sibling."""
    b = Builder()
    memory = tensor("f32", extent, 8)
    x = param("x", TensorType(memory.dtype, memory.shape, "global"))
    y = param("y", TensorType(memory.dtype, memory.shape, "global"))
    i = Node("var", (), {"name": "i", "extent": extent}, TensorType(I64, ()))
    j = Node("var", (), {"name": "j", "extent": 2}, TensorType(I64, ()))
    tile = TensorType(memory.dtype, (1, 8), "tile")

    def body(scale: float, carried: Node, inner: bool) -> Block:
        row = b.load(x, i, b.const(0, I64), type=tile)
        value = b.mul(b.exp(row), scale)
        b.loc = ("k.py:1",)
        value = b.op("add", (value, value), named="twice")
        if inner:
            store = Node("var", (), {"name": "z"}, y.type)
            place = b.add(i, b.mul(j, 0))
            back = b.store(store, value, place, b.const(0, I64))
            return Block(
                (i, carried),
                (b.loop(carried, kind="serial", blocks=(Block((j, store), (back,)),)),),
            )
        return Block((i, carried), (b.store(carried, value, i, b.const(0, I64)),))

    m = Node("var", (), {"name": "m"}, y.type)
    first = b.loop(y, kind="grid", blocks=(body(1.0, m, False),))
    second = b.loop(first, kind="grid", blocks=(body(2.0, m, True),))
    kernel_block = Block((x, y), (second,), b.names, b.locs)
    a = param("a", memory)
    outer = Builder()
    node = outer.kernel(a, name="k", level="tile", blocks=(kernel_block,))
    return outer.func("kernels", [a], [outer.neg(node)])
