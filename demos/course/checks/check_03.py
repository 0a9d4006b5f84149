from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

import stack
from stack.demos.course.answers import Wrong, ask
from stack.ir import Func
from stack.rewrite import Pass, Pipeline
from stack.rewrite.fusion import Grouping, Limits
from stack.rewrite.outline import outline

SOFTMAX = "softmax(2 tanh(x)) + x"
PROGRAM = """
func @f(%x: f32[4, 16]) -> (f32[4, 16]) at tensor {
  %t = tanh(%x) : f32[4, 16]
  %s = mul(%t, 2.0:f32) : f32[4, 16]
  %top = reduce(%s) {axes=[1], kind="max"} : f32[4]
  %tops = broadcast(%top) {axes=[0]} : f32[4, 16]
  %d = sub(%s, %tops) : f32[4, 16]
  %e = exp(%d) : f32[4, 16]
  %l = reduce(%e) {axes=[1], kind="sum"} : f32[4]
  %ls = broadcast(%l) {axes=[0]} : f32[4, 16]
  %p = div(%e, %ls) : f32[4, 16]
  %y = add(%p, %x) : f32[4, 16]
  return %y
}
"""

CHAIN = """
func @f(%x: f32[4, 16]) -> (f32[4, 16]) at tensor {
  %t = tanh(%x) : f32[4, 16]
  %y = exp(%t) : f32[4, 16]
  return %y
}
"""


@dataclass(frozen=True)
class _Fuse(Pass):
    """Groups by the student's rule."""

    name: ClassVar[str] = "students-fuse"
    rule: Any = None

    def run(self, func, log):
        groups = Grouping(func.body, [self.rule], log, Limits(8), frozenset({"reduce"}))
        groups.run(0)
        return Func(func.name, outline(groups), func.level)


def _fused(student: Any, name: str, text: str) -> Func:
    """The program after the student's rule, which must keep its meaning."""
    func = stack.parse(text)
    run = lambda: Pipeline([_Fuse(student.OneReduction())]).run(func, check=True).func
    return ask(run, given=f"OneReduction at {name}").answer("a program with fusion nodes")


def check_rule(student: Any) -> None:
    """no kernel of OneReduction has two reductions, and the program means the same

    Hint: each of producer and consumer may hold a reduction already: ask both for .reduces.
    """
    groups = [n for n in _fused(student, SOFTMAX, PROGRAM).nodes if n.op == "fusion"]
    if not groups:
        raise Wrong(f"OneReduction at {SOFTMAX}", "kernels with several ops", "nothing was fused")
    for group in groups:
        ops = [n.op for n in group.blocks[0].nodes]
        if ops.count("reduce") > 1:
            found = f"a kernel with {ops.count('reduce')}: {', '.join(ops)}"
            raise Wrong(f"OneReduction at {SOFTMAX}", "at most one reduce in a kernel", found)


def check_win(student: Any) -> None:
    """OneReduction fuses all that it may: a chain takes one kernel, a softmax of a chain two

    Hint: one reduction is allowed in a kernel. Refuse only if both groups have one.
    """
    for name, text, most in ((SOFTMAX, PROGRAM, 2), ("exp(tanh(x))", CHAIN, 1)):
        ops = [n.op for n in _fused(student, name, text).nodes if n.op not in ("const", "item")]
        if len(ops) > most:
            found = f"{len(ops)} kernels: {', '.join(ops)}"
            expected = f"{most} kernel{'s' if most > 1 else ''}"
            raise Wrong(f"OneReduction at {name}", expected, found)


def check_profit(student: Any) -> None:
    """profitable compares the time to compute again with the time through memory

    Hint: keeping takes flops / peak, and one write and `readers` reads of `size` bytes at `rate`.
    Computing again takes readers * flops / peak.
    """
    rng = np.random.default_rng(3)
    cases = [(1e6, 4e6, 2, 1e12, 1e11), (1e9, 4e3, 3, 1e12, 1e11), (1e12, 8.0, 1, 1e12, 1e11)]
    for readers in (2, 3, 4, 5):  # on both sides of the balance
        size, peak, rate = (float(10.0 ** rng.integers(*r)) for r in ((3, 7), (11, 14), (10, 12)))
        balance = (1 + readers) * size / rate * peak / (readers - 1)
        cases += [(factor * balance, size, readers, peak, rate) for factor in (0.9, 1.1)]
    for flops, size, readers, peak, rate in cases:
        keeping = flops / peak + (1 + readers) * size / rate
        wanted = readers * flops / peak < keeping
        given = f"{flops=:.3g}, {size=:g}, {readers=}, {peak=:g}, {rate=:g}"
        ask(student.profitable, flops, size, readers, peak, rate, given=given).equals(wanted)
