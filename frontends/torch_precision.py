"""Torch's settings of what f32 may be rounded to on a GPU, as they stand at a capture."""

from __future__ import annotations

from typing import Any

import torch

ROUNDED = "tf32"


def conv_precision(operand: Any) -> str | None:
    """ "tf32" where convolutions of such a (traced) tensor may round to it, else None.

    That is torch's default on a GPU: `torch.backends.cudnn.allow_tf32`.
    """
    if not isinstance(operand, torch.Tensor) or operand.dtype is not torch.float32:
        return None
    return ROUNDED if operand.device.type == "cuda" and convs_round() else None


def convs_round() -> bool:
    """Whether convolutions of f32 on a GPU may round their operands to TF32."""
    cudnn: Any = torch.backends.cudnn
    return str(cudnn.conv.fp32_precision) == ROUNDED
