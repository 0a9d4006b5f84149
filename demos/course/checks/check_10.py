from __future__ import annotations

from typing import Any

import numpy as np

import stack
from stack.demos.course.answers import ask, equal
from stack.demos.partition import partition
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
    """places: weights are cut in four, x is whole, one collective, the same result

    Hint: cut gate and up along their columns, and down along the axis that its product sums over.
    Then the only collective is the all-reduce of the result.
    """
    func = stack.parse(PROGRAM)
    given = ask(student.places).answer("a tuple of texts")
    if not isinstance(given, tuple | list) or not all(isinstance(text, str) for text in given):
        raise ask(student.places).wrong('a tuple of texts such as ("x: -, -", "gate: ...")', given)
    texts = tuple(given)
    question = ask(lambda: partition(func, "tp=4", texts), given=f"places {texts}")
    made = question.answer("shardings that the compiler accepts")
    sizes = [p.tensor.bytes for p in made.local.params]
    wanted = [8 * 128 * 4] + [128 * 512] * 3
    if sizes != wanted:
        expected = f"{wanted} bytes of x, gate, up and down on a rank"
        raise question.wrong(expected, f"{sizes} bytes")
    rng = np.random.default_rng(8)
    arrays = [rng.standard_normal(p.shape).astype(np.float32) for p in func.params]
    found = simulate(made.placed, made.local, arrays, filler=np.nan)
    if sum(found.counts.values()) != 1:
        text = ", ".join(f"{n} {op}" for op, n in found.counts.items()) or "none"
        raise question.wrong("one collective", text)
    (held,) = made.local.results
    if held.shape != (8, 128):
        raise question.wrong("the whole result [8, 128] on each rank", f"a part {held.tensor}")
    result = np.asarray(func.interpret(*arrays)).reshape(8, 128)
    if not equal(result, found.results[0], 1e-3):
        raise question.wrong("the result of one device", "another result")


def check_bytes(student: Any) -> None:
    """ring_bytes comes close to twice the size, and is 0 for one rank

    Hint: a part is size / ranks. Both the reduce-scatter and the all-gather send ranks - 1 parts.
    """
    for size, ranks in ((100, 1), (100, 2), (800, 8), (1000, 3)):
        ask(student.ring_bytes, size, ranks).equals(2 * (ranks - 1) * size / ranks)


def check_seconds(student: Any) -> None:
    """ring_seconds is latency for small sizes, bytes for large ones

    Hint: 2 (ranks - 1) steps. One step takes latency + size / ranks / rate.
    """
    for case in ((0, 5, 1e-6, 1e9), (4e9, 4, 0, 1e9), (1e6, 8, 1e-5, 1e10), (1e6, 1, 1e-5, 1e10)):
        size, ranks, latency, rate = case
        wanted = 2 * (ranks - 1) * (latency + size / ranks / rate)
        ask(student.ring_seconds, *case).equals(float(wanted))
