"""Coverage counts each op of the imported function by what ran it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import stack
import stack.backends.runtime.program as programs
import stack.run.compile as compilation
import stack.run.record as record
from stack.ir.builder import Builder, param
from stack.ir.func import Func
from stack.ir.node import Block, Node
from stack.ir.types import F32, TensorType
from stack.passes.library import wrap
from stack.rewrite.engine import Replacement, replace
from stack.rewrite.pipeline import Pipeline
from stack.run.backend import Kernel
from stack.run.coverage import coverage_of
from stack.run.record import Run

T = TensorType(F32, (8, 8))
RULE = "m k, k n -> m n"


def program(*names: str) -> tuple[Func, list[Node]]:
    """One op after another, each from a line of its own."""
    b, x = Builder(), param("x", T)
    nodes: list[Node] = []
    for i, name in enumerate(names):
        b.loc = (f"model.py:{i}",)
        last = nodes[-1] if nodes else x
        pair, attrs = ((last, x), {"rule": RULE}) if name == "dot" else ((last,), {})
        nodes.append(b.op(name, pair, attrs))
    return b.func("f", [x], nodes[-1:]), nodes


def put(func: Func, changed: dict[Node, Node]) -> Func:
    body = replace(func.body, {old: Replacement(new) for old, new in changed.items()})
    return Func(func.name, body, func.level)


def generated(node: Node) -> Node:
    """A node as a kernel of its own."""
    params = [param(f"p{i}", a.type) for i, a in enumerate(node.args)]
    inner = Node(node.op, params, node.attrs, node.type)
    return Node("kernel", node.args, {"ops": (node.op,)}, node.type, (Block(params, [inner]),))


def test_each_product_counts_for_itself() -> None:
    func, (first, middle, last) = program("dot", "exp", "dot")
    one = put(func, {first: wrap(first), middle: generated(middle), last: generated(last)})
    kinds = {"ops": 3, "native": 2, "library": 1, "hosted": 0, "fallback": 0, "fallback_ops": {}}
    assert coverage_of(func, one) == {**kinds, "python": 0, "loop_steps": 0}
    two = put(func, {first: wrap(first), middle: generated(middle), last: wrap(last)})
    assert coverage_of(func, two)["library"] == 2


def test_a_kernel_that_a_backend_gave_up_counts_as_what_ran() -> None:
    func, (first, last) = program("exp", "dot")
    lowered = put(func, {first: generated(first), last: generated(last)})
    name = lowered.body.names[lowered.results[0]]
    refused = [Kernel("torch.dot", "library", stage_node=name, ops=("dot",))]
    assert coverage_of(func, lowered)["library"] == 0
    assert coverage_of(func, lowered, refused)["library"] == 1


def test_calls_of_another_compiler_count_by_name() -> None:
    func, _ = program("dot", "exp", "dot")
    calls = [Kernel("mm", "library", ops=("dot",)), Kernel("exp", "generated", ops=("exp",))]
    assert coverage_of(func, func, calls)["library"] == 1


def test_a_step_that_a_pass_put_in_counts_for_an_op_of_its_line() -> None:
    func, (first, last) = program("exp", "dot")
    params = [param("p0", T)]
    running = Builder().scan(params[0], kind="sum", axis=1, reverse=False)
    attrs = {"kind": "library", "name": "scan"}
    step = Node("fusion", first.args, attrs, T, (Block(params, [running]),))
    lowered = put(func, {first: step, last: generated(last)})
    assert coverage_of(func, lowered)["library"] == 1


def test_steps_inside_of_loops_count() -> None:
    jax = pytest.importorskip("jax")

    def f(x: object) -> object:
        return jax.lax.fori_loop(0, 2, lambda i, c: jax.numpy.sort(c) + 1, x)

    x = jax.numpy.asarray(np.ones((4, 8), np.float32))
    compiled = stack.compile(f, x)
    assert compiled.run.coverage["library"] == 1
    assert compiled.run.coverage["ops"] == sum(
        compiled.run.coverage[k] for k in ("native", "library", "fallback")
    )


def test_scans_that_became_operators_are_hosted() -> None:
    """Two scans of one line, replaced by calls of operators; its other ops are not hosted."""
    long = TensorType(F32, (1, 1 << 20))
    b, x = Builder(), param("x", long)
    b.loc = ("model.py:1",)
    scan = {"axis": 1, "kind": "sum", "reverse": False}
    once = b.op("scan", (b.op("exp", (x,), {}),), scan)
    func = b.func("f", [x], [b.op("scan", (once,), scan)])
    lowered = Pipeline("hosted{device=cuda}").run(func).func
    found = coverage_of(func, put(lowered, {lowered.nodes[0]: generated(lowered.nodes[0])}))
    assert (found["native"], found["hosted"]) == (1, 2)


def test_records_are_made_when_somebody_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def seen(owner: Any, name: str) -> None:
        real = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given: made.append(name) or real(*given))

    seen(programs, "described")
    seen(compilation, "with_work")
    seen(record, "coverage_of")
    func, _ = program("exp", "dot")
    compiled = stack.compile(func)
    x = np.eye(8, dtype=np.float32)
    np.testing.assert_allclose(compiled(x), np.exp(x) @ x, rtol=1e-6)
    assert made == []
    assert compiled.run.coverage["ops"] == 2
    assert made == ["coverage_of", "with_work", "described"]
    assert compiled.run.coverage is compiled.run.coverage
    assert [k.kind for k in compiled.run.kernels] == [k.kind for k in compiled.run.kernels[:]]
    assert len(made) == 3


def test_what_is_covered_again_counts_again() -> None:
    run = Run()
    for names in (("exp", "log"), ("exp",)):
        func, _ = program(*names)
        run.cover(func)
        assert run.coverage["ops"] == len(names)
