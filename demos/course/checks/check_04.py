from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

import stack
from stack.demos.course.answers import Wrong, ask, equal
from stack.ir import Func, Node
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
    """loads counts what all tiles read

    Hint: (rows / m) * (columns / n) tiles, and each reads m + n numbers at each of `depth` steps.
    """
    for rows, columns, depth, m, n in ((8, 8, 4, 8, 8), (64, 128, 32, 4, 16), (64, 64, 64, 1, 1)):
        wanted = (rows // m) * (columns // n) * depth * (m + n)
        ask(student.loads, rows, columns, depth, m, n).equals(wanted)


def check_registers(student: Any) -> None:
    """registers counts sums, a row of w and a number of x

    Hint: m * n / lanes registers of sums, n / lanes of the row of w, and one more.
    """
    for m, n, lanes in ((1, 16, 16), (6, 64, 16), (8, 32, 8)):
        ask(student.registers, m, n, lanes).equals(m * n // lanes + n // lanes + 1)


def check_steps(student: Any) -> None:
    """the steps are legal on AVX-512, compute the product, and load little

    Hint: the register tile of the lesson is "split i 8; split j 32; reorder i.1 j.0; ...". A tile
    of m x n loads m + n numbers for m * n multiplications: of tiles of one size a square loads
    least.
    """
    steps = ask(student.steps)
    text = steps.answer("one text, as the gap shows")
    if not isinstance(text, str):
        raise steps.wrong('one text, such as "split j 32; bind i cores"', text)
    func, target = stack.parse(PRODUCT), load("avx512")
    lower = lambda: (
        Pipeline("schedule{loops=cpu},tile").run(func, target=target, schedules={"c": text}).func
    )
    made: Func = ask(lower, given=text).answer("steps that the compiler accepts")
    (kernel,) = (n for n in made.nodes if n.op == "kernel")
    loop = next(n for n in kernel.blocks[0].all_nodes if is_loop(n) and _multiplies(n))
    inside = loop.blocks[0].nodes
    lanes = max((_size(p) for p in loop.blocks[0].params[1:]), default=0)
    if lanes % 16 or not lanes:
        found = f"vectors of {lanes}" if lanes > 1 else "no vectors"
        raise Wrong(text, "sums in vectors of 16 numbers", found)
    loaded = sum(_size(n) for n in inside if is_load(n))
    products = sum(_size(n) for n in inside if _is_product(n))
    if products < 8 * loaded:
        found = f"{products} multiplications for {loaded} numbers loaded"
        raise Wrong(text, "at least 8 multiplications in the loop for each number loaded", found)
    sums = sum(_size(p) for p in loop.blocks[0].params[1:])
    if sums > 24 * 16:
        raise Wrong(text, f"at most {24 * 16} sums in 24 registers", f"{sums} sums")
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((64, 64)).astype(np.float32) for _ in range(2))
    if not equal(a @ b, made.interpret(a, b), 1e-3):
        raise Wrong(text, "the product", "other numbers")


def _is_product(node: Node) -> bool:
    return multiplies(node) and node.dtype.is_float


def _multiplies(loop: Node) -> bool:
    """True if a loop itself multiplies, not only a loop inside of it."""
    nodes = loop.blocks[0].nodes
    return any(map(_is_product, nodes)) and not any(map(is_loop, nodes))


def _size(node: Node) -> int:
    return prod(map(int, node.shape))  # pyright: ignore[reportArgumentType]
