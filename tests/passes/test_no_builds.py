"""Passes decide by shapes, policies and plain loop nests: they build only the kernels they keep."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from stream_nests import attention, softmax

import stack.plugins as plugins
from stack.ir import parse
from stack.ir.node import Node, walk
from stack.passes.policies.step_lowering import StepLowering
from stack.passes.steps.primitives import LoweredKernel
from stack.run.compile import lower
from stack.run.record import Run
from stack.target import load

TARGETS = {"mlir": "avx512", "triton": "sm_90", "cuda": "sm_90"}
PROGRAMS = {
    "attention": attention(256, 256, 64),
    "attention of 16-bit floats": attention(256, 256, 64, "bf16"),
    "softmax of long rows": softmax(64, 65536),
    "softmax": softmax(64, 1000),
    "matmul": """func @f(%x: f32[512, 512], %y: f32[512, 512]) -> (f32[512, 512]) at tensor {
  %s = dot(%x, %y) {rule="m k, k n -> m n"} : f32[512, 512]
  %z = max(%s, 0.0:f32) : f32[512, 512]
  return %z
}
""",
}


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("backend", TARGETS)
def test_only_kernels_that_are_kept_are_built(
    backend: str, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: Counter[tuple[type, Node]] = Counter()

    def counted(self: StepLowering[Any], before: Any = StepLowering.made) -> LoweredKernel:
        result: LoweredKernel = before(self)
        built[type(self), result.kernel] += 1
        return result

    monkeypatch.setattr(StepLowering, "made", counted)
    func, compiler = parse(PROGRAMS[program]), plugins.load("stack.backends", backend)
    made = lower(func, compiler, Run(func.name, "", backend), target=load(TARGETS[backend]))
    kept = [node for _, node in walk(made.body) if node.op == "kernel"]
    assert kept and built.total() == len(kept), (built, kept)
