"""Checks of index inputs before a call, as eager does them.

On a CPU a wrong index raises IndexError. On a GPU the device asserts asynchronously, and a wrong
index aborts the device's work, as in eager.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from stack.frontends.torch.aten.lowering import IndexCheck
from stack.frontends.torch.tensors.size_symbols import size_number
from stack.ir.node import Node

_ASSERTS = "cuda"  # devices that assert asynchronously
# takes a scalar and a message; returns without waiting
assert_on_device: Any = torch.ops.aten._assert_async.msg


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

    def _is_known(self, i: int, index: torch.Tensor) -> bool:
        """True if index `i` was checked in the last call: the same tensor, not written to since."""
        known = self.sound.get(i)
        return known is not None and known[0]() is index and known[1] == index._version

    def _remember(self, tensors: Sequence[torch.Tensor]) -> None:
        for i, _ in self.checks:
            if not tensors[i].is_inference():
                self.sound[i] = weakref.ref(tensors[i]), tensors[i]._version


def check_index(
    check: IndexCheck, index: torch.Tensor, tensors: Sequence[torch.Tensor], params: Sequence[Node]
) -> None:
    """Check one index tensor against its bounds."""
    if not index.numel():
        return
    low, high = (size_number(v, tensors, params) for v in (check.low, check.high))
    name = check.param.attrs["name"]
    place = f"argument {name!r}, which {check.what} reads at {low} to {high}"
    if index.device.type == _ASSERTS:
        inside = (index >= low) & (index <= high)
        for ignored in check.besides:
            inside |= index == ignored
        assert_on_device(inside.all(), f"index out of range in {place}")
        return
    for ignored in check.besides:
        index = index[index != ignored]
    if not index.numel():
        return
    least, most = (int(v) for v in torch.aminmax(index))
    if least < low or most > high:
        bad = least if least < low else most
        raise IndexError(f"index out of range: {bad} in {place}")
