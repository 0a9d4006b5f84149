"""Torch's settings for rounding f32 operands on a GPU, read at capture."""

from __future__ import annotations

from typing import Any

import torch
from torch._dynamo import source
from torch._dynamo.guards import GuardBuilder
from torch._guards import TracingContext
from torch.fx import GraphModule

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
    context = TracingContext.try_get()
    if context is None or not any("conv" in str(n.target) for n in graph.graph.nodes):
        return
    sources: Any = source  # older versions only have a source for torch
    if hasattr(sources, "ImportSource"):
        setting = sources.ImportSource("torch")
    else:
        setting = sources.TorchSource()
    for name in ("backends", "cudnn", "conv", "fp32_precision"):
        setting = source.AttrSource(setting, name)
    guard = setting.make_guard(GuardBuilder.CONSTANT_MATCH)
    context.guards_context.dynamo_guards.add(guard)
