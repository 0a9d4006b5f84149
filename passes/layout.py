"""layout: let transposes disappear into dots, or into the ops next to them, by fewest bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from stack.ir.node import Block, Func
from stack.passes.rules.dot_layout import DOT_RULES
from stack.passes.rules.movement import MOVEMENT_RULES
from stack.passes.rules.transposes import HOIST_RULES, SINK_RULES
from stack.rewrite.engine import Rule, rewrite
from stack.rewrite.group import bytes_of
from stack.rewrite.log import Log
from stack.rewrite.passes import Pass

_BASE: tuple[Rule, ...] = (*MOVEMENT_RULES, *DOT_RULES)
_STEPS: dict[str, tuple[Rule, ...]] = {
    "absorb": _BASE,
    "sink": (*_BASE, *SINK_RULES),
    "hoist": (*_BASE, *HOIST_RULES),
}
# what is tried, simplest first: a later one must move fewer bytes to be taken
_PLANS: tuple[tuple[str, ...], ...] = (
    ("absorb",),
    ("sink",),
    ("hoist",),
    ("sink", "hoist"),
)


@dataclass(frozen=True)
class Layout(Pass):
    """Cancel transposes and absorb them into dots, sinking or hoisting where that saves bytes."""

    name: ClassVar[str] = "layout"

    def run(self, func: Func, log: Log) -> Func:
        best: tuple[str, ...] = ()
        least: int | None = None
        for plan in _PLANS:
            cost = transposed_bytes(_apply(plan, func, Log()).body)
            if least is None or cost < least:
                best, least = plan, cost
            if least == 0:
                break
        before = transposed_bytes(func.body)
        log.note(f"plan {'+'.join(best)}: {before} bytes of transposes before, {least} after")
        return _apply(best, func, log)


def _apply(plan: Sequence[str], func: Func, log: Log) -> Func:
    for step in plan:
        func = rewrite(func, _STEPS[step], log)
    return func


def transposed_bytes(block: Block) -> int:
    """Bytes that transposes move. Those that elementwise code reads in place count half."""
    total = 0
    readers: dict[object, set[str]] = {}
    for node in block.nodes:
        for arg in node.args:
            readers.setdefault(arg, set()).add(node.op)
        for inner in node.blocks:
            total += transposed_bytes(inner)
    for node in block.nodes:
        if node.op == "transpose":
            must_exist = node in block.results or not readers.get(node, set()).isdisjoint(
                ("dot", "conv", "reshape", "sort", "scan", "opaque", "gather", "scatter")
            )
            total += bytes_of(node) * (2 if must_exist else 1)
    return total
