"""Threads share the iterations of all parallel loops of a kernel."""

from __future__ import annotations

import numpy as np
import pytest

from stack.backends.mlir import BACKEND
from stack.backends.mlir.printer import shared_loops
from stack.ir.node import Node
from stack.ir.parser import parse
from stack.ir.traits import is_kernel
from stack.rewrite.pipeline import Pipeline
from stack.run.compile import compile_func

PARTS = """func @f(%x: f32[{first}, 96], %y: f32[{second}, 96]) -> (f32[{total}, 96]) at tensor {{
  %c = concat(%x, %y) {{axis=0}} : f32[{total}, 96]
  %e = exp(%c) : f32[{total}, 96]
  return %e
}}
"""
# the second loop reads what the first one stores
CHAIN = """func @f(%x: f32[8]) -> (f32[8]) at tensor {
  %k = kernel(%x) {level="loop", name="twice", ops=["neg"]} : f32[8]
    {(%p0: f32[8] in global, %o0: f32[8] in global)
    %a = loop(%o0) {kind="parallel"} : f32[8] in global {(%i < 8, %o: f32[8] in global)
      %v = load(%p0, %i) : f32[]
      %s = store(%o, %v, %i) : f32[8] in global
      return %s
    }
    %b = loop(%a) {kind="parallel"} : f32[8] in global {(%j < 8, %q: f32[8] in global)
      %v = load(%q, %j) : f32[]
      %n = neg(%v) : f32[]
      %s = store(%q, %n, %j) : f32[8] in global
      return %s
    }
    return %b
  }
  return %k
}
"""


def kernel(text: str, passes: str = "") -> Node:
    func = Pipeline(passes).run(parse(text)).func if passes else parse(text)
    (found,) = filter(is_kernel, func.nodes)
    return found


@pytest.mark.parametrize(("first", "second"), [(700, 300), (1, 999), (64, 64)])
def test_the_parts_of_a_concatenation_are_one_range(first: int, second: int) -> None:
    text = PARTS.format(first=first, second=second, total=first + second)
    made = kernel(text, "fuse,schedule{loops=cpu},tile,distribute")
    loops = shared_loops(made.blocks[0])
    assert [loop.nest[0] for loop in loops] == [n for n in made.blocks[0].nodes if n.blocks]
    rng = np.random.default_rng()
    x, y = (rng.standard_normal((n, 96)).astype(np.float32) for n in (first, second))
    (found,) = compile_func(parse(text), BACKEND).run([x, y])
    np.testing.assert_allclose(found, np.exp(np.concatenate([x, y])), rtol=1e-6)


def test_a_loop_that_reads_results_is_shared_alone() -> None:
    body = kernel(CHAIN).blocks[0]
    (loop,) = shared_loops(body)
    assert loop.nest[0] is body.results[0]


def test_nothing_is_shared_beside_a_serial_loop_that_stores() -> None:
    serial = CHAIN.replace('loop(%a) {kind="parallel"}', 'loop(%a) {kind="serial"}')
    assert not shared_loops(kernel(serial).blocks[0])
