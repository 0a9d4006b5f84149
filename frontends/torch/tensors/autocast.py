"""Casts of operands as under autocast, and code in which it is off."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def as_autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Casts floats to the autocast type, if autocast is enabled."""
    kind = tensors[0].device.type
    if not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
        return tensors
    low = torch.get_autocast_dtype(kind)
    return tuple(x.to(low) if x.is_floating_point() else x for x in tensors)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Turns autocast off for a device; does nothing on devices without it, such as `meta`."""
    if not torch.amp.is_autocast_available(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)
