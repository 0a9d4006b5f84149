"""The runtime by itself: NumPy's arrays, kernels in the interpreter."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import fields

import numpy as np
import pytest

from stack.backends.mlir.host import Host
from stack.backends.runtime.device import Bound, Load
from stack.backends.runtime.plan import LARGE, OnArrays
from stack.backends.runtime.program import BlockProgram
from stack.errors import StackError
from stack.ir import Builder, Func, Node, param, tensor
from stack.ir.interpreter import evaluate
from stack.ir.node import Block
from stack.ir.space import NumpySpace
from stack.rewrite.pipeline import Pipeline
from stack.run.backend import Backend

STAGES = "canonicalize,fuse,tile,library,memory"


class Failing(Exception):
    """The error of kernels in these tests."""


class Loader:
    """Kernels in the interpreter; the next call of one fails where it is asked for."""

    fails = False

    def __call__(self, node: Node) -> OnArrays:
        params = [Node("param", (), {"name": f"p{i}"}, a.type) for i, a in enumerate(node.args)]
        kernel = Node(node.op, params, node.attrs, node.type, node.blocks)
        items = [Node("item", (kernel,), {"index": i}, t) for i, t in enumerate(node.types)]
        body = Block(params, items if len(items) > 1 else [kernel])

        def launch(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
            if self.fails:
                raise Failing
            for out, made in zip(outputs, evaluate(body, inputs, NumpySpace()), strict=True):
                out[...] = made

        return OnArrays(launch)


class Stepwise(Host):
    """A CPU whose control flow Python runs."""

    def control(self, node: Node, read: Sequence[int], load: Load) -> None:
        return None


def program(func: Func, load: Loader | None = None, keeps: bool = True) -> BlockProgram:
    block = Pipeline(STAGES).run(func).func.body
    return BlockProgram(block, Stepwise(), load or Loader(), keeps=keeps)


def carried(results: Sequence[str]) -> Func:
    """A loop of three iterations carries a counter and two rows, which `results` name."""
    b = Builder()
    row = tensor("f32", 4)

    def state() -> list[Node]:
        return [param("i", tensor("i32")), param("a", row), param("b", row)]

    i, *_ = held = state()
    test = b.block(held, [b.lt(i, 3)])
    i, first, second = held = state()
    known = {"a": first, "b": second, "new": b.add(first, second)}
    body = b.block(held, [b.add(i, 1), *(known[r] for r in results)])
    x, y = param("x", row), param("y", row)
    made = b.while_(b.const(0, "i32"), x, y, blocks=(test, body))
    return b.func("main", [x, y], [b.item(made, index=1), b.item(made, index=2)])


@pytest.mark.parametrize(
    "results", [("new", "a"), ("b", "a"), ("a", "a"), ("new", "new"), ("a", "b")], ids=str
)
def test_what_loops_pass_on_is_nobody_elses(
    results: tuple[str, str], rng: np.random.Generator
) -> None:
    func = carried(results)
    x, y = rng.normal(size=(2, 4)).astype(np.float32)
    wanted = func.interpret(x, y)
    found = program(func).run([x, y])
    for have, want in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(have, want)
    arrays = [x, y, *found]
    for number, array in enumerate(arrays):
        assert not any(np.shares_memory(array, other) for other in arrays[:number])


def test_nothing_is_held_after_a_call_that_fails() -> None:
    b = Builder()
    x = param("x", tensor("f32", 8))
    load = Loader()
    made = program(b.func("main", [x], [b.exp(x), b.neg(x)]), load)
    load.fails = True
    with pytest.raises(Failing):
        made.run([np.ones(8, np.float32)])
    assert all(v.array is None for v in made.passing)
    load.fails = False
    found, _ = made.run([np.ones(8, np.float32)])
    np.testing.assert_allclose(found, np.full(8, np.e, np.float32), rtol=1e-6)


@pytest.mark.parametrize("keeps", [True, False])
def test_an_arena_is_kept_or_allocated_by_each_call(keeps: bool, rng: np.random.Generator) -> None:
    b = Builder()
    x = param("x", tensor("f32", 8, 8))
    one = b.dot(x, x, rule="m k, k n -> m n")
    two = b.dot(one, b.reshape(one, type=one.type), rule="m k, k n -> m n")
    func = b.func("main", [x], [b.dot(two, one, rule="m k, k n -> m n")])
    load = Loader()
    made = program(func, load, keeps)
    assert made.arena_bytes >= 2 * 8 * 8 * 4
    held = [v for step in made.steps for v in step.outs if v.place is not None]
    assert len(held) == 2
    for _ in range(2):
        array = rng.integers(-1, 2, (8, 8)).astype(np.float32)  # sums are exact in any order
        (found,) = made.run([array])
        np.testing.assert_array_equal(found, func.interpret(array))
        assert [v.array is not None for v in held] == [keeps] * 2
        assert keeps or all(v.arena is None for v in held)
    load.fails = True
    with pytest.raises(Failing):
        made.run([np.ones((8, 8), np.float32)])
    assert [v.array is not None for v in held] == [keeps] * 2


def watched(made: BlockProgram, arrays: list[np.ndarray]) -> tuple[list[np.ndarray], list[str]]:
    """Results, and what of x, y, and the results 1, 2, 3 is in memory before each step."""
    held = [weakref.ref(a) for a in arrays]
    found: list[str] = []

    def looking(launch: Bound) -> Bound:
        def run(stream: int) -> None:
            there = [r() is not None for r in held] + [v.array is not None for v in made.fresh]
            found.append("".join(n for n, t in zip("xy123", there, strict=True) if t))
            launch(stream)

        return run

    made.launches = [looking(launch) for launch in made.launches]
    return made.run(arrays.pop(0) for _ in range(2)), found


@pytest.mark.parametrize("size", [181, 182])
def test_large_arrays_are_there_from_first_writer_to_last_reader(
    size: int, rng: np.random.Generator
) -> None:
    b = Builder()
    x, y = (param(name, tensor("f32", size, size)) for name in "xy")
    one = b.dot(x, x, rule="m k, k n -> m n")
    two = b.dot(one, y, rule="m k, k n -> m n")
    three = b.dot(two, two, rule="m k, k n -> m n")
    func = b.func("main", [x, y], [one, two, three])
    # sums of so small integers are exact in any order
    arrays = [rng.integers(-1, 2, (size, size)).astype(np.float32) for _ in range(2)]
    wanted = func.interpret(*arrays)
    results, found = watched(program(func), arrays)
    for have, want in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(have, want)
    assert found == (["xy1", "y1", "12"] if 4 * size**2 >= LARGE else ["xy123"] * 3)


def test_arrays_of_a_list_stay_the_callers(rng: np.random.Generator) -> None:
    b = Builder()
    x = param("x", tensor("f32", LARGE))
    made = program(b.func("main", [x], [b.neg(x)]))
    arrays = [rng.normal(size=LARGE).astype(np.float32)]
    for _ in range(2):
        np.testing.assert_array_equal(made.run(arrays)[0], -arrays[0])


def test_memory_that_is_not_there_names_the_value() -> None:
    b = Builder()
    x = param("x", tensor("f32"))
    huge = b.broadcast(x, axes=(), type=tensor("f32", 1 << 50))
    made = program(b.func("main", [x], [b.exp(huge)]))
    with pytest.raises(StackError, match=rf"f32\[{1 << 50}\] needs {4 << 50} bytes"):
        made.run([np.asarray(1, np.float32)])


def test_a_backend_is_eight_fields_at_most() -> None:
    assert len(fields(Backend)) <= 8
