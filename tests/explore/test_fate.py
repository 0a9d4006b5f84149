"""Every node of a program ends somewhere, and its fate says where."""

from __future__ import annotations

from itertools import product

import pytest

import stack.plugins as plugins
from stack.explore.lowering import Settings, capture
from stack.explore.node_outcomes import KINDS, NodeOutcome, fates
from stack.explore.retrace import follow, marked
from stack.explore.target import resolve
from stack.ir import Func, parse
from stack.run.compile import operator_stage, stages_of
from stack.run.options import target_of

BACKENDS = (("mlir", "avx512"), ("triton", "sm_90"), ("cuda", "sm_90"))
DEMOS = (
    ("llama_block", "torch"),
    ("llama_block", "jax"),
    ("gpt2_block", "torch"),
    ("gpt2", "torch"),
    ("gpt2", "jax"),
)
SOFTMAX = """func @f(%x: f32[64, 64], %v: f32[64, 32]) -> (f32[64, 32]) at tensor {
  %one = mul(%x, 1.0:f32) : f32[64, 64] from "m.py:1"
  %m = reduce(%one) {axes=[1], kind="max"} : f32[64] from "m.py:2"
  %wide = broadcast(%m) {axes=[0]} : f32[64, 64] from "m.py:3"
  %d = sub(%one, %wide) : f32[64, 64] from "m.py:3"
  %e = exp(%d) : f32[64, 64] from "m.py:4"
  %y = dot(%e, %v) {rule="a k, k b -> a b"} : f32[64, 32] from "m.py:5"
  %z = reshape(%y) : f32[64, 32] from "m.py:6"
  return %z
}
"""


def told(func: Func, backend: str, machine: str) -> list[NodeOutcome]:
    loaded = plugins.load("stack.backends", backend)
    forming, lowering = stages_of(loaded)
    stages = [*operator_stage(func, loaded, "default"), *forming, *lowering]
    return fates(follow(func, stages, target_of(loaded, {"target": machine})))


def test_marks_are_of_one_node_each() -> None:
    func, origins = marked(parse(SOFTMAX))
    assert [o.op for o in origins.values()] == [n.op for n in func.nodes if n.op != "const"]
    assert origins["%d"].source == ("m.py:3",)
    assert all(func.body.locs[n] == (f"%{name}",) for n, name in func.body.names.items())


@pytest.mark.parametrize(("backend", "machine"), BACKENDS)
def test_folds_and_kernels_are_told_apart(backend: str, machine: str) -> None:
    found = {f.origin.mark: f for f in told(parse(SOFTMAX), backend, machine)}
    assert found["%one"].kind == "fold"
    assert found["%one"].steps[0].endswith("in canonical")
    assert found["%e"].kind in ("kernel", "recomputation")


@pytest.mark.each
@pytest.mark.parametrize(("demo", "machine"), product(DEMOS, BACKENDS))
def test_every_node_of_a_demo_ends_somewhere(
    demo: tuple[str, str], machine: tuple[str, str]
) -> None:
    name, frontend = demo
    pytest.importorskip(frontend)
    target = resolve(f"stack.demos.transformer:{name}", frontend)
    func = capture(target, Settings(frontend=frontend))[0].func
    found = told(func, *machine)
    assert len(found) >= len(func.nodes) - sum(n.op == "const" for n in func.nodes)
    assert all(f.kind in KINDS and f.steps for f in found)
    assert [f.origin.mark for f in found if f.kind == "lost"] == []
