"""rewrite: replace arithmetic by cheaper arithmetic with almost the same result.

    div(%x, 20.0)                     rewrite reciprocals     mul(%x, 0.05)

`reciprocals`: division by an f32 constant becomes multiplication by its reciprocal. The result may
differ in the last place. Always legal.

There is no rule for exp(a - b) as exp2(a * L - b * L) with L = log2(e), which FlashAttention-2
(Dao, 2023) uses and which saves one multiplication. a * L is rounded relative to a, not to a - b,
and a GPU rounds one of the two products only: where a = b lies between 1e6 and 2e6, the result
differs from 1 by up to 9 percent. Attention divides such errors out (`passes/blocking/dots.py`). A
kernel that stores the exponential does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from stack.ir.builder import constant, make
from stack.ir.node import Block, Node
from stack.ir.traits import divides, is_number, number
from stack.passes.steps.edit import Edit
from stack.passes.steps.step import Step
from stack.target import Target


@dataclass(frozen=True)
class Rewrite(Step):
    """Apply a rewrite rule to all values of a kernel.

    Attributes:
        rule: `reciprocals`.
    """

    name: ClassVar[str] = "rewrite"
    rule: str

    def why_not(self, kernel: Node, target: Target | None = None) -> str:
        if self.rule not in RULES:
            return f"there is no rule {self.rule!r}; there are: {', '.join(RULES)}"
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


RULES: dict[str, Callable[[Node], Node | None]] = {"reciprocals": _reciprocal}
