"""Ranges in `torch.profiler`, and in NVTX within `torch.autograd.profiler.emit_nvtx`."""

from __future__ import annotations

import torch

from stack.frameworks.torch_private import is_profiled
from stack.ranges import OpenRange


def torch_ranges() -> OpenRange | None:
    """Returns torch's function that opens a range; None while its profiler does not record."""
    return torch.profiler.record_function if is_profiled() else None
