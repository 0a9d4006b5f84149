"""Counts the sets of sizes that one program is compiled for; may refuse those that come seldom."""

from __future__ import annotations

import warnings
from collections import Counter

Sizes = tuple[tuple[str, int], ...]  # values of size symbols, by name
MANY_SIZES = 16  # sets of sizes of one program that are compiled as they come
OFTEN = 16  # calls after which another set is compiled too, if the framework can run the others


class SeldomSizes(Exception):
    """Ends a call for whose sizes the program is not compiled; the framework runs it instead."""


class MetSizes:
    """The sets of sizes that a program has met.

    A program is compiled for each set, which takes longer than a call by orders of magnitude. If
    sizes change in each call, as those of a growing cache do, a program that the framework can run
    too is better run there.

    Attributes:
        name: the program's name in warnings.
        framework: runs calls of seldom sizes; "" if nothing does.
        compiled: number of sets that it is compiled for.
        waiting: calls of each other set.
    """

    def __init__(self, name: str, framework: str = "") -> None:
        self.name, self.framework = name, framework
        self.compiled = 0
        self.waiting: Counter[Sizes] = Counter()

    def __str__(self) -> str:
        return f", {self.waiting.total()} call(s) by {self.framework}" if self.waiting else ""

    @property
    def is_full(self) -> bool:
        """True if the framework runs calls of further sizes."""
        return bool(self.framework) and self.compiled >= MANY_SIZES

    def ask(self, sizes: Sizes) -> None:
        """Counts a call of sizes that the program is not compiled for yet.

        Raises SeldomSizes if the framework is to run it; otherwise the caller compiles. Warns once.
        """
        if self.is_full:
            self.waiting[sizes] += 1
            if self.waiting.total() == 1:
                self._warn(sizes, f"others run in {self.framework}, op by op, {OFTEN - 1} times")
            if self.waiting[sizes] < OFTEN:
                raise SeldomSizes
            del self.waiting[sizes]
        self.compiled += 1
        if not self.framework and self.compiled == MANY_SIZES:
            self._warn(sizes, "others are compiled too")

    def _warn(self, sizes: Sizes, then: str) -> None:
        given = ", ".join(f"{name} = {size}" for name, size in sizes)
        warnings.warn(
            f"{self.name} is compiled for each set of sizes, and has met {MANY_SIZES} (now"
            f" {given}); {then}: pad its inputs to a few sizes, or use a cache of fixed size, if"
            " there will be many more",
            stacklevel=2,
        )
