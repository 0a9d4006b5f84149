"""Random well-conditioned programs with inputs: what a compiler's rounding may change, they tell.

Every node is evaluated while the program grows: in the reference interpreter, in f64, and twice in
f64 with noise of a few roundings put on each inexact value. A node whose value the noise would
change a lot (a comparison of nearly equal numbers, a cancellation, an overflow) is not kept. How
far the noise moves a result is how far a correct compiler may be off, so small tolerances can be
asked for.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from noisy_space import EPS, Noisy, pushed, short

from stack.errors import RuleError
from stack.ir import DTYPES, Block, Builder, DType, Func, Node, param, tensor
from stack.ir.data import round_bf16
from stack.ir.elementwise_ops import BINARY, COMPARE, UNARY
from stack.ir.interpreter import evaluate
from stack.ir.space import NumpySpace
from stack.ir.types import BOOL, I64, TensorType, TupleType

JUMPS = frozenset({*COMPARE, "cast", "floor", "ceil", "round", "trunc", "sign", "rem"})
RARE = frozenset({"erfinv", "lgamma", "digamma"})
FLOATS = ("f32", "f32", "f32", "f32", "f64", "bf16", "f16")
OTHERS = ("i32", "i64", "i64", "bool", "i8", "u8", "i16", "u16", "u32", "u64")
SIZES = (1, 2, 3, 4, 5, 7, 8, 13, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 128)
SMALL = (1, 2, 3, 4, 5, 7, 8, 16, 17)
Values = list[Any]


@dataclass(frozen=True)
class Program:
    """A function, inputs for it, its results, and the error that each may have."""

    func: Func
    inputs: list[np.ndarray]
    results: list[np.ndarray]
    errors: list[float]

    def compare(self, found: Any) -> str:
        """The differences from other results; empty if there are none."""
        others = list(found) if isinstance(found, tuple | list) else [found]
        if len(others) != len(self.results):
            return f"{len(others)} results, {len(self.results)} expected"
        for i, (have, want, error) in enumerate(
            zip(others, self.results, self.errors, strict=True)
        ):
            name = self.func.results[i].dtype.name
            have = np.asarray(have)
            if have.shape != want.shape or have.dtype != want.dtype:
                return f"result {i} is {have.dtype}{have.shape}, not {want.dtype}{want.shape}"
            wrong = mismatch(want, have, error, EPS.get(name, 0.0))
            if wrong.any():
                at = tuple(int(k) for k in np.argwhere(wrong)[0])
                return (
                    f"result {i} ({self.func.results[i].type}) differs in {int(wrong.sum())} of"
                    f" {wrong.size} places, at {list(at)}: {have[at]!r}, not {want[at]!r}"
                    f" (error allowed: {error:.3g})"
                )
        return ""


def mismatch(want: np.ndarray, have: np.ndarray, error: float, eps: float) -> np.ndarray:
    """True where two arrays differ by more than an absolute error and 16 roundings."""
    if want.dtype.kind != "f":
        return np.asarray(want != have)
    a, b = want.astype(np.float64), have.astype(np.float64)
    with np.errstate(invalid="ignore"):
        near = (np.abs(a - b) <= error + 16 * eps * np.abs(a)) & np.isfinite(a)
    return ~(near | (a == b) | (np.isnan(a) & np.isnan(b)))


class Grower:
    """Grows the body of one block. Values that a block is tried on come with its parameters."""

    def __init__(
        self, rng: random.Random, sizes: Sequence[int], dtypes: Sequence[str], limit: int
    ) -> None:
        self.rng = rng
        self.sizes = sizes
        self.dtypes = dtypes
        self.limit = limit
        self.special = False
        self.depth = 0
        self.b = Builder()
        self.spaces = (
            NumpySpace(),
            Noisy(0, 0),
            *(Noisy(rng.randrange(1 << 30)) for _ in range(2)),
        )
        self.values: dict[Node, Values] = {}
        self.pool: list[Node] = []

    # ---- values

    def array(self, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
        seed = self.rng.randrange(1 << 30)
        r = np.random.default_rng(seed)
        if dtype.kind == "b":
            return np.asarray(r.integers(0, 2, shape) == 1)
        if dtype.is_integer:
            low = 0 if dtype.kind == "u" else self.rng.choice([0, 0, -5, -100])
            return np.asarray(r.integers(low, self.rng.choice([2, 9, 100]), shape)).astype(
                dtype.numpy
            )
        style = self.rng.random()
        if style < 0.25:
            x = np.asarray(r.integers(-4, 5, shape) / 2.0)
        elif style < 0.4:
            x = np.asarray(r.uniform(0.2, 2.0, shape))
        else:
            x = np.asarray(r.standard_normal(shape))
        if self.special and x.size:
            odd = np.array([np.nan, np.inf, -np.inf, -0.0])
            x = np.where(r.random(shape) < 0.05, r.choice(odd, shape), x)
        x = np.asarray(x, dtype=dtype.numpy)
        return round_bf16(x) if dtype.name == "bf16" else x

    def give(self, node: Node, array: np.ndarray) -> Node:
        """A parameter with its value."""
        wide = array.astype(np.float64) if node.dtype.kind == "f" else array
        self.values[node] = [array, wide, wide, wide]
        self.pool.append(node)
        return node

    def keep(self, node: Node | None) -> Node | None:
        """Evaluate a new node; None if its values, or those of noisy operands, are bad."""
        if node is None:
            return None
        if node in self.values:
            return node
        for arg in node.args:
            if arg not in self.values and self.keep(arg) is None:
                return None
        types = node.type.items if isinstance(node.type, TupleType) else (node.type,)
        if any(math.prod(int(d) for d in t.shape) > self.limit for t in types):
            return None
        holders = [param(f"a{i}", a.type) for i, a in enumerate(node.args)]
        alone = Node(node.op, holders, node.attrs, node.type, node.blocks)
        made: Values = []
        for i, space in enumerate(self.spaces):
            block = Block(holders, (alone,))
            try:
                (value,) = evaluate(block, [self.values[a][i] for a in node.args], space)
            except (ZeroDivisionError, OverflowError):
                return None
            made.append(value)
        if isinstance(node.type, TensorType):
            if not self.good(node, made):
                return None
        else:
            for k, t in enumerate(node.type.items):
                if not self.steady([m[k] for m in made], t.dtype):
                    return None
        if isinstance(node.type, TensorType) and not self.clear_of_jumps(node, made[0], alone):
            return None
        self.values[node] = made
        return node

    def clear_of_jumps(self, node: Node, want: Any, alone: Node) -> bool:
        """True if operands may be as far off as `error` allows without a jump of the result.

        Noise finds a jump that is near with some luck only: the nearest integer of a value that is
        about to be truncated, or a number that it is compared with.
        """
        if node.op not in JUMPS or (node.op == "cast" and node.dtype.kind == "f"):
            return True
        block = Block(alone.args, (alone,))
        for signs in ((1, -1), (-1, 1)):
            args = [pushed(self.values[a], a.dtype, s) for a, s in zip(node.args, signs)]
            (found,) = evaluate(block, args, self.spaces[1])
            if not self.steady([want, found], node.dtype):
                return False
        return True

    def good(self, node: Node, made: Values) -> bool:
        if node.op == "cast" and node.dtype.is_integer and node.args[0].dtype.kind == "f":
            x = np.asarray(self.values[node.args[0]][0], np.float64)
            info = np.iinfo(node.dtype.numpy)
            if x.size and not (np.isfinite(x).all() and (abs(x) < 1e5).all()):
                return False
            if x.size and not ((np.trunc(x) >= info.min) & (np.trunc(x) <= info.max)).all():
                return False
        if node.op == "bitcast" and node.args[0].dtype.kind == "f":
            # a rounding shows; sign and payload of a nan are not specified
            if not short(self.values[node.args[0]][0], EPS[node.args[0].dtype.name]).all():
                return False
        return self.steady(made, node.dtype)

    def steady(self, made: Values, dtype: DType) -> bool:
        want, *noisy = made
        if dtype.kind != "f":
            return all(np.array_equal(want, n) for n in noisy)
        want = np.asarray(want, np.float64)
        finite = np.isfinite(want)
        if not self.special and not finite.all():
            return False
        sizes = np.abs(want[finite])
        scale = float(sizes.max()) if sizes.size else 0.0
        if scale > (200 if dtype.name == "f16" else 1e4):
            return False
        if bool(((sizes > 0) & (sizes < (1e-3 if dtype.name == "f16" else 1e-12))).any()):
            return False
        allowed = 200 * EPS[dtype.name] * max(scale, 1e-3)
        return not any(mismatch(want, n, allowed, 0).any() for n in noisy)

    def error(self, node: Node) -> float:
        """The allowed error of a correct result."""
        if node.dtype.kind != "f":
            return 0.0
        want, *noisy = (np.asarray(v, np.float64) for v in self.values[node])
        finite = np.isfinite(want)
        if not finite.any():
            return 0.0
        moved = max(float(np.abs(n[finite] - want[finite]).max()) for n in noisy)
        scale = float(np.abs(want[finite]).max())
        return 8 * moved + 8 * EPS[node.dtype.name] * scale

    # ---- shapes

    def shape(self, most: int = 4) -> tuple[int, ...]:
        rank = self.rng.choice([0, 1, 2, 2, 2, 3, 3, 4])
        shape = [self.rng.choice(self.sizes) for _ in range(min(rank, most))]
        while math.prod(shape) > self.limit:
            shape.pop()
        return tuple(shape)

    def fit(self, y: Node, shape: tuple[int, ...], dtype: DType) -> Node:
        """y, or a value computed from it, or a constant, with this type or a scalar."""
        if y.dtype is not dtype:
            if y.dtype.kind == "f" and dtype.kind in "iub":
                return self.const(dtype, shape)
            y = self.b.cast(y, type=y.tensor.with_dtype(dtype))
        if y.shape in (shape, ()):
            return y
        axes: list[int] = []
        at = 0
        for axis, size in enumerate(shape):
            if at < y.tensor.rank and y.shape[at] == size:
                axes.append(axis)
                at += 1
        if at == y.tensor.rank:
            return self.b.broadcast(y, axes=tuple(axes), type=tensor(dtype, *shape))
        return self.const(dtype, shape)

    def const(self, dtype: DType, shape: tuple[int, ...]) -> Node:
        if self.rng.random() < 0.6 or math.prod(shape) > 512:
            value = self.rng.choice([0, 1, 2, 3, 7])
            if dtype.kind == "f":
                value = self.rng.choice([0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 0.3, -1.7])
            return self.b.const(np.asarray(value).astype(dtype.numpy), dtype)
        return self.b.const(self.array(dtype, shape), dtype)

    # ---- steps

    def pick(self, test: Callable[[Node], bool] = lambda n: True) -> Node | None:
        """A value, recent ones more often."""
        fitting = [n for n in self.pool if test(n)]
        if not fitting:
            return None
        if self.rng.random() < 0.6:
            return self.rng.choice(fitting[-4:])
        return self.rng.choice(fitting)

    def step(self) -> bool:
        """One more value; False where the draw did not fit."""
        x = self.pick()
        if x is None:
            return False
        names = [name for name, weight in MOVES.items() for _ in range(weight)]
        try:
            node = getattr(self, self.rng.choice(names))(x)
        except RuleError:
            return False
        return self.add(node)

    def add(self, node: Node | None) -> bool:
        node = self.keep(node)
        if node is None or node in self.pool:
            return False
        if isinstance(node.type, TupleType):
            items = [self.b.item(node, index=i) for i in range(len(node.type.items))]
            return any([self.add(i) for i in items])
        self.pool.append(node)
        return True

    def unary(self, x: Node) -> Node | None:
        fitting = [n for n, (kinds, _, _) in UNARY.items() if x.dtype.kind in kinds]
        if self.rng.random() < 0.95:
            fitting = [n for n in fitting if n not in RARE]
        return self.b.op(self.rng.choice(fitting), (x,))

    def safe_unary(self, x: Node) -> Node | None:
        """A function of what lies in its domain."""
        if x.dtype.kind != "f":
            return None
        name = self.rng.choice(["sqrt", "rsqrt", "log", "exp", "tanh", "sigmoid", "erf", "log1p"])
        if name in ("sqrt", "rsqrt", "log", "log1p"):
            x = self.b.add(self.b.mul(x, x), 0.5)
        return self.b.op(name, (x,))

    def binary(self, x: Node) -> Node | None:
        fitting = [n for n, (kinds, _, _) in BINARY.items() if x.dtype.kind in kinds]
        common = [n for n in fitting if n in ("add", "sub", "mul", "max", "min", "div")]
        name = self.rng.choice([*fitting, *common, *common])
        y = self.pick()
        y = self.fit(y, x.shape, x.dtype) if y is not None else x  # pyright: ignore
        pair = (x, y) if self.rng.random() < 0.7 else (y, x)
        return self.b.op(name, pair)

    def compare(self, x: Node) -> Node | None:
        y = self.pick(lambda n: n.dtype is x.dtype) or x
        return self.b.op(self.rng.choice(list(COMPARE)), (x, self.fit(y, x.shape, x.dtype)))

    def select(self, x: Node) -> Node | None:
        test = self.pick(lambda n: n.dtype is BOOL and n.shape in (x.shape, ()))
        if test is None:
            test = self.keep(self.compare(x))
            if test is None:
                return None
        y = self.pick() or x
        y = self.fit(y, x.shape, x.dtype)
        return self.b.select(test, *((x, y) if self.rng.random() < 0.5 else (y, x)))

    def mask(self, x: Node) -> Node | None:
        if x.tensor.rank < 2 or x.dtype.kind not in "fi":
            return None
        kind = x.tensor.with_dtype(DTYPES[self.rng.choice(["i64", "i32"])])
        row, column = self.b.iota(axis=0, type=kind), self.b.iota(axis=1, type=kind)
        test = self.b.op(self.rng.choice(["ge", "lt", "eq"]), (row, column))
        return self.b.select(test, x, self.rng.choice([0, -1, 3]))

    def cast(self, x: Node) -> Node | None:
        name = self.rng.choice([*self.dtypes, *self.dtypes, *OTHERS])
        return self.b.cast(x, type=x.tensor.with_dtype(DTYPES[name]))

    def bitcast(self, x: Node) -> Node | None:
        names = [n for n, d in DTYPES.items() if d.bits == x.dtype.bits and d.kind not in "bc"]
        if x.dtype.kind == "b" or not names:
            return None
        name = self.rng.choice(names)
        if DTYPES[name].kind == "f" and x.dtype is not DTYPES[name]:
            return None
        return self.b.bitcast(x, type=x.tensor.with_dtype(DTYPES[name]))

    def reshape(self, x: Node) -> Node | None:
        shape = [int(d) for d in x.shape]  # pyright: ignore[reportArgumentType]
        style = self.rng.random()
        if style < 0.35 and len(shape) >= 2:
            at = self.rng.randrange(len(shape) - 1)
            shape[at : at + 2] = [shape[at] * shape[at + 1]]
        elif style < 0.7 and shape:
            at = self.rng.randrange(len(shape))
            parts = [d for d in (2, 3, 4, 5, 8, 16) if shape[at] and shape[at] % d == 0]
            if parts:
                d = self.rng.choice(parts)
                shape[at : at + 1] = self.rng.choice([[d, shape[at] // d], [shape[at] // d, d]])
        elif style < 0.9:
            shape.insert(self.rng.randint(0, len(shape)), 1)
        elif 0 not in shape:
            size = math.prod(shape)
            d = self.rng.choice([d for d in range(1, 40) if size % d == 0])
            shape = [d, size // d]
        return self.b.reshape(x, type=x.tensor.with_shape(tuple(shape))) if len(shape) < 6 else None

    def transpose(self, x: Node) -> Node | None:
        rank = x.tensor.rank
        return self.b.transpose(x, perm=tuple(self.rng.sample(range(rank), rank)))

    def broadcast(self, x: Node) -> Node | None:
        if x.tensor.rank > 3:
            return None
        at = self.rng.randint(0, x.tensor.rank)
        shape = (*x.shape[:at], self.rng.choice(self.sizes), *x.shape[at:])
        axes = tuple(i for i in range(len(shape)) if i != at)
        return self.b.broadcast(x, axes=axes, type=x.tensor.with_shape(shape))

    def slice(self, x: Node) -> Node | None:
        start, limit, step = [], [], []
        for d in x.shape:
            size = int(d)  # pyright: ignore[reportArgumentType]
            a, e = sorted((self.rng.randint(0, size), self.rng.randint(0, size)))
            whole = self.rng.random() < 0.5 or (a == e and self.rng.random() < 0.9)
            start.append(0 if whole else a)
            limit.append(size if whole else e)
            step.append(self.rng.choice([1, 1, 1, 2, 3]))
        return self.b.slice(x, start=tuple(start), limit=tuple(limit), step=tuple(step))

    def reverse(self, x: Node) -> Node | None:
        rank = x.tensor.rank
        axes = tuple(sorted(self.rng.sample(range(rank), self.rng.randint(0, rank))))
        return self.b.reverse(x, axes=axes)

    def pad(self, x: Node) -> Node | None:
        low, high, interior = (
            tuple(self.rng.choice([0, 0, 1, 2]) for _ in x.shape) for _ in range(3)
        )
        if self.rng.random() < 0.6:
            interior = (0,) * x.tensor.rank
        value = self.pick(lambda n: n.type == x.tensor.with_shape(()))
        return self.b.pad(
            x, value or self.b.const(1, x.dtype), low=low, high=high, interior=interior
        )

    def concat(self, x: Node) -> Node | None:
        if not x.tensor.rank:
            return None
        axis = self.rng.randrange(x.tensor.rank)

        def fits(n: Node) -> bool:
            return (
                n.dtype is x.dtype
                and n.tensor.rank == x.tensor.rank
                and all(i == axis or n.shape[i] == x.shape[i] for i in range(n.tensor.rank))
            )

        parts = [self.pick(fits) or x for _ in range(self.rng.choice([1, 1, 2, 5]))]
        return self.b.concat(x, *parts, axis=axis)

    def reduce(self, x: Node) -> Node | None:
        rank = x.tensor.rank
        if not rank:
            return None
        count = self.rng.choice([1, 1, 1, 2, rank])
        axes = tuple(sorted(self.rng.sample(range(rank), min(rank, count))))
        if x.dtype.kind == "f" and any(x.shape[a] == 0 for a in axes):
            kind = "sum"
        elif x.dtype.kind == "f":
            count = math.prod(int(x.shape[a]) for a in axes)  # pyright: ignore
            # a product of many may overflow on the way, in one order and not in another
            kind = self.rng.choice(["sum", "sum", "max", "min", "prod" if count < 32 else "sum"])
        else:
            kind = self.rng.choice(["sum", "prod", "max", "min", "and", "or"])
        made = self.b.reduce(x, kind=kind, axes=axes)
        if self.rng.random() < 0.5:
            return made
        if self.keep(made) is None:
            return None
        self.add(made)
        kept = tuple(i for i in range(rank) if i not in axes)
        back = self.b.broadcast(made, axes=kept, type=x.type)
        name = self.rng.choice(["mul", "add", "max"] + ["sub", "div"] * (x.dtype.kind == "f"))
        return self.b.op(name, (x, back))

    def softmax(self, x: Node) -> Node | None:
        if x.dtype.kind != "f" or not x.tensor.rank or 0 in x.shape:
            return None
        axis = self.rng.choice([x.tensor.rank - 1, self.rng.randrange(x.tensor.rank)])
        kept = tuple(i for i in range(x.tensor.rank) if i != axis)

        def back(n: Node) -> Node:
            return self.b.broadcast(n, axes=kept, type=x.type)

        e = self.b.exp(self.b.sub(x, back(self.b.reduce(x, kind="max", axes=(axis,)))))
        return self.b.div(e, back(self.b.reduce(e, kind="sum", axes=(axis,))))

    def argreduce(self, x: Node) -> Node | None:
        if not x.tensor.rank or x.dtype.kind == "c":
            return None
        axis = self.rng.randrange(x.tensor.rank)
        if x.shape[axis] == 0:
            return None
        kind = self.rng.choice(["max", "min"])
        dtype = DTYPES[self.rng.choice(["i64", "i32"])]
        return self.b.argreduce(x, kind=kind, axis=axis, type=x.tensor.with_dtype(dtype))

    def scan(self, x: Node) -> Node | None:
        if not x.tensor.rank or x.dtype is BOOL:
            return None
        return self.b.scan(
            x,
            kind=self.rng.choice(["sum", "prod", "max", "min"]),
            axis=self.rng.randrange(x.tensor.rank),
            reverse=self.rng.random() < 0.5,
        )

    def sort(self, x: Node) -> Node | None:
        if not x.tensor.rank:
            return None
        axis = self.rng.randrange(x.tensor.rank)
        y = self.pick(lambda n: n.shape == x.shape)
        args = [x] if y is None or self.rng.random() < 0.4 else [x, y]
        keys = self.rng.randint(1, len(args))
        node = self.b.sort(*args, axis=axis, num_keys=keys, descending=self.rng.random() < 0.4)
        return node

    def dot(self, x: Node) -> Node | None:
        rank = x.tensor.rank
        if not rank or x.dtype is BOOL:
            return None
        letters = "abcd"[:rank]
        if rank > 4:
            return None
        k = self.rng.choice(letters)
        batch = [c for c in letters if c != k and self.rng.random() < 0.3]
        sizes = dict(zip(letters, x.shape, strict=True))
        names = [*batch, k]
        for extra in "mn"[: self.rng.choice([0, 1, 1, 1, 2])]:
            names.append(extra)
            sizes[extra] = self.rng.choice(self.sizes)
        self.rng.shuffle(names)
        wanted = tuple(int(sizes[c]) for c in names)  # pyright: ignore[reportArgumentType]
        if math.prod(wanted) > self.limit:
            return None
        y = self.pick(lambda n: n.shape == wanted and n.dtype is x.dtype)
        if y is None:
            y = self.b.const(self.array(x.dtype, wanted), x.dtype)
        if x.dtype.name == "bf16" and not (self.is_finite(x) and self.is_finite(y)):
            return None  # where a CPU has AMX, torch's own makes nan of what an inf is not part of
        out = [c for c in dict.fromkeys([*letters, *names]) if c != k]
        if self.rng.random() < 0.15:
            out = [c for c in out if self.rng.random() < 0.7]
        if self.rng.random() < 0.3:
            self.rng.shuffle(out)
        sides = (" ".join(letters), " ".join(names))
        args = (x, y)
        if self.rng.random() < 0.3:
            sides, args = sides[::-1], args[::-1]
        made = self.b.dot(*args, rule=f"{sides[0]}, {sides[1]} -> {' '.join(out)}")
        if self.rng.random() < 0.4 and made.dtype.kind == "f" and self.add(made):
            z = self.fit(self.pick() or made, made.shape, made.dtype)
            made = self.b.op(self.rng.choice(["add", "mul", "max"]), (made, z))
            made = self.b.op(self.rng.choice(["tanh", "neg", "abs", "sigmoid"]), (made,))
        return made

    def is_finite(self, x: Node) -> bool:
        return self.keep(x) is not None and bool(np.isfinite(self.values[x][0]).all())

    def index(self, size: int, shape: tuple[int, ...]) -> Node:
        """Positions below `size`: computed from a value of the program, or a constant."""
        dtype = DTYPES[self.rng.choice(["i64", "i64", "i32", "u8"])]
        y = self.pick(lambda n: n.dtype.is_integer and n.shape == shape)
        if y is not None and self.rng.random() < 0.7 and y.dtype.bits >= 32:
            return self.b.min(self.b.max(y, 0), size - 1)
        r = np.random.default_rng(self.rng.randrange(1 << 30))
        return self.b.const(np.asarray(r.integers(0, size, shape)).astype(dtype.numpy), dtype)

    def gather(self, x: Node) -> Node | None:
        rank = x.tensor.rank
        if not rank or rank > 4 or 0 in x.shape:
            return None
        marked = sorted(self.rng.sample(range(rank), self.rng.choice([1, 1, min(2, rank)])))
        letters = "abcd"[:rank]
        along = [c for i, c in enumerate(letters) if i not in marked and self.rng.random() < 0.3]
        extra = list("pq"[: self.rng.choice([0, 1, 1, 2])])
        sizes = dict(zip(letters, (int(d) for d in x.shape), strict=True))  # pyright: ignore
        sizes.update((c, self.rng.choice(self.sizes)) for c in extra)
        frame = [*along, *extra]
        if 0 in [sizes[c] for c in frame]:
            return None
        shape = tuple(sizes[c] for c in frame)
        if math.prod(shape) > self.limit:
            return None
        indices = [self.index(sizes[letters[m]], shape) for m in marked]
        out = [c for i, c in enumerate(letters) if i not in marked]
        at = self.rng.randint(0, len(out))
        out = [*out[:at], *extra, *out[at:]]
        read = " ".join(c + "!" * (i in marked) for i, c in enumerate(letters))
        rest = "".join(f", {' '.join(frame)}" for _ in marked)
        return self.b.gather(x, *indices, rule=f"{read}{rest} -> {' '.join(out)}")

    def scatter(self, x: Node) -> Node | None:
        rank = x.tensor.rank
        if not rank or rank > 4 or 0 in x.shape or x.dtype is BOOL:
            return None
        at = self.rng.randrange(rank)
        letters = "abcd"[:rank]
        n = self.rng.choice([s for s in self.sizes if s] or [1])
        kind = self.rng.choice(["add", "mul", "max", "min", "set"])
        if kind == "set":  # places are distinct, else the order would count
            n = min(n, int(x.shape[at]))  # pyright: ignore[reportArgumentType]
            order = self.rng.sample(range(int(x.shape[at])), n)  # pyright: ignore
            index = self.b.const(np.array(order, dtype=np.int64))
        else:
            index = self.index(int(x.shape[at]), (n,))  # pyright: ignore[reportArgumentType]
        shape = tuple(n if i == at else d for i, d in enumerate(x.shape))
        if math.prod(int(d) for d in shape) > self.limit:  # pyright: ignore
            return None
        updates = self.pick(lambda v: v.shape == shape and v.dtype is x.dtype)
        if updates is None:
            updates = self.b.const(self.array(x.dtype, shape), x.dtype)  # pyright: ignore
        whole = " ".join(c + "!" * (i == at) for i, c in enumerate(letters))
        named = " ".join("n" if i == at else c for i, c in enumerate(letters))
        rule = f"{whole}, n, {named} -> {whole}"
        return self.b.scatter(x, index, updates, rule=rule, kind=kind)

    def conv(self, x: Node) -> Node | None:
        if x.tensor.rank not in (3, 4) or x.dtype.kind != "f" or 0 in x.shape:
            return None
        if self.special and x.dtype.name == "bf16":
            return None  # torch's own makes nan of an infinite weight
        taps = tuple(self.rng.choice([1, 2, 3]) for _ in x.shape[2:])
        if any(k > int(d) for k, d in zip(taps, x.shape[2:])):  # pyright: ignore
            return None
        channels = int(x.shape[1])  # pyright: ignore[reportArgumentType]
        groups = self.rng.choice([1, 1, channels])
        w = self.array(x.dtype, (groups * self.rng.choice([1, 2, 3]), channels // groups, *taps))
        ones = (1,) * len(taps)
        return self.b.conv(
            x,
            self.b.const(w, x.dtype),
            stride=self.rng.choice([ones, taps, tuple(2 for _ in taps)]),
            low=self.rng.choice([ones, (0,) * len(taps)]),
            high=self.rng.choice([ones, (0,) * len(taps)]),
            lhs_dilation=ones,
            rhs_dilation=ones,
            groups=groups,
        )

    def nested(self, x: Node, y: Node, count: int, params: list[Node]) -> Grower:
        inner = Grower(self.rng, self.sizes, self.dtypes, self.limit)
        inner.special = self.special
        inner.depth = self.depth + 1
        for p, a in zip(params, (x, y), strict=True):
            inner.values[p] = self.values[a]
            inner.pool.append(p)
        inner.grow(count)
        return inner

    def call(self, x: Node) -> Node | None:
        y = self.pick() or x
        if self.depth:
            return None
        params = [param("p0", x.type), param("p1", y.type)]
        inner = self.nested(x, y, 4, params)
        results = inner.pool[-self.rng.choice([1, 2]) :]
        block = inner.b.block(params, results)
        if self.rng.random() < 0.3:
            # twice the same body, on other values the second time
            first = self.b.call(x, y, name="f", blocks=(block,))
            if self.add(first) and x.type == y.type:
                self.add(self.b.call(y, x, name="f", blocks=(block,)))
            return None
        return self.b.call(x, y, name="f", blocks=(block,))

    def cond(self, x: Node) -> Node | None:
        y = self.pick() or x
        if self.depth:
            return None
        params = [param("p0", x.type), param("p1", y.type)]
        first = self.nested(x, y, 3, params)
        result = first.pool[-1]
        second = self.nested(x, y, 3, params)
        other = next((n for n in reversed(second.pool) if n.type == result.type), None)
        if other is None:
            return None
        blocks = (first.b.block(params, [result]), second.b.block(params, [other]))
        test = self.pick(lambda n: n.dtype.kind in "bi" and not n.shape)
        test = test or self.b.const(self.rng.random() < 0.5)
        return self.b.cond(test, x, y, blocks=blocks)

    def loop(self, x: Node) -> Node | None:
        y = self.pick() or x
        if self.depth:
            return None
        i, p, q = param("i", tensor("i64")), param("p", x.type), param("q", y.type)
        inner = self.nested(x, y, 3, [p, q])
        result = next((n for n in reversed(inner.pool) if n.type == x.type), p)
        body = inner.b.block([i, p, q], [inner.b.add(i, 1), result, q])
        times = self.rng.choice([0, 1, 2, 3])
        test = Block((i, p, q), (self.b.lt(i, times),))
        node = self.b.while_(self.b.const(0, "i64"), x, y, blocks=(test, body))
        return self.b.item(node, index=1) if self.keep(node) is not None else None

    def grow(self, count: int) -> None:
        """About `count` more values."""
        made = 0
        for _ in range(6 * count):
            made += self.step()
            if made >= count:
                return


MOVES = {
    "unary": 5, "safe_unary": 5, "binary": 12, "compare": 2, "select": 3, "mask": 1, "cast": 3,
    "bitcast": 1, "reshape": 5, "transpose": 4, "broadcast": 3, "slice": 3, "reverse": 1, "pad": 2,
    "concat": 2, "reduce": 7, "softmax": 2, "argreduce": 1, "scan": 1, "sort": 1, "dot": 5,
    "gather": 2, "scatter": 2, "conv": 1, "call": 1, "cond": 1, "loop": 1,
}  # fmt: skip


def random_program(seed: int, size: int = 14, small: bool = False) -> Program:
    """The program of a seed. `small` ones have few elements, for the interpreter's lower levels."""
    rng = random.Random(seed)
    pool = list(SMALL if small else SIZES)
    sizes = [rng.choice(pool) for _ in range(3)] + [rng.choice(SMALL)]
    if rng.random() < 0.06:
        sizes.append(0)
    dtypes = [rng.choice(FLOATS), rng.choice(FLOATS if rng.random() < 0.3 else ("f32",))]
    if rng.random() < 0.4:
        dtypes.append(rng.choice(OTHERS))
    limit = 400 if small else rng.choice([4000, 4000, 4000, 20000, 70000])
    return _grown(Grower(rng, sizes, dtypes, limit), size)


def short_program(seed: int, size: int = 10) -> Program:
    """A program of 16-bit floats, f32 and bytes, at any sizes up to 70."""
    rng = random.Random(seed)
    sizes = [rng.randint(1, 70), rng.randint(1, 70), rng.choice((1, 2, 3))]
    dtypes = ["bf16", "f16", rng.choice(("bf16", "f16", "f32", "i8"))]
    return _grown(Grower(rng, sizes, dtypes, 4000), size)


def _grown(g: Grower, size: int) -> Program:
    """A program of about `size` steps."""
    rng = g.rng
    g.special = rng.random() < 0.12
    params: list[Node] = []
    for i in range(rng.choice([1, 2, 2, 3, 4])):
        shape = g.shape()
        if params and rng.random() < 0.4:
            shape = tuple(int(d) for d in rng.choice(params).shape)  # pyright: ignore
        node = param(f"x{i}", tensor(rng.choice(g.dtypes), *shape))
        params.append(g.give(node, g.array(node.dtype, shape)))
    inputs = [g.values[p][0] for p in params]
    g.grow(size)
    used = {a for n in g.pool for a in n.args}
    ends = [n for n in g.pool if n not in used and n not in params][-4:] or g.pool[-1:]
    results = [*ends, *(rng.choice(g.pool) for _ in range(rng.choice([0, 0, 1, 2])))]
    func = g.b.func("main", params, results)
    values = [np.asarray(g.values[r][0]) for r in results]
    return Program(func, inputs, values, [g.error(r) for r in results])


_ = I64
