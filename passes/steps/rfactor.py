"""rfactor: accumulate a tile of partial sums in a loop, and reduce the tile after the loop.

    loop(0.0) {(%r.0 < 16, %acc)              rfactor r.0     %acc = loop(0.0 : f32<64>) {(...)
      add(%acc, reduce(%x) {axes=[0]})                          add(%acc, %x) }
    }                                                         reduce(%acc) {axes=[0]}

Legal if all loop-carried values are memory or totals, and a total is combined with the reduction of
a tile of the same kind: a sum with a sum, a maximum with a maximum. The reduction is reassociated.

Source: Suriana, Adams and Kamil, Parallel associative reductions in Halide (CGO 2017).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from stack.ir.algebra import KIND_OF
from stack.ir.builder import constant, make, results_of
from stack.ir.node import Block, Node
from stack.ir.space import identity
from stack.ir.traits import is_reduction
from stack.ir.types import TensorType
from stack.passes.steps.edit import Edit
from stack.passes.steps.guard import summand, why_no_totals
from stack.passes.steps.loops import (
    is_constant,
    is_memory,
    loops_along,
    starts_of,
    why_not_free,
)
from stack.passes.steps.step import Step
from stack.target import Target


@dataclass(frozen=True)
class Rfactor(Step):
    """Replace scalar totals of the loops over an axis by tiles of partial sums."""

    name: ClassVar[str] = "rfactor"
    axis: str

    def why_not(self, kernel: Node, target: Target | None = None) -> str:
        why = why_not_free(kernel, self.axis)
        if why:
            return why
        factored = 0
        for loop, _ in loops_along(kernel, self.axis):
            why = why_no_totals(loop)
            if why:
                return why
            factored += any(_lanes(h, r) is not None for h, r in _carried(loop.blocks[0]))
        if not factored:
            return f"no loop over {self.axis} adds the reduction of a tile to a total"
        return ""

    def apply(self, kernel: Node) -> Node:
        edit = Edit(kernel)

        def change(old: Node, args: Sequence[Node], block: Block) -> Node | list[Node]:
            parts = [_lanes(h, r) for h, r in _carried(block)]
            return _factored(edit, old, args, block, parts) if any(parts) else old.rebuilt(
                args, blocks=[block]
            )  # fmt: skip

        return edit.change_loops(self.axis, change)


def _carried(block: Block) -> list[tuple[Node, Node]]:
    return list(zip(block.params[1:], block.results, strict=True))


def _lanes(held: Node, result: Node) -> Node | None:
    """The reduction of a tile that is added to a total; None for other carried values."""
    part = None if is_memory(held) else summand(held, result)
    if part is None or not is_reduction(part) or held.tensor.rank != part.tensor.rank:
        return None
    return part if part.attrs["kind"] == KIND_OF[result.op] else None


def _factored(
    edit: Edit, old: Node, args: Sequence[Node], block: Block, parts: Sequence[Node | None]
) -> list[Node]:
    var, *held = block.params
    inside: list[Node] = []
    starts: list[Node] = []
    results: list[Node] = []
    start_of = dict(zip(held, starts_of(old.rebuilt(args, blocks=[block])), strict=True))
    for variable, result, part in zip(held, block.results, parts, strict=True):
        if part is None:
            inside.append(variable)
            starts.append(start_of[variable])
            results.append(result)
            continue
        (tile,) = part.args
        zero = constant(identity(KIND_OF[result.op], tile.dtype), tile.dtype)
        hint = TensorType(tile.dtype, tile.shape, "tile")
        starts.append(make("broadcast", (zero,), {"axes": ()}, hint=hint))
        inside.append(Node("var", (), {"name": edit.names.own("lanes")}, hint))
        results.append(edit.note(result, make(result.op, (inside[-1], tile))))
    loop = make("loop", starts, old.attrs, (Block((var, *inside), results),))
    edit.locate(old, loop)
    made: list[Node] = []
    for variable, result, part, total in zip(
        held, block.results, parts, results_of(loop), strict=True
    ):
        if part is None:
            made.append(total)
            continue
        whole = make("reduce", (total,), part.attrs)
        first = start_of[variable]
        is_empty = is_constant(first, identity(KIND_OF[result.op], first.dtype))
        made.append(edit.note(old, whole if is_empty else make(result.op, (first, whole))))
    return made
