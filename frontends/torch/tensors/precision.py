"""Torch's settings for rounding f32 operands on a GPU, read at capture."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule

from stack.frameworks.torch_private import guard_setting

ROUNDED = "tf32"


def conv_precision(operand: Any) -> str | None:
    """Returns "tf32" if convolutions of such a (traced) tensor may round to it, else None.

    Rounding is torch's default on a GPU: `torch.backends.cudnn.allow_tf32`.
    """
    if not isinstance(operand, torch.Tensor) or operand.dtype is not torch.float32:
        return None
    return ROUNDED if operand.device.type == "cuda" and convs_round() else None


def convs_round() -> bool:
    """True if f32 convolutions on a GPU may round their operands to TF32."""
    cudnn: Any = torch.backends.cudnn
    return str(cudnn.conv.fp32_precision) == ROUNDED


def guard_precision(graph: GraphModule) -> None:
    """Add a guard on torch's precision setting of convolutions to the graph being compiled.

    Dynamo's own guards leave it out; with the guard, a change of the setting causes a new capture.
    """
    if any("conv" in str(n.target) for n in graph.graph.nodes):
        guard_setting(("backends", "cudnn", "conv", "fp32_precision"))
