"""A refused stream leaves a reason, and no reference to what its callers hold.

The traceback of an exception refers to the frames of all callers, and so to their models: an
exception in a cache, or in a variable of its own frame, keeps these in memory.
"""

from __future__ import annotations

import gc
import weakref

import pytest

from stack.ir import parse
from stack.rewrite import Pipeline

CHAIN = """func @f(%x: bf16[1040, 2048], %w: bf16[64, 2048], %v: bf16[64, 64]) -> (f32[1040, 64]) at tensor {
  %d = dot(%x, %w) {rule="s k, n k -> s n"} : f32[1040, 64]
  %m = reduce(%d) {axes=[1], kind="max"} : f32[1040]
  %b = broadcast(%m) {axes=[0]} : f32[1040, 64]
  %a = sub(%d, %b) : f32[1040, 64]
  %e = exp(%a) : f32[1040, 64]
  %c = cast(%e) : bf16[1040, 64]
  %z = dot(%c, %v) {rule="s n, n o -> s o"} : f32[1040, 64]
  return %z
}"""  # noqa: E501
ROWS = """func @f(%x: f32[8, 70000]) -> (f32[8]) at tensor {
  %s = reduce(%x) {axes=[1], kind="sum"} : f32[8]
  %b = broadcast(%s) {axes=[0]} : f32[8, 70000]
  %p = mul(%x, %b) : f32[8, 70000]
  %m = reduce(%p) {axes=[1], kind="max"} : f32[8]
  return %m
}"""
CASES = {
    "the price of a chain": (CHAIN, "stream{loops=blocks}", "would contract an axis of 2048"),
    "the price of rows": (ROWS.replace("mul", "sub"), "stream{loops=cpu}", "reduced in place"),
    "no normal form": (ROWS, "stream", "the max of a product with an earlier reduction"),
}


class Held:
    """Stands for what a caller holds, such as a model."""


@pytest.mark.parametrize("name", CASES)
def test_a_refusal_keeps_nothing_of_its_callers(name: str) -> None:
    text, spec, why = CASES[name]
    func = parse(text)

    def refused() -> weakref.ref[Held]:
        held = Held()
        result = Pipeline(spec).run(func, verbose=True)
        assert any(why in str(note) for record in result.records for note in record.notes)
        return weakref.ref(held)

    gc.collect()
    gc.disable()  # a reference cycle keeps memory, too, until Python looks for cycles
    try:
        assert refused()() is None
    finally:
        gc.enable()
