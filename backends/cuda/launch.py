"""Loads kernels of this backend onto a device."""

from __future__ import annotations

import torch

from stack.ir.warp_ops import WARP

from ..device.driver import Function
from ..device.launch import LoadedKernel
from ..device.symbols import named
from .nvrtc import Binary
from .values import Source


def device_target(device: torch.device) -> str:
    """The compile target for a device, such as "sm_90"."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def loaded(source: Source, binary: Binary, device: torch.device, symbol: str = "") -> LoadedKernel:
    """Loads a kernel onto a device, ready to launch on tensors or in a program."""
    symbol = symbol or binary.name
    number = device.index if device.index is not None else torch.cuda.current_device()
    torch.cuda.init()
    with torch.cuda.device(number):
        function = Function(named(binary.cubin, symbol), symbol, source.shared, number)
    return LoadedKernel(function, source.blocks, (WARP, source.warps, 1), device)
