from __future__ import annotations

import re
from typing import Any

import stack
from stack.rewrite import Pipeline
from stack.target import load

PRODUCT = """
func @f(%a: f32[64, 64], %b: f32[64, 64]) -> (f32[64, 64]) at tensor {
  %c = dot(%a, %b) {rule="m k, k n -> m n"} : f32[64, 64]
  return %c
}
"""


def check_loads(student: Any) -> None:
    """loads counts what all blocks read"""
    assert student.loads(8, 8, 4, 8, 8) == 4 * 16
    assert student.loads(64, 128, 32, 4, 16) == 16 * 8 * 32 * 20


def check_shared(student: Any) -> None:
    """shared_bytes counts both operands and all stages"""
    assert student.shared_bytes(128, 128, 32, 3, 2) == 3 * (128 * 32 + 32 * 128) * 2
    assert student.shared_bytes(64, 32, 16, 1, 4) == (64 * 16 + 16 * 32) * 4


def check_schedule(student: Any) -> None:
    """the schedule is legal on AVX-512, and loads little"""
    text = student.schedule()
    func, target = stack.parse(PRODUCT), load("avx512")
    taken = Pipeline("schedule{loops=cpu}").run(func, target=target, schedules={"c": text}).func
    written = str(taken.nodes[-1].attrs["schedule"])
    block = dict(re.findall(r"(\w+)=(\d+)", written))
    m, n = int(block["m"]), int(block["n"])
    loads = (64 // m) * (64 // n) * 64 * (m + n)
    assert loads <= 70_000, f"{written} loads {loads} numbers"
