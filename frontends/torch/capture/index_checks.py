"""Checks of index inputs before a call, as eager does them.

On a CPU a wrong index raises IndexError. On a GPU the device asserts asynchronously, and a wrong
index aborts the device's work, as in eager.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from stack.frontends.torch.aten.lowering import IndexCheck
from stack.frontends.torch.tensors.size_symbols import size_number
from stack.ir.node import Node

_ASSERTS = "cuda"  # devices that assert asynchronously
# takes a scalar and a message; returns without waiting
assert_on_device: Any = torch.ops.aten._assert_async.msg


def check_index(
    check: IndexCheck, index: torch.Tensor, tensors: Sequence[torch.Tensor], params: Sequence[Node]
) -> None:
    """Check one index tensor against its bounds."""
    if not index.numel() or index.is_meta:  # nothing to check
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
