"""evict: an eviction hint for the accesses to a memory.

    store(%o0, ...)        evict o0 first        store(%o0, ...) {evict="first"}

Caches evict lines with the hint `first` early: use it for data that is not reused. Lines with the
hint `last` stay longest. `reuse` is for a memory that two loops load: `last` in loops that reduce,
`first` for its other loads. Only accesses to blocks get the hint. Legal for a parameter of the
kernel. Only GPUs have the hint.

Source: eviction priorities of PTX (`evict_first`, `evict_last`); `eviction_policy` of Triton.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stack.ir.memory import memory_of
from stack.ir.node import Node
from stack.ir.traits import is_load, is_loop, is_store
from stack.passes.steps.edit import Edit, Visit
from stack.passes.steps.loops import stores_only, why_no_memory
from stack.passes.steps.step import Step
from stack.target import Gpu, Target

REUSE = "reuse"
WHEN = ("first", "last", REUSE)


@dataclass(frozen=True)
class Evict(Step, name="evict", only=Gpu):
    """Add an eviction hint to the loads and stores of a memory.

    Attributes:
        memory: the name of a parameter of the kernel.
        when: `first` or `last` to be evicted, or `reuse`.
    """

    memory: str
    when: str

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        if self.when not in WHEN:
            yield f"memory {self.memory}: the hint is {', '.join(WHEN)}, not {self.when!r}"
        yield why_no_memory(kernel, self.memory)

    def apply(self, kernel: Node) -> Node:
        edit = Edit(kernel)
        held = memory_of(kernel.blocks[0])
        usual = "first" if self.when == REUSE else self.when

        def hinted(when: str) -> Visit:
            def visit(old: Node, made: Node) -> Node:
                if is_loop(old) and self.when == REUSE and _is_read_again(old):
                    return made.rebuilt(blocks=[edit.rewritten(made.blocks[0], hinted("last"))])
                is_access = (is_load(old) and bool(old.tensor.rank)) or is_store(old)
                if not is_access or str(held(old.args[0]).attrs["name"]) != self.memory:
                    return made
                is_block = not any(a.tensor.rank for a in old.args[1 if is_load(old) else 2 :])
                return made.rebuilt(attrs={**old.attrs, "evict": when}) if is_block else made

            return visit

        return edit.everywhere(hinted(usual))


def _is_read_again(loop: Node) -> bool:
    """True if later loops load the tiles of a loop: it reduces, and `hold` does not keep them."""
    return not (stores_only(loop) or loop.attrs.get("limited"))
