"""Memory of intermediates: live ranges, an arena planned in advance, and a caching allocator.

    python -m stack.demos.memory

Each step of a compiled training step computes values that later steps read. In separate buffers
they take the sum of their sizes. The compiler places them in one arena before anything runs. A
framework calls an allocator as it runs, which caches freed blocks and splits them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from stack.demos import models, models_torch
from stack.explore.table import table
from stack.ir.func import Func
from stack.ir.node import Node
from stack.ir.traits import behind, is_input
from stack.ir.types import TensorType
from stack.rewrite import Pipeline
from stack.run.gradients import gradients_of
from stack.run.memory import Lifetime, place

ROUND = 512  # bytes; a caching allocator rounds requests up to a multiple


def lifetimes(func: Func) -> dict[str, Lifetime]:
    """Returns size, first and last step of every intermediate; a view extends its base."""
    steps = [n for n in func.nodes if not is_input(n) and isinstance(n.type, TensorType)]
    returned = {behind(r) for r in func.results}
    made: dict[Node, int] = {}
    last: dict[Node, int] = {}
    for number, node in enumerate(steps):
        if behind(node) is node and node not in returned:
            made[node] = last[node] = number
        for arg in map(behind, node.args):
            if arg in made:
                last[arg] = number
    sizes = {node: int(str(node.tensor.bytes)) for node in made}
    names = func.body.names
    return {names[n]: Lifetime(sizes[n], made[n], last[n]) for n in made}


@dataclass
class CachingAllocator:
    """Best fit among freed blocks, which are split, and merged with free neighbours.

    Modeled on PyTorch's (c10/cuda/CUDACachingAllocator.cpp), with one segment that grows.
    """

    size: int = 0
    free: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])  # offset, bytes

    def take(self, size: int) -> tuple[int, int]:
        """Allocates a block of at least `size` bytes."""
        size = -(-size // ROUND) * ROUND
        fits = min((b for b in self.free if b[1] >= size), key=lambda b: b[1], default=None)
        if fits is None:
            offset, self.size = self.size, self.size + size
        else:
            self.free.remove(fits)
            offset = fits[0]
            if fits[1] > size:
                self.free.append((offset + size, fits[1] - size))
        return offset, size

    def give(self, block: tuple[int, int]) -> None:
        """Returns a block to the free list, merged with free neighbours."""
        joined: list[tuple[int, int]] = []
        for offset, size in sorted([*self.free, block]):
            if joined and sum(joined[-1]) == offset:
                joined[-1] = (joined[-1][0], joined[-1][1] + size)
            else:
                joined.append((offset, size))
        self.free = joined


def cached(lives: Sequence[Lifetime]) -> tuple[int, int]:
    """Simulates a caching allocator; returns its peak bytes, and how many of these are free."""
    allocator = CachingAllocator()
    blocks: dict[int, tuple[int, int]] = {}
    torn = 0
    for step in range(max(life.last for life in lives) + 1):
        for number, life in enumerate(lives):
            if life.first == step:
                peak = allocator.size
                blocks[number] = allocator.take(life.size)
                if allocator.size > peak:
                    torn = sum(size for _, size in allocator.free)
        for number, life in enumerate(lives):
            if life.last == step:
                allocator.give(blocks.pop(number))
    return allocator.size, torn


def live_at_once(lives: Sequence[Lifetime]) -> int:
    """Returns the lower bound of every plan: the most bytes live at once."""
    steps = range(max(life.last for life in lives) + 1)
    return max(sum(b.size for b in lives if b.first <= s <= b.last) for s in steps)


def timeline(lives: dict[str, Lifetime], most: int = 24) -> str:
    """Shows the largest values: size, offset in the arena, and live range over the steps."""
    offsets, _ = place(list(lives.values()))
    rows = sorted(zip(lives.items(), offsets, strict=True), key=lambda row: -row[0][1].size)[:most]
    end = max(life.last for life in lives.values()) + 1
    lines: list[list[object]] = []
    for (name, life), offset in sorted(rows, key=lambda row: row[1]):
        begin, length = (60 * n // end for n in (life.first, life.last - life.first))
        sizes = [f"{n / 1024:.0f} KiB" for n in (life.size, offset)]
        lines.append([name, *sizes, (" " * begin + "#" * max(1, length)).ljust(60)])
    return table(["value", "size", "at", f"steps 0 to {end - 1}"], lines)


def main() -> int:
    """Draws the arena of a GPT-2 training step, and compares three allocators with the bound."""
    module, args = models_torch.make_gpt2(replace(models.TINY_GPT2, layers=2))
    func = Pipeline("canonicalize,layout,canonicalize,fuse").run(gradients_of(module, args)).func
    lives = lifetimes(func)
    held = list(lives.values())
    print(timeline(lives) + "\n")
    plain = sum(life.size for life in held)
    planned = place(held)[1]
    cache, torn = cached(held)
    bound = live_at_once(held)
    rows = [
        [name, f"{size / 2**20:.2f} MB", f"{100 * size / plain:.0f} %"]
        for name, size in (
            ("separate buffers", plain),
            ("caching allocator", cache),
            ("planned arena", planned),
            ("live at once", bound),
        )
    ]
    print(table(["memory of intermediates", "peak", "of separate"], rows))
    print(f"{torn / 1024:.0f} KiB were free at the allocator's peak, in parts too small")
    sound = bound <= planned <= 0.8 * plain
    print("the plan saves a fifth of the sum at least" if sound else "the plan is too large")
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
