"""The target description of this machine's GPU."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stack.target import Gpu, as_gpu, load


def gpu_at_hand(options: Mapping[str, Any]) -> Gpu:
    """Returns the target description of the GPU `options["device"]`.

    If none is present, that of the reference GPU. Its numbers are those of its compute capability,
    except those that the device reports itself.
    """
    if importlib.util.find_spec("torch") is None:
        return as_gpu(None)
    import torch

    device = torch.device(options.get("device") or "cuda")
    if device.type != "cuda" or not torch.cuda.is_available():
        return as_gpu(None)
    found = torch.cuda.get_device_properties(device)
    known = as_gpu(load(f"sm_{found.major}{found.minor}"))
    return replace(
        known,
        processors=found.multi_processor_count,
        shared_bytes=int(found.shared_memory_per_block_optin),
    )


def arch_of(options: Mapping[str, Any]) -> str:
    """The assembler's name for the GPU of `options["target"]`, or else of this machine."""
    asked = options.get("target")
    return as_gpu(load(str(asked))).arch if asked else gpu_at_hand(options).arch
