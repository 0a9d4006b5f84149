"""rewrite: replace arithmetic by cheaper arithmetic with almost the same result.

    div(%x, 20.0)                     rewrite reciprocals     mul(%x, 0.05)
    exp(sub(%x, broadcast(%max)))     rewrite exp2            exp2(sub(mul(%x, L), mul(%max, L)))

- `reciprocals`: division by an f32 constant becomes multiplication by its reciprocal. The result
  may differ in the last place. Always legal.
- `exp2`: exp(a - b) with a broadcast b becomes exp2(a * L - b * L) with L = log2(e), where b * L is
  computed once for many a. The rounding error of a * L is relative to a, not to a - b. Legal if the
  kernel has a parameter of 16-bit floats, whose rounding is coarser. If abs(b) is 2 ** 30 or more,
  the factor is 1 in place of L: nothing overflows, and a - b is either 0 or far from 0 there.

Source of `exp2`: the softmax of FlashAttention-2 (Dao, 2023).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from stack.ir.builder import constant, make
from stack.ir.node import Block, Node
from stack.ir.traits import divides, is_exponential, is_number, number, repeats, signs
from stack.passes.steps.edit import Edit
from stack.passes.steps.step import Step
from stack.passes.tiling.frame import LOG2E
from stack.target import Target

COARSE = 2.0**30  # above it, rounding a * log2(e) is off by many powers of two


@dataclass(frozen=True)
class Rewrite(Step):
    """Apply a rewrite rule to all values of a kernel.

    Attributes:
        rule: `reciprocals` or `exp2`.
    """

    name: ClassVar[str] = "rewrite"
    rule: str

    def why_not(self, kernel: Node, target: Target | None = None) -> str:
        if self.rule not in RULES:
            return f"there is no rule {self.rule!r}; there are: {', '.join(RULES)}"
        params = kernel.blocks[0].params
        is_short = any(p.dtype.is_float and p.dtype.bits <= 16 for p in params)
        if self.rule == "exp2" and not is_short:
            return "no parameter has 16-bit floats: the rounding error would be visible"
        return ""

    def apply(self, kernel: Node) -> Node:
        edit, rule = Edit(kernel), RULES[self.rule]

        def visit(old: Node, args: Sequence[Node], blocks: Sequence[Block]) -> Node:
            made = old.rebuilt(args, blocks=blocks)
            return rule(made) or made

        return edit.finished(edit.rewritten(edit.block, visit))


def _reciprocal(node: Node) -> Node | None:
    if not divides(node) or not is_number(node.args[1]) or node.args[1].dtype.name != "f32":
        return None
    divisor = number(node.args[1])
    if not 1e-30 < abs(divisor) < 1e30:
        return None
    return make("mul", (node.args[0], constant(1.0 / divisor, node.args[1].dtype)))


def _power(node: Node) -> Node | None:
    if not is_exponential(node) or node.op == "exp2" or not node.tensor.rank:
        return None
    (value,) = node.args
    if value.dtype.name != "f32" or signs(value) != (1, -1) or not repeats(value.args[1]):
        return None
    left, right = value.args
    (small,) = right.args
    fine = make("lt", (make("abs", (small,)), constant(COARSE, small.dtype)))
    log2e, one = constant(LOG2E, small.dtype), constant(1.0, small.dtype)
    factor = make("select", (fine, log2e, one))

    def spread(x: Node) -> Node:
        return make("broadcast", (x,), right.attrs, hint=right.type)

    turned = spread(make("mul", (small, factor)))
    return make("exp2", (make("sub", (make("mul", (left, spread(factor))), turned)),))


RULES: dict[str, Callable[[Node], Node | None]] = {"reciprocals": _reciprocal, "exp2": _power}
