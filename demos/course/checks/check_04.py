from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

import stack
from stack.ir import Node
from stack.ir.traits import is_load, is_loop, multiplies
from stack.rewrite import Pipeline
from stack.target import load

PRODUCT = """
func @f(%a: f32[64, 64], %b: f32[64, 64]) -> (f32[64, 64]) at tensor {
  %c = dot(%a, %b) {rule="m k, k n -> m n"} : f32[64, 64]
  return %c
}
"""


def check_loads(student: Any) -> None:
    """loads counts what all tiles read"""
    assert student.loads(8, 8, 4, 8, 8) == 4 * 16
    assert student.loads(64, 128, 32, 4, 16) == 16 * 8 * 32 * 20


def check_registers(student: Any) -> None:
    """registers counts sums, a row of w and a number of x"""
    assert student.registers(1, 16, 16) == 3
    assert student.registers(6, 64, 16) == 24 + 4 + 1


def check_steps(student: Any) -> None:
    """the steps are legal on AVX-512, compute the product, and load little"""
    func, target = stack.parse(PRODUCT), load("avx512")
    made = Pipeline("schedule{loops=cpu},tile").run(
        func, target=target, schedules={"c": student.steps()}
    )
    (kernel,) = (n for n in made.func.nodes if n.op == "kernel")
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((64, 64)).astype(np.float32) for _ in range(2))
    np.testing.assert_allclose(made.func.interpret(a, b), a @ b, rtol=1e-3, atol=1e-3)
    loop = next(n for n in kernel.blocks[0].all_nodes if is_loop(n) and _multiplies(n))
    inside = loop.blocks[0].nodes
    loaded = sum(_size(n) for n in inside if is_load(n))
    products = sum(_size(n) for n in inside if _is_product(n))
    assert products >= 4 * loaded, f"{products} multiplications for {loaded} numbers loaded"
    held = sum(_size(p) for p in loop.blocks[0].params[1:])
    assert held <= 24 * 16, f"the loop along k carries {held} numbers, 24 registers hold {24 * 16}"


def _is_product(node: Node) -> bool:
    return multiplies(node) and node.dtype.is_float


def _multiplies(loop: Node) -> bool:
    """True if a loop itself multiplies, not only a loop inside of it."""
    nodes = loop.blocks[0].nodes
    return any(map(_is_product, nodes)) and not any(map(is_loop, nodes))


def _size(node: Node) -> int:
    return prod(map(int, node.shape))  # pyright: ignore[reportArgumentType]
