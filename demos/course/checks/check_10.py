from __future__ import annotations

from typing import Any

import numpy as np

import stack
from stack.demos.sharding import partition
from stack.run.mesh import simulate

PROGRAM = """
func @mlp(%x: f32[8, 128], %gate: f32[128, 512], %up: f32[128, 512], %down: f32[512, 128])
    -> (f32[8, 128]) at tensor {
  %a = dot(%x, %gate) {rule="m k, k n -> m n"} : f32[8, 512]
  %b = max(%a, 0.0:f32) : f32[8, 512]
  %c = dot(%x, %up) {rule="m k, k n -> m n"} : f32[8, 512]
  %d = mul(%b, %c) : f32[8, 512]
  %e = dot(%d, %down) {rule="m k, k n -> m n"} : f32[8, 128]
  return %e
}
"""


def check_places(student: Any) -> None:
    """places: weights are cut in four, one collective, the same result"""
    func = stack.parse(PROGRAM)
    made = partition(func, "tp=4", tuple(student.places()))
    parts = [p.tensor.bytes for p in made.local.params]
    assert parts[1:] == [128 * 512] * 3, f"a rank holds {parts} bytes of x, gate, up, down"
    rng = np.random.default_rng(8)
    arrays = [rng.standard_normal(p.shape).astype(np.float32) for p in func.params]
    found = simulate(made.placed, made.local, arrays, filler=np.nan)
    assert sum(found.counts.values()) == 1, f"collectives: {found.counts}"
    wanted = func.interpret(*(a.astype(np.float32) for a in arrays))
    assert np.allclose(found.results[0], wanted, atol=1e-2)


def check_bytes(student: Any) -> None:
    """ring_bytes comes close to twice the size, and is 0 for one rank"""
    assert student.ring_bytes(100, 1) == 0
    assert student.ring_bytes(100, 2) == 100
    assert student.ring_bytes(800, 8) == 1400


def check_seconds(student: Any) -> None:
    """ring_seconds is latency for small sizes, bytes for large ones"""
    assert np.isclose(student.ring_seconds(0, 5, 1e-6, 1e9), 8e-6)
    assert np.isclose(student.ring_seconds(4e9, 4, 0, 1e9), 6)
