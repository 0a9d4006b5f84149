"""The interface of passes that form groups: their decisions can be replaced, and compared."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Self

from stack.ir.func import Func
from stack.ir.node import Block
from stack.rewrite.fusion import Grouping
from stack.rewrite.log import Log
from stack.rewrite.passes import BlockPass


class FusionPass(BlockPass):
    """A pass that joins units of a block to groups, by fusion rules."""

    @abstractmethod
    def prepared(self, func: Func, log: Log) -> Func:
        """Returns the function whose block the pass groups, after rewrites that precede fusion."""

    @abstractmethod
    def grouping(self, block: Block, log: Log) -> Grouping:
        """Returns the groups of a prepared block before any two are joined: one for each unit."""

    @abstractmethod
    def with_groups(self, groups: Iterable[str]) -> Self:
        """Returns this pass with given groups: `%mul %add` is one. See `GivenGroups`."""
