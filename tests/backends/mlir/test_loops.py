"""Loops on the CPU: native ones, those with a library step, and what is updated in place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import stack
from stack.backends.mlir.control_flow import ControlFlow
from stack.errors import StackError
from stack.explore.dump import describe
from stack.explore.provenance import explain
from stack.explore.saved_run import load_run
from stack.ir import Builder, param, parse, tensor
from stack.ir.func import Func
from stack.ir.node import Node
from stack.run.compile import compile_func
from stack.run.record import Run

NO_CACHE = {"cache": False}
STEPS = 5
ROW, TABLE = tensor("f32", 4), tensor("f32", STEPS, 4)
PUT = {"kind": "set", "rule": "x0! w1, , w1 -> x0! w1"}

Make = Callable[[Builder, Node, Node, Node, Node], list[Node]]


def loop_of(make: Make, steps: int = STEPS) -> Func:
    """A loop over a counter, two rows and a table; `make` gives the carried values."""
    b = Builder()
    types = {"i": tensor("i32"), "x": ROW, "y": ROW, "t": TABLE}
    held = [param(n, t) for n, t in types.items()]
    test = b.block(held, [b.lt(held[0], steps)])
    held = [param(n, t) for n, t in types.items()]
    body = b.block(held, [b.add(held[0], 1), *make(b, *held)])
    x, y, t = (param(n, types[n]) for n in "xyt")
    loop = b.while_(b.const(0, "i32"), x, y, t, blocks=(test, body))
    return b.func("main", [x, y, t], [b.item(loop, index=i) for i in range(4)])


def grown(b: Builder, x: Node) -> Node:
    return b.add(b.mul(x, 0.5), 1.0)


def put(b: Builder, i: Node, x: Node, y: Node, t: Node) -> list[Node]:
    new = grown(b, x)
    return [new, y, b.scatter(t, i, new, **PUT)]


def swapped(b: Builder, i: Node, x: Node, y: Node, t: Node) -> list[Node]:
    return [y, x, t]


def twice(b: Builder, i: Node, x: Node, y: Node, t: Node) -> list[Node]:
    new = b.add(x, y)
    return [new, new, t]


def constant(b: Builder, i: Node, x: Node, y: Node, t: Node) -> list[Node]:
    return [b.const(np.arange(4, dtype=np.float32)), b.add(x, y), t]


def read_before(b: Builder, i: Node, x: Node, y: Node, t: Node) -> list[Node]:
    new = b.scatter(t, i, x, **PUT)
    return [b.reduce(t, kind="sum", axes=(0,)), b.reduce(new, kind="max", axes=(0,)), new]


def read_after(b: Builder, i: Node, x: Node, y: Node, t: Node) -> list[Node]:
    new = b.scatter(t, i, x, **PUT)
    return [b.reduce(new, kind="max", axes=(0,)), b.reduce(t, kind="sum", axes=(0,)), new]


def read_with_result(b: Builder, i: Node, x: Node, y: Node, t: Node) -> list[Node]:
    new = b.scatter(t, i, x, **PUT)
    most = b.reduce(new, kind="max", axes=())
    return [x, b.reduce(b.add(t, b.mul(most, 0.5)), kind="max", axes=(0,)), new]


def crossed(b: Builder, i: Node, x: Node, y: Node, t: Node) -> list[Node]:
    """The row that goes into the table is one of the table as it was."""
    row = b.gather(t, b.sub(STEPS - 1, i), rule="x0! w1,  -> w1")
    return [b.add(x, row), y, b.scatter(t, i, grown(b, row), **PUT)]


def library(b: Builder, i: Node, x: Node, y: Node, t: Node) -> list[Node]:
    new = grown(b, x)
    first = b.item(b.sort(new, axis=0, num_keys=1, descending=True), index=0)
    return [first, y, b.scatter(t, i, first, **PUT)]


def elsewhere(b: Builder, i: Node, x: Node, y: Node, t: Node) -> list[Node]:
    """An update of a table that is computed in the iteration."""
    made = b.mul(t, 0.5)
    new = b.scatter(made, i, x, **PUT)
    return [b.reduce(new, kind="sum", axes=(0,)), y, t]


MAKES = [put, swapped, twice, constant, read_before, read_after, read_with_result, crossed]
MAKES += [library, elsewhere]
UPDATED = {put, read_before, read_after, crossed, library, elsewhere}


def check(func: Func, arrays: list[np.ndarray]) -> None:
    """The program, and its last stage in the interpreter, against what the function means."""
    run = Run("test")
    executable = compile_func(func, "mlir", run, options=NO_CACHE)
    wanted = func.interpret(*arrays)
    for _ in range(2):  # a second call finds memory full of old values
        for want, got in zip(wanted, executable.run(arrays), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5)
    for want, got in zip(wanted, parse(run["loop"].text).interpret(*arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)


def inputs(rng: np.random.Generator) -> list[np.ndarray]:
    return [rng.normal(size=s).astype(np.float32) for s in ((4,), (4,), (STEPS, 4))]


@pytest.mark.every(3)
@pytest.mark.parametrize("steps", [0, 1, 4, STEPS])
@pytest.mark.parametrize("make", MAKES, ids=lambda m: m.__name__)
def test_loops(make: Make, steps: int, rng: np.random.Generator) -> None:
    check(loop_of(make, steps), inputs(rng))


@pytest.mark.parametrize("make", MAKES, ids=lambda m: m.__name__)
def test_what_a_loop_is_given_and_gives_is_the_callers(
    make: Make, rng: np.random.Generator
) -> None:
    func = loop_of(make)
    executable = compile_func(func, "mlir", options=NO_CACHE)
    arrays = inputs(rng)
    before = [a.copy() for a in arrays]
    first = executable.run(arrays)
    kept = [a.copy() for a in first]
    other = inputs(rng)
    np.testing.assert_allclose(executable.run(other)[1], func.interpret(*other)[1], rtol=1e-5)
    for a, b in zip([*arrays, *first], [*before, *kept], strict=True):
        np.testing.assert_array_equal(a, b)
    for a in first:
        assert not any(np.shares_memory(a, given) for given in arrays)


@pytest.mark.parametrize("make", MAKES, ids=lambda m: m.__name__)
def test_updates_are_in_place_where_nothing_else_needs_the_operand(make: Make) -> None:
    run = Run("test")
    compile_func(loop_of(make), "mlir", run, options=NO_CACHE)
    assert ("updates=0" in run["loop"].text) == (make in UPDATED)


def test_loops_of_kernels_are_native(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[ControlFlow] = []
    init = ControlFlow.__init__

    def note(self: ControlFlow, *args: object) -> None:
        made.append(self)
        init(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(ControlFlow, "__init__", note)
    compile_func(loop_of(put), "mlir", options=NO_CACHE)
    assert len(made) == 1
    compile_func(loop_of(library), "mlir", options=NO_CACHE)
    assert len(made) == 1


@pytest.mark.parametrize(("make", "steps"), [(put, 0), (library, 5)], ids=["put", "library"])
def test_steps_that_python_runs_are_counted(make: Make, steps: int, tmp_path: Path) -> None:
    run = stack.compile(loop_of(make), *inputs(np.random.default_rng()), options=NO_CACHE).run
    saved = load_run(run.save(tmp_path / "run"))
    note = f"Python runs {steps} steps in each iteration of its loops"
    assert run.coverage["loop_steps"] == steps
    assert run.coverage["python"] == int(steps > 0)
    told = [reason.text for reason in explain(saved, "while")]
    assert (note in describe(saved.manifest)) == (note in told) == (steps > 0)


def test_a_loop_in_a_loop(rng: np.random.Generator) -> None:
    def nested(b: Builder, i: Node, x: Node, y: Node, t: Node) -> list[Node]:
        held = [param("j", tensor("i32")), param("z", ROW)]
        test = b.block(held, [b.lt(held[0], 3)])
        body = b.block(held, [b.add(held[0], 1), grown(b, held[1])])
        inner = b.item(b.while_(b.const(0, "i32"), x, blocks=(test, body)), index=1)
        return [inner, y, b.scatter(t, i, inner, **PUT)]

    check(loop_of(nested), inputs(rng))


def test_what_is_updated_has_the_type_of_the_result(rng: np.random.Generator) -> None:
    run = Run("test")
    compile_func(loop_of(put), "mlir", run, options=NO_CACHE)
    text = run["loop"].text
    with pytest.raises(StackError, match="operand 1, which it updates"):
        parse(text.replace("updates=0", "updates=1"))
