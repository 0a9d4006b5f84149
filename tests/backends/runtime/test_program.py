"""The runtime by itself: NumPy's arrays, kernels in the interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np
import pytest

from stack.backends.mlir.host import Host
from stack.backends.runtime.program import Program
from stack.backends.runtime.steps import OnArrays
from stack.errors import StackError
from stack.ir import Builder, Func, Node, param, tensor
from stack.ir.interpreter import evaluate
from stack.ir.node import Block
from stack.ir.space import NumpySpace
from stack.rewrite.pipeline import Pipeline
from stack.run.backend import Backend

STAGES = "canonicalize,fuse,tile,library,memory"


class Failing(Exception):
    """What a kernel of these tests raises."""


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


def program(func: Func, load: Loader | None = None) -> Program:
    return Program(Pipeline(STAGES).run(func).func.body, Host(), load or Loader())


def carried(results: Sequence[str]) -> Func:
    """Three turns over a counter and two rows; `results` name the rows that a turn carries."""
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


def test_memory_that_is_not_there_names_the_value() -> None:
    b = Builder()
    x = param("x", tensor("f32"))
    huge = b.broadcast(x, axes=(), type=tensor("f32", 1 << 50))
    made = program(b.func("main", [x], [b.exp(huge)]))
    with pytest.raises(StackError, match=rf"f32\[{1 << 50}\] needs {4 << 50} bytes"):
        made.run([np.asarray(1, np.float32)])


def test_a_backend_is_eight_fields_at_most() -> None:
    assert len(fields(Backend)) <= 8
