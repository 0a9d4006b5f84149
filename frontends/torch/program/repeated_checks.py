"""Checks of the index inputs of a graph, without those that were checked in the last call."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch

from stack.frontends.torch.aten.lowering import IndexCheck
from stack.frontends.torch.capture.calls import check_index
from stack.ir.node import Node
from stack.run.backend import Direct
from stack.run.frontend import Arrays


class Checks:
    """The index inputs of one graph, and their bounds.

    Args:
        checks: pairs of parameter number and check.
        params: all parameters; bounds may depend on their shapes.
    """

    def __init__(self, checks: Sequence[tuple[int, IndexCheck]], params: Sequence[Node]) -> None:
        self.checks = checks
        self.params = params
        # true if bounds are the same in every call
        self.are_fixed = all(isinstance(b, int) for _, c in checks for b in (c.low, c.high))
        self.sound: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}

    def __call__(self, tensors: Sequence[torch.Tensor]) -> None:
        """Check the tensors of a call. Raises IndexError; on a GPU the device asserts."""
        for i, check in self.checks:
            index = tensors[i]
            if not self._is_known(i, index):
                check_index(check, index, tensors, self.params)
        if self.are_fixed:
            self._remember(tensors)

    def before(self, call: Direct, places: Sequence[int]) -> Direct:
        """Returns a call that checks its arguments first; `places`: their numbers by parameter."""
        if not self.checks:
            return call

        def checked(args: Arrays) -> list[torch.Tensor] | None:
            self([args[place] for place in places])
            return call(args)

        return checked

    def _is_known(self, i: int, index: torch.Tensor) -> bool:
        """True if index `i` was checked in the last call: the same tensor, not written to since."""
        known = self.sound.get(i)
        return known is not None and known[0]() is index and known[1] == index._version

    def _remember(self, tensors: Sequence[torch.Tensor]) -> None:
        for i, _ in self.checks:
            if not tensors[i].is_inference():
                self.sound[i] = weakref.ref(tensors[i]), tensors[i]._version
