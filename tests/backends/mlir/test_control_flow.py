"""Nested control flow as one native function: random programs against the interpreter."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from stack.ir import Builder, param, tensor
from stack.ir.func import Func
from stack.ir.memory import reads_in_order
from stack.ir.node import Node
from stack.ir.types import TensorType
from stack.run.compile import compile_func
from stack.run.record import Run

NO_CACHE = {"cache": False}
TYPES = (
    *(tensor("i32"), tensor("f32"), tensor("f32", 1), tensor("f32", 5), tensor("f32", 2, 3)),
    *(tensor("f64"), tensor("f32", 0), tensor("bool"), tensor("f32", 5)),
)
MOST_DEPTH = 3
TABLES = 3, 8
PUT = {"kind": "set", "rule": "x0! , , -> x0!"}


class Programs:
    """Random programs over the same carried values at each level."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.b, self.names = rng, Builder(), itertools.count()

    def func(self) -> Func:
        held = self.params()
        return self.b.func("main", held, self.steps(held, 0))

    def params(self, types: tuple[TensorType, ...] = TYPES) -> list[Node]:
        return [param(f"x{next(self.names)}", t) for t in types]

    def steps(self, state: list[Node], depth: int) -> list[Node]:
        """Returns the values after a few steps: arithmetic, an update, a branch or a loop."""
        made = [*state]
        kinds = [self.arithmetic, self.exchange, self.update, self.update]
        kinds += [self.branch, self.loop] * (1 + (depth == 0)) if depth < MOST_DEPTH else []
        for _ in range(self.rng.integers(0, 4) + 2 * (depth == 0)):
            made = kinds[self.rng.integers(len(kinds))](made, depth)
        return made

    def arithmetic(self, state: list[Node], _: int) -> list[Node]:
        """Changes one value; sometimes reads another, or sets a constant."""
        b, i = self.b, int(self.rng.integers(len(state)))
        old, type_ = state[i], TYPES[i]
        if type_ == tensor("bool"):
            new = b.gt(state[1], 0.25)
        elif type_ == tensor("i32"):
            new = b.sub(3, old)
        elif self.rng.random() < 0.2:
            new = b.const(self.rng.normal(size=type_.shape).astype(type_.dtype.numpy))
        elif type_ == tensor("f32"):
            new = b.add(b.reduce(state[3], kind="max", axes=(0,)), b.mul(old, 0.5))
        else:
            new = b.sub(b.mul(old, -0.75), 1.0)
        return [*state[:i], new, *state[i + 1 :]]

    def exchange(self, state: list[Node], _: int) -> list[Node]:
        """Puts values in the places of others: as views of other shapes, or tables."""
        made = [*state]
        if self.rng.random() < 0.5:
            made[1] = self.b.reshape(state[2], type=TYPES[1])
            made[2] = self.b.reshape(state[1], type=TYPES[2])
        else:
            made[3], made[8] = (state[TABLES[i]] for i in self.rng.integers(0, 2, 2))
        return made

    def update(self, state: list[Node], _: int) -> list[Node]:
        """Sets one element of a table, to a number or to an element of a table."""
        b, made = self.b, [*state]
        at = b.min(b.max(state[0], 0), 4)
        table, other = self.rng.permutation(TABLES)
        new = b.add(state[1], 1.0)
        if self.rng.random() < 0.5:
            source = state[self.rng.choice([table, other])]
            new = b.mul(b.gather(source, b.sub(4, at), rule="x0!,  -> "), 0.5)
        made[table] = b.scatter(state[table], at, new, **PUT)
        return made

    def branch(self, state: list[Node], depth: int) -> list[Node]:
        count = int(self.rng.integers(1, 4))
        number = state[7] if count == 2 else state[0]
        blocks = []
        for _ in range(count):
            held = self.params()
            blocks.append(self.b.block(held, self.steps(held, depth + 1)))
        return self.items(self.b.cond(number, *state, blocks=blocks))

    def loop(self, state: list[Node], depth: int) -> list[Node]:
        """A loop of up to three iterations, or of a number that depends on the data."""
        b, counter = self.b, tensor("i32")
        held = self.params((counter, *TYPES))
        limit = int(self.rng.integers(0, 4))
        flag = b.lt(held[0], limit)
        flag = b.and_(flag, held[8]) if self.rng.random() < 0.3 else flag
        test = b.block(held, [flag])
        held = self.params((counter, *TYPES))
        body = b.block(held, [b.add(held[0], 1), *self.steps(held[1:], depth + 1)])
        return self.items(b.while_(b.const(0, "i32"), *state, blocks=(test, body)))[1:]

    def items(self, node: Node) -> list[Node]:
        return [self.b.item(node, index=i) for i in range(len(node.types))]


def values(rng: np.random.Generator) -> list[np.ndarray]:
    drawn = (rng.normal(size=t.shape) for t in TYPES)
    made = [np.asarray(a, t.dtype.numpy) for a, t in zip(drawn, TYPES, strict=True)]
    made[0][...], made[7][...] = rng.integers(-1, 5), rng.random() < 0.5
    return made


@pytest.mark.parametrize("_", range(4))
def test_random_nests(_: int, rng: np.random.Generator) -> None:
    func, run = Programs(rng).func(), Run("test")
    executable = compile_func(func, "mlir", run, options=NO_CACHE)
    for _ in range(3):
        arrays = values(rng)
        kept = [a.copy() for a in arrays]
        got = executable.run(arrays)
        for g, want, array, before in zip(got, func.interpret(*kept), arrays, kept, strict=True):
            np.testing.assert_allclose(g, want, 1e-5, 1e-5, err_msg=str(func))
            np.testing.assert_array_equal(array, before)
    assert not any(k.loop_steps for k in executable.kernels)


def test_reads_after_an_update_are_out_of_order() -> None:
    """Control flow may have the memory of an operand only if nothing reads the operand later."""
    b, x, flag = Builder(), param("x", TYPES[3]), param("flag", tensor("bool"))
    held = [[param("t", TYPES[3])] for _ in range(2)]
    blocks = [b.block(h, [b.scatter(h[0], b.const(2, "i32"), 1.0, **PUT)]) for h in held]
    old = b.mul(x, 2.0)
    for operand, is_ordered in ((-1, True), (1, False)):
        cond = b.cond(flag, old, blocks=blocks, reuses=[operand])
        assert reads_in_order(b.block([x, flag], [b.add(old, 1.0), cond]))
        assert reads_in_order(b.block([x, flag], [cond, b.add(old, 1.0)])) == is_ordered
